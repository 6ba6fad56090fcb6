//! Running a case for the client.

use std::{collections::HashMap, future::IntoFuture, time::Duration};

use tokio::{
    io::{AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use ttrpc::{
    Client, ClientConfig, Status,
    client::{Reply, StreamReceiver, StreamSender},
    prost::Message,
};

use super::script::{Step, Wanted};
use crate::{
    conformance::*,
    conformance_suite::wire_cases::describe_frame,
    harness::{DecodeFrom, MAX_DATA_LEN, played_server_over},
    wire::{Peer, REMOTE_CLOSED, REMOTE_OPEN},
};

/// How long a result that must come is waited for. Reached only where it does not come.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, String>;

/// Plays the steps, and checks that the connection is alive at the end unless it was closed.
pub(super) async fn run(steps: &[Step]) -> Result<()> {
    // The pipe holds whatever one step sends, so that one task can play both sides.
    let (client, conformance, peer) = played_server_over(ClientConfig::default(), 4 * MAX_DATA_LEN);
    let mut run =
        Run { client, conformance, peer: Some(peer), calls: HashMap::new(), last_id: None };
    for (number, step) in (1..).zip(steps) {
        run.step(step).await.map_err(|error| format!("step {number}: {error}"))?;
    }
    match run.peer {
        Some(_) => run.alive().await.map_err(|error| format!("at the end: {error}")),
        None => Ok(()),
    }
}

/// A call that the script has begun.
enum Call {
    Unary(JoinHandle<std::result::Result<Vec<u8>, Status>>),
    Replies(StreamReceiver<Chunk>),
    Upload(Option<StreamSender<Chunk>>, Reply<CollectResponse>),
    Exchange(Option<StreamSender<Chunk>>, StreamReceiver<Chunk>),
}

impl Call {
    fn sender(&mut self) -> Result<&mut Option<StreamSender<Chunk>>> {
        match self {
            Call::Upload(sender, _) | Call::Exchange(sender, _) => Ok(sender),
            Call::Unary(_) | Call::Replies(_) => Err("the call sends no stream".to_owned()),
        }
    }
}

struct Run {
    client: Client,
    conformance: ConformanceClient,
    /// `None` once the script has closed the connection.
    peer: Option<Peer<DuplexStream>>,
    calls: HashMap<u32, Call>,
    last_id: Option<u32>,
}

impl Run {
    fn peer(&mut self) -> Result<&mut Peer<DuplexStream>> {
        self.peer.as_mut().ok_or("the script has closed the connection".to_owned())
    }

    fn call(&mut self, id: u32) -> Result<&mut Call> {
        self.calls.get_mut(&id).ok_or(format!("there is no call {id}"))
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Call { id, method, request, timeout } => {
                self.begin(*id, method, request, *timeout).await
            }
            Step::Refused { method, request, code } => {
                match self.start(method, request, None).await {
                    Ok(Call::Unary(call)) => {
                        let result = call.await.map_err(|error| error.to_string())?;
                        check(result.map(Some), &Wanted::Fails(*code))
                    }
                    Ok(_) => Err("the call was begun".to_owned()),
                    Err(status) => check(Err(status), &Wanted::Fails(*code)),
                }
            }
            Step::Send { id, message } => {
                let sender = self.call(*id)?.sender()?.as_mut().ok_or("it is finished")?;
                let sent = sender.send(Chunk::decode_from(message)).await;
                sent.map_err(|status| format!("sending failed: {status}"))
            }
            Step::SendFails { id, code } => {
                // What the server has sent before has to be read first.
                settle().await;
                let sender = self.call(*id)?.sender()?.as_mut().ok_or("it is finished")?;
                let sent = sender.send(Chunk::default()).await;
                check(sent.map(|()| None), &Wanted::Fails(*code))
            }
            Step::Finish(id) => {
                self.call(*id)?.sender()?.take().ok_or("it is finished")?.finish();
                Ok(())
            }
            Step::Drop(id) => {
                if let Some(Call::Unary(call)) = self.calls.remove(id) {
                    call.abort();
                }
                settle().await;
                Ok(())
            }
            Step::Reply { id, wanted } => self.reply(*id, wanted).await,
            Step::Receive { id, wanted } => self.receive(*id, wanted).await,
            Step::Comes(wanted) => {
                let came = self.peer()?.receive().await;
                if came == *wanted {
                    return Ok(());
                }
                Err(format!("wanted {}, came {}", describe_frame(wanted), describe_frame(&came)))
            }
            Step::Quiet => match self.peer()?.is_quiet().await {
                true => Ok(()),
                false => Err("a frame came, or the end of the connection".to_owned()),
            },
            Step::Open(count) => {
                settle().await;
                let open = self.client.calls_in_flight();
                if open == *count { Ok(()) } else { Err(format!("{open} calls are in flight")) }
            }
            Step::Bytes(bytes) => {
                let written = self.peer()?.io().write_all(bytes).await;
                written.map_err(|error| format!("the client has closed the connection: {error}"))
            }
            Step::Close => {
                self.peer = None;
                Ok(())
            }
            Step::Wait(time) => {
                sleep(*time).await;
                Ok(())
            }
        }
    }

    /// Begins a call, and checks its Request.
    async fn begin(
        &mut self,
        id: u32,
        method: &str,
        request: &[u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let call = self.start(method, request, timeout).await.map_err(|s| s.to_string())?;
        let flags = match &call {
            Call::Unary(_) => 0,
            Call::Replies(_) => REMOTE_CLOSED,
            Call::Upload(..) | Call::Exchange(..) => REMOTE_OPEN,
        };
        self.calls.insert(id, call);
        let frame = self.peer()?.receive().await;
        if (frame.id, frame.kind, frame.flags) != (id, crate::wire::REQUEST, flags) {
            return Err(format!("instead of the Request came {}", describe_frame(&frame)));
        }
        let came = frame.as_request();
        let is_right = came.service == ConformanceClient::NAME
            && came.method == method
            && came.payload == request
            && came.metadata.is_empty()
            && came.timeout_nano == timeout.map_or(0, |timeout| timeout.as_nanos() as i64);
        self.last_id = Some(id);
        if is_right { Ok(()) } else { Err(format!("the Request is {came:?}")) }
    }

    async fn start(
        &self,
        method: &str,
        request: &[u8],
        timeout: Option<Duration>,
    ) -> std::result::Result<Call, Status> {
        // No timeout is as good as one that never passes, but is not sent.
        macro_rules! made {
            ($call:expr) => {
                match timeout {
                    Some(timeout) => $call.timeout(timeout),
                    None => $call,
                }
            };
        }
        let conformance = &self.conformance;
        Ok(match method {
            "Echo" => unary(made!(conformance.echo(EchoRequest::decode_from(request)))),
            "Release" => unary(made!(conformance.release(KeyRequest::decode_from(request)))),
            "Generate" => Call::Replies(
                made!(conformance.generate(GenerateRequest::decode_from(request))).await?,
            ),
            "Collect" => {
                let (requests, reply) = made!(conformance.collect()).await?;
                Call::Upload(Some(requests), reply)
            }
            "Exchange" => {
                let (requests, replies) = made!(conformance.exchange()).await?;
                Call::Exchange(Some(requests), replies)
            }
            other => panic!("no case may call {other:?}"),
        })
    }

    async fn reply(&mut self, id: u32, wanted: &Wanted) -> Result<()> {
        let result = match self.call(id)? {
            Call::Unary(call) => in_time(call).await?.map_err(|error| error.to_string())?,
            Call::Upload(_, reply) => in_time(reply).await?.map(|reply| reply.encode_to_vec()),
            Call::Replies(_) | Call::Exchange(..) => return Err("it has many replies".to_owned()),
        };
        check(result.map(Some), wanted)
    }

    async fn receive(&mut self, id: u32, wanted: &Wanted) -> Result<()> {
        let (Call::Replies(replies) | Call::Exchange(_, replies)) = self.call(id)? else {
            return Err("the call has no stream of replies".to_owned());
        };
        let received = in_time(replies.recv()).await?;
        check(received.map(|chunk| chunk.map(|chunk| chunk.encode_to_vec())), wanted)
    }

    /// A call on the connection gets its own reply.
    async fn alive(&mut self) -> Result<()> {
        let request = EchoRequest { payload: b"alive".to_vec(), response_size: 0 };
        let bytes = request.encode_to_vec();
        let id = self.last_id.map_or(1, |id| id + 2);
        self.begin(id, "Echo", &bytes, None).await?;
        let reply = EchoResponse { payload: request.payload };
        let frame = crate::wire::Frame::reply(id, &reply);
        self.step(&Step::Bytes(frame.to_bytes())).await?;
        self.reply(id, &Wanted::Message(reply.encode_to_vec())).await
    }
}

fn unary<M: Message>(
    call: impl IntoFuture<
        Output = std::result::Result<M, Status>,
        IntoFuture: std::marker::Send + 'static,
    >,
) -> Call {
    let call = call.into_future();
    Call::Unary(tokio::spawn(async move { call.await.map(|reply| reply.encode_to_vec()) }))
}

async fn in_time<T>(result: impl IntoFuture<Output = T>) -> Result<T> {
    timeout(PATIENCE, result).await.map_err(|_| "nothing came in time".to_owned())
}

/// Lets everything happen that can happen by itself.
async fn settle() {
    sleep(Duration::from_millis(5)).await;
}

fn check(came: std::result::Result<Option<Vec<u8>>, Status>, wanted: &Wanted) -> Result<()> {
    match (&came, wanted) {
        (Ok(Some(message)), Wanted::Message(wanted)) if message == wanted => Ok(()),
        (Ok(None), Wanted::End) => Ok(()),
        (Err(status), Wanted::Fails(code)) if status.code() == *code => Ok(()),
        (Ok(None), _) => Err(format!("wanted {wanted:?}, came the end")),
        (Ok(Some(message)), _) => Err(format!("wanted {wanted:?}, came {message:?}")),
        (Err(status), _) => Err(format!("wanted {wanted:?}, came {status}")),
    }
}
