//! One core of a member: a home and an owner, their bytes, and who waits for their answers.
//!
//! Whatever comes in is told to one of the machines. What they want done in turn is done at once
//! where it concerns this very core, one thing after the other, until nothing is left; the rest goes
//! to the [`Post`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::{mpsc, oneshot};
use lunette_cluster::proto::fence::{Fence, NamespaceKind};
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::home::{Home, HomeLimits};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::NodeState;
use lunette_kvstore_proto::message::directory::{Answer, Ask, AskerId, CopyPlace, HoldWish, OpId};
use lunette_kvstore_proto::owner::{
    EvictRefusal, FreeCause, Owner, OwnerLimits, OwnerStats, Read, Sought, WriteAnswer, WriteAsk,
};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::arena::Arena;
use lunette_runtime::{Signal, spawn_local, time};
use lunette_runtime_core::ids::RequestId;

use super::bytes::{Bytes, Extent, Frame, Held};
use super::deeds::Deeds;
use super::grouping::Grouping;
use super::lane::Lanes;
use super::leased::Leased;
use super::lending::Lending;
use super::loading::Loading;
use super::one_sided::{Board, Sharing};
use super::post::Post;
use super::presence::Presence;
use super::pushing::Pushing;
use super::quotas::Crediting;
use super::replicas::Scarcity;
use super::reservations::Reservations;
use super::steering::Steer;
use super::taking::Taking;
use super::tier::Tier;
use super::waiters::{Asked, Waiters, Waiting};
use crate::counting::{CopyCounts, Counts, DriveReport, MemberReport};

/// How many copies the machines of a core may know for each entry of its memory: some have left memory and not yet
/// their home, and a home may have more keys than its own memory holds.
const COPIES_PER_ENTRY: usize = 2;
/// How long a node that leaves finishes what it has begun. Some of it may wait for who is gone.
const LEAVE_WAIT: Duration = Duration::from_millis(250);
/// How long its drive takes what has been written since it was to take all that only memory has: nothing is written meanwhile.
const PARK_AGAIN: Duration = Duration::from_millis(100);
/// How long its home may take to know all under the last map, so that its drive can keep that.
const KNOW_WAIT: Duration = Duration::from_secs(1);
/// How often it looks whether that is done.
const LEAVE_LOOK: Duration = Duration::from_millis(1);

/// The target of the trace events that tell of each copy that a member has. `what` is `kept` when its bytes
/// are there, `recorded` when its home knows of it, `demotes`, `demoted` and `promoted` when they go to a drive, are
/// there alone, and are back, `returned` when a drive has it from a former life, `abandoned` when others of its group have left, `leaves` when its home is asked to let go of it for want of room, and `evicted`, `ordered`,
/// `cleared` or `unrecorded` when it is no more. `node` and `core` are who has it; `key_high`, `epoch` and
/// `sequence` say which copy it is. `away` is of none: by a new map the member knows that it was in none since that `epoch`, and its homes judge
/// what it has.
pub const COPIES: &str = "lunette_kvstore::copies";

/// Victims are asked for so often in a turn, if none of them can leave.
const SPARED_TURNS_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Machines {
    pub(super) home: Home,
    pub(super) owner: Owner,
}

/// See the [module](self).
pub(crate) struct MemberCore {
    seat: Seat,
    machines: RefCell<Machines>,
    bytes: RefCell<Bytes>,
    /// Lets readers of this host in, where that can be.
    sharing: Option<Sharing>,
    /// Threads of other processes that put objects here.
    pub(super) lanes: Lanes,
    /// Adapters that write copies to where readers want them.
    pushing: Pushing,
    map: RefCell<Rc<ClusterMap>>,
    /// Until when those may rely on what they see that look on, if there are any.
    pub(super) leased: OnceCell<Leased>,
    /// What those see that look on.
    pub(super) presence: RefCell<Option<Presence>>,
    /// Copies that they may read by themselves, and that are not listed yet.
    pub(super) unlisted: RefCell<VecDeque<CopyPlace>>,
    pub(super) deeds: Deeds,
    /// Nothing new is to be written or removed here.
    is_leaving: Cell<bool>,
    has_left: Cell<bool>,
    fence: Cell<Fence>,
    pub(super) copies: CopyCounts,
    pub(crate) counts: Rc<Counts>,
    /// Lookups and removals that wait.
    pub(crate) asks: Waiters<Answer>,
    /// Writes that wait.
    pub(crate) writes: Waiters<WriteAnswer>,
    pub(crate) post: Post,
    pub(super) scarcity: Scarcity,
    pub(super) taking: Taking,
    pub(super) loading: Loading,
    pub(super) reservations: RefCell<Reservations>,
    pub(super) lending: Lending,
    pub(super) grouping: Grouping,
    pub(super) crediting: Crediting,
    /// Where what leaves memory goes, if there is a drive.
    tier: OnceCell<Tier>,
    /// Raised when something has begun that may have to be asked for again.
    pub(crate) busy: Signal,
    /// What steers the node's membership, once it is known.
    steering: OnceCell<mpsc::Sender<Steer>>,
}

impl MemberCore {
    pub(crate) fn new(
        seat: Seat,
        (arena, limits): (Arena, ShardLimits),
        (board, sharing, pushing): (Option<Board>, Option<Sharing>, Pushing),
        (post, tier): (Post, Option<Tier>),
    ) -> Rc<Self> {
        // It is memory that is to run out first: there room can be made.
        let in_memory_max = limits.entries_max().saturating_mul(COPIES_PER_ENTRY);
        let on_drive_max = tier.as_ref().map_or(0, Tier::records_max);
        let copies_max = in_memory_max + on_drive_max;
        let home_limits = HomeLimits {
            copies_max: copies_max.max(HomeLimits::default().copies_max),
            histories_max: HomeLimits::histories_max(limits.high_watermark_bytes()),
            ..HomeLimits::default()
        };
        let owner_limits = OwnerLimits {
            copies_max,
            ..OwnerLimits::default()
        };
        let core = Rc::new(Self {
            seat,
            machines: RefCell::new(Machines {
                home: Home::new(seat, home_limits),
                owner: Owner::new(seat, owner_limits),
            }),
            bytes: RefCell::new(Bytes::new(arena, limits, board)),
            sharing,
            lanes: Lanes::default(),
            pushing,
            map: RefCell::default(),
            leased: OnceCell::new(),
            presence: RefCell::default(),
            unlisted: RefCell::default(),
            deeds: Deeds::default(),
            is_leaving: Cell::new(false),
            has_left: Cell::new(false),
            fence: Cell::default(),
            copies: CopyCounts::default(),
            counts: Rc::default(),
            asks: Waiters::default(),
            writes: Waiters::default(),
            post,
            scarcity: Scarcity::default(),
            taking: Taking::default(),
            loading: Loading::default(),
            reservations: RefCell::default(),
            lending: Lending::default(),
            grouping: Grouping::default(),
            crediting: Crediting::new(seat),
            tier: OnceCell::new(),
            busy: Signal::default(),
            steering: OnceCell::new(),
        });
        if let Some(tier) = tier {
            tier.begin(&core);
            drop(core.tier.set(tier));
        }
        core
    }

    /// From now on it can tell the node's membership something.
    pub(crate) fn steer_by(&self, steering: mpsc::Sender<Steer>) {
        drop(self.steering.set(steering));
    }

    /// Wants another map than this one, whoever is in it.
    pub(super) fn renew_map(&self) {
        let epoch = self.map.borrow().epoch();
        let steering = self.steering.get().cloned();
        let told = steering.map(|mut steering| steering.try_send(Steer::Renew(epoch)));
        tracing::warn!(epoch = epoch.0, ?told, "another map is wanted");
    }

    pub(crate) const fn seat(&self) -> Seat {
        self.seat
    }

    /// Whether this seat serves nobody any more.
    pub(crate) const fn has_left(&self) -> bool {
        self.has_left.get()
    }

    /// Whether nothing new is to be written or removed here, since the node leaves.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Nothing new is to be written or removed here. Says when what was begun is done, or has taken [`LEAVE_WAIT`].
    pub(crate) fn begin_to_leave(self: &Rc<Self>, done: oneshot::Sender<()>) {
        self.is_leaving.set(true);
        let core = Rc::clone(self);
        let finishing = spawn_local(async move {
            let begun = time::now();
            while !core.is_finished() && time::now() < begun + LEAVE_WAIT {
                time::sleep(LEAVE_LOOK).await;
            }
            while !core.knows_all() && time::now() < begun + KNOW_WAIT {
                time::sleep(LEAVE_LOOK).await;
            }
            // What was written meanwhile.
            if core.parks() {
                Rc::clone(&core).park(time::now() + PARK_AGAIN).await;
            }
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for this core to leave");
            }
        });
        drop(finishing);
    }

    fn parks(&self) -> bool {
        (self.tier.get()).is_some_and(|tier| tier.park_timeout() > Duration::ZERO)
    }

    /// Has its drive take what only memory has, for as long as that may last, and says when it is done.
    pub(crate) fn begin_to_park(self: &Rc<Self>, done: oneshot::Sender<()>) {
        let timeout = self.tier.get().map(Tier::park_timeout);
        let Some(timeout) = timeout.filter(|_| self.parks()) else {
            // Who waits is told by that.
            return drop(done);
        };
        let core = Rc::clone(self);
        let parking = spawn_local(async move {
            core.park(time::now() + timeout).await;
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for this core to park");
            }
        });
        drop(parking);
    }

    /// Whether nobody waits for something that is under way here.
    fn is_finished(&self) -> bool {
        let is_answered = self.asks.len() == 0 && self.writes.len() == 0;
        is_answered && !self.machines.borrow().home.is_changing()
    }

    /// Whether its drive can keep what its home knows, or never will.
    fn knows_all(&self) -> bool {
        let is_complete = self.machines.borrow().home.is_complete();
        is_complete || self.tier.get().is_none() || !has_seat(&self.map.borrow(), self.seat)
    }

    /// The node leaves its cluster: nothing is served from here on, also not to those who have not
    /// heard of it, and nobody is told anything but who waits for what was begun here.
    pub(crate) fn leave(&self) {
        self.at_owner(self.seat, Owner::leave);
        self.has_left.set(true);
        self.bytes.borrow().hide_all();
        self.stop_showing();
        self.tell_lease();
        self.post.retain(|_| false);
        // The last word, to other homes.
        self.at_home(Home::leave);
    }

    pub(super) const fn machines(&self) -> &RefCell<Machines> {
        &self.machines
    }

    pub(crate) const fn bytes(&self) -> &RefCell<Bytes> {
        &self.bytes
    }

    pub(super) fn tier(&self) -> Option<&Tier> {
        self.tier.get()
    }

    pub(crate) const fn pushing(&self) -> &Pushing {
        &self.pushing
    }

    pub(super) const fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    pub(crate) fn map(&self) -> Rc<ClusterMap> {
        Rc::clone(&self.map.borrow())
    }

    /// What this core is doing, and for how long its lease is sure to last.
    pub(crate) fn standing(&self) -> (NodeState, Duration) {
        let now = time::now();
        let until = self.fence.get().until();
        let left = until.map_or(Duration::ZERO, |until| until.since(now));
        let map = self.map.borrow();
        let member = map.member(self.seat.node);
        let state = if self.has_left() {
            NodeState::Left
        } else if !has_seat(&map, self.seat) {
            NodeState::Joining
        } else if left.is_zero() {
            NodeState::Fenced
        } else if member.is_some_and(|member| member.is_draining) {
            NodeState::Draining
        } else {
            NodeState::Serving
        };
        (state, left)
    }

    /// What its drive tells of itself, if it has one.
    pub(crate) fn drive_report(&self) -> Option<DriveReport> {
        self.tier().map(Tier::report)
    }

    /// What it tells of itself as a part of its cluster.
    pub(crate) fn member_report(&self) -> MemberReport {
        let machines = self.machines.borrow();
        let (home, owner) = (machines.home.stats(), machines.owner.stats());
        let (copies, sent, dropped) = (&self.copies, self.post.sent(), self.post.dropped());
        MemberReport {
            members: self.map.borrow().members().len() as u64,
            one_sided_reads: copies.one_sided_reads.get(),
            one_sided_fallbacks: copies.one_sided_fallbacks.get(),
            handed_over: copies.handed_over.get(),
            pushed: copies.pushed.get(),
            pushed_bytes: copies.pushed_bytes.get(),
            pushes_failed: copies.pushes_failed.get(),
            asked_by_adapters: copies.asked_by_adapters.get(),
            pulled: copies.pulled.get(),
            pulled_bytes: copies.pulled_bytes.get(),
            queue_pairs: self.pushing.queue_pairs() as u64,
            copies_replicated: copies.replicated.get(),
            copies_ordered: copies.ordered.get(),
            copies_cleared: copies.cleared.get(),
            copies_unrecorded: copies.unrecorded.get(),
            replicas_made: copies.replicas_made.get(),
            replicas_failed: copies.replicas_failed.get(),
            copies_abandoned: copies.abandoned.get(),
            copies_back: copies.came_back.get(),
            messages_sent: sent,
            messages_received: copies.messages_received.get(),
            messages_dropped: dropped,
            cut_off: owner.cut_off,
            home_copies: home.copies,
            scarce_keys: home.scarce,
            repairs: home.repairs,
            drive: self.drive_report(),
        }
    }

    pub(crate) fn owner_stats(&self) -> OwnerStats {
        self.machines.borrow().owner.stats()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let machines = self.machines.borrow();
        let is_told = self.tier().is_none_or(Tier::is_idle);
        let is_told = is_told && self.grouping.is_idle() && self.unlisted.borrow().is_empty();
        is_told && machines.home.is_idle() && machines.owner.is_idle()
    }

    /// A key is about to be written, or one of its copies to leave: the tables that this takes are asked for at once.
    pub(super) fn touch(&self, key: Fingerprint) {
        let machines = self.machines.borrow();
        machines.home.touch(key);
        machines.owner.touch(key);
        self.bytes.borrow().touch(key);
        if let Some(presence) = &*self.presence.borrow() {
            presence.touch(key);
        }
    }

    /// The map is another one.
    pub(crate) fn on_map(&self, map: &ClusterMap) {
        if map.epoch() <= self.map.borrow().epoch() {
            return;
        }
        *self.map.borrow_mut() = Rc::new(map.clone());
        let capacity_bytes = self.bytes.borrow().limits().high_watermark_bytes();
        (self.taking).on_map(time::now(), map, self.seat, capacity_bytes);
        self.post.retain(|seat| has_seat(map, seat));
        let away = self.at_owner(self.seat, |owner, now, out| {
            owner.on_map(now, map, out);
            owner.away_since()
        });
        if let Some(since) = away {
            self.tell_away(since);
            // What has not been judged is not to be read by who does not ask.
            self.bytes.borrow().hide_all();
        }
        self.at_home(|home, now, out| home.on_map(now, map, out));
        self.grouping.on_map(map);
        self.on_map_of_credit(map);
        self.settle();
    }

    /// The node's lease, as it is known now.
    pub(crate) fn on_fence(&self, fence: Fence) {
        self.fence.set(fence);
        self.tell_lease();
        if !fence.is_leased(time::now()) {
            // Who reads by itself asks again, and is told what this node may still serve.
            self.bytes.borrow().hide_all();
        }
        let mut machines = self.machines.borrow_mut();
        machines.home.on_fence(fence);
        machines.owner.on_fence(fence);
    }

    pub(super) const fn fence(&self) -> Fence {
        self.fence.get()
    }

    pub(super) fn is_leased(&self) -> bool {
        self.fence.get().is_leased(time::now())
    }

    /// Time passes.
    pub(crate) fn on_tick(&self) {
        if self.has_left() {
            return;
        }
        self.at_home(|home, now, out| home.on_tick(now, out));
        self.at_owner(self.seat, |owner, now, out| owner.on_tick(now, out));
        self.join_groups();
        self.on_tick_of_credit();
        self.settle();
        if let Some(tier) = self.tier() {
            tier.on_tick(self);
        }
        self.expire_reservations();
        self.end_presence();
        self.hear_reads();
        self.list_some();
        self.take_back();
        self.make_room();
    }

    /// Has the drive take what has to leave, or asks homes to let go of it: how many copies.
    pub(crate) fn make_room(&self) -> usize {
        self.take_back();
        self.hear_reads();
        for turn in 0..SPARED_TURNS_MAX {
            let victims = self.bytes.borrow_mut().victims(turn == 0);
            if victims.is_empty() {
                break;
            }
            let leaving = self.let_go(&victims);
            if leaving > 0 {
                return leaving;
            }
        }
        0
    }

    /// How many of the copies leave; the others cannot now.
    fn let_go(&self, victims: &[CopyPlace]) -> usize {
        for place in victims {
            self.touch(place.key);
        }
        let mut leaving = 0;
        for &place in victims {
            if self.demote(place) {
                leaving += 1;
                continue;
            }
            let leaves = self.evict(place);
            let mut bytes = self.bytes.borrow_mut();
            match leaves {
                Ok(()) => {
                    bytes.leave(place);
                    if let Some(tier) = self.tier() {
                        tier.has_refused();
                    }
                    self.tell_copy(place, "leaves");
                    leaving += 1;
                }
                Err(refusal) => {
                    tracing::trace!(?place, %refusal, "not evicted");
                    bytes.spare(place);
                }
            }
        }
        self.settle();
        leaving
    }

    /// Asks the home to let go of a copy.
    pub(super) fn evict(&self, place: CopyPlace) -> Result<(), EvictRefusal> {
        let reuses = self.bytes.borrow().reuses(place);
        self.at_owner(self.seat, |owner, now, out| {
            owner.evict(now, place, reuses, out)
        })
    }

    /// The bytes of a copy are gone. Whether it leaves: see [`Owner::lose`].
    pub(super) fn lose(&self, place: CopyPlace) -> bool {
        let reuses = self.bytes.borrow().reuses(place);
        self.at_owner(self.seat, |owner, now, out| {
            owner.lose(now, place, reuses, out)
        })
    }

    /// An asker asks. The answer, now or later.
    pub(crate) fn ask(&self, asker: AskerId, epoch: Epoch, ask: Ask) -> Waiting<Answer> {
        let asked: Asked = (asker, ask.request());
        let waiting = self.asks.wait(asked);
        let known = self.machines.borrow().home.epoch();
        if epoch > known {
            // It will be able to answer when it has that map.
            self.asks.answer(asked, Answer::Stale(known));
            return waiting;
        }
        self.at_home(|home, now, out| home.on_ask(now, asker, epoch, ask, out));
        self.settle();
        waiting
    }

    /// All requests of an asker below this one are over.
    pub(crate) fn over(&self, asker: AskerId, below: RequestId) {
        let now = time::now();
        let mut machines = self.machines.borrow_mut();
        machines.home.over(now, asker, below);
        machines.owner.over(now, asker, below);
    }

    /// Begins a write. With `Some`, its bytes are wanted. The answer comes now or later; its claim goes out
    /// when this core [settles](Self::settle).
    pub(crate) fn write(
        &self,
        asker: AskerId,
        request: RequestId,
        ask: WriteAsk,
    ) -> (Option<OpId>, Waiting<WriteAnswer>) {
        let waiting = self.writes.wait((asker, request));
        let op = self.at_owner(self.seat, |owner, now, out| {
            owner.write(now, asker, request, ask, out)
        });
        (op, waiting)
    }

    /// The bytes of a write are here, and whole.
    pub(crate) fn on_whole(&self, op: OpId, extent: Extent) {
        let (len_bytes, crc32c) = (extent.len_bytes(), extent.crc32c);
        let is_wanted = self.bytes.borrow_mut().received(op, extent);
        if is_wanted {
            self.at_owner(self.seat, |owner, now, out| {
                owner.whole(now, op, len_bytes, crc32c, out);
            });
        }
        self.settle();
    }

    /// The bytes of a write will not come.
    pub(crate) fn on_lost(&self, op: OpId) {
        if self.bytes.borrow_mut().lost(op) {
            self.give_up(op);
        }
    }

    /// A write that has no bytes is given up.
    pub(crate) fn give_up(&self, op: OpId) {
        self.at_owner(self.seat, |owner, now, out| owner.abort(now, op, out));
        self.settle();
    }

    /// Reads a copy.
    pub(crate) fn read(&self, key: Key<'_>, sought: Sought, namespace: NamespaceKind) -> Read {
        let fingerprint = key.fingerprint();
        self.at_owner(self.seat, |owner, now, _| {
            owner.read(now, fingerprint, sought, namespace)
        })
    }

    /// Reads the latest copy, for who knows no later map than this core.
    pub(crate) fn read_here(&self, key: Key<'_>, namespace: NamespaceKind) -> Read {
        let fingerprint = key.fingerprint();
        self.at_owner(self.seat, |owner, now, _| {
            let sought = Sought::Latest(owner.epoch());
            owner.read(now, fingerprint, sought, namespace)
        })
    }

    /// Does something with the bytes for which copies may move.
    pub(super) fn with_moving<T>(&self, act: impl FnOnce(&mut Bytes, Held<'_>) -> T) -> T {
        let machines = self.machines.borrow();
        let is_held = |place| machines.owner.is_held(time::now(), place);
        act(&mut self.bytes.borrow_mut(), &is_held)
    }

    /// Keeps a copy from eviction for somebody who reads it by itself: for how long, in milliseconds.
    pub(super) fn hold(&self, place: CopyPlace, hold: HoldWish) -> u32 {
        self.at_owner(self.seat, |owner, now, _| owner.hold(now, place, hold))
    }

    /// A replica is here, whole.
    pub(crate) fn on_replica(
        &self,
        key: Key<'_>,
        info: CopyInfo,
        namespace: NamespaceKind,
        (frame, extent): (Frame, Extent),
    ) {
        let fingerprint = key.fingerprint();
        let place = CopyPlace {
            key: fingerprint,
            version: info.version,
        };
        // Its bytes are there before anybody hears of it.
        if !(self.bytes.borrow_mut()).keep_replica(frame, place, extent, info.form) {
            return;
        }
        self.tell_copy(place, "kept");
        let is_kept = self.at_owner(self.seat, |owner, now, out| {
            owner.replica(now, fingerprint, info, namespace, out)
        });
        if is_kept {
            CopyCounts::add(&self.copies.replicated);
        } else {
            self.bytes.borrow_mut().free(place);
            self.tell_copy(place, FreeCause::Unrecorded.name());
        }
        self.settle();
    }
}
