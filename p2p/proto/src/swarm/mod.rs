//! The machine of one holder of one object: what it asks of whom, and whom it lets read what.
//!
//! An origin and a receiver are the same machine; the origin begins with all chunks, and who resumes with some. It
//! takes events and the time, and returns [`Action`]s:
//!
//! | event | from |
//! |---|---|
//! | [`on_members`](Swarm::on_members) | the catalogue: who else has chunks |
//! | [`on_message`](Swarm::on_message), [`on_unreachable`](Swarm::on_unreachable) | other holders, or the way to them |
//! | [`on_fetched`](Swarm::on_fetched) | a [`Action::Fetch`] that is over: exactly once for each |
//! | [`on_time`](Swarm::on_time) | the clock, at [`deadline`](Swarm::deadline) |
//! | [`close`](Swarm::close) | the program: nobody is to read any more |
//!
//! After each event the driver takes all actions. How sources are chosen:
//!
//! - **Neighbours.** Each receiver greets a few holders, near ones and whole ones rather, by draws that differ from
//!   receiver to receiver, and takes a bounded number of those who greet it (`neighbours`).
//! - **Source.** Of the neighbours that have something it lacks, the one from which a chunk is likely to come first:
//!   what waits there (as it told, the less believed the older it is) times how long its chunks take (`choosing`).
//! - **Chunk.** It names up to 16 that few neighbours have; the source grants the one that it has granted least, so that
//!   an origin sends each chunk once before it sends one twice ([`uploads`]).
//! - **Racks.** What another rack has is fetched from there by one of ours, drawn per chunk, and by others only once
//!   nothing has come for a while.
//! - **End.** When all that is missing is under way, what takes twice as long as usual is asked of a second source
//!   (`fetching`).
//!
//! | module | subject |
//! |---|---|
//! | `neighbours` | who is asked, who is told what |
//! | `choosing` | from whom, and which chunks |
//! | `fetching` | wants, from when they are asked to when the chunk is here |
//! | [`uploads`] | who may read here |

mod choosing;
mod fetching;
mod neighbours;
pub mod uploads;

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use lunette_cluster_proto::rack::Rack;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use self::fetching::Want;
use self::neighbours::Neighbour;
use self::uploads::Uploads;
use crate::chunks::ChunkSet;
use crate::message::Message;
use crate::pace::{Pace, Patience};

/// Most holders that a swarm knows of. Of more the first are taken, in the order of their ids.
pub const MEMBERS_MAX: usize = 4096;
/// Most neighbours of a holder.
pub const NEIGHBOURS_MAX: usize = 256;
/// Most wants of one holder at a time.
pub const DOWNLOADS_MAX: usize = 128;

/// A holder, by the session epoch of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// What the catalogue says of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub id: PeerId,
    /// What is near it.
    pub rack: Rack,
    /// Whether it has all chunks.
    pub is_whole: bool,
    /// Whether it is to have all of them. Who wants some is relied on for none.
    pub keeps_all: bool,
}

/// Bounds of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Chunks that are asked for or under way, at most [`DOWNLOADS_MAX`].
    pub downloads_max: usize,
    /// Of these from one source, at most [`UPLOADS_PER_PEER_MAX`](uploads::UPLOADS_PER_PEER_MAX).
    pub downloads_per_source_max: usize,
    /// Of these from other racks: what each of a rack fetches for all of it shares one line.
    pub downloads_far_max: usize,
    /// Chunks that others read here at a time.
    pub uploads_max: usize,
    /// Others that wait for that.
    pub uploads_queued_max: usize,
    /// Neighbours that it greets of itself.
    pub greeted_max: usize,
    /// Neighbours in all, at most [`NEIGHBOURS_MAX`].
    pub neighbours_max: usize,
    /// How long others are waited for.
    pub patience: Patience,
    /// After how long a neighbour that says nothing is none any more. A sign of life is sent three times as often.
    pub silence_max: Duration,
    /// Whether it keeps what it fetches, and serves it. Who does not tells nobody of it.
    pub is_serving: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            downloads_max: 16,
            downloads_per_source_max: 2,
            downloads_far_max: 2,
            uploads_max: 8,
            uploads_queued_max: 64,
            greeted_max: 16,
            neighbours_max: 64,
            patience: Patience::default(),
            silence_max: Duration::from_secs(6),
            is_serving: true,
        }
    }
}

/// Names a fetch of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u32);

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The chunk is in its place, and its checksum is right.
    Held,
    /// What came is not the chunk.
    Corrupt,
    /// It did not come.
    Failed,
    /// It was cancelled ([`Action::Cancel`]): nothing of it lands any more.
    Cancelled,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell somebody something. If that cannot be done: [`Swarm::on_unreachable`].
    Send {
        /// Whom.
        to: PeerId,
        /// What.
        message: Message,
    },
    /// Read a chunk from `source`, and verify it; then [`Swarm::on_fetched`].
    Fetch {
        /// Names it.
        fetch: FetchId,
        /// From whom.
        source: PeerId,
        /// Which.
        chunk: u32,
        /// Whether the same chunk is being fetched from somebody else too: its place is not free.
        is_copy: bool,
    },
    /// A fetch is not wanted any more. It is still to be told how it ended.
    Cancel(FetchId),
    /// The last chunk that is wanted is here.
    Whole,
    /// After [`Swarm::close`]: nobody reads here by a grant any more, and no fetch is under way.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Closing,
    Closed,
}

/// One holder of one object.
#[derive(Debug)]
pub struct Swarm {
    me: PeerId,
    rack: Rack,
    options: Options,
    random: SplitMix64,
    now: Time,
    phase: Phase,
    held: ChunkSet,
    /// What is to be here: all, unless it is a receiver of parts.
    wanted: ChunkSet,
    /// How many of these are not.
    missing: u32,
    /// What is here, in the order in which it came: neighbours are told of it in this order.
    order: Vec<u32>,
    /// What is being fetched.
    taken: ChunkSet,
    /// In how many wants that are not answered each chunk is named.
    named: Vec<u8>,
    /// How many neighbours have each chunk; of our own rack.
    copies: Vec<u16>,
    near_copies: Vec<u16>,
    members: Vec<Member>,
    /// Those of our rack that are not known to be silent; nobody, if none of them is a neighbour.
    mates: Vec<PeerId>,
    neighbours: BTreeMap<PeerId, Neighbour>,
    wants: BTreeMap<FetchId, Want>,
    next_want: u32,
    uploads: Uploads,
    /// How long chunks take from our rack, and from others.
    pace: Pace,
    far_pace: Pace,
    /// When the last chunk came, or was first there to be asked for.
    progressed: Time,
    /// When the last chunk came that the rack fetches for all of it: from it, or because it fell to us.
    shared: Time,
    actions: VecDeque<Action>,
}

impl Swarm {
    /// A holder of what is in `held`, none of it served to anybody yet. `seed` is for its draws: two holders should
    /// not have the same.
    ///
    /// # Panics
    /// If an option is beyond its bound, or `held` is of no chunks.
    #[must_use]
    pub fn new(
        now: Time,
        me: PeerId,
        rack: Rack,
        held: ChunkSet,
        options: Options,
        seed: u64,
    ) -> Self {
        let chunks = held.len();
        assert!(chunks > 0, "an object has a chunk");
        assert!((1..=DOWNLOADS_MAX).contains(&options.downloads_max));
        assert!((1..=NEIGHBOURS_MAX).contains(&options.neighbours_max));
        let per_source = 1..=uploads::UPLOADS_PER_PEER_MAX;
        assert!(per_source.contains(&options.downloads_per_source_max));
        assert!(options.uploads_max > 0, "a swarm is of those who serve");
        let Options {
            uploads_max,
            uploads_queued_max,
            patience,
            ..
        } = options;
        Self {
            me,
            rack,
            random: SplitMix64::new(seed),
            now,
            phase: Phase::Open,
            wanted: ChunkSet::full(chunks),
            missing: chunks - held.count(),
            order: held.iter().filter(|_| options.is_serving).collect(),
            taken: ChunkSet::empty(chunks),
            named: vec![0; chunks as usize],
            copies: vec![0; chunks as usize],
            near_copies: vec![0; chunks as usize],
            members: Vec::new(),
            mates: Vec::new(),
            neighbours: BTreeMap::new(),
            wants: BTreeMap::new(),
            next_want: 0,
            uploads: Uploads::new(chunks, uploads_max, uploads_queued_max, patience),
            pace: Pace::default(),
            far_pace: Pace::default(),
            progressed: now,
            shared: now,
            actions: VecDeque::new(),
            held,
            options,
        }
    }

    /// The same, of which only these chunks are wanted: others are not asked for, and those that are here are served all
    /// the same. For what has just been made.
    ///
    /// # Panics
    /// If they are chunks of another object, or something has happened already.
    #[must_use]
    pub fn wanting(mut self, wanted: ChunkSet) -> Self {
        assert_eq!(wanted.len(), self.held.len(), "chunks of the same object");
        assert!(self.neighbours.is_empty() && self.actions.is_empty());
        let missing = wanted.iter().filter(|&chunk| !self.held.contains(chunk));
        self.missing = u32::try_from(missing.count()).expect("chunks are bounded");
        self.wanted = wanted;
        self
    }

    /// Whether all that is wanted is here.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Whether a chunk is wanted and not here.
    fn is_lacked(&self, chunk: u32) -> bool {
        self.wanted.contains(chunk) && !self.held.contains(chunk)
    }

    /// What is here.
    #[must_use]
    pub const fn held(&self) -> &ChunkSet {
        &self.held
    }

    /// How many neighbours it has.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        let linked = self.neighbours.values();
        linked.filter(|neighbour| neighbour.is_linked()).count()
    }

    /// Whether a holder is a neighbour.
    #[must_use]
    pub fn is_neighbour(&self, peer: PeerId) -> bool {
        self.neighbours.get(&peer).is_some_and(Neighbour::is_linked)
    }

    /// How many uploads wait here or are under way.
    #[must_use]
    pub fn load(&self) -> u16 {
        self.uploads.load()
    }

    /// The next thing to do; `None` until something happens.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The catalogue was read: these have chunks. Those who are not among them any more are no neighbours for that
    /// alone, for the catalogue may be away while they are not.
    pub fn on_members(&mut self, now: Time, members: &[Member]) {
        self.now = now;
        let others = members.iter().filter(|member| member.id != self.me);
        self.members = others.copied().take(MEMBERS_MAX).collect();
        self.find_mates();
        self.turn();
    }

    /// Somebody says something about this object.
    pub fn on_message(&mut self, now: Time, from: PeerId, message: Message) {
        self.now = now;
        if let Some(neighbour) = self.neighbours.get_mut(&from) {
            neighbour.heard(now);
        }
        match message {
            Message::Hello => self.on_hello(from),
            Message::Welcome => self.on_welcome(from),
            Message::Refuse(refusal) => self.on_refuse(from, refusal),
            Message::All { load } => self.on_all(from, load),
            Message::Have { load, chunks } => self.on_have(from, load, &chunks),
            Message::Map { load, first, words } => self.on_map(from, load, first, &words),
            Message::Want { want, candidates } => self.on_want(from, want, candidates),
            Message::Grant { want, chunk, load } => self.on_grant(from, want, chunk, load),
            Message::Busy { want, load } => self.on_busy(from, want, load),
            Message::Done { want, ending } => self.on_done(from, want, ending),
            Message::Bye => self.on_bye(from),
        }
        self.turn();
    }

    /// A message could not be brought to somebody, or its engine is gone.
    pub fn on_unreachable(&mut self, now: Time, peer: PeerId) {
        self.now = now;
        self.rest(peer, neighbours::Rest::Unreachable);
        self.turn();
    }

    /// A fetch is over.
    ///
    /// # Panics
    /// If there is no such fetch, or it was told of before.
    pub fn on_fetched(&mut self, now: Time, fetch: FetchId, fetched: Fetched) {
        self.now = now;
        self.fetch_ended(fetch, fetched);
        self.turn();
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Time) {
        self.now = now;
        self.turn();
    }

    /// Nobody is to read here any more: neighbours are told, nothing is granted, and fetches are given up. When those
    /// who had a grant are through, or have not said so for too long, [`Action::Closed`] comes.
    pub fn close(&mut self, now: Time) {
        self.now = now;
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Closing;
        self.uploads.close();
        let fetches: Vec<_> = self.wants.keys().copied().collect();
        for fetch in fetches {
            self.withdraw(fetch);
        }
        let neighbours = self.neighbours.iter();
        let linked = neighbours.filter(|(_, neighbour)| neighbour.is_linked());
        let linked: Vec<_> = linked.map(|(&peer, _)| peer).collect();
        for to in linked {
            self.send(to, Message::Bye);
        }
        self.turn();
    }

    /// When [`on_time`](Self::on_time) is due, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if self.phase == Phase::Closed {
            return None;
        }
        let uploads = self.uploads.deadline();
        let times = [uploads, self.neighbours_deadline(), self.wants_deadline()];
        let next = times.into_iter().flatten().min();
        assert!(
            next.is_none_or(|time| time > self.now),
            "what was due has been done"
        );
        next
    }

    /// Does whatever is due.
    fn turn(&mut self) {
        if self.phase == Phase::Closed {
            return;
        }
        self.uploads.expire(self.now);
        self.expire_wants();
        self.expire_neighbours();
        if self.phase == Phase::Open {
            self.grant_waiting();
            self.unstick();
            self.greet();
            self.pump();
            self.tell();
        } else if self.uploads.is_idle() && self.wants.is_empty() {
            self.phase = Phase::Closed;
            self.actions.push_back(Action::Closed);
        }
    }

    fn send(&mut self, to: PeerId, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }
}
