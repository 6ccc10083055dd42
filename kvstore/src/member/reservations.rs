//! Room for objects whose bytes come in ranges: the reservations of one core.
//!
//! ```text
//!           fill ...          commit: all is there         the write begins
//!   Open -----------> Open ------------------------> Sealed ---------------> Committing ----> gone
//!    |                                                 ^                         |
//!    +-- revoked, or nothing came for too long: gone   +--- the write was not done
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::filled::{FillRefusal, Filled};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::{AskerId, OpId, ReservationId};
use lunette_kvstore_proto::owner::WriteAsk;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::{Form, WriteKind};
use lunette_runtime::arena::{Exposed, Region};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::bytes::{Extent, Frame};
use super::core::MemberCore;

/// Most reservations of one core.
pub(crate) const RESERVATIONS_MAX: usize = 1024;

/// A reservation, of all askers.
pub(crate) type Named = (AskerId, ReservationId);

/// What a reserved object is to become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) key: Fingerprint,
    pub(crate) kind: WriteKind,
    pub(crate) namespace: NamespaceKind,
    pub(crate) wanted: u8,
    pub(crate) retention: Retention,
    /// How long it is kept while nothing comes.
    pub(crate) keep: Duration,
}

impl Terms {
    pub(crate) const fn ask(&self, wait_ms: u32) -> WriteAsk {
        WriteAsk {
            key: self.key,
            kind: self.kind,
            form: Form::Whole,
            namespace: self.namespace,
            wanted: self.wanted,
            wait_ms,
            retention: self.retention,
        }
    }
}

#[derive(Debug)]
enum State {
    Open {
        memory: Exposed,
        filled: Filled,
    },
    /// All is there, and its checksum is being computed.
    Sealing(Extent),
    Sealed(Extent),
    Committing,
}

#[derive(Debug)]
struct Reservation {
    frame: Frame,
    terms: Terms,
    state: State,
    /// When it ends unless something comes.
    until: Time,
    /// It ends when nothing is being written to it any more.
    is_revoked: bool,
}

/// All bytes of a reserved object are there.
#[derive(Debug)]
pub(crate) enum Seal {
    /// It can be written.
    Done,
    /// Once its checksum has been computed: say [`Reservations::sealed`] then.
    ToSum(Region),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    all: BTreeMap<Named, Reservation>,
    committing: BTreeMap<OpId, Named>,
    bytes: u64,
}

impl Reservations {
    /// Whether there is room for one more of so many bytes, where all together may take `bytes_max`, and
    /// one alone as much as there is.
    pub(crate) fn has_room(&self, len_bytes: u32, bytes_max: u64) -> bool {
        let is_small = self.bytes + u64::from(len_bytes) <= bytes_max;
        self.all.len() < RESERVATIONS_MAX && (is_small || self.bytes == 0)
    }

    pub(crate) fn contains(&self, named: Named) -> bool {
        self.all.contains_key(&named)
    }

    /// Adds one, which is not there yet.
    pub(crate) fn add(
        &mut self,
        now: Time,
        named: Named,
        terms: Terms,
        (frame, memory): (Frame, Exposed),
    ) {
        self.bytes += u64::from(frame.len_bytes());
        let filled = Filled::default();
        let reservation = Reservation {
            frame,
            terms,
            state: State::Open { memory, filled },
            until: now + terms.keep,
            is_revoked: false,
        };
        let former = self.all.insert(named, reservation);
        assert!(former.is_none(), "a reservation is added once");
    }

    fn find(&mut self, named: Named, key: Fingerprint) -> Result<&mut Reservation, Status> {
        let found = self.all.get_mut(&named);
        let found = found.filter(|found| found.terms.key == key && !found.is_revoked);
        found.ok_or(Status::NotFound)
    }

    /// Where a range goes that is to be received; [`Reservations::end_fill`] follows.
    pub(crate) fn begin_fill(
        &mut self,
        now: Time,
        (named, key): (Named, Fingerprint),
        range: ByteRange,
    ) -> Result<Exposed, Status> {
        let found = self.find(named, key)?;
        if !range.is_within(found.frame.len_bytes().into()) {
            return Err(Status::OutOfRange);
        }
        let State::Open { memory, filled } = &mut found.state else {
            return Err(Status::BadRequest);
        };
        filled.begin(range).map_err(|refusal| match refusal {
            FillRefusal::Overlaps | FillRefusal::TooManyUnderWay => Status::Busy,
            FillRefusal::TooManyPieces => Status::BadRequest,
        })?;
        found.until = now + found.terms.keep;
        Ok(found.frame.part(memory, range))
    }

    /// A range has been received, with its CRC32C if it is right. What is to be freed: its reservation
    /// was revoked meanwhile.
    pub(crate) fn end_fill(
        &mut self,
        now: Time,
        named: Named,
        range: ByteRange,
        crc32c: Option<u32>,
    ) -> Option<Frame> {
        let found = self.all.get_mut(&named).expect("kept while it is filled");
        let State::Open { filled, .. } = &mut found.state else {
            unreachable!("it is open while it is filled");
        };
        filled.end(range, crc32c);
        found.until = now + found.terms.keep;
        let is_over = found.is_revoked && filled.is_quiet();
        is_over.then(|| self.take(named))
    }

    /// All that was written is the object: nothing is written to it from now on.
    pub(crate) fn seal(&mut self, named: Named, key: Fingerprint) -> Result<Seal, Status> {
        let found = self.find(named, key)?;
        let (frame, len_bytes) = (found.frame, found.frame.len_bytes());
        match &found.state {
            State::Sealed(_) => return Ok(Seal::Done),
            // Who computed it may have been cut off.
            State::Sealing(extent) => return Ok(Seal::ToSum(extent.value())),
            State::Committing => return Err(Status::Busy),
            State::Open { filled, .. } if !filled.is_quiet() => return Err(Status::Busy),
            State::Open { filled, .. } if !filled.is_whole(len_bytes) => {
                return Err(Status::Unfinished);
            }
            State::Open { .. } => {}
        }
        let mut found = self.all.remove(&named).expect("just found");
        let State::Open { memory, filled } = found.state else {
            unreachable!("just looked at");
        };
        let region = memory.try_reclaim();
        let region = region.expect("nothing is being written, so nobody has it");
        let crc32c = filled.crc32c(len_bytes);
        let extent = frame.filled(region, crc32c.unwrap_or(0));
        let seal;
        (found.state, seal) = match crc32c {
            Some(_) => (State::Sealed(extent), Seal::Done),
            None => {
                let bytes = extent.value();
                (State::Sealing(extent), Seal::ToSum(bytes))
            }
        };
        self.all.insert(named, found);
        Ok(seal)
    }

    /// The checksum of an object's bytes has been computed, which [`Seal::ToSum`] wanted.
    pub(crate) fn sealed(&mut self, named: Named, crc32c: u32) {
        if let Some(found) = self.all.get_mut(&named)
            && let State::Sealing(extent) = &found.state
        {
            found.state = State::Sealed(extent.clone().summed(crc32c));
        }
    }

    /// What a sealed object is to become.
    pub(crate) fn terms(&self, named: Named) -> Result<Terms, Status> {
        let found = self.all.get(&named).ok_or(Status::NotFound)?;
        match found.state {
            State::Sealed(_) => Ok(found.terms),
            _ => Err(Status::Busy),
        }
    }

    /// The write of a sealed object has begun: its bytes.
    pub(crate) fn commit(&mut self, named: Named, op: OpId) -> (Frame, Extent) {
        let mut found = self.all.remove(&named).expect("it was sealed");
        let State::Sealed(extent) = found.state else {
            unreachable!("what is written is sealed");
        };
        found.state = State::Committing;
        let frame = found.frame;
        self.all.insert(named, found);
        self.committing.insert(op, named);
        (frame, extent)
    }

    /// Whether a write is one of a reserved object.
    pub(crate) fn is_commit(&self, op: OpId) -> bool {
        self.committing.contains_key(&op)
    }

    /// The write has not been done: it may be tried again.
    pub(crate) fn take_back(&mut self, now: Time, op: OpId, extent: Extent) {
        let named = self.committing.remove(&op).expect("it is a commit");
        let found = self.all.get_mut(&named).expect("kept while it is written");
        found.state = State::Sealed(extent);
        found.until = now + found.terms.keep;
    }

    /// The bytes are those of a copy from now on.
    pub(crate) fn committed(&mut self, op: OpId) {
        if let Some(named) = self.committing.remove(&op) {
            self.take(named);
        }
    }

    /// Ends a reservation, at once or when nothing is being done with it any more. What is to be freed.
    pub(crate) fn revoke(&mut self, named: Named) -> Option<Frame> {
        let found = self.all.get_mut(&named)?;
        match &found.state {
            State::Open { filled, .. } if !filled.is_quiet() => {
                found.is_revoked = true;
                None
            }
            State::Open { .. } | State::Sealing(_) | State::Sealed(_) => Some(self.take(named)),
            // It ends with its write, or when nothing has come for too long.
            State::Committing => None,
        }
    }

    /// Ends those for which nothing has come for too long. What is to be freed.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<Frame> {
        let over = self.all.iter().filter(|(_, found)| {
            // A connection that is gone ends what is being received over it.
            let is_filled =
                matches!(&found.state, State::Open { filled, .. } if !filled.is_quiet());
            now >= found.until && !is_filled
        });
        let over: Vec<Named> = over.map(|(&named, _)| named).collect();
        over.into_iter()
            .filter_map(|named| self.revoke(named))
            .collect()
    }

    fn take(&mut self, named: Named) -> Frame {
        let found = self.all.remove(&named).expect("it ends once");
        self.bytes -= u64::from(found.frame.len_bytes());
        found.frame
    }
}

impl MemberCore {
    /// Gives the room of a reservation back.
    pub(crate) fn revoke(&self, named: Named) {
        let over = self.reservations.borrow_mut().revoke(named);
        if let Some(frame) = over {
            self.bytes().borrow_mut().drop_unused(frame);
        }
    }

    /// Gives the room of reservations back for which nothing has come for too long.
    pub(super) fn expire_reservations(&self) {
        let over = self.reservations.borrow_mut().expire(time::now());
        for frame in over {
            tracing::debug!(len_bytes = frame.len_bytes(), "a reservation has expired");
            self.bytes().borrow_mut().drop_unused(frame);
        }
    }
}
