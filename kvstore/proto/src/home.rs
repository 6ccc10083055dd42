//! The home of keys: one core of one node, which orders what happens to them.
//!
//! ```text
//!              a map with this seat                    everybody in it has reported
//!   Outside -----------------------> Rebuilding ------------------------------------> Complete
//!      ^                                ^    |                                           |
//!      |                                +----|------------- a later map -----------------+
//!      +------- a map without it ------------+
//! ```
//!
//! A home keeps no state that must survive as long as others do. What it records can be told again by those who hold the
//! copies, and what was removed by those who remember, so it needs no log; what it must not do is act before it has been
//! told. Only where all have ended what it knew of removals has to outlast it, if anything that they had is to be believed
//! (`memory`). Its rules, each with the history that it excludes:
//!
//! - **Nothing is granted, recorded or removed while rebuilding.** The previous home may have
//!   acknowledged what this one has not heard of: a put that is granted now would hide it.
//! - **A report is given under the new map**, so when the last one is in, nobody heeds the previous
//!   home any more, and it has nothing to acknowledge.
//! - **Nothing is dropped while rebuilding.** Of put 3, removal 4 and put 5, put 5 lives; heard in
//!   the order 3, 5, 4, who judges too early drops it.
//! - **What a member that was away reports is not shown while rebuilding**: it may have been removed
//!   meanwhile, and the tombstone not yet been reported.
//! - **Claims end with their epoch.** A claim of the previous home would block nobody at this one,
//!   and its publication could follow another put's.
//! - **What leaves is ordered to.** A copy is forgotten when its owner has said that it dropped it,
//!   never before, whether it is evicted, removed, surplus or has lost against another. So a removal
//!   is acknowledged when no holder is left, and a retraction that is repeated harms nobody.
//! - **A removal leaves a tombstone, found or not, and so does an upsert.** An owner that is outside
//!   the map may hold what was removed or replaced; it would bring it back. Without the upsert's, it
//!   would do so once the upsert's own copies are evicted.
//!
//! | file | subject |
//! |---|---|
//! | `writes` | claims, publications, retractions |
//! | `direct` | puts by this very core, in one step |
//! | `removals` | removals, upserts: changes that end when older copies have left |
//! | `lookups` | plain, and with hold |
//! | `presence` | what lookups would be told, told ahead |
//! | `judging` | which copies of a key live |
//! | `rebuild` | the barrier |
//! | `departures` | who has left the map, and may be serving still |
//! | `losses` | removals that perhaps nobody knows of any more, until who knew comes back |
//! | `memory` | what a home knew of removals when its node left, for the next life |
//! | `repairs` | copies that are missing, and made again |
//! | `histories` | how often a key was used where it left, for who has it next |
//! | `table`, `tombstones`, `waiting`, `limits` | what is kept, and how much of it |

mod departures;
mod direct;
mod histories;
mod judging;
mod limits;
mod lookups;
mod losses;
mod memory;
mod presence;
mod rebuild;
mod removals;
mod repairs;
mod table;
mod tombstones;
mod waiting;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lunette_cluster_proto::fence::{Act, Fence, Fenced, NamespaceKind, Standing as Lease};
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::ids::{NodeId, RequestId};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use crate::answered::{Answered, Known};
use crate::key::Fingerprint;
use crate::message::directory::{Answer, Ask, AskerId, Recalled, ToHome, ToOwner, ToPeer};
use crate::placement::{Seat, has_seat, home_of, seats};
use crate::version::{CopyInfo, Generation, Version};

pub use direct::{NotRecorded, RecordedHere};
use histories::Histories;
pub use limits::{
    ANSWERED_KEEP, COPIES_PER_KEY_MAX, DEPARTED_WAIT, HomeLimits, KEYS_PER_TICK_MAX,
    REBUILD_WAIT_MAX, RECENT_MAPS_MAX, REPAIR_PAUSE_MAX, REPAIR_WAIT, REPAIRS_UNDER_WAY_MAX,
    REPORTS_UNDER_WAY_MAX, RESEND, TOMBSTONE_KEEP,
};
use losses::LossBook;
use memory::Kept;
pub use memory::{HomeMemory, MEMORY_PIECES_MAX, MemoryFault};
pub use presence::{LISTED_PER_TICK_MAX, PresenceChange};
use rebuild::Rebuild;
use removals::Change;
use repairs::Repairs;
use table::{Standing, Table};
use tombstones::Tombstones;
use waiting::{Request, Waiter, Waiting};
use writes::Claim;

/// What a home wants done. Messages may be lost: it asks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HomeAction {
    /// Tell an owner; one may be on this very core.
    ToOwner(Seat, ToOwner),
    /// Tell another home.
    ToPeer(Seat, ToPeer),
    /// Tell an asker.
    Answer(AskerId, RequestId, Answer),
}

/// What a home has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeStats {
    /// Copies recorded now.
    pub copies: u64,
    /// Copies that lost against another of their key, and were dropped.
    pub losers: u64,
    /// Copies beyond those wanted, and dropped.
    pub surplus: u64,
    /// Copies dropped because their owner was away for longer than tombstones are remembered.
    pub cold: u64,
    /// Keys that have fewer copies than are wanted now, although there are nodes without one.
    pub scarce: u64,
    /// How often an owner was told to make copies that are missing.
    pub repairs: u64,
    /// Lookups answered [`Answer::Unknown`].
    pub unknown: u64,
    /// Requests refused at a bound.
    pub full: u64,
    /// Messages of another epoch.
    pub stale: u64,
}

#[derive(Debug)]
enum Phase {
    Outside,
    Rebuilding(Rebuild),
    Complete,
}

/// The machine of one home. See the [module](self).
#[derive(Debug)]
pub struct Home {
    seat: Seat,
    limits: HomeLimits,
    fence: Fence,
    map: ClusterMap,
    phase: Phase,
    /// The sequence of the last version issued in this epoch.
    sequence: u64,
    last_order: u64,
    table: Table,
    tombstones: Tombstones,
    claims: BTreeMap<Fingerprint, Claim>,
    changes: BTreeMap<Fingerprint, Change>,
    waiting: Waiting,
    /// Keys with copies that have not been judged.
    unjudged: BTreeSet<Fingerprint>,
    /// Owners that were away for longer than tombstones are remembered.
    cold: BTreeSet<Seat>,
    /// Keys with copies too few, and the members that are to be emptied, whose copies count for nothing.
    repairs: Repairs,
    emptied: BTreeSet<NodeId>,
    /// Until when each seat that left the map may be serving; and those in the map that have said that they do no more.
    departed: BTreeMap<Seat, Time>,
    left: BTreeSet<Seat>,
    /// It has been complete, and in each map since.
    is_informed: bool,
    /// What its former life knew when it left; and what this one knows, once that has left.
    recalled: Option<Recalled>,
    has_left: bool,
    /// How many cores its node has.
    cores: u16,
    /// Who has left with what others may not know; and which homes may not be complete, as long as anybody has, with when they
    /// were asked.
    losses: LossBook,
    incomplete: BTreeMap<Seat, Option<Time>>,
    /// Whether what it knows is kept for the case of a crash, and since when that is the same.
    kept: Kept,
    tombstoned: Time,
    /// Members of these maps may be serving, until [`Self::quiet_until`].
    recent: VecDeque<ClusterMap>,
    /// It does not know all maps whose members may be serving.
    has_gap: bool,
    quiet_until: Time,
    /// After which key records are to be looked at, for those that moved away.
    sweep: Option<Option<Fingerprint>>,
    answered: Answered<Answer>,
    histories: Histories,
    stats: HomeStats,
}

type Out<'a> = &'a mut Vec<HomeAction>;

impl Home {
    /// The home at this seat, before it has a map.
    #[must_use]
    pub fn new(seat: Seat, limits: HomeLimits) -> Self {
        Self {
            seat,
            limits,
            fence: Fence::default(),
            map: ClusterMap::default(),
            phase: Phase::Outside,
            sequence: 0,
            last_order: 0,
            table: Table::new(seat),
            tombstones: Tombstones::default(),
            claims: BTreeMap::new(),
            changes: BTreeMap::new(),
            waiting: Waiting::default(),
            unjudged: BTreeSet::new(),
            cold: BTreeSet::new(),
            repairs: Repairs::default(),
            emptied: BTreeSet::new(),
            departed: BTreeMap::new(),
            left: BTreeSet::new(),
            is_informed: false,
            recalled: None,
            has_left: false,
            cores: 1,
            losses: LossBook::default(),
            incomplete: BTreeMap::new(),
            kept: Kept::Nothing,
            tombstoned: Time::ZERO,
            recent: VecDeque::new(),
            has_gap: true,
            quiet_until: Time::ZERO,
            sweep: None,
            answered: Answered::new(ANSWERED_KEEP),
            histories: Histories::default(),
            stats: HomeStats::default(),
        }
    }

    /// The seat.
    #[must_use]
    pub const fn seat(&self) -> Seat {
        self.seat
    }

    /// The epoch of its map.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.map.epoch()
    }

    /// Whether everybody has reported.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete)
    }

    /// Whether nothing is under way: no claim, change, order or request, and everything judged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_judged = self.unjudged.is_empty() && self.sweep.is_none();
        let is_quiet = self.claims.is_empty() && self.changes.is_empty() && self.waiting.len() == 0;
        let is_told = !self.table.watched.is_listing() && self.histories.has_told();
        is_judged && is_quiet && is_told && !self.table.is_telling_any()
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> HomeStats {
        HomeStats {
            copies: self.table.len() as u64,
            scarce: self.repairs.len() as u64,
            ..self.stats
        }
    }

    /// The copies that it shows, in the order of keys, without replicas that join: for those who look on.
    pub fn shown(&self) -> impl Iterator<Item = (Fingerprint, Seat, CopyInfo)> + '_ {
        let all = self.table.iter();
        let shown = all.filter(|(_, copy)| copy.standing == Standing::Shown);
        shown.map(|(key, copy)| (key, copy.seat, copy.info))
    }

    /// The node's lease, as it is known now. Say so each time it is renewed or ends.
    ///
    /// A lease that was lost and granted anew counts once the map has been read again after that: in
    /// the newest map, which this node may not have heard of, its keys may be another home's.
    pub const fn on_fence(&mut self, fence: Fence) {
        self.fence = fence;
    }

    /// The map is another one. Older ones than the one known are ignored.
    pub fn on_map(&mut self, now: Time, map: &ClusterMap, out: Out<'_>) {
        if map.epoch() <= self.map.epoch() {
            return;
        }
        let previous = core::mem::replace(&mut self.map, map.clone());
        self.table.watched.reset();
        let is_raised = map.generation() > previous.generation();
        let is_kept = self.is_complete()
            && previous.epoch().0 + 1 == map.epoch().0
            && self.sweep.is_none()
            && has_seat(map, self.seat);
        self.sequence = 0;
        // Nobody believes what was known under an earlier map.
        (self.kept, self.tombstoned) = (Kept::Nothing, Time::ZERO);
        self.claims.clear();
        // Before the first one nobody was a home.
        let is_first = map.epoch() == Epoch::FIRST;
        self.note_gone(now, &previous, is_kept || is_first);
        if is_raised && !mutant::is_on(Mutant::GenerationIgnored) {
            self.tombstones.raise(self.generation());
        }
        if is_kept && !is_raised {
            self.depart(&previous);
        } else {
            self.table.clear();
            self.unjudged.clear();
            self.repairs.clear();
        }
        self.left.retain(|seat| has_seat(map, *seat));
        self.note_emptied();
        self.repairs.on_map();
        self.turn_away(now, out);
        self.carry_changes(now, is_kept && !is_raised, out);
        if !has_seat(map, self.seat) || self.has_left {
            self.phase = Phase::Outside;
            return;
        }
        self.phase = Phase::Rebuilding(Rebuild::new(&self.map, self.seat, !is_kept));
        self.go_on(now, out);
    }

    /// Whether a removal or an upsert is under way.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Its node leaves the cluster, and its owner has: nothing is done any more, as under a map without this seat, and who
    /// waits is told so, and so are the other homes. What it knew is [told](Self::memory) from then on.
    pub fn leave(&mut self, now: Time, out: Out<'_>) {
        self.recalled = self.known_at_the_end();
        self.has_left = true;
        self.phase = Phase::Outside;
        self.turn_away(now, out);
        self.carry_changes(now, false, out);
        let others = seats(&self.map).filter(|seat| seat.node != self.seat.node);
        out.extend(others.map(|seat| HomeAction::ToPeer(seat, ToPeer::Left)));
    }

    /// Time passes: call it at least every few milliseconds while anything is under way.
    pub fn on_tick(&mut self, now: Time, out: Out<'_>) {
        self.tombstones.expire(now, KEYS_PER_TICK_MAX);
        self.answered.forget_old(now);
        self.end_waits(now, out);
        self.end_departures(now, out);
        self.go_on(now, out);
        if self.is_complete() {
            self.end_claims(now, out);
            self.judge_some(now, out);
            self.tell_again(now, out);
            self.ask_incomplete(now, out);
            self.bury_again(now, out);
            self.sweep_some(now);
            self.repair_some(now, out);
            self.end_changes(now, out);
        }
        self.list_some();
        self.tell_histories(out);
        self.interrupt_late(now, out);
        if now >= self.quiet_until {
            self.recent.clear();
            self.has_gap = false;
        }
    }

    /// An owner of the given epoch says something.
    pub fn on_owner(&mut self, now: Time, from: Seat, epoch: Epoch, item: ToHome, out: Out<'_>) {
        if !self.heeds(from, epoch) {
            return;
        }
        match item {
            ToHome::Claim {
                op,
                key,
                kind,
                namespace,
                wait_ms,
            } => {
                let waiter = Waiter::Claim {
                    seat: from,
                    op,
                    kind,
                    namespace,
                };
                self.dispatch(now, Self::request(now, key, waiter, wait_ms), out);
            }
            ToHome::Abandon { op, key } => self.abandon(now, from, op, key, out),
            ToHome::Publish {
                op,
                key,
                info,
                namespace,
            } => {
                let waiter = Waiter::Publish {
                    seat: from,
                    op,
                    info,
                    namespace,
                };
                self.dispatch(now, Self::request(now, key, waiter, u32::MAX), out);
            }
            ToHome::Retract {
                key,
                version,
                reuses,
            } => self.retract(now, from, key, (version, reuses), out),
            ToHome::Dropped {
                key,
                version,
                order,
            } => self.dropped(now, from, key, (version, order), out),
            ToHome::Kept { op, key, version } => self.kept(now, from, key, (version, op), out),
            ToHome::Gone {
                asker,
                request,
                key,
                version,
                namespace,
                hold,
            } => {
                let hold = Some(hold);
                let waiter = Waiter::Lookup {
                    asker,
                    request,
                    namespace,
                    hold,
                };
                self.gone(now, from, version, Self::request(now, key, waiter, 0), out);
            }
            ToHome::Settle => self.settle(from, out),
        }
    }

    /// All requests of an asker below this one are over, whatever it was told: it asks none of them again.
    pub fn over(&mut self, now: Time, asker: AskerId, below: RequestId) {
        self.answered
            .over(now, asker, below, self.limits.answered_max);
    }

    /// A key is about to be written, or one of its copies to leave: see [`Sorted::touch`](crate::sorted::Sorted::touch).
    pub fn touch(&self, key: Fingerprint) {
        self.table.touch(key);
        self.tombstones.touch(key);
    }

    /// Somebody asks, who has the map of the given epoch.
    pub fn on_ask(&mut self, now: Time, asker: AskerId, epoch: Epoch, ask: Ask, out: Out<'_>) {
        let request = ask.request();
        if let Some(known) = self.answered.get(asker, request) {
            let answer = match known {
                Known::Ended(answer) => answer,
                Known::Over => Answer::Busy,
            };
            out.push(HomeAction::Answer(asker, request, answer));
            return;
        }
        // Under the map that it knows already it will be able to answer; what was refused under that
        // map must not be done by a second copy of the request.
        if epoch > self.map.epoch() || self.is_removing(asker, request, ask.key()) {
            return;
        }
        if epoch < self.map.epoch() || matches!(self.phase, Phase::Outside) {
            self.stats.stale += 1;
            let answer = Answer::Stale(self.map.epoch());
            out.push(HomeAction::Answer(asker, request, answer));
            return;
        }
        let (waiter, wait_ms) = match ask {
            Ask::Lookup {
                namespace, hold, ..
            } => (
                Waiter::Lookup {
                    asker,
                    request,
                    namespace,
                    hold,
                },
                0,
            ),
            Ask::Remove {
                namespace,
                wait_ms,
                only,
                ..
            } => (
                Waiter::Remove {
                    asker,
                    request,
                    namespace,
                    only,
                },
                wait_ms,
            ),
        };
        // The copy that came first is answered.
        if !self.waiting.has(ask.key(), &waiter) {
            self.dispatch(now, Self::request(now, ask.key(), waiter, wait_ms), out);
        }
    }

    /// Whether a message of that seat and epoch means anything here.
    fn heeds(&mut self, from: Seat, epoch: Epoch) -> bool {
        let is_heeded = epoch == self.map.epoch()
            && !matches!(self.phase, Phase::Outside)
            && has_seat(&self.map, from);
        self.stats.stale += u64::from(!is_heeded);
        is_heeded
    }

    fn is_home_of(&self, key: Fingerprint) -> bool {
        home_of(&self.map, key) == Some(self.seat)
    }

    const fn generation(&self) -> Generation {
        Generation(self.map.generation())
    }

    fn next_version(&mut self) -> Version {
        assert!(self.is_complete(), "versions are issued when all is known");
        self.sequence += 1;
        Version {
            epoch: self.map.epoch(),
            sequence: self.sequence,
        }
    }

    fn permit(&self, now: Time, namespace: NamespaceKind, act: Act) -> Result<Lease, Fenced> {
        if mutant::is_on(Mutant::FenceIgnored) {
            return Ok(Lease::Leased);
        }
        self.fence.permit(now, namespace, act)
    }

    /// Does what is asked, or has it wait.
    fn dispatch(&mut self, now: Time, request: Request, out: Out<'_>) {
        if !self.is_home_of(request.key) {
            self.refuse(now, request, Answer::Stale(self.map.epoch()), out);
            return;
        }
        if self.is_complete() {
            self.judge_if_due(now, request.key, out);
        }
        let is_done = match request.waiter {
            Waiter::Claim { .. } => self.claim(now, request, out),
            Waiter::Publish { .. } => self.publish(now, request, out),
            Waiter::Remove { .. } => self.remove(now, request, out),
            Waiter::Lookup { .. } => self.lookup(now, request, out),
        };
        if is_done {
            return;
        }
        let (all, line) = (self.limits.waiters_max, self.limits.waiters_per_key_max);
        if self.waiting.push(request, all, line).is_err() {
            self.stats.full += 1;
            self.refuse(now, request, Answer::Full, out);
        }
    }

    /// The line of a key may go on.
    fn wake(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        for request in self.waiting.take(key) {
            self.dispatch(now, request, out);
        }
    }
}
