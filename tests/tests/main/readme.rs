//! The README's programs, compiled and run. A test compares them with the README, block by block.

use super::guide::{blocks, words};

#[allow(dead_code, reason = "cargo runs a build script")]
mod build_script {
    fn main() -> Result<(), ttrpc_codegen::Error> {
        ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])
    }
}

#[allow(dead_code, reason = "its `main` has a fixed address")]
#[rustfmt::skip]
mod server {
    mod greeter {
        include!(concat!(env!("OUT_DIR"), "/readme/greeter.v1.rs"));
    }

    use std::{process::ExitCode, time::Duration};

    use greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
    use tokio::signal::unix::{SignalKind, signal};
    use ttrpc::{Context, Server, Status, async_trait};

    struct MyGreeter;

    #[async_trait]
    impl Greeter for MyGreeter {
        async fn say_hello(&self, _ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
            if request.name.is_empty() {
                return Err(Status::invalid_argument("whom shall I greet?"));
            }
            Ok(HelloReply { message: format!("Hello, {}!", request.name) })
        }
    }

    async fn serve(address: &str) -> Result<(), ttrpc::Error> {
        let mut sigterm = signal(SignalKind::terminate()).expect("signals can be handled");
        let server =
            Server::builder().add_service(GreeterServer::new(MyGreeter)).bind(address)?.build()?;
        // On SIGTERM, open calls may finish within five seconds.
        let stopped = async move {
            sigterm.recv().await;
        };
        server.serve_until(stopped, Duration::from_secs(5)).await
    }

    #[tokio::main]
    async fn main() -> ExitCode {
        match serve("unix:///tmp/greeter.sock").await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("greeter: {error}");
                ExitCode::FAILURE
            }
        }
    }

    pub(super) async fn run(address: &str) -> Result<(), ttrpc::Error> {
        serve(address).await
    }
}

#[allow(dead_code, reason = "its `main` has a fixed address")]
mod client {
    mod greeter {
        include!(concat!(env!("OUT_DIR"), "/readme/greeter.v1.rs"));
    }

    use std::{error::Error, process::ExitCode, time::Duration};

    use greeter::{GreeterClient, HelloRequest};
    use ttrpc::Client;

    #[tokio::main]
    async fn main() -> ExitCode {
        match run().await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("client: {error}");
                ExitCode::FAILURE
            }
        }
    }

    async fn run() -> Result<(), Box<dyn Error>> {
        let greeter = GreeterClient::new(Client::connect("unix:///tmp/greeter.sock").await?);
        let request = HelloRequest { name: "Ann".into() };
        let reply = greeter.say_hello(request).timeout(Duration::from_secs(1)).await?;
        println!("{}", reply.message);
        Ok(())
    }

    pub(super) async fn say_hello(address: &str) -> String {
        let greeter = GreeterClient::new(Client::connect(address).await.unwrap());
        greeter.say_hello(HelloRequest { name: "Ann".into() }).await.unwrap().message
    }
}

const README: &str = include_str!("../../../README.md");

/// What the tests include in place of the README's macro, since this package has the guide's greeter besides.
const INCLUDED: &str = r#"include!(concat!(env!("OUT_DIR"), "/readme/greeter.v1.rs"));"#;

#[test]
fn the_programs_of_the_readme_are_compiled() {
    let compiled = words(include_str!("readme.rs"));
    let programs = blocks(&[README], "rust");
    assert_eq!(programs.len(), 3);
    for program in programs {
        let program = program.replace(r#"ttrpc::include_proto!("greeter.v1");"#, INCLUDED);
        assert!(compiled.contains(&words(&program)), "not compiled by this test:\n{program}");
    }
    assert_eq!(blocks(&[README], "proto"), [include_str!("../../proto/readme/greeter.proto")]);
}

#[tokio::test]
async fn the_server_of_the_readme_answers() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("greeter.sock").display());
    tokio::select! {
        // The server is polled first, and so listens when the client connects.
        biased;
        result = server::run(&address) => panic!("the server ended: {result:?}"),
        message = client::say_hello(&address) => assert_eq!(message, "Hello, Ann!"),
    }
}
