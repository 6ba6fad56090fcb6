//! Processes that come from Exec.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use tokio::{sync::Semaphore, time::timeout};
use ttrpc::Status;

use super::Container;
use crate::{
    ids,
    launch::Launch,
    lifecycle::Phase,
    memory,
    process::Process,
    proto::{events, task},
    reaper::Exit,
    runtime::Runtime,
    started::End,
    stdio::Paths,
    tasks::contain,
};

/// How long an exec that is being made may keep others waiting. The limit is there for speed alone, and
/// one that hangs must not hold up the others. They go on one by one: all at once would be slower.
const TURN: Duration = Duration::from_secs(5);

impl<R: Runtime> Container<R> {
    /// Takes note of a process that is to be started later.
    ///
    /// # Errors
    /// ALREADY_EXISTS, or INVALID_ARGUMENT if the process's description is none.
    pub fn exec(&self, request: &task::ExecProcessRequest) -> Result<(), Status> {
        let spec = request.spec.as_ref().map(|spec| spec.value.as_slice()).unwrap_or_default();
        let spec = exec_spec(spec, request.terminal)?;
        ids::check("exec", &request.exec_id)?;
        // Tools show these words.
        let phase = self.init.phase();
        if phase.exit().is_some() {
            return Err(Status::failed_precondition("cannot exec in a stopped state"));
        }
        if phase == Phase::Paused {
            return Err(Status::failed_precondition("cannot exec in a paused state"));
        }
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let mut execs = self.execs();
        if execs.contains_key(&request.exec_id) {
            let message = format!("process {} exists already", request.exec_id);
            return Err(Status::already_exists(message));
        }
        let process = Process::new(request.exec_id.clone(), paths, spec);
        execs.insert(request.exec_id.clone(), Arc::new(process));
        drop(execs);
        self.shim.outbox.publish(&events::TaskExecAdded {
            container_id: self.id.clone(),
            exec_id: request.exec_id.clone(),
        });
        Ok(())
    }

    /// Deletes a process that came from Exec.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while it runs.
    pub async fn delete_exec(&self, exec_id: &str) -> Result<(u32, Exit), Status> {
        let process = self.process(exec_id)?;
        let exit = match process.phase() {
            Phase::Told(exit) | Phase::Failed(exit) => exit,
            Phase::Ended(_) => process.told().await,
            // It was never started, so that nothing has failed.
            Phase::Created => Exit { status: 0, at: SystemTime::now() },
            _ => return Err(Status::failed_precondition("cannot delete a running process")),
        };
        let _order = process.order.lock().await;
        if process.phase().is_alive() {
            return Err(Status::failed_precondition("cannot delete a running process"));
        }
        process.give_up(exit);
        let mut execs = self.execs();
        execs.remove(exec_id);
        if execs.is_empty() {
            // Many execs at a time leave a large table, and a heap full of holes.
            *execs = HashMap::new();
            memory::give_back();
        }
        Ok((process.pid(), exit))
    }

    pub(super) async fn make_exec(&self, process: &Process) -> Result<End, Status> {
        in_turn(&self.turns, async {
            let number = self.next_launch.fetch_add(1, Ordering::Relaxed);
            let mut launch = Launch::new(&self.shim, &self.reaper, &self.id, process, number);
            let started = contain(self.runtime.exec(&process.spec, &mut launch)).await?;
            Ok(launch.made(process, started))
        })
        .await
    }
}

/// Does this when its turn has come. The next one's comes when it is done, or has taken its time.
async fn in_turn<T>(turns: &Semaphore, work: impl Future<Output = T>) -> T {
    let turn = turns.acquire().await;
    let mut work = pin!(work);
    match timeout(TURN, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(turn);
            work.await
        }
    }
}

/// The process that an exec is to be, with the terminal that the request asks for.
fn exec_spec(json: &[u8], terminal: bool) -> Result<Vec<u8>, Status> {
    let wrong = |what: &str| Status::invalid_argument(format!("the process to exec {what}"));
    let mut spec: serde_json::Value =
        serde_json::from_slice(json).map_err(|error| wrong(&format!("is no JSON: {error}")))?;
    let object = spec.as_object_mut().ok_or_else(|| wrong("is no JSON object"))?;
    // Go reads keys in any case, and the last of several. Others read this one alone.
    let is_terminal = |key: &str| key.eq_ignore_ascii_case("terminal");
    let said: Vec<_> = object.iter().filter(|(key, _)| is_terminal(key)).collect();
    match said[..] {
        // It is left out where it is false.
        [] if !terminal => return Ok(json.to_vec()),
        [(key, said)] if *key == "terminal" && *said == terminal => return Ok(json.to_vec()),
        _ => object.retain(|key, _| !is_terminal(key)),
    }
    object.insert("terminal".to_owned(), terminal.into());
    Ok(spec.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending};

    use tokio::time::{Instant, sleep};

    use super::*;

    /// Those that had waited for five seconds all went ahead at once. On a machine that was short of
    /// processors they kept the shim from answering.
    #[tokio::test(start_paused = true)]
    async fn execs_are_made_one_by_one_however_long_they_wait() {
        let (turns, now, most) = (Semaphore::new(1), Cell::new(0), Cell::new(0));
        let exec = || {
            in_turn(&turns, async {
                now.set(now.get() + 1);
                most.set(now.get().max(most.get()));
                sleep(TURN * 4 / 5).await;
                now.set(now.get() - 1);
            })
        };
        tokio::join!(exec(), exec(), exec(), exec(), exec());
        assert_eq!(most.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_exec_that_hangs_keeps_others_waiting_for_one_turn() {
        let turns = Semaphore::new(1);
        let begin = Instant::now();
        tokio::select! {
            () = in_turn(&turns, pending()) => unreachable!("it hangs"),
            () = async {
                tokio::task::yield_now().await;
                in_turn(&turns, async {}).await;
            } => {}
        }
        assert_eq!(begin.elapsed(), TURN);
    }

    #[test]
    fn the_request_decides_on_the_terminal() {
        let spec = exec_spec(br#"{"args":["sh"],"terminal":false}"#, true).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
        assert_eq!(spec, serde_json::json!({"args": ["sh"], "terminal": true}));
        let [on, off] = [&br#"{ "args": ["sh"], "terminal": true }"#[..], br#"{ "args": ["sh"] }"#];
        for (as_requested, terminal) in [(on, true), (off, false)] {
            assert_eq!(exec_spec(as_requested, terminal).unwrap(), as_requested);
        }
        let spec = exec_spec(on, false).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
        assert_eq!(spec["terminal"], false);
        for other in [&br#"{"Terminal":true,"terminal":false}"#[..], br#"{"Terminal":false}"#] {
            assert_eq!(exec_spec(other, false).unwrap(), br#"{"terminal":false}"#);
        }
        for wrong in [&b""[..], b"[]", b"{"] {
            assert_eq!(exec_spec(wrong, false).unwrap_err().code(), ttrpc::Code::InvalidArgument);
        }
    }
}
