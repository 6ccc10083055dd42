//! The counters of one core.

use std::cell::Cell;
use std::rc::Rc;

use lunette_kvstore_proto::message::{FormatVersion, NodeStat, Op, Status};
use lunette_kvstore_proto::owner::FreeCause;
use lunette_kvstore_proto::shard::ShardStats;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::outcome::Outcome;
use super::report::{HISTOGRAM_BUCKETS, Histogram, RequestReport};

/// Operations, and behind them what is none.
const OPS: usize = Op::ALL.len() + 1;

pub(crate) fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get().saturating_add(more));
}

#[derive(Debug, Default)]
struct OpCounts {
    outcomes: [Cell<u64>; Outcome::ALL.len()],
    buckets: [Cell<u64>; HISTOGRAM_BUCKETS],
    sum_ns: Cell<u64>,
}

/// What has been asked of one core.
#[derive(Debug)]
pub(crate) struct Counts {
    ops: [OpCounts; OPS],
    connections: Cell<u64>,
    payload_in_bytes: Cell<u64>,
    payload_out_bytes: Cell<u64>,
    room_waits: Cell<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            ops: std::array::from_fn(|_| OpCounts::default()),
            connections: Cell::default(),
            payload_in_bytes: Cell::default(),
            payload_out_bytes: Cell::default(),
            room_waits: Cell::default(),
        }
    }
}

impl Counts {
    /// A request of this operation has come.
    pub(crate) fn begin(self: &Rc<Self>, op: u16) -> Counting {
        let known = Op::ALL.into_iter().position(|known| known.code() == op);
        Counting {
            counts: Some(Rc::clone(self)),
            op: known.unwrap_or(OPS - 1),
            since: None,
        }
    }

    pub(crate) fn set_connections(&self, open: usize) {
        self.connections.set(open as u64);
    }

    /// A payload was received.
    pub(crate) fn received(&self, len_bytes: u32) {
        add(&self.payload_in_bytes, len_bytes.into());
    }

    /// So many objects were read by those who look on, without a request.
    pub(crate) fn found_unasked(&self, reads: u64, read_bytes: u64) {
        let find = Op::ALL.into_iter().position(|op| op == Op::Find);
        let op = &self.ops[find.expect("all operations are there")];
        add(&op.outcomes[Outcome::Ok.index()], reads);
        add(&self.payload_out_bytes, read_bytes);
    }

    /// A payload is being sent.
    pub(crate) fn sending(&self, len_bytes: usize) {
        add(&self.payload_out_bytes, len_bytes as u64);
    }

    /// A write has found no room at first.
    pub(crate) fn waits_for_room(&self) {
        add(&self.room_waits, 1);
    }

    fn count(&self, op: Op, outcome: Outcome) -> u64 {
        let index = Op::ALL.into_iter().position(|known| known == op);
        let op = &self.ops[index.expect("all operations are there")];
        op.outcomes[outcome.index()].get()
    }

    /// How many requests for objects ended with `is_it`.
    fn sum(&self, is_it: impl Fn(Outcome) -> bool) -> u64 {
        let is_for_object = |op: &Op| {
            !matches!(
                op,
                Op::Stat | Op::Map | Op::Clock | Op::Tell | Op::Adapters | Op::Pair
            )
        };
        let ops = Op::ALL.iter().zip(&self.ops);
        let ops = ops.filter(|(op, _)| is_for_object(op));
        let counted = ops.flat_map(|(_, op)| Outcome::ALL.into_iter().zip(&op.outcomes));
        counted
            .filter(|(outcome, _)| is_it(*outcome))
            .map(|(_, counter)| counter.get())
            .sum()
    }

    /// A core's statistics, but for what its memory knows.
    pub(crate) fn stat(&self, shards: ShardStats, capacity_bytes: u64) -> NodeStat {
        NodeStat {
            shards,
            capacity_bytes,
            connections: self.connections.get(),
            payload_in_bytes: self.payload_in_bytes.get(),
            payload_out_bytes: self.payload_out_bytes.get(),
            cores: 1,
            requests: self.sum(|outcome| outcome != Outcome::Lost),
            refused: self.sum(Outcome::is_refusal),
            room_waits: self.room_waits.get(),
            newest_version: FormatVersion::NEWEST.0.into(),
            ..NodeStat::default()
        }
    }

    /// What a member's shard would have counted.
    pub(crate) fn of_member(&self) -> ShardStats {
        let finds = [Op::Find, Op::FindNear, Op::FindPushed, Op::FindFar];
        let reads = [Op::Read, Op::ReadNear, Op::ReadPushed, Op::ReadFar];
        let found = |ops: [Op; 4], outcome| -> u64 {
            let counted = ops.map(|op| self.count(op, outcome));
            counted.iter().sum()
        };
        let hits = found(finds, Outcome::Ok) + found(reads, Outcome::Ok);
        let misses = found(finds, Outcome::NotFound);
        let writes = |outcome| self.count(Op::Write, outcome) + self.count(Op::Commit, outcome);
        ShardStats {
            puts: writes(Outcome::Ok),
            touches: writes(Outcome::Exists),
            busy: writes(Outcome::Busy),
            aborts: writes(Outcome::Aborted) + writes(Outcome::Interrupted),
            refused_full: writes(Outcome::Full),
            refused_too_large: writes(Outcome::TooLarge),
            gets: hits + misses,
            hits,
            misses,
            ..ShardStats::default()
        }
    }

    /// Requests by operation: all of `ops`, and others that came.
    pub(crate) fn requests(&self, ops: &[Op]) -> Vec<RequestReport> {
        let names = Op::ALL.into_iter().map(Some).chain([None]);
        let counted = self.ops.iter().zip(names).map(|(counts, op)| {
            let durations = Histogram {
                buckets: std::array::from_fn(|bucket| counts.buckets[bucket].get()),
                sum_ns: counts.sum_ns.get(),
            };
            RequestReport {
                op,
                outcomes: std::array::from_fn(|outcome| counts.outcomes[outcome].get()),
                durations,
            }
        });
        counted
            .filter(|report| {
                let is_own = report.op.is_some_and(|op| ops.contains(&op));
                is_own || report.outcomes.iter().any(|&count| count > 0)
            })
            .collect()
    }
}

/// One request, until it is counted: as what it ended with, or as lost when it is dropped before.
#[derive(Debug)]
pub(crate) struct Counting {
    /// `None` once it is counted, or if another has taken over.
    counts: Option<Rc<Counts>>,
    op: usize,
    /// When it began to wait. What is answered at once reads no clock.
    since: Option<Time>,
}

impl Counting {
    /// The request waits from now on: what is returned is counted in its place.
    pub(crate) fn waits(&mut self) -> Self {
        Self {
            counts: self.counts.take(),
            op: self.op,
            since: Some(self.since.unwrap_or_else(time::now)),
        }
    }

    /// The request is answered. Only the first time counts.
    pub(crate) fn end(&mut self, outcome: Outcome) {
        let Some(counts) = self.counts.take() else {
            return;
        };
        let duration = self.since.map(|since| time::now().since(since));
        let duration_ns = duration.map_or(0, |duration| duration.as_nanos());
        let duration_ns = u64::try_from(duration_ns).unwrap_or(u64::MAX);
        let op = &counts.ops[self.op];
        add(&op.outcomes[outcome.index()], 1);
        add(&op.buckets[Histogram::bucket(duration_ns)], 1);
        add(&op.sum_ns, duration_ns);
    }

    /// It is no request after all.
    pub(crate) fn forget(&mut self) {
        self.counts = None;
    }

    /// The request is refused, or answered with what the status says.
    pub(crate) fn end_with(&mut self, status: u16) {
        self.end(Status::from_code(status).into());
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.take() {
            add(&counts.ops[self.op].outcomes[Outcome::Lost.index()], 1);
        }
    }
}

/// The copies of one core, and what became of them.
#[derive(Debug, Default)]
pub(crate) struct CopyCounts {
    pub(crate) written: Cell<u64>,
    pub(crate) replicated: Cell<u64>,
    pub(crate) ordered: Cell<u64>,
    pub(crate) cleared: Cell<u64>,
    pub(crate) unrecorded: Cell<u64>,
    pub(crate) evicted_bytes: Cell<u64>,
    pub(crate) replicas_made: Cell<u64>,
    pub(crate) replicas_failed: Cell<u64>,
    pub(crate) abandoned: Cell<u64>,
    /// Copies of keys that had left another core.
    pub(crate) came_back: Cell<u64>,
    pub(crate) messages_received: Cell<u64>,
    pub(crate) one_sided_reads: Cell<u64>,
    pub(crate) one_sided_fallbacks: Cell<u64>,
    pub(crate) handed_over: Cell<u64>,
    pub(crate) pushed: Cell<u64>,
    pub(crate) pushed_bytes: Cell<u64>,
    pub(crate) pushes_failed: Cell<u64>,
    pub(crate) asked_by_adapters: Cell<u64>,
    pub(crate) pulled: Cell<u64>,
    pub(crate) pulled_bytes: Cell<u64>,
}

impl CopyCounts {
    pub(crate) fn add(counter: &Cell<u64>) {
        add(counter, 1);
    }

    /// A copy of this length has been written to its reader's memory.
    pub(crate) fn has_pushed(&self, len_bytes: u32) {
        Self::add(&self.pushed);
        add(&self.pushed_bytes, len_bytes.into());
    }

    /// A value of this length has been read in its writer's memory.
    pub(crate) fn has_pulled(&self, len_bytes: u32) {
        Self::add(&self.pulled);
        add(&self.pulled_bytes, len_bytes.into());
    }

    /// A copy of this length has gone.
    pub(crate) fn freed(&self, cause: FreeCause, len_bytes: u64) {
        match cause {
            FreeCause::Evicted => add(&self.evicted_bytes, len_bytes),
            FreeCause::Ordered => Self::add(&self.ordered),
            FreeCause::Cleared => Self::add(&self.cleared),
            FreeCause::Unrecorded => Self::add(&self.unrecorded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_counter_of_its_own() {
        let copies = CopyCounts::default();
        let causes = [
            FreeCause::Evicted,
            FreeCause::Ordered,
            FreeCause::Cleared,
            FreeCause::Unrecorded,
        ];
        for (times, cause) in (1..).zip(causes) {
            for _ in 0..times {
                copies.freed(cause, 100);
            }
        }
        let counted = [
            &copies.evicted_bytes,
            &copies.ordered,
            &copies.cleared,
            &copies.unrecorded,
        ];
        assert_eq!(counted.map(Cell::get), [100, 2, 3, 4]);
    }

    #[test]
    fn a_request_counts_once_and_a_dropped_one_as_lost() {
        let counts = Rc::new(Counts::default());
        let mut request = counts.begin(Op::Write.code());
        request.end(Outcome::Exists);
        request.end(Outcome::Ok);
        drop(request);
        drop(counts.begin(Op::Find.code()));
        counts.begin(99).end_with(Status::Unsupported.code());
        counts.begin(Op::Map.code()).end(Outcome::Unavailable);
        counts.begin(Op::Read.code()).end(Outcome::WrongSeat);
        assert_eq!(counts.count(Op::Write, Outcome::Exists), 1);
        assert_eq!(counts.count(Op::Write, Outcome::Ok), 0);
        assert_eq!(counts.count(Op::Find, Outcome::Lost), 1);
        let stat = counts.stat(counts.of_member(), 7);
        assert_eq!((stat.requests, stat.refused, stat.cores), (2, 1, 1));
        assert_eq!((stat.shards.touches, stat.shards.gets), (1, 0));
        let reports = counts.requests(&[Op::Find]);
        let ops: Vec<_> = reports.iter().map(|report| report.op).collect();
        assert_eq!(
            ops,
            [
                Some(Op::Map),
                Some(Op::Write),
                Some(Op::Find),
                Some(Op::Read),
                None
            ],
            "those that are wanted, and those that came"
        );
        let taken = reports[1].durations;
        assert_eq!((taken.buckets[0], taken.sum_ns), (1, 0), "it did not wait");
    }
}
