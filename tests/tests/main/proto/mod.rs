//! The protocol itself: [`ttrpc::proto`], without a socket.

mod codec;
mod message;
mod stream;
mod table;

use bytes::{Buf, Bytes};
use ttrpc::proto::{
    frame::{Flags, FrameType, Header},
    payload::Payload,
};

#[test]
fn header_bytes_are_big_endian_and_survive_the_round_trip() {
    let bytes = [0, 0, 1, 2, 0x80, 0, 0, 5, 3, 0x85];
    let header = Header::from_bytes(&bytes);
    assert_eq!(header.data_len, 0x102);
    assert_eq!(header.stream_id, 0x8000_0005);
    assert_eq!(header.frame_type, FrameType::Data);
    assert!(header.flags.contains(Flags::END), "an unknown bit hides no known one");
    assert_eq!(header.to_bytes(), bytes);
}

#[test]
fn every_type_byte_survives_the_round_trip() {
    for byte in 0..=u8::MAX {
        assert_eq!(FrameType::from_byte(byte).to_byte(), byte);
    }
}

#[test]
fn shared_bytes_are_taken_without_a_copy_and_borrowed_ones_with_one() {
    let data = Bytes::from_static(b"head and tail");
    let mut shared = Payload::shared(&data, &data).part(&data[9..]);
    let taken = shared.copy_to_bytes(2);
    assert_eq!((&taken[..], shared.bytes()), (&b"ta"[..], &b"il"[..]));
    assert_eq!(taken.as_ptr(), data[9..].as_ptr());

    let borrowed = Payload::borrowed(&data).part(&data[..4]).to_bytes();
    assert_eq!(&borrowed[..], b"head");
    assert_ne!(borrowed.as_ptr(), data.as_ptr());
}
