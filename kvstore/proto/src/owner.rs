//! The owner of copies: one core of one node, which has them in its memory.
//!
//! A write, from its claim to its copy, and a copy to its end:
//!
//! ```text
//!             granted            whole               recorded             retract
//!  Claiming ----------> Claimed -------> Publishing ----------> Published --------> Retracting
//!    ^  |                |  |              |   |                   |                    |
//!    |  +--- refused ----+--|----- lost ---+   +-- time over --> Retracting             |
//!    |                      |                                      |                    |
//!    +----- new map --------+          ordered to drop: freed <----+--------------------+
//! ```
//!
//! The bytes may arrive before, while or after the claim is on its way: a claim costs no time where
//! the value is large, and none is sent over the network when the home is this very core.
//!
//! Its rules, each with the history that it excludes:
//!
//! - **A copy is served once it is recorded.** Before, its write may still fail.
//! - **A new map ends what was granted.** The claim is made again at the new home; a publication that
//!   was sent may have been recorded, so its copy is reported like others and published again.
//! - **What was given up is not reported to a new home**, and freed at once: the new home would
//!   record as the oldest put what the former one had let another put replace.
//! - **A copy that replicates is not reported before it is recorded.** The object may have been removed
//!   without the home knowing of this copy; publishing it later is refused then.
//! - **Who was away tells so, and serves nothing in a strict namespace** before every home has judged
//!   what it holds: any of it may have been removed meanwhile.
//! - **What is ordered of a copy that was here before is not done to the one that came later.** Otherwise a
//!   drop that is late would take what was made again, and nobody would know if its answer is lost.
//! - **A write that ends in doubt keeps its copy until the home lets it go.** Others may have been
//!   told that the key is taken, and what it replaces may be gone.
//!
//! | file | subject |
//! |---|---|
//! | `writes` | claims and publications |
//! | `given_up` | writes that nobody waits for any more |
//! | `direct` | puts whose home is on this very core |
//! | `copies` | what is held, served, retracted, dropped |
//! | `kept` | the copies, by key and version |
//! | `report` | what homes are told after a new map |
//! | `holds` | what may not be evicted for a while |
//! | `outbox` | messages to homes, batched |
//! | `limits` | how much of it |

mod copies;
mod direct;
mod given_up;
mod holds;
mod kept;
mod limits;
mod outbox;
mod report;
mod writes;

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::fence::{Act, Fence, Fenced, NamespaceKind, Standing};
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::ids::{NodeId, RequestId};
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use crate::answered::Answered;
use crate::key::Fingerprint;
use crate::message::directory::{
    Answer, AskerId, Away, CopyPage, CopyPlace, OpId, ToHome, ToOwner,
};
use crate::placement::{Seat, has_seat, home_of, is_there_since};
use crate::sorted::{Sorted, Spread};
use crate::version::CopyInfo;

pub use copies::{EvictRefusal, Read, Sought};
use holds::Holds;
use kept::Kept;
pub use limits::{ANSWERED_KEEP, HOLD_MAX, OwnerLimits, RESEND};
pub use outbox::{BATCH_ITEMS_MAX, Outbox};
use report::Relisting;
use writes::Write;
pub use writes::{WriteAnswer, WriteAsk};

/// Why a copy was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FreeCause {
    /// The owner wanted it to leave, and the home has recorded that.
    Evicted,
    /// The home ordered it: it was removed, replaced, surplus, or has lost against another.
    Ordered,
    /// "Remove all".
    Cleared,
    /// It was not recorded.
    Unrecorded,
}

impl FreeCause {
    /// Its name in what is told of copies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Ordered => "ordered",
            Self::Cleared => "cleared",
            Self::Unrecorded => "unrecorded",
        }
    }
}

/// What an owner wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerAction {
    /// Tell a home; it may be on this very core. Many go into one message: see [`Outbox`].
    ToHome(Seat, ToHome),
    /// Send a part of a report.
    Page(Seat, CopyPage),
    /// The bytes of a write are from now on those of this copy; its extent carries the version.
    Name(OpId, CopyPlace),
    /// Free the bytes of a write that has no copy.
    Discard(OpId),
    /// Free a copy's bytes, once nobody reads them.
    Free(CopyPlace, FreeCause),
    /// Make replicas of this copy, as many as are missing, on nodes other than the holders.
    Replicate {
        /// The copy.
        place: CopyPlace,
        /// What it is.
        info: CopyInfo,
        /// What its namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// How many.
        missing: u8,
        /// The nodes that have one already.
        holders: Vec<NodeId>,
    },
    /// A key that this owner let go of was used elsewhere: whoever remembers it is to know.
    CameBack(Fingerprint),
    /// The key of this copy was used so often after the first time, before it came.
    WasUsed(CopyPlace, u8),
    /// Tell a writer how its write ended.
    Written(AskerId, RequestId, WriteAnswer),
    /// Tell an asker what its lookup found.
    Answer(AskerId, RequestId, Answer),
}

/// What an owner has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerStats {
    /// Copies kept now.
    pub copies: u64,
    /// Copies that it evicted.
    pub evicted: u64,
    /// Copies that it was ordered to drop.
    pub ordered: u64,
    /// Reads and writes beyond the lease, in cache namespaces: each may have shown what was removed
    /// meanwhile.
    pub cut_off: u64,
    /// Requests refused at a bound.
    pub full: u64,
    /// Messages of another epoch.
    pub stale: u64,
}

type Out<'a> = &'a mut Vec<OwnerAction>;

/// The machine of one owner. See the [module](self).
#[derive(Debug)]
pub struct Owner {
    seat: Seat,
    limits: OwnerLimits,
    fence: Fence,
    map: ClusterMap,
    /// Whether homes may be told only what moved: nothing was missed since the map before.
    is_continuous: bool,
    /// Whether there was a map with this seat.
    has_been_member: bool,
    /// When it was no member, until all is settled again.
    away: Option<Away>,
    settled: BTreeSet<Seat>,
    settle_asked: Time,
    copies: Kept,
    writes: BTreeMap<Fingerprint, Write>,
    /// The key of each write.
    keys: BTreeMap<OpId, Fingerprint>,
    /// Copies that a home is to be told of, by home.
    by_home: BTreeMap<Seat, Sorted<CopyPlace, ()>>,
    /// Those that are not in `by_home` yet under the newest map.
    relisting: Relisting,
    /// Copies for which a home's answer is missing.
    asking: BTreeSet<CopyPlace>,
    holds: Holds,
    last_op: u64,
    answered: Answered<WriteAnswer>,
    stats: OwnerStats,
}

impl Owner {
    /// The owner at this seat, which has nothing yet and no map.
    #[must_use]
    pub fn new(seat: Seat, limits: OwnerLimits) -> Self {
        Self {
            seat,
            limits,
            fence: Fence::default(),
            map: ClusterMap::default(),
            is_continuous: false,
            has_been_member: false,
            away: None,
            settled: BTreeSet::new(),
            settle_asked: Time::ZERO,
            copies: Kept::default(),
            writes: BTreeMap::new(),
            keys: BTreeMap::new(),
            by_home: BTreeMap::new(),
            relisting: Relisting::default(),
            asking: BTreeSet::new(),
            holds: Holds::default(),
            last_op: 0,
            answered: Answered::new(ANSWERED_KEEP),
            stats: OwnerStats::default(),
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

    /// Since when it is away, if what it holds has not been judged again.
    #[must_use]
    pub const fn away_since(&self) -> Option<Epoch> {
        match self.away {
            Some(away) => Some(away.since),
            None => None,
        }
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_relisting = self.is_relisting();
        self.writes.is_empty() && self.asking.is_empty() && self.away.is_none() && !is_relisting
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> OwnerStats {
        OwnerStats {
            copies: self.copies.len() as u64,
            ..self.stats
        }
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
        let was_member = has_seat(&previous, self.seat);
        let is_next = previous.epoch().0 + 1 == map.epoch().0;
        self.is_continuous = was_member && is_next && has_seat(map, self.seat);
        self.has_been_member |= has_seat(map, self.seat);
        self.note_absence(&previous, was_member);
        self.settled.clear();
        self.settle_asked = Time::ZERO;
        self.find_homes(&previous);
        if map.generation() > previous.generation() && !mutant::is_on(Mutant::GenerationIgnored) {
            self.clear(now, out);
        }
        self.take_back_unrecorded(now, out);
        self.let_go(out);
        self.write_anew(now, out);
        self.ask_again(now, Time::MAX, out);
    }

    /// Under the map before it was a member or not. Maps that it has not heard of it may have been in: whoever was the home of what
    /// it has waited for what it has to tell, so nothing of it was removed.
    fn note_absence(&mut self, previous: &ClusterMap, was_member: bool) {
        let is_there = is_there_since(&self.map, self.seat, previous.epoch());
        if self.is_continuous || (was_member && is_there) {
            return;
        }
        let since = self.away.map(|away| away.since);
        let since = since.or(was_member.then_some(previous.epoch()));
        let back = self.map.epoch();
        self.away = since.map(|since| Away { since, back });
    }

    /// All requests of a writer below this one are over, whatever it was told: it asks for none of them again.
    pub fn over(&mut self, now: Time, asker: AskerId, below: RequestId) {
        self.answered
            .over(now, asker, below, self.limits.answered_max);
    }

    /// Time passes: call it at least every few milliseconds while anything is under way.
    pub fn on_tick(&mut self, now: Time, out: Out<'_>) {
        self.holds.expire(now);
        self.answered.forget_old(now);
        self.end_writes(now, out);
        let resend_ns = u64::try_from(RESEND.as_nanos()).expect("a short time");
        let before = Time::from_ns(now.as_ns().saturating_sub(resend_ns));
        self.write_again(now, before, out);
        self.ask_again(now, before, out);
        self.settle(now, out);
        self.relist(out);
    }

    /// A home of the given epoch says something.
    pub fn on_home(&mut self, now: Time, from: Seat, epoch: Epoch, item: ToOwner, out: Out<'_>) {
        // Who is not the key's home under this map may have been the one before, and know no better.
        let is_home = item
            .key()
            .is_none_or(|key| home_of(&self.map, key) == Some(from));
        if epoch == self.map.epoch() && has_seat(&self.map, self.seat) && is_home {
            self.on_item(now, from, item, out);
            return;
        }
        self.stats.stale += 1;
        // What it replaces may have left by then, whoever is the home now.
        if let ToOwner::Replacing { op, key, version } = item {
            self.replacing(op, CopyPlace { key, version });
        }
    }

    fn on_item(&mut self, now: Time, from: Seat, item: ToOwner, out: Out<'_>) {
        match item {
            ToOwner::Granted {
                op,
                key,
                version,
                generation,
            } => {
                self.granted(now, from, op, key, (version, generation), out);
            }
            ToOwner::Exists { op, version, .. } => {
                self.claim_ended(now, op, WriteAnswer::Exists { version }, out);
            }
            ToOwner::Refused { op, refusal, .. } => {
                self.claim_ended(now, op, refusal.into(), out);
            }
            ToOwner::Recorded {
                op,
                key,
                version,
                is_cut_off,
                order,
            } => {
                let copy = (op, CopyPlace { key, version });
                self.recorded(now, from, copy, (is_cut_off, order), out);
            }
            ToOwner::Replacing { op, key, version } => {
                self.replacing(op, CopyPlace { key, version })
            }
            ToOwner::Lost { op, key, version } => {
                self.lost(now, op, CopyPlace { key, version }, out);
            }
            ToOwner::Drop {
                key,
                version,
                order,
                was_recorded,
            } => {
                let place = CopyPlace { key, version };
                self.drop_copy(now, from, place, (order, was_recorded), out);
            }
            ToOwner::Settled => self.has_settled(from),
            ToOwner::CopiesWanted { is_full, after } => self.report(from, is_full, after, out),
            ToOwner::Serve {
                asker,
                request,
                key,
                version,
                namespace,
                hold,
            } => {
                let place = CopyPlace { key, version };
                self.serve(now, from, (asker, request), place, (namespace, hold), out);
            }
            ToOwner::Replicate {
                key,
                version,
                missing,
                holders,
            } => self.replicate(CopyPlace { key, version }, missing, holders, out),
            ToOwner::CameBack { key } => out.push(OwnerAction::CameBack(key)),
            ToOwner::WasUsed { key, reuses } => self.was_used(key, reuses, out),
        }
    }

    fn permit(
        &mut self,
        now: Time,
        namespace: NamespaceKind,
        act: Act,
    ) -> Result<Standing, Fenced> {
        if mutant::is_on(Mutant::FenceIgnored) {
            return Ok(Standing::Leased);
        }
        let mut fence = self.fence;
        // What a former life has left is no member's to speak of before this one is a member.
        if !self.has_been_member {
            return Err(Fenced);
        }
        if !has_seat(&self.map, self.seat) {
            fence.end(now);
        }
        let standing = fence.permit(now, namespace, act)?;
        // What was removed while it was away may still be here.
        let standing = match (standing, self.away, namespace) {
            (_, Some(_), NamespaceKind::Strict) if act == Act::Read => return Err(Fenced),
            (_, Some(_), NamespaceKind::Cache) if act == Act::Read => Standing::CutOff,
            (standing, ..) => standing,
        };
        self.stats.cut_off += u64::from(standing == Standing::CutOff);
        Ok(standing)
    }

    /// The copies that it would serve, in the order of keys: for those who look on.
    pub fn served(&self) -> impl Iterator<Item = (CopyPlace, CopyInfo)> + '_ {
        let published = self.copies.iter().filter(|(_, held)| held.is_published());
        published.map(|(place, held)| (place, held.info))
    }

    /// Each key after one of which there are copies, in order, and the latest that it would serve, if any: from any place on, for
    /// those who look at some at a time.
    pub fn keys_after(
        &self,
        after: Option<Fingerprint>,
    ) -> impl Iterator<Item = (Fingerprint, Option<(CopyPlace, CopyInfo)>)> + '_ {
        let keys = self.copies.published_after(after);
        keys.map(|(key, latest)| {
            let latest = latest.map(|held| {
                let version = held.info.version;
                (CopyPlace { key, version }, held.info)
            });
            (key, latest)
        })
    }

    /// A key is about to be written, or one of its copies to leave: see [`Sorted::touch`].
    pub fn touch(&self, key: Fingerprint) {
        self.copies.touch(key);
        if let Some(places) = self.by_home.get(&self.seat) {
            places.touch(CopyPlace::least(key.head()));
        }
    }

    /// A copy that it would serve, and what its namespace wants of nodes that are cut off.
    #[must_use]
    pub fn copy(&self, place: CopyPlace) -> Option<(CopyInfo, NamespaceKind)> {
        let held = self.copies.get(place).filter(|held| held.is_published());
        held.map(|held| (held.info, held.namespace()))
    }
}
