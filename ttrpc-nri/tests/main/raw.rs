//! A peer that writes bytes of its own, to a stub or to a runtime.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use ttrpc::{Connection, prost::Message};
use ttrpc_nri::proto::RegisterPluginRequest;

/// Types of ttrpc's frames.
pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;
/// The longest payload of one mux frame here.
const PIECE: usize = 1 << 20;

pub struct Raw {
    stream: DuplexStream,
    /// What has come of each logical connection, and is not a whole ttrpc frame yet.
    unread: [Vec<u8>; 2],
}

/// A ttrpc frame that has come.
pub struct Frame {
    pub conn: u32,
    pub id: u32,
    pub data: Vec<u8>,
}

impl Frame {
    /// Whether the method's name is in it.
    pub fn calls(&self, method: &str) -> bool {
        self.data.windows(method.len()).any(|bytes| bytes == method.as_bytes())
    }
}

/// A field of a protobuf message that has a length.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    ttrpc::prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend_from_slice(bytes);
    field
}

/// The data of a ttrpc Request.
pub fn request(service: &str, method: &str, payload: &impl Message) -> Vec<u8> {
    let fields = [service.as_bytes(), method.as_bytes(), &payload.encode_to_vec()];
    (1..).zip(fields).flat_map(|(number, bytes)| field(number, bytes)).collect()
}

/// A ttrpc frame with this data.
pub fn frame(id: u32, kind: u8, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).expect("it is no longer");
    [&len.to_be_bytes()[..], &id.to_be_bytes(), &[kind, 0], data].concat()
}

/// A mux frame with these bytes of a logical connection.
pub fn mux(conn: u32, bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("it is no longer");
    [&conn.to_be_bytes()[..], &len.to_be_bytes(), bytes].concat()
}

impl Raw {
    /// The peer, and the other end of its connection.
    pub fn new() -> (Connection, Raw) {
        let (here, there) = duplex(1 << 16);
        (Connection::new(there), Raw { stream: here, unread: [Vec::new(), Vec::new()] })
    }

    /// Writes these bytes. The other side may have gone.
    pub async fn write_all(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Writes bytes of a logical connection.
    pub async fn write(&mut self, conn: u32, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.write_all(&mux(conn, piece)).await;
        }
    }

    /// Waits for a ttrpc frame. `None` at the connection's end.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            for (conn, unread) in (1..).zip(&mut self.unread) {
                let Some(header) = unread.first_chunk::<10>() else { continue };
                let [a, b, c, d, e, f, g, h, ..] = *header;
                let end = 10 + u32::from_be_bytes([a, b, c, d]) as usize;
                if unread.len() >= end {
                    let data = unread.drain(..end).skip(10).collect();
                    return Some(Frame { conn, id: u32::from_be_bytes([e, f, g, h]), data });
                }
            }
            let conn = self.stream.read_u32().await.ok()?;
            let len = self.stream.read_u32().await.ok()?;
            let mut payload = vec![0; len as usize];
            self.stream.read_exact(&mut payload).await.ok()?;
            self.unread[conn as usize - 1].append(&mut payload);
        }
    }

    /// Registers as a plugin.
    pub async fn register(&mut self) {
        let plugin = RegisterPluginRequest {
            plugin_name: "raw".into(),
            plugin_idx: "10".into(),
            ..Default::default()
        };
        let data = request("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", &plugin);
        self.write(2, &frame(1, REQUEST, &data)).await;
    }

    /// Answers with so many bytes of data. None are an empty message.
    pub async fn answer(&mut self, request: &Frame, bytes: usize) {
        self.write(request.conn, &frame(request.id, RESPONSE, &vec![0; bytes])).await;
    }
}
