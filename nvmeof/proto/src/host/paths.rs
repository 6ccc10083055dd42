//! Which of several paths to a namespace a command goes by (NVMe Base 2.0, "Host Asymmetric
//! Namespace Access Operation").
//!
//! A path is a controller that the namespace is reached by. Optimized ones are taken first, then
//! those that are not; the others carry nothing. A path that does not do what it says is left for a
//! pause, and what it says is to be read again.
//!
//! | path | what it says | is taken |
//! |---|---|---|
//! | connecting, lost | anything | no |
//! | up | optimized | yes, unless it is left for a pause |
//! | up | non-optimized | yes, if no optimized one can be |
//! | up | inaccessible | no; commands wait as long as the controller says that it may take |
//! | up | change | no; commands wait, and where it takes longer it is connected again |
//! | up | persistent loss | no, and nothing waits for it |

use core::time::Duration;

use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::completion::Status;
use crate::log_page::{AnaGroup, AnaState};

/// Paths to one namespace at most.
pub const PATHS_MAX: usize = 16;
/// Pause after a path did not do what it said: the first, and the longest. It doubles.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_DOUBLINGS_MAX: u32 = 7;

/// Which of equally good paths a command goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest commands in flight.
    QueueDepth,
}

/// What is known of a path when it comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathFacts {
    /// The namespace's group there.
    pub group: u32,
    /// How that can be reached.
    pub state: AnaState,
    /// How long a change of state may take.
    pub transition: Duration,
}

/// What is to be done with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It goes by this path.
    Use(usize),
    /// Ask again when anything has been told to [`Paths`], and then at the latest.
    WaitUntil(Time),
    /// Nothing will help.
    Never(NoPath),
}

/// Why there is no path.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoPath {
    /// All have been given up.
    #[error("every path to the namespace was given up")]
    Lost,
    /// The controllers that are left say that they have lost the namespace.
    #[error("the controllers have lost the namespace")]
    PersistentLoss,
    /// The controllers that are left have not made it accessible in the time that they say.
    #[error("the namespace is inaccessible by every path")]
    Inaccessible,
}

impl NoPath {
    /// Whether asking again may help.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Inaccessible)
    }
}

/// What a command's status says of its path, and of what has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is the answer, by whatever path.
    Answered,
    /// It was not carried out, and may go by another path whatever it is.
    NotDone,
    /// It may have been carried out. If it changes nothing it may go by another path.
    Unknown,
}

/// What `status` says (NVMe Base 2.0, "Path Related Status").
#[must_use]
pub const fn fate_of(status: Status) -> Fate {
    if !status.is_retryable() {
        // To be refused by every path of the subsystem ("Do Not Retry"), or a success.
        return Fate::Answered;
    }
    if state_of(status).is_some() {
        return Fate::NotDone;
    }
    if status.is_path_error() || status.code() == Status::TRANSIENT_TRANSPORT_ERROR.code() {
        return Fate::Unknown;
    }
    Fate::Answered
}

/// The state that a status tells of.
const fn state_of(status: Status) -> Option<AnaState> {
    const PERSISTENT_LOSS: u16 = Status::ANA_PERSISTENT_LOSS.code();
    const INACCESSIBLE: u16 = Status::ANA_INACCESSIBLE.code();
    const TRANSITION: u16 = Status::ANA_TRANSITION.code();
    match status.code() {
        PERSISTENT_LOSS => Some(AnaState::PersistentLoss),
        INACCESSIBLE => Some(AnaState::Inaccessible),
        TRANSITION => Some(AnaState::Change),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Connecting,
    Up,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    link: Link,
    facts: PathFacts,
    /// The namespace is not there.
    is_absent: bool,
    /// Since when it has been up and not accessible.
    closed_since: Option<Time>,
    /// Since when it has been changing.
    changing_since: Option<Time>,
    left_until: Time,
    /// Pauses since it last did what it said.
    pauses: u32,
    in_flight: u32,
}

impl Path {
    const NEW: Self = Self {
        link: Link::Connecting,
        facts: PathFacts {
            group: 0,
            state: AnaState::Inaccessible,
            transition: Duration::ZERO,
        },
        is_absent: false,
        closed_since: None,
        changing_since: None,
        left_until: Time::ZERO,
        pauses: 0,
        in_flight: 0,
    };

    fn is_open(&self) -> bool {
        self.link == Link::Up && self.state().is_accessible()
    }

    /// Something will be known of it, sooner or later.
    fn is_coming(&self) -> bool {
        self.link == Link::Connecting || self.changing_since.is_some()
    }

    const fn state(&self) -> AnaState {
        if self.is_absent {
            AnaState::Inaccessible
        } else {
            self.facts.state
        }
    }

    fn set_state(&mut self, state: AnaState, now: Time) {
        if state != self.facts.state {
            self.left_until = Time::ZERO;
        }
        self.facts.state = state;
        let is_closed = self.link == Link::Up && !self.is_open();
        self.closed_since = is_closed.then(|| self.closed_since.unwrap_or(now));
        let is_changing = self.link == Link::Up && state == AnaState::Change;
        self.changing_since = is_changing.then(|| self.changing_since.unwrap_or(now));
    }

    /// Until when the controller may still make the namespace accessible.
    fn waits_until(&self) -> Option<Time> {
        let may_open = self.state() != AnaState::PersistentLoss;
        let since = self.closed_since.filter(|_| may_open)?;
        Some(since + self.facts.transition)
    }

    fn leave(&mut self, now: Time) {
        // Other commands of the same moment say nothing new.
        if self.left_until <= now {
            let doublings = self.pauses.min(PAUSE_DOUBLINGS_MAX);
            self.left_until = now + PAUSE * (1 << doublings);
            self.pauses += 1;
        }
    }
}

/// The paths to one namespace, by their index.
#[derive(Clone, Debug)]
pub struct Paths {
    policy: PathPolicy,
    paths: Vec<Path>,
    /// Where the next search among equals begins.
    next: usize,
}

impl Paths {
    /// As many paths, all of them connecting.
    ///
    /// # Panics
    /// If there are none, or more than [`PATHS_MAX`].
    #[must_use]
    pub fn new(count: usize, policy: PathPolicy) -> Self {
        assert!((1..=PATHS_MAX).contains(&count), "paths are bounded");
        Self {
            policy,
            paths: vec![Path::NEW; count],
            next: 0,
        }
    }

    /// A path works; or, while it does, its facts are known anew.
    pub fn on_up(&mut self, index: usize, facts: PathFacts, now: Time) {
        let path = &mut self.paths[index];
        path.link = Link::Up;
        path.is_absent = false;
        path.facts = PathFacts {
            state: path.facts.state,
            ..facts
        };
        path.set_state(facts.state, now);
    }

    /// The connection of a path has ended, and is being made again.
    pub fn on_down(&mut self, index: usize) {
        self.end(index, Link::Connecting);
    }

    /// A path has been given up.
    pub fn on_lost(&mut self, index: usize) {
        self.end(index, Link::Lost);
    }

    fn end(&mut self, index: usize, link: Link) {
        let path = &mut self.paths[index];
        path.link = link;
        path.left_until = Time::ZERO;
        (path.closed_since, path.changing_since) = (None, None);
    }

    /// The controller of a path has told how groups can be reached. A group that it does not name
    /// stays as it was.
    pub fn on_groups(&mut self, index: usize, groups: &[AnaGroup], now: Time) {
        let path = &mut self.paths[index];
        let known = groups.iter().find(|group| group.id == path.facts.group);
        if let Some(group) = known {
            path.set_state(group.state, now);
        }
    }

    /// The namespace is not there by a path that works.
    pub fn on_absent(&mut self, index: usize, now: Time) {
        let path = &mut self.paths[index];
        path.is_absent = true;
        path.set_state(path.facts.state, now);
    }

    /// A command has been carried out by a path.
    pub fn on_success(&mut self, index: usize) {
        self.paths[index].pauses = 0;
    }

    /// A command has been answered by a path. Whether the path does not do what it said, so that its
    /// states are to be read again.
    pub fn on_status(&mut self, index: usize, status: Status, now: Time) -> bool {
        let path = &mut self.paths[index];
        if let Some(state) = state_of(status) {
            path.set_state(state, now);
            path.leave(now);
            return true;
        }
        if status.is_path_error() {
            path.leave(now);
            return true;
        }
        if status.code() != Status::TRANSIENT_TRANSPORT_ERROR.code() {
            path.pauses = 0;
        }
        false
    }

    /// A command goes by a path.
    pub fn began(&mut self, index: usize) {
        self.paths[index].in_flight += 1;
    }

    /// It does not any more.
    ///
    /// # Panics
    /// If none did.
    pub fn ended(&mut self, index: usize) {
        let in_flight = &mut self.paths[index].in_flight;
        *in_flight = in_flight.checked_sub(1).expect("what ends has begun");
    }

    /// Commands that go by a path.
    #[must_use]
    pub fn in_flight(&self, index: usize) -> u32 {
        self.paths[index].in_flight
    }

    /// How a path says that the namespace can be reached, if it works.
    #[must_use]
    pub fn state(&self, index: usize) -> Option<AnaState> {
        let path = &self.paths[index];
        (path.link == Link::Up).then_some(path.state())
    }

    /// Whether a path works, and says that the namespace can be reached.
    #[must_use]
    pub fn is_any_open(&self) -> bool {
        self.paths.iter().any(Path::is_open)
    }

    /// Whether all paths have been given up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.paths.iter().all(|path| path.link == Link::Lost)
    }

    /// The path of a command, which is not to be `avoided`.
    pub fn choose(&mut self, avoided: Option<usize>, now: Time) -> Choice {
        let best = [AnaState::Optimized, AnaState::NonOptimized]
            .into_iter()
            .find_map(|state| self.pick(state, avoided, now));
        if let Some(index) = best {
            // A second way is out of turn: the next command is not to pay for it.
            if avoided.is_none() {
                self.next = index + 1;
            }
            return Choice::Use(index);
        }
        let others = || {
            let paths = self.paths.iter().enumerate();
            paths.filter(|(index, _)| Some(*index) != avoided)
        };
        let open = others().filter(|(_, path)| path.is_open());
        if let Some(at) = open.map(|(_, path)| path.left_until).min() {
            return Choice::WaitUntil(at);
        }
        if others().any(|(_, path)| path.is_coming()) {
            return Choice::WaitUntil(Time::MAX);
        }
        let closed = others().filter_map(|(_, path)| path.waits_until());
        if let Some(at) = closed.max().filter(|&at| at > now) {
            return Choice::WaitUntil(at);
        }
        let mut states = others().filter_map(|(index, _)| self.state(index));
        Choice::Never(match states.next() {
            None => NoPath::Lost,
            Some(first) if states.chain([first]).all(|s| s == AnaState::PersistentLoss) => {
                NoPath::PersistentLoss
            }
            Some(_) => NoPath::Inaccessible,
        })
    }

    /// One of the paths in `state` that can be taken.
    fn pick(&self, state: AnaState, avoided: Option<usize>, now: Time) -> Option<usize> {
        let count = self.paths.len();
        let in_turn = (0..count).map(|step| (self.next + step) % count);
        let mut usable = in_turn.filter(|&index| {
            let path = &self.paths[index];
            let is_usable = path.is_open() && path.left_until <= now;
            is_usable && path.facts.state == state && Some(index) != avoided
        });
        match self.policy {
            PathPolicy::RoundRobin => usable.next(),
            PathPolicy::QueueDepth => usable.min_by_key(|&index| self.paths[index].in_flight),
        }
    }

    /// When to call [`Paths::expire`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.paths.iter().filter_map(|path| {
            let since = path.changing_since?;
            Some(since + path.facts.transition)
        });
        due.min()
    }

    /// A path whose state has been changing for longer than its controller says that it may take:
    /// end its connections. It counts as connecting from now on.
    pub fn expire(&mut self, now: Time) -> Option<usize> {
        let is_due = |path: &Path| {
            let since = path.changing_since;
            since.is_some_and(|since| since + path.facts.transition <= now)
        };
        let index = self.paths.iter().position(is_due)?;
        self.on_down(index);
        Some(index)
    }
}

#[cfg(test)]
mod tests;
