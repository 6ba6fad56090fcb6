//! Running a script.

use ttrpc::prost::Message;

use super::{
    link::{Link, describe_frame},
    script::{Cutting, Script, Step, Wanted},
};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, Verdict, fail, server::socket},
    wire::Frame,
};

/// Bytes of zero that are sent at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Plays a script, as often as its cutting says.
pub(super) async fn run(trial: &Trial, script: &Script) -> Outcome<()> {
    let lead = script.steps.iter().map_while(|step| match step {
        Step::Send(send) => Some(&send.bytes[..]),
        _ => None,
    });
    let lead_steps = lead.clone().count();
    let lead = lead.collect::<Vec<_>>().concat();
    let rest = &script.steps[lead_steps..];
    match script.cutting {
        Cutting::None => Run::start(trial, false).await?.play(&script.steps).await,
        Cutting::ByteByByte => Run::start(trial, true).await?.play(&script.steps).await,
        Cutting::EachCut => {
            for cut in 1..lead.len() {
                let mut run = Run::start(trial, false).await?;
                run.note_opened(&script.steps[..lead_steps]);
                let played = async {
                    run.link()?.send_cut(&lead, cut).await?;
                    run.play(rest).await
                };
                played.await.map_err(|verdict| verdict.in_part(&format!("cut at byte {cut}")))?;
            }
            Ok(())
        }
        Cutting::EachPrefix => {
            for end in 0..lead.len() {
                let mut run = Run::start(trial, false).await?;
                let played = async {
                    run.link()?.send(&lead[..end]).await?;
                    run.play(rest).await
                };
                played.await.map_err(|verdict| verdict.in_part(&format!("after byte {end}")))?;
            }
            Ok(())
        }
    }
}

/// A script in execution.
struct Run<'a> {
    trial: &'a Trial,
    /// `None` after the script has closed it.
    link: Option<Link>,
    /// The highest id of a Request on the connection.
    last_id: u32,
    /// What may still come on streams on which nothing had to come.
    may_follow: Vec<(u32, Vec<Wanted>)>,
}

impl<'a> Run<'a> {
    async fn start(trial: &'a Trial, byte_by_byte: bool) -> Outcome<Self> {
        let mut link = Link::new(socket(trial).await?, trial.patience());
        link.byte_by_byte = byte_by_byte;
        Ok(Run { trial, link: Some(link), last_id: 0, may_follow: Vec::new() })
    }

    fn link(&mut self) -> Outcome<&mut Link> {
        self.link.as_mut().ok_or(Verdict::Fail("the script has closed the connection".to_owned()))
    }

    fn note_opened(&mut self, steps: &[Step]) {
        for step in steps {
            if let Step::Send(send) = step {
                self.last_id = self.last_id.max(send.opens.unwrap_or(0));
            }
        }
    }

    async fn play(&mut self, steps: &[Step]) -> Outcome<()> {
        for (number, step) in (1..).zip(steps) {
            let played = self.step(step).await;
            played.map_err(|verdict| verdict.in_part(&format!("step {number}")))?;
            if self.link.is_none() && matches!(step, Step::Skip(_)) {
                return Ok(());
            }
        }
        if self.link.is_none() {
            return Ok(());
        }
        self.alive().await.map_err(|verdict| verdict.in_part("at the end"))?;
        self.nothing_is_left()
    }

    async fn step(&mut self, step: &Step) -> Outcome<()> {
        match step {
            Step::Send(send) => {
                self.note_opened(std::slice::from_ref(step));
                self.link()?.send(&send.bytes).await
            }
            Step::Zeros(count) => {
                let mut left = *count;
                while left > 0 {
                    let part = left.min(ZEROS.len() as u64);
                    self.link()?.send(&ZEROS[..part as usize]).await?;
                    left -= part;
                }
                Ok(())
            }
            Step::Expect { ids, wanted } => {
                // A strict run accepts the first alternative alone.
                let accepted = if self.trial.is_strict() { &wanted[..1] } else { &wanted[..] };
                if accepted.contains(&Wanted::Nothing) {
                    return self.expect_nothing(ids, accepted).await;
                }
                for &id in ids {
                    check(&self.link()?.next_of(id).await?, accepted)?;
                }
                Ok(())
            }
            Step::Skip(id) => {
                let skipped = self.link()?.skip(*id).await;
                if skipped.is_err() && !self.trial.is_strict() {
                    // The server lets the stream go on, for ever: there is nothing more to see.
                    self.link = None;
                    return Ok(());
                }
                skipped
            }
            Step::Alive => self.alive().await,
            Step::Release { key, ids } => {
                for &id in ids {
                    self.release(key, id).await?;
                }
                Ok(())
            }
            Step::HalfClose => self.link()?.half_close().await,
            Step::Close => {
                self.link = None;
                Ok(())
            }
            Step::Reset => match self.link.take() {
                Some(link) => link.reset().await,
                None => fail("the script has closed the connection"),
            },
            Step::Ended => {
                self.link()?.ended().await?;
                if self.trial.is_strict() {
                    self.nothing_is_left()?;
                }
                self.link = None;
                Ok(())
            }
            Step::Reconnect => {
                self.link = Some(Link::new(socket(self.trial).await?, self.trial.patience()));
                self.last_id = 0;
                self.may_follow.clear();
                Ok(())
            }
            Step::Idle => self.idle().await,
        }
    }

    /// Checks what came on streams on which nothing has to come.
    async fn expect_nothing(&mut self, ids: &[u32], accepted: &[Wanted]) -> Outcome<()> {
        // A server acts on frames in the order in which they come: once a later call is answered,
        // what it had to say to the frames before has been said. Where it may also answer, its
        // handlers do, and the answer of one may come after that of a later one.
        self.alive().await?;
        for &id in ids {
            while let Some(frame) = self.link()?.take_early(id) {
                check(&frame, accepted)?;
            }
            if accepted.len() > 1 {
                self.may_follow.push((id, accepted.to_vec()));
            }
        }
        Ok(())
    }

    /// Checks that every frame that came was one that the script expected.
    fn nothing_is_left(&mut self) -> Outcome<()> {
        for (id, accepted) in std::mem::take(&mut self.may_follow) {
            while let Some(frame) = self.link()?.take_early(id) {
                check(&frame, &accepted)?;
            }
        }
        self.link()?.nothing_is_left()
    }

    /// Makes a call on the next free stream. Where there is none, a Request that must be refused
    /// tells as much.
    async fn alive(&mut self) -> Outcome<()> {
        let request = EchoRequest { payload: b"alive".to_vec(), response_size: 0 };
        let next = self.last_id.checked_add(if self.last_id.is_multiple_of(2) { 1 } else { 2 });
        let id = next.unwrap_or(self.last_id);
        self.last_id = id;
        let frame = Frame::unary(id, ConformanceClient::NAME, "Echo", &request);
        let link = self.link()?;
        link.send(&frame.to_bytes()).await?;
        let answer = link.next_of(id).await?;
        let wanted = match next {
            Some(_) => Wanted::Ok(EchoResponse { payload: request.payload }.encode_to_vec()),
            None => Wanted::Error(None),
        };
        if wanted.is(&answer) {
            return Ok(());
        }
        fail(format!("an Echo on stream {id} brought {}", describe_frame(&answer)))
    }

    /// Sends a call on the next free stream and gives back its answer.
    async fn call(&mut self, method: &str, request: &impl Message) -> Outcome<Frame> {
        self.last_id += if self.last_id.is_multiple_of(2) { 1 } else { 2 };
        let id = self.last_id;
        let frame = Frame::unary(id, ConformanceClient::NAME, method, request);
        let link = self.link()?;
        link.send(&frame.to_bytes()).await?;
        link.next_of(id).await
    }

    /// Releases a key until the Wait on this stream has ended. Once is not enough where a release
    /// is forgotten: the handler of the Wait may start after that of the Release.
    async fn release(&mut self, key: &str, id: u32) -> Outcome<()> {
        let trial = self.trial;
        let this = tokio::sync::Mutex::new(self);
        trial
            .until("Wait ends after Release", || async {
                let mut this = this.lock().await;
                if let Some(frame) = this.link()?.take_early(id) {
                    return match Wanted::OkAny.is(&frame) {
                        true => Ok(true),
                        false => fail(format!("Wait brought {}", describe_frame(&frame))),
                    };
                }
                let answer = this.call("Release", &KeyRequest { key: key.to_owned() }).await?;
                match Wanted::OkAny.is(&answer) {
                    true => Ok(false),
                    false => fail(format!("Release brought {}", describe_frame(&answer))),
                }
            })
            .await
    }

    /// Asks for statistics until nothing but this connection and this question is left.
    async fn idle(&mut self) -> Outcome<()> {
        let trial = self.trial;
        let this = tokio::sync::Mutex::new(self);
        trial
            .until("the server is idle", || async {
                let mut this = this.lock().await;
                let answer = this.call("Stats", &Empty {}).await?;
                let stats = answer
                    .try_as_response()
                    .and_then(|stats| StatsResponse::decode(&stats.payload[..]).ok());
                let Some(stats) = stats else { return fail(describe_frame(&answer)) };
                Ok(stats.connections <= 1 && stats.calls_in_flight <= 1)
            })
            .await
    }
}

fn check(frame: &Frame, accepted: &[Wanted]) -> Outcome<()> {
    if accepted.iter().any(|wanted| wanted.is(frame)) {
        return Ok(());
    }
    fail(format!("wanted {}, came {}", describe_wanted(accepted), describe_frame(frame)))
}

fn describe_wanted(accepted: &[Wanted]) -> String {
    let one = |wanted: &Wanted| match wanted {
        Wanted::Ok(bytes) => format!("a success with {} bytes", bytes.len()),
        Wanted::OkAny => "a success".to_owned(),
        Wanted::OkMetadata(pairs) => format!("a success with the metadata {pairs:?}"),
        Wanted::Error(None) => "an error".to_owned(),
        Wanted::Error(Some(code)) => code.name().to_owned(),
        Wanted::Data(bytes) => format!("Data with {} bytes", bytes.len()),
        Wanted::End => "the end of the stream".to_owned(),
        Wanted::Nothing => "nothing".to_owned(),
    };
    accepted.iter().map(one).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    use super::*;

    /// Reads Requests for Echo and answers them in this order, each time all that it has.
    async fn answer(listener: UnixListener, order: [&[u32]; 3]) {
        let (mut socket, _) = listener.accept().await.unwrap();
        for ids in order {
            let mut head = [0; 10];
            socket.read_exact(&mut head).await.unwrap();
            let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            socket.read_exact(&mut vec![0; len as usize]).await.unwrap();
            for &id in ids {
                let reply = EchoResponse { payload: b"alive".to_vec() };
                socket.write_all(&Frame::reply(id, &reply).to_bytes()).await.unwrap();
            }
        }
    }

    async fn played(order: [&'static [u32]; 3], text: &str) -> Outcome<()> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("played.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::spawn(answer(listener, order));
        let trial = crate::conformance_suite::trial(path.to_str().unwrap(), false);
        let outcome = run(&trial, &Script::parse(text).unwrap()).await;
        server.abort();
        outcome
    }

    #[tokio::test]
    async fn an_answer_that_may_come_may_come_late() {
        let order: [&[u32]; 3] = [&[], &[3], &[1, 5]];
        let may = "> 1 request Echo echo:alive; < 1 error / ok any / nothing";
        assert_eq!(played(order, may).await, Ok(()));
        let must_not = "> 1 request Echo echo:alive; < 1 nothing";
        assert!(played(order, must_not).await.is_err(), "an answer that must not come is seen");
    }
}
