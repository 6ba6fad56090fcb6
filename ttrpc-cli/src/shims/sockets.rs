//! Unix sockets of this machine, as the kernel lists them (sock_diag(7), what `ss -x` shows).

use std::{
    collections::{HashMap, HashSet},
    os::unix::ffi::OsStrExt,
};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::TCP_LISTEN,
    unix::{ShowFlags, StateFlags, UnixRequest, UnixResponse, nlas::UnixDiagName},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

use crate::session::unix_path;

/// The kernel's answers come in pieces of no more than this.
const BUFFER_LEN: usize = 64 << 10;

/// What the server's side of one address has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// The inode of the socket that listens.
    pub listener: Option<u32>,
    /// Connections that are not accepted.
    pub pending: u32,
    /// Connections that are.
    pub connections: u32,
    /// Bytes that have arrived on those and are not read.
    pub unread: u64,
}

/// By the socket's name, an abstract one with a leading zero byte. Empty if the kernel does not tell.
pub type Sockets = HashMap<Vec<u8>, Server>;

/// Asks the kernel. Connections from these sockets, by their inodes, are not counted.
pub fn list(own: &HashSet<u32>) -> Sockets {
    let mut sockets = Sockets::new();
    // Without it a column is empty, no more.
    let _ = dump(&mut |socket| add(socket, own, &mut sockets));
    sockets
}

/// Whether the kernel tells. Where it does not, a test is skipped, or a part of it.
#[cfg(test)]
pub fn are_told() -> bool {
    let told = dump(&mut |_| {});
    if let Err(error) = &told {
        println!("skipped: the kernel does not list Unix sockets: {error}");
    }
    told.is_ok()
}

/// The sockets of an address.
pub fn of_address<'a>(sockets: &'a Sockets, address: &str) -> Option<&'a Server> {
    sockets.get(unix_path(address)?.as_os_str().as_bytes())
}

fn add(socket: &UnixResponse, own: &HashSet<u32>, sockets: &mut Sockets) {
    let name = match socket.name() {
        Some(UnixDiagName::Pathname(path)) => path.as_bytes().to_vec(),
        Some(UnixDiagName::Abstract(name)) => [&[0], &name[..]].concat(),
        None => return,
    };
    let server = sockets.entry(name).or_default();
    if socket.header.state == TCP_LISTEN {
        server.listener = Some(socket.header.inode);
        let clients = socket.pending_connections().unwrap_or_default();
        let of_own = clients.iter().filter(|client| own.contains(client)).count() as u32;
        let pending = socket.number_of_pending_connection().unwrap_or(0);
        server.pending += pending.saturating_sub(of_own);
    } else if socket.peer().is_none_or(|client| !own.contains(&client)) {
        // What was accepted has the name of the socket that listens.
        server.connections += 1;
        server.unread += u64::from(socket.receive_queue_size().unwrap_or(0));
    }
}

fn dump(visit: &mut impl FnMut(&UnixResponse)) -> std::io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = UnixRequest {
        state_flags: StateFlags::all(),
        inode: 0,
        show_flags: ShowFlags::NAME | ShowFlags::RQLEN | ShowFlags::PEER | ShowFlags::ICONS,
        cookie: [0; 8],
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::UnixRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let len = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = &buffer[..len];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(std::io::Error::other)?;
            match &message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::UnixResponse(socket)) => {
                    visit(socket)
                }
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            // Messages begin at multiples of four bytes.
            let len = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::net::{UnixListener, UnixStream},
    };

    use super::*;

    #[test]
    fn what_a_server_does_not_read_is_seen() {
        if !are_told() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let address = format!("unix://{}", path.display());
        let listener = UnixListener::bind(&path).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let seen = of_address(&list(&HashSet::new()), &address).cloned().unwrap();
        assert_eq!((seen.pending, seen.unread), (1, 0));
        assert!(seen.listener.is_some());

        let mut writer = UnixStream::connect(&path).unwrap();
        let _accepted = [listener.accept().unwrap(), listener.accept().unwrap()];
        let _pending = UnixStream::connect(&path).unwrap();
        writer.write_all(&[0; 100]).unwrap();
        let seen = of_address(&list(&HashSet::new()), &address).cloned().unwrap();
        assert_eq!((seen.pending, seen.connections, seen.unread), (1, 2, 100));
        let own = crate::shims::process::own_sockets();
        let seen = of_address(&list(&own), &address).cloned().unwrap();
        assert_eq!((seen.pending, seen.connections, seen.unread), (0, 0, 0), "all are our own");
        assert!(seen.listener.is_some());
    }
}
