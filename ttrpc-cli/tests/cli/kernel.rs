//! What this system's kernel tells, which is not the same everywhere.

use std::{collections::BTreeSet, fs, io};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    unix::{ShowFlags, StateFlags, UnixRequest},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

/// Whether the kernel lists Unix sockets, which needs its UNIX_DIAG. Where it does not, this part of the test is skipped.
pub fn lists_sockets(part: &str) -> bool {
    let asked = ask_for_sockets();
    if let Err(error) = &asked {
        println!("skipped, {part}: the kernel does not list Unix sockets (sock_diag(7)): {error}");
    }
    asked.is_ok()
}

fn ask_for_sockets() -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let (state_flags, show_flags) = (StateFlags::all(), ShowFlags::empty());
    let request = UnixRequest { state_flags, inode: 0, show_flags, cookie: [0; 8] };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::UnixRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answer = vec![0; 64 << 10];
    let len = socket.recv(&mut &mut answer[..], 0)?;
    let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer[..len]);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Ok(()),
    }
}

/// Where the threads of a process wait, by the names that this kernel has for that.
pub fn waits(pid: u32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let place = |task: io::Result<fs::DirEntry>| {
        let place = fs::read_to_string(task.unwrap().path().join("wchan")).unwrap_or_default();
        if ["", "0"].contains(&&*place) { "user space".to_owned() } else { place }
    };
    tasks.map(place).collect()
}
