//! Types that a server tells only when they are asked for, from the shell.

use std::{
    process::Stdio,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use prost_reflect::{DescriptorPool, prost_types::FileDescriptorSet};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use ttrpc::{
    Any, Context, Status,
    server::{Routes, Service, StreamReceiver, StreamSender},
};
use ttrpc_reflection::proto::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

use crate::common::*;

const SERVICE: &str = r#"syntax = "proto3";
package rf;
import "google/protobuf/any.proto";
import "shared.proto";
service S { rpc Back(Box) returns (Box); rpc Fail(Box) returns (Box); }
message Box { google.protobuf.Any any = 1; Shared shared = 2; }
"#;
const SHARED: &str = r#"syntax = "proto3";
package rf;
message Shared { string text = 1; }
"#;
/// No file of the service imports it.
const EXTRA: &str = r#"syntax = "proto3";
package rf;
import "shared.proto";
message Extra { string text = 1; Shared shared = 2; }
"#;
/// Not even the server knows it.
const UNTOLD: &str = r#"syntax = "proto3";
package rf;
message Untold { string text = 1; }
"#;

/// The server does not answer who asks for it.
const SILENT: &str = "rf.Silent";

#[derive(Clone, PartialEq, prost::Message)]
struct Box {
    #[prost(message, optional, tag = "1")]
    any: Option<Any>,
    #[prost(message, optional, tag = "2")]
    shared: Option<Shared>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Shared {
    #[prost(string, tag = "1")]
    text: String,
}

struct Back;

impl Back {
    async fn back(&self, _ctx: &Context, request: Box) -> Result<Box, Status> {
        Ok(request)
    }

    async fn fail(&self, _ctx: &Context, request: Box) -> Result<Box, Status> {
        let silent = || Any { type_url: SILENT.to_owned(), ..Any::default() };
        Err(Status::aborted("no").with_detail(request.any.unwrap_or_else(silent)))
    }
}

impl Service for Back {
    fn into_routes(self) -> Routes {
        let back = std::sync::Arc::new(self);
        Routes::new("rf.S")
            .unary("Back", &back, |back, ctx, request: Box| {
                std::boxed::Box::pin(back.back(ctx, request))
            })
            .unary("Fail", &back, |back, ctx, request: Box| {
                std::boxed::Box::pin(back.fail(ctx, request))
            })
    }
}

/// Sends files without their imports.
struct Sparse {
    files: DescriptorPool,
    /// Gets each name that is asked for, and how much time there was.
    asked: Sender<(String, Option<Duration>)>,
}

impl Sparse {
    async fn answer(
        &self,
        ctx: &Context,
        mut requests: StreamReceiver<ServerReflectionRequest>,
        mut answers: StreamSender<ServerReflectionResponse>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.recv().await? {
            let file = match request.message_request.unwrap() {
                MessageRequest::ListServices(_) => {
                    let service = vec![ServiceResponse { name: "rf.S".to_owned() }];
                    let list =
                        MessageResponse::ListServicesResponse(ListServiceResponse { service });
                    let message_response = Some(list);
                    answers
                        .send(ServerReflectionResponse { message_response, ..Default::default() })
                        .await?;
                    continue;
                }
                MessageRequest::FileByFilename(name) if name.starts_with("google/") => None,
                MessageRequest::FileByFilename(name) => self.files.get_file_by_name(&name),
                MessageRequest::FileContainingSymbol(name) => {
                    // Most tests do not look.
                    let _ = self.asked.send((name.clone(), ctx.timeout()));
                    if name == SILENT {
                        std::future::pending::<()>().await;
                    }
                    let service = self.files.get_service_by_name(&name);
                    let message = self.files.get_message_by_name(&name);
                    let file = service.map(|service| service.parent_file());
                    file.or_else(|| message.map(|message| message.parent_file()))
                }
                _ => None,
            };
            let message_response = Some(match file {
                Some(file) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
                    file_descriptor_proto: vec![file.encode_to_vec()],
                }),
                None => MessageResponse::ErrorResponse(ErrorResponse {
                    error_code: 5,
                    error_message: "not here".to_owned(),
                }),
            });
            answers
                .send(ServerReflectionResponse { message_response, ..Default::default() })
                .await?;
        }
        Ok(())
    }
}

impl Service for Sparse {
    fn into_routes(self) -> Routes {
        let sparse = std::sync::Arc::new(self);
        Routes::new("grpc.reflection.v1.ServerReflection").bidi_streaming(
            "ServerReflectionInfo",
            &sparse,
            |sparse, ctx, requests, answers| {
                std::boxed::Box::pin(sparse.answer(ctx, requests, answers))
            },
        )
    }
}

fn sparse() -> Served {
    sparse_and_asked().0
}

/// A server, and the names that it is asked for, each with how much time there was.
fn sparse_and_asked() -> (Served, Receiver<(String, Option<Duration>)>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("s.proto", SERVICE), ("shared.proto", SHARED), ("extra.proto", EXTRA)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut compiler = protox::Compiler::new([folder.path()]).unwrap();
    compiler.include_imports(true);
    for name in ["s.proto", "extra.proto"] {
        compiler.open_file(folder.path().join(name)).unwrap();
    }
    let set: FileDescriptorSet = compiler.file_descriptor_set();
    let files = DescriptorPool::from_file_descriptor_set(set).unwrap();
    let (asked, names) = mpsc::channel();
    let sparse = Sparse { files, asked };
    (serve(|builder| builder.add_service(Back).add_service(sparse)), names)
}

#[test]
fn files_without_their_imports_make_a_schema() {
    let server = sparse();
    assert_eq!(run(&["list", &server.address]).ok(), "rf.S\n");
    let reply = run(&["call", &server.address, "S/Back", r#"{"shared":{"text":"hi"}}"#]).json();
    assert_eq!(reply, json!({ "shared": { "text": "hi" } }));
}

#[test]
fn a_type_that_only_an_any_names_is_asked_for() {
    let server = sparse();
    let extra = json!({ "@type": "a/rf.Extra", "text": "hi", "shared": { "text": "deep" } });
    let request = json!({ "any": extra }).to_string();
    assert_eq!(run(&["call", &server.address, "S/Back", &request]).json(), json!({ "any": extra }));
    // As bytes, so that only the reply and the details are to be read.
    let bytes = json!({ "any": { "@type": "rf.Extra", "value": "CgJoaQ==" } }).to_string();
    let reply = run(&["call", &server.address, "S/Fail", &request, "--json"]);
    assert_eq!(reply.code, 64 + 10);
    let error: serde_json::Value = serde_json::from_str(&reply.stderr).unwrap();
    assert_eq!(error["details"], json!([extra]));
    let unfit = run(&["call", &server.address, "S/Back", &bytes]);
    assert_eq!(unfit.code, 2, "its type is known, so it is a message: {unfit:?}");
}

#[test]
fn a_type_is_asked_for_within_the_calls_timeout() {
    let (server, asked) = sparse_and_asked();
    let request = json!({ "any": { "@type": "rf.Extra", "text": "hi" } }).to_string();
    for timeout in ["3h", "0"] {
        let call = |data| ["call", &*server.address, "S/Back", data, "--timeout", timeout];
        run(&call(&request)).ok();
        run_with_input(&call("-"), &request).ok();
        let of_type = asked.try_iter().filter(|(name, _)| name == "rf.Extra");
        let times: Vec<_> = of_type.map(|(_, time)| time).collect();
        assert_eq!(times.len(), 2, "each call asks");
        // What is left of it when it is asked for.
        let is_right = |time: &Option<Duration>| match timeout {
            "0" => time.is_none(),
            _ => time.is_some_and(|time| time > Duration::from_secs(2 * 3600)),
        };
        assert!(times.iter().all(is_right), "{timeout}: {times:?}");
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_a_type() {
    let (server, asked) = sparse_and_asked();
    let request = json!({ "any": { "@type": SILENT } }).to_string();
    let file = server.folder.path().join("request.json");
    std::fs::write(&file, &request).unwrap();
    let input = std::fs::File::open(&file).unwrap().into();
    // The last one has failed by then: its detail is of that type.
    for (method, data, stdin, code) in [
        ("S/Back", &*request, Stdio::null(), 130),
        ("S/Back", "-", input, 130),
        ("S/Fail", "{}", Stdio::null(), 64 + 10),
    ] {
        let call = ["call", &*server.address, method, data];
        let waiting = ttrpc(&call).stdin(stdin).spawn().unwrap();
        while asked.recv_timeout(PATIENCE).expect("it asks for the type").0 != SILENT {}
        kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
        let ended = waiting.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{method} {data}");
    }
}

#[test]
fn files_add_to_reflection_where_that_is_asked_for_as_well() {
    let server = sparse();
    let file = server.folder.path().join("untold.proto");
    std::fs::write(&file, UNTOLD).unwrap();
    let files = ["--proto", file.to_str().unwrap()];
    let request = json!({ "any": { "@type": "rf.Untold", "text": "hi" } });
    let text = request.to_string();
    let call = ["call", &server.address, "S/Back", &text];
    let unknown = run(&call);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("`rf.Untold`"), "{}", unknown.stderr);
    let alone = run(&[&call[..], &files].concat());
    assert_eq!(alone.code, 2, "the service is not in the file: {alone:?}");
    let reply = run(&[&call[..], &files, &["--schema", "reflection"]].concat()).json();
    assert_eq!(reply, request);
    let none = run(&[&["list", &*server.address], &files[..], &["--schema", "builtin"]].concat());
    assert_eq!(none.code, 2, "{none:?}");
}
