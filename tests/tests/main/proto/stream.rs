//! The state of one stream.

use ttrpc::proto::{
    frame::Flags,
    stream::{DataEvent, Kind, Stream},
};

const MESSAGE: DataEvent = DataEvent { has_message: true, remote_closed: false };
const END: DataEvent = DataEvent { has_message: false, remote_closed: true };

#[test]
fn a_bidirectional_stream_closes_when_both_sides_have() {
    let mut stream = Stream::opened_by_us(Kind::Bidirectional);
    assert_eq!(stream.receive_data(Flags::NONE), Ok(MESSAGE));
    assert_eq!(stream.receive_data(Flags::END), Ok(END));
    assert!(!stream.is_remote_open() && !stream.is_closed());
    stream.close_local();
    assert!(stream.is_closed());

    let mut stream = Stream::opened_by_us(Kind::Bidirectional);
    stream.close_local();
    assert!(stream.is_remote_open());
    assert_eq!(stream.receive_data(Flags::END), Ok(END));
    assert!(stream.is_closed());
}

#[test]
fn data_after_remote_closed_is_a_violation() {
    let mut stream = Stream::opened_by_remote(Flags::REMOTE_OPEN);
    stream.receive_data(Flags::END).unwrap();
    assert!(stream.receive_data(Flags::NONE).is_err());
    assert!(stream.receive_data(Flags::REMOTE_CLOSED).is_err(), "it brings a message");
}

#[test]
fn a_close_is_repeated_only_where_a_side_of_a_stream_was_closed() {
    let mut stream = Stream::opened_by_remote(Flags::REMOTE_OPEN);
    assert!(!stream.is_repeated_close(Flags::END));
    stream.receive_data(Flags::END).unwrap();
    assert!(stream.is_repeated_close(Flags::END));
    assert!(!stream.is_repeated_close(Flags::REMOTE_CLOSED), "it brings a message");
    assert!(Stream::opened_by_remote(Flags::REMOTE_CLOSED).is_repeated_close(Flags::END));
    assert!(!Stream::opened_by_remote(Flags::NONE).is_repeated_close(Flags::END), "unary");
}

#[test]
fn data_where_none_belongs_is_a_violation() {
    assert!(Stream::opened_by_us(Kind::Unary).receive_data(Flags::NONE).is_err());
    assert!(Stream::opened_by_us(Kind::ClientStreaming).receive_data(Flags::NONE).is_err());
    assert!(Stream::opened_by_remote(Flags::NONE).receive_data(Flags::NONE).is_err());
}

#[test]
fn flags_say_whether_there_is_a_message() {
    let mut stream = Stream::opened_by_us(Kind::ServerStreaming);
    let no_data = stream.receive_data(Flags::NO_DATA).unwrap();
    assert_eq!(no_data, DataEvent { has_message: false, remote_closed: false });
    let last = stream.receive_data(Flags::REMOTE_CLOSED).unwrap();
    assert_eq!(last, DataEvent { has_message: true, remote_closed: true });
    assert!(stream.is_closed());
}
