//! Bytes in two portions give the same frames as the same bytes in one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ttrpc::proto::codec::{Decoded, Decoder};

fn frames(portions: &[&[u8]]) -> (Vec<(Decoded, Vec<u8>)>, bool) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for portion in portions {
        decoder.feed(portion);
        while let Some(decoded) = decoder.decode() {
            frames.push((decoded, decoder.data().to_vec()));
        }
    }
    (frames, decoder.is_between_frames())
}

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(frames(&[bytes]), frames(&[head, tail]));
});
