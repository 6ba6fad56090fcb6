//! What interceptors do late: no handler begins for a call that is over, and a deadline that one shortens holds for
//! those behind it.

use std::{
    future::pending,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use ttrpc::{
    Context, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    server::{Interceptor, Next, Routes},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Asks for the token, which earns it its grace, and runs the rest when it may.
#[derive(Default)]
struct RunsTheRestLate {
    may_run: Notify,
    result: Mutex<Option<Result<(), Code>>>,
}

#[async_trait]
impl Interceptor for RunsTheRestLate {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let _token = ctx.cancellation_token();
        self.may_run.notified().await;
        let result = next.run(ctx).await;
        *self.result.lock().unwrap() = Some(result.as_ref().copied().map_err(Status::code));
        result
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_does_not_begin_in_the_grace_of_its_interceptor() {
    let late = Arc::<RunsTheRestLate>::default();
    let config = ServerConfig { cancellation_grace: 60 * SECOND, ..ServerConfig::default() };
    let all = observed_with(config, ClientConfig::default(), |builder| {
        builder.intercept(late.clone() as Arc<dyn Interceptor>)
    });
    let Observed { server, conformance, at_server, .. } = &all;
    let status = conformance.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    at_server.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
    late.may_run.notify_one();
    server.is_idle().await;
    assert_eq!(server.service.calls_total(), 0, "a handler has begun for a call that is over");
    assert_eq!(*late.result.lock().unwrap(), Some(Err(Code::Cancelled)));
    at_server.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_does_not_begin_behind_a_deadline_that_an_interceptor_has_set() {
    struct NoTime;
    #[async_trait]
    impl Interceptor for NoTime {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            ctx.shorten_deadline(Instant::now());
            next.run(ctx).await
        }
    }
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.intercept(NoTime)
    });
    let Observed { server, conformance, at_server, .. } = &all;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(server.service.calls_total(), 0);
    at_server.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

/// Gives each call a second.
struct Shortens;

#[async_trait]
impl client::Interceptor for Shortens {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        call.shorten_deadline(Instant::now() + SECOND);
        next.run(call).await
    }
}

/// What one behind it does.
enum Does {
    WaitsForEver,
    /// Makes the call, and waits with its answer.
    WaitsBehind,
    TakesItsTime,
}

#[async_trait]
impl client::Interceptor for Does {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        match self {
            Does::WaitsForEver => pending().await,
            Does::WaitsBehind => {
                let _answer = next.run(call).await?;
                pending().await
            }
            Does::TakesItsTime => {
                sleep(SECOND / 2).await;
                next.run(call).await
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_a_client_interceptor_shortens_holds_for_those_behind_it() {
    for (timeout, does, code, cause) in [
        (None, Does::WaitsForEver, Code::DeadlineExceeded, EndCause::DeadlineHere),
        (Some(60 * SECOND), Does::WaitsForEver, Code::DeadlineExceeded, EndCause::DeadlineHere),
        // The answer had come.
        (None, Does::WaitsBehind, Code::Ok, EndCause::Replied),
    ] {
        let all = observed();
        let client = all.client.clone().with_interceptor(Shortens).with_interceptor(does);
        let call = ConformanceClient::new(client).echo(echo_request([]));
        let call = match timeout {
            None => call,
            Some(timeout) => call.timeout(timeout),
        };
        let started = Instant::now();
        let status = tokio::time::timeout(PATIENCE, call).await.expect("in time").unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let took = started.elapsed();
        assert!(took >= SECOND && took < SECOND * 3 / 2, "{took:?}");
        all.at_client.expect("Echo", code, cause).await;
        assert_eq!(all.client.calls_in_flight(), 0);
    }
    let all = observed();
    let client = all.client.clone().with_interceptor(Shortens).with_interceptor(Does::TakesItsTime);
    let conformance = ConformanceClient::new(client);
    conformance.echo(echo_request([])).await.unwrap();
    let started = Instant::now();
    conformance.wait(key("a")).await.unwrap_err();
    assert!(started.elapsed() < SECOND * 3 / 2);
    all.at_client.expect_of("Wait", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

/// A call that is made again when its time was over is told as another one.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_made_again_behind_its_deadline_is_told_twice() {
    struct Again;
    #[async_trait]
    impl client::Interceptor for Again {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            call.shorten_deadline(Instant::now() + SECOND);
            match next.run(call).await {
                Err(status) if status.code() == Code::DeadlineExceeded => next.run(call).await,
                answer => answer,
            }
        }
    }
    struct WaitsOnce(AtomicBool);
    #[async_trait]
    impl client::Interceptor for WaitsOnce {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            if !self.0.swap(true, SeqCst) {
                pending::<()>().await;
            }
            next.run(call).await
        }
    }
    let all = observed();
    let waits = WaitsOnce(AtomicBool::new(false));
    let client = all.client.clone().with_interceptor(Again).with_interceptor(waits);
    let call = ConformanceClient::new(client).echo(echo_request([]));
    assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    all.at_client.told(|told| {
        let causes: Vec<_> = told.ends.iter().map(|end| end.cause).collect();
        assert_eq!((told.begun.len(), causes), (2, vec![EndCause::DeadlineHere; 2]), "{told:?}");
    });
}

/// A handler whose own call ends with the deadline that it hands down fails at the same moment.
#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_as_its_deadline_passes_is_told_as_a_deadline_here() {
    let routes = Routes::new("test.Late")
        .unary("CallsOn", &Arc::new(()), |_, ctx, ()| {
            Box::pin(async {
                sleep_until(ctx.deadline().expect("it has one")).await;
                Err::<(), _>(Status::deadline_exceeded("a call of its own has ended"))
            })
        })
        .unary("Fails", &Arc::new(()), |_, _, ()| {
            Box::pin(async { Err::<(), _>(Status::deadline_exceeded("that of another call")) })
        });
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.add_service(Handmade(routes))
    });
    for (method, cause) in [("CallsOn", EndCause::DeadlineHere), ("Fails", EndCause::Failed)] {
        let call = all.client.unary::<(), ()>("test.Late", method, ()).timeout(SECOND);
        call.await.unwrap_err();
        all.at_server.expect_of(method, Code::DeadlineExceeded, cause).await;
    }
}

/// An interceptor can keep an answer and give it to another call. That one's deadline holds all the same.
#[tokio::test(start_paused = true)]
async fn the_answer_of_another_call_is_refused_if_it_would_outlast_the_deadline() {
    #[derive(Clone, Default)]
    struct Keeps(Arc<Mutex<Option<Answer>>>);
    #[async_trait]
    impl client::Interceptor for Keeps {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            let kept = self.0.lock().unwrap().take();
            if let Some(kept) = kept {
                return Ok(kept);
            }
            *self.0.lock().unwrap() = Some(next.run(call).await?);
            Err(Status::aborted("its answer is kept"))
        }
    }
    for is_stream in [false, true] {
        let all = observed();
        let client = ConformanceClient::new(all.client.clone().with_interceptor(Keeps::default()));
        client.exchange().await.map(drop).unwrap_err();
        let call = async {
            match is_stream {
                false => client.echo(echo_request([])).timeout(SECOND).await.map(drop),
                true => client.exchange().timeout(SECOND).await?.1.recv().await.map(drop),
            }
        };
        let status = tokio::time::timeout(PATIENCE, call).await.expect("in time").unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
        let method = if is_stream { "Exchange" } else { "Echo" };
        all.at_client.told(|told| {
            let last =
                told.ends.iter().rfind(|end| end.code == Code::Internal).expect("it is told");
            assert_eq!((&*last.method, last.cause), (method, EndCause::Refused), "{told:?}");
            assert_eq!((told.begun.len(), told.ends.len()), (2, 2), "{told:?}");
        });
        assert_eq!(all.client.calls_in_flight(), 0);
    }
}
