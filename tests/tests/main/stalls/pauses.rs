//! A client that does not read for longer than any stall timeout: handlers that stand still because of
//! it do not stand still by themselves, so nothing is refused and nothing is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncWriteExt, duplex},
    sync::Semaphore,
    time::sleep,
};
use ttrpc::{
    ClientConfig, Server, ServerConfig,
    server::{Routes, StreamReceiver, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, Peer, REMOTE_CLOSED, REMOTE_OPEN, RESPONSE, Watchdog},
};

/// More than the pipes of these tests hold.
const LARGE: usize = 100 << 10;

#[tokio::test(start_paused = true)]
async fn no_call_is_refused_for_a_pause_in_which_the_client_did_not_read() {
    // Handlers fill the limit and wait for room; that they stand still is the client's doing.
    let config = ServerConfig::default()
        .max_calls_per_connection(4)
        .send_queue_frames(1)
        .stream_inbox_messages(2);
    let (server, mut peer) = played_client_over(config, 64 << 10);
    let large = EchoRequest { payload: Vec::new(), response_size: LARGE as u32 };
    for index in 0..40 {
        peer.send(call(2 * index + 1, "Echo", &large)).await;
    }
    sleep(PAUSE).await;
    for _ in 0..40 {
        let answer = peer.receive().await;
        assert_eq!(answer.code(), 0);
        sleep(PAUSE / 4).await;
    }
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn no_stream_is_failed_for_a_pause_in_which_the_client_did_not_read() {
    const MESSAGES: u64 = 40;
    let config = ServerConfig::default().send_queue_frames(1).stream_inbox_messages(2);
    let (server, peer) = played_client_over(config, 1000);
    let messages = (0..MESSAGES).map(|sequence| {
        let payload = vec![0; LARGE];
        Frame::message(1, &Chunk { sequence, payload }).to_bytes()
    });
    let opening = open_stream(1, "Exchange").to_bytes();
    let wire: Vec<u8> = opening.into_iter().chain(messages.flatten()).collect();
    let mut io = peer.into_inner();
    let taken = write_until_blocked(&mut io, &wire).await;
    assert!(taken < 10 * LARGE, "{taken} bytes were taken");
    let (mut reader, mut writer) = tokio::io::split(io);
    let writing = tokio::spawn(async move {
        writer.write_all(&wire[taken..]).await.expect("the server reads on");
        writer.write_all(&Frame::end(1).to_bytes()).await.expect("the server reads on");
        writer
    });
    for sequence in 0..MESSAGES {
        let (_, data) = read_frame(&mut reader).await;
        assert_eq!(Chunk::decode_from(&data).sequence, sequence);
        sleep(PAUSE / 4).await;
    }
    assert_eq!(read_frame(&mut reader).await, (1, Vec::new()));
    writing.await.unwrap();
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn no_call_is_refused_while_the_handlers_before_it_wait_for_the_client_to_read() {
    let config = ServerConfig::default().max_calls_per_connection(1).send_queue_frames(1);
    let (server, mut peer) = played_client(config);
    let request = GenerateRequest { count: 5, size: LARGE as u32, ..GenerateRequest::default() };
    let generate = Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &request).to_bytes();
    // The second call arrives with the first, and so before the queue is full.
    let echo = call(3, "Echo", &echo_request([])).to_bytes();
    peer.send_bytes(&[generate, echo].concat()).await;
    sleep(PAUSE).await;
    for sequence in 0..5 {
        let message = peer.receive().await;
        assert_eq!((message.id, message.kind), (1, DATA));
        assert_eq!(Chunk::decode_from(&message.data).sequence, sequence);
        sleep(PAUSE).await;
    }
    assert_eq!(peer.receive().await, Frame::end(1));
    let answer = peer.receive().await;
    assert_eq!((answer.id, answer.code()), (3, 0));
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn no_stream_is_failed_while_its_handler_waits_for_the_client_to_read() {
    let routes = Routes::new("test.SendFirst").bidi_streaming(
        "Exchange",
        &Arc::new(()),
        |_, _ctx, mut requests: StreamReceiver<Chunk>, mut replies: StreamSender<Chunk>| {
            Box::pin(async move {
                for sequence in 0..5 {
                    replies.send(Chunk { sequence, payload: vec![0; LARGE] }).await?;
                }
                let mut last = chunk(0);
                while let Some(request) = requests.recv().await? {
                    last = request;
                }
                replies.send(last).await
            })
        },
    );
    let config = ServerConfig::default().stream_inbox_messages(2).send_queue_frames(1);
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().config(config).add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    let opening = Frame::request(1, REMOTE_OPEN, "test.SendFirst", "Exchange", &Empty {});
    let messages = (0..5).map(|sequence| Frame::message(1, &chunk(sequence)));
    let frames = [opening].into_iter().chain(messages).chain([Frame::end(1)]);
    // All of them arrive at once, and so before the queue is full.
    peer.send_bytes(&frames.flat_map(|frame| frame.to_bytes()).collect::<Vec<_>>()).await;
    sleep(PAUSE).await;
    for _ in 0..5 {
        assert_eq!(peer.receive().await.kind, DATA);
        sleep(PAUSE).await;
    }
    assert_eq!(peer.receive().await, Frame::message(1, &chunk(4)), "nothing is lost");
    assert_eq!(peer.receive().await, Frame::end(1));
    serving.abort();
}

/// The client reads, and the handler takes no message since it waits for room, or for its turn to go on, behind others.
#[tokio::test(start_paused = true)]
async fn no_stream_is_failed_while_its_handler_waits_behind_long_replies_that_are_read_slowly() {
    const LONG: usize = 1 << 20;
    const CALLS: u32 = 20;
    // With room for one reply that waits the handler waits for its turn, and with room for all its message waits.
    let _watchdog = Watchdog::default();
    for replies in [1, 100] {
        let handlers = Arc::new((AtomicUsize::new(0), Semaphore::new(0)));
        async fn wait((begun, go_on): &(AtomicUsize, Semaphore)) {
            begun.fetch_add(1, SeqCst);
            go_on.acquire().await.expect("it is never closed").forget();
        }
        let routes = Routes::new(SERVICE)
            .unary("Reply", &handlers, |handlers, _ctx, _: Empty| {
                Box::pin(async move {
                    wait(handlers).await;
                    Ok(Chunk { payload: vec![0; LONG], ..chunk(0) })
                })
            })
            .bidi_streaming(
                "Exchange",
                &handlers,
                |handlers, _ctx, mut requests: StreamReceiver<Chunk>, mut replies| {
                    Box::pin(async move {
                        wait(handlers).await;
                        replies.send(Chunk { payload: vec![0; LONG], ..chunk(0) }).await?;
                        while let Some(request) = requests.recv().await? {
                            replies.send(request).await?;
                        }
                        Ok(())
                    })
                },
            );
        let config = ServerConfig::default()
            .send_queue_bytes(LONG + 100)
            .reply_bytes_per_connection(replies * LONG)
            .stream_inbox_messages(1);
        let (here, there) = duplex(4096);
        let server = Server::builder().config(config).add_service(Handmade(routes)).io(there);
        let serving = tokio::spawn(server.serve());
        let mut peer = Peer::new(here);
        for nth in 0..CALLS {
            peer.send(call(2 * nth + 1, "Reply", &Empty {})).await;
        }
        let id = 2 * CALLS + 1;
        peer.send(open_stream(id, "Exchange")).await;
        let all = CALLS as usize + 1;
        eventually("the handlers begin", || handlers.0.load(SeqCst) == all).await;
        handlers.1.add_permits(all);
        settle().await;
        let (mut reader, mut writer) = tokio::io::split(peer.into_inner());
        let messages = (0..3).map(|nth| Frame::message(id, &chunk(nth)));
        let wire: Vec<_> =
            messages.chain([Frame::end(id)]).flat_map(|frame| frame.to_bytes()).collect();
        let writing = tokio::spawn(async move {
            writer.write_all(&wire).await.expect("the server reads on");
            writer
        });
        if replies > 1 {
            // Where that loses no reply, it does not read at all first. Its slow reading has its own time.
            sleep(PAUSE).await;
        }
        let mut of_stream = Vec::new();
        for _ in 0..CALLS + 5 {
            sleep(Duration::from_millis(200)).await;
            let (of, data) = read_frame(&mut reader).await;
            if of == id {
                of_stream.push(data);
            } else {
                assert_eq!(Frame::new(of, RESPONSE, 0, data).code(), 0);
            }
        }
        let last = of_stream.pop();
        assert_eq!(last, Some(Vec::new()), "the stream ends well");
        assert_eq!(of_stream.len(), 4, "and nothing is lost");
        drop(writing.await);
        serving.abort();
    }
}

/// That no call ends is the server's doing, which does not read.
#[tokio::test(start_paused = true)]
async fn no_call_is_refused_while_it_waits_for_its_place_and_the_server_does_not_read() {
    let config = ClientConfig { max_calls: 1, send_queue_frames: 1, ..ClientConfig::default() };
    let (_client, conformance, mut peer) = played_server_over(config, 16);
    let calls = [(); 2].map(|()| tokio::spawn(conformance.echo(echo_request([])).into_future()));
    sleep(PAUSE).await;
    for call in calls {
        answer_echo(&mut peer).await;
        call.await.unwrap().unwrap();
    }
}
