//! Who is asked, and who is told what.
//!
//! ```text
//!            greet                Welcome
//!   unknown -------> greeting ------------> linked
//!      |  ^             |                   |    ^
//!      |  +--- rest over+--- resting <------+    |  Hello
//!      |                 refused, silent, Bye,   |
//!      +-----------------failing ----------------+
//! ```

use core::time::Duration;
use std::cmp::Reverse;

use lunette_runtime_core::random::mix;
use lunette_runtime_core::time::Time;

use super::uploads::Ask;
use super::{Member, PeerId, Swarm};
use crate::chunks::{ChunkSet, bits};
use crate::message::{Ending, HAVE_CHUNKS_MAX, HAVE_WORDS_MAX, Message, Refusal};
use crate::pace::Pace;

/// Failures in a row after which somebody is no neighbour for a while.
pub(super) const STRIKES_MAX: u32 = 4;
/// The first rest, doubled each time.
const REST: Duration = Duration::from_millis(200);
/// How often a rest is doubled.
const REST_DOUBLINGS_MAX: u32 = 6;
/// How much rather than others those of our rack, and those with all chunks, are greeted.
const NEAR_WEIGHT: u64 = 4;
const WHOLE_WEIGHT: u64 = 4;

/// Why somebody is no neighbour for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It has enough neighbours.
    Full,
    /// It serves this object no more.
    Gone,
    /// It does not answer, or too much of what it sent was nothing.
    Failing,
    /// There is no way to it.
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// We have asked, and wait until then.
    Greeting { until: Time },
    /// It may be asked.
    Linked,
    /// Not before then.
    Resting { until: Time },
}

/// What is known of a holder that we have had to do with.
#[derive(Clone, Debug)]
pub(super) struct Neighbour {
    pub(super) link: Link,
    pub(super) is_near: bool,
    /// Whether we have greeted it.
    is_greeted: bool,
    pub(super) held: ChunkSet,
    /// How many of these we lack.
    pub(super) useful: u32,
    /// How long its chunks take.
    pub(super) pace: Pace,
    /// What waits there, as it said.
    pub(super) load: u16,
    /// When it last said something.
    pub(super) heard: Time,
    /// When it last wanted something of us, or became a neighbour.
    wanted: Time,
    /// Our wants there.
    pub(super) asked: usize,
    /// It is not asked before then.
    pub(super) ask_after: Time,
    /// Failures since something last went well.
    pub(super) strikes: u32,
    /// How often it has rested in a row.
    rests: u32,
    /// How much of our order it has been told.
    told: usize,
    tell_after: Time,
    /// When it has last been told anything.
    spoken: Time,
}

impl Neighbour {
    fn new(now: Time, link: Link, is_near: bool, chunks: u32) -> Self {
        Self {
            link,
            is_near,
            is_greeted: false,
            held: ChunkSet::empty(chunks),
            useful: 0,
            pace: Pace::default(),
            load: 0,
            heard: now,
            wanted: now,
            asked: 0,
            ask_after: now,
            strikes: 0,
            rests: 0,
            told: 0,
            tell_after: now,
            spoken: now,
        }
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link == Link::Linked
    }

    fn is_resting(&self) -> bool {
        matches!(self.link, Link::Resting { .. })
    }

    pub(super) const fn heard(&mut self, now: Time) {
        self.heard = now;
    }
}

impl Swarm {
    pub(super) fn on_hello(&mut self, from: PeerId) {
        if self.phase != super::Phase::Open {
            self.send(from, Message::Refuse(Refusal::Gone));
            return;
        }
        let is_linked = self.is_neighbour(from);
        let is_crowded = !is_linked && !self.has_room_for_one();
        if is_crowded || !self.options.is_serving {
            self.send(from, Message::Refuse(Refusal::Full));
            return;
        }
        if is_linked {
            // It has begun anew, and knows nothing of us.
            self.unlink(from);
        }
        self.send(from, Message::Welcome);
        self.link(from);
    }

    /// Whether there is room for one more neighbour, also by letting go of one that has wanted nothing for long and has
    /// nothing for us: who has all that it wants stays as long as nobody else comes.
    fn has_room_for_one(&mut self) -> bool {
        if self.neighbours() < self.options.neighbours_max {
            return true;
        }
        let (now, silence_max) = (self.now, self.options.silence_max);
        let is_of_use = !self.is_complete();
        let idle = self.neighbours.iter().filter(|&(&peer, it)| {
            let is_wanting = self.uploads.of(peer) > 0 || it.wanted + silence_max > now;
            let is_wanted = it.asked > 0 || (is_of_use && it.useful > 0);
            it.is_linked() && !is_wanting && !is_wanted
        });
        let idlest = idle.min_by_key(|&(&peer, it)| (it.wanted, peer));
        let Some(peer) = idlest.map(|(&peer, _)| peer) else {
            return false;
        };
        self.part_from(peer);
        true
    }

    /// Somebody is no neighbour any more, and may greet us again.
    fn part_from(&mut self, peer: PeerId) {
        self.send(peer, Message::Refuse(Refusal::Full));
        self.rest(peer, Rest::Full);
    }

    /// Who has all needs nothing of one that wants no more than the parts that it has, and its places are for others.
    pub(super) fn part_from_whole(&mut self) {
        if self.held.is_full() {
            return;
        }
        let whole = self.neighbours.iter().filter(|(_, it)| {
            let is_idle = it.asked == 0;
            it.is_linked() && is_idle && it.held.is_full()
        });
        let whole: Vec<_> = whole.map(|(&peer, _)| peer).collect();
        for peer in whole {
            self.part_from(peer);
        }
    }

    pub(super) fn on_welcome(&mut self, from: PeerId) {
        let is_asked = self
            .neighbours
            .get(&from)
            .is_some_and(|neighbour| neighbour.is_greeted && !neighbour.is_linked());
        let has_room = self.neighbours() < self.options.neighbours_max;
        if self.is_neighbour(from) {
            // It has forgotten what it was told.
            self.tell_all(from);
        } else if is_asked && has_room && self.phase == super::Phase::Open {
            self.link(from);
        } else {
            self.send(from, Message::Refuse(Refusal::Full));
        }
    }

    pub(super) fn on_refuse(&mut self, from: PeerId, refusal: Refusal) {
        let why = match refusal {
            Refusal::Full => Rest::Full,
            Refusal::Gone => Rest::Gone,
        };
        self.rest(from, why);
    }

    pub(super) fn on_bye(&mut self, from: PeerId) {
        self.rest(from, Rest::Gone);
    }

    pub(super) fn on_all(&mut self, from: PeerId, load: u16) {
        let words = vec![u64::MAX; self.held.words().len()];
        self.on_map(from, load, 0, &words);
    }

    pub(super) fn on_map(&mut self, from: PeerId, load: u16, first: u32, words: &[u64]) {
        let Some(neighbour) = self.telling(from) else {
            return;
        };
        neighbour.load = load;
        let new: Vec<u32> = words
            .iter()
            .enumerate()
            .flat_map(|(index, &word)| neighbour.held.missing_of(first as usize + index, word))
            .collect();
        for chunk in new {
            self.note_held(from, chunk);
        }
    }

    pub(super) fn on_have(&mut self, from: PeerId, load: u16, chunks: &[u32]) {
        let Some(neighbour) = self.telling(from) else {
            return;
        };
        neighbour.load = load;
        for &chunk in chunks {
            self.note_held(from, chunk);
        }
    }

    /// The neighbour that tells what it has, which it does behind its welcome: what comes first says as much.
    fn telling(&mut self, from: PeerId) -> Option<&mut Neighbour> {
        let known = self.neighbours.get(&from);
        let is_greeting = known.is_some_and(|known| matches!(known.link, Link::Greeting { .. }));
        if is_greeting {
            self.on_welcome(from);
        } else {
            self.disown(from);
        }
        self.linked_mut(from)
    }

    /// Somebody that is no neighbour takes us for one: so it is told, and may greet us again.
    fn disown(&mut self, from: PeerId) {
        let known = self.neighbours.get(&from);
        if known.is_none_or(Neighbour::is_resting) {
            self.send(from, Message::Refuse(Refusal::Full));
        }
    }

    fn linked_mut(&mut self, peer: PeerId) -> Option<&mut Neighbour> {
        let neighbour = self.neighbours.get_mut(&peer);
        neighbour.filter(|neighbour| neighbour.is_linked())
    }

    /// A neighbour has a chunk.
    pub(super) fn note_held(&mut self, peer: PeerId, chunk: u32) {
        let is_lacking = self.is_lacked(chunk);
        let Some(neighbour) = self.linked_mut(peer) else {
            return;
        };
        if !neighbour.held.insert(chunk) {
            return;
        }
        let is_near = neighbour.is_near;
        if is_lacking {
            neighbour.useful += 1;
        }
        self.copies[chunk as usize] += 1;
        self.near_copies[chunk as usize] += u16::from(is_near);
    }

    /// What a neighbour said that it has is not so.
    pub(super) fn note_lost(&mut self, peer: PeerId, chunk: u32) {
        let is_lacking = self.is_lacked(chunk);
        let Some(neighbour) = self.linked_mut(peer) else {
            return;
        };
        if !neighbour.held.remove(chunk) {
            return;
        }
        let is_near = neighbour.is_near;
        if is_lacking {
            neighbour.useful -= 1;
        }
        self.copies[chunk as usize] -= 1;
        self.near_copies[chunk as usize] -= u16::from(is_near);
    }

    /// Somebody is a neighbour from now on, of which nothing is known.
    fn link(&mut self, peer: PeerId) {
        let is_near = self.is_near(peer);
        let (now, chunks) = (self.now, self.held.len());
        let neighbour = self
            .neighbours
            .entry(peer)
            .or_insert_with(|| Neighbour::new(now, Link::Linked, is_near, chunks));
        assert!(neighbour.held.is_empty(), "nothing is known of it");
        neighbour.link = Link::Linked;
        neighbour.is_near = is_near;
        neighbour.heard = now;
        neighbour.wanted = now;
        neighbour.spoken = now;
        neighbour.strikes = 0;
        neighbour.told = self.order.len();
        self.tell_all(peer);
        self.find_mates();
    }

    /// Where nobody has a label all are near.
    fn is_near(&self, peer: PeerId) -> bool {
        let member = self.members.iter().find(|member| member.id == peer);
        member.is_none_or(|member| member.rack == self.rack)
    }

    /// Forgets what a neighbour has, and what it wants of us and we of it.
    fn unlink(&mut self, peer: PeerId) {
        self.uploads.forget(peer);
        self.withdraw_from(peer);
        let Some(neighbour) = self.neighbours.get_mut(&peer) else {
            return;
        };
        let chunks = neighbour.held.len();
        let held = std::mem::replace(&mut neighbour.held, ChunkSet::empty(chunks));
        neighbour.useful = 0;
        let is_near = neighbour.is_near;
        for chunk in held.iter() {
            self.copies[chunk as usize] -= 1;
            self.near_copies[chunk as usize] -= u16::from(is_near);
        }
    }

    /// Somebody is no neighbour for a while.
    pub(super) fn rest(&mut self, peer: PeerId, why: Rest) {
        let known = self.neighbours.get(&peer);
        if known.is_none_or(Neighbour::is_resting) {
            return;
        }
        if why == Rest::Failing && self.is_neighbour(peer) {
            self.send(peer, Message::Refuse(Refusal::Full));
        }
        self.unlink(peer);
        let now = self.now;
        let neighbour = self.neighbours.get_mut(&peer).expect("it is there");
        let doublings = neighbour.rests.min(REST_DOUBLINGS_MAX);
        neighbour.rests += 1;
        let until = now + REST * (1 << doublings);
        neighbour.link = Link::Resting { until };
        neighbour.strikes = 0;
        self.find_mates();
    }

    /// Something that was asked of a neighbour has failed.
    pub(super) fn strike(&mut self, peer: PeerId) {
        let pause = self.options.patience.min;
        let now = self.now;
        let Some(neighbour) = self.linked_mut(peer) else {
            return;
        };
        neighbour.strikes += 1;
        neighbour.ask_after = now + pause * neighbour.strikes;
        if neighbour.strikes >= STRIKES_MAX {
            self.rest(peer, Rest::Failing);
        }
    }

    /// Something went well with it.
    pub(super) fn absolve(&mut self, peer: PeerId) {
        if let Some(neighbour) = self.linked_mut(peer) {
            neighbour.strikes = 0;
            neighbour.rests = 0;
        }
    }

    /// Those of our rack that share with us what comes from others. What the others of them fetch comes to us by one
    /// that is a neighbour, or is to be one: where none is, we wait for nobody.
    pub(super) fn find_mates(&mut self) {
        let rests = |peer| {
            let neighbour = self.neighbours.get(&peer);
            neighbour.is_some_and(Neighbour::is_resting)
        };
        let near = self
            .members
            .iter()
            .filter(|member| member.rack == self.rack && member.keeps_all)
            .filter(|member| !member.is_whole && !rests(member.id));
        self.mates = near.map(|member| member.id).collect();
        if !self
            .mates
            .iter()
            .any(|mate| self.neighbours.contains_key(mate))
        {
            self.mates.clear();
        }
    }

    /// Greets as many as it should, unless there is nothing to be had.
    pub(super) fn greet(&mut self) {
        if self.is_complete() {
            return;
        }
        let is_ours = |neighbour: &&Neighbour| neighbour.is_greeted && !neighbour.is_resting();
        let greeted = self.neighbours.values().filter(is_ours).count();
        let wanted = self.options.greeted_max.saturating_sub(greeted);
        let room = self
            .options
            .neighbours_max
            .saturating_sub(self.neighbours());
        if wanted.min(room) == 0 {
            return;
        }
        for member in self.to_greet(wanted.min(room)) {
            let is_near = member.rack == self.rack;
            let until = self.now + self.options.silence_max / 3;
            let link = Link::Greeting { until };
            let (now, chunks) = (self.now, self.held.len());
            let neighbour = self
                .neighbours
                .entry(member.id)
                .or_insert_with(|| Neighbour::new(now, link, is_near, chunks));
            neighbour.link = link;
            neighbour.is_greeted = true;
            self.send(member.id, Message::Hello);
        }
        self.find_mates();
    }

    /// Whom to greet next: a draw that is each holder's own, in which some count more.
    fn to_greet(&self, count: usize) -> Vec<Member> {
        let now = self.now;
        let is_free = |member: &&Member| match self.neighbours.get(&member.id) {
            None => true,
            Some(neighbour) => {
                matches!(neighbour.link, Link::Resting { until } if until <= now)
            }
        };
        let mut free: Vec<_> = self.members.iter().filter(is_free).copied().collect();
        free.sort_by_cached_key(|member| {
            let mut draw = mix(self.me.0 ^ mix(member.id.0));
            if member.rack == self.rack {
                draw /= NEAR_WEIGHT;
            }
            if member.is_whole {
                draw /= WHOLE_WEIGHT;
            }
            (draw, Reverse(member.id))
        });
        free.truncate(count);
        free
    }

    /// Those who are silent are no neighbours.
    pub(super) fn expire_neighbours(&mut self) {
        let (now, silence_max) = (self.now, self.options.silence_max);
        let is_silent = |neighbour: &Neighbour| match neighbour.link {
            Link::Greeting { until } => until <= now,
            Link::Linked => neighbour.heard + silence_max <= now,
            Link::Resting { .. } => false,
        };
        let neighbours = self.neighbours.iter();
        let silent = neighbours.filter(|(_, neighbour)| is_silent(neighbour));
        let silent: Vec<_> = silent.map(|(&peer, _)| peer).collect();
        for peer in silent {
            self.rest(peer, Rest::Unreachable);
        }
        // Of those who are no members any more nothing is remembered once they have rested.
        let members = &self.members;
        let is_member = |peer| members.iter().any(|member| member.id == peer);
        self.neighbours.retain(|&peer, neighbour| {
            let is_over = matches!(neighbour.link, Link::Resting { until } if until <= now);
            !is_over || neighbour.asked > 0 || is_member(peer)
        });
    }

    pub(super) fn neighbours_deadline(&self) -> Option<Time> {
        let now = self.now;
        let is_wanting = self.is_wanting();
        let silence_max = self.options.silence_max;
        let spare = self.wants.len() < self.options.downloads_max;
        let times = self.neighbours.values().flat_map(|neighbour| {
            let (link, ask) = match neighbour.link {
                Link::Greeting { until } | Link::Resting { until } => (until, None),
                Link::Linked => {
                    let alive = neighbour.spoken + silence_max / 3;
                    let silent = neighbour.heard + silence_max;
                    let is_askable = is_wanting && spare && neighbour.useful > 0;
                    let ask = is_askable.then_some(neighbour.ask_after);
                    (alive.min(silent), ask)
                }
            };
            let is_untold = neighbour.is_linked() && neighbour.told < self.order.len();
            let tell = is_untold.then_some(neighbour.tell_after);
            [Some(link), ask, tell].into_iter().flatten()
        });
        times.filter(|&time| time > now).min()
    }

    /// Tells neighbours what they lack and is here, and that we are alive.
    pub(super) fn tell(&mut self) {
        let now = self.now;
        let (alive, pause) = (self.options.silence_max / 3, self.pace.pause());
        let load = self.uploads.load();
        for (&to, neighbour) in &mut self.neighbours {
            if !neighbour.is_linked() {
                continue;
            }
            let mut chunks = Vec::new();
            if neighbour.told < self.order.len() && neighbour.tell_after <= now {
                while neighbour.told < self.order.len() && chunks.len() < HAVE_CHUNKS_MAX {
                    let chunk = self.order[neighbour.told];
                    neighbour.told += 1;
                    if !neighbour.held.contains(chunk) {
                        chunks.push(chunk);
                    }
                }
            }
            if chunks.is_empty() && neighbour.spoken + alive > now {
                continue;
            }
            neighbour.tell_after = now + pause;
            neighbour.spoken = now;
            let message = Message::Have { load, chunks };
            self.actions.push_back(super::Action::Send { to, message });
        }
    }

    /// Tells a neighbour all that is here.
    pub(super) fn tell_all(&mut self, to: PeerId) {
        if !self.options.is_serving {
            return;
        }
        let load = self.uploads.load();
        if self.held.is_full() {
            self.send(to, Message::All { load });
            return;
        }
        let words = self.held.words().to_vec();
        for (index, words) in words.chunks(HAVE_WORDS_MAX).enumerate() {
            if words.iter().all(|&word| word == 0) {
                continue;
            }
            let first = u32::try_from(index * HAVE_WORDS_MAX).expect("chunks are bounded");
            let words = words.to_vec();
            self.send(to, Message::Map { load, first, words });
        }
    }

    /// Somebody wants one of these.
    pub(super) fn on_want(&mut self, from: PeerId, want: u32, candidates: Vec<u32>) {
        if self.phase != super::Phase::Open {
            self.send(from, Message::Bye);
            return;
        }
        if !self.is_neighbour(from) {
            self.disown(from);
            return;
        }
        let now = self.now;
        if let Some(neighbour) = self.linked_mut(from) {
            neighbour.wanted = now;
        }
        if !self.options.is_serving {
            let load = self.load();
            self.send(from, Message::Busy { want, load });
            return;
        }
        let ask = Ask { peer: from, want };
        let verdict = self.uploads.ask(self.now, ask, candidates, &self.held);
        let load = self.uploads.load();
        match verdict {
            super::uploads::Verdict::Granted(chunk) => {
                self.send(from, Message::Grant { want, chunk, load });
            }
            super::uploads::Verdict::Queued => {}
            super::uploads::Verdict::Busy => self.send(from, Message::Busy { want, load }),
        }
    }

    /// Somebody is through with a want of its.
    pub(super) fn on_done(&mut self, from: PeerId, want: u32, ending: Ending) {
        let ask = Ask { peer: from, want };
        let is_held = ending == Ending::Held;
        let chunk = self.uploads.done(self.now, ask, is_held);
        if let Some(chunk) = chunk.filter(|_| is_held) {
            self.note_held(from, chunk);
        }
    }

    /// Grants what waits while there are places.
    pub(super) fn grant_waiting(&mut self) {
        loop {
            let neighbours = &self.neighbours;
            let lacks = |peer, chunk| {
                let neighbour: Option<&Neighbour> = neighbours.get(&peer);
                neighbour.is_some_and(|neighbour| !neighbour.held.contains(chunk))
            };
            let Some((ask, chunk)) = self.uploads.next(self.now, &self.held, lacks) else {
                return;
            };
            let (want, load) = (ask.want, self.uploads.load());
            let message = match chunk {
                Some(chunk) => Message::Grant { want, chunk, load },
                None => Message::Busy { want, load },
            };
            self.send(ask.peer, message);
        }
    }

    /// A chunk is here that was not.
    pub(super) fn hold(&mut self, chunk: u32) {
        assert!(self.held.insert(chunk), "it was fetched once");
        self.missing -= 1;
        if self.options.is_serving {
            self.order.push(chunk);
        }
        for neighbour in self.neighbours.values_mut() {
            neighbour.useful -= u32::from(neighbour.held.contains(chunk));
        }
        if !self.held.is_full() {
            return;
        }
        let neighbours = self.neighbours.iter();
        let lacking = neighbours.filter(|(_, other)| other.is_linked() && !other.held.is_full());
        let lacking: Vec<_> = lacking.map(|(&peer, _)| peer).collect();
        for peer in lacking {
            self.tell_all(peer);
            let neighbour = self.neighbours.get_mut(&peer).expect("it is there");
            neighbour.told = self.order.len();
            neighbour.spoken = self.now;
        }
    }
}

/// Chunks that a neighbour has and that are wanted, not here, and not under way; from word `start` on and round.
pub(super) fn lacking(
    neighbour: &Neighbour,
    swarm: &Swarm,
    start: usize,
) -> impl Iterator<Item = u32> {
    let (held, wanted) = (neighbour.held.words(), swarm.wanted.words());
    let (own, taken) = (swarm.held.words(), swarm.taken.words());
    (0..held.len()).flat_map(move |step| {
        let index = (start + step) % held.len();
        let word = held[index] & wanted[index] & !own[index] & !taken[index];
        bits(index, word)
    })
}
