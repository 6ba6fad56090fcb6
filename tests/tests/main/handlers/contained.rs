//! Code of the program's that panics, at each place where the library runs it: plainly, and with a payload that panics
//! when it is dropped. The call that it belongs to gets INTERNAL or ends as it would have; a call beside it on the
//! same connection notices nothing, nor does the next one.

use std::{
    future::{Future, pending},
    panic::panic_any,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{self, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::{io::duplex, sync::Notify, time::timeout};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Context, Error, Server, ServerConfig, Status,
    async_trait,
    client::{Answer, ConnectOptions, OutgoingCall},
    observer::{CallEnd, CallInfo, ConnectionEnd, ConnectionInfo, MessageInfo, Observer},
    prost::{
        DecodeError, Message,
        bytes::{Buf, BufMut},
        encoding::{DecodeContext, WireType, check_wire_type, skip_field},
    },
    server::{
        ConnectionHook, Interceptor, Next, PeerPolicy, Routes, StreamReceiver, StreamSender,
        blocking,
    },
    testing,
};
use ttrpc_tests::harness::{Handmade, PATIENCE, PIPE_LEN, eventually};

const NAME: &str = "panics.v1.Contained";

/// Panics when it is dropped, as the payload of a panic or as a value.
#[derive(Debug)]
pub(super) struct Undroppable<const BOMB: bool>;

impl<const BOMB: bool> Drop for Undroppable<BOMB> {
    fn drop(&mut self) {
        if !thread::panicking() {
            blow::<BOMB>();
        }
    }
}

/// Panics; if `BOMB`, with a payload that panics when it is dropped, and so does what that throws.
pub(super) fn blow<const BOMB: bool>() {
    if BOMB {
        panic_any(Undroppable::<true>);
    }
    panic!("as asked");
}

const NOWHERE: u8 = 0;
const DEFAULT: u8 = 1;
const DECODE: u8 = 2;
const DECODED: u8 = 3;
const FAILED: u8 = 4;
const LEN: u8 = 5;
const ENCODE: u8 = 6;
const SHORTER: u8 = 7;
const LONGER: u8 = 8;
const MUCH_LONGER: u8 = 9;
const DROP: u8 = 10;

/// A message that panics at this place.
#[derive(Debug)]
struct Panics<const PLACE: u8, const BOMB: bool> {
    is_decoded: bool,
    /// So long that no small frame has room for it.
    is_long: bool,
}

impl<const PLACE: u8, const BOMB: bool> Default for Panics<PLACE, BOMB> {
    fn default() -> Self {
        if PLACE == DEFAULT {
            blow::<BOMB>();
        }
        Panics { is_decoded: false, is_long: false }
    }
}

impl<const PLACE: u8, const BOMB: bool> Panics<PLACE, BOMB> {
    fn made(is_long: bool) -> Self {
        Panics { is_decoded: false, is_long }
    }

    fn len(&self) -> usize {
        if self.is_long { 1000 } else { 2 }
    }
}

impl<const PLACE: u8, const BOMB: bool> Message for Panics<PLACE, BOMB> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let fields = self.len() / 2;
        let fields = match PLACE {
            ENCODE => return blow::<BOMB>(),
            SHORTER => fields - 1,
            LONGER => fields + 1,
            MUCH_LONGER => fields + 1000,
            _ => fields,
        };
        (0..fields).for_each(|_| buf.put_slice(&[8, 1]));
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.is_decoded = true;
        match PLACE {
            DECODE => blow::<BOMB>(),
            FAILED => check_wire_type(WireType::LengthDelimited, wire_type)?,
            _ => {}
        }
        skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        if PLACE == LEN {
            blow::<BOMB>();
        }
        self.len()
    }

    fn clear(&mut self) {}
}

impl<const PLACE: u8, const BOMB: bool> Drop for Panics<PLACE, BOMB> {
    fn drop(&mut self) {
        let panics = match PLACE {
            DROP => true,
            // With what has been read so far.
            FAILED | DECODED => self.is_decoded,
            _ => false,
        };
        if panics && !thread::panicking() {
            blow::<BOMB>();
        }
    }
}

/// What handlers share with the test.
#[derive(Default)]
struct Shared {
    begun: Notify,
    go_on: Notify,
}

type Replies<const PLACE: u8, const BOMB: bool> = StreamSender<Panics<PLACE, BOMB>>;

/// A reply that panics here, at once or behind a wait.
fn replying<const PLACE: u8, const BOMB: bool>(
    routes: Routes,
    shared: &Arc<Shared>,
    name: &'static str,
) -> Routes {
    let stream: &'static str = format!("{name} in a stream").leak();
    let long: &'static str = format!("{name}, long").leak();
    routes
        .unary(name, shared, |_, _, ()| Box::pin(async { Ok(Panics::<PLACE, BOMB>::made(false)) }))
        .unary(long, shared, |_, _, ()| Box::pin(async { Ok(Panics::<PLACE, BOMB>::made(true)) }))
        .server_streaming(stream, shared, |_, _, (), mut replies: Replies<PLACE, BOMB>| {
            Box::pin(async move { replies.send(Panics::made(false)).await })
        })
}

/// A request that panics here, of a unary call and of a stream.
fn requested<const PLACE: u8, const BOMB: bool>(
    routes: Routes,
    shared: &Arc<Shared>,
    name: &'static str,
) -> Routes {
    let stream: &'static str = format!("{name} in a stream").leak();
    routes
        .unary(name, shared, |_, _, _: Panics<PLACE, BOMB>| Box::pin(async { Ok(()) }))
        .client_streaming(
            stream,
            shared,
            |_, _, mut requests: StreamReceiver<Panics<PLACE, BOMB>>| {
                Box::pin(async move {
                    while requests.recv().await?.is_some() {}
                    Ok(())
                })
            },
        )
}

fn routes<const BOMB: bool>(shared: &Arc<Shared>) -> Routes {
    let routes = Routes::new(NAME)
        .unary("Fine", shared, |_, _, ()| Box::pin(async { Ok(()) }))
        .unary("One", shared, |_, _, ()| {
            Box::pin(async { Ok(Panics::<NOWHERE, false>::made(false)) })
        })
        .server_streaming("Ones", shared, |_, _, (), mut replies: Replies<NOWHERE, false>| {
            Box::pin(async move { replies.send(Panics::made(false)).await })
        })
        .client_streaming("Any", shared, |_, _, mut requests: StreamReceiver<()>| {
            Box::pin(async move {
                while requests.recv().await?.is_some() {}
                Ok(())
            })
        })
        .unary("Wait", shared, |shared: &Shared, _, ()| {
            Box::pin(async {
                shared.begun.notify_one();
                shared.go_on.notified().await;
                Ok(())
            })
        })
        .unary_unboxed("closure", shared, |_, _, ()| {
            blow::<BOMB>();
            async { Ok(()) }
        })
        .unary("boxed closure", shared, |_, _, ()| {
            blow::<BOMB>();
            Box::pin(async { Ok(()) })
        })
        .unary("first step", shared, |_, _, ()| {
            Box::pin(async {
                blow::<BOMB>();
                Ok(())
            })
        })
        .unary("later step", shared, |_, _, ()| {
            Box::pin(async {
                tokio::task::yield_now().await;
                blow::<BOMB>();
                Ok(())
            })
        })
        .unary("blocking", shared, |_, ctx: &Context, ()| {
            blocking::run(ctx, |_| {
                blow::<BOMB>();
                Ok(())
            })
        })
        .unary("blocking closure", shared, |_, ctx: &Context, ()| {
            let held = Undroppable::<BOMB>;
            blocking::run(ctx, move |_| {
                drop(held);
                Ok(())
            })
        })
        .server_streaming("stream", shared, |_, _, (), _: StreamSender<()>| {
            blow::<BOMB>();
            Box::pin(async { Ok(()) })
        })
        .unary("never", shared, |_, _, ()| {
            Box::pin(async {
                let _held = Undroppable::<BOMB>;
                pending::<Result<(), Status>>().await
            })
        })
        .unary("extension", shared, |_, ctx: &Context, ()| {
            ctx.extensions().insert(Undroppable::<BOMB>);
            Box::pin(async { Ok(()) })
        });
    let routes = requested::<DEFAULT, BOMB>(routes, shared, "default");
    let routes = requested::<DECODE, BOMB>(routes, shared, "decode");
    let routes = requested::<FAILED, BOMB>(routes, shared, "failed");
    let routes = requested::<DECODED, BOMB>(routes, shared, "decoded");
    let routes = replying::<LEN, BOMB>(routes, shared, "len");
    let routes = replying::<ENCODE, BOMB>(routes, shared, "encode");
    let routes = replying::<SHORTER, BOMB>(routes, shared, "shorter");
    let routes = replying::<LONGER, BOMB>(routes, shared, "longer");
    let routes = replying::<MUCH_LONGER, BOMB>(routes, shared, "much longer");
    replying::<DROP, BOMB>(routes, shared, "drop")
}

/// A connection with a call that goes on beside all others.
struct Setup {
    client: Client,
    shared: Arc<Shared>,
}

impl Setup {
    fn new<const BOMB: bool>(
        server: impl FnOnce(ttrpc::server::ServerBuilder) -> ttrpc::server::ServerBuilder,
        options: ConnectOptions,
    ) -> Self {
        let shared = Arc::<Shared>::default();
        let builder = Server::builder().add_service(Handmade(routes::<BOMB>(&shared)));
        Setup { client: testing::Setup::new(server(builder)).client(options).connect(), shared }
    }

    /// Does something beside a call that waits. That call and the next one end well.
    async fn beside<T>(&self, what: &str, done: impl Future<Output = T>) -> T {
        let waiting = tokio::spawn(self.client.unary::<(), ()>(NAME, "Wait", ()).into_future());
        self.shared.begun.notified().await;
        let done = timeout(PATIENCE, done).await;
        let done = done.unwrap_or_else(|_| panic!("{what}: there is no answer"));
        self.shared.go_on.notify_one();
        assert_eq!(waiting.await.unwrap(), Ok(()), "beside {what}");
        assert_eq!(self.client.unary::<(), ()>(NAME, "Fine", ()).await, Ok(()), "behind {what}");
        done
    }

    /// The code of a unary call.
    async fn code<Req: Message + 'static, Resp: Message + Default + 'static>(
        &self,
        method: &'static str,
        request: Req,
    ) -> Code {
        let call = self.client.unary::<Req, Resp>(NAME, method, request);
        let call = call.timeout(PATIENCE);
        self.beside(method, async { call.await.map_or_else(|status| status.code(), |_| Code::Ok) })
            .await
    }

    /// The code with which a stream of replies ends.
    async fn stream_code<Resp: Message + Default + 'static>(&self, method: &'static str) -> Code {
        self.beside(method, async {
            let call = self.client.server_streaming::<(), Resp>(NAME, method, ());
            let mut replies = match call.await {
                Ok(replies) => replies,
                Err(status) => return status.code(),
            };
            loop {
                match replies.recv().await {
                    Ok(None) => return Code::Ok,
                    Ok(Some(_)) => {}
                    Err(status) => return status.code(),
                }
            }
        })
        .await
    }

    /// The code with which a stream of one request ends, or its sender.
    async fn request_code<Req: Message + 'static>(
        &self,
        method: &'static str,
        request: Req,
    ) -> Code {
        self.beside(method, async {
            let (mut requests, reply) =
                self.client.client_streaming::<Req, ()>(NAME, method).await.unwrap();
            if let Err(status) = requests.send(request).await {
                return status.code();
            }
            requests.finish();
            reply.await.map_or_else(|status| status.code(), |()| Code::Ok)
        })
        .await
    }
}

type Plain = Panics<NOWHERE, false>;

fn one() -> Plain {
    Plain::made(false)
}

async fn handlers_and_messages_of_a_server<const BOMB: bool>() {
    let setup = Setup::new::<BOMB>(|server| server, ConnectOptions::new());
    for (method, code) in [
        ("default", Code::Internal),
        ("decode", Code::Internal),
        // Its handler has it, and drops it.
        ("decoded", Code::Internal),
        // It does not decode. That it is not dropped well either changes nothing of it.
        ("failed", Code::InvalidArgument),
    ] {
        assert_eq!(setup.code::<_, ()>(method, one()).await, code, "{method}");
        let stream: &'static str = format!("{method} in a stream").leak();
        assert_eq!(setup.request_code(stream, one()).await, code, "{stream}");
    }
    for method in
        ["closure", "boxed closure", "first step", "later step", "blocking", "blocking closure"]
    {
        assert_eq!(setup.code::<_, ()>(method, ()).await, Code::Internal, "{method}");
    }
    for method in ["len", "encode", "shorter", "longer", "much longer"] {
        assert_eq!(setup.code::<_, Plain>(method, ()).await, Code::Internal, "{method}");
        let stream: &'static str = format!("{method} in a stream").leak();
        assert_eq!(setup.stream_code::<Plain>(stream).await, Code::Internal, "{stream}");
        let long: &'static str = format!("{method}, long").leak();
        assert_eq!(setup.code::<_, Plain>(long, ()).await, Code::Internal, "{long}");
    }
    assert_eq!(setup.stream_code::<()>("stream").await, Code::Internal);
    // What is dropped behind the end changes nothing of it.
    for method in ["drop", "drop, long", "extension"] {
        assert_eq!(setup.code::<_, Plain>(method, ()).await, Code::Ok, "{method}");
    }
    assert_eq!(setup.stream_code::<Plain>("drop in a stream").await, Code::Ok);
    let never = setup.client.unary::<(), ()>(NAME, "never", ()).timeout(Duration::from_millis(1));
    let status = setup.beside("never", never.into_future()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

async fn messages_of_a_client<const BOMB: bool>() {
    let setup = Setup::new::<BOMB>(|server| server, ConnectOptions::new());
    macro_rules! requests {
        ($($place:ident: $code:ident),*) => {$(
            for is_long in [false, true] {
                let request = || Panics::<$place, BOMB>::made(is_long);
                let code = setup.code::<_, ()>("Fine", request()).await;
                assert_eq!(code, Code::$code, stringify!($place));
                let code = setup.request_code("Any", request()).await;
                assert_eq!(code, Code::$code, stringify!($place in a stream));
            }
        )*};
    }
    requests!(LEN: Internal, ENCODE: Internal, SHORTER: Internal, LONGER: Internal);
    requests!(MUCH_LONGER: Internal, DROP: Ok);
    macro_rules! replies {
        ($($place:ident),*) => {$(
            let code = setup.code::<_, Panics<$place, BOMB>>("One", ()).await;
            assert_eq!(code, Code::Internal, stringify!($place));
            let code = setup.stream_code::<Panics<$place, BOMB>>("Ones").await;
            assert_eq!(code, Code::Internal, stringify!($place in a stream));
        )*};
    }
    replies!(DEFAULT, DECODE, FAILED);
}

/// Where an interceptor panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Before,
    Behind,
    Callbacks,
    Future,
}

const ALL: [Where; 4] = [Where::Before, Where::Behind, Where::Callbacks, Where::Future];

/// Panics in calls of two methods, one of which answers with a stream.
struct Intercepts<const BOMB: bool>(Where);

#[async_trait]
impl<const BOMB: bool> Interceptor for Intercepts<BOMB> {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        if !ctx.method().starts_with("One") {
            return next.run(ctx).await;
        }
        if self.0 == Where::Before {
            blow::<BOMB>();
        }
        let _held = (self.0 == Where::Future).then(|| Undroppable::<BOMB>);
        let result = next.run(ctx).await;
        if self.0 == Where::Behind {
            blow::<BOMB>();
        }
        result
    }
}

#[async_trait]
impl<const BOMB: bool> ttrpc::client::Interceptor for Intercepts<BOMB> {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: ttrpc::client::Next<'_>,
    ) -> Result<Answer, Status> {
        if !call.method().starts_with("One") {
            return next.run(call).await;
        }
        if self.0 == Where::Before {
            blow::<BOMB>();
        }
        let _held = (self.0 == Where::Future).then(|| Undroppable::<BOMB>);
        if self.0 == Where::Callbacks {
            let held = Undroppable::<BOMB>;
            call.on_message(move |_| {
                let _held = &held;
                blow::<BOMB>();
            });
        }
        let answer = next.run(call).await;
        match self.0 {
            Where::Behind => blow::<BOMB>(),
            Where::Callbacks => answer.iter().for_each(|answer| answer.on_end(|_| blow::<BOMB>())),
            Where::Before | Where::Future => {}
        }
        answer
    }
}

async fn interceptors<const BOMB: bool>() {
    for place in ALL {
        let code = if place == Where::Callbacks { Code::Ok } else { Code::Internal };
        let add =
            |server: ttrpc::server::ServerBuilder| server.intercept(Intercepts::<BOMB>(place));
        let setup = Setup::new::<BOMB>(add, ConnectOptions::new());
        assert_eq!(setup.code::<_, Plain>("One", ()).await, code, "{place:?}");
        assert_eq!(setup.stream_code::<Plain>("Ones").await, code, "{place:?} of a stream");

        let mut setup = Setup::new::<BOMB>(|server| server, ConnectOptions::new());
        setup.client = setup.client.with_interceptor(Intercepts::<BOMB>(place));
        assert_eq!(setup.code::<_, Plain>("One", ()).await, code, "{place:?} on a client");
        let streamed = setup.stream_code::<Plain>("Ones").await;
        assert_eq!(streamed, code, "{place:?} of a stream on a client");
    }
    // The rest of the chain runs the program's code as well.
    let add = |server: ttrpc::server::ServerBuilder| server.intercept(Passes);
    let setup = Setup::new::<BOMB>(add, ConnectOptions::new());
    for (method, code) in
        [("default", Code::Internal), ("decode", Code::Internal), ("failed", Code::InvalidArgument)]
    {
        assert_eq!(setup.code::<_, ()>(method, one()).await, code, "{method}");
    }
    for method in ["closure", "boxed closure", "first step", "later step", "blocking"] {
        assert_eq!(setup.code::<_, ()>(method, ()).await, Code::Internal, "{method}");
    }
}

struct Passes;

#[async_trait]
impl Interceptor for Passes {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        next.run(ctx).await
    }
}

/// Panics in every event that it is told of, and counts them.
#[derive(Default)]
struct Observes<const BOMB: bool>(AtomicUsize);

impl<const BOMB: bool> Observes<BOMB> {
    fn panic(&self) {
        self.0.fetch_add(1, SeqCst);
        blow::<BOMB>();
    }
}

impl<const BOMB: bool> Observer for Observes<BOMB> {
    fn connection_opened(&self, _: &ConnectionInfo<'_>) {
        self.panic();
    }
    fn connection_closed(&self, _: &ConnectionInfo<'_>, _: &ConnectionEnd<'_>) {
        self.panic();
    }
    fn connection_refused(&self, _: &ConnectionInfo<'_>, _: &str) {
        self.panic();
    }
    fn call_begun(&self, _: &CallInfo<'_>) {
        self.panic();
    }
    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.panic();
    }
    fn wants_messages(&self) -> bool {
        true
    }
    fn message(&self, _: &CallInfo<'_>, _: &MessageInfo) {
        self.panic();
    }
}

async fn observers<const BOMB: bool>() {
    let [server, client] = [(); 2].map(|()| Arc::<Observes<BOMB>>::default());
    let options = ConnectOptions::new().observe(client.clone());
    let setup = Setup::new::<BOMB>(|builder| builder.observe(server.clone()), options);
    assert_eq!(setup.code::<_, Plain>("One", ()).await, Code::Ok);
    assert_eq!(setup.stream_code::<Plain>("Ones").await, Code::Ok);
    assert_eq!(setup.request_code("Any", ()).await, Code::Ok);
    assert_eq!(setup.code::<_, ()>("unknown", ()).await, Code::Unimplemented);
    let before = server.0.load(SeqCst);
    setup.client.close();
    eventually("the end is told", || server.0.load(SeqCst) > before).await;
    assert!(client.0.load(SeqCst) > 10 && before > 10);
}

/// An error that panics when it is printed.
#[derive(Debug)]
struct Unprintable<const BOMB: bool>(bool);

impl<const BOMB: bool> std::fmt::Display for Unprintable<BOMB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 {
            blow::<BOMB>();
        }
        f.write_str("unprintable")
    }
}

impl<const BOMB: bool> std::error::Error for Unprintable<BOMB> {}

impl<const BOMB: bool> Drop for Unprintable<BOMB> {
    fn drop(&mut self) {
        if !self.0 && !thread::panicking() {
            blow::<BOMB>();
        }
    }
}

/// Panics with the connections of these numbers.
#[derive(Default)]
struct Hooks<const BOMB: bool>(AtomicUsize);

const HOOKED: usize = 5;

#[async_trait]
impl<const BOMB: bool> ConnectionHook for Hooks<BOMB> {
    async fn connected(
        &self,
        connection: &mut Connection,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.0.fetch_add(1, SeqCst) {
            0 => blow::<BOMB>(),
            1 => {
                tokio::task::yield_now().await;
                blow::<BOMB>();
            }
            nth @ (2 | 3) => return Err(Box::new(Unprintable::<BOMB>(nth == 2))),
            4 => {
                let _held = Undroppable::<BOMB>;
                pending::<()>().await;
            }
            _ => {
                connection.extensions().insert(Undroppable::<BOMB>);
            }
        }
        Ok(())
    }
}

async fn hooks_and_policies<const BOMB: bool>() {
    let shared = Arc::<Shared>::default();
    let asked = AtomicUsize::new(0);
    let policy = move |_: &ttrpc::server::Peer| {
        if asked.fetch_add(1, SeqCst) == 0 {
            blow::<BOMB>();
        }
        true
    };
    let server = Server::builder()
        .config(ServerConfig::default())
        .allow_peers(PeerPolicy::custom(policy))
        .on_connection(Hooks::<BOMB>::default(), Duration::from_millis(10))
        .add_service(Handmade(routes::<BOMB>(&shared)))
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    for nth in 0..HOOKED + 1 {
        let (_here, there) = duplex(PIPE_LEN);
        let served = handle.serve_connection(Connection::new(there)).await;
        assert!(matches!(served, Err(Error::PeerRefused { .. })), "{nth}: {served:?}");
    }
    let (here, there) = duplex(PIPE_LEN);
    handle.serve_connection(Connection::new(there)).await.unwrap();
    let client = Client::from_io(here, ClientConfig::default());
    assert_eq!(client.unary::<(), ()>(NAME, "Fine", ()).await, Ok(()));
    drop(client);
    eventually("the connection has ended", || handle.connections() == 0).await;
    handle.close().await;
    serving.await.unwrap().unwrap();
}

/// Panics when it is woken.
struct Waking<const BOMB: bool>;

impl<const BOMB: bool> Wake for Waking<BOMB> {
    fn wake(self: Arc<Self>) {
        blow::<BOMB>();
    }
}

async fn wakers<const BOMB: bool>() {
    let setup = Setup::new::<BOMB>(|server| server, ConnectOptions::new());
    let waker: Waker = Arc::new(Waking::<BOMB>).into();
    let mut cx = task::Context::from_waker(&waker);
    // Of a reply, of messages, and of the end of a stream of requests.
    let mut call = setup.client.unary::<(), ()>(NAME, "Fine", ());
    assert!(Pin::new(&mut call).poll(&mut cx).is_pending());
    let mut replies = setup.client.server_streaming::<(), Plain>(NAME, "Ones", ()).await.unwrap();
    let polled = pin!(replies.recv()).poll(&mut cx);
    let (requests, mut reply) = setup.client.client_streaming::<(), ()>(NAME, "Any").await.unwrap();
    assert!(Pin::new(&mut reply).poll(&mut cx).is_pending());
    requests.finish();
    setup.beside("wakers", async {}).await;
    if polled.is_pending() {
        assert!(replies.recv().await.unwrap().is_some());
    }
    assert_eq!(call.await, Ok(()));
    assert_eq!(reply.await, Ok(()));
}

async fn all<const BOMB: bool>() {
    handlers_and_messages_of_a_server::<BOMB>().await;
    messages_of_a_client::<BOMB>().await;
    interceptors::<BOMB>().await;
    observers::<BOMB>().await;
    hooks_and_policies::<BOMB>().await;
    wakers::<BOMB>().await;
}

#[tokio::test]
async fn code_of_the_program_that_panics_harms_its_own_call_alone() {
    all::<false>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_of_the_program_that_panics_harms_its_own_call_alone_on_several_threads() {
    all::<false>().await;
}

#[tokio::test]
async fn a_panic_whose_payload_panics_when_it_is_dropped_harms_its_own_call_alone() {
    all::<true>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_whose_payload_panics_when_it_is_dropped_harms_its_own_call_alone_on_several_threads()
 {
    all::<true>().await;
}
