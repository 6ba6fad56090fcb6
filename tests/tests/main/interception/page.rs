//! The snippets of `docs/guide/interceptors.md`, compiled and run. A test compares them with the page, block by block.

use ttrpc::{Status, async_trait};

use super::*;

/// Generated with bodies for what a test leaves out.
mod greeter {
    include!(concat!(env!("OUT_DIR"), "/default_bodies/greeter.v1.rs"));
}
use greeter::{Greeter, GreeterClient, HelloReply, HelloRequest};

mod policy {
    use super::greeter::HelloRequest;

    use ttrpc::server::{Interceptor, Next};
    use ttrpc::{Context, Status, async_trait, prost::Message};

    pub struct Policy;

    #[async_trait]
    impl Interceptor for Policy {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            if ctx.method() == "SayHello" {
                let request = HelloRequest::decode(next.request_bytes())
                    .map_err(|error| Status::invalid_argument(error.to_string()))?;
                if request.name.contains("secret") {
                    return Err(Status::permission_denied("the policy does not allow it"));
                }
            }
            let result = next.run(ctx).await;
            println!("{} ended: {result:?}", ctx.method());
            result
        }
    }
}

mod ready_made {
    use super::{
        greeter::{Greeter, GreeterServer},
        policy::Policy,
    };

    use std::time::Duration;
    use ttrpc::server::{PeerPolicy, ServerBuilder, Service};
    use ttrpc::{
        Server,
        interceptors::{AccessLog, Authorize, ConcurrencyLimit, Deadlines},
    };

    pub fn guarded(greeter: impl Greeter) -> ServerBuilder {
        let rules = Authorize::deny_all()
            .allow(PeerPolicy::same_user())
            .allow_service("grpc.health.v1.Health", PeerPolicy::anybody())
            .allow_method("greeter.v1.Greeter", "Chat", PeerPolicy::root());
        Server::builder()
            .observe(AccessLog::default())
            // All services and the fallback; the first one is the outermost.
            .intercept(rules)
            .intercept(Deadlines::default().default_timeout(Duration::from_secs(60)))
            // One service, inside of the server's.
            .add_service(
                GreeterServer::new(greeter).intercept(Policy).intercept(ConcurrencyLimit::new(100)),
            )
    }
}

mod client_side {
    use ttrpc::client::{Answer, Interceptor, Next, OutgoingCall};
    use ttrpc::{Client, Code, Status, async_trait};

    /// Only for methods that may be repeated.
    pub struct RetryOnce;

    #[async_trait]
    impl Interceptor for RetryOnce {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            match next.run(call).await {
                Err(status) if status.code() == Code::ResourceExhausted => next.run(call).await,
                result => result,
            }
        }
    }

    pub fn patient(client: Client) -> Client {
        client.with_interceptor(RetryOnce)
    }
}

mod observers {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use ttrpc::observer::{CallEnd, CallInfo, EndCause, Observer};

    #[derive(Default)]
    pub struct Panics(pub AtomicU64);

    impl Observer for Panics {
        fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
            if end.cause == EndCause::Panicked {
                self.0.fetch_add(1, Relaxed);
                eprintln!("{}/{} panicked after {:?}", call.service, call.method, end.duration());
            }
        }
    }
}

mod hook {
    use super::greeter::{Greeter, GreeterServer};

    use std::{error::Error, time::Duration};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use ttrpc::server::{ConnectionHook, ServerBuilder};
    use ttrpc::{Client, Connection, Context, Server, async_trait, client::ConnectOptions};

    pub struct User(pub String);
    pub struct Token;

    #[async_trait]
    impl ConnectionHook for Token {
        async fn connected(
            &self,
            connection: &mut Connection,
        ) -> Result<(), Box<dyn Error + Send + Sync>> {
            let mut token = [0; 4];
            connection.read_exact(&mut token).await?;
            let user =
                if &token == b"ann1" { "Ann" } else { return Err("an unknown token".into()) };
            connection.extensions().insert(User(user.into()));
            Ok(())
        }
    }

    pub fn with_tokens(greeter: impl Greeter) -> ServerBuilder {
        let server = Server::builder().on_connection(Token, Duration::from_secs(30));
        server.add_service(GreeterServer::new(greeter))
    }

    pub fn caller(ctx: &Context) -> Option<String> {
        Some(ctx.connection_extensions().get::<User>()?.0.clone())
    }

    pub async fn connect_as_ann(address: &str) -> Result<Client, Box<dyn Error>> {
        let options = ConnectOptions::new();
        let mut connection = options.open(address).await?;
        connection.write_all(b"ann1").await?;
        connection.flush().await?;
        Ok(options.from_connection(connection))
    }
}

/// Greets with the caller's name, panics if it is asked to, and is busy at first.
#[derive(Default)]
struct MyGreeter {
    was_busy: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        ctx: &ttrpc::Context,
        request: HelloRequest,
    ) -> Result<HelloReply, Status> {
        let is_first = !self.was_busy.swap(true, std::sync::atomic::Ordering::SeqCst);
        match &*request.name {
            "panic" => panic!("as the test asks"),
            "busy" if is_first => Err(Status::resource_exhausted("busy")),
            name => {
                let by = hook::caller(ctx).unwrap_or_default();
                Ok(HelloReply { message: format!("{name} by {by}") })
            }
        }
    }
}

/// Serves until the test ends, and returns the address.
fn serve(folder: &tempfile::TempDir, server: ServerBuilder) -> String {
    let address = format!("unix://{}", folder.path().join("greeter.sock").display());
    tokio::spawn(server.bind(&address).unwrap().serve());
    address
}

async fn say(greeter: &GreeterClient, name: &str) -> Result<String, Code> {
    let reply = greeter.say_hello(HelloRequest { name: name.into() }).await;
    reply.map(|reply| reply.message).map_err(|status| status.code())
}

#[tokio::test]
async fn calls_are_guarded_observed_and_repeated_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let panics = Arc::<observers::Panics>::default();
    let server = ready_made::guarded(MyGreeter::default()).observe(panics.clone());
    let address = serve(&folder, server);
    let client = client_side::patient(Client::connect(&address).await.unwrap());
    let greeter = GreeterClient::new(client);
    assert_eq!(say(&greeter, "busy").await.unwrap(), "busy by ");
    assert_eq!(say(&greeter, "a secret").await, Err(Code::PermissionDenied));
    assert_eq!(say(&greeter, "panic").await, Err(Code::Internal));
    let count = || panics.0.load(std::sync::atomic::Ordering::SeqCst);
    eventually("the panic is told", || count() == 1).await;
}

#[tokio::test]
async fn a_token_tells_who_calls_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let address = serve(&folder, hook::with_tokens(MyGreeter::default()));
    let ann = GreeterClient::new(hook::connect_as_ann(&address).await.unwrap());
    assert_eq!(say(&ann, "Ben").await.unwrap(), "Ben by Ann");
    // Without a token, the first bytes of the Request are taken for one.
    let nobody = GreeterClient::new(Client::connect(&address).await.unwrap());
    assert_eq!(say(&nobody, "Ben").await, Err(Code::Unavailable));
}

const PAGE: &str = include_str!("../../../../docs/guide/interceptors.md");

/// All but white space, in whatever way lines are broken.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",}", "}").replace(",)", ")")
}

#[test]
fn every_snippet_of_the_page_is_compiled() {
    let compiled = words(include_str!("page.rs"));
    let snippets = PAGE.split("```rust\n").skip(1);
    let snippets: Vec<_> = snippets.map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(snippets.len(), 5);
    for snippet in snippets {
        assert!(compiled.contains(&words(snippet)), "not compiled by this test:\n{snippet}");
    }
}
