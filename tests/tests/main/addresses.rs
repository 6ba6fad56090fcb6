//! Where servers listen: addresses, files in the way, and what becomes of the socket file.

use std::{
    fs,
    os::unix::net::UnixListener,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use ttrpc::{Client, Error};
use ttrpc_tests::{
    conformance::*,
    harness::{Handmade, PATIENCE, echo_request, eventually},
    service::ConformanceService,
};

/// A folder of a test's own, removed at its end.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a folder can be made"))
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("the path is UTF-8").to_owned()
    }
}

fn bind_error(address: &str) -> Error {
    ConformanceService::builder().bind(address).expect_err("the address cannot be bound")
}

/// Leaves the socket file of a server that is dead.
fn leave_stale_socket(path: &str) {
    drop(UnixListener::bind(path).expect("the path is free"));
}

async fn expect_service_at(address: &str) {
    let client = Client::connect(address).await.expect("a server listens");
    let client = ConformanceClient::new(client);
    client.echo(echo_request([])).await.expect("the server answers");
}

#[tokio::test]
async fn every_form_of_address_is_served_by_one_server() {
    let folder = Folder::new();
    let (path, url) = (folder.file("path.sock"), format!("unix://{}", folder.file("url.sock")));
    let abstract_name = format!("unix://@ttrpc-test-{}", std::process::id());
    let server = ConformanceService::builder()
        .bind(&path)
        .unwrap()
        .bind(&url)
        .unwrap()
        .bind(&abstract_name)
        .unwrap();
    let serving = tokio::spawn(server.serve());
    expect_service_at(&format!("unix://{path}")).await;
    expect_service_at(&url).await;
    expect_service_at(&abstract_name).await;
    serving.abort();
    let _ = serving.await;
    for address in [path, url, abstract_name] {
        let error = Client::connect(&address).await.expect_err("nobody listens any more");
        assert!(error.to_string().contains(&address), "{error}");
        assert!(matches!(error, Error::Connect { .. }));
    }
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0, "the socket files are removed");
}

#[tokio::test]
async fn the_socket_file_of_a_dead_server_is_replaced() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    leave_stale_socket(&path);
    let server = ConformanceService::builder().bind(&path).expect("nobody is alive there");
    let serving = tokio::spawn(server.serve());
    expect_service_at(&path).await;
    serving.abort();
}

#[tokio::test]
async fn the_socket_of_a_living_server_is_left_alone() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let living = tokio::spawn(ConformanceService::builder().bind(&path).unwrap().serve());
    let error = bind_error(&path);
    assert!(matches!(error, Error::AddressInUse { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&path) && text.contains("another server is listening"), "{text}");
    expect_service_at(&path).await;
    living.abort();
}

#[test]
fn the_socket_of_a_server_that_accepts_nothing_is_left_alone() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    // Connections that nobody accepts fill the backlog; the server is alive all the same.
    for _ in 0..3 {
        assert!(matches!(bind_error(&path), Error::AddressInUse { .. }));
    }
}

#[tokio::test]
async fn an_abstract_name_is_used_once() {
    let address = format!("unix://@ttrpc-once-{}", std::process::id());
    let first = ConformanceService::builder().bind(&address).unwrap();
    let error = bind_error(&address);
    assert!(matches!(error, Error::AddressInUse { .. }), "{error:?}");
    assert!(error.to_string().contains(&address));
    drop(first);
    drop(ConformanceService::builder().bind(&address).expect("it is free again"));
}

#[test]
fn what_is_no_socket_is_left_alone_and_named() {
    let folder = Folder::new();
    let (file, subfolder) = (folder.file("notes.txt"), folder.file("folder"));
    fs::write(&file, "precious").unwrap();
    fs::create_dir(&subfolder).unwrap();
    for path in [&file, &subfolder] {
        let error = bind_error(path);
        assert!(matches!(error, Error::NotASocket { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(path) && text.contains("not a socket"), "{text}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn a_missing_folder_is_named_with_what_the_system_said() {
    let folder = Folder::new();
    let path = folder.file("nowhere/a.sock");
    let error = bind_error(&path);
    assert!(matches!(error, Error::Bind { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&path) && text.contains("No such file or directory"), "{text}");
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
}

#[test]
fn a_path_that_is_too_long_is_named_with_the_limit() {
    let folder = Folder::new();
    let path = folder.file(&"x".repeat(108));
    let error = bind_error(&path);
    assert!(matches!(error, Error::Address { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&path) && text.contains("107 bytes"), "{text}");
}

#[tokio::test]
async fn the_longest_path_can_be_served_and_called() {
    let folder = Folder::new();
    let path = folder.file("");
    let path = format!("{path}{}", "x".repeat(107 - path.len()));
    let serving = tokio::spawn(ConformanceService::builder().bind(&path).unwrap().serve());
    expect_service_at(&path).await;
    serving.abort();
}

#[test]
fn a_builder_that_fails_half_way_leaves_no_socket_file() {
    let folder = Folder::new();
    let error = ConformanceService::builder()
        .bind(&folder.file("a.sock"))
        .unwrap()
        .bind("http://1.2.3.4")
        .unwrap_err();
    assert!(error.to_string().contains("http://1.2.3.4"));
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_socket_file_that_another_server_has_put_in_place_is_not_removed() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let first = ConformanceService::builder().bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = tokio::spawn(ConformanceService::builder().bind(&path).unwrap().serve());
    drop(first);
    expect_service_at(&path).await;
    second.abort();
}

#[test]
fn of_servers_that_start_at_once_on_a_stale_socket_exactly_one_gets_it() {
    const SERVERS: usize = 4;
    let folder = Folder::new();
    for round in 0..200 {
        let path = folder.file(&format!("{round}.sock"));
        leave_stale_socket(&path);
        let begin = Instant::now();
        let barrier = Arc::new(Barrier::new(SERVERS));
        let start = |_| {
            let (path, barrier) = (path.clone(), barrier.clone());
            thread::spawn(move || {
                barrier.wait();
                ConformanceService::builder().bind(&path)
            })
        };
        let starting: Vec<_> = (0..SERVERS).map(start).collect();
        let bound: Vec<_> = starting.into_iter().map(|thread| thread.join().unwrap()).collect();
        // A server that the machine does not run keeps the folder's lock, and the others wait for it no longer than that.
        if begin.elapsed() >= Duration::from_secs(1) {
            continue;
        }
        let winners = bound.iter().filter(|bound| bound.is_ok()).count();
        assert_eq!(winners, 1, "in round {round}: {bound:?}");
        for failed in bound.iter().filter_map(|bound| bound.as_ref().err()) {
            assert!(matches!(failed, Error::AddressInUse { .. }), "{failed:?}");
        }
    }
}

#[tokio::test]
async fn a_listener_of_the_program_is_served_and_its_file_is_left_alone() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = ConformanceService::builder().listener(listener).build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    expect_service_at(&path).await;
    handle.close().await;
    serving.await.unwrap().unwrap();
    assert!(fs::exists(&path).unwrap(), "it is not the server's to remove");
}

#[tokio::test]
async fn the_socket_file_goes_as_soon_as_the_shutdown_begins() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let server = ConformanceService::builder().bind(&path).unwrap().build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = ConformanceClient::new(Client::connect(&path).await.unwrap());
    let waiting =
        tokio::spawn(async move { client.wait(KeyRequest { key: "a".to_owned() }).await });
    eventually("the call arrives", || handle.calls_in_flight() == 1).await;
    handle.begin_shutdown(PATIENCE);
    eventually("the file is removed", || !fs::exists(&path).unwrap()).await;
    assert_eq!(handle.calls_in_flight(), 1, "the call is still waited for");
    handle.close().await;
    serving.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap_err();
}

#[test]
fn a_server_without_anything_to_serve_and_one_with_a_service_twice_are_refused() {
    let error = ConformanceService::builder().build().unwrap_err();
    assert!(matches!(error, Error::NothingToServe), "{error:?}");
    let folder = Folder::new();
    let twice = ConformanceService::builder()
        .add_service(ConformanceServer::new(ConformanceService::default()));
    let error = twice.bind(&folder.file("a.sock")).unwrap().build().unwrap_err();
    assert!(matches!(error, Error::DuplicateService(_)), "{error:?}");
    assert!(error.to_string().contains(ConformanceClient::NAME), "{error}");
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0, "no socket file is left");
}

#[tokio::test]
async fn several_services_are_told_apart_by_their_names() {
    let folder = Folder::new();
    let path = folder.file("a.sock");
    let routes = |name| {
        ttrpc::server::Routes::new(name).unary("Name", &Arc::new(()), |_, ctx, (): ()| {
            Box::pin(async { Ok(ctx.service().to_owned()) })
        })
    };
    let server = ConformanceService::builder()
        .add_service(Handmade(routes("a.A")))
        .add_service(Handmade(routes("b.B")));
    let serving = tokio::spawn(server.bind(&path).unwrap().serve());
    expect_service_at(&path).await;
    let client = Client::connect(&path).await.unwrap();
    for name in ["a.A", "b.B"] {
        assert_eq!(client.unary::<(), String>(name, "Name", ()).await.unwrap(), name);
    }
    serving.abort();
}
