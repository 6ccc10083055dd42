//! The rows.

use lunette_bench::harness::{Failure, Goal, Plan, Sample, Sides, Subject};
use lunette_runtime::topology;

use crate::client;
use crate::role::{Role, Work};
use crate::runtimes::{Side, make_file};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A child measures itself.
    Alone(Work),
    /// A child echoes messages of one connection that asks.
    Ping { message_bytes: usize },
    /// A child echoes messages of many connections, of which some ask.
    Many { active: usize, idle: usize },
}

/// One measurement beside one rival after the other.
struct Series {
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    ours: Side,
    /// Beside each of the waiting runtimes, if so.
    waiting: Option<Goal>,
    /// But not beside this one.
    but_not: Option<Side>,
    /// Beside loops by hand as well.
    raw: &'static [(Side, Goal)],
}

/// Of a loop that has no tasks: level.
const RING: Goal = Goal::AtMost(1.05);

const WAITING: [Side; 5] = [
    Side::Monoio,
    Side::Glommio,
    Side::Compio,
    Side::TokioUring,
    Side::Tokio,
];

const fn series(name: &'static str, unit: &'static str, kind: Kind) -> Series {
    Series {
        name,
        unit,
        kind,
        ours: Side::Lunette,
        waiting: Some(Goal::Below),
        but_not: None,
        raw: &[],
    }
}

const fn echo(name: &'static str, unit: &'static str, kind: Kind) -> Series {
    Series {
        raw: &[(Side::EpollBusy, Goal::Below), (Side::Ring, RING)],
        ..series(name, unit, kind)
    }
}

const PING_64B: Kind = Kind::Ping { message_bytes: 64 };

const fn read(name: &'static str, work: Work) -> Series {
    Series {
        // Its files are read by threads.
        but_not: Some(Side::Tokio),
        raw: &[(Side::Ring, RING)],
        ..series(name, "us/read", Kind::Alone(work))
    }
}

/// Of two threads that spin on a counter, the least there is: it depends on where the host runs a virtual machine's processors,
/// and 200 ns were so much of it where the goal was set.
const MESSAGE: Goal = Goal::AtMost(1.53);

const SERIES: [Series; 14] = [
    series("yield", "ns", Kind::Alone(Work::Yield)),
    series("spawn_join", "ns", Kind::Alone(Work::Spawn)),
    Series {
        waiting: Some(Goal::AtMost(0.70)),
        raw: &[(Side::EpollBusy, Goal::AtMost(1.05)), (Side::Ring, RING)],
        ..series("pingpong_64b", "us p50", PING_64B)
    },
    Series {
        ours: Side::LunetteEfficient,
        ..series("pingpong_64b_waiting", "us p50", PING_64B)
    },
    echo(
        "echo_64k",
        "us p50",
        Kind::Ping {
            message_bytes: 64 << 10,
        },
    ),
    echo(
        "echo_1m",
        "us p50",
        Kind::Ping {
            message_bytes: 1 << 20,
        },
    ),
    echo(
        "active_32",
        "us/message",
        Kind::Many {
            active: 32,
            idle: 0,
        },
    ),
    echo(
        "idle_1000",
        "us/message",
        Kind::Many {
            active: 8,
            idle: 992,
        },
    ),
    Series {
        // It takes no message from another core while a task of its own is ready.
        but_not: Some(Side::Monoio),
        raw: &[(Side::Atomic, MESSAGE)],
        ..series("message_busy", "ns one way", Kind::Alone(Work::MessageBusy))
    },
    Series {
        ours: Side::LunetteEfficient,
        ..series(
            "message_asleep",
            "ns one way",
            Kind::Alone(Work::MessageAsleep),
        )
    },
    Series {
        waiting: None,
        raw: &[(Side::Atomic, MESSAGE)],
        ..series(
            "message_polling",
            "ns one way",
            Kind::Alone(Work::MessagePolling),
        )
    },
    read("read_4k_depth_1", Work::Read1),
    read("read_4k_depth_32", Work::Read32),
    Series {
        ours: Side::LunettePolling,
        // 1.15 times the reads in the same time.
        waiting: Some(Goal::AtMost(0.87)),
        raw: &[],
        ..read("read_4k_depth_32_polling", Work::Read32)
    },
];

/// A row: what is measured, beside whom, and what it must come to.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    series: &'static str,
    unit: &'static str,
    kind: Kind,
    ours: Side,
    rival: Side,
    goal: Goal,
}

/// The rows whose names contain `filter`.
pub(crate) fn matching(filter: &str) -> Vec<Row> {
    let rows = SERIES.iter().flat_map(Series::rows);
    rows.filter(|row| row.name().contains(filter)).collect()
}

impl Series {
    fn rows(&self) -> Vec<Row> {
        let waiting = self.waiting.into_iter();
        let waiting = waiting.flat_map(|goal| WAITING.map(|rival| (rival, goal)));
        let waiting = waiting.filter(|&(rival, _)| Some(rival) != self.but_not);
        let rivals = waiting.chain(self.raw.iter().copied());
        rivals
            .map(|(rival, goal)| Row {
                series: self.name,
                unit: self.unit,
                kind: self.kind,
                ours: self.ours,
                rival,
                goal,
            })
            .collect()
    }
}

impl Row {
    /// `series:rival`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.series, self.rival.name())
    }

    /// What it is called and judged by.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            name: self.name(),
            unit: self.unit,
            rival_name: self.rival.name(),
            goal: self.goal,
        }
    }

    /// Both sides, with the file that they read. Nothing is started: a side that polls would disturb the other one.
    pub(crate) fn open(&self, plan: &Plan) -> Result<Beside, Failure> {
        if matches!(self.kind, Kind::Alone(Work::Read1 | Work::Read32)) {
            make_file()?;
        }
        if !matches!(self.kind, Kind::Alone(_)) {
            check_unpaced()?;
        }
        Ok(Beside {
            ours: Measured::new(self.kind, self.ours, plan),
            rival: Measured::new(self.kind, self.rival, plan),
        })
    }
}

/// Refuses to compare sockets where those are paced that say nothing about it: ours do within a host, and rivals' do not.
fn check_unpaced() -> Result<(), Failure> {
    const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    const UNPACED: [&str; 2] = ["reno", "cubic"];
    let default = std::fs::read_to_string(DEFAULT)?;
    let default = default.trim();
    if UNPACED.contains(&default) {
        return Ok(());
    }
    let said = format!(
        "rivals' sockets are paced here ({default}): sysctl -w net.ipv4.tcp_congestion_control=reno"
    );
    Err(said.into())
}

/// Both sides of a row.
pub(crate) struct Beside {
    ours: Measured,
    rival: Measured,
}

impl Sides for Beside {
    fn ours(&mut self) -> Result<Sample, Failure> {
        self.ours.run()
    }

    fn rival(&mut self) -> Result<Sample, Failure> {
        self.rival.run()
    }
}

/// One side of a row.
struct Measured {
    kind: Kind,
    role: Role,
    plan: Plan,
}

impl Measured {
    fn new(kind: Kind, side: Side, plan: &Plan) -> Self {
        let (work, message_bytes) = match kind {
            Kind::Alone(work) => (work, 0),
            Kind::Ping { message_bytes } => (Work::Echo, message_bytes),
            Kind::Many { .. } => (Work::Echo, 64),
        };
        let role = Role {
            work,
            side,
            message_bytes,
        };
        Self {
            kind,
            role,
            plan: *plan,
        }
    }

    fn run(&self) -> Result<Sample, Failure> {
        if self.role.work != Work::Echo {
            return self.role.measure(&self.plan);
        }
        let server = self.role.serve(&self.plan)?;
        let (address, cpu) = (server.address, self.plan.client_cpu);
        let (kind, bytes) = (self.kind, self.role.message_bytes);
        // On a thread of its own: it is pinned for life.
        let asking = std::thread::spawn(move || -> Result<Sample, String> {
            topology::pin_current_thread(cpu).map_err(|error| error.to_string())?;
            let sample = match kind {
                Kind::Many { active, idle } => client::many(address, bytes, active, idle),
                Kind::Ping { .. } | Kind::Alone(_) => client::ping(address, bytes),
            };
            sample.map_err(|error| error.to_string())
        });
        let sample = asking.join().map_err(|_| "the asking side panicked")?;
        sample.map_err(|error| format!("{}: {error}", self.role.side.name()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_name_of_its_own() {
        let mut names: Vec<String> = matching("").iter().map(Row::name).collect();
        let count = names.len();
        assert_eq!(count, 13 * WAITING.len() - 4 + 7 + 7);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(matching("yield:glommio").len(), 1);
    }
}
