//! Questions of one thread to several homes at the same time, each on a [line](super::lines) of its own.

use std::collections::BTreeMap;
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::RESEND;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_runtime::{Patience, SPIN, WORK_MAX};
use lunette_transfer::{CloseReason, Line, LineSink};

use super::cores::{Cores, work_of};
use super::lines::{LentLine, Taken};
use crate::cluster_client::HomeLine;

/// Homes that a thread asks at the same time. What concerns more of them, cores ask, who send all questions and wait for all
/// answers in a few calls of the system.
const HOMES_MAX: usize = 4;
/// Looks in between which nothing is asked of the system.
const LOOKS: u32 = 32;

/// Homes that are asked, each with what takes its answer.
pub(super) struct Round<A> {
    asked: Vec<(LentLine, A)>,
    /// Who could not be asked, or whose answer is lost, and is told of with the next step.
    failed: Vec<(A, Ended)>,
    until: Until,
    /// How long their cores work on the answers.
    work: Duration,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its answer is there.
    Answered,
    /// Nothing of it has left, or the home has not read it.
    Unasked,
    /// Whether the home has done what was asked is unknown.
    Lost,
}

/// How a question has ended that was asked so, if it has.
pub(super) fn went(line: &Line, asked: Result<(), CloseReason>) -> Option<Ended> {
    Some(ended_of(line, asked.err()?))
}

fn ended_of(line: &Line, reason: CloseReason) -> Ended {
    tracing::debug!(%reason, "a thread's connection has ended");
    if line.is_unread() {
        Ended::Unasked
    } else {
        Ended::Lost
    }
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
            failed: Vec::new(),
            until: Until::after(RESEND),
            work: Duration::ZERO,
        }
    }

    /// Asks each of the homes, if there is a line to all, for so many items in all: `ask` does,
    /// and says what takes the answer, and how the question has ended if it has. Else the homes are given back.
    ///
    /// # Errors
    /// The homes: nobody is asked.
    pub(super) fn begin<T>(
        cores: &Cores,
        (homes, items): (BTreeMap<Seat, T>, usize),
        mut ask: impl FnMut(Seat, &mut HomeLine, T) -> (A, Option<Ended>),
    ) -> Result<Self, BTreeMap<Seat, T>> {
        let mut lent = Vec::with_capacity(homes.len());
        for &seat in homes.keys() {
            match cores.lines().take(seat) {
                Taken::Line(line) => lent.push(line),
                Taken::ToMake => cores.have_line_made(seat),
                Taken::None => {}
            }
        }
        if lent.len() < homes.len() {
            // A core is asked in any case: it asks all.
            return Err(homes);
        }
        let mut round = Self::none();
        round.work = work_of(items).min(WORK_MAX);
        for (mut line, (seat, its)) in lent.into_iter().zip(homes) {
            let (answer, ended) = ask(seat, line.home(), its);
            match ended {
                None => round.asked.push((line, answer)),
                Some(ended) => round.failed.push((answer, ended)),
            }
        }
        Ok(round)
    }

    /// The same, in which answers are waited for so long.
    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.until = Until::after(timeout);
        self
    }

    /// The same, in which answers that come slowly are waited for so long, if they come at all.
    pub(super) fn arriving_within(mut self, timeout: Duration) -> Self {
        self.until.last = Instant::now() + timeout;
        self
    }

    /// How long their cores work on the answers.
    pub(super) const fn work(&self) -> Duration {
        self.work
    }

    /// How many have not answered.
    pub(super) const fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether nobody is waited for, and nobody is to be told of.
    pub(super) const fn is_over(&self) -> bool {
        self.asked.is_empty() && self.failed.is_empty()
    }

    /// Takes what has come; `done` is told how each question has ended. Whether nobody is waited for any more: who has not
    /// answered in time, or not as it should, is not.
    pub(super) fn step(&mut self, mut done: impl FnMut(A, Ended)) -> bool {
        for (answer, ended) in self.failed.drain(..) {
            done(answer, ended);
        }
        let mut place = 0;
        while let Some((line, answer)) = self.asked.get_mut(place) {
            let ended = match line.home().line.look(answer) {
                Ok(None) => {
                    place += 1;
                    continue;
                }
                Ok(Some(Ok(()))) => Ended::Answered,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a thread asks in vain");
                    Ended::Lost
                }
                Err(reason) => ended_of(&line.home().line, reason),
            };
            let (line, answer) = self.asked.remove(place);
            drop(line);
            done(answer, ended);
        }
        if !self.asked.is_empty() && self.is_late() {
            tracing::debug!(homes = self.asked.len(), "a thread is not answered in time");
            for (_line, answer) in self.asked.drain(..) {
                done(answer, Ended::Lost);
            }
        }
        self.asked.is_empty()
    }

    /// Whether nothing has come for too long.
    fn is_late(&mut self) -> bool {
        let now = Instant::now();
        let lines = self.asked.iter_mut();
        let arrived_bytes = lines
            .map(|(line, _)| line.home().line.arrived_bytes())
            .sum();
        self.until.on_arrived(now, arrived_bytes);
        now >= self.until.at
    }

    /// Waits no more; `done` is told how what was asked has ended.
    pub(super) fn give_up(self, mut done: impl FnMut(A, Ended)) {
        let lost = self
            .asked
            .into_iter()
            .map(|(_, answer)| (answer, Ended::Lost));
        for (answer, ended) in self.failed.into_iter().chain(lost) {
            done(answer, ended);
        }
    }

    /// Sleeps until something may have come, and no longer than `timeout`; it may wake for no reason.
    pub(super) fn sleep(&mut self, timeout: Duration) {
        let left = self.until.at.saturating_duration_since(Instant::now());
        if let Some((line, _)) = self.asked.first_mut() {
            line.home().line.sleep(timeout.min(left));
        }
    }

    /// Begins to wait for what comes next.
    fn lull(&mut self, patience: &'static LocalKey<Patience>, longest: Duration) -> Lull {
        let mut lines = self.asked.iter_mut();
        let is_in_the_way = || lines.any(|(line, _)| line.home().line.is_in_the_way());
        Lull {
            patience,
            begun: Instant::now(),
            spin: patience.with(|patience| patience.spin_unless(is_in_the_way, longest)),
        }
    }

    /// Blocks this thread until nobody is waited for any more, and no longer than `timeout`; whether that is so. It looks for a
    /// while, where that has paid [lately](Patience), then sleeps.
    pub(super) fn wait(&mut self, timeout: Duration, mut done: impl FnMut(A, Ended)) -> bool {
        if self.is_over() {
            return true;
        }
        let begun = Instant::now();
        let mut lull = self.lull(&ASKED, SPIN + self.work);
        loop {
            if lull.is_looked_for() {
                (0..LOOKS).for_each(|_| std::hint::spin_loop());
            } else {
                self.sleep(timeout.saturating_sub(begun.elapsed()));
            }
            let arrived_bytes = self.until.arrived_bytes;
            if self.step(&mut done) {
                lull.end();
                return true;
            }
            if self.until.arrived_bytes != arrived_bytes {
                lull.end();
                lull = self.lull(&ARRIVING, SPIN);
            }
            if begun.elapsed() >= timeout {
                return false;
            }
        }
    }
}

/// When nothing is waited for any more.
struct Until {
    at: Instant,
    /// It is put off when something has come, and no longer than to this.
    last: Instant,
    arrived_bytes: usize,
}

impl Until {
    fn after(timeout: Duration) -> Self {
        let at = Instant::now() + timeout;
        Self {
            at,
            last: at,
            arrived_bytes: 0,
        }
    }

    /// So many bytes had come by then.
    fn on_arrived(&mut self, now: Instant, arrived_bytes: usize) {
        if self.arrived_bytes != arrived_bytes {
            self.arrived_bytes = arrived_bytes;
            self.at = self.at.max((now + RESEND).min(self.last));
        }
    }
}

thread_local! {
    /// Of answers of which nothing has come.
    static ASKED: Patience = const { Patience::new() };
    /// Of those that are coming.
    static ARRIVING: Patience = const { Patience::new() };
}

/// A time in which nothing comes.
struct Lull {
    patience: &'static LocalKey<Patience>,
    begun: Instant,
    spin: Duration,
}

impl Lull {
    /// Whether to look whether something comes, rather than to sleep until it does.
    fn is_looked_for(&self) -> bool {
        self.begun.elapsed() < self.spin
    }

    /// Something has come.
    fn end(self) {
        let waited = self.begun.elapsed();
        self.patience
            .with(|patience| patience.learn(self.spin, waited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_slowly_is_waited_for_and_what_does_not_come_is_not() {
        let mut until = Until::after(RESEND);
        let begun = until.at.checked_sub(RESEND).expect("it was");
        let at = |times: u32| begun + RESEND * times / 4;
        let last = at(10);
        until.last = last;
        until.on_arrived(at(2), 0);
        assert_eq!(until.at, at(4), "nothing has come");
        until.on_arrived(at(3), 100);
        assert_eq!(until.at, at(7));
        until.on_arrived(at(5), 100);
        assert_eq!(until.at, at(7), "no more of it");
        until.on_arrived(at(6), 101);
        assert_eq!(until.at, last, "for no longer than this");
        until.on_arrived(at(9), 5000);
        assert_eq!(until.at, last);
        // What is asked without that has its time whatever comes.
        let mut until = Until::after(RESEND);
        let ends = until.at;
        until.on_arrived(ends, 7);
        assert_eq!(until.at, ends);
    }
}
