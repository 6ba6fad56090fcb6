//! Interceptors decide, change and look, and calls keep their promises whatever interceptors do.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, advance, timeout},
};
use ttrpc::{
    Any, Context, Raw, RawEnd, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    interceptors::{Authorize, ConcurrencyLimit, Deadlines},
    server::{Fallback, FallbackCall, Interceptor, Next, PeerPolicy},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// An interceptor made of a closure over the call before `next` runs.
struct Before<F>(F);

#[async_trait]
impl<F: Fn(&mut Context, &[u8]) -> Result<(), Status> + Send + Sync + 'static> Interceptor
    for Before<F>
{
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        (self.0)(ctx, next.request_bytes())?;
        next.run(ctx).await
    }
}

fn intercepted(interceptor: impl Interceptor) -> Observed {
    let (server, client) = (ServerConfig::default(), ClientConfig::default());
    observed_with(server, client, |builder| builder.intercept(interceptor))
}

fn append(entry: &'static str) -> impl Interceptor {
    Before(move |ctx: &mut Context, _: &[u8]| {
        ctx.metadata_mut().append("path", entry);
        Ok(())
    })
}

#[tokio::test(start_paused = true)]
async fn interceptors_run_in_order_for_every_kind_of_call() {
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.intercept(append("first")).intercept(append("second"))
    });
    let Observed { conformance, .. } = &all;
    let seen = conformance.inspect(Empty {}).metadata("path", "client").await.unwrap();
    let values: Vec<_> = seen.metadata.iter().map(|entry| &*entry.value).collect();
    assert_eq!(values, ["client", "first", "second"]);

    let request = GenerateRequest { count: 2, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    for _ in 0..2 {
        replies.recv().await.unwrap().unwrap();
    }
    assert!(replies.recv().await.unwrap().is_none());
    let (mut requests, reply) = conformance.collect().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    assert_eq!(reply.await.unwrap().chunks, 1);
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    requests.send(chunk(7)).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().sequence, 7);
    requests.finish();
    assert!(replies.recv().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_refuses_by_the_bytes_of_the_request() {
    let policy = Before(|_: &mut Context, request: &[u8]| {
        let is_bad = request.windows(3).any(|window| window == b"bad");
        if is_bad { Err(Status::permission_denied("bad")) } else { Ok(()) }
    });
    let all = intercepted(policy);
    let Observed { server, conformance, at_server, .. } = &all;
    conformance.echo(echo_request(*b"good")).await.unwrap();
    let status = conformance.echo(echo_request(*b"bad")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "bad"));
    assert_eq!(server.service.calls_total(), 1, "no handler has run");
    let causes = at_server.told(|told| told.ends.iter().map(|end| end.cause).collect::<Vec<_>>());
    assert_eq!(causes, [EndCause::Replied, EndCause::Refused]);
    // Long ones are not copied, but seen.
    conformance.echo(echo_request(vec![7; 100_000])).await.unwrap();
}

/// Answers with the request.
struct Echoes;

#[async_trait]
impl Fallback for Echoes {
    async fn call(&self, _: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
        Ok(RawEnd::Reply(call.payload))
    }
}

/// Their names are the client's, and a policy sees the bytes of what the program does not know either.
#[tokio::test(start_paused = true)]
async fn interceptors_run_around_the_fallback_and_refuse_with_details() {
    let detail = Any { type_url: "test.Why".into(), value: vec![7] };
    let refusal = Status::permission_denied("bad").with_detail(detail.clone());
    let policy = Before(
        move |_: &mut Context, request: &[u8]| {
            if request == b"bad" { Err(refusal.clone()) } else { Ok(()) }
        },
    );
    let (server, client) = (ServerConfig::default(), ClientConfig::default());
    let all = observed_with(server, client, |builder| builder.intercept(policy).fallback(Echoes));
    let call = |request: &'static [u8]| {
        all.client.unary::<Raw, Raw>("test.Nobody", "Knows", Raw::from(request))
    };
    assert_eq!(call(b"good").await.unwrap(), Raw::from(&b"good"[..]));
    let status = call(b"bad").await.unwrap_err();
    assert_eq!((status.code(), status.details()), (Code::PermissionDenied, &[detail][..]));
    for (recorder, cause) in
        [(&all.at_server, EndCause::Refused), (&all.at_client, EndCause::Failed)]
    {
        assert_eq!(recorder.causes(), [EndCause::Replied, cause]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_turns_a_good_end_into_a_failure() {
    struct Fails;
    #[async_trait]
    impl Interceptor for Fails {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            next.run(ctx).await?;
            Err(Status::aborted("no"))
        }
    }
    let all = intercepted(Fails);
    let Observed { server, conformance, at_server, .. } = &all;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!((status.code(), server.service.calls_total()), (Code::Aborted, 1));
    at_server.expect("Echo", Code::Aborted, EndCause::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_decode_comes_to_the_interceptor_and_to_no_handler() {
    let all = intercepted(append("seen"));
    let Observed { server, client, at_server, .. } = &all;
    let raw = client.unary::<Raw, Raw>(SERVICE, "Echo", Raw::from(vec![0xff; 3]));
    assert_eq!(raw.await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(server.service.calls_total(), 0);
    at_server.expect("Echo", Code::InvalidArgument, EndCause::ProtocolViolation).await;
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_waits_for_ever_ends_with_its_call() {
    struct Waits;
    #[async_trait]
    impl Interceptor for Waits {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            if ctx.method() == "Echo" {
                pending::<()>().await;
            }
            next.run(ctx).await
        }
    }
    let tasks = alive_tasks();
    let all = intercepted(Waits);
    let Observed { server, client, conformance, at_server, .. } = &all;
    let status = conformance.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    at_server.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
    // One that is left when the client goes.
    let call = tokio::spawn(conformance.echo(echo_request([])).into_future());
    eventually("it waits", || server.handle.calls_in_flight() == 1).await;
    client.close();
    call.await.unwrap().unwrap_err();
    server.is_idle().await;
    at_server.told(|told| assert_eq!(told.ends[1].cause, EndCause::PeerGone));
    server.handle.shutdown(SECOND).await;
    drop(all);
    tasks_are_back_at(tasks).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_goes_with_the_rest_that_its_interceptor_drops() {
    struct DropsTheRest(Arc<Notify>);
    #[async_trait]
    impl Interceptor for DropsTheRest {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            assert!(timeout(SECOND, next.run(ctx)).await.is_err());
            self.0.notified().await;
            Err(Status::aborted("too slow"))
        }
    }
    let may_end = Arc::new(Notify::new());
    let all = intercepted(DropsTheRest(may_end.clone()));
    let Observed { server, conformance, at_server, .. } = &all;
    let call = tokio::spawn(conformance.wait(key("a")).into_future());
    eventually("the handler is dropped", || server.service.calls_cancelled() == 1).await;
    assert!(!call.is_finished());
    may_end.notify_one();
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Aborted);
    at_server.expect("Wait", Code::Aborted, EndCause::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_interceptor_answers_internal() {
    let panics = Before(|_: &mut Context, _: &[u8]| panic!("as the test asks"));
    let all = intercepted(panics);
    let Observed { conformance, at_server, .. } = &all;
    assert_eq!(conformance.echo(echo_request([])).await.unwrap_err().code(), Code::Internal);
    at_server.expect("Echo", Code::Internal, EndCause::Panicked).await;
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_may_keep_the_context_and_calls_end_all_the_same() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let keeps = Before(move |ctx: &mut Context, _: &[u8]| {
        keep.lock().unwrap().push(ctx.clone());
        Ok(())
    });
    let all = intercepted(keeps);
    let Observed { server, conformance, .. } = &all;
    conformance.echo(echo_request(*b"hi")).await.unwrap();
    server.is_idle().await;
    assert!(kept.lock().unwrap()[0].is_cancelled(), "the call is over");
    kept.lock().unwrap().clear();
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_answers_nothing_makes_internal_of_it() {
    struct Silent;
    #[async_trait]
    impl Interceptor for Silent {
        async fn intercept(&self, _: &mut Context, _: Next<'_>) -> Result<(), Status> {
            Ok(())
        }
    }
    let all = intercepted(Silent);
    let Observed { conformance, .. } = &all;
    assert_eq!(conformance.echo(echo_request([])).await.unwrap_err().code(), Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_shortened_deadline_ends_a_handler_that_waits() {
    let deadlines = Deadlines::default().default_timeout(SECOND).max_timeout(2 * SECOND);
    let all = intercepted(deadlines);
    let Observed { conformance, at_server, .. } = &all;
    for (timeout, expected) in [(None, SECOND), (Some(60 * SECOND), 2 * SECOND)] {
        let started = Instant::now();
        let call = conformance.wait(key("a"));
        let call = match timeout {
            None => call,
            Some(timeout) => call.timeout(timeout),
        };
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
        let took = started.elapsed();
        assert!(took >= expected && took < expected + SECOND / 2, "{took:?}");
    }
    at_server.told(|told| {
        assert!(told.ends.iter().all(|end| end.cause == EndCause::DeadlineHere), "{told:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_refuses_at_once_or_after_a_wait() {
    let zero = Duration::ZERO;
    for (limit, least, most) in [
        (ConcurrencyLimit::new(1), zero, zero),
        (ConcurrencyLimit::new(1).wait_for(SECOND), SECOND, SECOND + Duration::from_millis(1)),
    ] {
        let all = intercepted(limit);
        let Observed { server, conformance, at_server, .. } = &all;
        let call = tokio::spawn(conformance.wait(key("a")).into_future());
        server.has_begun(1).await;
        // Timers end with a millisecond: even one without time would wait for the end of this one.
        advance(Duration::from_micros(500)).await;
        let started = Instant::now();
        let status = conformance.echo(echo_request([])).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let took = started.elapsed();
        assert!((least..=most).contains(&took), "{took:?}");
        at_server.told(|told| assert_eq!(told.ends[0].cause, EndCause::Limit));
        server.service.release("a");
        call.await.unwrap().unwrap();
        conformance.echo(echo_request([])).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn authorization_goes_by_method_then_by_service_then_by_the_rule_for_all() {
    let nobody = || PeerPolicy::custom(|_| false);
    let rules = Authorize::deny_all()
        .allow(PeerPolicy::anybody())
        .allow_service(SERVICE, nobody())
        .allow_method(SERVICE, "Echo", PeerPolicy::anybody());
    let all = intercepted(rules);
    let Observed { conformance, .. } = &all;
    conformance.echo(echo_request([])).await.unwrap();
    let status = conformance.sleep(SleepRequest { millis: 0 }).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let all = intercepted(Authorize::deny_all());
    let Observed { conformance, .. } = &all;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

/// Makes a call so often until it is done.
struct Retries(AtomicUsize);

#[async_trait]
impl client::Interceptor for Retries {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        call.metadata_mut().insert("attempt", "1");
        for _ in 0..2 {
            self.0.fetch_add(1, SeqCst);
            if let Ok(answer) = next.run(call).await {
                return Ok(answer);
            }
        }
        call.metadata_mut().insert("attempt", "3");
        next.run(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_makes_calls_again_and_changes_metadata() {
    let fails_twice = AtomicUsize::new(0);
    let flaky = Before(move |_: &mut Context, _: &[u8]| match fails_twice.fetch_add(1, SeqCst) {
        0 | 1 => Err(Status::unavailable("not yet")),
        _ => Ok(()),
    });
    let all = intercepted(flaky);
    let Observed { client, at_client, .. } = &all;
    let retries = Arc::new(Retries(AtomicUsize::new(0)));
    struct Shared(Arc<Retries>);
    #[async_trait]
    impl client::Interceptor for Shared {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            self.0.intercept(call, next).await
        }
    }
    let conformance =
        ConformanceClient::new(client.clone().with_interceptor(Shared(retries.clone())));
    let seen = conformance.inspect(Empty {}).await.unwrap();
    assert_eq!(seen.metadata[0].value, "3");
    assert_eq!(retries.0.load(SeqCst), 2);
    // Each attempt is a call.
    let causes = at_client.told(|told| told.ends.iter().map(|end| end.cause).collect::<Vec<_>>());
    assert_eq!(causes, [EndCause::Failed, EndCause::Failed, EndCause::Replied]);
    assert_eq!(at_client.told(|told| told.begun.len()), 3);
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_sees_the_end_of_streams_once() {
    struct Watches(Arc<Mutex<Vec<(Code, u64)>>>);
    #[async_trait]
    impl client::Interceptor for Watches {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            let answer = next.run(call).await?;
            let ends = self.0.clone();
            answer.on_end(move |end| {
                ends.lock().unwrap().push((end.code, end.traffic.messages_received));
            });
            Ok(answer)
        }
    }
    let all = observed();
    let Observed { client, .. } = &all;
    let ends = Arc::new(Mutex::new(Vec::new()));
    let conformance =
        ConformanceClient::new(client.clone().with_interceptor(Watches(ends.clone())));
    let request = GenerateRequest { count: 3, fail_code: code::NOT_FOUND, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    while let Ok(Some(_)) = replies.recv().await {}
    drop(replies);
    assert_eq!(*ends.lock().unwrap(), [(Code::NotFound, 3)]);
    conformance.echo(echo_request(*b"hi")).await.unwrap();
    assert_eq!(ends.lock().unwrap()[1], (Code::Ok, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_that_waits_for_ever_ends_at_the_deadline() {
    struct Waits;
    #[async_trait]
    impl client::Interceptor for Waits {
        async fn intercept(
            &self,
            _: &mut OutgoingCall,
            _: client::Next<'_>,
        ) -> Result<Answer, Status> {
            pending().await
        }
    }
    let all = observed();
    let Observed { client, at_client, server, .. } = &all;
    let conformance = ConformanceClient::new(client.clone().with_interceptor(Waits));
    let status = conformance.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    at_client.expect("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
    assert_eq!(server.service.calls_total(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_interceptor_refuses() {
    struct Refuses;
    #[async_trait]
    impl client::Interceptor for Refuses {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            _: client::Next<'_>,
        ) -> Result<Answer, Status> {
            Err(Status::permission_denied(format!("{} bytes", call.request_bytes().len())))
        }
    }
    let all = observed();
    let Observed { client, at_client, .. } = &all;
    let conformance = ConformanceClient::new(client.clone().with_interceptor(Refuses));
    let status = conformance.echo(echo_request(*b"hi")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "4 bytes"));
    at_client.expect("Echo", Code::PermissionDenied, EndCause::Refused).await;
}

/// It has begun with another deadline, or without any.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_shortened_in_a_call_that_has_waited_ends_it() {
    struct WaitsAndShortens;
    #[async_trait]
    impl Interceptor for WaitsAndShortens {
        async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
            tokio::time::sleep(SECOND).await;
            ctx.shorten_deadline(Instant::now() + SECOND);
            next.run(ctx).await
        }
    }
    for limit in [None, Some(60 * SECOND)] {
        let all = intercepted(WaitsAndShortens);
        let started = Instant::now();
        let call = all.conformance.wait(key("a"));
        let call = match limit {
            None => call,
            Some(limit) => call.timeout(limit),
        };
        let status = timeout(PATIENCE, call).await.expect("in time").unwrap_err();
        assert_eq!((status.code(), started.elapsed()), (Code::DeadlineExceeded, 2 * SECOND));
    }
}

/// What is said later does not take back what was said before.
#[tokio::test(start_paused = true)]
async fn a_rule_for_a_service_leaves_those_for_others() {
    let nobody = || PeerPolicy::custom(|_| false);
    let rules = Authorize::deny_all().allow(PeerPolicy::anybody());
    let all = intercepted(rules.clone().allow_service("some.Other", nobody()));
    all.conformance.echo(echo_request([])).await.unwrap();
    let all = intercepted(rules.allow_service(SERVICE, nobody()));
    let status = all.conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}
