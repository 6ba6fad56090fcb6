//! The greeter's client: `greeter-client ADDRESS`, for example `unix:///tmp/greeter.sock`.

use std::{env, error::Error, process::ExitCode, time::Duration};

use ttrpc::{Client, Code};

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{CountdownRequest, GreeterClient, HelloRequest};

fn hello(name: &str) -> HelloRequest {
    HelloRequest { name: name.to_owned() }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter-client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).filter(|address| !address.starts_with('-'));
    let address =
        address.ok_or("usage: greeter-client ADDRESS, such as unix:///tmp/greeter.sock")?;
    let greeter = GreeterClient::new(Client::connect(&address).await?);

    // One request, one reply.
    let reply = greeter.say_hello(hello("Ann")).await?;
    println!("{}", reply.message);

    // With a deadline and with metadata.
    let call = greeter.say_hello(hello("Ben")).timeout(Duration::from_secs(60));
    println!("{}", call.metadata("greeting", "Good morning").await?.message);

    // A call that fails says why.
    let status = greeter.say_hello(hello("")).await.expect_err("nobody to greet");
    assert_eq!(status.code(), Code::InvalidArgument);
    println!("refused: {}", status.message());

    // One request, many replies.
    let mut replies = greeter.countdown(CountdownRequest { name: "Cleo".into(), from: 3 }).await?;
    while let Some(reply) = replies.recv().await? {
        println!("{}", reply.message);
    }

    // Many requests, one reply.
    let (mut people, summary) = greeter.greet_all().await?;
    for name in ["Dan", "Eve"] {
        people.send(hello(name)).await?;
    }
    people.finish();
    let summary = summary.await?;
    println!("{} ({} people)", summary.message, summary.people);

    // Many requests, many replies.
    let (mut requests, mut replies) = greeter.chat().await?;
    for name in ["Fay", "Gus"] {
        requests.send(hello(name)).await?;
        let reply = replies.recv().await?.ok_or("the chat ended early")?;
        println!("{}", reply.message);
    }
    requests.finish();
    assert_eq!(replies.recv().await?, None);
    Ok(())
}
