//! How long a measurement goes on, and of what.

use std::future::pending;
use std::time::{Duration, Instant};

use lunette_runtime::{CoreCounts, DriverChoice, Idle, core_counts, time};

pub(crate) const ROUND: Duration = Duration::from_millis(400);
const ROUNDS: usize = 7;
const SPIN: Duration = Duration::from_micros(50);

/// How long a round goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    Time,
    Commands(u64),
}

impl Extent {
    pub(crate) fn from_env() -> Self {
        std::env::var("COMMANDS").map_or(Self::Time, |commands| {
            Self::Commands(commands.parse().expect("COMMANDS is a number"))
        })
    }

    pub(crate) fn goes_on(self, started: Instant, commands: u64) -> bool {
        match self {
            Self::Time => started.elapsed() < ROUND,
            Self::Commands(most) => commands < most,
        }
    }

    /// Whether so many commands are as many as there are to be.
    pub(crate) const fn is_enough(self, commands: u64) -> bool {
        matches!(self, Self::Commands(most) if commands >= most)
    }

    /// Waits until the time is over, if it is that.
    pub(crate) async fn passed(self) {
        match self {
            Self::Time => time::sleep(ROUND).await,
            Self::Commands(_) => pending().await,
        }
    }

    pub(crate) const fn rounds(self) -> usize {
        match self {
            Self::Time => ROUNDS,
            Self::Commands(_) => 1,
        }
    }

    /// What a core does that has nothing to do: nothing that would be counted.
    pub(crate) const fn idle(self) -> Idle {
        match self {
            Self::Time => Idle::Adaptive(SPIN),
            Self::Commands(_) => Idle::Efficient,
        }
    }
}

/// The driver that the cores are to have.
pub(crate) fn driver() -> DriverChoice {
    match std::env::var("DRIVER").as_deref() {
        Ok("epoll") => DriverChoice::Epoll,
        _ => DriverChoice::Best,
    }
}

/// Which of the exchanges are to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Only(Option<&'static str>);

impl Only {
    pub(crate) fn from_env() -> Self {
        let Ok(wanted) = std::env::var("ONLY") else {
            return Self(None);
        };
        let known = ["raw", "walk", "ours"];
        let found = known.into_iter().find(|known| *known == wanted);
        Self(Some(found.expect("ONLY is raw, walk or ours")))
    }

    pub(crate) fn takes(self, name: &str) -> bool {
        self.0.is_none_or(|only| only == name)
    }
}

/// Tells what this core has done for so many commands, if that is wanted.
pub(crate) fn tell(before: CoreCounts, commands: u64) {
    if std::env::var_os("COUNTS").is_some() {
        let now = core_counts();
        println!(
            "{commands} commands: {} turns, {} calls of the driver, {} sleeps",
            now.turns - before.turns,
            now.driver_calls - before.driver_calls,
            now.sleeps - before.sleeps
        );
    }
}
