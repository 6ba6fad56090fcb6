//! Who is on the other side of a Unix socket, and who may be.

use std::{fmt, sync::Arc};

/// The credentials of a peer, as the operating system took them down when the connection was made
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's effective user id.
    pub uid: u32,
    /// The peer's effective group id.
    pub gid: u32,
    /// The peer's process id, where the operating system gives it.
    pub pid: Option<i32>,
}

/// Decides who may connect, before the first frame is read. A connection that is refused is closed.
///
/// Connections that are no Unix sockets have no credentials and are refused by every policy but one
/// of your own.
///
/// ```
/// use ttrpc::server::PeerPolicy;
///
/// let policy = PeerPolicy::same_user().or(PeerPolicy::root());
/// ```
#[derive(Clone)]
pub struct PeerPolicy {
    allows: Arc<dyn Fn(Option<Peer>) -> bool + Send + Sync>,
}

impl PeerPolicy {
    /// The user that this process runs as.
    pub fn same_user() -> Self {
        PeerPolicy::user(rustix::process::geteuid().as_raw())
    }

    /// The superuser, user id 0.
    pub fn root() -> Self {
        PeerPolicy::user(0)
    }

    /// One user, by id.
    pub fn user(uid: u32) -> Self {
        PeerPolicy::custom(move |peer| peer.is_some_and(|peer| peer.uid == uid))
    }

    /// Everybody whose effective group is this one.
    pub fn group(gid: u32) -> Self {
        PeerPolicy::custom(move |peer| peer.is_some_and(|peer| peer.gid == gid))
    }

    /// A function of your own. It gets `None` for a connection that is no Unix socket. It runs on
    /// the task that accepts connections and should not block.
    pub fn custom(allows: impl Fn(Option<Peer>) -> bool + Send + Sync + 'static) -> Self {
        PeerPolicy { allows: Arc::new(allows) }
    }

    /// Allows whom either policy allows.
    #[must_use]
    pub fn or(self, other: PeerPolicy) -> Self {
        PeerPolicy::custom(move |peer| self.allows(peer) || other.allows(peer))
    }

    pub(super) fn allows(&self, peer: Option<Peer>) -> bool {
        (self.allows)(peer)
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
        let peer = |uid, gid| Some(Peer { uid, gid, pid: None });
        let me = rustix::process::geteuid().as_raw();
        assert!(PeerPolicy::same_user().allows(peer(me, 1)));
        assert!(!PeerPolicy::same_user().allows(peer(me + 1, 1)));
        assert!(PeerPolicy::root().allows(peer(0, 5)));
        assert!(PeerPolicy::group(7).allows(peer(1, 7)));
        assert!(!PeerPolicy::group(7).allows(peer(7, 1)));
        let either = PeerPolicy::user(3).or(PeerPolicy::group(4));
        assert!(either.allows(peer(3, 0)) && either.allows(peer(0, 4)));
        assert!(!either.allows(peer(4, 3)) && !either.allows(None));
    }
}
