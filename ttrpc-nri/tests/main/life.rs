//! How a plugin starts, connects again and ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::duplex,
    net::{UnixListener, UnixStream},
    sync::Notify,
};
use ttrpc::{Code, Connection};
use ttrpc_nri::{
    Backoff, Container, Error, PodSandbox, Stub,
    mux::{ConnId, Mux, MuxConfig},
    proto,
    testing::{self, Setup},
};

use crate::{
    hand::accept,
    plugins::{All, Starts},
    raw::Raw,
};

#[tokio::test(start_paused = true)]
async fn synchronize_in_parts_reaches_the_plugin_whole() {
    let all = All::default();
    let log = all.log.clone();
    let container = Container { args: vec!["x".repeat(1000)], ..Container::named("c") };
    let setup = Setup::default().state(vec![PodSandbox::named("p"); 100], vec![container; 10_000]);
    let runtime = setup.start(all).await.expect("it starts");
    assert_eq!(log.take()[1..], ["synchronize 100 10000"]);
    assert_eq!(runtime.synchronized().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_refuses_its_configuration_ends_with_the_reason() {
    let error =
        Setup::default().config("refuse").start(All::default()).await.expect_err("it refuses");
    let Error::Configure(status) = error else { panic!("{error}") };
    assert_eq!(status.message(), "a bad configuration");
}

#[tokio::test(start_paused = true)]
async fn the_reason_of_the_end_is_kept() {
    let runtime = testing::Runtime::start(Starts).await;
    let error = runtime.disconnect().await.expect_err("nobody asked it to end");
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
}

#[tokio::test]
async fn a_runtime_refuses_an_invalid_identity_and_the_plugin_says_so() {
    let error = Stub::new(Starts).name("a b").index("10").run().await.expect_err("it is invalid");
    assert!(matches!(error, Error::Identity { .. }), "{error}");
    // One that a plugin of another kind could send.
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (_mux, [_served, called]) = Mux::start(here, MuxConfig::default(), ids);
    let client = ttrpc::Client::from_connection(called, ttrpc::ClientConfig::default());
    let client = proto::RuntimeClient::new(client);
    let request = proto::RegisterPluginRequest {
        plugin_name: "a b".into(),
        plugin_idx: "10".into(),
        ..Default::default()
    };
    let (accepted, refused) = tokio::join!(accept(there), client.register_plugin(request));
    assert!(matches!(accepted.expect_err("it is invalid"), Error::Identity { .. }));
    // The reply may be lost with the connection.
    assert!(matches!(
        refused.expect_err("it is invalid").code(),
        Code::InvalidArgument | Code::Unavailable
    ));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_register_in_time_is_given_up() {
    let (here, _there) = duplex(100);
    let error = accept(Connection::new(here)).await.expect_err("nobody registers");
    let Error::Register { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_peer_that_is_no_plugin_is_refused_with_the_reason() {
    let (connection, mut peer) = Raw::new();
    peer.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let error = accept(connection).await.expect_err("it is no plugin").to_string();
    assert!(error.contains("the peer is no NRI multiplexer"), "{error}");
}

#[tokio::test]
async fn an_external_plugin_connects_again_and_is_told_the_state_anew() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let all = All::default();
    let log = all.log.clone();
    let ends = Arc::new(AtomicUsize::new(0));
    let (counted, stop) = (ends.clone(), Arc::new(Notify::new()));
    let stub = Stub::new(all)
        .name("external")
        .index("42")
        .socket(path.to_str().expect("it is text"))
        .reconnect(Backoff::new().longest(Duration::from_millis(20)))
        .on_close(move |why| {
            assert!(matches!(why, Error::Connect { .. } | Error::Disconnected(_)), "{why}");
            counted.fetch_add(1, Ordering::SeqCst);
        });
    let stopped = stop.clone();
    let plugin = tokio::spawn(stub.run_until(async move { stopped.notified().await }));
    for _ in 0..3 {
        let listener = UnixListener::bind(&path).expect("nobody listens there");
        let (stream, _) = listener.accept().await.expect("the plugin connects");
        let connection = accept(stream).await.expect("it registers");
        assert_eq!(connection.id().to_string(), "42-external");
        connection.synchronize(&[PodSandbox::named("p")], &[]).await.expect("it is synchronized");
        assert_eq!(log.take(), ["configure  test v0.12.5", "synchronize 1 0"]);
        // The runtime ends.
        std::fs::remove_file(&path).expect("it is there");
    }
    let listener = UnixListener::bind(&path).expect("nobody listens there");
    let (stream, _) = listener.accept().await.expect("the plugin connects");
    let _connection = accept(stream).await.expect("it registers");
    stop.notify_one();
    plugin.await.expect("it does not panic").expect("it was asked to end");
    assert!(ends.load(Ordering::SeqCst) >= 3);
}

#[tokio::test]
async fn a_plugin_gives_up_as_its_backoff_says() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let stub = Stub::new(Starts)
        .name("a")
        .index("10")
        .socket(path.to_str().expect("it is text"))
        .reconnect(Backoff::new().first(Duration::ZERO).max_attempts(3))
        .on_close(move |_| _ = counted.fetch_add(1, Ordering::SeqCst));
    let error = stub.run().await.expect_err("nobody listens");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn without_reconnection_a_plugin_ends_with_the_reason() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let stub =
        || Stub::new(Starts).name("a").index("10").socket(path.to_str().expect("it is text"));
    let error = stub().run().await.expect_err("nobody listens");
    assert!(error.to_string().contains("is NRI enabled there?"), "{error}");
    let listener = UnixListener::bind(&path).expect("nobody listens there");
    let plugin = tokio::spawn(stub().run());
    let (stream, _) = listener.accept().await.expect("the plugin connects");
    accept(stream).await.expect("it registers").close();
    let error = plugin.await.expect("it does not panic").expect_err("nobody asked it to end");
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
}
