//! Messages between two cores by their adapters: receives that all queue pairs of an adapter share, and memory to
//! send from.
//!
//! A message is at most [`MESSAGE_BYTES_MAX`] long. Who sends keeps to what the peer has receives for; beyond, the
//! peer's adapter has it try again for a while, and then breaks the queue pair.

use std::fmt;

use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::message::MESSAGE_BYTES_MAX;
use lunette_verbs::{
    Arrival, QueuePair, Ready, Request, RequestError, SetupError, SharedReceives, Slab,
};
use lunette_verbs_proto::status::Status;
use rustix::io::Errno;

use super::Adapter;

/// Where the messages of one adapter's queue pairs arrive, and from where they are sent.
pub struct Messages {
    receives: SharedReceives,
    /// Of receives, and of messages that are being sent.
    slab: Slab,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// A message.
    Message(&'a [u8]),
    /// Bytes that the peer has written elsewhere.
    Notice {
        /// What it says of them.
        immediate: u32,
        /// How many the last write brought.
        len_bytes: u32,
    },
}

impl Messages {
    /// For so many receives, those of notices included, and so many messages that are being sent.
    ///
    /// # Errors
    /// [`SetupError`]: the adapter's, or that there is no memory.
    pub fn open(adapter: &Adapter, receives: u32, sends: u32) -> Result<Self, SetupError> {
        let pool = adapter.receives(receives)?;
        let len = (receives + sends) as usize * MESSAGE_BYTES_MAX;
        // In a chunk of its own, since a chunk is registered as a whole.
        let len = len.next_multiple_of(CHUNK_BYTES_MIN);
        let arena = Arena::new(ArenaOptions {
            bytes_max: len,
            chunk_bytes: len,
            ..ArenaOptions::default()
        });
        let region = arena.alloc(len);
        let region = region.map_err(|_full| SetupError::Refused(Errno::NOMEM))?;
        let slab = Slab::register(adapter.context(), region)?;
        for _ in 0..receives {
            let piece = slab.alloc(MESSAGE_BYTES_MAX);
            let piece = piece.map_err(|_full| SetupError::Size)?;
            let posted = pool.post(piece);
            posted.map_err(|_refused| SetupError::Refused(Errno::NOMEM))?;
        }
        Ok(Self {
            receives: pool,
            slab,
        })
    }

    /// What the queue pairs share.
    #[must_use]
    pub const fn receives(&self) -> &SharedReceives {
        &self.receives
    }

    /// Sends a message over one of the queue pairs: what its end says is the adapter's word that it has arrived. `None`
    /// if as much is being sent as may be, or it is too long.
    ///
    /// Dropping the request leaves it under way; its memory is the pool's again when it is over.
    pub fn send(&self, pair: &QueuePair<Ready>, message: &[u8]) -> Option<Request> {
        let is_room = pair.is_open() && pair.credits() > 0;
        if !is_room || message.len() > MESSAGE_BYTES_MAX {
            return None;
        }
        let mut piece = self.slab.alloc(message.len()).ok()?;
        piece.as_mut_slice().copy_from_slice(message);
        Some(pair.send(piece, message.len(), Time::MAX))
    }

    /// Waits for the next receive that ends, and hands `take` what has arrived, and the number of the queue pair; then
    /// it is posted again. What came of a queue pair that has ended is nothing.
    ///
    /// # Errors
    /// [`RequestError::Declared`]: nothing arrives here any more.
    pub async fn hear(&self, take: impl FnOnce(u32, Heard<'_>)) -> Result<(), RequestError> {
        let (number, arrival) = self.receives.arrival().await?;
        if let Some(heard) = heard(&arrival) {
            take(number, heard);
        }
        if let Err((error, _piece)) = self.receives.post(arrival.piece) {
            tracing::debug!(%error, "a receive is not posted again");
        }
        Ok(())
    }
}

fn heard(arrival: &Arrival) -> Option<Heard<'_>> {
    if arrival.status != Status::Success {
        return None;
    }
    let len_bytes = arrival.len_bytes;
    match arrival.immediate {
        Some(immediate) => Some(Heard::Notice {
            immediate,
            len_bytes,
        }),
        None => {
            let bytes = arrival.piece.as_slice().get(..len_bytes as usize);
            bytes.map(Heard::Message)
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Messages({:?})", self.receives)
    }
}
