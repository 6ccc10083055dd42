//! Wants, from when they are asked to when the chunk is here.
//!
//! ```text
//!           ask              Grant                Held
//!   absent -----> asked ----------------> fetching -----> absent
//!     ^             | Busy, late, Bye        | Corrupt, Failed, Cancelled
//!     +-------------+------------------------+
//! ```
//!
//! A want that is fetching stays until the driver says how it ended, also after it was cancelled: its memory is the
//! device's until then.

use lunette_runtime_core::time::Time;

use super::{Action, FetchId, Fetched, PeerId, Swarm};
use crate::message::{Ending, Message};

/// How many times as long as usual a chunk may take before it is given up.
const LATE_CHUNKS: u32 = 8;
/// How many times as long as usual a chunk takes, at the end, before a second source is asked.
const SLOW_CHUNKS: u32 = 2;
/// Sources that one chunk is fetched from at a time.
const COPIES_MAX: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// One of them is asked for.
    Asked { candidates: Vec<u32> },
    /// It is read.
    Fetching {
        chunk: u32,
        since: Time,
        is_cancelled: bool,
    },
}

/// What we want of a source.
#[derive(Clone, Debug)]
pub(super) struct Want {
    source: PeerId,
    state: State,
    asked: Time,
    /// When it is given up.
    until: Time,
    /// Whether it is for a chunk that is being fetched elsewhere.
    is_copy: bool,
}

impl Want {
    fn is_of(&self, wanted: u32) -> bool {
        matches!(self.state, State::Fetching { chunk, .. } if chunk == wanted)
    }
}

impl Swarm {
    /// Asks a source for one of `candidates`.
    pub(super) fn ask(&mut self, source: PeerId, candidates: Vec<u32>, is_copy: bool) {
        let id = FetchId(self.next_want);
        self.next_want = self.next_want.wrapping_add(1);
        let neighbour = &self.neighbours[&source];
        let ahead = u32::from(neighbour.load).saturating_add(LATE_CHUNKS);
        let patience = self
            .pace_of(neighbour)
            .patience(ahead, self.options.patience);
        let until = self.now + patience;
        let neighbour = self.neighbours.get_mut(&source).expect("it is linked");
        neighbour.asked += 1;
        for &chunk in &candidates {
            self.named[chunk as usize] += 1;
        }
        let message = Message::Want {
            want: id.0,
            candidates: candidates.clone(),
        };
        let want = Want {
            source,
            state: State::Asked { candidates },
            asked: self.now,
            until,
            is_copy,
        };
        let before = self.wants.insert(id, want);
        assert!(before.is_none(), "numbers of wants that are open differ");
        self.send(source, message);
    }

    /// Asks for what is slow a second time, if there is nothing else left to ask for.
    pub(super) fn duplicate(&mut self) {
        if self.taken.count() < self.missing {
            return;
        }
        let slow: Vec<u32> = self.slow().collect();
        for chunk in slow {
            if self.wants.len() >= self.options.downloads_max {
                return;
            }
            let sources = self.sources();
            let other = sources.into_iter().find(|source| {
                let has_it = self.neighbours[source].held.contains(chunk);
                let mut open = self.wants.values();
                has_it && !open.any(|want| want.source == *source && want.is_of(chunk))
            });
            if let Some(source) = other {
                self.ask(source, vec![chunk], true);
            }
        }
    }

    /// Chunks that are slow, and only asked of one source.
    fn slow(&self) -> impl Iterator<Item = u32> {
        let wants = self.wants.values();
        wants.filter_map(|want| match want.state {
            State::Fetching { chunk, since, .. } => {
                let is_slow = since + self.slow_after(want.source) <= self.now;
                let is_named = self.named[chunk as usize] > 0;
                let copies = self.wants.values().filter(|other| other.is_of(chunk));
                (is_slow && !is_named && copies.count() < COPIES_MAX).then_some(chunk)
            }
            State::Asked { .. } => None,
        })
    }

    /// Whether a source was asked for a chunk, among others, and has not answered.
    pub(super) fn is_named_to(&self, source: PeerId, chunk: u32) -> bool {
        self.wants.values().any(|want| match &want.state {
            State::Asked { candidates } => want.source == source && candidates.contains(&chunk),
            State::Fetching { .. } => false,
        })
    }

    fn slow_after(&self, source: PeerId) -> core::time::Duration {
        let neighbour = self.neighbours.get(&source);
        let is_near = neighbour.is_none_or(|neighbour| neighbour.is_near);
        let pace = if is_near { self.pace } else { self.far_pace };
        let mean = pace.mean();
        mean.map_or(self.options.patience.max, |mean| mean * SLOW_CHUNKS)
    }

    fn unname(&mut self, candidates: &[u32]) {
        for &chunk in candidates {
            self.named[chunk as usize] -= 1;
        }
    }

    pub(super) fn on_grant(&mut self, from: PeerId, want: u32, granted: u32, load: u16) {
        let id = FetchId(want);
        let now = self.now;
        if let Some(neighbour) = self.neighbours.get_mut(&from) {
            neighbour.load = load;
        }
        let found = self.wants.get_mut(&id);
        let asked = found.filter(|want| want.source == from);
        let asked = asked.and_then(|want| match &want.state {
            State::Asked { candidates } => Some((candidates.clone(), want.is_copy)),
            State::Fetching { .. } => None,
        });
        let Some((candidates, is_copy)) = asked else {
            // Given up meanwhile, and told so; or of somebody who is confused, and is told so.
            self.send_done(from, id, Ending::Unwanted);
            return;
        };
        self.unname(&candidates);
        let is_taken = self.taken.contains(granted);
        let is_named = candidates.contains(&granted);
        if !is_named || self.held.contains(granted) || (is_taken && !is_copy) {
            self.remove(id);
            self.send_done(from, id, Ending::Unwanted);
            return;
        }
        self.taken.insert(granted);
        let neighbour = self.neighbours.get(&from);
        let known = neighbour.map(|neighbour| (self.pace_of(neighbour), neighbour.strikes));
        let (pace, strikes) = known.unwrap_or((self.pace, 0));
        let patience = pace.patience(LATE_CHUNKS, self.options.patience);
        let want = self.wants.get_mut(&id).expect("it is there");
        want.state = State::Fetching {
            chunk: granted,
            since: now,
            is_cancelled: false,
        };
        // Who was late before is given longer: it may be slow, and the only one.
        want.until = now + patience * (1 << strikes);
        self.actions.push_back(Action::Fetch {
            fetch: id,
            source: from,
            chunk: granted,
            is_copy: is_taken,
        });
    }

    pub(super) fn on_busy(&mut self, from: PeerId, want: u32, load: u16) {
        let id = FetchId(want);
        let pause = self.pace.pause();
        if let Some(neighbour) = self.neighbours.get_mut(&from) {
            neighbour.load = load;
            neighbour.ask_after = self.now + pause;
        }
        let open = self.wants.get(&id);
        let is_asked = open
            .is_some_and(|want| want.source == from && matches!(want.state, State::Asked { .. }));
        if is_asked {
            self.forget_asked(id);
        }
    }

    /// A want that is not answered is none any more.
    fn forget_asked(&mut self, id: FetchId) {
        if let Some(Want {
            state: State::Asked { candidates },
            ..
        }) = self.remove(id)
        {
            self.unname(&candidates);
        }
    }

    fn remove(&mut self, id: FetchId) -> Option<Want> {
        let want = self.wants.remove(&id)?;
        if let Some(neighbour) = self.neighbours.get_mut(&want.source) {
            neighbour.asked -= 1;
        }
        Some(want)
    }

    fn send_done(&mut self, to: PeerId, id: FetchId, ending: Ending) {
        let want = id.0;
        self.send(to, Message::Done { want, ending });
    }

    /// A want is not wanted any more.
    pub(super) fn withdraw(&mut self, id: FetchId) {
        let Some(want) = self.wants.get_mut(&id) else {
            return;
        };
        let source = want.source;
        match &mut want.state {
            State::Asked { .. } => {
                self.forget_asked(id);
                self.send_done(source, id, Ending::Unwanted);
            }
            State::Fetching { is_cancelled, .. } => {
                if !core::mem::replace(is_cancelled, true) {
                    self.actions.push_back(Action::Cancel(id));
                }
            }
        }
    }

    /// All that we want of somebody who is no neighbour any more.
    pub(super) fn withdraw_from(&mut self, source: PeerId) {
        let wants = self.wants.iter();
        let its = wants.filter(|(_, want)| want.source == source);
        let its: Vec<_> = its.map(|(&id, _)| id).collect();
        for id in its {
            self.withdraw(id);
        }
    }

    /// Gives up what is late.
    pub(super) fn expire_wants(&mut self) {
        let now = self.now;
        let late = self.wants.iter().filter(|(_, want)| want.until <= now);
        let late: Vec<_> = late
            .map(|(&id, want)| (id, want.source, want.asked, want.state.clone()))
            .collect();
        for (id, source, asked, state) in late {
            let heard = self.neighbours.get(&source).map(|it| it.heard);
            match state {
                // It is there, and has others to serve.
                State::Asked { .. } if heard.is_some_and(|heard| heard > asked) => {
                    self.withdraw(id);
                }
                State::Asked { .. } => {
                    self.withdraw(id);
                    self.strike(source);
                }
                State::Fetching { is_cancelled, .. } => {
                    if !is_cancelled {
                        self.withdraw(id);
                        self.strike(source);
                    }
                }
            }
        }
    }

    pub(super) fn wants_deadline(&self) -> Option<Time> {
        let has_room = self.is_wanting() && self.wants.len() < self.options.downloads_max;
        let wants = self.wants.values().flat_map(|want| {
            let slow = match want.state {
                State::Fetching { since, .. } if has_room => {
                    Some(since + self.slow_after(want.source))
                }
                _ => None,
            };
            [Some(want.until), slow].into_iter().flatten()
        });
        let stuck = has_room.then(|| [self.let_down_at(), self.stuck_at()]);
        let stuck = stuck.into_iter().flatten();
        wants.chain(stuck).filter(|&time| time > self.now).min()
    }

    pub(super) fn fetch_ended(&mut self, id: FetchId, fetched: Fetched) {
        let want = self.remove(id).expect("each fetch ends once");
        let State::Fetching { chunk, since, .. } = want.state else {
            unreachable!("it was being fetched");
        };
        let source = want.source;
        if !self.wants.values().any(|other| other.is_of(chunk)) {
            self.taken.remove(chunk);
        }
        match fetched {
            Fetched::Held => self.fetched(id, source, chunk, since),
            Fetched::Corrupt => {
                self.send_done(source, id, Ending::Failed);
                if self.copies[chunk as usize] > 1 {
                    self.note_lost(source, chunk);
                }
                // Who alone has it is asked for it again, and for what else it has.
                self.strike(source);
            }
            Fetched::Failed => {
                self.send_done(source, id, Ending::Failed);
                self.strike(source);
            }
            Fetched::Cancelled => self.send_done(source, id, Ending::Unwanted),
        }
    }

    fn fetched(&mut self, id: FetchId, source: PeerId, chunk: u32, since: Time) {
        let took = self.now.since(since);
        let mut is_near = true;
        if let Some(neighbour) = self.neighbours.get_mut(&source) {
            neighbour.pace.note(took);
            is_near = neighbour.is_near;
        }
        if is_near {
            self.pace.note(took);
        } else {
            self.far_pace.note(took);
        }
        self.absolve(source);
        // Who does not serve it on is no holder of it.
        let ending = if self.options.is_serving {
            Ending::Held
        } else {
            Ending::Unwanted
        };
        self.send_done(source, id, ending);
        self.progressed = self.now;
        if is_near || self.falls_to_us(chunk) {
            self.shared = self.now;
        }
        if self.held.contains(chunk) {
            // A second copy, which came before it could be cancelled.
            return;
        }
        self.hold(chunk);
        let others = self.wants.iter().filter(|(_, want)| want.is_of(chunk));
        let others: Vec<_> = others.map(|(&id, _)| id).collect();
        for other in others {
            self.withdraw(other);
        }
        if self.is_complete() {
            let rest: Vec<_> = self.wants.keys().copied().collect();
            for id in rest {
                self.withdraw(id);
            }
            self.actions.push_back(Action::Whole);
            self.part_from_whole();
        }
    }
}
