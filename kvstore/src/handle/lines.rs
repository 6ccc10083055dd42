//! [Lines](HomeLine) to homes on other hosts, on which threads ask for themselves.
//!
//! A core makes one when a thread has asked it for what a line would have brought; the threads that ask take them from here and
//! put them back.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::placement::{Seat, has_seat};

use crate::cluster_client::HomeLine;

/// Lines to one home: so many threads ask it at the same time.
pub(super) const LINES_TO_HOME_MAX: usize = 4;

/// How long it is not looked whether there is room for a line to a home after there was none.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// How long no other line is made after one has ended.
const ENDED_PAUSE: Duration = Duration::from_secs(1);

/// The lines of some threads. See the [module](self).
#[derive(Default)]
pub(super) struct Lines(Mutex<State>);

#[derive(Default)]
struct State {
    homes: BTreeMap<Seat, Home>,
    lines_max: usize,
    /// No core makes any more.
    is_over: bool,
}

/// Those to one home.
#[derive(Default)]
struct Home {
    /// The one that was used last, last.
    idle: Vec<(Box<HomeLine>, Instant)>,
    lent: usize,
    is_making: bool,
    /// When one may be made.
    not_before: Option<Instant>,
}

impl Home {
    fn open(&self) -> usize {
        self.idle.len() + self.lent + usize::from(self.is_making)
    }
}

/// What a thread gets that wants a line.
pub(super) enum Taken {
    Line(LentLine),
    /// None: who asked is to have one made.
    ToMake,
    /// None, for now.
    None,
}

impl Lines {
    /// There may be so many from now on.
    pub(super) fn allow(&self, lines_max: usize) {
        self.state().lines_max = lines_max;
    }

    /// A line to a home.
    pub(super) fn take(self: &Arc<Self>, seat: Seat) -> Taken {
        let mut state = self.state();
        if state.is_over {
            return Taken::None;
        }
        let home = state.homes.entry(seat).or_default();
        if let Some((line, _)) = home.idle.pop() {
            home.lent += 1;
            let lines = Arc::clone(self);
            let line = Some(line);
            return Taken::Line(LentLine { line, seat, lines });
        }
        let now = Instant::now();
        let is_early = home.not_before.is_some_and(|from| now < from);
        if home.is_making || is_early || home.open() >= LINES_TO_HOME_MAX {
            return Taken::None;
        }
        let open: usize = state.homes.values().map(Home::open).sum();
        let is_full = open >= state.lines_max;
        let home = state.homes.entry(seat).or_default();
        if is_full {
            home.not_before = now.checked_add(FULL_PAUSE);
            return Taken::None;
        }
        home.is_making = true;
        Taken::ToMake
    }

    /// What was to be made is made, or is not to be tried again for so long.
    pub(super) fn made(&self, seat: Seat, line: Result<Box<HomeLine>, Duration>) {
        let mut state = self.state();
        let is_over = state.is_over;
        // Otherwise it has left the map meanwhile.
        let Some(home) = state.homes.get_mut(&seat).filter(|_| !is_over) else {
            return;
        };
        home.is_making = false;
        match line {
            Ok(line) => home.idle.push((line, Instant::now())),
            Err(pause) => home.not_before = Instant::now().checked_add(pause),
        }
    }

    /// Homes that are in the map no more are asked no more.
    pub(super) fn on_map(&self, map: &ClusterMap) {
        let gone = {
            let homes = &mut self.state().homes;
            let (kept, gone) = mem::take(homes)
                .into_iter()
                .partition(|(seat, _)| has_seat(map, *seat));
            *homes = kept;
            let gone: BTreeMap<Seat, Home> = gone;
            gone
        };
        drop(gone);
    }

    /// Closes those that were not used for so long.
    pub(super) fn close_idle(&self, idle_timeout: Duration) {
        let now = Instant::now();
        let mut state = self.state();
        for home in state.homes.values_mut() {
            (home.idle).retain(|(_, used)| now.duration_since(*used) < idle_timeout);
        }
    }

    /// One of the homes to which there are any.
    pub(super) fn any_home(&self) -> Option<Seat> {
        let state = self.state();
        let mut homes = state.homes.iter();
        homes.find_map(|(seat, home)| (home.open() > 0).then_some(*seat))
    }

    /// Closes all; there will be no others.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        drop(mem::take(&mut state.homes));
    }

    fn put_back(&self, seat: Seat, line: Box<HomeLine>) {
        let mut state = self.state();
        // Otherwise it has left the map, or all is over.
        let Some(home) = state.homes.get_mut(&seat).filter(|home| home.lent > 0) else {
            return;
        };
        home.lent -= 1;
        let now = Instant::now();
        if line.line.is_free() {
            home.idle.push((line, now));
            return;
        }
        // It has ended, or an answer is to come yet that nobody waits for: it is closed. The home may be gone, or have no room
        // for lines.
        home.not_before = now.checked_add(ENDED_PAUSE);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line that a thread has for as long as it has this. It is put back with it, unless it has ended or something is unanswered
/// on it.
pub(super) struct LentLine {
    line: Option<Box<HomeLine>>,
    seat: Seat,
    lines: Arc<Lines>,
}

impl LentLine {
    pub(super) fn home(&mut self) -> &mut HomeLine {
        self.line.as_mut().expect("until it is put back")
    }
}

impl Drop for LentLine {
    fn drop(&mut self) {
        let line = self.line.take().expect("until it is put back");
        self.lines.put_back(self.seat, line);
    }
}
