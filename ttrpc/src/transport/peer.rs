//! Who is on the other side of a connection, and who may be.

use std::{any::Any, fmt, net::SocketAddr, sync::Arc};

use tokio::net::UnixStream;

use crate::contain::{Contained, contain};

/// The other side of a connection, as the operating system and the program describe it.
///
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    origin: Origin,
    /// Kept apart, since most peers have none.
    added: Option<Arc<Added>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Origin {
    #[default]
    Unknown,
    Unix(Credentials),
    Vsock(VsockAddr),
    Tcp(SocketAddr),
}

/// Facts that the program has added about a peer.
#[derive(Clone, Debug, Default)]
struct Added {
    name: Option<String>,
    values: Vec<Arc<dyn Any + Send + Sync>>,
}

/// The credentials of a peer, as the operating system took them down when the connection was made
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The peer's effective user id.
    pub uid: u32,
    /// The peer's effective group id.
    pub gid: u32,
    /// The peer's process id, where the operating system knows it.
    pub pid: Option<i32>,
}

/// The address of a peer in a virtual machine or on its host (vsock(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VsockAddr {
    /// The context id: which machine.
    pub cid: u32,
    /// The port.
    pub port: u32,
}

impl Peer {
    /// Returns a peer of which nothing is known.
    pub fn unknown() -> Self {
        Peer::default()
    }

    /// Returns the peer that is a process on this system.
    pub fn unix(credentials: Credentials) -> Self {
        Peer { origin: Origin::Unix(credentials), added: None }
    }

    /// Returns the peer that is a virtual machine, or its host.
    pub fn vsock(cid: u32, port: u32) -> Self {
        Peer { origin: Origin::Vsock(VsockAddr { cid, port }), added: None }
    }

    /// Returns the peer that is the other side of a TCP connection.
    pub fn tcp(address: SocketAddr) -> Self {
        Peer { origin: Origin::Tcp(address), added: None }
    }

    /// Asks the system.
    pub(crate) fn of_unix(stream: &UnixStream) -> Self {
        stream.peer_cred().map_or_else(
            |_| Peer::unknown(),
            |credentials| {
                let (uid, gid, pid) = (credentials.uid(), credentials.gid(), credentials.pid());
                Peer::unix(Credentials { uid, gid, pid })
            },
        )
    }

    /// Names the peer, in place of an earlier name. The name stands in snapshots and traces.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.added_mut().name = Some(name.into());
        self
    }

    /// Adds a value for handlers to find by its type with [`Peer::get`]: a certificate, a session.
    #[must_use]
    pub fn with<T: Any + Send + Sync>(mut self, value: T) -> Self {
        self.added_mut().values.push(Arc::new(value));
        self
    }

    fn added_mut(&mut self) -> &mut Added {
        Arc::make_mut(self.added.get_or_insert_default())
    }

    /// Returns user, group and process. `None` unless this is a Unix socket.
    pub fn credentials(&self) -> Option<Credentials> {
        match self.origin {
            Origin::Unix(credentials) => Some(credentials),
            _ => None,
        }
    }

    /// Returns context id and port. `None` unless this is a vsock socket.
    ///
    /// A guest behind hybrid vsock has [`Peer::credentials`] instead: those of its hypervisor.
    pub fn vsock_addr(&self) -> Option<VsockAddr> {
        match self.origin {
            Origin::Vsock(address) => Some(address),
            _ => None,
        }
    }

    /// Returns the remote address. `None` unless this is a TCP socket.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.origin {
            Origin::Tcp(address) => Some(address),
            _ => None,
        }
    }

    /// Returns the name that the program gave the peer.
    pub fn name(&self) -> Option<&str> {
        self.added.as_ref()?.name.as_deref()
    }

    /// Returns the value of this type that was added last.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.added.as_ref()?.values.iter().rev().find_map(|value| (**value).downcast_ref())
    }
}

/// `uid 0, pid 4711`; `cid 3, port 1025`; `127.0.0.1:4000`; after the name, if there is one.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        if let Some(name) = name {
            f.write_str(name)?;
        }
        match (self.origin, name) {
            (Origin::Unknown, Some(_)) => Ok(()),
            (Origin::Unknown, None) => f.write_str("an unknown peer"),
            (origin, Some(_)) => write!(f, " ({origin})"),
            (origin, None) => origin.fmt(f),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Unknown => Ok(()),
            Origin::Unix(Credentials { uid, pid: Some(pid), .. }) => {
                write!(f, "uid {uid}, pid {pid}")
            }
            Origin::Unix(Credentials { uid, .. }) => write!(f, "uid {uid}"),
            Origin::Vsock(VsockAddr { cid, port }) => write!(f, "cid {cid}, port {port}"),
            Origin::Tcp(address) => address.fmt(f),
        }
    }
}

/// Whether a peer may connect.
type Allows = dyn Fn(&Peer) -> bool + Send + Sync;

/// Decides who may connect, before the first frame is read. A connection that is refused is closed.
///
/// A policy of users or groups refuses a peer without [`Peer::credentials`].
///
/// ```
/// use ttrpc::server::PeerPolicy;
///
/// let policy = PeerPolicy::same_user().or(PeerPolicy::root()).or(PeerPolicy::machine(3));
/// ```
#[derive(Clone)]
pub struct PeerPolicy {
    allows: Contained<Arc<Allows>>,
}

impl PeerPolicy {
    /// Allows the user that this process runs as.
    pub fn same_user() -> Self {
        PeerPolicy::user(rustix::process::geteuid().as_raw())
    }

    /// Allows the superuser, user id 0.
    pub fn root() -> Self {
        PeerPolicy::user(0)
    }

    /// Allows one user, by id.
    pub fn user(uid: u32) -> Self {
        PeerPolicy::custom(move |peer| peer.credentials().is_some_and(|peer| peer.uid == uid))
    }

    /// Allows all processes whose effective group is this one.
    pub fn group(gid: u32) -> Self {
        PeerPolicy::custom(move |peer| peer.credentials().is_some_and(|peer| peer.gid == gid))
    }

    /// Allows one process, by its id. The system may have given that id to another process since the peer
    /// connected.
    pub fn process(pid: i32) -> Self {
        PeerPolicy::custom(move |peer| peer.credentials().is_some_and(|peer| peer.pid == Some(pid)))
    }

    /// Allows every peer, known or not.
    pub fn anybody() -> Self {
        PeerPolicy::custom(|_| true)
    }

    /// Allows one machine, by its vsock context id: 2 is the host.
    pub fn machine(cid: u32) -> Self {
        PeerPolicy::custom(move |peer| peer.vsock_addr().is_some_and(|peer| peer.cid == cid))
    }

    /// Decides by a function of your own. It runs on the task that accepts connections, or on that of
    /// the hook for new connections if there is one, and should not block.
    /// A peer for which it panics may not connect.
    pub fn custom(allows: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        PeerPolicy { allows: Contained::new(Arc::new(allows)) }
    }

    /// Allows every peer that one of the two policies allows.
    #[must_use]
    pub fn or(self, other: PeerPolicy) -> Self {
        PeerPolicy::custom(move |peer| self.allows(peer) || other.allows(peer))
    }

    pub(crate) fn allows(&self, peer: &Peer) -> bool {
        // A panic would end the task that accepts connections, and with it the server.
        contain(|| (self.allows)(peer)).unwrap_or(false)
    }
}

impl fmt::Debug for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerPolicy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_look_at_what_their_names_say() {
        let peer = |uid, gid| Peer::unix(Credentials { uid, gid, pid: None });
        let me = rustix::process::geteuid().as_raw();
        assert!(PeerPolicy::same_user().allows(&peer(me, 1)));
        assert!(!PeerPolicy::same_user().allows(&peer(me + 1, 1)));
        assert!(PeerPolicy::root().allows(&peer(0, 5)));
        assert!(PeerPolicy::group(7).allows(&peer(1, 7)));
        assert!(!PeerPolicy::group(7).allows(&peer(7, 1)));
        let process = |pid| Peer::unix(Credentials { uid: 7, gid: 7, pid });
        assert!(PeerPolicy::process(7).allows(&process(Some(7))));
        assert!(!PeerPolicy::process(7).allows(&process(Some(8))));
        assert!(!PeerPolicy::process(7).allows(&process(None)));
        assert!(PeerPolicy::machine(3).allows(&Peer::vsock(3, 3)));
        assert!(!PeerPolicy::machine(3).allows(&Peer::vsock(4, 3)));
        assert!(!PeerPolicy::machine(3).allows(&peer(3, 3)));
        let either = PeerPolicy::user(3).or(PeerPolicy::group(4));
        assert!(either.allows(&peer(3, 0)) && either.allows(&peer(0, 4)));
        assert!(!either.allows(&peer(4, 3)) && !either.allows(&Peer::unknown()));
        assert!(!either.allows(&Peer::vsock(3, 4)));
    }

    #[test]
    fn peers_print_what_is_known_of_them() {
        let credentials = Credentials { uid: 5, gid: 6, pid: Some(7) };
        let tcp = Peer::tcp("127.0.0.1:80".parse().expect("it is an address"));
        for (peer, text) in [
            (Peer::unknown(), "an unknown peer"),
            (Peer::unix(credentials), "uid 5, pid 7"),
            (Peer::unix(Credentials { pid: None, ..credentials }), "uid 5"),
            (Peer::vsock(3, 4), "cid 3, port 4"),
            (tcp.clone(), "127.0.0.1:80"),
            (Peer::unknown().with_name("a"), "a"),
            (tcp.with_name("b").with(1).with_name("a"), "a (127.0.0.1:80)"),
        ] {
            assert_eq!(peer.to_string(), text);
        }
    }

    #[test]
    fn values_are_found_by_their_types() {
        let peer = Peer::unknown().with(1u8).with("one").with(2u8);
        let clone = peer.clone().with(3u8);
        assert_eq!((peer.get(), peer.get()), (Some(&2u8), Some(&"one")));
        assert_eq!((clone.get(), peer.get::<u16>()), (Some(&3u8), None));
    }

    #[test]
    fn a_policy_prints_that_it_is_one() {
        assert_eq!(format!("{:?}", PeerPolicy::anybody()), "PeerPolicy");
    }
}
