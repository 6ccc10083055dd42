//! The receive side of a connection: drives a [`Receiver`] and tells a [`Sink`] what came.
//!
//! Control bytes, and small payloads with them, are received into staging. The rest of a larger
//! payload is received straight into its destination, in pieces that are still in cache when their
//! checksum is folded.

use std::future::{Future, pending};
use std::pin::pin;

use lunette_auth::{AuthFault, Opener, Progress, Sealer};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::net::{Outbox, TcpStream};
use lunette_runtime::{OpError, arena, time};
use lunette_runtime_core::checksum::Crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::hello::{Agreement, Handshake, HandshakeFault, HandshakeOutput};
use lunette_transfer_proto::receiver::{
    FrameView, PayloadVerdict, Receiver, ReceiverLimits, Step, WireFault,
};

use crate::error::{CloseReason, ConnectError};
use crate::guard::GuardFault;
use crate::room::Room;
use crate::sealed::{Opening, SEALED_STAGING_BYTES};

/// Size of the staging buffer. What arrives of a payload in here is copied once, so it is small
/// against the payloads for which the copy would matter.
const STAGING_BYTES: usize = 32 * 1024;
/// Behind a frame with a payload above this another such frame is expected.
const BULK_BYTES_MIN: u32 = 64 * 1024;
/// What is received of such a frame before its payload goes to its destination: its head, and little more
/// that is copied.
const BULK_HEAD_BYTES: usize = 4 * 1024;
/// Most bytes received straight into a destination at once: they are to be in the core's own cache
/// when their checksum is folded.
const DIRECT_BYTES_MAX: u32 = 256 * 1024;

/// Who is told what came.
pub(crate) trait Sink {
    /// A frame; its payload, if any, follows.
    fn on_frame(&mut self, frame: FrameView<'_>) -> Result<(), CloseReason>;
    /// Payload bytes that arrived in staging.
    fn on_staged(&mut self, id: RequestId, offset: usize, bytes: &[u8]);
    /// The payload is complete.
    fn on_payload_end(&mut self, id: RequestId, verdict: PayloadVerdict);
    /// Lends the destination of a payload for a receive, or none if the payload is discarded.
    fn lend(&mut self, id: RequestId) -> Option<Room>;
    /// The destination comes back; `stopped` if the receive was stopped by [`Sink::stop`].
    fn give_back(&mut self, id: RequestId, room: Room, stopped: bool) -> Result<(), CloseReason>;
    /// Ends when a receive into a lent destination is to be stopped.
    fn stop(&self) -> impl Future<Output = ()> + use<Self>;
    /// Ends when no further frame is to be read: asked between two frames only.
    fn retire(&self) -> impl Future<Output = ()> + use<Self>;
    /// Whether the sink can take more at once.
    fn is_ready(&self) -> bool;
    /// Waits until the sink can take more.
    fn ready(&self) -> impl Future<Output = ()>;
}

/// What the receiver wants next.
enum Next {
    /// The sink has enough for now; staging has more.
    Pause,
    Control,
    Payload {
        id: RequestId,
        offset: usize,
        len: u32,
    },
}

/// The receive side of one connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    stream: TcpStream,
    receiver: Receiver,
    /// `None` while it is lent to a receive.
    staging: Option<RegionMut>,
    /// What of staging has been received and not been stepped through.
    unread: std::ops::Range<usize>,
    /// Opens what arrives sealed.
    opening: Option<Opening>,
    /// Whether the last frame had a long payload.
    is_bulk: bool,
}

/// A peer that has proved itself.
#[derive(Debug)]
pub(crate) struct Authenticated {
    /// Its session epoch.
    pub(crate) epoch: u64,
    /// Seals what goes to it, if that is to be sealed.
    pub(crate) sealer: Option<Sealer>,
}

impl Inbound {
    pub(crate) fn new(stream: TcpStream) -> Result<Self, ConnectError> {
        let staging = Some(arena().alloc(STAGING_BYTES)?);
        let receiver = Receiver::new(ReceiverLimits::HELLO);
        Ok(Self {
            stream,
            receiver,
            staging,
            unread: 0..0,
            opening: None,
            is_bulk: false,
        })
    }

    /// Authenticates the peer, and this side to it, before anything else is read or said. If the
    /// connection is to be sealed, what comes from here on is opened, and what is sent is to be sealed.
    pub(crate) async fn authenticate(
        &mut self,
        mut handshake: lunette_auth::Handshake,
        is_initiator: bool,
    ) -> Result<Authenticated, ConnectError> {
        let mut out = Vec::new();
        if is_initiator {
            handshake.start(&mut out);
        }
        loop {
            let progress = if self.unread.is_empty() {
                Progress::NeedMore
            } else {
                let staging = self.staging.as_ref().expect("no receive is in flight");
                let mut input = &staging.as_slice()[self.unread.clone()];
                let progress = handshake.handle(&mut input, &mut out);
                self.unread.start = self.unread.end - input.len();
                progress
            };
            if !out.is_empty() {
                let len = out.len();
                let (sent, _) = self.stream.send_all(std::mem::take(&mut out), 0, len).await;
                sent.map_err(CloseReason::Io)?;
            }
            match progress {
                Progress::Done(established) => {
                    let epoch = established.session.theirs.epoch;
                    let Some((sealer, opener)) = established.records else {
                        return Ok(Authenticated {
                            epoch,
                            sealer: None,
                        });
                    };
                    self.open_records(opener)?;
                    let sealer = Some(sealer);
                    return Ok(Authenticated { epoch, sealer });
                }
                Progress::Failed(fault) => return Err(GuardFault::Auth(fault).into()),
                Progress::NeedMore => {}
            }
            let deadline = handshake.poll_timeout();
            let deadline = deadline.expect("a handshake that waits has a deadline");
            match self.receive_control(time::sleep_until(deadline)).await {
                Err(CloseReason::Io(OpError::Cancelled)) => {
                    let fault = handshake.on_timeout(time::now());
                    let fault = fault.unwrap_or(AuthFault::TimedOut);
                    return Err(GuardFault::Auth(fault).into());
                }
                other => other?,
            }
        }
    }

    /// What comes from here on is sealed.
    fn open_records(&mut self, opener: Opener) -> Result<(), ConnectError> {
        let mut staging = arena().alloc(SEALED_STAGING_BYTES)?;
        let plain = self.staging.as_ref().expect("no receive is in flight");
        let early = &plain.as_slice()[self.unread.clone()];
        staging.as_mut_slice()[..early.len()].copy_from_slice(early);
        self.opening = Some(Opening::new(opener, early.len()));
        self.unread = 0..0;
        self.staging = Some(staging);
        Ok(())
    }

    /// Shakes hands. What the handshake has to say is queued in `outbox`; send it, then close, if
    /// this fails.
    pub(crate) async fn handshake(
        &mut self,
        mut handshake: Handshake,
        outbox: &Outbox,
    ) -> Result<Agreement, ConnectError> {
        loop {
            let mut answer = Vec::new();
            let output = self.step_handshake(&mut handshake, &mut answer)?;
            if !answer.is_empty() {
                outbox.append_bytes(&mut answer);
            }
            match output {
                Some(HandshakeOutput::Open(agreement)) => {
                    self.receiver
                        .set_limits(ReceiverLimits::open(agreement.payload_bytes_max));
                    return Ok(agreement);
                }
                Some(HandshakeOutput::Failed(fault)) => return Err(fault.into()),
                None => {}
            }
            let deadline = handshake
                .poll_timeout()
                .expect("a handshake that waits has a deadline");
            match self.receive_control(time::sleep_until(deadline)).await {
                Err(CloseReason::Io(OpError::Cancelled)) => {
                    let fault = handshake.on_timeout(time::now());
                    return Err(fault.unwrap_or(HandshakeFault::TimedOut).into());
                }
                other => other?,
            }
        }
    }

    fn step_handshake(
        &mut self,
        handshake: &mut Handshake,
        answer: &mut Vec<u8>,
    ) -> Result<Option<HandshakeOutput>, CloseReason> {
        let staging = self.staging.as_ref().expect("no receive is in flight");
        let mut input = &staging.as_slice()[self.unread.clone()];
        let output = match self.receiver.step(&mut input)? {
            Step::Frame(frame) => Some(handshake.handle(frame, answer)),
            Step::NeedControl => None,
            Step::Payload { .. } | Step::NeedPayload { .. } | Step::PayloadDone { .. } => {
                unreachable!("before the handshake is over no payload is accepted")
            }
        };
        self.unread.start = self.unread.end - input.len();
        Ok(output)
    }

    /// What has been received behind the handshake, for who reads on, which begins with a frame. Nothing may be sealed.
    pub(crate) fn into_unread(self) -> Vec<u8> {
        assert!(self.opening.is_none(), "who reads on opens no records");
        let staging = self.staging.expect("no receive is in flight");
        staging.as_slice()[self.unread].to_vec()
    }

    /// Receives until the connection ends, and says why.
    pub(crate) async fn run(&mut self, sink: &mut impl Sink) -> CloseReason {
        loop {
            if !sink.is_ready() {
                sink.ready().await;
            }
            let received = match self.step_all(sink) {
                Err(reason) => return reason,
                Ok(Next::Pause) => continue,
                Ok(Next::Control) => match self.receive_control(sink.retire()).await {
                    Err(CloseReason::Io(OpError::Cancelled)) => Err(CloseReason::Local),
                    other => other,
                },
                Ok(Next::Payload { id, .. }) if self.opening.is_some() => {
                    self.receive_sealed(sink, id).await
                }
                Ok(Next::Payload { id, offset, len }) => match sink.lend(id) {
                    Some(room) => self.receive_payload(sink, id, room, offset, len).await,
                    None => self.receive_control(pending()).await,
                },
            };
            if let Err(reason) = received {
                return reason;
            }
        }
    }

    /// Steps through everything in staging.
    fn step_all(&mut self, sink: &mut impl Sink) -> Result<Next, CloseReason> {
        let staging = self.staging.as_ref().expect("no receive is in flight");
        let mut input = &staging.as_slice()[self.unread.clone()];
        let end = self.unread.end;
        self.unread = 0..0;
        loop {
            match self.receiver.step(&mut input)? {
                Step::Frame(frame) => {
                    let len_bytes = frame.header.payload.len_bytes;
                    let has_payload = len_bytes > 0;
                    self.is_bulk = len_bytes > BULK_BYTES_MIN;
                    sink.on_frame(frame)?;
                    // Between two frames only: the next step begins with a header.
                    if !input.is_empty() && !has_payload && !sink.is_ready() {
                        self.unread = end - input.len()..end;
                        return Ok(Next::Pause);
                    }
                }
                Step::Payload {
                    id,
                    offset_bytes,
                    bytes,
                } => {
                    sink.on_staged(id, offset_bytes as usize, bytes);
                }
                Step::PayloadDone { id, verdict } => sink.on_payload_end(id, verdict),
                Step::NeedControl => return Ok(Next::Control),
                Step::NeedPayload {
                    id,
                    offset_bytes,
                    len_bytes,
                } => {
                    return Ok(Next::Payload {
                        id,
                        offset: offset_bytes as usize,
                        len: len_bytes,
                    });
                }
            }
        }
    }

    /// Receives into staging, unless `stop` ends first.
    async fn receive_control(&mut self, stop: impl Future<Output = ()>) -> Result<(), CloseReason> {
        assert!(
            self.unread.is_empty(),
            "staging is reused when it has been read"
        );
        if self.opening.is_some() {
            return self.receive_record(stop).await;
        }
        let staging = self.staging.take().expect("one receive at a time");
        let len = if self.is_bulk {
            BULK_HEAD_BYTES
        } else {
            STAGING_BYTES
        };
        let received = self.stream.recv_until(staging, 0, len, stop).await;
        let (result, staging) = received;
        self.staging = Some(staging);
        let count = self.check_received(result)?;
        self.unread = 0..count;
        Ok(())
    }

    /// Receives a whole record into staging and opens it there, unless `stop` ends first.
    async fn receive_record(&mut self, stop: impl Future<Output = ()>) -> Result<(), CloseReason> {
        let mut stop = pin!(stop);
        loop {
            let opening = self.opening.as_mut().expect("records are opened");
            let mut staging = self.staging.take().expect("one receive at a time");
            let opened = opening.open(staging.as_mut_slice());
            let end = opening.end();
            if let Some(plain) = opened.transpose() {
                self.staging = Some(staging);
                self.unread = plain?;
                return Ok(());
            }
            let room = SEALED_STAGING_BYTES - end;
            let (result, staging) = self
                .stream
                .recv_until(staging, end, room, stop.as_mut())
                .await;
            self.staging = Some(staging);
            let count = self.check_received(result)?;
            let opening = self.opening.as_mut().expect("records are opened");
            opening.received(count);
        }
    }

    /// Receives more of a payload that comes sealed: into staging, while its destination is lent as if the
    /// bytes went there, so that it can be taken back meanwhile.
    async fn receive_sealed(
        &mut self,
        sink: &mut impl Sink,
        id: RequestId,
    ) -> Result<(), CloseReason> {
        let Some(room) = sink.lend(id) else {
            return self.receive_control(pending()).await;
        };
        let received = self.receive_control(sink.stop()).await;
        let stopped = received == Err(CloseReason::Io(OpError::Cancelled));
        let given_back = sink.give_back(id, room, stopped);
        if stopped {
            given_back
        } else {
            received.and(given_back)
        }
    }

    async fn receive_payload(
        &mut self,
        sink: &mut impl Sink,
        id: RequestId,
        room: Room,
        offset: usize,
        len: u32,
    ) -> Result<(), CloseReason> {
        let len = len.min(DIRECT_BYTES_MAX) as usize;
        let (result, room) = room.receive(&self.stream, offset, len, sink.stop()).await;
        let stopped = result == Err(OpError::Cancelled);
        let received = if stopped {
            Ok(0)
        } else {
            self.check_received(result)
        };
        let folded = received.and_then(|count| {
            let fold = |checksum: &mut Crc32c| room.fold(offset, count, checksum);
            Ok(self.receiver.on_payload_in_place(count, fold)?)
        });
        // The room goes back whatever happened.
        let given_back = sink.give_back(id, room, stopped);
        folded.and(given_back)
    }

    fn check_received(&self, result: Result<usize, OpError>) -> Result<usize, CloseReason> {
        match result {
            Ok(0) => match self.receiver.on_eof() {
                Ok(()) => Err(CloseReason::Peer),
                Err(fault @ WireFault::Truncated { .. }) => Err(CloseReason::Wire(fault)),
                Err(fault) => Err(fault.into()),
            },
            Ok(count) => Ok(count),
            Err(error) => Err(CloseReason::Io(error)),
        }
    }
}
