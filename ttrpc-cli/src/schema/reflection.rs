//! Schemas from the server itself.

use std::time::Duration;

use prost_reflect::DescriptorPool;
use tokio::time::Instant;
use ttrpc::{Client, Code, Status};
use ttrpc_reflection::proto::reflection::{
    ServerReflectionClient, ServerReflectionRequest, ServerReflectionResponse,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::{Schema, Source};
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
        Ok(files) => build(files).map(Some),
        Err(status) if is_about_the_connection(&status) => Err(Failure::Call {
            hint: Some(format!(
                "it was asked for its schema by reflection; `--schema builtin`, --proto or \
                 --descriptor-set do without, {}",
                match timeout {
                    Some(limit) => format!("and --timeout gives it longer than {limit:?}"),
                    None => "or Ctrl-C gives up".to_owned(),
                }
            )),
            status,
            details: Vec::new(),
        }),
        Err(_) => Ok(None),
    }
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

/// The encoded files of all services.
async fn fetch(client: &Client, timeout: Option<Duration>) -> Result<Vec<Vec<u8>>, Status> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    probe(client, deadline).await?;
    let call = ServerReflectionClient::new(client.clone()).server_reflection_info();
    let (mut requests, mut answers) = match deadline {
        Some(deadline) => call.deadline(deadline).await?,
        None => call.await?,
    };
    let mut ask = async |message_request| {
        let message_request = Some(message_request);
        let request = ServerReflectionRequest { host: String::new(), message_request };
        if let Err(status) = requests.send(request).await {
            // The server's own word, if it had one, says more.
            return Err(answers.recv().await.err().unwrap_or(status));
        }
        let answer = answers.recv().await?.and_then(|answer| answer.message_response);
        answer.ok_or_else(|| Status::internal("the stream of answers ended early"))
    };
    let names = match ask(MessageRequest::ListServices("*".to_owned())).await? {
        MessageResponse::ListServicesResponse(list) => list.service,
        other => return Err(unexpected(other)),
    };
    let mut files: Vec<Vec<u8>> = Vec::new();
    for service in names {
        match ask(MessageRequest::FileContainingSymbol(service.name)).await? {
            MessageResponse::FileDescriptorResponse(found) => {
                for file in found.file_descriptor_proto {
                    // A file with two services comes twice.
                    if !files.contains(&file) {
                        files.push(file);
                    }
                }
            }
            // Some servers list services of which they know no file.
            MessageResponse::ErrorResponse(_) => {}
            other => return Err(unexpected(other)),
        }
    }
    Ok(files)
}

fn unexpected(answer: MessageResponse) -> Status {
    match answer {
        MessageResponse::ErrorResponse(error) => {
            Status::with_raw_code(error.error_code, error.error_message)
        }
        _ => Status::internal("the answer is to another question"),
    }
}

fn build(files: Vec<Vec<u8>>) -> Result<Schema, Failure> {
    let mut set = Vec::new();
    for file in files {
        prost::encoding::bytes::encode(1, &file, &mut set);
    }
    let mut pool = DescriptorPool::new();
    pool.decode_file_descriptor_set(&*set).map_err(|error| {
        Failure::Other(format!(
            "what the server tells of its schema makes none: {error}; --proto FILE or \
             --descriptor-set FILE gives another"
        ))
    })?;
    Schema::new(pool, Source::Reflection)
}
