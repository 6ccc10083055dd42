//! What a scheduler sees of its peer and rails, and what must hold of what it does.
//!
//! The driver's part of the contract is kept: actions are carried out before anything else happens;
//! each slice ends once; a connection ends once and then its slices end; time does not go back.
//! What the peer and the network do is free.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::scheduler::{
    Action, CloseCause, Effect, Outcome, Scheduler, SliceId, TransferId, TransferOptions,
};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::{Part, Request, Slice};

use super::scheduler::Reached;

/// A rail and the number of one of its connections.
pub(super) type Link = (usize, u32);

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    Up,
    /// It is lost, and the scheduler has not been told.
    Broken,
    /// It is lost, and the scheduler knows.
    Over,
}

/// A slice on its way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) link: Link,
    pub(super) is_stopping: bool,
    transfer: TransferId,
    slice: Slice,
    carries_note: bool,
}

/// A transfer that was submitted.
#[derive(Debug)]
struct Posted {
    lens: Vec<u64>,
    has_note: bool,
    is_note_sent: bool,
    is_delivered: bool,
    /// It was cancelled, or its peer is another one.
    is_ended: bool,
    sent: BTreeSet<u32>,
    done: Vec<Part>,
}

impl Posted {
    fn done_bytes(&self, request: u32) -> u64 {
        let parts = self.done.iter().filter(|part| part.request == request);
        parts.map(|part| u64::from(part.len_bytes)).sum()
    }

    fn all_done_bytes(&self) -> u64 {
        (0..)
            .zip(&self.lens)
            .map(|(request, _)| self.done_bytes(request))
            .sum()
    }
}

fn overlaps(one: &Part, other: &Part) -> bool {
    let end = |part: &Part| part.offset_bytes + u64::from(part.len_bytes);
    one.request == other.request && one.offset_bytes < end(other) && other.offset_bytes < end(one)
}

/// Everything outside of the scheduler.
pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Time,
    pub(super) links: BTreeMap<Link, LinkState>,
    pub(super) flights: BTreeMap<SliceId, Flight>,
    /// Connections that the peer has been asked to end.
    pub(super) fences: Vec<Link>,
    /// Lost writes of which the peer has not said that they cannot land any more.
    may_land: BTreeMap<Link, Vec<(TransferId, Slice)>>,
    /// Writes that the peer has passed on, and whose fate it does not know either: no fence says more.
    late: Vec<(TransferId, Slice)>,
    posted: BTreeMap<TransferId, Posted>,
    /// All transfers, finished ones included, in the order of their submission.
    pub(super) submitted: Vec<TransferId>,
    pub(super) reached: Reached,
}

impl World {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler,
            now: Time::ZERO + Duration::from_millis(1),
            links: BTreeMap::new(),
            flights: BTreeMap::new(),
            fences: Vec::new(),
            may_land: BTreeMap::new(),
            late: Vec::new(),
            posted: BTreeMap::new(),
            submitted: Vec::new(),
            reached: Reached::default(),
        }
    }

    /// Carries out all that is to be done now.
    pub(super) fn act(&mut self) {
        while let Some(action) = self.scheduler.next_action(self.now) {
            self.take(action);
        }
        assert_eq!(self.scheduler.transfers(), self.posted.len());
    }

    fn take(&mut self, action: Action) {
        match action {
            Action::Connect { rail, connection } => {
                let is_free = self
                    .links
                    .iter()
                    .all(|(&(other, _), &state)| other != rail || state == LinkState::Over);
                assert!(is_free, "one connection at a time");
                let link = (rail, connection);
                let before = self.links.insert(link, LinkState::Connecting);
                assert_eq!(before, None, "each has a number of its own");
            }
            Action::Send {
                slice,
                transfer,
                rail,
            } => self.send(slice, transfer, rail),
            Action::Stop { slice } => {
                let flight = self.flights.get_mut(&slice).expect("it is under way");
                assert_eq!(flight.slice.way, Way::Read, "a write cannot be taken back");
                assert!(!flight.is_stopping, "asked once");
                flight.is_stopping = true;
            }
            Action::Close {
                rail,
                connection,
                cause,
            } => {
                let state = self.links.insert((rail, connection), LinkState::Over);
                assert!(matches!(state, Some(LinkState::Up | LinkState::Broken)));
                match cause {
                    CloseCause::Stalled | CloseCause::Overtaken => self.reached.stalls += 1,
                    CloseCause::Idle => self.reached.idles += 1,
                }
            }
            Action::Fence {
                rail,
                connection,
                via,
            } => {
                assert!(self.link_of(via).is_some(), "over a rail that is up");
                assert_eq!(self.links[&(rail, connection)], LinkState::Over);
                self.fences.push((rail, connection));
            }
            Action::Finished { transfer, outcome } => self.finish(transfer, &outcome),
        }
    }

    /// The connection that the scheduler takes to be up.
    fn link_of(&self, rail: usize) -> Option<Link> {
        let link = (rail, self.scheduler.rails()[rail].connection());
        let state = self.links.get(&link)?;
        matches!(state, LinkState::Up | LinkState::Broken).then_some(link)
    }

    fn send(&mut self, id: SliceId, transfer: TransferId, rail: usize) {
        let (slice, carries_note) = self.scheduler.slice(id).expect("what is sent is there");
        let slice = slice.clone();
        let link = self.link_of(rail).expect("over a rail that is up");
        for part in &slice.parts {
            let is_free = !self.open_parts(transfer).any(|open| overlaps(open, part));
            assert!(is_free, "{part:?} is under way, or may land still");
        }
        let posted = self.posted.get_mut(&transfer).expect("it is not over");
        assert!(!posted.is_ended, "nothing more of it is sent");
        for part in &slice.parts {
            let is_new = !posted.done.iter().any(|done| overlaps(done, part));
            assert!(is_new, "{part:?} is done");
            let end = part.offset_bytes + u64::from(part.len_bytes);
            assert!(part.len_bytes > 0 && end <= posted.lens[part.request as usize]);
            posted.sent.insert(part.request);
        }
        if carries_note {
            posted.is_note_sent = true;
            assert!(posted.has_note && !posted.is_delivered && slice.way == Way::Write);
            let all: u64 = posted.lens.iter().sum();
            assert_eq!(
                posted.all_done_bytes() + slice.len_bytes(),
                all,
                "bytes first"
            );
        } else {
            assert!(!slice.parts.is_empty(), "a slice carries something");
        }
        self.reached.resent += u32::from(slice.attempts > 0);
        let flight = Flight {
            link,
            is_stopping: false,
            transfer,
            slice,
            carries_note,
        };
        assert!(self.flights.insert(id, flight).is_none());
    }

    /// What of a transfer is under way, or may land still.
    fn open_parts(&self, transfer: TransferId) -> impl Iterator<Item = &Part> {
        self.open_slices(transfer).flat_map(|slice| &slice.parts)
    }

    fn open_slices(&self, transfer: TransferId) -> impl Iterator<Item = &Slice> {
        let under_way = self.flights.values();
        let under_way = under_way.map(|flight| (flight.transfer, &flight.slice));
        let may_land = self.may_land.values().flatten().chain(&self.late);
        let may_land = may_land.map(|(transfer, slice)| (*transfer, slice));
        let all = under_way.chain(may_land);
        all.filter_map(move |(other, slice)| (other == transfer).then_some(slice))
    }

    fn finish(&mut self, transfer: TransferId, outcome: &Outcome) {
        let posted = self.posted.remove(&transfer).expect("finished once");
        let mut failed = BTreeMap::new();
        for failure in &outcome.failures {
            let before = failed.insert(failure.request, failure.effect);
            assert_eq!(before, None, "a request fails once: {outcome:?}");
        }
        let open: BTreeSet<u32> = self.open_parts(transfer).map(|part| part.request).collect();
        for (request, &len) in (0..).zip(&posted.lens) {
            let done = posted.done_bytes(request);
            let is_sent = posted.sent.contains(&request);
            let effect = failed.get(&Some(request));
            let is_right = done == len || (done < len && effect.is_some());
            assert!(is_right, "{request}: {done} of {len}");
            if let Some(&effect) = effect {
                let is_open = open.contains(&request);
                assert_eq!(effect == Effect::MayStillChange, is_open, "{request}");
                assert_eq!(effect == Effect::Untouched, !is_sent, "{request}");
            }
        }
        if let Some(&effect) = failed.get(&None) {
            assert!(posted.has_note);
            assert_eq!(effect == Effect::Untouched, !posted.is_note_sent);
        }
        if outcome.failures.is_empty() {
            assert_eq!(self.open_slices(transfer).next(), None);
            assert_eq!(posted.is_delivered, posted.has_note);
            self.reached.succeeded += 1;
        } else {
            self.reached.failed += 1;
            self.reached.unsettled += u32::from(!open.is_empty());
        }
    }

    pub(super) fn submit(&mut self, requests: &[Request], options: TransferOptions) {
        let submitted = self
            .scheduler
            .submit(requests.iter().copied(), options, self.now);
        let Ok(id) = submitted else {
            self.reached.full += 1;
            return;
        };
        let posted = Posted {
            lens: requests.iter().map(|asked| asked.len_bytes).collect(),
            has_note: options.has_note,
            is_note_sent: false,
            is_delivered: false,
            is_ended: false,
            sent: BTreeSet::new(),
            done: Vec::new(),
        };
        assert!(!self.submitted.contains(&id), "an id is never used again");
        self.posted.insert(id, posted);
        self.submitted.push(id);
    }

    pub(super) fn cancel(&mut self, id: TransferId) {
        if let Some(posted) = self.posted.get_mut(&id) {
            posted.is_ended = true;
            self.reached.cancelled += 1;
        }
        self.scheduler.cancel(id, self.now);
    }

    pub(super) fn answer(&mut self, id: SliceId) {
        let flight = self.flights.remove(&id).expect("it is under way");
        if let Some(posted) = self.posted.get_mut(&flight.transfer) {
            posted.done.extend(&flight.slice.parts);
            posted.is_delivered |= flight.carries_note;
        }
        self.scheduler.on_answered(id, self.now);
    }

    pub(super) fn refuse(&mut self, id: SliceId, refusal: Refusal, part: usize) {
        let flight = self.flights.remove(&id).expect("it is under way");
        if refusal == Refusal::Detached && flight.slice.way == Way::Write {
            self.late.push((flight.transfer, flight.slice));
        }
        self.reached.refused += 1;
        self.scheduler.on_refused(id, refusal, part, self.now);
    }

    pub(super) fn stopped(&mut self, id: SliceId) {
        let flight = self.flights.remove(&id).expect("it is under way");
        assert!(flight.is_stopping);
        self.reached.stopped += 1;
        self.scheduler.on_stopped(id);
    }

    /// A slice's connection ended before its answer.
    pub(super) fn lose(&mut self, id: SliceId) {
        let flight = self.flights.remove(&id).expect("it is under way");
        if flight.slice.way == Way::Write {
            let may_land = self.may_land.entry(flight.link).or_default();
            may_land.push((flight.transfer, flight.slice));
        }
        self.links.insert(flight.link, LinkState::Over);
        self.scheduler.on_lost(id, self.now);
        self.reached.lost += 1;
    }

    /// The scheduler hears that a connection is over, or could not be made.
    pub(super) fn fail(&mut self, link: Link) {
        self.links.insert(link, LinkState::Over);
        self.scheduler.on_rail_failed(link.0, link.1, self.now);
    }

    pub(super) fn connected(&mut self, link: Link) {
        let is_wanted = self.scheduler.on_connected(link.0, link.1, self.now);
        assert!(is_wanted, "nobody else has ended it");
        self.links.insert(link, LinkState::Up);
    }

    /// Another engine is where the peer was: connections to that one end, sooner or later.
    pub(super) fn replace(&mut self, link: Link) {
        self.fail(link);
        for state in self.links.values_mut() {
            if *state == LinkState::Up {
                *state = LinkState::Broken;
            }
        }
        self.may_land.clear();
        for posted in self.posted.values_mut() {
            posted.is_ended = true;
        }
        self.scheduler.on_peer_replaced(self.now);
        self.reached.replaced += 1;
    }

    pub(super) fn fenced(&mut self, link: Link, is_fenced: bool) {
        if is_fenced {
            self.may_land.remove(&link);
            self.reached.fenced += 1;
        }
        self.scheduler
            .on_fenced(link.0, link.1, is_fenced, self.now);
    }

    /// Asserts that nothing is left: all has ended, and nobody waits for anything.
    pub(super) fn is_over(&self) -> bool {
        self.posted.is_empty() && self.flights.is_empty() && self.may_land.is_empty()
    }
}
