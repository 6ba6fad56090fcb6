//! Each side seen from the other side of the wire, frame by frame.

mod client;
mod client_streams;
mod double_closes;
mod server;
mod server_streams;
