//! What is told of messages, to who asks for it, and of receivers that are held up.

use std::time::Duration;

use ttrpc::{
    Status, async_trait,
    client::{self, Answer, Interceptor, OutgoingCall},
    observer::{Direction, MessageInfo},
    snapshot::{ReceiverWait, Stall},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// What was told of messages, in order: the method, the direction, the number, the bytes.
type Messages = Arc<Mutex<Vec<(String, Direction, u64, usize)>>>;

#[derive(Clone, Default)]
struct MessageRecorder(Messages);

impl Observer for MessageRecorder {
    fn wants_messages(&self) -> bool {
        true
    }

    fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {
        let MessageInfo { direction, number, bytes, .. } = *message;
        self.0.lock().unwrap().push((call.method.to_owned(), direction, number, bytes));
    }
}

/// Does not ask for messages, and is told of none.
struct Unasked;

impl Observer for Unasked {
    fn message(&self, call: &CallInfo<'_>, _: &MessageInfo) {
        panic!("told of a message of {}", call.method);
    }
}

/// Observed on both sides by who asks for messages.
fn recording() -> (TestServer, ConformanceClient, [Messages; 2]) {
    let (here, there) = duplex(PIPE_LEN);
    let [at_server, at_client] = [MessageRecorder::default(), MessageRecorder::default()];
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(at_server.clone()).observe(Unasked).io(there)
    });
    let options = ConnectOptions::new().observe(at_client.clone()).observe(Unasked);
    let client = options.from_connection(ttrpc::Connection::new(here));
    (server, ConformanceClient::new(client), [at_server.0, at_client.0])
}

/// The directions and numbers of a method's messages, and their bytes in sum.
fn of(messages: &Messages, name: &str) -> (Vec<(Direction, u64)>, usize) {
    let messages = messages.lock().unwrap();
    let own = || messages.iter().filter(|(method, ..)| method == name);
    let numbers = own().map(|(_, direction, number, _)| (*direction, *number)).collect();
    (numbers, own().map(|(.., bytes)| bytes).sum())
}

#[tokio::test(start_paused = true)]
async fn messages_are_told_in_order_to_who_asks_for_them() {
    use Direction::{Received, Sent};
    let (server, conformance, [at_server, at_client]) = recording();
    conformance.echo(echo_request([7; 100])).await.unwrap();
    let request = GenerateRequest { count: 2, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    while replies.recv().await.unwrap().is_some() {}
    let (mut requests, reply) = conformance.collect().await.unwrap();
    for sequence in 0..2 {
        requests.send(chunk(sequence)).await.unwrap();
    }
    requests.finish();
    reply.await.unwrap();
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    for sequence in 0..2 {
        requests.send(chunk(sequence)).await.unwrap();
        replies.recv().await.unwrap().unwrap();
    }
    requests.finish();
    assert!(replies.recv().await.unwrap().is_none());
    server.is_idle().await;

    let cases = [
        ("Echo", vec![(Sent, 1), (Received, 1)]),
        ("Generate", vec![(Sent, 1), (Received, 1), (Received, 2)]),
        ("Collect", vec![(Sent, 1), (Sent, 2), (Received, 1)]),
        ("Exchange", vec![(Sent, 1), (Received, 1), (Sent, 2), (Received, 2)]),
    ];
    for (method, here) in cases {
        let other = |direction| if direction == Sent { Received } else { Sent };
        let there: Vec<_> =
            here.iter().map(|(direction, number)| (other(*direction), *number)).collect();
        let (seen_here, bytes_here) = of(&at_client, method);
        let (seen_there, bytes_there) = of(&at_server, method);
        assert_eq!((seen_here, seen_there), (here, there), "{method}");
        assert_eq!(bytes_here, bytes_there, "{method}");
    }
}

/// Asks for the messages of each call.
struct Listens(MessageRecorder);

#[async_trait]
impl Interceptor for Listens {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        let (messages, method) = (self.0.0.clone(), call.method().to_owned());
        assert_eq!(call.is_stream(), method != "Echo");
        call.on_message(move |message| {
            let MessageInfo { direction, number, bytes, .. } = *message;
            messages.lock().unwrap().push((method.clone(), direction, number, bytes));
        });
        next.run(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_is_told_of_the_messages_of_its_call() {
    use Direction::{Received, Sent};
    let all = observed();
    let recorder = MessageRecorder::default();
    let client = all.client.clone().with_interceptor(Listens(recorder.clone()));
    let conformance = ConformanceClient::new(client);
    conformance.echo(echo_request([])).await.unwrap();
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    replies.recv().await.unwrap().unwrap();
    requests.finish();
    assert!(replies.recv().await.unwrap().is_none());
    for method in ["Echo", "Exchange"] {
        assert_eq!(of(&recorder.0, method).0, [(Sent, 1), (Received, 1)], "{method}");
    }
}

/// Notes how calls end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<(EndCause, Traffic)>>>);

#[async_trait]
impl Interceptor for Ends {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        let answer = next.run(call).await?;
        let ends = self.0.clone();
        answer.on_end(move |end| ends.lock().unwrap().push((end.cause, end.traffic)));
        Ok(answer)
    }
}

/// A unary call that nobody observes says all the same how it has ended.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_call_that_nobody_observes_is_told_to_its_interceptor() {
    let (server, client, _) = connected_by_default();
    let ends = Ends::default();
    let conformance = ConformanceClient::new(client.with_interceptor(ends.clone()));
    conformance.echo(echo_request([7; 100])).await.unwrap();
    server.is_idle().await;

    let observed = observed();
    observed.conformance.echo(echo_request([7; 100])).await.unwrap();
    let traffic = observed.at_client.only_end().await.traffic;
    assert_eq!(*ends.0.lock().unwrap(), [(EndCause::Replied, traffic)]);
}

/// Also where the reply is no message of the method's, or is not taken; with an observer and without.
#[tokio::test(start_paused = true)]
async fn an_interceptor_is_told_the_end_that_the_caller_sees() {
    /// Throws the answer away.
    struct Drops;
    #[async_trait]
    impl Interceptor for Drops {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            drop(next.run(call).await?);
            Err(Status::aborted("no"))
        }
    }
    let (_server, client, _) = connected_by_default();
    let observed = observed();
    for client in [client, observed.client.clone()] {
        let (first, second) = (Ends::default(), Ends::default());
        let client = client.with_interceptor(first.clone()).with_interceptor(second.clone());
        // The reply is a string.
        let call = client.unary::<_, u64>(SERVICE, "Echo", echo_request([7; 100]));
        assert_eq!(call.await.unwrap_err().code(), Code::Internal);
        for ends in [first, second] {
            let causes: Vec<_> = ends.0.lock().unwrap().iter().map(|(cause, _)| *cause).collect();
            assert_eq!(causes, [EndCause::ProtocolViolation]);
        }
    }
    let (_server, client, _) = connected_by_default();
    let ends = Ends::default();
    let client = client.with_interceptor(Drops).with_interceptor(ends.clone());
    let call = ConformanceClient::new(client).echo(echo_request([]));
    assert_eq!(call.await.unwrap_err().code(), Code::Aborted);
    assert_eq!(ends.0.lock().unwrap().len(), 1);
    assert_eq!(ends.0.lock().unwrap()[0].0, EndCause::Replied);
}

/// By what receivers were held up, and for how long.
#[derive(Clone, Default)]
struct Stalls(Arc<Mutex<Vec<Stall>>>);

impl Observer for Stalls {
    fn receiver_stalled(&self, _: &ConnectionInfo<'_>, stall: &Stall) {
        self.0.lock().unwrap().push(*stall);
    }
}

impl Stalls {
    async fn only(&self) -> Stall {
        eventually("a stall is told", || !self.0.lock().unwrap().is_empty()).await;
        settle().await;
        let stalls = self.0.lock().unwrap();
        assert_eq!(stalls.len(), 1, "{stalls:?}");
        stalls[0]
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_was_held_up_is_told_with_its_cause() {
    let (config, stalls) = (ServerConfig::default(), Stalls::default());
    let config = config.max_calls_per_connection(1).stall_timeout(60 * SECOND);
    let observe = stalls.clone();
    let all = observed_with(config, ClientConfig::default(), |builder| builder.observe(observe));
    let first = tokio::spawn(all.conformance.wait(key("a")).into_future());
    all.server.has_begun(1).await;
    let second = tokio::spawn(all.conformance.echo(echo_request([])).into_future());
    tokio::time::sleep(SECOND).await;
    assert!(stalls.0.lock().unwrap().is_empty());
    all.server.service.release("a");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let Stall { by, duration, .. } = stalls.only().await;
    assert_eq!(by, ReceiverWait::Admission);
    assert!(duration >= SECOND / 2 && duration < 2 * SECOND, "{duration:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clients_receiver_that_was_held_up_is_told() {
    let stalls = Stalls::default();
    let (here, there) = duplex(PIPE_LEN);
    let _server = TestServer::start_with(ServerConfig::default(), |builder| builder.io(there));
    let config = ClientConfig::default().stream_inbox_messages(2).stall_timeout(60 * SECOND);
    let options = ConnectOptions::new().config(config).observe(stalls.clone());
    let conformance = ConformanceClient::new(options.from_connection(ttrpc::Connection::new(here)));
    let request = GenerateRequest { count: 3, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    tokio::time::sleep(SECOND).await;
    while replies.recv().await.unwrap().is_some() {}
    let Stall { by, duration, .. } = stalls.only().await;
    assert!(matches!(by, ReceiverWait::Stream(_)), "{by:?}");
    assert!(duration >= SECOND / 2 && duration < 2 * SECOND, "{duration:?}");
}
