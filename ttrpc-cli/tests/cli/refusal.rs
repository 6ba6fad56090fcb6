//! Servers that refuse some of what the program asks for, and what they count of it.

use std::sync::{Arc, Mutex};

use ttrpc::{
    Code, Context, Status, async_trait,
    observer::{CallEnd, CallInfo, Observer},
    server::{Interceptor, Next},
};
use ttrpc_reflection::{Health, Reflection};
use ttrpc_tests::{
    conformance::{ConformanceServer, FILE_DESCRIPTOR_SET},
    service::ConformanceService,
};

use crate::common::*;

/// Refuses all calls with this code but those of the health service.
struct HealthOnly(Code);

#[async_trait]
impl Interceptor for HealthOnly {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        match ctx.service() {
            "grpc.health.v1.Health" => next.run(ctx).await,
            _ => Err(Status::with_raw_code(self.0 as i32, "who are you?")),
        }
    }
}

fn refusing(code: Code) -> Served {
    serve(|builder| {
        builder
            .intercept(HealthOnly(code))
            .add_service(ConformanceServer::new(ConformanceService::default()))
            .add_service(Reflection::new(FILE_DESCRIPTOR_SET).unwrap())
            .add_service(Health::new().service())
    })
}

#[test]
fn a_refusal_is_named_with_its_own_code() {
    for code in [
        Code::PermissionDenied,
        Code::Unauthenticated,
        Code::ResourceExhausted,
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::Internal,
    ] {
        let server = refusing(code);
        let address = &*server.address;
        for command in [
            &["call", address, "jobs.v1.Jobs/Run"][..],
            &["call", address, "Run"],
            &["describe", address, "jobs.v1.Jobs"],
            &["list", address, "jobs.v1.Jobs"],
            &["list", address, "--schema", "reflection"],
            &["schema", address, "--schema", "reflection"],
            &["schema", address],
            &["load", address, "jobs.v1.Jobs/Run"],
        ] {
            let ran = run(command);
            assert_eq!(ran.code, 64 + code as i32, "{command:?}: {ran:?}");
            assert!(ran.stderr.contains(code.name()), "{command:?}: {ran:?}");
            assert!(ran.stderr.contains("who are you?"), "{command:?}: {ran:?}");
        }
    }
}

#[test]
fn what_is_allowed_works_though_reflection_is_refused() {
    let server = refusing(Code::PermissionDenied);
    assert_eq!(run(&["call", &server.address, "grpc.health.v1.Health/Check"]).code, 0);
    assert_eq!(run(&["call", &server.address, "Health/Check"]).code, 0);
    let listed = run(&["list", &server.address]);
    assert!(listed.stdout.contains("grpc.health.v1.Health\n"), "what it has: {listed:?}");
    assert_eq!(listed.code, 64 + 7, "{listed:?}");
    assert!(listed.stderr.contains("PERMISSION_DENIED"), "{listed:?}");
}

/// The ends of all calls: method and code.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<(String, Code)>>>);

impl Observer for Ends {
    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.0.lock().unwrap().push((call.method.to_owned(), end.code));
    }
}

#[test]
fn the_program_leaves_nothing_but_good_calls_in_a_servers_counters() {
    let ends = Ends::default();
    let server = serve(|builder| {
        builder
            .observe(ends.clone())
            .add_service(ConformanceServer::new(ConformanceService::default()))
            // It does not list its health service.
            .add_service(Reflection::new(FILE_DESCRIPTOR_SET).unwrap())
            .add_service(Health::new().service())
    });
    let address = &*server.address;
    for command in [
        &["list", address][..],
        &["list", address, "Conformance"],
        &["describe", address, "Echo"],
        &["describe", address],
        &["schema", address],
        &["call", address, "Echo"],
        &["call", address, "grpc.health.v1.Health/Check"],
        &["call", address, "Health/Check"],
    ] {
        assert_eq!(run(command).code, 0, "{command:?}");
        server.settle();
        let ends = std::mem::take(&mut *ends.0.lock().unwrap());
        assert!(!ends.is_empty());
        for (method, code) in ends {
            assert_eq!(code, Code::Ok, "{command:?}: {method}");
        }
    }
}

/// Lets in whoever says the word, also to reflection and the debug service.
struct Word;

#[async_trait]
impl Interceptor for Word {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        match ctx.metadata().get_all("word").collect::<Vec<_>>()[..] {
            ["sesame"] => next.run(ctx).await,
            _ => Err(Status::unauthenticated("say the word, once")),
        }
    }
}

#[test]
fn metadata_goes_with_every_call_also_with_those_that_ask_for_the_schema() {
    let server = serve(|builder| {
        builder
            .intercept(Word)
            .add_service(ConformanceServer::new(ConformanceService::default()))
            .add_service(Reflection::new(FILE_DESCRIPTOR_SET).unwrap())
    });
    let address = &*server.address;
    for command in [
        &["list", address][..],
        &["list", address, "Conformance"],
        &["describe", address, "Echo"],
        &["schema", address],
        &["call", address, "Echo"],
        &["call", address, "Echo", "-v"],
        &["load", address, "Echo", "-n", "3"],
        &["top", address, "--once", "--interval", "100ms"],
    ] {
        assert_ne!(run(command).code, 0, "{command:?} without the word");
        let ran = run(&[command, &["-H", "word: sesame"]].concat());
        assert_eq!(ran.code, 0, "{command:?}: {ran:?}");
    }
    let line = format!("ttrpc call -H word:sesame {address} Ech");
    let completed = completing("bash", &[&line, "Ech"]).output();
    assert!(Ran::from(completed.unwrap()).stdout.contains("Echo"), "by completion");
    let ran = run_with_input(&["explore", address, "-H", "word:sesame", "--no-history"], "Echo\n");
    assert_eq!(ran.code, 0, "{ran:?}");
}
