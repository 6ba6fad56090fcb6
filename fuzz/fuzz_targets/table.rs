//! Any sequence of frames leaves both tables consistent: a stream that ended is gone, and none ends
//! twice.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use ttrpc::proto::{
    frame::{Flags, FrameType, Header},
    stream::Kind,
    table::{ClientEvent, ClientTable, ServerEvent, ServerTable},
};

const KINDS: [Kind; 4] =
    [Kind::Unary, Kind::ServerStreaming, Kind::ClientStreaming, Kind::Bidirectional];

fn serve(headers: &[Header]) {
    let mut table = ServerTable::default();
    let mut live = HashSet::new();
    for header in headers {
        let id = header.stream_id;
        match table.receive(*header) {
            ServerEvent::Open => {
                assert!(live.insert(id), "an id is opened once");
                table.open(id, header.flags, id);
            }
            ServerEvent::Data(handle, _) => assert!(live.contains(&handle)),
            ServerEvent::Refuse(_, Some(handle)) => assert!(live.remove(&handle)),
            ServerEvent::Refuse(_, None) | ServerEvent::Ignore => {}
        }
        assert_eq!(table.len(), live.len());
    }
    let mut rest: HashSet<u32> = table.into_handles().collect();
    rest.retain(|id| !live.remove(id));
    assert!(rest.is_empty() && live.is_empty());
}

fn call(headers: &[Header]) {
    let mut table = ClientTable::default();
    let mut live = HashSet::new();
    for header in headers {
        let kind = KINDS[usize::from(header.flags.0 >> 6)];
        let id = table.open(kind, header.stream_id).expect("ids are left");
        assert!(live.insert(id));
        let header = Header { stream_id: header.stream_id % (id + 2), ..*header };
        match table.receive(header) {
            ClientEvent::Response(_) | ClientEvent::Violation(..) => {
                assert!(live.remove(&header.stream_id));
            }
            ClientEvent::Data(..) => assert!(live.contains(&header.stream_id)),
            ClientEvent::Ignore => {}
        }
        table.close_local(header.stream_id);
        assert!(table.len() <= live.len());
    }
}

fuzz_target!(|frames: Vec<(u16, u8, u8)>| {
    let headers: Vec<_> = frames
        .into_iter()
        .map(|(id, frame_type, flags)| Header {
            data_len: 0,
            stream_id: u32::from(id),
            frame_type: FrameType::from_byte(frame_type % 5),
            flags: Flags(flags),
        })
        .collect();
    serve(&headers);
    call(&headers);
});
