//! Questions of one thread to several homes at the same time, each on a [line](super::lines) of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::RESEND;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_runtime::{Patience, SPIN, WORK_MAX};
use lunette_transfer::{CloseReason, LineSink};

use super::cores::{Cores, work_of};
use super::lines::{HomeLine, LentLine, Taken};

/// Homes that a thread asks at the same time. What concerns more of them, cores ask, who send all questions and wait for all
/// answers in a few calls of the system.
const HOMES_MAX: usize = 4;
/// Looks in between which nothing is asked of the system.
const LOOKS: u32 = 32;

/// Homes that are asked, each with what takes its answer.
pub(super) struct Round<A> {
    asked: Vec<(LentLine, A)>,
    until: Instant,
    /// How long their cores work on the answers.
    work: Duration,
}

impl Cores {
    /// The homes of keys, each with what there is of its own, by the map of that epoch; `None` if threads are not to ask them.
    pub(super) fn far_homes<T>(
        &self,
        keys: impl Iterator<Item = (Fingerprint, T)>,
    ) -> Option<(Epoch, BTreeMap<Seat, Vec<T>>)> {
        let map = self.map();
        let map = map.as_ref()?;
        let mut homes: BTreeMap<Seat, Vec<T>> = BTreeMap::new();
        for (key, its) in keys {
            homes.entry(home_of(map, key)?).or_default().push(its);
            if homes.len() > HOMES_MAX {
                return None;
            }
        }
        let is_elsewhere = homes.keys().all(|&seat| !self.has_seat(seat));
        is_elsewhere.then_some((map.epoch(), homes))
    }
}

impl<A: LineSink> Round<A> {
    /// One in which nobody is asked.
    pub(super) fn none() -> Self {
        Self {
            asked: Vec::new(),
            until: Instant::now(),
            work: Duration::ZERO,
        }
    }

    /// Asks each of the homes, if there is a line to all, for so many items in all: `ask` does, and says what takes the answer.
    pub(super) fn begin<T>(
        cores: &Cores,
        (homes, items): (BTreeMap<Seat, T>, usize),
        mut ask: impl FnMut(Seat, &mut HomeLine, T) -> Result<A, CloseReason>,
    ) -> Self {
        let mut round = Self::none();
        let homes_count = homes.len();
        let mut lent = Vec::with_capacity(homes_count);
        for (seat, its) in homes {
            match cores.lines().take(seat) {
                Taken::Line(line) => lent.push((seat, line, its)),
                Taken::ToMake => cores.have_line_made(seat),
                Taken::None => {}
            }
        }
        if lent.len() < homes_count {
            // A core is asked in any case: it asks all.
            return round;
        }
        round.until += RESEND;
        round.work = work_of(items).min(WORK_MAX);
        for (seat, mut line, its) in lent {
            match ask(seat, line.home(), its) {
                Ok(answer) => round.asked.push((line, answer)),
                Err(reason) => tracing::debug!(?seat, %reason, "a thread's connection has ended"),
            }
        }
        round
    }

    /// How many have not answered.
    pub(super) const fn len(&self) -> usize {
        self.asked.len()
    }

    /// Takes what has come; `done` is told each answer that is whole. Whether nobody is waited for any more: who has not
    /// answered in time, or not as it should, is not.
    pub(super) fn step(&mut self, mut done: impl FnMut(A)) -> bool {
        let mut place = 0;
        while let Some((line, answer)) = self.asked.get_mut(place) {
            match line.home().line.look(answer) {
                Ok(None) => {
                    place += 1;
                    continue;
                }
                Ok(Some(Ok(()))) => {
                    let (line, answer) = self.asked.remove(place);
                    drop(line);
                    done(answer);
                    continue;
                }
                Ok(Some(Err(error))) => tracing::debug!(%error, "a thread asks in vain"),
                Err(reason) => tracing::debug!(%reason, "a thread's connection has ended"),
            }
            drop(self.asked.remove(place));
        }
        if !self.asked.is_empty() && Instant::now() >= self.until {
            tracing::debug!(homes = self.asked.len(), "a thread is not answered in time");
            self.asked.clear();
        }
        self.asked.is_empty()
    }

    /// Sleeps until something may have come, and no longer than `timeout`; it may wake for no reason.
    pub(super) fn sleep(&mut self, timeout: Duration) {
        let left = self.until.saturating_duration_since(Instant::now());
        if let Some((line, _)) = self.asked.first_mut() {
            line.home().line.sleep(timeout.min(left));
        }
    }

    /// Blocks this thread until nobody is waited for any more, and no longer than `timeout`; whether that is so. It looks for a
    /// while, where that has paid [lately](Patience), then sleeps.
    pub(super) fn wait(&mut self, timeout: Duration, mut done: impl FnMut(A)) -> bool {
        thread_local! {
            static PATIENCE: Patience = const { Patience::new() };
        }
        if self.step(&mut done) {
            return true;
        }
        PATIENCE.with(|patience| {
            let (begun, spin) = (Instant::now(), patience.spin(SPIN + self.work));
            while !self.step(&mut done) {
                let waited = begun.elapsed();
                if waited >= timeout {
                    return false;
                }
                if waited >= spin {
                    self.sleep(timeout - waited);
                    continue;
                }
                for _ in 0..LOOKS {
                    std::hint::spin_loop();
                }
            }
            patience.learn(spin, begun.elapsed());
            true
        })
    }
}
