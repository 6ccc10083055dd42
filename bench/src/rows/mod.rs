//! The rows.

mod ping;
mod store;

use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::harness::{Pair, Plan};
use crate::peer::{Peer, Serve};
use crate::raw::{RawClient, SPIN};

/// Any failure of a side; the row is pending then.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// How long one side of a pair is measured when calls follow each other.
const HOT: Duration = Duration::from_millis(400);
/// Calls of one side of a pair when they are paced, and the pause before each.
const PACED_CALLS: usize = 60;
const PACED_PAUSE: Duration = Duration::from_millis(10);
/// Longest latency that is told apart from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Calls before the measurement.
const WARM_UP_CALLS: usize = 200;

/// What a ratio (ours over rival) is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Not above this.
    AtMost(f64),
    /// Not below this.
    AtLeast(f64),
    /// Below the rival: ahead, level or behind.
    Below,
}

impl Goal {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => ratio >= bound,
            Self::Below => ratio < 1.0,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound:.2}"),
            Self::AtLeast(bound) => write!(f, ">= {bound:.2}"),
            Self::Below => write!(f, "< 1.00"),
        }
    }
}

/// One run of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// What is judged, in the row's unit.
    pub(crate) value: f64,
    /// 99th percentile of a call, in microseconds.
    pub(crate) p99: f64,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Closed loop.
    Hot,
    /// One call each 10 ms, the cores parked in between.
    Paced,
}

/// What is taken from the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Median latency in microseconds.
    P50,
    /// Payload per second, in units of 10^9 bytes.
    Throughput {
        /// Payload of one call.
        bytes: usize,
    },
}

/// What the asking side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Ping,
    Get { bytes: usize },
}

/// A row: what is measured beside what, and what it must come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) rival_name: &'static str,
    pub(crate) goal: Goal,
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

const ROWS: [Row; 6] = [
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
];

/// The rows whose names contain `filter`.
pub(crate) fn matching(filter: &str) -> Vec<Row> {
    ROWS.into_iter()
        .filter(|row| row.name.contains(filter))
        .collect()
}

/// The serving sides of a row, running.
pub(crate) struct Sides {
    row: Row,
    plan: Plan,
    ours: Peer,
    rival: Peer,
}

impl Row {
    /// Starts the serving sides.
    pub(crate) fn open(&self, plan: &Plan) -> Result<Sides, Failure> {
        let ours = Peer::start(self.ours, plan, self.spin)?;
        let rival = Peer::start(self.rival, plan, self.rival_spin)?;
        Ok(Sides {
            row: *self,
            plan: *plan,
            ours,
            rival,
        })
    }
}

impl Sides {
    /// Runs each side once.
    pub(crate) fn measure(&mut self, ours_first: bool) -> Result<Pair, Failure> {
        if ours_first {
            let ours = self.measure_ours()?;
            Ok(Pair {
                ours,
                rival: self.measure_rival()?,
            })
        } else {
            let rival = self.measure_rival()?;
            Ok(Pair {
                ours: self.measure_ours()?,
                rival,
            })
        }
    }

    fn measure_ours(&self) -> Result<Sample, Failure> {
        let Row {
            asking,
            pace,
            measure,
            spin,
            ..
        } = self.row;
        let (server, cpu) = (self.ours.address, self.plan.client_cpu);
        // On a thread of its own: a core keeps what it is pinned to.
        let calls = std::thread::spawn(move || match asking {
            Asking::Ping => {
                ping::measure(server, cpu, pace, spin).map_err(|error| error.to_string())
            }
            Asking::Get { bytes } => {
                store::measure(server, cpu, pace, spin, bytes).map_err(|error| error.to_string())
            }
        });
        let calls = calls.join().map_err(|_| "the asking side panicked")??;
        Ok(calls.sample(measure))
    }

    fn measure_rival(&self) -> Result<Sample, Failure> {
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

/// The calls of one run.
#[derive(Debug)]
pub(crate) struct Calls {
    pace: Pace,
    warm_up_left: usize,
    started: Option<Instant>,
    begun: Instant,
    busy: Duration,
    latencies_ns: Histogram<u64>,
}

impl Calls {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            warm_up_left: if pace == Pace::Hot { WARM_UP_CALLS } else { 2 },
            started: None,
            begun: Instant::now(),
            busy: Duration::ZERO,
            latencies_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("the bounds make a histogram"),
        }
    }

    /// Whether the run is to go on.
    pub(crate) fn go_on(&self) -> bool {
        match (self.pace, self.started) {
            (_, None) => true,
            (Pace::Hot, Some(started)) => started.elapsed() < HOT,
            (Pace::Paced, Some(_)) => self.latencies_ns.len() < PACED_CALLS as u64,
        }
    }

    pub(crate) fn begin(&mut self) {
        if self.warm_up_left == 0 {
            self.started.get_or_insert_with(Instant::now);
        }
        self.begun = Instant::now();
    }

    pub(crate) fn end(&mut self) {
        let took = self.begun.elapsed();
        if self.warm_up_left > 0 {
            self.warm_up_left -= 1;
            return;
        }
        self.busy += took;
        self.latencies_ns
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "times and sizes of one run are below 2^52"
    )]
    fn sample(&self, measure: Measure) -> Sample {
        let quantile_us = |q: f64| self.latencies_ns.value_at_quantile(q) as f64 / 1000.0;
        let value = match measure {
            Measure::P50 => quantile_us(0.5),
            Measure::Throughput { bytes } => {
                let moved = self.latencies_ns.len() as f64 * bytes as f64;
                moved / self.busy.as_secs_f64() / 1e9
            }
        };
        Sample {
            value,
            p99: quantile_us(0.99),
        }
    }
}
