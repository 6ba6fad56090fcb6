//! Translation between the types of the crate `ttrpc` and the plain ones of the cases.

use interop_conformance::{
    Chunk, Collected, Detail, Failure, Generate, Inspection, Options, Peer, Statistics, Status,
};
use protobuf::{Enum, EnumOrUnknown};
use std::collections::HashMap;
use ttrpc::context::Context;
use ttrpc::proto::{Any, Code};

#[allow(warnings)]
#[rustfmt::skip]
mod generated {
    pub mod conformance {
        include!(concat!(env!("OUT_DIR"), "/asynchronous/conformance.rs"));
    }
    pub mod conformance_ttrpc {
        include!(concat!(env!("OUT_DIR"), "/asynchronous/conformance_ttrpc.rs"));
    }
    /// The blocking bindings use the same messages.
    pub mod blocking {
        pub use super::conformance;
        pub mod conformance_ttrpc {
            include!(concat!(env!("OUT_DIR"), "/blocking/conformance_ttrpc.rs"));
        }
    }
}

pub use generated::blocking::conformance_ttrpc as blocking;
pub use generated::conformance as messages;
pub use generated::conformance_ttrpc as asynchronous;

pub fn context(options: &Options) -> Context {
    let mut context = options.timeout.map_or_else(Context::default, ttrpc::context::with_duration);
    for (key, value) in &options.metadata {
        context.add(key.clone(), value.clone());
    }
    context
}

pub fn failure(error: ttrpc::Error) -> Failure {
    match error {
        ttrpc::Error::RpcStatus(status) => Failure::Status(Status {
            code: status.code.value(),
            message: status.message,
            details: status
                .details
                .into_iter()
                .map(|any| Detail { type_url: any.type_url, value: any.value })
                .collect(),
        }),
        error => Failure::Other(error.to_string()),
    }
}

/// The error that a handler returns to end its call with a status.
pub fn rpc_status(code: i32, message: String, detail: Option<Vec<u8>>) -> ttrpc::Error {
    let mut status = ttrpc::get_status(Code::UNKNOWN, message);
    status.code =
        Code::from_i32(code).map_or_else(|| EnumOrUnknown::from_i32(code), EnumOrUnknown::new);
    status.details.extend(detail.map(|value| {
        let mut any = Any::new();
        any.type_url = interop_conformance::DETAIL_TYPE.to_owned();
        any.value = value;
        any
    }));
    ttrpc::Error::RpcStatus(status)
}

pub fn fail(request: messages::FailRequest) -> ttrpc::Error {
    let detail = (!request.detail.is_empty()).then_some(request.detail);
    rpc_status(request.code, request.message, detail)
}

pub fn fail_request(code: i32, message: &str, detail: Vec<u8>) -> messages::FailRequest {
    messages::FailRequest { code, message: message.to_owned(), detail, ..Default::default() }
}

pub fn echo_request(payload: Vec<u8>, response_size: u32) -> messages::EchoRequest {
    messages::EchoRequest { payload, response_size, ..Default::default() }
}

pub fn key_request(key: &str) -> messages::KeyRequest {
    messages::KeyRequest { key: key.to_owned(), ..Default::default() }
}

pub fn inspect_response(
    timeout_nano: i64,
    metadata: &HashMap<String, Vec<String>>,
    peer: Peer,
) -> messages::InspectResponse {
    let mut response = messages::InspectResponse {
        timeout_nano,
        peer_uid: peer.uid,
        peer_gid: peer.gid,
        peer_pid: peer.pid,
        ..Default::default()
    };
    for (key, values) in metadata {
        response.metadata.extend(values.iter().map(|value| messages::inspect_response::Entry {
            key: key.clone(),
            value: value.clone(),
            ..Default::default()
        }));
    }
    response
}

pub fn inspection(response: messages::InspectResponse) -> Inspection {
    Inspection {
        metadata: response.metadata.into_iter().map(|entry| (entry.key, entry.value)).collect(),
        timeout_nano: response.timeout_nano,
        service: response.service,
        method: response.method,
        peer: Peer { uid: response.peer_uid, gid: response.peer_gid, pid: response.peer_pid },
    }
}

pub fn stats_response(statistics: Statistics) -> messages::StatsResponse {
    messages::StatsResponse {
        connections: statistics.connections,
        calls_in_flight: statistics.calls_in_flight,
        tasks_alive: statistics.tasks_alive,
        calls_total: statistics.calls_total,
        calls_cancelled: statistics.calls_cancelled,
        ..Default::default()
    }
}

pub fn statistics(response: messages::StatsResponse) -> Statistics {
    Statistics {
        connections: response.connections,
        calls_in_flight: response.calls_in_flight,
        tasks_alive: response.tasks_alive,
        calls_total: response.calls_total,
        calls_cancelled: response.calls_cancelled,
    }
}

pub fn chunk_message(chunk: Chunk) -> messages::Chunk {
    messages::Chunk { sequence: chunk.sequence, payload: chunk.payload, ..Default::default() }
}

pub fn chunk(message: messages::Chunk) -> Chunk {
    Chunk { sequence: message.sequence, payload: message.payload }
}

pub fn collect_response(collected: Collected) -> messages::CollectResponse {
    messages::CollectResponse {
        chunks: collected.chunks,
        bytes: collected.bytes,
        in_order: collected.in_order,
        ..Default::default()
    }
}

pub fn collected(response: messages::CollectResponse) -> Collected {
    Collected { chunks: response.chunks, bytes: response.bytes, in_order: response.in_order }
}

pub fn generate_request(request: Generate) -> messages::GenerateRequest {
    messages::GenerateRequest {
        count: request.count,
        size: request.size,
        interval_micros: request.interval_micros,
        fail_code: request.fail_code,
        ..Default::default()
    }
}
