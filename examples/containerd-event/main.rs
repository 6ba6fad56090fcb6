//! Publishes an event to a running containerd: `containerd-event ADDRESS TOPIC`, where ADDRESS is
//! containerd's ttrpc socket (`/run/containerd/containerd.sock.ttrpc`). `ctr events` prints it.
//!
//! The namespace is taken from `CONTAINERD_NAMESPACE`, as `ctr` does, and is `default` without it.

use std::{
    env,
    error::Error,
    process,
    time::{Duration, SystemTime},
};

use ttrpc::{Any, Client, prost::Message};

mod events {
    ttrpc::include_proto!("containerd.services.events.ttrpc.v1");
}
mod tasks {
    ttrpc::include_proto!("containerd.events");
}
use events::{Envelope, EventsClient, ForwardRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(address), Some(topic), None) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: containerd-event ADDRESS TOPIC");
        process::exit(2);
    };
    let namespace = env::var("CONTAINERD_NAMESPACE").unwrap_or_else(|_| "default".to_owned());

    let event = tasks::TaskExit {
        container_id: "example".to_owned(),
        id: "example".to_owned(),
        pid: process::id(),
        exit_status: 0,
    };
    let envelope = Envelope {
        timestamp: Some(SystemTime::now().into()),
        namespace: namespace.clone(),
        topic,
        event: Some(Any {
            // containerd's types travel under their bare names.
            type_url: "containerd.events.TaskExit".to_owned(),
            value: event.encode_to_vec(),
        }),
    };

    let events = EventsClient::new(Client::connect(&address).await?);
    events
        .forward(ForwardRequest { envelope: Some(envelope) })
        .metadata("containerd-namespace-ttrpc", namespace)
        .timeout(Duration::from_secs(5))
        .await?;
    Ok(())
}
