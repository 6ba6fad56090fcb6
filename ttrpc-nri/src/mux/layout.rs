//! How ttrpc's frames are laid out in mux frames, so that a peer in Go can read them.
//!
//! Used by `logical`. Knows neither queues nor tasks.

use bytes::{BufMut, BytesMut};

use super::{ConnId, MAX_PAYLOAD};

/// Bytes of a ttrpc frame's header, which begins with the length of the data.
pub(super) const TTRPC_HEADER: usize = 10;
/// Bytes of a mux frame's header: the number of the logical connection, the length of the payload.
pub(super) const MUX_HEADER: usize = 8;
/// The longest payload of a mux frame that any reader in Go takes: the size of its ttrpc's buffer.
const SHORT: usize = 4096;

/// A whole ttrpc frame, as it goes into mux frames.
#[derive(Debug)]
pub(super) enum Piece {
    /// All of a short one.
    Short(BytesMut),
    /// The header of a long one, and the finished mux frame of its payload.
    Long([u8; TTRPC_HEADER], BytesMut),
}

/// The longest data of a ttrpc frame was exceeded.
#[derive(Debug, thiserror::Error)]
#[error("a ttrpc frame of {0} bytes of data was written, and 4 MiB are the most that it can have")]
pub(super) struct TooLong(usize);

/// Follows the ttrpc frames in a stream of bytes.
#[derive(Debug)]
pub(super) struct Layout {
    id: ConnId,
    header: [u8; TTRPC_HEADER],
    /// Bytes of the header that are there.
    filled: usize,
    /// What goes into a mux frame: of a short ttrpc frame all of it, of a long one its payload with a mux header.
    body: BytesMut,
    /// Bytes that `body` lacks, once the header is there.
    missing: usize,
}

impl Layout {
    pub(super) fn new(id: ConnId) -> Self {
        Layout { id, header: [0; TTRPC_HEADER], filled: 0, body: BytesMut::new(), missing: 0 }
    }

    /// Takes bytes, at most to the end of a ttrpc frame. Returns how many, and the frame if that was its end.
    ///
    /// # Errors
    /// If a header announces more than a ttrpc frame can have.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(usize, Option<Piece>), TooLong> {
        let taken = bytes.len().min(TTRPC_HEADER - self.filled);
        self.header[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        if self.filled < TTRPC_HEADER {
            return Ok((taken, None));
        }
        if taken > 0 {
            self.begin()?;
        }
        let data = &bytes[taken..];
        let data = &data[..data.len().min(self.missing)];
        self.body.extend_from_slice(data);
        self.missing -= data.len();
        let piece = (self.missing == 0).then(|| self.finish());
        Ok((taken + data.len(), piece))
    }

    fn begin(&mut self) -> Result<(), TooLong> {
        let [a, b, c, d, ..] = self.header;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MAX_PAYLOAD - TTRPC_HEADER {
            return Err(TooLong(len));
        }
        self.missing = len;
        if is_short(len) {
            self.body.reserve(TTRPC_HEADER + len);
            self.body.put_slice(&self.header);
        } else {
            self.body = mux_frame(self.id, len);
        }
        Ok(())
    }

    fn finish(&mut self) -> Piece {
        self.filled = 0;
        let body = self.body.split();
        let [a, b, c, d, ..] = self.header;
        if is_short(u32::from_be_bytes([a, b, c, d]) as usize) {
            Piece::Short(body)
        } else {
            Piece::Long(self.header, body)
        }
    }
}

fn is_short(len: usize) -> bool {
    TTRPC_HEADER + len <= SHORT
}

/// The header of a mux frame whose payload will have this length, with room for it.
fn mux_frame(id: ConnId, len: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(MUX_HEADER + len);
    frame.put_u32(id.number());
    frame.put_u32(u32::try_from(len).expect("a payload has 4 MiB at most"));
    frame
}

/// Adds bytes to the last mux frame if all of it stays short. Returns whether it has.
pub(super) fn append(frame: &mut BytesMut, bytes: &[u8]) -> bool {
    let len = frame.len() - MUX_HEADER + bytes.len();
    if len > SHORT {
        return false;
    }
    frame.extend_from_slice(bytes);
    let len = u32::try_from(len).expect("it is short");
    frame[4..MUX_HEADER].copy_from_slice(&len.to_be_bytes());
    true
}

/// A mux frame of these bytes.
pub(super) fn frame(id: ConnId, bytes: &[u8]) -> BytesMut {
    let mut frame = mux_frame(id, bytes.len());
    frame.put_slice(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ttrpc frame with this much data.
    fn ttrpc_frame(len: usize) -> Vec<u8> {
        let mut frame = u32::try_from(len).expect("it is short").to_be_bytes().to_vec();
        frame.extend([0, 0, 0, 1, 1, 0]);
        frame.extend((0..len).map(|at| at as u8));
        frame
    }

    #[test]
    fn a_frame_is_short_up_to_the_buffer_of_gos_reader() {
        let mut layout = Layout::new(ConnId::PLUGIN);
        for len in [0, 1, 10, 4085, 4086] {
            let written = ttrpc_frame(len);
            let (taken, piece) = layout.push(&written).expect("it is short enough");
            assert_eq!(taken, written.len());
            assert!(matches!(piece, Some(Piece::Short(bytes)) if bytes[..] == written[..]));
        }
        for len in [4087, 4095, 4096, 4097, 65_536, 4 << 20] {
            let written = ttrpc_frame(len);
            let (taken, piece) = layout.push(&written).expect("it is short enough");
            assert_eq!(taken, written.len());
            let Some(Piece::Long(header, frame)) = piece else { panic!("{len} is long") };
            assert_eq!(header[..], written[..TTRPC_HEADER]);
            assert_eq!(frame[..4], [0, 0, 0, 1]);
            assert_eq!(frame[4..8], u32::try_from(len).expect("it is short").to_be_bytes());
            assert_eq!(frame[8..], written[TTRPC_HEADER..]);
        }
    }

    #[test]
    fn a_stream_may_be_cut_anywhere() {
        let lens = [0, 5, 4086, 4087, 9000, 0];
        let stream: Vec<u8> = lens.iter().flat_map(|&len| ttrpc_frame(len)).collect();
        for cut in [1, 3, 9, 10, 11, 4096, 9999] {
            let mut layout = Layout::new(ConnId::PLUGIN);
            let (mut pieces, mut rest) = (0, &stream[..]);
            while !rest.is_empty() {
                let (taken, piece) =
                    layout.push(&rest[..cut.min(rest.len())]).expect("all is short");
                pieces += usize::from(piece.is_some());
                rest = &rest[taken..];
            }
            assert_eq!(pieces, lens.len(), "cut into {cut} bytes");
        }
    }

    #[test]
    fn a_longer_frame_than_ttrpc_has_is_an_error() {
        let mut layout = Layout::new(ConnId::PLUGIN);
        let mut header = ttrpc_frame(0);
        header[..4].copy_from_slice(&(4 << 20 | 1_u32).to_be_bytes());
        layout.push(&header).expect_err("it is one byte too long");
    }

    #[test]
    fn short_frames_share_a_mux_frame_while_it_stays_short() {
        let mut last = frame(ConnId::RUNTIME, &ttrpc_frame(1990));
        assert!(append(&mut last, &ttrpc_frame(2086)));
        assert_eq!(last.len(), MUX_HEADER + SHORT);
        assert_eq!(last[..8], [0, 0, 0, 2, 0, 0, 16, 0]);
        assert!(!append(&mut last, &[0]));
        assert_eq!(last.len(), MUX_HEADER + SHORT);
    }
}
