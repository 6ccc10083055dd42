//! The rows.

mod copy;
mod disk;
mod drive;
mod engine;
mod inside;
mod member;
mod opening;
mod ping;
mod recovering;
mod starting;
mod store;
mod store_rows;
mod thread;
mod tier;

use std::net::SocketAddr;
use std::time::Duration;

use lunette_bench::calls::{Calls, Measure, PACED_PAUSE, Pace};
use lunette_bench::harness::{Failure, Goal, Plan, Sample, Sides, Subject};

use self::engine::{Moves, Path};
use self::inside::Inside;
use crate::peer::{Peer, Serve};
use crate::raw::{RawClient, SPIN};

/// What the asking side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Ping,
    Get {
        bytes: usize,
    },
    Member(member::Wish),
    Engine(Moves),
    /// A disk's host.
    Disk(disk::Commands),
    /// Opens an engine behind so many clients that say nothing.
    Opening {
        silent: usize,
    },
    /// In this process, beside which nobody serves.
    Inside(inside::From, inside::Work),
    /// Nothing: what is measured is the serving side.
    Starting(starting::Fact),
    /// Nobody: a core and its drive.
    Drive(drive::Work),
}

/// What is measured beside us.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rival {
    /// A raw loop in a process of its own.
    Raw(Serve),
    /// A raw loop that moves what these commands do, through as much memory or not.
    Pump {
        commands: disk::Commands,
        walks: bool,
    },
    /// One core that copies between two memories of this many bytes.
    Memcpy {
        /// How many.
        bytes: usize,
    },
    /// The node's core that copies what the row puts or gets, through the same working set.
    Copies,
    /// fio, as many and as long operations of a file as long.
    Fio,
    /// What is asked of ours, with nobody in front.
    NobodyInFront,
    /// A number that is to be reached, in the row's unit.
    Bound(f64),
}

/// A row: what is measured beside what, and what it must come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    unit: &'static str,
    rival_name: &'static str,
    goal: Goal,
    asking: Asking,
    ours: Serve,
    rival: Rival,
    /// How long our cores, and the rival's, poll before they sleep.
    spin: Duration,
    rival_spin: Duration,
    pace: Pace,
    measure: Measure,
}

/// How long a core polls for a peer on this host, who copies 16 MiB in less.
const SAME_HOST_SPIN: Duration = Duration::from_millis(20);

const RAW: &str = "raw io_uring loop";

const PING: Row = Row {
    name: "tcp_pingpong_64b_hot",
    unit: "us p50",
    rival_name: RAW,
    goal: Goal::AtMost(1.10),
    asking: Asking::Ping,
    ours: Serve::Echo,
    rival: Rival::Raw(Serve::RawPing),
    spin: SPIN,
    rival_spin: SPIN,
    pace: Pace::Hot,
    measure: Measure::P50,
};

const GET_4K: Row = Row {
    name: "store_get_4k_hot",
    goal: Goal::AtMost(1.5),
    asking: Asking::Get { bytes: 4096 },
    ours: Serve::Store,
    rival: Rival::Raw(Serve::Raw4k),
    ..PING
};

const MEMBER_GET_4K: Row = Row {
    name: "member_get_4k_hot",
    goal: Goal::AtMost(1.3),
    asking: Asking::Member(member::Wish::Get {
        bytes: 4096,
        batch: 1,
    }),
    ours: Serve::Member,
    ..GET_4K
};

const ENGINE_READ_4K: Row = Row {
    name: "engine_read_4k_hot",
    goal: Goal::AtMost(1.15),
    asking: Asking::Engine(Moves {
        writes: false,
        requests: 1,
        bytes: 4096,
        path: Path::Sent,
    }),
    ours: Serve::Engine,
    rival: Rival::Raw(Serve::Raw4k),
    ..PING
};

const ENGINE_READ_1M: Row = Row {
    name: "engine_read_1m",
    unit: "GB/s",
    goal: Goal::AtLeast(0.95),
    asking: Asking::Engine(Moves {
        writes: false,
        requests: 1,
        bytes: 1 << 20,
        path: Path::Sent,
    }),
    rival: Rival::Raw(Serve::Raw1m),
    measure: Measure::Throughput { bytes: 1 << 20 },
    ..ENGINE_READ_4K
};

/// A read or write of a peer on this host, beside a copy of the same length.
const fn same_host(name: &'static str, writes: bool, bytes: usize) -> Row {
    Row {
        name,
        unit: "GB/s",
        rival_name: "memcpy of the same working set",
        goal: Goal::AtLeast(0.95),
        asking: Asking::Engine(Moves {
            writes,
            requests: 1,
            bytes,
            path: Path::Mapped,
        }),
        rival: Rival::Memcpy { bytes },
        measure: Measure::Throughput { bytes },
        spin: SAME_HOST_SPIN,
        ..ENGINE_READ_4K
    }
}

/// The same of memory that is not mapped: copied in by one core and out by another, or read from the other
/// process. What stands beside is the path that it would take otherwise.
const fn unmapped(name: &'static str, path: Path, writes: bool, bytes: usize) -> Row {
    let moves = Moves {
        writes,
        requests: 1,
        bytes,
        path,
    };
    let raw = if writes {
        Serve::RawTake1m
    } else {
        Serve::Raw1m
    };
    Row {
        rival_name: RAW,
        goal: Goal::AtLeast(1.50),
        asking: Asking::Engine(moves),
        rival: Rival::Raw(raw),
        ..same_host(name, writes, bytes)
    }
}

/// A row of one short piece at a time, beside the raw loop over loopback.
const fn short(row: Row) -> Row {
    Row {
        unit: "us p50",
        goal: Goal::Below,
        rival_name: RAW,
        rival: Rival::Raw(Serve::Raw4k),
        measure: Measure::P50,
        ..row
    }
}

/// A core's drive, beside fio.
const fn drive(name: &'static str, work: drive::Work) -> Row {
    Row {
        name,
        unit: "GB/s",
        rival_name: "fio",
        goal: Goal::AtLeast(0.90),
        asking: Asking::Drive(work),
        rival: Rival::Fio,
        ..ENGINE_READ_1M
    }
}

const fn cold(name: &'static str, depth: usize, bytes: usize) -> Row {
    drive(name, drive::Work::Cold(drive::Gets { depth, bytes }))
}

const ROWS: [Row; 36] = [
    PING,
    Row {
        name: "tcp_pingpong_64b_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..PING
    },
    Row {
        name: "tcp_pingpong_64b_adaptive",
        rival_name: "raw io_uring loop that waits at once",
        goal: Goal::Below,
        rival_spin: Duration::ZERO,
        ..PING
    },
    GET_4K,
    Row {
        name: "store_get_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..GET_4K
    },
    Row {
        name: "store_get_1m",
        unit: "GB/s",
        goal: Goal::AtLeast(0.90),
        asking: Asking::Get { bytes: 1 << 20 },
        rival: Rival::Raw(Serve::Raw1m),
        measure: Measure::Throughput { bytes: 1 << 20 },
        ..GET_4K
    },
    MEMBER_GET_4K,
    Row {
        name: "member_get_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..MEMBER_GET_4K
    },
    Row {
        name: "member_get_1m",
        unit: "GB/s",
        goal: Goal::AtLeast(0.90),
        asking: Asking::Member(member::Wish::Get {
            bytes: 1 << 20,
            batch: 1,
        }),
        rival: Rival::Raw(Serve::Raw1m),
        measure: Measure::Throughput { bytes: 1 << 20 },
        ..MEMBER_GET_4K
    },
    ENGINE_READ_4K,
    Row {
        name: "engine_read_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..ENGINE_READ_4K
    },
    ENGINE_READ_1M,
    Row {
        name: "engine_read_128x4k",
        asking: Asking::Engine(Moves {
            writes: false,
            requests: 128,
            bytes: 4096,
            path: Path::Sent,
        }),
        rival: Rival::Raw(Serve::Raw512k),
        measure: Measure::Throughput { bytes: 512 << 10 },
        goal: Goal::AtLeast(0.80),
        ..ENGINE_READ_1M
    },
    Row {
        name: "engine_write_1m",
        asking: Asking::Engine(Moves {
            writes: true,
            requests: 1,
            bytes: 1 << 20,
            path: Path::Sent,
        }),
        rival: Rival::Raw(Serve::RawTake1m),
        ..ENGINE_READ_1M
    },
    Row {
        name: "engine_read_16m",
        asking: Asking::Engine(Moves {
            writes: false,
            requests: 1,
            bytes: 16 << 20,
            path: Path::Sent,
        }),
        rival: Rival::Raw(Serve::Raw16m),
        measure: Measure::Throughput { bytes: 16 << 20 },
        ..ENGINE_READ_1M
    },
    same_host("same_host_read_1m", false, 1 << 20),
    same_host("same_host_write_1m", true, 1 << 20),
    same_host("same_host_read_16m", false, 16 << 20),
    same_host("same_host_write_16m", true, 16 << 20),
    unmapped("window_read_1m", Path::Window, false, 1 << 20),
    unmapped("window_write_1m", Path::Window, true, 1 << 20),
    unmapped("trusted_read_1m", Path::Trusted, false, 1 << 20),
    unmapped("trusted_write_1m", Path::Trusted, true, 1 << 20),
    short(same_host("same_host_read_4k_hot", false, 4096)),
    short(same_host("same_host_write_4k_hot", true, 4096)),
    short(unmapped("window_read_4k_hot", Path::Window, false, 4096)),
    short(unmapped("window_write_4k_hot", Path::Window, true, 4096)),
    short(unmapped("trusted_read_4k_hot", Path::Trusted, false, 4096)),
    short(unmapped("trusted_write_4k_hot", Path::Trusted, true, 4096)),
    drive("drive_append_1m", drive::Work::Append),
    drive("drive_read_16x1m", drive::Work::Read),
    drive("tier_demote_16x1m", drive::Work::Demote),
    cold("tier_get_1m", 1, drive::RECORD_BYTES),
    cold("tier_get_8m", 1, 8 * drive::RECORD_BYTES),
    drive("tier_get_16x1m", drive::Work::Cold(drive::SIXTEEN)),
    Row {
        unit: "us p99",
        rival_name: "as many puts without a drive",
        goal: Goal::AtMost(2.0),
        ..drive("tier_get_4k_beside_demotion", drive::Work::GetBeside)
    },
];

/// The rows whose names contain `filter`.
pub(crate) fn matching(filter: &str) -> Vec<Row> {
    let rows = ROWS.into_iter().chain(opening::ROWS);
    let rows = rows.chain(store_rows::ROWS).chain(recovering::ROWS);
    let rows = rows.chain(disk::ROWS);
    rows.filter(|row| row.name.contains(filter)).collect()
}

/// The serving sides of a row, running.
pub(crate) struct Serving {
    row: Row,
    plan: Plan,
    ours: Ours,
    /// `None` where nobody serves it.
    rival: Option<Peer>,
}

/// Our side.
enum Ours {
    /// A process that serves.
    Peer(Peer),
    /// A node in this process.
    Inside(Box<Inside>),
    /// Begun anew each time.
    Anew,
    /// Files that a drive is in, and its rival's.
    Files(drive::Files),
}

impl Row {
    /// What it is called and judged by.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            name: self.name.to_owned(),
            unit: self.unit,
            rival_name: self.rival_name,
            goal: self.goal,
        }
    }

    /// Starts the serving sides.
    pub(crate) fn open(&self, plan: &Plan) -> Result<Serving, Failure> {
        let ours = match self.asking {
            Asking::Inside(from, work) => Ours::Inside(Box::new(Inside::open(from, work, plan)?)),
            Asking::Starting(_) => Ours::Anew,
            Asking::Drive(_) => Ours::Files(drive::Files::make()?),
            _ => Ours::Peer(Peer::start(self.ours, plan, self.spin)?),
        };
        let rival = match self.rival {
            Rival::Raw(serve) => Some(Peer::start(serve, plan, self.rival_spin)?),
            Rival::Pump { .. } => Some(Peer::start(Serve::RawPump, plan, self.rival_spin)?),
            Rival::Memcpy { .. }
            | Rival::Copies
            | Rival::Fio
            | Rival::NobodyInFront
            | Rival::Bound(_) => None,
        };
        Ok(Serving {
            row: *self,
            plan: *plan,
            ours,
            rival,
        })
    }
}

impl Sides for Serving {
    fn ours(&mut self) -> Result<Sample, Failure> {
        let Row {
            asking,
            pace,
            measure,
            spin,
            ..
        } = self.row;
        let server = match (&self.ours, asking) {
            (Ours::Inside(inside), _) => return Ok(inside.measure(pace)?.sample(measure)),
            (Ours::Peer(peer), _) => peer.address,
            (Ours::Anew, Asking::Starting(fact)) => return starting::measure(fact, &self.plan),
            (Ours::Files(files), Asking::Drive(work)) => return files.measure(work, &self.plan),
            (Ours::Anew | Ours::Files(_), _) => return Err("nobody serves".into()),
        };
        let cpu = self.plan.client_cpu;
        // On a thread of its own: a core keeps what it is pinned to.
        let calls =
            std::thread::spawn(move || match asking {
                Asking::Ping => {
                    ping::measure(server, cpu, pace, spin).map_err(|error| error.to_string())
                }
                Asking::Engine(moves) => engine::measure(server, cpu, pace, spin, moves)
                    .map_err(|error| error.to_string()),
                Asking::Disk(commands) => {
                    disk::measure(server, cpu, spin, commands).map_err(|error| error.to_string())
                }
                Asking::Opening { silent } => {
                    opening::measure(server, cpu, pace, silent).map_err(|error| error.to_string())
                }
                Asking::Get { bytes } => store::measure(server, cpu, pace, spin, bytes)
                    .map_err(|error| error.to_string()),
                Asking::Member(wish) => member::measure(server, cpu, pace, spin, wish)
                    .map_err(|error| error.to_string()),
                Asking::Inside(..) | Asking::Starting(_) | Asking::Drive(_) => {
                    Err("nobody asks".to_owned())
                }
            });
        let calls = calls.join().map_err(|_| "the asking side panicked")??;
        Ok(calls.sample(measure))
    }

    fn rival(&mut self) -> Result<Sample, Failure> {
        let Row {
            rival,
            rival_spin,
            pace,
            measure,
            ..
        } = self.row;
        if let Rival::Bound(value) = rival {
            let p99 = f64::NAN;
            return Ok(Sample { value, p99 });
        }
        if let (Rival::Copies, Ours::Inside(inside)) = (rival, &self.ours) {
            return Ok(inside.copies(pace)?.sample(measure));
        }
        if let (Rival::Fio, Ours::Files(files), Asking::Drive(work)) =
            (rival, &self.ours, self.row.asking)
        {
            return files.rival(work, &self.plan);
        }
        let cpu = self.plan.client_cpu;
        let server = match (rival, &self.ours) {
            (Rival::NobodyInFront, Ours::Peer(peer)) => Some(peer.address),
            _ => self.rival.as_ref().map(|peer| peer.address),
        };
        let calls = std::thread::spawn(move || match (rival, server) {
            (Rival::Raw(serve), Some(server)) => exchange(serve, server, cpu, rival_spin, pace),
            (Rival::Pump { commands, walks }, Some(server)) => {
                disk::exchange(server, cpu, rival_spin, commands, walks)
            }
            (Rival::NobodyInFront, Some(server)) => {
                opening::measure(server, cpu, pace, 0).map_err(|error| error.to_string())
            }
            (Rival::Memcpy { bytes }, _) => {
                copy::measure(cpu, pace, bytes).map_err(|error| error.to_string())
            }
            (_, _) => Err("nobody serves the rival".to_owned()),
        });
        let calls = calls
            .join()
            .map_err(|_| "the rival's asking side panicked")??;
        Ok(calls.sample(measure))
    }
}

/// The asking side of a raw loop.
fn exchange(
    serve: Serve,
    server: SocketAddr,
    cpu: usize,
    spin: Duration,
    pace: Pace,
) -> Result<Calls, String> {
    lunette_runtime::topology::pin_current_thread(cpu).map_err(|e| e.to_string())?;
    let (request_bytes, reply_bytes) = serve.raw_bytes();
    let client = RawClient::connect(server, request_bytes, reply_bytes, spin);
    let mut client = client.map_err(|error| error.to_string())?;
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            std::thread::sleep(PACED_PAUSE);
        }
        calls.begin();
        client.exchange().map_err(|error| error.to_string())?;
        calls.end();
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_found_by_their_names_and_each_has_its_own() {
        let all = matching("");
        let names: BTreeSet<_> = all.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), all.len());
        let exists: Vec<_> = matching("exists_500").iter().map(|row| row.name).collect();
        assert_eq!(exists, ["member_exists_500", "inside_exists_500_task"]);
    }

    #[test]
    fn a_bound_is_in_the_rows_unit_and_what_is_inside_has_no_process() {
        for row in matching("inside_") {
            assert!(matches!(row.asking, Asking::Inside(..)), "{}", row.name);
            let copies = row.name.contains("1m");
            assert_eq!(row.rival == Rival::Copies, copies, "{}", row.name);
        }
    }
}
