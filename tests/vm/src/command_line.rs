//! The command line `ttrpc` with a guest: calls over `hvsock://`, and a trace between clients on the host
//! and the guest, which has to tell of every call.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ttrpc::{Client, Code};
use ttrpc_tests::{conformance::*, harness::echo_request};

use crate::{Tried, check};

/// The guest has no reflection.
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/conformance.proto");

/// One call with JSON, one stream, one failure.
pub(crate) fn calls(program: &Path, address: &str) -> Tried {
    let call = |arguments: &[&str]| -> io::Result<Output> {
        Command::new(program)
            .args(["call", address])
            .args(arguments)
            .args(["--proto", PROTO, "--timeout", "15m"])
            .output()
    };
    let echo = call(&["Echo", "payload=YWdlbnQ="])?;
    let reply: Value = serde_json::from_slice(&echo.stdout)?;
    check(reply["payload"] == "YWdlbnQ=", || format!("the echo is {echo:?}"))?;
    let chunks = call(&["Generate", "count=3"])?;
    let lines = String::from_utf8_lossy(&chunks.stdout).lines().count();
    check(lines == 3, || format!("the chunks are {chunks:?}"))?;
    let failed = call(&["Fail", "code=5", "message=nobody"])?;
    let code = 64 + Code::NotFound as i32;
    check(failed.status.code() == Some(code), || format!("the failure is {failed:?}"))?;
    println!("the command line: an echo, a stream and a failure over {address}");
    Ok(())
}

/// What a trace tells adds up to what was called.
pub(crate) async fn is_traced(program: &Path, folder: &Path, address: &str) -> Tried {
    const ECHOES: u64 = 200;
    const FAILURES: u64 = 10;
    const CHUNKS: u64 = 50;
    const CHUNK: usize = 16 << 10;
    let listen = format!("unix://{}", folder.join("trace.sock").display());
    let trace = Trace::start(program, &listen, address)?;

    let client = ConformanceClient::new(Client::connect(&listen).await?);
    let echoes: Vec<_> = (0..ECHOES)
        .map(|call| tokio::spawn(client.echo(echo_request(call.to_be_bytes())).into_future()))
        .collect();
    // One way after the other, see `LEFT_OUT`.
    let (mut sender, collected) = client.collect().await?;
    for sequence in 0..CHUNKS {
        sender.send(Chunk { sequence, payload: vec![7; CHUNK] }).await?;
    }
    sender.finish();
    let collected = collected.await?;
    check(collected.chunks == CHUNKS, || format!("{} chunks arrived", collected.chunks))?;
    let request =
        GenerateRequest { count: CHUNKS, size: CHUNK as u32, ..GenerateRequest::default() };
    let mut chunks = client.generate(request).await?;
    let mut count = 0;
    while chunks.recv().await?.is_some() {
        count += 1;
    }
    check(count == CHUNKS, || format!("{count} chunks came"))?;
    for echo in echoes {
        echo.await??;
    }
    for _ in 0..FAILURES {
        let code = Code::NotFound as i32;
        let failed = client.fail(FailRequest { code, ..FailRequest::default() }).await;
        check(failed.is_err_and(|status| status.code() == Code::NotFound), || {
            "the failure was lost".to_owned()
        })?;
    }
    // What has ended for its caller has passed the trace.
    let lines = trace.end()?;
    let (table, calls) = lines.split_last().ok_or("the trace tells nothing")?;
    let told = |method: &str, key: &str| {
        let of_method =
            |row: &&Value| row["method"] == *format!("ttrpc.conformance.v1.Conformance/{method}");
        let methods = table["methods"].as_array().into_iter().flatten();
        methods.filter(of_method).filter_map(|row| row[key].as_u64()).sum::<u64>()
    };
    let sums = [
        ("Echo", "calls", ECHOES),
        ("Echo", "failed", 0),
        ("Echo", "bytesReceived", ECHOES * 10),
        ("Fail", "calls", FAILURES),
        ("Fail", "failed", FAILURES),
        ("Collect", "calls", 1),
        ("Generate", "calls", 1),
    ];
    for (method, key, count) in sums {
        let told = told(method, key);
        check(told == count, || format!("{method}: {told} {key} are told, not {count}: {table}"))?;
    }
    check(calls.len() as u64 == ECHOES + FAILURES + 2, || format!("{} lines", calls.len()))?;
    let bytes = (told("Collect", "bytesSent"), told("Generate", "bytesReceived"));
    let least = CHUNKS * CHUNK as u64;
    check(bytes.0.min(bytes.1) > least, || format!("the streams' bytes are {bytes:?}"))?;
    println!(
        "traced: {} calls over {address}, {} KiB there and {} KiB back on streams; all are told",
        calls.len(),
        bytes.0 >> 10,
        bytes.1 >> 10
    );
    Ok(())
}

/// `ttrpc trace` while it runs. Dropped, it is killed.
struct Trace {
    child: Child,
}

impl Trace {
    /// Returns when clients may connect.
    fn start(program: &Path, listen: &str, upstream: &str) -> Tried<Self> {
        let child = Command::new(program)
            .args(["trace", "--json", "--listen", listen, "--upstream", upstream])
            .args(["--proto", PROTO])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut trace = Trace { child };
        let stderr = trace.child.stderr.as_mut().ok_or("it was asked for")?;
        let mut line = String::new();
        BufReader::new(stderr).read_line(&mut line)?;
        check(line.contains("listening"), || format!("the trace says {line:?}"))?;
        Ok(trace)
    }

    /// Ends it as Ctrl-C does. The lines of calls, and the table behind them.
    fn end(mut self) -> Tried<Vec<Value>> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let mut stdout = String::new();
        self.child.stdout.take().ok_or("it was asked for")?.read_to_string(&mut stdout)?;
        let status = self.child.wait()?;
        check(status.success(), || format!("the trace ends with {status}"))?;
        Ok(stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
