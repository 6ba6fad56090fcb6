//! The table of a connection's streams.

use ttrpc::proto::{
    frame::{Flags, FrameType, Header},
    stream::Kind,
    table::{ClientEvent, ClientTable, ServerEvent, ServerTable},
};

fn header(frame_type: FrameType, stream_id: u32, flags: Flags) -> Header {
    Header { data_len: 0, stream_id, frame_type, flags }
}
fn request(id: u32, flags: Flags) -> Header {
    header(FrameType::Request, id, flags)
}
fn data(id: u32, flags: Flags) -> Header {
    header(FrameType::Data, id, flags)
}
fn opened(id: u32, flags: Flags) -> ServerTable<&'static str> {
    let mut table = ServerTable::default();
    assert_eq!(table.receive(request(id, flags)), ServerEvent::Open);
    table.open(id, flags, "handle");
    table
}
fn is_refused<T>(event: ServerEvent<T>) -> bool {
    matches!(event, ServerEvent::Refuse(_, None))
}

#[test]
fn a_server_refuses_ids_that_are_even_zero_reused_or_falling() {
    let mut table = opened(5, Flags::NONE);
    for id in [0, 2, 4, 6, u32::MAX - 1, 1, 3] {
        assert!(is_refused(table.receive(request(id, Flags::NONE))), "id {id}");
    }
    assert!(matches!(
        table.receive(request(5, Flags::NONE)),
        ServerEvent::Refuse(_, Some("handle"))
    ));
    assert!(is_refused(table.receive(request(5, Flags::NONE))), "ended once, not twice");
    assert_eq!(table.receive(request(u32::MAX, Flags::NONE)), ServerEvent::Open);
    assert!(is_refused(table.receive(request(7, Flags::NONE))));
}

/// Its author has mistaken how ids are given, which "no stream with this id is open" would not tell.
#[test]
fn a_server_says_of_a_message_with_an_even_id_that_ids_are_odd() {
    let mut table = opened(5, Flags::REMOTE_OPEN);
    let event = table.receive(data(4, Flags::NONE));
    let ServerEvent::Refuse(violation, None) = event else { panic!("{event:?}") };
    assert_eq!(violation.to_string(), "a client's stream id must be odd");
}

#[test]
fn a_server_drops_what_comes_on_a_stream_that_it_ended_early() {
    let mut table = opened(1, Flags::REMOTE_OPEN);
    assert_eq!(table.remove(1), Some("handle"));
    assert_eq!(table.remove(1), None);
    assert_eq!(table.receive(data(1, Flags::NONE)), ServerEvent::Ignore);
    assert_eq!(table.receive(data(1, Flags::END)), ServerEvent::Ignore);
    assert!(is_refused(table.receive(data(1, Flags::NONE))), "the client had closed");
}

#[test]
fn a_server_forgets_the_oldest_of_too_many_early_ends() {
    let mut table = ServerTable::<()>::default();
    for index in 0..=1024 {
        table.refuse(index * 2 + 1, Flags::REMOTE_OPEN);
    }
    assert!(is_refused(table.receive(data(1, Flags::NONE))));
    assert_eq!(table.receive(data(3, Flags::NONE)), ServerEvent::Ignore);
}

#[test]
fn a_violation_ends_the_stream() {
    let mut table = opened(1, Flags::NONE);
    let event = table.receive(data(1, Flags::NONE));
    assert!(matches!(event, ServerEvent::Refuse(_, Some("handle"))));
    assert!(table.is_empty());
}

#[test]
fn a_server_ignores_responses_and_unknown_types() {
    let mut table = opened(1, Flags::REMOTE_OPEN);
    for byte in [0, 2, 4, 255] {
        for id in [0, 1, 2, 99] {
            let header = header(FrameType::from_byte(byte), id, Flags(0xff));
            assert_eq!(table.receive(header), ServerEvent::Ignore);
        }
    }
    assert_eq!(table.len(), 1);
}

#[test]
fn a_client_gives_rising_odd_ids_until_there_are_none() {
    let mut table = ClientTable::starting_at(u32::MAX - 2);
    assert_eq!(table.open(Kind::Unary, ()), Some(u32::MAX - 2));
    assert_eq!(table.open(Kind::Unary, ()), Some(u32::MAX));
    assert_eq!(table.open(Kind::Unary, ()), None);
}

#[test]
fn a_client_removes_a_stream_at_its_end_whichever_way_it_ends() {
    let mut table = ClientTable::default();
    let id = table.open(Kind::Unary, 'u').unwrap();
    let response = |id| header(FrameType::Response, id, Flags::NONE);
    assert_eq!(table.receive(response(id)), ClientEvent::Response('u'));
    assert_eq!(table.receive(response(id)), ClientEvent::Ignore);

    let id = table.open(Kind::ServerStreaming, 's').unwrap();
    assert!(matches!(table.receive(data(id, Flags::NONE)), ClientEvent::Data('s', _)));
    assert!(matches!(table.receive(data(id, Flags::END)), ClientEvent::Data('s', _)));
    assert!(table.is_empty());

    let id = table.open(Kind::Bidirectional, 'b').unwrap();
    assert!(matches!(table.receive(data(id, Flags::END)), ClientEvent::Data('b', _)));
    assert_eq!(table.len(), 1, "this side has not closed");
    table.close_local(id);
    assert!(table.is_empty());

    let id = table.open(Kind::Unary, 'u').unwrap();
    assert!(matches!(table.receive(data(id, Flags::NONE)), ClientEvent::Violation('u', _)));
    assert!(table.is_empty());
}
