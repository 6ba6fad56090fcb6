//! How a call ends when it does not end well: a code, a message, details.

use std::{error, fmt, io, sync::Arc};

use prost::{Message, Name};
use prost_types::Any;

use crate::ConnectionError;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal $name:literal $($constructor:ident)?;)*) => {
        /// The status codes of gRPC, which ttrpc shares.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i32)]
        pub enum Code {
            $($(#[$doc])* $code = $number,)*
        }

        impl Code {
            /// Returns the code with this number; [`Code::Unknown`] where there is none.
            pub fn from_i32(number: i32) -> Code {
                match number {
                    $($number => Code::$code,)*
                    _ => Code::Unknown,
                }
            }

            /// Returns the name as gRPC writes it, `NOT_FOUND` for example.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$code => $name,)*
                }
            }
        }

        impl Status {
            $($(
                #[doc = concat!("Returns a status with the code [`Code::", stringify!($code), "`] and a message.")]
                pub fn $constructor(message: impl Into<String>) -> Self {
                    Status::new(Code::$code, message)
                }
            )?)*
        }
    };
}

/// Why a call failed: what a handler returns as its error and what a caller gets as its own.
///
/// The code's number, the message and the details travel unharmed in both directions
/// (`google.rpc.Status`). A status that was made on this side, such as UNAVAILABLE for a lost
/// connection, also keeps its cause, which [`source`](std::error::Error::source) returns; the cause stays local.
///
/// ```
/// use ttrpc::{Code, Status};
///
/// let status = Status::not_found("no container with id c1");
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.to_string(), "NOT_FOUND: no container with id c1");
/// ```
///
/// As small as a pointer, so that results which may carry one are small; clones share it.
#[derive(Clone)]
pub struct Status {
    parts: Arc<Parts>,
}

#[derive(Clone, Default)]
struct Parts {
    code: i32,
    message: String,
    details: Vec<Any>,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
    is_from_peer: bool,
}

impl Status {
    /// Returns a status with a code and a message for the peer's eyes.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Status::with_raw_code(code as i32, message)
    }

    /// A status that has been received.
    pub(crate) fn received(code: i32, message: String, details: Vec<Any>) -> Self {
        let parts = Parts { code, message, details, is_from_peer: true, ..Parts::default() };
        Status { parts: Arc::new(parts) }
    }

    /// Returns the code; [`Code::Unknown`] if the number is none of gRPC's.
    pub fn code(&self) -> Code {
        Code::from_i32(self.parts.code)
    }

    /// Returns the code's number as it travels, also where it is none of gRPC's.
    pub fn raw_code(&self) -> i32 {
        self.parts.code
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.parts.message
    }

    /// Returns the details, each a protobuf message with its type's URL.
    pub fn details(&self) -> &[Any] {
        &self.parts.details
    }

    /// Adds a detail of any type.
    #[must_use]
    pub fn with_detail(mut self, detail: Any) -> Self {
        Arc::make_mut(&mut self.parts).details.push(detail);
        self
    }

    /// Adds a message as a detail, packed with its type's URL. Generated messages can be details, and
    /// those of [`prost_types`](crate::prost_types).
    ///
    /// ```
    /// use ttrpc::{Status, prost_types::Duration};
    ///
    /// let retry_in = Duration { seconds: 5, nanos: 0 };
    /// let status = Status::unavailable("starting").with_message_detail(&retry_in);
    /// assert_eq!(status.find_detail::<Duration>(), Some(retry_in));
    /// ```
    #[must_use]
    pub fn with_message_detail<M: Message + Name>(self, message: &M) -> Self {
        self.with_detail(Any { type_url: M::type_url(), value: message.encode_to_vec() })
    }

    /// Returns the first detail of type `M`, unpacked; `None` where there is none that decodes.
    pub fn find_detail<M: Message + Name + Default>(&self) -> Option<M> {
        self.parts.details.iter().find_map(|detail| detail.to_msg().ok())
    }

    /// Keeps the cause: any error, or a text. It is not sent to the peer.
    ///
    /// ```
    /// # use ttrpc::Status;
    /// let number = "x".parse::<u32>();
    /// let status = number.map_err(|e| Status::invalid_argument("no number").with_source(e));
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Arc::make_mut(&mut self.parts).source = Some(Arc::from(source.into()));
        self
    }

    /// Returns whether the peer has sent this status. One that was made on this side says `false`: so a
    /// DEADLINE_EXCEEDED shows on which side the deadline passed first, and a RESOURCE_EXHAUSTED whose
    /// limit it was.
    pub fn is_from_peer(&self) -> bool {
        self.parts.is_from_peer
    }

    /// Returns why the connection of the call ended, if that is what the call failed with. A server that says
    /// UNAVAILABLE itself leaves the connection as it is, and this `None`.
    ///
    /// ```
    /// # use ttrpc::{Client, Status};
    /// # async fn example(client: Client, address: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// # let call = client.unary::<(), ()>("greeter.v1.Greeter", "Ping", ());
    /// match call.await {
    ///     Err(status) if status.connection_error().is_some() => {
    ///         // The next call needs a new connection.
    ///         let client = Client::connect(address).await?;
    ///         # drop(client);
    ///     }
    ///     result => result?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn connection_error(&self) -> Option<&ConnectionError> {
        self.parts.source.as_deref().and_then(|source| source.downcast_ref())
    }

    /// Returns a status with a raw number, for codes outside gRPC's list.
    #[cold]
    pub fn with_raw_code(code: i32, message: impl Into<String>) -> Self {
        Status { parts: Arc::new(Parts { code, message: message.into(), ..Parts::default() }) }
    }
}

codes! {
    /// Success.
    Ok = 0 "OK";
    /// The call was cancelled, typically by the caller.
    Cancelled = 1 "CANCELLED" cancelled;
    /// An error of no known kind; also what a code outside this list is read as.
    Unknown = 2 "UNKNOWN" unknown;
    /// The caller's argument is wrong whatever state the server is in.
    InvalidArgument = 3 "INVALID_ARGUMENT" invalid_argument;
    /// The call's deadline passed.
    DeadlineExceeded = 4 "DEADLINE_EXCEEDED" deadline_exceeded;
    /// Something that was asked for is not there.
    NotFound = 5 "NOT_FOUND" not_found;
    /// Something that was to be created is there already.
    AlreadyExists = 6 "ALREADY_EXISTS" already_exists;
    /// The caller may not do this.
    PermissionDenied = 7 "PERMISSION_DENIED" permission_denied;
    /// A limit was reached: calls in flight, the size of a message, the inbox of a stream.
    ResourceExhausted = 8 "RESOURCE_EXHAUSTED" resource_exhausted;
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9 "FAILED_PRECONDITION" failed_precondition;
    /// The call was given up, typically for a conflict.
    Aborted = 10 "ABORTED" aborted;
    /// The argument is outside its valid range.
    OutOfRange = 11 "OUT_OF_RANGE" out_of_range;
    /// The server knows no such service or method.
    Unimplemented = 12 "UNIMPLEMENTED" unimplemented;
    /// Something that must not happen did; a handler that panics answers this.
    Internal = 13 "INTERNAL" internal;
    /// The connection is gone or the server is shutting down; on a new connection it may work.
    Unavailable = 14 "UNAVAILABLE" unavailable;
    /// Data was lost or damaged.
    DataLoss = 15 "DATA_LOSS" data_loss;
    /// The caller did not say who it is.
    Unauthenticated = 16 "UNAUTHENTICATED" unauthenticated;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// For handlers that use `?` on files and processes. The message is the error's own, and so may reveal
/// the peer a path; the error is kept as the source.
///
/// | kind | code |
/// |---|---|
/// | `NotFound` | NOT_FOUND |
/// | `AlreadyExists` | ALREADY_EXISTS |
/// | `PermissionDenied` | PERMISSION_DENIED |
/// | `InvalidInput`, `InvalidFilename` | INVALID_ARGUMENT |
/// | `StorageFull`, `QuotaExceeded`, `FileTooLarge`, `OutOfMemory` | RESOURCE_EXHAUSTED |
/// | `DirectoryNotEmpty`, `IsADirectory`, `NotADirectory`, `ReadOnlyFilesystem`, `ResourceBusy`, `ExecutableFileBusy` | FAILED_PRECONDITION |
/// | all others | UNKNOWN |
///
/// Never UNAVAILABLE, DEADLINE_EXCEEDED or UNIMPLEMENTED: to a caller these are about its own connection
/// and call.
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::*;
        let code = match error.kind() {
            NotFound => Code::NotFound,
            AlreadyExists => Code::AlreadyExists,
            PermissionDenied => Code::PermissionDenied,
            InvalidInput | InvalidFilename => Code::InvalidArgument,
            StorageFull | QuotaExceeded | FileTooLarge | OutOfMemory => Code::ResourceExhausted,
            DirectoryNotEmpty | IsADirectory | NotADirectory | ReadOnlyFilesystem
            | ResourceBusy | ExecutableFileBusy => Code::FailedPrecondition,
            _ => Code::Unknown,
        };
        Status::new(code, error.to_string()).with_source(error)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code() {
            Code::Unknown if self.parts.code != Code::Unknown as i32 => {
                write!(f, "code {}", self.parts.code)?
            }
            code => write!(f, "{code}")?,
        }
        if !self.parts.message.is_empty() {
            write!(f, ": {}", self.parts.message)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Status");
        debug.field("code", &self.code()).field("message", &self.parts.message);
        if self.code() as i32 != self.parts.code {
            debug.field("raw_code", &self.parts.code);
        }
        if !self.parts.details.is_empty() {
            debug.field("details", &self.parts.details);
        }
        if let Some(source) = &self.parts.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl error::Error for Status {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.parts.source.as_deref().map(|source| source as _)
    }
}

/// Equal when code, message and details are; the local cause does not count.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&*self.parts, &*other.parts);
        own.code == others.code && own.message == others.message && own.details == others.details
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_grpc_is_a_code_and_no_other_is() {
        for number in 0..17 {
            assert_eq!(Code::from_i32(number) as i32, number);
        }
        assert_eq!(Code::from_i32(17), Code::Unknown);
        assert_eq!(Code::from_i32(-1), Code::Unknown);
    }

    #[test]
    fn a_foreign_code_is_kept_and_shown() {
        let status = Status::with_raw_code(1234, "odd");
        assert_eq!(status.code(), Code::Unknown);
        assert_eq!(status.raw_code(), 1234);
        assert_eq!(status.to_string(), "code 1234: odd");
    }

    #[test]
    fn details_are_found_by_type() {
        let status = Status::internal("")
            .with_message_detail(&prost_types::Timestamp { seconds: 1, nanos: 0 })
            .with_message_detail(&prost_types::Duration { seconds: 2, nanos: 0 });
        assert_eq!(status.find_detail::<prost_types::Duration>().unwrap().seconds, 2);
        assert_eq!(status.find_detail::<prost_types::Any>(), None);
    }
    #[test]
    fn any_error_can_be_a_source() {
        use error::Error as _;
        let status = || Status::internal("");
        let parse = "x".parse::<u32>().unwrap_err();
        let source = status().with_source(parse.clone());
        assert_eq!(source.source().unwrap().downcast_ref(), Some(&parse));
        assert_eq!(status().with_source("text").source().unwrap().to_string(), "text");
        let boxed: Box<dyn error::Error + Send + Sync> = Box::new(parse.clone());
        assert_eq!(status().with_source(boxed).source().unwrap().downcast_ref(), Some(&parse));
        let shared: Arc<dyn error::Error + Send + Sync> = Arc::new(parse.clone());
        assert_eq!(status().with_source(shared).source().unwrap().to_string(), parse.to_string());
        let nested = status().with_source(Status::not_found("inner"));
        assert_eq!(nested.source().unwrap().to_string(), "NOT_FOUND: inner");
    }

    #[test]
    fn an_io_error_becomes_a_status_with_the_code_of_its_kind() {
        use error::Error as _;
        fn read() -> Result<Vec<u8>, Status> {
            Ok(std::fs::read("/no/such/file")?)
        }
        let status = read().unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "No such file or directory (os error 2)");
        let source = status.source().unwrap().downcast_ref::<io::Error>().unwrap();
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
        for (kind, code) in [
            (io::ErrorKind::PermissionDenied, Code::PermissionDenied),
            (io::ErrorKind::AlreadyExists, Code::AlreadyExists),
            (io::ErrorKind::InvalidInput, Code::InvalidArgument),
            (io::ErrorKind::StorageFull, Code::ResourceExhausted),
            (io::ErrorKind::DirectoryNotEmpty, Code::FailedPrecondition),
            // Nothing that a caller could take for its own connection or call.
            (io::ErrorKind::ConnectionReset, Code::Unknown),
            (io::ErrorKind::TimedOut, Code::Unknown),
            (io::ErrorKind::Unsupported, Code::Unknown),
        ] {
            assert_eq!(Status::from(io::Error::from(kind)).code(), code, "{kind:?}");
        }
    }

    #[test]
    fn statuses_are_equal_in_code_message_and_details_and_print_what_they_have() {
        let status = Status::not_found("no");
        assert_eq!(status, Status::not_found("no").with_source(io::Error::other("the disk")));
        assert_ne!(status, Status::internal("no"));
        assert_ne!(status, Status::not_found("yes"));
        let source = format!("{:?}", status.clone().with_source(io::Error::other("the disk")));
        assert!(source.contains("the disk"));
        assert_eq!(format!("{status:?}"), "Status { code: NotFound, message: \"no\" }");
        assert_eq!(Status::new(Code::Unknown, "").to_string(), Code::Unknown.to_string());
    }
}
