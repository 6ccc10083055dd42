//! Receiving for a queue: staging, and data straight into the regions of their commands.

use std::ops::Range;

use lunette_nvmeof_proto::host::HostStep;
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime::arena::{AllocError, RegionMut};
use lunette_runtime::{OpError, arena};

use super::queue::{Incoming, Shared};
use crate::error::CloseReason;

/// Size of the staging buffer, where completions and small data arrive.
const STAGING_BYTES: usize = 128 * 1024;
/// How much is received into staging while large data are expected: a header or two, so that most
/// of the data behind go straight to their place.
const HEADERS_BYTES: usize = 512;
/// Commands that move at least this much are large.
const LARGE_BYTES_MIN: u32 = 16 * 1024;
/// Data that are missing by at least this much are received straight into their region.
const DIRECT_BYTES_MIN: u32 = 4096;
/// Most of them at once: they are to be in cache when their digest is folded.
const DIRECT_BYTES_MAX: u32 = 256 * 1024;

/// What is to be received next.
enum Next {
    Staging,
    Direct { cid: u16, offset: usize, len: u32 },
}

/// The receiving half of one queue.
#[derive(Debug)]
pub(super) struct Inbound {
    staging: Option<RegionMut>,
    unread: Range<usize>,
    /// The last command moved much.
    expects_large: bool,
}

impl Inbound {
    pub(super) fn new() -> Result<Self, AllocError> {
        Ok(Self {
            staging: Some(arena().alloc(STAGING_BYTES)?),
            unread: 0..0,
            expects_large: false,
        })
    }

    /// Receives until the connection ends, and says why.
    pub(super) async fn run(&mut self, shared: &Shared) -> CloseReason {
        loop {
            let received = match self.step_all(shared) {
                Err(reason) => return reason,
                Ok(Next::Staging) => self.receive_staged(shared).await,
                Ok(Next::Direct { cid, offset, len }) => {
                    self.receive_direct(shared, cid, offset, len).await
                }
            };
            if let Err(reason) = received {
                return reason;
            }
        }
    }

    /// Steps through everything that has been received.
    fn step_all(&mut self, shared: &Shared) -> Result<Next, CloseReason> {
        let staging = self.staging.as_ref().expect("no receive is in flight");
        let mut input = &staging.as_slice()[self.unread.clone()];
        self.unread = 0..0;
        let mut state = shared.state.borrow_mut();
        if let Some(reason) = state.closed() {
            // It was ended meanwhile: nobody waits for what is still coming.
            return Err(reason);
        }
        loop {
            match state.queue.step(&mut input)? {
                HostStep::Open(response) => {
                    tracing::debug!(?response, "set up");
                    state.open();
                }
                HostStep::Data {
                    cid,
                    offset_bytes,
                    bytes,
                } => state.place(cid, offset_bytes as usize, bytes),
                HostStep::NeedData {
                    cid,
                    offset_bytes,
                    len_bytes,
                } => {
                    return Ok(if len_bytes >= DIRECT_BYTES_MIN && shared.wire.is_plain() {
                        Next::Direct {
                            cid,
                            offset: offset_bytes as usize,
                            len: len_bytes,
                        }
                    } else {
                        Next::Staging
                    });
                }
                HostStep::Send(transfer) => state.send(&transfer, &shared.outbox),
                HostStep::Completed {
                    cid,
                    completion,
                    data_bytes,
                } => {
                    self.expects_large = data_bytes >= LARGE_BYTES_MIN;
                    state.complete(cid, completion, data_bytes);
                }
                HostStep::NeedBytes => return Ok(Next::Staging),
            }
        }
    }

    async fn receive_staged(&mut self, shared: &Shared) -> Result<(), CloseReason> {
        let staging = self.staging.take().expect("one receive at a time");
        let len = if self.expects_large && shared.wire.is_plain() {
            HEADERS_BYTES
        } else {
            STAGING_BYTES
        };
        let (result, staging) = shared.wire.recv(&shared.stream, staging, len).await;
        self.staging = Some(staging);
        let count = check(shared, result)?;
        self.unread = 0..count;
        Ok(())
    }

    async fn receive_direct(
        &mut self,
        shared: &Shared,
        cid: u16,
        offset: usize,
        len: u32,
    ) -> Result<(), CloseReason> {
        let lent = shared.state.borrow_mut().lend(cid);
        let Some(incoming) = lent else {
            return self.receive_staged(shared).await;
        };
        let len = len.min(DIRECT_BYTES_MAX) as usize;
        let (result, incoming) = receive(shared, incoming, offset, len).await;
        let count = match result {
            Err(OpError::Cancelled) => Ok(0),
            other => check(shared, other.map_err(CloseReason::Io)),
        };
        let mut state = shared.state.borrow_mut();
        if let Ok(count) = count {
            match &incoming {
                Incoming::Region(region) => {
                    let bytes = &region.as_slice()[offset..offset + count];
                    state.queue.on_data(bytes);
                }
                Incoming::Exposed(memory) => {
                    let part = memory.slice(offset, count);
                    state.queue.on_folded(count, |crc| part.fold(crc));
                }
            }
        }
        state.give_back(cid, incoming);
        count.map(drop)
    }
}

/// Receives into the memory of a command, unless a fence ends that early.
async fn receive(
    shared: &Shared,
    incoming: Incoming,
    offset: usize,
    len: usize,
) -> (Result<usize, OpError>, Incoming) {
    let stop = shared.fence.raised();
    match incoming {
        Incoming::Region(region) => {
            let (result, region) = shared.stream.recv_until(region, offset, len, stop).await;
            (result, Incoming::Region(region))
        }
        Incoming::Exposed(memory) => {
            let (result, memory) = shared.stream.recv_until(memory, offset, len, stop).await;
            (result, Incoming::Exposed(memory))
        }
    }
}

fn check(shared: &Shared, result: Result<usize, CloseReason>) -> Result<usize, CloseReason> {
    match result {
        Ok(0) => match shared.state.borrow().queue.on_eof() {
            Ok(()) => Err(CloseReason::Peer),
            Err(WireFault::Truncated) => Err(CloseReason::Wire(WireFault::Truncated)),
            Err(fault) => Err(fault.into()),
        },
        other => other,
    }
}
