//! Publishes an event to a running containerd: `containerd-event ADDRESS TOPIC`, where ADDRESS is
//! containerd's ttrpc socket (`/run/containerd/containerd.sock.ttrpc`). `ctr events` prints it.
//!
//! The namespace is taken from `CONTAINERD_NAMESPACE`, as `ctr` does, and is `default` without it.

use std::{
    env,
    error::Error,
    process::{self, ExitCode},
    time::{Duration, SystemTime},
};

use ttrpc::Client;
use ttrpc_containerd::{
    any,
    events::{
        Envelope, TaskExit,
        publish::{EventsClient, ForwardRequest},
    },
    namespace,
};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("containerd-event: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(address), Some(topic), None) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: containerd-event ADDRESS TOPIC");
        process::exit(2);
    };
    let namespace = env::var("CONTAINERD_NAMESPACE").unwrap_or_else(|_| "default".to_owned());

    let event = TaskExit {
        container_id: "example".to_owned(),
        id: "example".to_owned(),
        pid: process::id(),
        ..TaskExit::default()
    };
    let envelope = Envelope {
        timestamp: Some(SystemTime::now().into()),
        namespace: namespace.clone(),
        topic,
        event: Some(any::pack(&event)),
    };

    let events = EventsClient::new(Client::connect(&address).await?);
    events
        .forward(ForwardRequest { envelope: Some(envelope) })
        .metadata(namespace::KEY, namespace)
        .timeout(Duration::from_secs(5))
        .await?;
    Ok(())
}
