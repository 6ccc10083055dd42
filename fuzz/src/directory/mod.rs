//! A core of a member, a home and an owner, under whatever other members say; and what they say, under
//! attack.
//!
//! ```text
//!   byte 0      whether the rest is the body of a message (bit 7)
//!   then        bytes of a body; or for each step a byte that says which, and its choices
//! ```

pub(crate) mod draw;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lunette_cluster_proto::fence::Fence;
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_generate::{Bytes, Source};
use lunette_kvstore_proto::home::{Home, HomeAction, HomeLimits, HomeMemory};
use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::{
    AnswerMessage, Ask, AskMessage, AskerId, CopyPage, CopyPlace, FarWish, ListMessage, ListReply,
    MeetMessage, NearWish, OpId, PairMessage, PushWish, ReachMessage, ScatterMessage, Scattered,
    SeatMessage, ToHome, ToOwner,
};
use lunette_kvstore_proto::owner::{Owner, OwnerAction, OwnerLimits, WriteAsk};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::Form;
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 200;
/// Most that the two parties of a core say to each other about one step.
const DEEDS_MAX: usize = 4096;
const COPIES_MAX: usize = 12;
const LEASE_TTL: Duration = Duration::from_secs(2);
/// Longer than anything waits.
const LONG: Duration = Duration::from_secs(1);
const ROUNDS: usize = 120;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Maps under which this core is the home of something and has heard of everybody.
    pub complete: u32,
    /// Writes that became copies.
    pub named: u32,
    /// Copies that were asked to leave.
    pub evicting: u32,
    /// Replicas that were kept.
    pub replicas: u32,
    /// Copies that are no more.
    pub freed: u32,
    /// Questions that were answered.
    pub answered: u32,
    /// Writes that were told how they ended.
    pub written: u32,
    /// Messages to other seats.
    pub told: u32,
    /// Bodies that were understood.
    pub understood: u32,
    /// Bodies that were not.
    pub malformed: u32,
}

/// Drives a core of a member, or the readers of messages, with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn directory(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let [first, rest @ ..] = data else {
        return reached;
    };
    if first & 0x80 != 0 {
        messages(rest, &mut reached);
        return reached;
    }
    let mut core = Core::new(reached);
    let mut source = Bytes::new(rest);
    for _ in 0..STEPS_MAX {
        if source.is_spent() {
            break;
        }
        core.step(&mut source);
        core.settle();
        core.check();
    }
    core.end();
    core.reached
}

/// Many writes in one message, and what came of one.
fn batched(body: &[u8], version: FormatVersion, judge: &mut impl FnMut(Option<Vec<u8>>)) {
    judge(ScatterMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(Scattered::decode(version, body, 1).ok().map(|scattered| {
        let mut again = Vec::new();
        Scattered::encode(&scattered, version, &mut again);
        again
    }));
}

/// What is understood has one form, and is written again as it was.
fn messages(body: &[u8], reached: &mut Reached) {
    let mut judge = |again: Option<Vec<u8>>| match again {
        Some(again) => {
            assert_eq!(again, body);
            reached.understood += 1;
        }
        None => reached.malformed += 1,
    };
    if let Ok(memory) = HomeMemory::decode(NodeId(1), [body]) {
        let mut pieces = memory.encode(NodeId(1)).expect("it was one piece");
        return judge(pieces.next());
    }
    let Ok(version) = FormatVersion::of(body) else {
        return judge(None);
    };
    judge(SeatMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(MeetMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(NearWish::split(body).ok().map(|(wish, rest)| {
        let mut again = Vec::new();
        wish.encode(version, &mut again);
        [again.as_slice(), rest].concat()
    }));
    judge(PairMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(ListMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    batched(body, version, &mut judge);
    judge(ListReply::decode(version, None, body).ok().map(|reply| {
        let mut again = Vec::new();
        reply.encode(version, &mut again);
        again
    }));
    judge(ReachMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(FarWish::split(body).ok().map(|(wish, rest)| {
        let mut again = Vec::new();
        wish.encode(version, &mut again);
        [again.as_slice(), rest].concat()
    }));
    judge(PushWish::split(body).ok().map(|(wish, rest)| {
        let mut again = Vec::new();
        wish.encode(version, &mut again);
        [again.as_slice(), rest].concat()
    }));
    judge(AskMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
    judge(AnswerMessage::decode(body).ok().map(|message| {
        let mut again = Vec::new();
        message.encode(version, &mut again);
        again
    }));
}

/// What one party of the core has for the other.
enum Deed {
    ToHome(ToHome),
    Page(CopyPage),
    ToOwner(ToOwner),
}

/// A core of node 1, and who uses it.
struct Core {
    seat: Seat,
    home: Home,
    owner: Owner,
    now: Time,
    fence: Fence,
    epoch: Epoch,
    generation: u64,
    deeds: VecDeque<Deed>,
    /// Questions and writes that wait for their one answer.
    asked: BTreeSet<(AskerId, RequestId)>,
    writing: BTreeSet<(AskerId, RequestId)>,
    last_request: u64,
    /// Writes that have bytes, and whether those have all come.
    arriving: BTreeMap<OpId, bool>,
    /// Copies whose bytes are here.
    stored: BTreeSet<CopyPlace>,
    reached: Reached,
}

impl Core {
    fn new(reached: Reached) -> Self {
        let seat = Seat {
            node: NodeId(1),
            incarnation: 1,
            core: CoreIndex(0),
        };
        let home_limits = HomeLimits {
            copies_max: COPIES_MAX,
            claims_max: 4,
            changes_max: 4,
            waiters_max: 8,
            waiters_per_key_max: 4,
            tombstones_max: 4,
            answered_max: 16,
            repairs_max: COPIES_MAX,
            histories_max: 4,
            repair_after: Duration::from_millis(20),
            keep_after: Duration::from_millis(1),
        };
        let owner_limits = OwnerLimits {
            copies_max: COPIES_MAX,
            writes_max: 4,
            answered_max: 16,
            holds_per_holder_max: 2,
            held_bytes_per_holder_max: 64 << 20,
            holds_max: 4,
            relisted_per_turn_max: 3,
        };
        Self {
            seat,
            home: Home::new(seat, home_limits),
            owner: Owner::new(seat, owner_limits),
            now: Time::ZERO + LONG,
            fence: Fence::default(),
            epoch: Epoch(0),
            generation: 0,
            deeds: VecDeque::new(),
            asked: BTreeSet::new(),
            writing: BTreeSet::new(),
            last_request: 1000,
            arriving: BTreeMap::new(),
            stored: BTreeSet::new(),
            reached,
        }
    }

    fn step(&mut self, source: &mut Bytes<'_>) {
        let which = source.u8();
        match which % 16 {
            0 => {
                let later = 1 + u64::from(which >> 7);
                self.epoch = Epoch(self.epoch.0 + later);
                self.generation += u64::from(which >> 6 & 1);
                let map = draw::map(source, self.epoch, self.generation);
                self.map(&map);
            }
            1 | 2 => self.time(source.u8()),
            3 | 4 => self.ask(source),
            5 | 6 => {
                let (from, epoch) = self.somebody(source);
                let item = draw::to_home(source, self.epoch);
                self.at_home(|home, now, out| home.on_owner(now, from, epoch, item, out));
            }
            7 => {
                let (from, epoch) = self.somebody(source);
                let page = draw::page(source, self.epoch);
                self.at_home(|home, now, out| home.on_page(now, from, epoch, page, out));
            }
            8 => {
                let (from, epoch) = self.somebody(source);
                let item = draw::to_peer(source, self.epoch);
                self.at_home(|home, now, out| home.on_peer(now, from, epoch, item, out));
            }
            9 | 10 => {
                let (from, epoch) = self.somebody(source);
                let item = draw::to_owner(source, self.epoch);
                self.at_owner(|owner, now, out| owner.on_home(now, from, epoch, item, out));
            }
            11 | 12 => self.write(source),
            13 => self.end_write(which & 0x80 == 0),
            14 => self.evict(which >> 4),
            _ => self.replica(source),
        }
    }

    fn somebody(&self, source: &mut Bytes<'_>) -> (Seat, Epoch) {
        (draw::seat(source), draw::epoch(source, self.epoch))
    }

    fn map(&mut self, map: &ClusterMap) {
        self.at_owner(|owner, now, out| owner.on_map(now, map, out));
        self.at_home(|home, now, out| home.on_map(now, map, out));
    }

    /// Some milliseconds, or seconds; the lease is renewed or not.
    fn time(&mut self, choice: u8) {
        let length = u64::from(choice >> 2);
        let passes = if choice & 1 == 0 {
            length
        } else {
            length * 100
        };
        self.now = self.now + Duration::from_millis(passes);
        if choice & 2 == 0 {
            self.renew();
        }
        self.tick();
    }

    fn renew(&mut self) {
        self.fence.renew(self.now, LEASE_TTL);
        self.home.on_fence(self.fence);
        self.owner.on_fence(self.fence);
    }

    fn tick(&mut self) {
        self.at_home(|home, now, out| home.on_tick(now, out));
        self.at_owner(|owner, now, out| owner.on_tick(now, out));
    }

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }

    fn ask(&mut self, source: &mut Bytes<'_>) {
        let (asker, request) = (AskerId(1), self.next_request());
        let (key, namespace) = (draw::key(source), draw::namespace(source));
        let ask = if source.flag() {
            Ask::Lookup {
                request,
                key,
                namespace,
                hold: draw::hold(source),
            }
        } else {
            let wait_ms = u32::from(source.u8()) << 4;
            Ask::Remove {
                request,
                key,
                namespace,
                wait_ms,
                only: draw::only(wait_ms, self.home.epoch()),
            }
        };
        self.asked.insert((asker, request));
        if request.0.is_multiple_of(3) {
            self.home.over(self.now, asker, request);
        }
        let epoch = self.home.epoch();
        self.at_home(|home, now, out| home.on_ask(now, asker, epoch, ask, out));
    }

    fn write(&mut self, source: &mut Bytes<'_>) {
        let (asker, request) = (AskerId(2), self.next_request());
        let ask = WriteAsk {
            key: draw::key(source),
            kind: draw::kind(source),
            form: Form::Whole,
            namespace: draw::namespace(source),
            wanted: 1 + source.below(3),
            wait_ms: u32::from(source.u8()) << 4,
            retention: Retention::default(),
        };
        self.writing.insert((asker, request));
        if request.0.is_multiple_of(3) {
            self.owner.over(self.now, asker, request);
        }
        let op = self.at_owner(|owner, now, out| owner.write(now, asker, request, ask, out));
        if let Some(op) = op {
            let former = self.arriving.insert(op, false);
            assert!(former.is_none(), "{op:?} is two writes");
        }
    }

    /// The bytes of the oldest write that waits for some have come, or will not.
    fn end_write(&mut self, is_whole: bool) {
        let waiting = self.arriving.iter().find(|(_, whole)| !**whole);
        let Some(op) = waiting.map(|(op, _)| *op) else {
            return;
        };
        if is_whole {
            self.arriving.insert(op, true);
            self.at_owner(|owner, now, out| owner.whole(now, op, 100, 7, out));
        } else {
            self.at_owner(|owner, now, out| owner.abort(now, op, out));
        }
    }

    fn evict(&mut self, which: u8) {
        let place = self.stored.iter().nth(which.into()).copied();
        if let Some(place) = place {
            let evicted = self.at_owner(|owner, now, out| owner.evict(now, place, 1, out));
            self.reached.evicting += u32::from(evicted.is_ok());
        }
    }

    fn replica(&mut self, source: &mut Bytes<'_>) {
        let (key, info) = (draw::key(source), draw::info(source, self.epoch));
        let namespace = draw::namespace(source);
        let place = CopyPlace {
            key,
            version: info.version,
        };
        if !self.stored.insert(place) {
            return;
        }
        let is_kept =
            self.at_owner(|owner, now, out| owner.replica(now, key, info, namespace, out));
        if is_kept {
            self.reached.replicas += 1;
        } else {
            self.stored.remove(&place);
        }
    }

    fn at_home(&mut self, tell: impl FnOnce(&mut Home, Time, &mut Vec<HomeAction>)) {
        let mut out = Vec::new();
        let was_idle = self.home.is_idle();
        tell(&mut self.home, self.now, &mut out);
        self.reached.complete += u32::from(!was_idle && self.home.is_idle());
        for action in out {
            match action {
                HomeAction::ToOwner(to, item) if to == self.seat => {
                    self.deeds.push_back(Deed::ToOwner(item));
                }
                HomeAction::ToOwner(_, item) => {
                    self.reached.told += 1;
                    // That owner answers, or the asker asks again.
                    if let ToOwner::Serve { asker, request, .. } = item {
                        self.asked.remove(&(asker, request));
                    }
                }
                HomeAction::ToPeer(..) => self.reached.told += 1,
                HomeAction::Answer(asker, request, _) => self.answered((asker, request)),
            }
        }
    }

    fn answered(&mut self, asked: (AskerId, RequestId)) {
        // Whom a member has sent on may be anybody.
        if asked.1.0 > 1000 {
            assert!(self.asked.remove(&asked), "{asked:?} is answered twice");
            self.reached.answered += 1;
        }
    }

    fn at_owner<T>(
        &mut self,
        tell: impl FnOnce(&mut Owner, Time, &mut Vec<OwnerAction>) -> T,
    ) -> T {
        let mut out = Vec::new();
        let told = tell(&mut self.owner, self.now, &mut out);
        for action in out {
            self.do_for_owner(action);
        }
        told
    }

    fn do_for_owner(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::ToHome(to, item) if to == self.seat => {
                self.deeds.push_back(Deed::ToHome(item));
            }
            OwnerAction::Page(to, page) if to == self.seat => {
                self.deeds.push_back(Deed::Page(page));
            }
            OwnerAction::ToHome(..) | OwnerAction::Page(..) => self.reached.told += 1,
            OwnerAction::Name(op, place) => {
                let whole = self.arriving.remove(&op);
                assert_eq!(whole, Some(true), "{op:?} has its bytes");
                assert!(self.stored.insert(place), "{place:?} is here twice");
                self.reached.named += 1;
            }
            OwnerAction::Discard(op) => {
                // One that never had bytes is discarded as well.
                self.arriving.remove(&op);
            }
            OwnerAction::Free(place, _) => {
                assert!(self.stored.remove(&place), "{place:?} is here");
                self.reached.freed += 1;
            }
            OwnerAction::CameBack(_) => self.reached.told += 1,
            OwnerAction::WasUsed(place, _) => {
                assert!(self.stored.contains(&place), "{place:?} is here");
            }
            OwnerAction::Replicate { place, .. } => {
                assert!(self.stored.contains(&place), "{place:?} is to be copied");
                self.reached.told += 1;
            }
            OwnerAction::Written(asker, request, _) => {
                let asked = (asker, request);
                assert!(self.writing.remove(&asked), "{asked:?} is told twice");
                self.reached.written += 1;
            }
            OwnerAction::Answer(asker, request, _) => self.answered((asker, request)),
        }
    }

    /// The two parties hear each other out.
    fn settle(&mut self) {
        for _ in 0..DEEDS_MAX {
            let Some(deed) = self.deeds.pop_front() else {
                return;
            };
            let (seat, own, home) = (self.seat, self.owner.epoch(), self.home.epoch());
            match deed {
                Deed::ToHome(item) => {
                    self.at_home(|home, now, out| home.on_owner(now, seat, own, item, out));
                }
                Deed::Page(page) => {
                    self.at_home(|home, now, out| home.on_page(now, seat, own, page, out));
                }
                Deed::ToOwner(item) => {
                    self.at_owner(|owner, now, out| owner.on_home(now, seat, home, item, out));
                }
            }
        }
        unreachable!("a home and its owner talk for ever");
    }

    fn check(&self) {
        for (place, _) in self.owner.served() {
            assert!(self.stored.contains(&place), "{place:?} has no bytes");
        }
        assert!(self.stored.len() <= COPIES_MAX + 1, "{:?}", self.stored);
        assert!(self.home.shown().count() <= COPIES_MAX);
    }

    /// Nobody says anything more: whoever asked or wrote is answered in the end.
    fn end(&mut self) {
        while self.arriving.values().any(|is_whole| !is_whole) {
            self.end_write(true);
            self.settle();
        }
        for round in 0..ROUNDS {
            self.now = self.now + LONG;
            // Who was told that nobody knows is told so while its home is cut off.
            if round > 0 && round % 2 == 0 {
                self.renew();
            }
            self.tick();
            self.settle();
            self.check();
        }
        assert!(self.asked.is_empty(), "never answered: {:?}", self.asked);
        assert!(self.writing.is_empty(), "never told: {:?}", self.writing);
        // One that is published waits for its home, which may be cut off.
        let published = self.arriving.values().filter(|is_whole| **is_whole);
        let is_answered = self.fence.is_leased(self.now) && self.home.is_complete();
        let left = if is_answered { 0 } else { published.count() };
        assert_eq!(
            self.arriving.len(),
            left,
            "never ended: {:?}",
            self.arriving
        );
    }
}
