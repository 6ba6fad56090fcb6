//! Schemas from the server itself.

use std::{collections::HashSet, time::Duration};

use prost::Message;
use prost_reflect::DescriptorPool;
use tokio::time::Instant;
use ttrpc::{
    Client, Code, Status,
    client::{StreamReceiver, StreamSender},
};
use ttrpc_reflection::proto::reflection::{
    ServerReflectionClient, ServerReflectionRequest, ServerReflectionResponse,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::{Schema, Source, builtin, files::add_set};
use crate::failure::Failure;

/// What came of asking a server for its schema.
#[derive(Debug)]
pub enum Told {
    /// It has told.
    Schema(Schema),
    /// It has no reflection.
    Nothing,
    /// It has refused to say.
    Refused(Status),
}

/// Why there is no schema.
#[derive(Debug)]
pub enum Untold {
    Failed(Status),
    /// The limit that was reached, in words.
    TooMuch(String),
}

impl From<Status> for Untold {
    fn from(status: Status) -> Self {
        Untold::Failed(status)
    }
}

/// Asks a server for its schema.
///
/// # Errors
/// [`Failure::Call`] if the server does not answer in time or is gone, [`Failure::Other`] if what it
/// tells makes no schema, or is too much of one.
pub async fn fetch_schema(client: &Client, timeout: Option<Duration>) -> Result<Told, Failure> {
    match fetch(client, timeout).await {
        Ok(set) => build(&set).map(Told::Schema),
        Err(Untold::TooMuch(limit)) => Err(Failure::Other(limit)),
        Err(Untold::Failed(status)) => match status.code() {
            Code::DeadlineExceeded | Code::Unavailable => {
                let hint = Some(hint(&status, timeout));
                Err(Failure::Call { hint, status, details: Vec::new() })
            }
            // By their kind, servers without reflection answer so.
            Code::Unimplemented | Code::NotFound | Code::InvalidArgument => Ok(Told::Nothing),
            _ => Ok(Told::Refused(status)),
        },
    }
}

/// What may be done where a server does not tell its schema.
fn hint(status: &Status, timeout: Option<Duration>) -> String {
    let others = "`--schema builtin`, --proto or --descriptor-set do without";
    if status.connection_error().is_some() {
        return format!(
            "it closed the connection when it was asked for its schema by reflection, as a gRPC server does, such \
             as containerd itself, and NRI's socket, where only plugins speak ttrpc, in connections of their own \
             within one (`ttrpc nri` has such a plugin); {others}"
        );
    }
    let limit =
        timeout.filter(|_| status.code() == Code::DeadlineExceeded && !status.is_from_peer());
    match limit {
        Some(limit) => format!(
            "it was asked for its schema by reflection, and says nothing, as NRI's socket does (`ttrpc nri check` asks \
             one); {others}, and --timeout gives it longer than {limit:?}"
        ),
        None => format!("it was asked for its schema by reflection; {others}"),
    }
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
    async fn add(&mut self, question: MessageRequest, files: &mut Files<'_>) -> Result<(), Untold> {
        files.allowance.ask()?;
        match self.ask(question).await? {
            MessageResponse::FileDescriptorResponse(found) => {
                found.file_descriptor_proto.into_iter().try_for_each(|file| files.add(file))
            }
            MessageResponse::ErrorResponse(_) => Ok(()),
            other => Err(unexpected(other).into()),
        }
    }

    /// Ends the stream, and waits until the server has: one that is dropped counts as cancelled there.
    async fn finish(mut self) -> Result<(), Status> {
        self.requests.finish();
        while self.answers.recv().await?.is_some() {}
        Ok(())
    }

    /// Adds what the files import: some servers send them alone. What the server does not have may be
    /// built in.
    async fn add_imports(&mut self, files: &mut Files<'_>) -> Result<(), Untold> {
        while let Some(name) = files.next_import() {
            self.add(MessageRequest::FileByFilename(name.clone()), files).await?;
            let built_in = builtin().pool().get_file_by_name(&name);
            if let (false, Some(file)) = (files.has(&name), built_in) {
                files.add(file.encode_to_vec())?;
            }
        }
        Ok(())
    }
}

/// What a server may tell in all, so that none can make this program hold more and more.
#[derive(Debug)]
pub struct Allowance {
    files: usize,
    bytes: usize,
    rounds: usize,
}

const MAX_FILES: usize = 10_000;
/// Of encoded files. What is made of them takes about ten times as much.
const MAX_BYTES: usize = 16 << 20;
/// Questions.
const MAX_ROUNDS: usize = 10_000;

impl Default for Allowance {
    fn default() -> Self {
        Allowance { files: MAX_FILES, bytes: MAX_BYTES, rounds: MAX_ROUNDS }
    }
}

impl Allowance {
    /// Takes a question.
    fn ask(&mut self) -> Result<(), Untold> {
        self.rounds = self.rounds.checked_sub(1).ok_or_else(|| too_much("10000 questions"))?;
        Ok(())
    }

    /// Takes a file.
    fn keep(&mut self, len: usize) -> Result<(), Untold> {
        self.files = self.files.checked_sub(1).ok_or_else(|| too_much("10000 files"))?;
        self.bytes = self.bytes.checked_sub(len).ok_or_else(|| too_much("16 MiB of files"))?;
        Ok(())
    }
}

fn too_much(limit: &str) -> Untold {
    Untold::TooMuch(format!(
        "the server's reflection goes on behind {limit}, the most that is read; --proto FILE or \
         --descriptor-set FILE does without"
    ))
}

/// Encoded files, each once.
struct Files<'a> {
    allowance: &'a mut Allowance,
    encoded: Vec<Vec<u8>>,
    names: HashSet<String>,
    /// Those that are imported, and were not looked at.
    imports: Vec<String>,
    /// Those that were asked for.
    asked: HashSet<String>,
}

/// The part of a `FileDescriptorProto` that is needed.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
}

impl<'a> Files<'a> {
    /// None yet, beside those with these names.
    fn beside(names: impl IntoIterator<Item = String>, allowance: &'a mut Allowance) -> Self {
        let (names, asked) = (names.into_iter().collect(), HashSet::new());
        Files { allowance, encoded: Vec::new(), names, imports: Vec::new(), asked }
    }

    fn add(&mut self, encoded: Vec<u8>) -> Result<(), Untold> {
        // What is none is told when the schema is made.
        let head = Head::decode(&*encoded).unwrap_or_default();
        if self.names.insert(head.name) {
            self.allowance.keep(encoded.len())?;
            self.imports.extend(head.dependency);
            self.encoded.push(encoded);
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// A file that is imported, is not there, and was not asked for.
    fn next_import(&mut self) -> Option<String> {
        loop {
            let name = self.imports.pop()?;
            if !self.has(&name) && self.asked.insert(name.clone()) {
                return Some(name);
            }
        }
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
async fn fetch(client: &Client, timeout: Option<Duration>) -> Result<Vec<u8>, Untold> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    probe(client, deadline).await?;
    let mut reflection = Reflection::open(client, deadline).await?;
    let names = match reflection.ask(MessageRequest::ListServices("*".to_owned())).await? {
        MessageResponse::ListServicesResponse(list) => list.service,
        other => return Err(unexpected(other).into()),
    };
    let mut allowance = Allowance::default();
    let mut files = Files::beside([], &mut allowance);
    for service in names {
        reflection.add(MessageRequest::FileContainingSymbol(service.name), &mut files).await?;
    }
    reflection.add_imports(&mut files).await?;
    reflection.finish().await?;
    Ok(files.into_set())
}

/// Adds the files of these types to a pool, as far as the server has them.
///
/// # Errors
/// If the server does not answer in time, or is gone, or has told as much as it may.
pub async fn fetch_types(
    client: &Client,
    names: &[String],
    timeout: Option<Duration>,
    pool: &mut DescriptorPool,
    allowance: &mut Allowance,
) -> Result<(), Untold> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut reflection = Reflection::open(client, deadline).await?;
    for name in names {
        let known: Vec<_> = pool.files().map(|file| file.name().to_owned()).collect();
        let mut files = Files::beside(known, allowance);
        reflection.add(MessageRequest::FileContainingSymbol(name.clone()), &mut files).await?;
        reflection.add_imports(&mut files).await?;
        // What makes no schema leaves the type unknown, which is told.
        let mut more = pool.clone();
        if add_set(&mut more, &files.into_set()).is_ok() {
            *pool = more;
        }
    }
    Ok(reflection.finish().await?)
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
    add_set(&mut pool, set).map_err(|error| {
        Failure::Other(format!(
            "what the server tells of its schema makes none: {error}; --proto FILE or \
             --descriptor-set FILE gives another"
        ))
    })?;
    Schema::new(pool, Source::Reflection)
}
