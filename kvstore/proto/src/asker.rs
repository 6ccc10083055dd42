//! The side that asks: retries, and when there are none.
//!
//! What is asked may be lost, refused, or done without the answer coming through. Until an answer has
//! come, the same request is sent again, under the same id, to the same place, which does it once. An
//! answer that says that nothing was done allows another try, as another request, elsewhere if the map
//! has changed since.
//!
//! Nothing else is ever tried again. A removal that may have been done, sent to another home, would
//! remove what was put since; a put that may have been done would bring back what was removed. So
//! where it is not known whether a write or a removal was done, the caller is told so, and decides: when its time is over, or
//! [`LEFT_WAIT`] after who was asked has left the map.
//!
//! A read does not wait for who is out of reach: [`REACH_WAIT`], [`SILENT_WAIT`].
//!
//! A lookup that ends in [`Outcome::Unknown`] is no miss here. The outermost interface alone, whose
//! callers compute again what they do not find, says that it is: [`Outcome::is_miss_to_callers`].

mod reach;

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use crate::key::Fingerprint;
use crate::message::directory::{Answer, Ask, AskerId, Found, HoldWish, Only};
use crate::owner::{WriteAnswer, WriteAsk};
use crate::placement::{Seat, has_seat, home_of};
use crate::version::Version;

use reach::Reach;
pub use reach::{REACH_WAIT, SILENT_WAIT};

/// Most operations of one asker that are under way.
pub const OPERATIONS_MAX: usize = 4096;
/// How long an answer is waited for before the same request is sent again.
pub const RESEND: Duration = Duration::from_millis(80);
/// How long to wait after an answer that nothing was done.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How often an asker that gets no answer wants to know whether there is another map: who was asked may have left.
pub const MAP_PAUSE: Duration = Duration::from_millis(250);
/// How long an answer of who has left the map may still be on its way: who leaves in good order answers what it has read.
pub const LEFT_WAIT: Duration = Duration::from_secs(1);
/// A write or a removal that did nothing is not sent again when there is no time left for so many answers as the last one, but for
/// those that took long since who was asked has waited for something: that may be there now, and [`RESEND`] is enough.
const ANSWERS_LEFT: u32 = 4;

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// An object's bytes.
    Get,
    /// Where an object is, held or not.
    Lookup(Option<HoldWish>),
    /// That there be no object, or no such one. Where there is another, it is [found](Outcome::Found). In a cache namespace, where
    /// an object may leave at any time, a removal of which it is not known whether it was done is asked for again.
    Remove(Only),
    /// That there be one, at this owner.
    Write(Seat, WriteAsk),
    /// The same; an answer that nothing was done there ends it.
    WriteOnce(Seat, WriteAsk),
}

/// What an owner says to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// The bytes are here, and right.
    Bytes,
    /// There is no such copy.
    Absent,
    /// The owner is cut off.
    Unavailable,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes of this version.
    Hit(Version),
    /// Where it is.
    Found(Found),
    /// There is no object.
    Miss,
    /// Not everybody has told yet what it holds, or who knows is out of reach: there may be one.
    Unknown,
    /// A write's.
    Written(WriteAnswer),
    /// A removal's.
    Removed {
        /// Whether there was an object; of a removal that was asked for again, whether there was one then.
        found: bool,
        /// The removal's place among the writes of the key.
        version: Version,
    },
    /// Time is over, and nothing was done. It may be asked again.
    TimedOut,
    /// As `TimedOut`, of a write for which who was asked last had no room.
    NoRoom,
    /// It is not known whether it was done, now or later.
    Interrupted,
}

impl Outcome {
    /// What the outermost interface tells who looks for something to read.
    #[must_use]
    pub const fn is_miss_to_callers(&self) -> bool {
        matches!(self, Self::Miss | Self::Unknown)
    }
}

/// What an asker wants sent, or has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskerAction {
    /// Ask a home, with the epoch of the map.
    Ask(Seat, Epoch, Ask),
    /// Ask an owner for bytes.
    Read {
        /// The owner.
        owner: Seat,
        /// The request.
        request: RequestId,
        /// The key.
        key: Fingerprint,
        /// The version that the home named.
        version: Version,
    },
    /// Ask an owner to write.
    Write(Seat, RequestId, WriteAsk),
    /// The map is older than this, or may be: fetch it.
    MapWanted(Epoch),
    /// An operation has ended.
    Done(OperationId, Outcome),
}

/// An operation of one asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// Too many operations are under way. Wait for one.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{OPERATIONS_MAX} operations are under way")]
pub struct TooManyOperations;

#[derive(Clone, Debug)]
enum Stage {
    /// Nothing is under way before then.
    Pausing(Time),
    /// The home, or for a write the owner, was asked.
    Asked { seat: Seat, at: Time },
    /// These owners have it; the first was asked.
    Reading { found: Found, at: Time },
}

#[derive(Clone, Debug)]
struct Operation {
    key: Fingerprint,
    namespace: NamespaceKind,
    wish: Wish,
    request: RequestId,
    /// Whether this request may have been begun somewhere.
    is_begun: bool,
    /// Whether an earlier request may have been done.
    is_in_doubt: bool,
    /// When a write or a removal was first sent as this request.
    begun_at: Time,
    /// The map's, under which it was first sent as this request. A home refuses what is asked under an earlier map than
    /// its own, and remembers nothing of it: no copy of a request that was refused so may say a later one.
    epoch: Epoch,
    /// Whether who was last asked to write had no room.
    has_no_room: bool,
    /// Of a lookup: until when it waits for who was asked.
    silent_at: Time,
    /// Of a write or a removal that may have been begun: since when who was asked is not in the map.
    left_at: Option<Time>,
    /// How long the last answer to a write or a removal took that did nothing.
    answer_took: Duration,
    stage: Stage,
    until: Time,
}

impl Operation {
    /// It is sent, for the first time as this request or again, and may be done from now on.
    const fn begin(&mut self, now: Time) {
        if !self.is_begun {
            self.begun_at = now;
        }
        self.is_begun = true;
    }

    /// Whether it may be done twice: what is there the second time may as well have left.
    fn is_repeatable(&self) -> bool {
        matches!(self.wish, Wish::Remove(_)) && self.namespace == NamespaceKind::Cache
    }

    /// What its home is asked.
    fn question(&self, now: Time) -> Ask {
        let Self {
            key,
            namespace,
            request,
            until,
            ..
        } = *self;
        match self.wish {
            Wish::Remove(only) => Ask::Remove {
                request,
                key,
                namespace,
                wait_ms: u32::try_from(until.since(now).as_millis()).unwrap_or(u32::MAX),
                only,
            },
            Wish::Lookup(hold) => Ask::Lookup {
                request,
                key,
                namespace,
                hold,
            },
            _ => Ask::Lookup {
                request,
                key,
                namespace,
                hold: None,
            },
        }
    }

    /// Whether it is asked again at the end of a pause. A write or a removal is not whose answer might come too late: that it did
    /// nothing is known, and would not be then.
    fn is_due(&self, now: Time) -> bool {
        match self.stage {
            Stage::Pausing(until) => {
                let answer = RESEND.min(ANSWERS_LEFT * self.answer_took);
                now >= until && now + answer < self.until
            }
            Stage::Asked { at, .. } | Stage::Reading { at, .. } => now >= at + RESEND,
        }
    }
}

type Out<'a> = &'a mut Vec<AskerAction>;

/// The machine of one asker. See the [module](self).
#[derive(Debug)]
pub struct Asker {
    id: AskerId,
    map: ClusterMap,
    operations: BTreeMap<OperationId, Operation>,
    by_request: BTreeMap<RequestId, OperationId>,
    reach: Reach,
    /// When it last wanted to know whether there is another map.
    map_wanted: Time,
    last_operation: u64,
    last_request: u64,
}

impl Asker {
    /// An asker under way with nothing.
    #[must_use]
    pub fn new(id: AskerId) -> Self {
        Self {
            id,
            map: ClusterMap::default(),
            operations: BTreeMap::new(),
            by_request: BTreeMap::new(),
            reach: Reach::default(),
            map_wanted: Time::ZERO,
            last_operation: 0,
            last_request: 0,
        }
    }

    /// Who it is.
    #[must_use]
    pub const fn id(&self) -> AskerId {
        self.id
    }

    /// How many operations are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.operations.len()
    }

    /// Begins an operation, which ends at `until`.
    ///
    /// # Errors
    /// [`TooManyOperations`].
    pub fn begin(
        &mut self,
        now: Time,
        key: Fingerprint,
        namespace: NamespaceKind,
        wish: Wish,
        until: Time,
        out: Out<'_>,
    ) -> Result<OperationId, TooManyOperations> {
        if self.operations.len() >= OPERATIONS_MAX {
            return Err(TooManyOperations);
        }
        self.last_operation += 1;
        let id = OperationId(self.last_operation);
        let request = self.new_request(id);
        let stage = Stage::Pausing(now);
        let is_begun = false;
        let operation = Operation {
            key,
            namespace,
            wish,
            request,
            is_begun,
            is_in_doubt: false,
            begun_at: now,
            epoch: self.map.epoch(),
            has_no_room: false,
            silent_at: until,
            left_at: None,
            answer_took: Duration::ZERO,
            stage,
            until,
        };
        self.operations.insert(id, operation);
        self.send(now, id, out);
        Ok(id)
    }

    /// The operation that a request is of, while it is under way.
    #[must_use]
    pub fn operation_of(&self, request: RequestId) -> Option<OperationId> {
        self.by_request.get(&request).copied()
    }

    /// Below this one, all requests are over: none of them is sent again, and nobody waits for one.
    #[must_use]
    pub fn over_below(&self) -> RequestId {
        let first = self.by_request.keys().next().copied();
        first.unwrap_or(RequestId(self.last_request + 1))
    }

    /// The operation is over, whatever the asker thinks of it: nobody waits for it, or who was asked will never do it. Nothing of
    /// it is sent any more, and nothing that is told of it is heard. One that has ended is none.
    pub fn give_up(&mut self, id: OperationId) {
        if let Some(operation) = self.operations.remove(&id) {
            self.by_request.remove(&operation.request);
        }
    }

    fn new_request(&mut self, id: OperationId) -> RequestId {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        self.by_request.insert(request, id);
        request
    }

    /// The map is another one.
    pub fn on_map(&mut self, map: &ClusterMap) {
        if map.epoch() > self.map.epoch() {
            self.map = map.clone();
            self.reach.on_map(map);
        }
    }

    /// Sends what the operation's stage is about.
    fn send(&mut self, now: Time, id: OperationId, out: Out<'_>) {
        let operation = self.operations.get_mut(&id).expect("under way");
        let Operation {
            key,
            request,
            until,
            ..
        } = *operation;
        if let Stage::Reading { found, at } = &mut operation.stage {
            *at = now;
            let (owner, version) = (found.owners[0], found.version);
            out.push(AskerAction::Read {
                owner,
                request,
                key,
                version,
            });
            return;
        }
        if let Wish::Write(seat, ask) | Wish::WriteOnce(seat, ask) = operation.wish {
            let wait_ms = u32::try_from(until.since(now).as_millis()).unwrap_or(u32::MAX);
            operation.begin(now);
            operation.stage = Stage::Asked { seat, at: now };
            let ask = WriteAsk {
                wait_ms: wait_ms.min(ask.wait_ms),
                ..ask
            };
            out.push(AskerAction::Write(seat, request, ask));
            return;
        }
        // Asked again before it has answered, it is the same home that is asked, and under the same map.
        let seat = match operation.stage {
            Stage::Asked { seat, .. } if operation.is_begun => Some(seat),
            _ => {
                operation.epoch = self.map.epoch();
                home_of(&self.map, key)
            }
        };
        let Some(seat) = seat else {
            operation.stage = Stage::Pausing(now + PAUSE);
            // Nobody is asked for anything who could tell of a newer one.
            self.want_newer_map(now, out);
            return;
        };
        let ask = operation.question(now);
        if matches!(operation.wish, Wish::Remove(_)) {
            operation.begin(now);
        }
        let is_again = matches!(operation.stage, Stage::Asked { seat: asked, .. } if asked == seat);
        if matches!(operation.wish, Wish::Lookup(_)) && !is_again {
            operation.silent_at = now + self.reach.patience(now, seat);
        }
        operation.stage = Stage::Asked { seat, at: now };
        out.push(AskerAction::Ask(seat, operation.epoch, ask));
    }

    /// A home, or an owner for it, has answered.
    pub fn on_answer(&mut self, now: Time, request: RequestId, answer: Answer, out: Out<'_>) {
        let Some((id, seat)) = self.asked(request) else {
            return;
        };
        self.reach.answered(seat);
        let operation = self.operations.get_mut(&id).expect("under way");
        let wish = operation.wish;
        match answer {
            Answer::Found(found) if matches!(wish, Wish::Lookup(_) | Wish::Remove(_)) => {
                self.end(id, Outcome::Found(found), out);
            }
            Answer::Found(found) if !found.owners.is_empty() => {
                operation.stage = Stage::Reading { found, at: now };
                self.send(now, id, out);
            }
            Answer::Found(_) => {}
            Answer::Miss => self.end(id, Outcome::Miss, out),
            Answer::Unknown => self.end(id, Outcome::Unknown, out),
            Answer::Removed { found, version } => {
                self.end(id, Outcome::Removed { found, version }, out);
            }
            Answer::Interrupted => self.doubt(now, id, out),
            Answer::Stale(epoch) => {
                if epoch > self.map.epoch() {
                    out.push(AskerAction::MapWanted(epoch));
                }
                self.pause(now, id);
            }
            Answer::Unavailable | Answer::Busy | Answer::Full => self.pause(now, id),
        }
    }

    /// The operation that this request is of, if it waits for a home or a writer, and for which.
    fn asked(&self, request: RequestId) -> Option<(OperationId, Seat)> {
        let id = *self.by_request.get(&request)?;
        match self.operations[&id].stage {
            Stage::Asked { seat, .. } => Some((id, seat)),
            _ => None,
        }
    }

    /// Nothing was done: another try, as another request, after a pause.
    fn pause(&mut self, now: Time, id: OperationId) {
        let former = self.operations[&id].request;
        self.by_request.remove(&former);
        let request = self.new_request(id);
        let operation = self.operations.get_mut(&id).expect("under way");
        if operation.is_begun {
            operation.answer_took = now.since(operation.begun_at);
        }
        operation.request = request;
        operation.is_begun = false;
        operation.stage = Stage::Pausing(now + PAUSE);
    }

    /// It is not known whether it was done, and will not be.
    fn doubt(&mut self, now: Time, id: OperationId, out: Out<'_>) {
        let operation = self.operations.get_mut(&id).expect("under way");
        if operation.is_repeatable() {
            operation.is_in_doubt = true;
            self.pause(now, id);
        } else {
            self.end(id, Outcome::Interrupted, out);
        }
    }

    /// An owner has answered a read.
    pub fn on_read(&mut self, now: Time, request: RequestId, answer: ReadAnswer, out: Out<'_>) {
        let Some(&id) = self.by_request.get(&request) else {
            return;
        };
        let Stage::Reading { found, .. } = &self.operations[&id].stage else {
            return;
        };
        let version = found.version;
        self.reach.answered(found.owners[0]);
        match answer {
            ReadAnswer::Bytes => self.end(id, Outcome::Hit(version), out),
            ReadAnswer::Absent | ReadAnswer::Unavailable => self.read_next(now, id, out),
        }
    }

    /// How long a read that is sent there now waits for who was asked to say something: [`SILENT_WAIT`], or shortly where it
    /// is known to be out of reach.
    #[must_use]
    pub fn patience(&mut self, now: Time, seat: Seat) -> Duration {
        self.reach.patience(now, seat)
    }

    /// Who was asked cannot be reached, or says nothing, and was tried `for_time` now: nothing was done there, and nothing is
    /// under way.
    ///
    /// A read then ends in [`Outcome::Unknown`] if there is nobody else to ask, and that has been so for [`REACH_WAIT`]. All
    /// else is tried again, as another request.
    pub fn on_unreached(
        &mut self,
        now: Time,
        request: RequestId,
        for_time: Duration,
        out: Out<'_>,
    ) {
        let Some(&id) = self.by_request.get(&request) else {
            return;
        };
        let operation = &self.operations[&id];
        let (seat, has_others) = match &operation.stage {
            Stage::Asked { seat, .. } => (*seat, false),
            Stage::Reading { found, .. } => (found.owners[0], found.owners.len() > 1),
            Stage::Pausing(_) => return,
        };
        let is_over = self.reach.is_refused(now, seat, for_time) && !has_others;
        match operation.wish {
            Wish::Get | Wish::Lookup(_) if is_over => self.end(id, Outcome::Unknown, out),
            Wish::Get => self.read_next(now, id, out),
            _ => self.pause(now, id),
        }
    }

    /// The next owner is asked for the bytes; where there is none, the home again, after a pause.
    fn read_next(&mut self, now: Time, id: OperationId, out: Out<'_>) {
        let operation = self.operations.get_mut(&id).expect("under way");
        match &mut operation.stage {
            Stage::Reading { found, .. } if found.owners.len() > 1 => {
                found.owners.remove(0);
            }
            _ => return self.pause(now, id),
        }
        // Under another id, or an answer of the first owner would be taken for the second's.
        self.by_request.remove(&operation.request);
        let request = self.new_request(id);
        self.operations.get_mut(&id).expect("listed").request = request;
        self.send(now, id, out);
    }

    /// An owner has answered a write.
    pub fn on_written(&mut self, now: Time, request: RequestId, answer: WriteAnswer, out: Out<'_>) {
        let Some((id, seat)) = self.asked(request) else {
            return;
        };
        self.reach.answered(seat);
        let is_once = match self.operations[&id].wish {
            Wish::Write(..) => false,
            Wish::WriteOnce(..) => true,
            _ => return,
        };
        match answer {
            WriteAnswer::Interrupted => self.doubt(now, id, out),
            WriteAnswer::Written { .. } | WriteAnswer::Exists { .. } | WriteAnswer::Aborted => {
                self.end(id, Outcome::Written(answer), out);
            }
            WriteAnswer::Busy | WriteAnswer::Full | WriteAnswer::Unavailable if is_once => {
                self.end(id, Outcome::Written(answer), out);
            }
            WriteAnswer::Busy | WriteAnswer::Full | WriteAnswer::Unavailable => {
                self.pause(now, id);
                let operation = self.operations.get_mut(&id).expect("under way");
                operation.has_no_room = answer == WriteAnswer::Full;
            }
        }
    }

    /// Time passes.
    pub fn on_tick(&mut self, now: Time, out: Out<'_>) {
        let ids: Vec<OperationId> = self.operations.keys().copied().collect();
        for id in ids {
            let operation = &self.operations[&id];
            if now >= operation.until {
                let may_be_done = operation.is_begun || operation.is_in_doubt;
                let outcome = match (may_be_done, operation.has_no_room) {
                    (true, _) => Outcome::Interrupted,
                    (false, true) => Outcome::NoRoom,
                    (false, false) => Outcome::TimedOut,
                };
                self.end(id, outcome, out);
                continue;
            }
            if let Stage::Asked { seat, .. } = operation.stage
                && now >= operation.silent_at
            {
                self.reach.is_silent(now, seat);
                self.end(id, Outcome::Unknown, out);
                continue;
            }
            if !operation.is_due(now) {
                continue;
            }
            if self.is_out_of_hearing(now, id) {
                self.doubt(now, id, out);
            } else if !self.look_elsewhere(now, id) {
                self.want_map(now, id, out);
                self.send(now, id, out);
            }
        }
    }

    /// Nothing has come of what was asked: who was asked may have left the map.
    fn want_map(&mut self, now: Time, id: OperationId, out: Out<'_>) {
        let is_unanswered = !matches!(self.operations[&id].stage, Stage::Pausing(_));
        if is_unanswered {
            self.want_newer_map(now, out);
        }
    }

    fn want_newer_map(&mut self, now: Time, out: Out<'_>) {
        if now >= self.map_wanted + MAP_PAUSE {
            self.map_wanted = now;
            out.push(AskerAction::MapWanted(Epoch(self.map.epoch().0 + 1)));
        }
    }

    /// Whether a write or a removal may have been begun by somebody who left the map so long ago that no answer is to come.
    fn is_out_of_hearing(&mut self, now: Time, id: OperationId) -> bool {
        let operation = self.operations.get_mut(&id).expect("under way");
        let Stage::Asked { seat, .. } = operation.stage else {
            return false;
        };
        if !operation.is_begun || has_seat(&self.map, seat) {
            operation.left_at = None;
            return false;
        }
        now >= *operation.left_at.get_or_insert(now) + LEFT_WAIT
    }

    /// A lookup whose home is gone, or a read whose owner is, begins anew; it repeats nothing.
    fn look_elsewhere(&mut self, now: Time, id: OperationId) -> bool {
        let operation = &self.operations[&id];
        let asked = match &operation.stage {
            Stage::Asked { seat, .. } if !operation.is_begun => *seat,
            Stage::Reading { found, .. } => found.owners[0],
            _ => return false,
        };
        let is_gone = !has_seat(&self.map, asked);
        if is_gone {
            self.pause(now, id);
        }
        is_gone
    }

    fn end(&mut self, id: OperationId, outcome: Outcome, out: Out<'_>) {
        let operation = self.operations.remove(&id).expect("it ends once");
        self.by_request.remove(&operation.request);
        out.push(AskerAction::Done(id, outcome));
    }
}
