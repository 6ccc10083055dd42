//! Peers that are open, and their memory by its addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunette_transfer::engine::{
    Cause, EngineHandle, HandleError, OpenError, PeerHandle, PostError, Refusal, RemoteSegment,
};
use pyo3::prelude::*;

use crate::opening::address;

/// Most segments of one peer that are known; at the limit all of them are found anew.
const SEGMENTS_MAX: usize = 1 << 16;

/// Where a peer listens, which is its name.
pub(super) type Name = SocketAddr;

/// A range of a peer's addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len_bytes: u64,
}

impl Range {
    /// What comes after so many bytes of it.
    pub(super) const fn after(self, done_bytes: u64) -> Self {
        Self {
            start: self.start.saturating_add(done_bytes),
            len_bytes: self.len_bytes - done_bytes,
        }
    }
}

/// Where a range begins in a segment of the peer, and how much of it that segment has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: RemoteSegment,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

impl Place {
    /// `None` if none of it lies there.
    fn of(segment: RemoteSegment, offset_bytes: u64, range: Range) -> Option<Self> {
        let left = segment.len_bytes().checked_sub(offset_bytes)?;
        let len_bytes = left.min(range.len_bytes);
        (len_bytes > 0).then_some(Self {
            segment,
            offset_bytes,
            len_bytes,
        })
    }
}

struct Known {
    peer: PeerHandle,
    /// By the first address of each.
    segments: BTreeMap<u64, RemoteSegment>,
}

/// All of them.
pub(super) struct Peers {
    engine: EngineHandle,
    known: Mutex<BTreeMap<Name, Known>>,
}

impl Peers {
    pub(super) fn new(engine: EngineHandle) -> Self {
        Self {
            engine,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Name, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer, opened if it is not yet.
    pub(super) async fn open(&self, name: &Name) -> Result<PeerHandle, HandleError> {
        let known = self.known().get(name).map(|known| known.peer.clone());
        if let Some(peer) = known {
            return Ok(peer);
        }
        let peer = self.engine.open(vec![*name]).await?;
        let opened = Known {
            peer: peer.clone(),
            segments: BTreeMap::new(),
        };
        // Another thread may have opened it meanwhile: what either found is the same.
        self.known().insert(*name, opened);
        Ok(peer)
    }

    /// Opens the peer whether it is open or not.
    pub(super) async fn again(&self, name: &Name) -> Result<(), HandleError> {
        self.engine.open(vec![*name]).await.map(drop)
    }

    /// The segment of the peer in which the range begins: what a peer registers at once may be several, side by side.
    pub(super) async fn find(
        &self,
        name: &Name,
        peer: &PeerHandle,
        range: Range,
    ) -> Result<Place, HandleError> {
        if let Some(found) = self.lookup(name, range) {
            return Ok(found);
        }
        let (segment, offset) = peer.segment_at(range.start, 1).await?;
        let mut known = self.known();
        if let Some(known) = known.get_mut(name) {
            if known.segments.len() >= SEGMENTS_MAX {
                known.segments.clear();
            }
            known
                .segments
                .insert(range.start.saturating_sub(offset), segment);
        }
        let found = Place::of(segment, offset, range);
        found.ok_or(HandleError::Open(OpenError::Refused(Refusal::OutOfRange)))
    }

    fn lookup(&self, name: &Name, range: Range) -> Option<Place> {
        let known = self.known();
        let segments = &known.get(name)?.segments;
        let (start, segment) = segments.range(..=range.start).next_back()?;
        let place = Place::of(*segment, range.start - start, range)?;
        // Of what is longer than what is known, the peer may have registered more since.
        (place.len_bytes == range.len_bytes).then_some(place)
    }

    /// The peer is to be opened anew.
    pub(super) fn forget(&self, name: &Name) {
        drop(self.known().remove(name));
    }
}

/// The name of a peer: where it listens.
pub(super) fn name(peer: &str) -> PyResult<Name> {
    address(peer)
}

/// Whether the peer is another one than the one that was opened, or has other memory.
pub(super) fn is_changed(error: &HandleError) -> bool {
    match error {
        HandleError::Gone
        | HandleError::Post(PostError::PeerReplaced | PostError::OtherPeer)
        | HandleError::Open(OpenError::Refused(Refusal::Stale | Refusal::OutOfRange)) => true,
        HandleError::Transfer(error) => error.failures.iter().any(|failure| {
            let stale = Cause::Refused(Refusal::Stale);
            let outside = Cause::Refused(Refusal::OutOfRange);
            failure.cause == stale
                || failure.cause == outside
                || failure.cause == Cause::PeerReplaced
        }),
        _ => false,
    }
}
