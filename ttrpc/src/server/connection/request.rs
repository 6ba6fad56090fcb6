//! Requests, from their frames to their handlers: each is decoded, routed and admitted, or refused.

use std::{mem, sync::Arc, time::Duration};

use tokio::{
    task::{coop::consume_budget, yield_now},
    time::Instant,
};

use crate::server::{
    call::{
        reasons::{EndReason, Refusal},
        shared::{AdmittedLoad, Connection},
        state::{Call, CallHead},
        task::CallOwner,
    },
    control,
    service::services::Target,
};
use crate::{
    Raw, Status,
    observer::EndCause,
    proto::{
        frame::Header,
        message::{Request, RequestDecoder},
        payload::Payload,
    },
    sync::atomic::Ordering::SeqCst,
    transport::{
        io::ReadHalf,
        limiter::Load,
        wire::{FrameReader, hung_up},
    },
};

/// Fields of a Request that are decoded before the task yields: more than any honest one has.
const FIELDS_PER_TURN: usize = 4096;

/// Why a frame was not acted on as it asks.
pub(in crate::server) enum Failure {
    /// Its stream is refused, or ends, with this status.
    Refused(Refusal),
    /// The client has gone.
    Gone,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

/// Opens a stream, or refuses it.
pub(in crate::server) async fn open<R: ReadHalf>(
    connection: &Arc<Connection>,
    header: Header,
    reader: &mut FrameReader<R>,
) -> Result<(), Failure> {
    let arrived = reader.read_at();
    let (decoder, io) = reader.parts();
    let more_to_come = decoder.bytes_left() > 0;
    let long_data = decoder.take_long_data();
    let data = decoder.payload(&long_data);
    let incoming = IncomingRequest { connection, header, data, arrived, more_to_come };
    let refusal = match incoming.try_open() {
        Ok(true) => return Ok(()),
        // Boxed, as all waits are that an idle connection has no need of.
        Ok(false) => return Box::pin(incoming.open_in_turn(io)).await,
        Err(refusal) => refusal,
    };
    match control::serve(connection, header, incoming.decoder(), refusal) {
        Ok(()) => {
            consume_budget().await;
            Box::pin(connection.send_response(header.stream_id, Raw::default(), None)).await;
            Ok(())
        }
        Err(refusal) => {
            incoming.refuse(&refusal, false);
            Err(refusal.into())
        }
    }
}

/// A Request on its way to its handler.
struct IncomingRequest<'a> {
    connection: &'a Arc<Connection>,
    header: Header,
    data: Payload<'a>,
    /// When it was read.
    arrived: Instant,
    /// Frames have arrived behind it.
    more_to_come: bool,
}

/// Reports, when it is dropped, that the connection has ended while a call waited to be admitted.
struct LostRequest<'a>(&'a IncomingRequest<'a>);

impl Drop for LostRequest<'_> {
    fn drop(&mut self) {
        self.0.refused(&self.0.connection.lost_call(), true);
    }
}

impl<'a> IncomingRequest<'a> {
    /// Begins the call's handler; `false` if the call has to wait. What cannot be served is refused
    /// first, so that it neither waits nor counts.
    fn try_open(&self) -> Result<bool, Refusal> {
        if !self.connection.server.lifecycle.is_running.load(SeqCst) {
            let status = Status::unavailable("the server is shutting down");
            return Err(Refusal { cause: EndCause::Shutdown, status });
        }
        let mut decoder = self.decoder();
        if !self.advance(&mut decoder)? {
            return Ok(false);
        }
        let request = decoder.request();
        let (target, deadline) = self.route(request)?;
        let Some(load) = self.connection.call_limits().try_acquire(self.load(request)) else {
            return Ok(false);
        };
        self.start(request, target, deadline, load, false).map(|()| true)
    }

    /// Opens the call as [`try_open`](Self::try_open) does, and waits where that could not go on.
    async fn open_in_turn(&self, io: &mut impl ReadHalf) -> Result<(), Failure> {
        let lost = LostRequest(self);
        let result = self.wait_and_open(io).await;
        if !matches!(result, Err(Failure::Gone)) {
            mem::forget(lost);
        }
        if let Err(Failure::Refused(refusal)) = &result {
            self.refuse(refusal, true);
        }
        result
    }

    /// Yields while it decodes, and waits until the call is admitted.
    async fn wait_and_open(&self, io: &mut impl ReadHalf) -> Result<(), Failure> {
        let mut decoder = self.decoder();
        while !self.advance(&mut decoder)? {
            yield_now().await;
        }
        let request = decoder.request();
        let (target, deadline) = self.route(request)?;
        let limits = self.connection.call_limits();
        let load = tokio::select! {
            biased;
            load = limits.acquire(self.load(request)) => load,
            () = hung_up(io) => {
                let _ = self.connection.end_reason.set(EndReason::closed_by_client());
                return Err(Failure::Gone);
            }
        };
        match load {
            Some(load) => Ok(self.start(request, target, deadline, load, true)?),
            None if self.connection.is_full_of_calls() => {
                Err(Refusal::limit("too many calls are in flight and none of them ends").into())
            }
            None => {
                let message =
                    "too many bytes of requests are in flight and none of their calls ends";
                Err(Refusal::limit(message).into())
            }
        }
    }

    fn decoder(&self) -> RequestDecoder<'a> {
        let max_pairs = self.connection.server.config.max_metadata_pairs;
        RequestDecoder::new(self.data.bytes(), max_pairs)
    }

    /// Decodes for a turn; returns whether the Request is whole. A Request that is refused for its metadata, and whose
    /// method no service has, is refused for its method.
    fn advance(&self, decoder: &mut RequestDecoder<'a>) -> Result<bool, Refusal> {
        decoder.advance(FIELDS_PER_TURN).map_err(|error| {
            let request = decoder.request();
            let is_named = !request.service.is_empty() && !request.method.is_empty();
            match self.connection.server.services.find(request) {
                Err(refusal) if is_named && refusal.cause == EndCause::Unimplemented => refusal,
                _ => error.into(),
            }
        })
    }

    /// The load of the call until its handler has ended.
    fn load(&self, request: &Request<'_>) -> Load {
        Load::one(self.data.bytes().len() + request.metadata.cost())
    }

    /// Returns what takes the call, and its deadline.
    fn route(&self, request: &Request<'a>) -> Result<(Target<'a>, Option<Instant>), Refusal> {
        let target = self.connection.server.services.find(request)?;
        target.check_flags(self.header.flags)?;
        let deadline = match request.timeout_nano {
            0 => None,
            nanos => {
                let timeout = u64::try_from(nanos).map(Duration::from_nanos);
                // The time that the call waits to be admitted is part of its time.
                self.arrived.checked_add(timeout.map_err(|_| Refusal::late_start())?)
            }
        };
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Refusal::late_start());
        }
        Ok((target, deadline))
    }

    /// Starts the handler of a call that has been admitted. Its metadata are decoded here: until it is admitted no limit
    /// counts them.
    fn start(
        &self,
        request: &Request<'a>,
        target: Target<'a>,
        deadline: Option<Instant>,
        load: AdmittedLoad,
        has_waited: bool,
    ) -> Result<(), Refusal> {
        let metadata = request.metadata.decode();
        let metadata = metadata.inspect_err(|_| self.connection.call_limits().release(load))?;
        let (flags, (handler, kind)) = (self.header.flags, target.handler());
        let has_inbox = target.has_inbox(flags);
        let has_message = target.has_message(request.payload, flags);
        let (service, method) = target.names;
        let head = CallHead {
            stream_id: self.header.stream_id,
            service,
            method,
            flags,
            data_len: self.data.bytes().len(),
            more_to_come: self.more_to_come,
            has_message,
            method_id: target.method_id,
            metadata,
            started: self.arrived,
            deadline,
        };
        let call = Call::new(self.connection.clone(), head, load, has_inbox);
        if has_waited && let Some(stats) = &call.stats {
            stats.has_waited_for_admission();
        }
        let payload = self.data.part(request.payload);
        CallOwner::new(call).start(handler, kind, target.chain, payload)
    }

    /// Reports that the call is refused, and notes that its stream is.
    fn refuse(&self, refusal: &Refusal, has_waited: bool) {
        self.refused(refusal, has_waited);
        let Header { stream_id, flags, .. } = self.header;
        self.connection.queue.streams(|table| table.refuse(stream_id, flags));
    }

    /// Reports that the call is refused.
    fn refused(&self, refusal: &Refusal, has_waited: bool) {
        let mut decoder = self.decoder();
        // As far as it can be read.
        let _ = decoder.advance(FIELDS_PER_TURN);
        let names = decoder.request().names().unwrap_or_default();
        self.connection.refused(self.header, names, self.arrived, has_waited, refusal);
    }
}
