//! Bytes to frames.

use ttrpc::proto::{
    codec::{Decoded, Decoder},
    frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
};

/// Data of this length is not copied out of the read buffer.
const LONG: usize = (65 << 10) / 2;

fn frame(stream_id: u32, data: &[u8]) -> Vec<u8> {
    let header = Header {
        data_len: data.len() as u32,
        stream_id,
        frame_type: FrameType::Data,
        flags: Flags::NONE,
    };
    [&header.to_bytes(), data].concat()
}

fn announce(data_len: u32) -> [u8; HEADER_LEN] {
    let header = Header { data_len, stream_id: 1, frame_type: FrameType::Data, flags: Flags::NONE };
    header.to_bytes()
}

#[test]
fn frames_come_out_whole_however_the_bytes_are_cut() {
    let wire = [frame(1, b"one"), frame(3, b""), frame(5, &[7; 100])].concat();
    for cut in 0..wire.len() {
        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for part in [&wire[..cut], &wire[cut..]] {
            decoder.feed(part);
            while let Some(Decoded::Frame(header)) = decoder.decode() {
                seen.push((header.stream_id, decoder.data().to_vec()));
            }
        }
        let expected = [(1, b"one".to_vec()), (3, vec![]), (5, vec![7; 100])];
        assert_eq!(seen, expected, "cut at byte {cut}");
        assert!(decoder.is_between_frames());
    }
}

#[test]
fn oversized_data_is_dropped_as_it_arrives_and_the_next_frame_is_found() {
    let mut decoder = Decoder::default();
    let too_long = MAX_DATA_LEN + 1;
    decoder.feed(&announce(too_long as u32));
    decoder.feed(&[1; 1000]);
    assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
    let mut left = too_long - 1000;
    while left > 0 {
        let part = left.min(64 << 10);
        decoder.feed(&vec![1; part]);
        assert_eq!(decoder.decode(), None);
        assert_eq!(decoder.is_between_frames(), part == left);
        left -= part;
    }
    decoder.feed(&frame(3, b"next"));
    assert!(matches!(decoder.decode(), Some(Decoded::Frame(Header { stream_id: 3, .. }))));
    assert_eq!(decoder.data(), b"next");
}

#[test]
fn the_longest_frame_is_accepted_and_the_longest_length_is_skipped() {
    let mut decoder = Decoder::default();
    decoder.feed(&announce(MAX_DATA_LEN as u32));
    assert_eq!(decoder.decode(), None);
    assert_eq!(decoder.missing(), MAX_DATA_LEN);
    decoder.feed(&vec![0; MAX_DATA_LEN]);
    assert!(matches!(decoder.decode(), Some(Decoded::Frame(_))));
    assert_eq!(decoder.take_data().len(), MAX_DATA_LEN);

    decoder.feed(&announce(u32::MAX));
    assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
    assert_eq!(decoder.missing(), 0, "nothing is reserved for data that is skipped");
    assert!(!decoder.is_between_frames());
}

#[test]
fn taken_data_leaves_what_follows_in_place() {
    for len in [0, 1, LONG - 1, LONG, LONG + 1] {
        let mut decoder = Decoder::default();
        decoder.feed(&[frame(1, &vec![9; len]), frame(3, b"tail")].concat());
        assert!(decoder.decode().is_some());
        let long = decoder.take_long_data();
        assert_eq!(long.is_some(), len >= LONG);
        assert_eq!(long.unwrap_or_else(|| decoder.take_data()), vec![9; len]);
        assert_eq!(decoder.data(), b"");
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), b"tail");
    }
}
