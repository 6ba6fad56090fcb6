//! `grpc.reflection.v1.ServerReflection`.

use std::collections::HashSet;

use ttrpc::{
    Code, Context, Status, async_trait,
    prost::{Message, bytes::Bytes, encoding::encoded_len_varint},
    proto::frame::MAX_DATA_LEN,
    server::{Routes, Service, StreamReceiver, StreamSender},
};

use crate::{
    DescriptorError,
    index::Index,
    proto::reflection::{
        ErrorResponse, ExtensionNumberResponse, FILE_DESCRIPTOR_SET, FileDescriptorResponse,
        ListServiceResponse, ServerReflection, ServerReflectionRequest, ServerReflectionResponse,
        ServerReflectionServer, ServiceResponse, server_reflection_request::MessageRequest,
        server_reflection_response::MessageResponse,
    },
};

/// What the fields of an answer around its files and the request take at most, in bytes.
const ENVELOPE_LEN: usize = 32;

/// Tells clients which services a server has and what their messages look like.
///
/// It answers from descriptor sets, imports included, as `ttrpc_codegen`'s `file_descriptor_set_path` writes them.
/// Answers include custom options, and comments where the set has them.
///
/// A file comes with its imports, as far as they fit into a message of 4 MiB. A client asks for what it misses.
#[derive(Debug)]
pub struct Reflection {
    index: Index,
    /// The services to list; all that the sets declare if nothing was said.
    services: Option<Vec<String>>,
}

impl Reflection {
    /// Answers from an encoded `google.protobuf.FileDescriptorSet`. Its services are listed, and
    /// reflection itself. A `&'static [u8]` or a `Vec<u8>` is not copied.
    ///
    /// # Errors
    /// [`DescriptorError`] if the set does not decode or lacks a file that it imports.
    pub fn new(descriptor_set: impl Into<Bytes>) -> Result<Self, DescriptorError> {
        let reflection = Reflection { index: Index::default(), services: None };
        reflection.and(FILE_DESCRIPTOR_SET)?.and(descriptor_set)
    }

    /// Answers from this set too, for services from another crate:
    /// `.and(ttrpc_reflection::proto::health::FILE_DESCRIPTOR_SET)`.
    ///
    /// # Errors
    /// Those of [`Reflection::new`], and [`DescriptorError::Conflict`].
    pub fn and(mut self, descriptor_set: impl Into<Bytes>) -> Result<Self, DescriptorError> {
        self.index.add(descriptor_set.into())?;
        Ok(self)
    }

    /// Lists these services, by their full names, instead of all that the sets declare. For a server
    /// whose .proto files import services of others.
    #[must_use]
    pub fn list_only(mut self, services: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.services = Some(services.into_iter().map(Into::into).collect());
        self
    }

    /// Answers with at most so many bytes.
    fn answer(
        &self,
        request: &MessageRequest,
        limit: usize,
        sent: &mut HashSet<usize>,
    ) -> MessageResponse {
        match request {
            MessageRequest::FileByFilename(name) => {
                let file = self.index.file_by_name(name);
                self.files(file, limit, sent, || format!("file `{name}`"))
            }
            MessageRequest::FileContainingSymbol(symbol) => {
                let file = self.index.file_by_symbol(symbol);
                self.files(file, limit, sent, || format!("symbol `{symbol}`"))
            }
            MessageRequest::FileContainingExtension(extension) => {
                let (message, number) = (&extension.containing_type, extension.extension_number);
                let file = self.index.file_by_extension(message, number);
                self.files(file, limit, sent, || format!("extension {number} of `{message}`"))
            }
            MessageRequest::AllExtensionNumbersOfType(message) => {
                match self.index.extension_numbers(message) {
                    Some(extension_number) => {
                        MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
                            base_type_name: message.clone(),
                            extension_number,
                        })
                    }
                    None => not_found(&format!("message `{message}`")),
                }
            }
            MessageRequest::ListServices(_) => {
                let names = self.services.clone().unwrap_or_else(|| self.index.services());
                let service = names.into_iter().map(|name| ServiceResponse { name }).collect();
                MessageResponse::ListServicesResponse(ListServiceResponse { service })
            }
        }
    }

    /// A file, with those of its imports that the stream has not carried yet and that fit into `limit` bytes with it.
    /// A client asks for those that it misses.
    fn files(
        &self,
        found: Option<usize>,
        limit: usize,
        sent: &mut HashSet<usize>,
        what: impl FnOnce() -> String,
    ) -> MessageResponse {
        let Some(found) = found else { return not_found(&what()) };
        let mut left = limit;
        let mut file_descriptor_proto = Vec::new();
        for file in self.index.with_imports(found) {
            let encoded = self.index.encoded(file);
            // With its length and the field's number.
            let length = 1 + encoded_len_varint(encoded.len() as u64) + encoded.len();
            if length > left && file == found {
                return error(
                    Code::ResourceExhausted,
                    format!(
                        "{} is in a file of {} bytes, longer than a message",
                        what(),
                        encoded.len()
                    ),
                );
            }
            if length <= left && (file == found || !sent.contains(&file)) {
                sent.insert(file);
                left -= length;
                file_descriptor_proto.push(encoded.to_vec());
            }
        }
        MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
    }
}

fn not_found(what: &str) -> MessageResponse {
    error(Code::NotFound, format!("{what} is not known here"))
}

fn error(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

#[async_trait]
impl ServerReflection for Reflection {
    async fn server_reflection_info(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<ServerReflectionRequest>,
        mut replies: StreamSender<ServerReflectionResponse>,
    ) -> Result<(), Status> {
        let mut sent = HashSet::new();
        while let Some(request) = requests.recv().await? {
            let Some(asked) = &request.message_request else {
                return Err(Status::invalid_argument("the request asks for nothing"));
            };
            // The answer holds the request, and its host again.
            let around = ENVELOPE_LEN + request.encoded_len() + request.host.len();
            let limit = MAX_DATA_LEN.saturating_sub(around);
            let message_response = Some(self.answer(asked, limit, &mut sent));
            let valid_host = request.host.clone();
            let original_request = Some(request);
            replies
                .send(ServerReflectionResponse { valid_host, original_request, message_response })
                .await?;
        }
        Ok(())
    }
}

impl Service for Reflection {
    fn into_routes(self) -> Routes {
        ServerReflectionServer::new(self).into_routes()
    }
}
