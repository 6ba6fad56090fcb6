//! Addresses as text: the table and the rules are in the crate's documentation.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::Error;

/// Bytes of a path that fit into `sockaddr_un` next to its terminating zero (unix(7); unix(4) of the
/// BSDs).
const MAX_PATH_LEN: usize =
    if cfg!(any(target_os = "linux", target_os = "android")) { 107 } else { 103 };

const PATH_TOO_LONG: &str = if MAX_PATH_LEN == 107 {
    "a Unix socket's name holds at most 107 bytes"
} else {
    "a Unix socket's name holds at most 103 bytes"
};

/// The context ids that have a name (vsock(7)).
const CONTEXT_IDS: [(&str, u32); 5] =
    [("any", ANY_CID), ("-1", ANY_CID), ("hypervisor", 0), ("local", 1), ("host", 2)];

/// The context id that stands for every one that a machine has: for servers alone.
pub(crate) const ANY_CID: u32 = u32::MAX;

/// A parsed address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Address {
    Path(PathBuf),
    Abstract(String),
    /// The hypervisor's Unix socket, and a port in the virtual machine or, for servers, of the host.
    Hybrid {
        path: PathBuf,
        port: u32,
    },
    Vsock {
        cid: u32,
        port: u32,
    },
    /// Host and port, not resolved.
    Tcp(String),
}

impl Address {
    /// # Errors
    /// [`Error::Address`] for what names nothing.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if !scheme.starts_with('@') && !scheme.contains('/') => {
                (scheme, rest.strip_prefix("//").unwrap_or(rest))
            }
            _ => ("unix", text),
        };
        let parsed = match scheme {
            "unix" => parse_unix(rest),
            "vsock" => parse_vsock(rest),
            "hvsock" => parse_hybrid(rest),
            "tcp" => parse_tcp(rest),
            _ => {
                Err("its scheme is none of unix://, vsock://, hvsock:// and tcp:// (a path with a \
                      colon in its first part begins with `./`)")
            }
        };
        parsed.map_err(|reason| Error::Address { address: text.to_owned(), reason })
    }
}

/// Checks that a path can name a Unix socket.
pub(crate) fn check_path(path: &Path) -> Result<(), &'static str> {
    check_name(path.as_os_str().as_encoded_bytes())
}

fn check_name(name: &[u8]) -> Result<(), &'static str> {
    match name {
        [] => Err("the name is empty"),
        _ if name.len() > MAX_PATH_LEN => Err(PATH_TOO_LONG),
        _ if name.contains(&0) => Err("the name contains a zero byte"),
        _ => Ok(()),
    }
}

fn parse_unix(name: &str) -> Result<Address, &'static str> {
    let Some(name) = name.strip_prefix('@') else {
        check_name(name.as_bytes())?;
        return Ok(Address::Path(name.into()));
    };
    check_name(name.as_bytes())?;
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return Err("Linux alone has abstract Unix sockets");
    }
    Ok(Address::Abstract(name.to_owned()))
}

fn parse_vsock(text: &str) -> Result<Address, &'static str> {
    const FORM: &str = "a vsock address is vsock://CID:PORT, where CID is a number, any (or -1), \
         hypervisor, local or host";
    let (cid, port) = text.split_once(':').ok_or(FORM)?;
    let named = CONTEXT_IDS.iter().find(|(name, _)| *name == cid).map(|(_, cid)| *cid);
    let cid = named.or_else(|| parse_number(cid)).ok_or(FORM)?;
    let port = parse_number(port).ok_or(FORM)?;
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return Err("Linux alone has vsock");
    }
    Ok(Address::Vsock { cid, port })
}

fn parse_hybrid(text: &str) -> Result<Address, &'static str> {
    const FORM: &str = "a hybrid vsock address is hvsock:///path/to.sock:PORT";
    let (path, port) = text.rsplit_once(':').ok_or(FORM)?;
    check_name(path.as_bytes())?;
    if path.starts_with('@') {
        return Err("a hypervisor's socket has a file, not an abstract name");
    }
    Ok(Address::Hybrid { path: path.into(), port: parse_number(port).ok_or(FORM)? })
}

fn parse_tcp(text: &str) -> Result<Address, &'static str> {
    const FORM: &str = "a TCP address is tcp://HOST:PORT";
    let (host, port) = text.rsplit_once(':').ok_or(FORM)?;
    parse_number::<u16>(port).ok_or(FORM)?;
    if host.is_empty() || host.contains('/') {
        return Err(FORM);
    }
    Ok(Address::Tcp(text.to_owned()))
}

/// A number of digits alone: Rust's own parser takes a plus sign, too.
fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let path = |text: &str| Address::Path(text.into());
        let tcp = |text: &str| Address::Tcp(text.to_owned());
        for (text, address) in [
            ("unix:///run/a.sock", path("/run/a.sock")),
            ("unix:/run/a.sock", path("/run/a.sock")),
            ("unix:a.sock", path("a.sock")),
            ("/run/a.sock", path("/run/a.sock")),
            ("a.sock", path("a.sock")),
            ("/run/a:1.sock", path("/run/a:1.sock")),
            ("./localhost:1", path("./localhost:1")),
            ("unix:localhost:1", path("localhost:1")),
            ("unix://host/a.sock", path("host/a.sock")),
            ("./@name", path("./@name")),
            ("unix:///run/a%20b.sock", path("/run/a%20b.sock")),
            ("hvsock:vm.sock:1", Address::Hybrid { path: "vm.sock".into(), port: 1 }),
            (
                "hvsock:///run/vm.sock:1024",
                Address::Hybrid { path: "/run/vm.sock".into(), port: 1024 },
            ),
            ("hvsock:///run/a:b:7", Address::Hybrid { path: "/run/a:b".into(), port: 7 }),
            ("tcp://127.0.0.1:80", tcp("127.0.0.1:80")),
            ("tcp://[::1]:80", tcp("[::1]:80")),
            ("tcp://[::1]:0", tcp("[::1]:0")),
            ("tcp:localhost:80", tcp("localhost:80")),
        ] {
            assert_eq!(Address::parse(text).unwrap(), address, "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn addresses_of_linux_alone_are_parsed() {
        let vsock = |cid, port| Address::Vsock { cid, port };
        for (text, address) in [
            ("unix://@name", Address::Abstract("name".into())),
            ("unix:@name", Address::Abstract("name".into())),
            ("@name", Address::Abstract("name".into())),
            ("@a:b", Address::Abstract("a:b".into())),
            ("vsock://3:1024", vsock(3, 1024)),
            ("vsock:3:1024", vsock(3, 1024)),
            ("vsock://any:1", vsock(u32::MAX, 1)),
            ("vsock://-1:1", vsock(u32::MAX, 1)),
            ("vsock://4294967295:1", vsock(u32::MAX, 1)),
            ("vsock://hypervisor:1", vsock(0, 1)),
            ("vsock://local:1", vsock(1, 1)),
            ("vsock://host:1", vsock(2, 1)),
        ] {
            assert_eq!(Address::parse(text).unwrap(), address, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        let long = format!("/{}", "x".repeat(MAX_PATH_LEN));
        let long_hybrid = format!("hvsock://{long}:1");
        for (text, reason) in [
            ("", "empty"),
            ("unix://", "empty"),
            ("unix:", "empty"),
            ("unix://@", "empty"),
            ("hvsock://:1", "empty"),
            ("hvsock://@vm:1", "abstract name"),
            ("hvsock:@vm:1", "abstract name"),
            ("localhost:1234", "scheme"),
            ("http://127.0.0.1:1", "scheme"),
            ("Unix:///run/a.sock", "scheme"),
            ("vsock://3", "vsock://CID:PORT"),
            ("vsock://-2:1", "vsock://CID:PORT"),
            ("vsock://guest:1", "vsock://CID:PORT"),
            ("vsock://guest:1", "a number, any (or -1), hypervisor, local or host"),
            ("vsock://3:-1", "vsock://CID:PORT"),
            ("vsock://3:1024/", "vsock://CID:PORT"),
            ("vsock://+3:1024", "vsock://CID:PORT"),
            ("vsock://3:+1024", "vsock://CID:PORT"),
            ("vsock://:1024", "vsock://CID:PORT"),
            ("vsock://4294967296:1", "vsock://CID:PORT"),
            ("hvsock:///run/vm.sock", "hvsock:///path/to.sock:PORT"),
            ("hvsock:///run/vm.sock:x", "hvsock:///path/to.sock:PORT"),
            ("hvsock:///run/vm.sock:", "hvsock:///path/to.sock:PORT"),
            ("hvsock:///run/vm.sock:+1", "hvsock:///path/to.sock:PORT"),
            ("tcp://1.2.3.4", "tcp://HOST:PORT"),
            ("tcp://:80", "tcp://HOST:PORT"),
            ("tcp://localhost:65536", "tcp://HOST:PORT"),
            ("tcp://localhost:+80", "tcp://HOST:PORT"),
            ("tcp://localhost/a:1", "tcp://HOST:PORT"),
            (long.as_str(), "a Unix socket's name holds at most"),
            (long_hybrid.as_str(), "a Unix socket's name holds at most"),
            ("/a\0b", "zero byte"),
            ("unix://@a\0b", "zero byte"),
            ("hvsock:///a\0b:1", "zero byte"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
            assert!(error.contains(text), "{error} names the address");
        }
        assert!(Address::parse(&long[..MAX_PATH_LEN]).is_ok());
    }
}
