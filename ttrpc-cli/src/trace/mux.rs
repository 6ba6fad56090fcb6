//! Finds the two logical connections on a socket of NRI, so that a trace follows each like a connection of its own.
//!
//! Pure: called by `proxy` with the bytes of both sides. A plugin connects to the runtime; on connection 1 the runtime calls it, on connection
//! 2 it calls the runtime.

use super::call::Side;

/// The number of a logical connection and the length of what follows.
const HEADER: usize = 8;

/// Which connection bytes are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logical {
    /// The connection itself; of NRI, the runtime's calls of the plugin.
    First,
    /// A plugin's calls of its runtime.
    Second,
}

/// The bytes of a connection, by logical connection.
#[derive(Debug)]
pub enum Splitter {
    /// Too little has come to know. It is held back, per side.
    Unknown([Vec<u8>; 2]),
    /// ttrpc, or something else.
    Plain,
    /// NRI.
    Nri([Trunk; 2]),
}

/// What one side of a trunk has said so far.
#[derive(Debug, Default)]
pub struct Trunk {
    header: [u8; HEADER],
    filled: usize,
    /// Bytes of the payload that are to come.
    missing: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        Splitter::Unknown(Default::default())
    }
}

impl Splitter {
    /// Passes on what is of which connection, with the side that is client or server there.
    pub fn split(&mut self, side: Side, bytes: &[u8], see: &mut impl FnMut(Logical, Side, &[u8])) {
        match self {
            Splitter::Plain => see(Logical::First, side, bytes),
            Splitter::Nri(trunks) => trunks[at(side)].split(side, bytes, see),
            Splitter::Unknown(held) => {
                held[at(side)].extend_from_slice(bytes);
                let Some(is_nri) = is_nri(&held[at(side)]) else { return };
                let held = std::mem::take(held);
                *self = if is_nri { Splitter::Nri(Default::default()) } else { Splitter::Plain };
                // What the other side had said comes first: it was not enough to know.
                let sides =
                    if side == Side::Client { [Side::Server, side] } else { [Side::Client, side] };
                for side in sides.into_iter().filter(|side| !held[at(*side)].is_empty()) {
                    self.split(side, &held[at(side)], see);
                }
            }
        }
    }
}

fn at(side: Side) -> usize {
    match side {
        Side::Client => 0,
        Side::Server => 1,
    }
}

/// Whether a connection that begins so is NRI's: a logical connection's number, 1 or 2, its payload's length, and the payload, which begins
/// with the length of a ttrpc frame. Where that has its highest byte, 0, a ttrpc frame has its type, which is never 0.
fn is_nri(begin: &[u8]) -> Option<bool> {
    match *begin {
        [0, 0, 0, 1 | 2, ..] => begin.get(HEADER).map(|byte| *byte == 0),
        [0, 0, 0] | [0, 0] | [0] | [] => None,
        _ => Some(false),
    }
}

impl Trunk {
    fn split(&mut self, side: Side, mut bytes: &[u8], see: &mut impl FnMut(Logical, Side, &[u8])) {
        while !bytes.is_empty() {
            if self.missing == 0 {
                let taken = bytes.len().min(HEADER - self.filled);
                self.header[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken;
                bytes = &bytes[taken..];
                if self.filled < HEADER {
                    return;
                }
                self.filled = 0;
                let [.., a, b, c, d] = self.header;
                self.missing = u32::from_be_bytes([a, b, c, d]) as usize;
                continue;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.missing));
            self.missing -= part.len();
            bytes = rest;
            let other = if side == Side::Client { Side::Server } else { Side::Client };
            match self.header {
                [0, 0, 0, 1, ..] => see(Logical::First, other, part),
                [0, 0, 0, 2, ..] => see(Logical::Second, side, part),
                // No connection that NRI has: a peer drops it.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of these bytes in pieces of this length.
    fn seen(said: &[(Side, &[u8])], len: usize) -> Vec<(Logical, Side, Vec<u8>)> {
        let mut splitter = Splitter::default();
        let mut seen: Vec<(Logical, Side, Vec<u8>)> = Vec::new();
        for (side, bytes) in said {
            for piece in bytes.chunks(len) {
                splitter.split(*side, piece, &mut |logical: Logical, side: Side, bytes: &[u8]| {
                    match seen.last_mut() {
                        Some((last, by, all)) if (*last, *by) == (logical, side) => {
                            all.extend_from_slice(bytes)
                        }
                        _ => seen.push((logical, side, bytes.to_vec())),
                    }
                });
            }
        }
        seen
    }

    #[test]
    fn both_logical_connections_are_found_however_the_bytes_are_cut() {
        let register = [&[0, 0, 0, 2, 0, 0, 0, 3][..], &[0, 0, 9]].concat();
        let configure =
            [&[0, 0, 0, 1, 0, 0, 0, 2][..], &[0, 7], &[0, 0, 0, 5, 0, 0, 0, 1, 9]].concat();
        let answer = [&[0, 0, 0, 1, 0, 0, 0, 0][..], &[0, 0, 0, 1, 0, 0, 0, 1], &[4]].concat();
        let said =
            [(Side::Client, &*register), (Side::Server, &*configure), (Side::Client, &*answer)];
        for len in 1..=register.len() {
            let expected = [
                (Logical::Second, Side::Client, vec![0, 0, 9]),
                (Logical::First, Side::Client, vec![0, 7]),
                (Logical::First, Side::Server, vec![4]),
            ];
            assert_eq!(seen(&said, len), expected, "in pieces of {len}");
        }
    }

    #[test]
    fn other_bytes_are_of_the_connection_itself() {
        let others: [&[u8]; 4] = [
            // The header of ttrpc's shortest messages, and of longer ones.
            &[0, 0, 0, 2, 0, 0, 0, 1, 1, 0, 8, 1],
            &[0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 8],
            &[0, 0, 1, 2, 0, 0, 0, 1, 1, 0],
            b"PRI * HTTP/2.0\r\n",
        ];
        for bytes in others {
            for len in 1..=bytes.len() {
                let expected = [(Logical::First, Side::Client, bytes.to_vec())];
                assert_eq!(seen(&[(Side::Client, bytes)], len), expected);
            }
        }
    }
}
