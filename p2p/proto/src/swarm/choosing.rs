//! From whom, and which chunks.

use core::time::Duration;

use lunette_runtime_core::random::mix;
use lunette_runtime_core::time::Time;

use super::neighbours::{Neighbour, Rest, lacking};
use super::{PeerId, Phase, Swarm};
use crate::message::CANDIDATES_MAX;
use crate::pace::Pace;

/// How many chunks are looked at for one want.
const LOOKED_AT_MAX: usize = 256;
/// How much longer than one of our rack somebody of another may take and still be asked first.
const FAR_FACTOR: u32 = 4;
/// After how many chunks' times without any another rack is asked for what one of ours is to fetch.
const STUCK_CHUNKS: u32 = 16;
/// The same, in the time that one of another rack takes.
const STUCK_FAR_CHUNKS: u32 = 4;

impl Swarm {
    /// Whether something is to be had.
    pub(super) fn is_wanting(&self) -> bool {
        self.phase == Phase::Open && !self.is_complete()
    }

    /// Asks for as much as there may be under way.
    pub(super) fn pump(&mut self) {
        if !self.is_wanting() {
            return;
        }
        while self.wants.len() < self.options.downloads_max {
            if !self.ask_one() {
                self.duplicate();
                return;
            }
        }
    }

    /// Asks the best source for one more chunk. Whether there was one.
    fn ask_one(&mut self) -> bool {
        for source in self.sources() {
            let candidates = self.candidates(source);
            if !candidates.is_empty() {
                self.ask(source, candidates, false);
                return true;
            }
        }
        false
    }

    /// Those who have something that we lack and may be asked, the best first.
    pub(super) fn sources(&mut self) -> Vec<PeerId> {
        let salt = self.random.next();
        let has_far = self.asked_far() < self.options.downloads_far_max;
        let neighbours = self.neighbours.iter();
        let askable = neighbours.filter(|(_, neighbour)| {
            neighbour.useful > 0 && (neighbour.is_near || has_far) && self.is_askable(neighbour)
        });
        let mut sources: Vec<_> = askable
            .map(|(&peer, neighbour)| (self.wait(neighbour), mix(peer.0 ^ salt), peer))
            .collect();
        sources.sort_unstable();
        sources.into_iter().map(|(_, _, peer)| peer).collect()
    }

    pub(super) fn is_askable(&self, neighbour: &Neighbour) -> bool {
        neighbour.is_linked()
            && neighbour.asked < self.options.downloads_per_source_max
            && neighbour.ask_after <= self.now
    }

    /// What is asked of other racks.
    fn asked_far(&self) -> usize {
        let far = self.neighbours.values().filter(|it| !it.is_near);
        far.map(|neighbour| neighbour.asked).sum()
    }

    /// How long a neighbour's chunks take, as far as is known.
    pub(super) fn pace_of(&self, neighbour: &Neighbour) -> Pace {
        let others = if neighbour.is_near {
            self.pace
        } else {
            self.far_pace
        };
        neighbour.pace.or(others)
    }

    /// After how long a chunk of a neighbour's is likely to be here. What it said of its load is believed less the
    /// older it is.
    fn wait(&self, neighbour: &Neighbour) -> Duration {
        let pace = self.pace_of(neighbour);
        let chunk = pace.mean().unwrap_or(Duration::from_nanos(1));
        let places = u32::try_from(self.options.uploads_max).unwrap_or(u32::MAX);
        let age = self.now.since(neighbour.heard).as_nanos() / chunk.as_nanos().max(1);
        let halvings = u32::try_from(age / 2).unwrap_or(u32::MAX);
        let waiting = u32::from(neighbour.load).checked_shr(halvings);
        let waiting = waiting.unwrap_or(0);
        let asked = u32::try_from(neighbour.asked).expect("it is bounded");
        // In quarters of a chunk: one that is alone takes as long as its pace says.
        let chunks = 4 + 4 * (waiting + asked) / places;
        let wait = chunk.saturating_mul(chunks) / 4;
        if neighbour.is_near {
            wait
        } else {
            wait.saturating_mul(FAR_FACTOR)
        }
    }

    /// Chunks to ask a neighbour for, those that fewest have first.
    pub(super) fn candidates(&mut self, source: PeerId) -> Vec<u32> {
        let salt = self.random.next();
        let neighbour = &self.neighbours[&source];
        let words = u32::try_from(self.held.words().len()).expect("chunks are bounded");
        let start = mix(salt) % u64::from(words);
        let start = usize::try_from(start).expect("it is below the words");
        let is_far = !neighbour.is_near && !self.is_let_down();
        let chunks = lacking(neighbour, self, start);
        let chunks = chunks.filter(|&chunk| !is_far || self.is_ours(chunk));
        // Asked for the same chunk twice a source can only say so.
        let chunks = chunks
            .filter(|&chunk| self.named[chunk as usize] == 0 || !self.is_named_to(source, chunk));
        let mut ranked: Vec<_> = chunks
            .take(LOOKED_AT_MAX)
            .map(|chunk| {
                let at = chunk as usize;
                (
                    self.named[at],
                    self.copies[at],
                    mix(salt ^ u64::from(chunk)),
                    chunk,
                )
            })
            .collect();
        if ranked.len() > CANDIDATES_MAX {
            ranked.select_nth_unstable(CANDIDATES_MAX);
            ranked.truncate(CANDIDATES_MAX);
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., chunk)| chunk).collect()
    }

    /// Whether it is we who fetch a chunk from another rack for ours.
    fn is_ours(&self, chunk: u32) -> bool {
        self.near_copies[chunk as usize] == 0 && self.falls_to_us(chunk)
    }

    /// Whether it does as long as nobody of our rack has it.
    pub(super) fn falls_to_us(&self, chunk: u32) -> bool {
        let draw = |peer: PeerId| (mix(peer.0 ^ mix(u64::from(chunk) + 1)), peer);
        let mine = draw(self.me);
        self.mates.iter().all(|&mate| draw(mate) < mine)
    }

    /// Whether our rack has fetched nothing for us for so long that it is not waited for. What comes from elsewhere
    /// instead says nothing of it: or each such chunk would be waited for as long again.
    fn is_let_down(&self) -> bool {
        self.let_down_at() <= self.now
    }

    /// When that is so, if nothing comes before.
    pub(super) fn let_down_at(&self) -> Time {
        self.shared + self.standstill()
    }

    /// When we are stuck, if nothing comes before.
    pub(super) fn stuck_at(&self) -> Time {
        self.progressed + self.standstill()
    }

    /// For how long nothing comes where nothing moves.
    fn standstill(&self) -> Duration {
        let patience = self.options.patience;
        let near = self.pace.or(self.far_pace);
        let near = near.patience(STUCK_CHUNKS, patience);
        let has_far = self
            .neighbours
            .values()
            .any(|it| it.is_linked() && !it.is_near);
        let far = has_far.then(|| self.far_pace.patience(STUCK_FAR_CHUNKS, patience));
        near.max(far.unwrap_or_default())
    }

    /// Where no neighbour has anything for us any more, others are greeted, and those who sent something wrong are
    /// asked what they have once more.
    pub(super) fn unstick(&mut self) {
        let is_idle = self.is_wanting() && self.wants.is_empty();
        let is_starved = is_idle && self.neighbours.values().all(|it| it.useful == 0);
        if !is_starved || self.now < self.stuck_at() {
            return;
        }
        self.progressed = self.now;
        let linked = self.neighbours.iter().filter(|(_, it)| it.is_linked());
        let linked: Vec<_> = linked.map(|(&peer, _)| peer).collect();
        for peer in linked {
            self.rest(peer, Rest::Failing);
        }
    }
}
