//! Servers that tell too much, or what a terminal would act on.

use std::{os::unix::net::UnixListener, sync::Arc, thread};

use prost::Message;
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MethodDescriptorProto,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use ttrpc::{
    Any, Context, Raw, Status,
    server::{Routes, Service, StreamReceiver, StreamSender},
};
use ttrpc_reflection::proto::reflection::{
    FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest, ServerReflectionResponse,
    ServiceResponse, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

use crate::common::*;

/// A server whose reflection answers so.
struct Lies<F>(F);

impl<F: Fn(MessageRequest) -> MessageResponse + Send + Sync + 'static> Service for Lies<F> {
    fn into_routes(self) -> Routes {
        let answer = Arc::new(self);
        Routes::new("grpc.reflection.v1.ServerReflection").bidi_streaming(
            "ServerReflectionInfo",
            &answer,
            |answer, _ctx: &Context, requests, replies| {
                Box::pin(async move { answer_all(&answer.0, requests, replies).await })
            },
        )
    }
}

async fn answer_all(
    answer: &(impl Fn(MessageRequest) -> MessageResponse + Sync),
    mut requests: StreamReceiver<ServerReflectionRequest>,
    mut replies: StreamSender<ServerReflectionResponse>,
) -> Result<(), Status> {
    while let Some(request) = requests.recv().await? {
        let message_response = request.message_request.map(answer);
        let reply = ServerReflectionResponse { message_response, ..Default::default() };
        replies.send(reply).await?;
    }
    Ok(())
}

fn list(names: Vec<String>) -> MessageResponse {
    let service = names.into_iter().map(|name| ServiceResponse { name }).collect();
    MessageResponse::ListServicesResponse(ListServiceResponse { service })
}

fn file(file: FileDescriptorProto) -> MessageResponse {
    let file_descriptor_proto = vec![file.encode_to_vec()];
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
}

/// A file that imports another, whose name has the next number, and is so long.
fn endless(name: &str, padding: usize) -> MessageResponse {
    let number: u64 = name.trim_end_matches(".proto").parse().unwrap_or(0);
    file(FileDescriptorProto {
        name: Some(if number == 0 { "0.proto".to_owned() } else { name.to_owned() }),
        package: Some("a".repeat(padding)),
        dependency: vec![format!("{}.proto", number + 1)],
        ..Default::default()
    })
}

#[test]
fn reflection_without_an_end_is_an_error_that_names_the_limit() {
    for (padding, limit) in [(1 << 20, "16 MiB of files"), (1, "10000 ")] {
        let server = only(Lies(move |asked| match asked {
            MessageRequest::FileByFilename(name) => endless(&name, padding),
            MessageRequest::FileContainingSymbol(_) => endless("0", padding),
            _ => list(vec!["a.S".to_owned()]),
        }));
        let ran = run(&["list", &server.address]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains(limit) && ran.stderr.contains("--proto"), "{ran:?}");
    }
    let server = only(Lies(|asked| match asked {
        MessageRequest::FileContainingSymbol(_) => list(Vec::new()),
        _ => list((0..200_000).map(|at| format!("a.S{at}")).collect()),
    }));
    let ran = run(&["list", &server.address]);
    assert_ne!(ran.code, 0, "{ran:?}");
}

/// What no text may bring to a terminal.
const UNSAFE: [char; 13] = [
    '\u{1b}', '\u{7}', '\u{7f}', '\u{85}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200f}',
    '\u{2028}', '\u{200b}', '\u{2060}', '\u{feff}', '\u{ad}',
];

fn evil() -> String {
    UNSAFE.iter().map(|unsafe_one| format!("x{unsafe_one}]0;t")).collect()
}

/// A service with names, comments and defaults of that kind.
fn evil_file() -> FileDescriptorProto {
    let field = |name: &str, number, kind: Type| FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        type_name: (kind == Type::Message).then(|| ".google.protobuf.Any".to_owned()),
        ..Default::default()
    };
    FileDescriptorProto {
        name: Some(format!("evil\n{}.proto", evil())),
        package: Some("evil".to_owned()),
        dependency: vec!["google/protobuf/any.proto".to_owned()],
        message_type: vec![DescriptorProto {
            name: Some("M".to_owned()),
            field: vec![
                field("text", 1, Type::String),
                field("any", 2, Type::Message),
                FieldDescriptorProto {
                    default_value: Some(evil()),
                    ..field("other", 3, Type::String)
                },
            ],
            ..Default::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("S".to_owned()),
            method: ["Say", "Fail"]
                .map(|name| MethodDescriptorProto {
                    name: Some(name.to_owned()),
                    input_type: Some(".evil.M".to_owned()),
                    output_type: Some(".evil.M".to_owned()),
                    ..Default::default()
                })
                .to_vec(),
            ..Default::default()
        }],
        syntax: Some("proto2".to_owned()),
        ..Default::default()
    }
}

#[derive(Clone, PartialEq, Message)]
struct Said {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(message, optional, tag = "2")]
    any: Option<Any>,
}

struct Evil;

impl Service for Evil {
    fn into_routes(self) -> Routes {
        let evil_one = Arc::new(self);
        Routes::new("evil.S")
            .unary("Say", &evil_one, |_, _ctx: &Context, _: Raw| {
                Box::pin(async {
                    let any = Some(Any { type_url: format!("x/{}", evil()), value: Vec::new() });
                    Ok(Said { text: evil(), any })
                })
            })
            .unary("Fail", &evil_one, |_, _ctx: &Context, _: Raw| {
                Box::pin(async {
                    let said = Said { text: evil(), any: None }.encode_to_vec();
                    let detail = Any { type_url: "x/evil.M".to_owned(), value: said };
                    let other = Any { type_url: evil(), value: Vec::new() };
                    Err::<Said, _>(Status::not_found(evil()).with_detail(detail).with_detail(other))
                })
            })
    }
}

fn evil_server() -> Served {
    serve(|builder| {
        builder.add_service(Evil).add_service(Lies(|asked| match asked {
            MessageRequest::ListServices(_) => list(vec!["evil.S".to_owned()]),
            _ => file(evil_file()),
        }))
    })
}

#[track_caller]
fn assert_harmless(ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        let found = UNSAFE.iter().find(|unsafe_one| text.contains(**unsafe_one));
        assert_eq!(found, None, "{text:?}");
    }
}

#[test]
fn nothing_of_a_server_reaches_the_terminal_as_it_is() {
    let server = evil_server();
    let address = &*server.address;
    let folder = tempfile::tempdir().unwrap();
    let protos = folder.path().to_str().unwrap();
    let metadata = format!("key:{}", evil());
    let text = format!("text={}", evil());
    for command in [
        &["list", address][..],
        &["list", address, "S"],
        &["describe", address],
        &["describe", address, "evil.M"],
        &["describe", address, "evil.M", "--template"],
        &["schema", address],
        &["schema", address, "--protos", protos],
        &["call", address, "Say"],
        &["call", address, "Say", "-v", "-H", &metadata, &text],
        &["call", address, "Fail"],
        &["load", address, "Say", "-n", "2"],
        &["load", address, "Fail", "-n", "2"],
        &["call", address, &evil()],
        &["call", address, "Say", &evil()],
    ] {
        for json in [&[][..], &["--json"]] {
            let ran = run(&[command, json].concat());
            assert_harmless(&ran);
            assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{command:?}");
        }
    }
    let mut written = std::fs::read_dir(folder.path()).unwrap();
    let name = written.next().unwrap().unwrap().file_name().into_string().unwrap();
    assert!(!name.contains('\n') && !name.contains(UNSAFE), "{name:?}");
    let content = std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(!content.contains(UNSAFE), "{content:?}");
    // What JSON has is what the server said.
    let said = run(&["call", address, "Say", "--json"]).json();
    assert_eq!(said["text"], evil());
}

/// NRI's runtime waits for its plugin to begin, and closes what is no logical connection.
#[test]
fn a_socket_of_nri_is_told_as_what_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let _ = std::io::Read::read(&mut client.unwrap(), &mut [0; 8]);
        }
    });
    let ran = run(&["list", path.to_str().unwrap()]);
    assert_eq!(ran.code, 64 + 14, "{ran:?}");
    assert!(ran.stderr.contains("NRI") && ran.stderr.contains("gRPC"), "{ran:?}");
}

#[test]
fn a_schema_whose_names_are_none_is_refused() {
    for name in ["$(id)", "x;id", "a\nb", "<script>", "a\u{200b}"] {
        let server = only(Lies(move |asked| match asked {
            MessageRequest::ListServices(_) => list(vec!["evil.S".to_owned()]),
            _ => {
                let mut lie = evil_file();
                lie.service[0].method[0].name = Some(name.to_owned());
                file(lie)
            }
        }));
        for command in [&["list", &server.address][..], &["call", &server.address, "Fail"]] {
            let ran = run(command);
            assert_eq!(ran.code, 1, "{ran:?}");
            assert!(ran.stderr.contains("is no name"), "{ran:?}");
            assert_harmless(&ran);
        }
        // What a shell would run is not completed.
        let line = format!("ttrpc call {} ", server.address);
        let completed = completing("bash", &[&line, ""]).output();
        let completed = Ran::from(completed.unwrap());
        assert!(!completed.stdout.contains(name), "{completed:?}");
    }
}

#[test]
fn files_of_protobuf_that_a_server_leaves_out_are_built_in() {
    let server = only(Lies(|asked| match asked {
        MessageRequest::ListServices(_) => list(vec!["evil.S".to_owned()]),
        MessageRequest::FileContainingSymbol(_) => {
            let mut leaves_out = evil_file();
            for name in ["struct", "wrappers", "field_mask", "empty", "timestamp", "descriptor"] {
                leaves_out.dependency.push(format!("google/protobuf/{name}.proto"));
            }
            leaves_out.message_type[0].field[1].type_name =
                Some(".google.protobuf.Struct".to_owned());
            file(leaves_out)
        }
        _ => MessageResponse::ErrorResponse(Default::default()),
    }));
    let template = run(&["describe", &server.address, "evil.M", "--template", "--json"]).json();
    assert_eq!(template["any"], serde_json::json!({}));
}
