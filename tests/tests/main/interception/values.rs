//! Values that hooks, interceptors and observers add are seen by those who come behind them.

use std::{error::Error, time::Duration};

use ttrpc::{
    Connection, Context, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    server::{ConnectionHook, Interceptor, Next, Routes},
};

use super::*;

const NAME: &str = "test.Values";

struct OfConnection(&'static str);
struct OfObserver(u64);
struct OfInterceptor(String);

struct Hook;

#[async_trait]
impl ConnectionHook for Hook {
    async fn connected(
        &self,
        connection: &mut Connection,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        connection.extensions().insert(OfConnection("hook"));
        Ok(())
    }
}

/// Counts the calls, and tells each its number.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<Vec<String>>>);

impl Observer for Numbers {
    fn call_begun(&self, call: &CallInfo<'_>) {
        let mut told = self.0.lock().unwrap();
        told.push(String::new());
        call.extensions.insert(OfObserver(told.len() as u64));
    }

    fn call_ended(&self, call: &CallInfo<'_>, _: &CallEnd<'_>) {
        let number = call.extensions.get::<OfObserver>().expect("it was added").0;
        let user = call.extensions.get::<OfInterceptor>().expect("it was added");
        self.0.lock().unwrap()[number as usize - 1].clone_from(&user.0);
    }
}

struct Adds;

#[async_trait]
impl Interceptor for Adds {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let from = ctx.connection_extensions().get::<OfConnection>().expect("the hook ran").0;
        let number = ctx.extensions().get::<OfObserver>().expect("the call has begun").0;
        ctx.extensions().insert(OfInterceptor(format!("{from} {number}")));
        ctx.connection_extensions().insert(number);
        next.run(ctx).await
    }
}

#[tokio::test(start_paused = true)]
async fn values_of_calls_and_connections_are_seen_by_those_who_come_behind() {
    let numbers = Numbers::default();
    let routes = Routes::new(NAME).unary("Values", &Arc::new(()), |_, ctx, ()| {
        Box::pin(async move {
            let user = ctx.extensions().get::<OfInterceptor>().expect("an interceptor ran");
            let last = ctx.connection_extensions().get::<u64>().expect("it is the connection's");
            Ok(format!("{}, {last}", user.0))
        })
    });
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder
            .on_connection(Hook, Duration::from_secs(1))
            .observe(numbers.clone())
            .intercept(Adds)
            .add_service(Handmade(routes))
    });
    for expected in ["hook 1, 1", "hook 2, 2"] {
        let reply = all.client.unary::<(), String>(NAME, "Values", ()).await.unwrap();
        assert_eq!(reply, expected);
    }
    all.server.is_idle().await;
    assert_eq!(*numbers.0.lock().unwrap(), ["hook 1", "hook 2"]);
}

/// Panics when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("as the test asks");
        }
    }
}

struct AddsPanics;

#[async_trait]
impl Interceptor for AddsPanics {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        ctx.extensions().insert(Panics);
        next.run(ctx).await
    }
}

#[async_trait]
impl client::Interceptor for AddsPanics {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        call.extensions().insert(Panics);
        next.run(call).await
    }
}

/// They are dropped wherever a call's last holder is, which may be a task of the library that serves others, too.
#[tokio::test(start_paused = true)]
async fn values_that_panic_when_they_are_dropped_harm_no_call() {
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.intercept(AddsPanics)
    });
    let waiting = tokio::spawn(all.conformance.wait(key("a")).into_future());
    all.server.has_begun(1).await;
    let panics = ConformanceClient::new(all.client.clone().with_interceptor(AddsPanics));
    for _ in 0..3 {
        panics.echo(echo_request([])).await.unwrap();
    }
    all.server.service.release("a");
    waiting.await.unwrap().unwrap();
    all.server.is_idle().await;
    assert_eq!(all.server.handle.connections(), 1);
}
