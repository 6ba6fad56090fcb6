//! A server with spans and metrics: `telemetry-server ADDRESS`, for example `unix:///tmp/telemetry.sock`.
//!
//! Spans are written to standard output when they end; the metrics on SIGUSR1, in the format of Prometheus. `ttrpc
//! call` with `-H traceparent=…` makes its spans a part of a trace.

use std::{env, error::Error, process::ExitCode, sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry::{global, propagation::TextMapCompositePropagator};
use opentelemetry_sdk::{
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::SdkTracerProvider,
};
use opentelemetry_stdout::SpanExporter;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use ttrpc::{Server, Status, server::Routes};
use ttrpc_telemetry::{Metrics, Tracing};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("telemetry-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).ok_or("usage: telemetry-server ADDRESS")?;

    // Where spans and metrics go is the program's choice; both have to be there first.
    let provider =
        SdkTracerProvider::builder().with_simple_exporter(SpanExporter::default()).build();
    global::set_tracer_provider(provider.clone());
    global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
        Box::new(TraceContextPropagator::new()),
        Box::new(BaggagePropagator::new()),
    ]));
    let recorder = PrometheusBuilder::new().install_recorder()?;

    let metrics = Metrics::new();
    let server = Tracing::new()
        .trace_server(Server::builder())
        .observe(metrics.clone())
        .add_service(echo())
        .bind(&address)?
        .build()?;
    println!("listening on {address}");

    // The recorder keeps each call's duration until somebody asks for the metrics, or this.
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let handle = server.handle();
    let mut asked = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            metrics.sample_server(&handle.snapshot());
            println!("{}", recorder.render());
        }
    });
    let interrupted = async { tokio::signal::ctrl_c().await.expect("signals can be handled") };
    server.serve_until(interrupted, Duration::from_secs(5)).await?;
    provider.shutdown()?;
    Ok(())
}

/// Answers with the request, a `google.protobuf.StringValue`.
fn echo() -> Routes {
    Routes::new("telemetry.v1.Echo").unary("Say", &Arc::new(()), |(), _ctx, request: String| {
        Box::pin(async move {
            if request.is_empty() {
                return Err(Status::invalid_argument("nothing to say"));
            }
            Ok(request)
        })
    })
}
