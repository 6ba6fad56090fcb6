//! The messages of the service as plain types, free of any library's generated code.

#![allow(missing_docs, reason = "the service's definition and gRPC say what these names mean")]

/// The full name of the service.
pub const SERVICE: &str = "ttrpc.conformance.v1.Conformance";
/// The type of the detail that `Fail` attaches.
pub const DETAIL_TYPE: &str = "type.googleapis.com/ttrpc.conformance.v1.EchoResponse";

/// The status codes that the cases ask for.
pub mod codes {
    pub const DEADLINE_EXCEEDED: i32 = 4;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const UNIMPLEMENTED: i32 = 12;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
}

#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    pub type_url: String,
    pub value: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: i32,
    pub message: String,
    pub details: Vec<Detail>,
}

/// How a call failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The library returned a status, its own or the server's.
    Status(Status),
    /// The library returned an error that has no code.
    Other(String),
    /// The library has no way to do this; the text says why.
    Unsupported(&'static str),
}

impl Failure {
    /// The code of its status, if it has one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Failure::Status(status) => Some(status.code),
            Failure::Other(_) | Failure::Unsupported(_) => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Status(status) => write!(f, "status {} {:?}", status.code, status.message),
            Failure::Other(text) => write!(f, "an error without a status: {text}"),
            Failure::Unsupported(reason) => f.write_str(reason),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    pub sequence: u64,
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collected {
    pub chunks: u64,
    pub bytes: u64,
    pub in_order: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Generate {
    pub count: u64,
    pub size: u32,
    pub interval_micros: u64,
    pub fail_code: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub pid: i32,
}

#[derive(Clone, Debug)]
pub struct Inspection {
    pub metadata: Vec<(String, String)>,
    pub timeout_nano: i64,
    pub service: String,
    pub method: String,
    pub peer: Peer,
}

#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    pub connections: u64,
    pub calls_in_flight: u64,
    pub tasks_alive: u64,
    pub calls_total: u64,
    pub calls_cancelled: u64,
}
