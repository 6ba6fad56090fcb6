//! What a client's interceptor sees of its call and of the answer, and what observers are told of the same call.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use ttrpc::{
    Raw, Status, async_trait,
    client::{Answer, Interceptor, Next, OutgoingCall},
    prost::Message,
    proto::frame::Flags,
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Waits for a second, and writes down what it sees then and of the answer.
#[derive(Clone, Default)]
struct Looks(Arc<Mutex<Vec<Seen>>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    name: String,
    value: Option<String>,
    remaining: Option<Duration>,
    failure: Option<Code>,
    reply: Option<Vec<u8>>,
    /// Of a call that has ended.
    took: Option<Duration>,
}

#[async_trait]
impl Interceptor for Looks {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        sleep(SECOND).await;
        let mut seen = Seen {
            name: format!("{}/{}", call.service(), call.method()),
            value: call.metadata().get("key").map(str::to_owned),
            remaining: call.remaining(),
            ..Seen::default()
        };
        let result = next.run(call).await;
        match &result {
            Ok(answer) => {
                seen.reply = answer.reply_bytes().map(Vec::from);
                let (number, all) = (self.0.lock().unwrap().len(), self.0.clone());
                answer.on_end(move |end| all.lock().unwrap()[number].took = Some(end.duration()));
            }
            Err(status) => seen.failure = Some(status.code()),
        }
        self.0.lock().unwrap().push(seen);
        result
    }
}

impl Looks {
    fn last(&self) -> Seen {
        self.0.lock().unwrap().last().cloned().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_sees_the_call_and_its_reply() {
    let (_server, client, _) = connected_by_default();
    let looks = Looks::default();
    let client = ConformanceClient::new(client.with_interceptor(looks.clone()));
    let call = client.echo(echo_request([1, 2])).metadata("key", "value").timeout(3 * SECOND);
    let reply = call.await.unwrap().encode_to_vec();
    let seen = Seen {
        name: format!("{SERVICE}/Echo"),
        value: Some("value".to_owned()),
        remaining: Some(2 * SECOND),
        reply: Some(reply),
        ..looks.last()
    };
    assert_eq!(looks.last(), seen);

    let (_requests, _replies) = client.exchange().await.unwrap();
    let seen = Seen { name: format!("{SERVICE}/Exchange"), ..Seen::default() };
    assert_eq!(looks.last(), seen);
}

#[tokio::test(start_paused = true)]
async fn a_calls_time_begins_before_its_interceptors() {
    let (_server, client, _) = connected_by_default();
    let looks = Looks::default();
    let client = ConformanceClient::new(client.with_interceptor(looks.clone()));
    client.echo(echo_request([])).await.unwrap();
    assert_eq!(looks.last().took, Some(SECOND));
    client.echo(echo_request([])).timeout(3 * SECOND).await.unwrap();
    assert_eq!(looks.last().took, Some(SECOND), "a call with a deadline");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_interceptor_takes_all_its_time_is_not_sent() {
    let (client, _, mut peer) = played_server(ClientConfig::default());
    let looks = Looks::default();
    let conformance = ConformanceClient::new(client.clone().with_interceptor(looks.clone()));
    let late = conformance.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_eq!(looks.last().failure, Some(Code::DeadlineExceeded), "it ran on at that moment");
    client.shutdown().await;
    assert_eq!(peer.try_receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_shortens_the_deadline_gets_the_status_of_the_call() {
    struct Shortens;
    #[async_trait]
    impl Interceptor for Shortens {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            call.shorten_deadline(Instant::now() + SECOND);
            let status = next.run(call).await.expect_err("nobody answers");
            assert_eq!(status.code(), Code::DeadlineExceeded);
            Err(Status::aborted("as expected"))
        }
    }
    let (_server, client, _) = connected_by_default();
    let client = ConformanceClient::new(client.with_interceptor(Shortens));
    let call = timeout(PATIENCE, client.wait(key("a"))).await.expect("in time");
    assert_eq!(call.unwrap_err().code(), Code::Aborted);
}

/// A value that the interceptor adds to each call, and one that the observer adds.
#[derive(Clone, Default)]
struct Adds(Arc<Mutex<Vec<Event>>>);

/// What happened, and the stream's id then.
type Event = (&'static str, Option<u32>);

struct OfObserver(Option<u32>);
struct OfInterceptor;

impl Observer for Adds {
    fn call_begun(&self, call: &CallInfo<'_>) {
        call.extensions.insert(OfObserver(call.stream_id));
    }

    fn call_ended(&self, call: &CallInfo<'_>, _: &CallEnd<'_>) {
        call.extensions.get::<OfInterceptor>().expect("it was added by the interceptor");
        self.0.lock().unwrap().push(("ended", call.stream_id));
    }
}

#[async_trait]
impl Interceptor for Adds {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        let begun = call.extensions().get::<OfObserver>().expect("it was added by the observer");
        self.0.lock().unwrap().push(("begun", begun.0));
        call.extensions().insert(OfInterceptor);
        assert!(call.extensions().get::<OfInterceptor>().is_some());
        next.run(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn observers_and_interceptors_see_what_the_other_has_added_to_a_call_and_its_stream() {
    let (_server, io) = {
        let (here, there) = duplex(PIPE_LEN);
        (TestServer::start(ServerConfig::default(), [there]), here)
    };
    let adds = Adds::default();
    let client = ConnectOptions::new().observe(adds.clone());
    let client = client.from_connection(ttrpc::Connection::new(io)).with_interceptor(adds.clone());
    let client = ConformanceClient::new(client);
    client.echo(echo_request([])).await.unwrap();
    drop(client.exchange().await.unwrap());
    client.echo(echo_request([])).await.unwrap();
    let ended = |id| [("begun", None), ("ended", Some(id))];
    assert_eq!(*adds.0.lock().unwrap(), [ended(1), ended(3), ended(5)].concat());
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_is_told_of_messages_where_nobody_observes() {
    struct Listens(Arc<Mutex<Vec<u64>>>);
    #[async_trait]
    impl Interceptor for Listens {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            let told = self.0.clone();
            call.on_message(move |message| told.lock().unwrap().push(message.number));
            next.run(call).await
        }
    }
    let (_server, client, _) = connected_by_default();
    let told = Arc::<Mutex<Vec<u64>>>::default();
    let client = ConformanceClient::new(client.with_interceptor(Listens(told.clone())));
    client.echo(echo_request([])).await.unwrap();
    assert_eq!(*told.lock().unwrap(), [1, 1]);
    let (mut requests, mut replies) = client.exchange().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    replies.recv().await.unwrap().unwrap();
    assert_eq!(*told.lock().unwrap(), [1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_unary_answer_may_be_given_to_a_call_with_less_time() {
    #[derive(Clone, Default)]
    struct Keeps(Arc<Mutex<Option<Answer>>>);
    #[async_trait]
    impl Interceptor for Keeps {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: Next<'_>,
        ) -> Result<Answer, Status> {
            let kept = self.0.lock().unwrap().take();
            if let Some(kept) = kept {
                return Ok(kept);
            }
            *self.0.lock().unwrap() = Some(next.run(call).await?);
            Err(Status::aborted("its answer is kept"))
        }
    }
    let (_server, client, _) = connected_by_default();
    let client = ConformanceClient::new(client.with_interceptor(Keeps::default()));
    client.echo(echo_request([7])).await.unwrap_err();
    let reply = client.echo(echo_request([8])).timeout(SECOND).await.unwrap();
    assert_eq!(reply.payload, [7]);
}

/// Only passes calls on.
struct Passes;

#[async_trait]
impl Interceptor for Passes {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        next.run(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_when_the_connection_has_ended_is_told_with_the_reason() {
    for is_intercepted in [false, true] {
        for (is_closed_here, cause) in [(true, EndCause::Shutdown), (false, EndCause::PeerGone)] {
            let all = observed();
            match is_closed_here {
                true => all.client.close(),
                false => drop(all.server),
            }
            all.client.closed().await;
            let client = match is_intercepted {
                false => all.client.clone(),
                true => all.client.clone().with_interceptor(Passes),
            };
            let client = ConformanceClient::new(client);
            client.echo(echo_request([])).await.unwrap_err();
            all.at_client.expect("Echo", Code::Unavailable, cause).await;
            client.exchange().await.map(drop).unwrap_err();
            all.at_client.expect_of("Exchange", Code::Unavailable, cause).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_payload_of_a_request_that_opens_a_stream_is_a_message_unless_it_is_empty() {
    for (payload, messages) in [(&b""[..], 0), (b"\x08\x01", 1)] {
        let all = observed();
        let call = all.client.raw(SERVICE, "Exchange", Flags::REMOTE_OPEN, Raw::from(payload));
        let (sender, mut receiver) = call.await.unwrap();
        drop(sender);
        while !matches!(receiver.recv().await.unwrap(), ttrpc::client::RawReply::End(_)) {}
        let end = all.at_client.only_end().await;
        assert_eq!((end.traffic.messages_sent, end.cause), (messages, EndCause::Replied));
    }
}
