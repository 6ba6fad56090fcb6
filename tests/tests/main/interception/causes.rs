//! Each cause of an end, for each kind of call: both sides' observers are told of exactly one end, with
//! exactly that cause.

use std::future::pending;

use ttrpc::{
    Context, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    server::{Interceptor, Next, Routes, StreamReceiver, StreamSender},
};
use ttrpc_tests::wire::{self, Peer};

use super::*;

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// The service's method is the kind of its calls.
const KINDS: [&str; 4] = ["Unary", "Replies", "Requests", "Both"];

const NAME: &str = "test.Causes";

type Message = Vec<u8>;

/// What the handlers of the service do.
#[derive(Clone, Copy)]
enum Does {
    Replies,
    Fails,
    SaysThatItIsLate,
    Panics,
    Waits,
}

impl Does {
    async fn act(self) -> Result<(), Status> {
        match self {
            Does::Replies => Ok(()),
            Does::Fails => Err(Status::not_found("gone")),
            Does::SaysThatItIsLate => Err(Status::deadline_exceeded("late")),
            Does::Panics => panic!("as the test asks"),
            Does::Waits => pending().await,
        }
    }
}

fn service(does: Does) -> Routes {
    let does = Arc::new(does);
    Routes::new(NAME)
        .unary("Unary", &does, |does, _, _: Message| {
            Box::pin(async { does.act().await.map(|()| Message::new()) })
        })
        .server_streaming("Replies", &does, |does, _, _: Message, _: StreamSender<Message>| {
            Box::pin(does.act())
        })
        .client_streaming("Requests", &does, |does, _, _: StreamReceiver<Message>| {
            Box::pin(async { does.act().await.map(|()| Message::new()) })
        })
        .bidi_streaming(
            "Both",
            &does,
            |does, _, _: StreamReceiver<Message>, _: StreamSender<Message>| Box::pin(does.act()),
        )
        .unary("Hold", &does, |_, _, _: Message| Box::pin(pending::<Result<Message, Status>>()))
}

/// A server of the service, and a client, both observed.
fn serving(does: Does) -> Observed {
    limited(does, ServerConfig::default(), ClientConfig::default())
}

fn limited(does: Does, server: ServerConfig, client: ClientConfig) -> Observed {
    observed_with(server, client, |builder| builder.add_service(Handmade(service(does))))
}

/// Makes a call to its end.
async fn call(client: Client, kind: &'static str, request: Message) -> Status {
    let end = async {
        match kind {
            "Replies" => {
                let replies = client.server_streaming::<_, Message>(NAME, kind, request);
                replies.await?.recv().await.map(drop)
            }
            "Requests" => {
                let call = client.client_streaming::<Message, Message>(NAME, kind);
                let (_requests, reply) = call.await?;
                reply.await.map(drop)
            }
            "Both" => {
                let call = client.bidi_streaming::<Message, Message>(NAME, kind);
                let (_requests, mut replies) = call.await?;
                replies.recv().await.map(drop)
            }
            _ => client.unary::<_, Message>(NAME, kind, request).await.map(drop),
        }
    };
    end.await.err().unwrap_or_else(|| Status::new(Code::Ok, ""))
}

/// The same with a time limit.
fn in_time(client: &Client) -> Client {
    client.clone().with_timeout(SECOND)
}

impl Observed {
    async fn expect(
        &self,
        kind: &str,
        at_server: Option<(Code, EndCause)>,
        at_client: (Code, EndCause),
    ) {
        self.at_client.expect_of(kind, at_client.0, at_client.1).await;
        match at_server {
            Some((code, cause)) => self.at_server.expect_of(kind, code, cause).await,
            None => {
                settle().await;
                let is_told = |told: &Told| told.begun.iter().any(|method| method == kind);
                assert!(!self.at_server.told(is_told), "a server was told of {kind}");
            }
        }
        for recorder in [&self.at_server, &self.at_client] {
            recorder.told(|told| {
                let begun = told.begun.iter().filter(|method| *method == kind).count();
                let ended = told.ends.iter().filter(|end| end.method == kind).count();
                assert_eq!(begun, ended, "{kind}: {told:?}");
            });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_handlers_do_is_told_by_both_sides() {
    use EndCause::{DeadlineAtPeer, Failed, Panicked, Replied};
    let cases = [
        (Does::Replies, (Code::Ok, Replied), (Code::Ok, Replied)),
        (Does::Fails, (Code::NotFound, Failed), (Code::NotFound, Failed)),
        (
            Does::SaysThatItIsLate,
            (Code::DeadlineExceeded, Failed),
            (Code::DeadlineExceeded, DeadlineAtPeer),
        ),
        (Does::Panics, (Code::Internal, Panicked), (Code::Internal, Failed)),
    ];
    for (does, at_server, at_client) in cases {
        for kind in KINDS {
            let all = serving(does);
            let status = call(all.client.clone(), kind, Message::new()).await;
            assert_eq!(status.code(), at_client.0, "{kind}: {status}");
            all.expect(kind, Some(at_server), at_client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_is_told_by_both_sides() {
    let late = (Code::DeadlineExceeded, EndCause::DeadlineHere);
    for kind in KINDS {
        let all = serving(Does::Waits);
        call(in_time(&all.client), kind, Message::new()).await;
        all.expect(kind, Some(late), late).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_or_loses_its_connection_is_told_by_both_sides() {
    use EndCause::{GivenUp, PeerGone, Shutdown};
    for kind in KINDS {
        for what in ["drop", "close here", "close there"] {
            let all = serving(Does::Waits);
            let pending = tokio::spawn(call(all.client.clone(), kind, Message::new()));
            let is_in_flight = || all.server.handle.calls_in_flight() == 1;
            eventually("the handler waits", is_in_flight).await;
            let (at_server, at_client) = match what {
                "drop" => {
                    pending.abort();
                    // The server hears nothing of it until the connection is closed.
                    all.at_client.expect(kind, Code::Cancelled, GivenUp).await;
                    all.client.close();
                    ((Code::Cancelled, PeerGone), (Code::Cancelled, GivenUp))
                }
                "close here" => {
                    all.client.close();
                    ((Code::Cancelled, PeerGone), (Code::Unavailable, Shutdown))
                }
                _ => {
                    all.server.handle.close().await;
                    ((Code::Cancelled, Shutdown), (Code::Unavailable, PeerGone))
                }
            };
            let _ = pending.await;
            all.expect(kind, Some(at_server), at_client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_told_by_the_side_whose_it_is() {
    let (exhausted, limit) = (Code::ResourceExhausted, EndCause::Limit);
    for kind in KINDS {
        for is_servers in [true, false] {
            let server = ServerConfig { stall_timeout: SECOND, ..ServerConfig::default() };
            let client = ClientConfig::default();
            let all = match is_servers {
                true => limited(Does::Replies, server.max_calls_per_connection(1), client),
                false => limited(Does::Replies, server, client.max_calls(1).stall_timeout(SECOND)),
            };
            let hold = tokio::spawn(call(all.client.clone(), "Hold", Message::new()));
            eventually("it holds", || all.server.handle.calls_in_flight() == 1).await;
            let status = call(all.client.clone(), kind, Message::new()).await;
            assert_eq!(status.code(), exhausted, "{kind}: {status}");
            match is_servers {
                true => {
                    let failed = (exhausted, EndCause::Failed);
                    all.expect(kind, Some((exhausted, limit)), failed).await;
                }
                false => all.expect(kind, None, (exhausted, limit)).await,
            }
            hold.abort();
        }
    }
}

/// Refuses every call.
struct Refuses;

#[async_trait]
impl Interceptor for Refuses {
    async fn intercept(&self, _: &mut Context, _: Next<'_>) -> Result<(), Status> {
        Err(Status::permission_denied("no"))
    }
}

#[async_trait]
impl client::Interceptor for Refuses {
    async fn intercept(&self, _: &mut OutgoingCall, _: client::Next<'_>) -> Result<Answer, Status> {
        Err(Status::permission_denied("no"))
    }
}

/// Such a call is seen, and holds nothing when it is over. Its handler, which would panic, never runs.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_by_the_side_whose_interceptor_it_was() {
    let (denied, refused) = (Code::PermissionDenied, EndCause::Refused);
    for kind in KINDS {
        let config = ServerConfig::default().max_calls_per_connection(1);
        let all = observed_with(config, ClientConfig::default(), |builder| {
            builder.add_service(Handmade(service(Does::Panics))).intercept(Refuses)
        });
        let status = call(all.client.clone(), kind, Message::new()).await;
        assert_eq!(status.code(), denied, "{kind}: {status}");
        all.expect(kind, Some((denied, refused)), (denied, EndCause::Failed)).await;
        all.server.is_idle().await;
        assert_eq!(call(all.client.clone(), "Hold", Message::new()).await.code(), denied);

        let all = serving(Does::Panics);
        let client = all.client.clone().with_interceptor(Refuses);
        assert_eq!(call(client, kind, Message::new()).await.code(), denied);
        all.expect(kind, None, (denied, refused)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_that_does_not_exist_is_told_by_both_sides() {
    let code = Code::Unimplemented;
    for kind in KINDS {
        let all = observed();
        assert_eq!(call(all.client.clone(), kind, Message::new()).await.code(), code);
        all.expect(kind, Some((code, EndCause::Unimplemented)), (code, EndCause::Failed)).await;
    }
}

/// A request that does not decode, and frames behind the end of a client's stream. What a server does
/// wrong is in `observers`.
#[tokio::test(start_paused = true)]
async fn a_clients_violation_is_told_by_the_server() {
    for kind in KINDS {
        let recorder = Recorder::default();
        let (here, there) = duplex(PIPE_LEN);
        let _server = TestServer::start_with(ServerConfig::default(), |builder| {
            let service = Handmade(service(Does::Waits));
            builder.observe(recorder.clone()).add_service(service).io(there)
        });
        let mut peer = Peer::new(here);
        let (flags, payload) = match kind {
            "Unary" => (0, vec![0xff; 3]),
            "Replies" => (1, vec![0xff; 3]),
            _ => (2, Vec::new()),
        };
        let (service, method) = (NAME.to_owned(), kind.to_owned());
        let request = wire::Request { service, method, payload, ..Default::default() };
        let request = ttrpc::prost::Message::encode_to_vec(&request);
        peer.send(wire::Frame::new(1, 1, flags, request)).await;
        if flags == 2 {
            peer.send(wire::Frame::new(1, 3, 1 | 4, [0; 0])).await;
            peer.send(wire::Frame::new(1, 3, 0, [0; 0])).await;
        }
        assert_eq!(peer.receive().await.code(), code::INVALID_ARGUMENT);
        recorder.expect(kind, Code::InvalidArgument, EndCause::ProtocolViolation).await;
    }
}
