//! The rows.

mod engine;
mod ping;
mod store;

use std::time::Duration;

use lunette_bench::calls::{Calls, Measure, PACED_PAUSE, Pace};
use lunette_bench::harness::{Failure, Goal, Plan, Sample, Sides, Subject};

use self::engine::Moves;
use crate::peer::{Peer, Serve};
use crate::raw::{RawClient, SPIN};

/// What the asking side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Ping,
    Get { bytes: usize },
    Engine(Moves),
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
    rival: Serve,
    /// How long our cores, and the rival's, poll before they sleep.
    spin: Duration,
    rival_spin: Duration,
    pace: Pace,
    measure: Measure,
}

const RAW: &str = "raw io_uring loop";

const PING: Row = Row {
    name: "tcp_pingpong_64b_hot",
    unit: "us p50",
    rival_name: RAW,
    goal: Goal::AtMost(1.10),
    asking: Asking::Ping,
    ours: Serve::Echo,
    rival: Serve::RawPing,
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
    rival: Serve::Raw4k,
    ..PING
};

const ENGINE_READ_4K: Row = Row {
    name: "engine_read_4k_hot",
    goal: Goal::AtMost(1.15),
    asking: Asking::Engine(Moves {
        writes: false,
        requests: 1,
        bytes: 4096,
    }),
    ours: Serve::Engine,
    rival: Serve::Raw4k,
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
    }),
    rival: Serve::Raw1m,
    measure: Measure::Throughput { bytes: 1 << 20 },
    ..ENGINE_READ_4K
};

const ROWS: [Row; 12] = [
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
        rival: Serve::Raw1m,
        measure: Measure::Throughput { bytes: 1 << 20 },
        ..GET_4K
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
        }),
        rival: Serve::Raw512k,
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
        }),
        rival: Serve::RawTake1m,
        ..ENGINE_READ_1M
    },
    Row {
        name: "engine_read_16m",
        asking: Asking::Engine(Moves {
            writes: false,
            requests: 1,
            bytes: 16 << 20,
        }),
        rival: Serve::Raw16m,
        measure: Measure::Throughput { bytes: 16 << 20 },
        ..ENGINE_READ_1M
    },
];

/// The rows whose names contain `filter`.
pub(crate) fn matching(filter: &str) -> Vec<Row> {
    ROWS.into_iter()
        .filter(|row| row.name.contains(filter))
        .collect()
}

/// The serving sides of a row, running.
pub(crate) struct Serving {
    row: Row,
    plan: Plan,
    ours: Peer,
    rival: Peer,
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
        let ours = Peer::start(self.ours, plan, self.spin)?;
        let rival = Peer::start(self.rival, plan, self.rival_spin)?;
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
        let (server, cpu) = (self.ours.address, self.plan.client_cpu);
        // On a thread of its own: a core keeps what it is pinned to.
        let calls =
            std::thread::spawn(move || match asking {
                Asking::Ping => {
                    ping::measure(server, cpu, pace, spin).map_err(|error| error.to_string())
                }
                Asking::Engine(moves) => engine::measure(server, cpu, pace, spin, moves)
                    .map_err(|error| error.to_string()),
                Asking::Get { bytes } => store::measure(server, cpu, pace, spin, bytes)
                    .map_err(|error| error.to_string()),
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
        let (server, cpu) = (self.rival.address, self.plan.client_cpu);
        let calls = std::thread::spawn(move || -> Result<Calls, String> {
            lunette_runtime::topology::pin_current_thread(cpu).map_err(|e| e.to_string())?;
            let (request_bytes, reply_bytes) = rival.raw_bytes();
            let client = RawClient::connect(server, request_bytes, reply_bytes, rival_spin);
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
        });
        let calls = calls
            .join()
            .map_err(|_| "the rival's asking side panicked")??;
        Ok(calls.sample(measure))
    }
}
