//! Schemas from the server itself.

use std::{collections::HashSet, time::Duration};

use prost::Message;
use prost_reflect::{DescriptorPool, prost_types::FileDescriptorProto};
use tokio::time::Instant;
use ttrpc::{
    Client, Code, Status,
    client::{StreamReceiver, StreamSender},
};
use ttrpc_reflection::proto::reflection::{
    ServerReflectionClient, ServerReflectionRequest, ServerReflectionResponse,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::{Schema, Source, builtin};
use crate::failure::Failure;

/// Asks a server for its schema; `None` if it has no reflection.
///
/// # Errors
/// [`Failure::Call`] if the server does not answer in time or is gone, [`Failure::Other`] if what it
/// tells makes no schema.
pub async fn fetch_schema(
    client: &Client,
    timeout: Option<Duration>,
) -> Result<Option<Schema>, Failure> {
    match fetch(client, timeout).await {
        Ok(set) => build(&set).map(Some),
        Err(status) if is_about_the_connection(&status) => {
            Err(Failure::Call { hint: Some(hint(&status, timeout)), status, details: Vec::new() })
        }
        Err(_) => Ok(None),
    }
}

/// What may be done where a server does not tell its schema.
fn hint(status: &Status, timeout: Option<Duration>) -> String {
    let others = "`--schema builtin`, --proto or --descriptor-set do without";
    if status.connection_error().is_some() {
        return format!(
            "it closed the connection when it was asked for its schema by reflection: is it a gRPC \
             server, such as containerd itself? {others}"
        );
    }
    let limit =
        timeout.filter(|_| status.code() == Code::DeadlineExceeded && !status.is_from_peer());
    let longer = limit.map(|limit| format!(", and --timeout gives it longer than {limit:?}"));
    format!("it was asked for its schema by reflection; {others}{}", longer.unwrap_or_default())
}

/// Servers without reflection answer UNIMPLEMENTED, NOT_FOUND or INVALID_ARGUMENT, by their kind.
fn is_about_the_connection(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable)
}

/// Asks whether the server has reflection, by a stream that is closed when it opens.
///
/// A server that does not know the method must not get a message of it: the process of some servers ends
/// on a message of a stream that they refused.
async fn probe(client: &Client, deadline: Option<Instant>) -> Result<(), Status> {
    let call = client.server_streaming::<(), ServerReflectionResponse>(
        "grpc.reflection.v1.ServerReflection",
        "ServerReflectionInfo",
        (),
    );
    let mut answers = match deadline {
        Some(deadline) => call.deadline(deadline).await?,
        None => call.await?,
    };
    while answers.recv().await?.is_some() {}
    Ok(())
}

/// A stream of questions.
struct Reflection {
    requests: StreamSender<ServerReflectionRequest>,
    answers: StreamReceiver<ServerReflectionResponse>,
}

impl Reflection {
    async fn open(client: &Client, deadline: Option<Instant>) -> Result<Self, Status> {
        let call = ServerReflectionClient::new(client.clone()).server_reflection_info();
        let (requests, answers) = match deadline {
            Some(deadline) => call.deadline(deadline).await?,
            None => call.await?,
        };
        Ok(Reflection { requests, answers })
    }

    async fn ask(&mut self, message_request: MessageRequest) -> Result<MessageResponse, Status> {
        let message_request = Some(message_request);
        let request = ServerReflectionRequest { host: String::new(), message_request };
        if let Err(status) = self.requests.send(request).await {
            // The server's own word, if it had one, says more.
            return Err(self.answers.recv().await.err().unwrap_or(status));
        }
        let answer = self.answers.recv().await?.and_then(|answer| answer.message_response);
        answer.ok_or_else(|| Status::internal("the stream of answers ended early"))
    }

    /// Adds the files of an answer. Some servers know no file of a service that they list.
    async fn add(&mut self, question: MessageRequest, files: &mut Files) -> Result<(), Status> {
        match self.ask(question).await? {
            MessageResponse::FileDescriptorResponse(found) => {
                found.file_descriptor_proto.into_iter().for_each(|file| files.add(file));
                Ok(())
            }
            MessageResponse::ErrorResponse(_) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Adds what the files import: some servers send them alone. What the server does not have may be
    /// built in.
    async fn add_imports(&mut self, files: &mut Files) -> Result<(), Status> {
        let mut asked = HashSet::new();
        while let Some(name) = files.missing(&asked) {
            let _ = asked.insert(name.clone());
            self.add(MessageRequest::FileByFilename(name.clone()), files).await?;
            let built_in = builtin().pool().get_file_by_name(&name);
            if let (false, Some(file)) = (files.has(&name), built_in) {
                files.add(file.encode_to_vec());
            }
        }
        Ok(())
    }
}

/// Encoded files, each once.
#[derive(Default)]
struct Files {
    encoded: Vec<Vec<u8>>,
    names: HashSet<String>,
    imports: Vec<String>,
}

impl Files {
    fn add(&mut self, encoded: Vec<u8>) {
        // What is none is told when the schema is made.
        let file = FileDescriptorProto::decode(&*encoded).unwrap_or_default();
        if self.names.insert(file.name().to_owned()) {
            self.imports.extend(file.dependency);
            self.encoded.push(encoded);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// A file that is imported and is not there, but those that were asked for.
    fn missing(&self, asked: &HashSet<String>) -> Option<String> {
        let mut imports = self.imports.iter();
        imports.find(|name| !self.has(name) && !asked.contains(*name)).cloned()
    }

    fn into_set(self) -> Vec<u8> {
        let mut set = Vec::new();
        for file in self.encoded {
            prost::encoding::bytes::encode(1, &file, &mut set);
        }
        set
    }
}

/// An encoded set of the files of all services.
async fn fetch(client: &Client, timeout: Option<Duration>) -> Result<Vec<u8>, Status> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    probe(client, deadline).await?;
    let mut reflection = Reflection::open(client, deadline).await?;
    let names = match reflection.ask(MessageRequest::ListServices("*".to_owned())).await? {
        MessageResponse::ListServicesResponse(list) => list.service,
        other => return Err(unexpected(other)),
    };
    let mut files = Files::default();
    for service in names {
        reflection.add(MessageRequest::FileContainingSymbol(service.name), &mut files).await?;
    }
    reflection.add_imports(&mut files).await?;
    Ok(files.into_set())
}

/// Adds the files of these types to a pool, as far as the server has them.
///
/// # Errors
/// If the server does not answer in time, or is gone.
pub async fn fetch_types(
    client: &Client,
    names: &[String],
    timeout: Option<Duration>,
    pool: &mut DescriptorPool,
) -> Result<(), Status> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut reflection = Reflection::open(client, deadline).await?;
    for name in names {
        let mut files = Files::default();
        files.names.extend(pool.files().map(|file| file.name().to_owned()));
        reflection.add(MessageRequest::FileContainingSymbol(name.clone()), &mut files).await?;
        reflection.add_imports(&mut files).await?;
        // What makes no schema leaves the type unknown, which is told.
        let mut more = pool.clone();
        if more.decode_file_descriptor_set(&*files.into_set()).is_ok() {
            *pool = more;
        }
    }
    Ok(())
}

fn unexpected(answer: MessageResponse) -> Status {
    match answer {
        MessageResponse::ErrorResponse(error) => {
            Status::with_raw_code(error.error_code, error.error_message)
        }
        _ => Status::internal("the answer is to another question"),
    }
}

fn build(set: &[u8]) -> Result<Schema, Failure> {
    let mut pool = DescriptorPool::new();
    pool.decode_file_descriptor_set(set).map_err(|error| {
        Failure::Other(format!(
            "what the server tells of its schema makes none: {error}; --proto FILE or \
             --descriptor-set FILE gives another"
        ))
    })?;
    Schema::new(pool, Source::Reflection)
}
