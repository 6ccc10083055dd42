//! The rows of members of a cluster: asked over TCP, from within, and while they start.

use std::time::Duration;

use lunette_bench::calls::{Measure, Pace};
use lunette_bench::harness::Goal;

use super::inside::{From, GROUP, Work, group_of};
use super::member::{Lined, Wish};
use super::starting::{Fact, Idler};
use super::{Asking, MEMBER_GET_4K, RAW, Rival, Row};
use crate::peer::Serve;

const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
const BOUND: &str = "what is to be reached";

/// A row of an absolute number.
pub(super) const fn bound(name: &'static str, unit: &'static str, goal: Goal, value: f64) -> Row {
    Row {
        name,
        unit,
        rival_name: BOUND,
        goal,
        rival: Rival::Bound(value),
        ..MEMBER_GET_4K
    }
}

const fn small(count: usize) -> u32 {
    assert!(count < 1 << 20, "batches are short");
    #[expect(clippy::cast_possible_truncation, reason = "just checked")]
    {
        count as u32
    }
}

/// How long a lookup of one key takes, in microseconds, from within.
const fn exists(name: &'static str, from: From, bound_us: f64) -> Row {
    let row = bound(name, "us p50", Goal::AtMost(1.0), bound_us);
    let measure = match from {
        From::Task => Measure::P50Of {
            calls: small(GROUP),
        },
        From::Thread => Measure::P50,
    };
    Row {
        asking: Asking::Inside(from, Work::Exists { batch: 1 }),
        measure,
        ..row
    }
}

/// How many objects of 4 KiB a second, in thousands, from within.
const fn rate(
    name: &'static str,
    (from, is_put): (From, bool),
    batch: usize,
    bound_thousands: f64,
) -> Row {
    let work = if is_put {
        put(SMALL, batch)
    } else {
        get(SMALL, batch)
    };
    Row {
        asking: Asking::Inside(from, work),
        measure: Measure::Rate {
            operations: small(group_of(SMALL, batch) * batch),
            unit: 1000,
        },
        ..bound(name, "k/s", Goal::AtLeast(1.0), bound_thousands)
    }
}

/// Objects of 1 MiB by a task of the owning core, in batches, beside copies by the same core.
const fn beside_copies(name: &'static str, work: Work, share: f64) -> Row {
    Row {
        name,
        unit: "GB/s",
        rival_name: "memcpy of the same working set",
        goal: Goal::AtLeast(share),
        asking: Asking::Inside(From::Task, work),
        rival: Rival::Copies,
        measure: Measure::Throughput { bytes: 16 * LARGE },
        ..MEMBER_GET_4K
    }
}

const fn put(bytes: usize, batch: usize) -> Work {
    Work::Put { bytes, batch }
}

const fn get(bytes: usize, batch: usize) -> Work {
    Work::Get { bytes, batch }
}

const MEMBER_EXISTS: Row = Row {
    name: "member_exists_hot",
    goal: Goal::AtMost(1.2),
    asking: Asking::Member(Wish::Exists { batch: 1 }),
    rival_name: RAW,
    // What is asked and answered is about as long.
    rival: Rival::Raw(Serve::RawPing),
    ..MEMBER_GET_4K
};

/// What a member of this host shows, beside what would be asked and answered otherwise.
const SEEN: Row = Row {
    name: "member_seen_exists",
    asking: Asking::Member(Wish::Seen { batch: 1 }),
    ..MEMBER_EXISTS
};
const SEEN_4K: Row = Row {
    name: "member_seen_get_4k",
    goal: Goal::AtMost(1.3),
    asking: Asking::Member(Wish::Near {
        bytes: SMALL,
        batch: 1,
    }),
    ..MEMBER_GET_4K
};

/// What a thread puts at a member of this host by memory that both share, beside what would be sent otherwise.
const HANDED: Row = Row {
    name: "member_handed_put_4k",
    asking: Asking::Member(Wish::Handed { bytes: SMALL }),
    ..SEEN_4K
};

/// What a thread asks a member for by a connection of its own, beside a loop that does no more than that.
const LINED: Row = Row {
    name: "member_thread_exists",
    asking: Asking::Member(Wish::Lined(Lined::Exists)),
    ..MEMBER_EXISTS
};
const LINED_GET: Row = Row {
    name: "member_thread_get_4k",
    asking: Asking::Member(Wish::Lined(Lined::Get { bytes: SMALL })),
    ..SEEN_4K
};

/// What is copied out of memory of this host, beside what would be sent otherwise.
const NEAR: Goal = Goal::AtLeast(1.5);

/// Behind the other rows.
pub(super) const ROWS: [Row; 35] = [
    LINED,
    Row {
        name: "member_thread_exists_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..LINED
    },
    LINED_GET,
    Row {
        name: "member_thread_get_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..LINED_GET
    },
    Row {
        name: "member_thread_put_4k",
        // No goal of others: the home sums, claims and keeps what the loop only receives.
        goal: Goal::AtMost(1.5),
        asking: Asking::Member(Wish::Lined(Lined::Put { bytes: SMALL })),
        ..LINED_GET
    },
    SEEN,
    Row {
        name: "member_seen_exists_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..SEEN
    },
    SEEN_4K,
    Row {
        name: "member_seen_get_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..SEEN_4K
    },
    HANDED,
    Row {
        name: "member_handed_put_4k_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..HANDED
    },
    Row {
        name: "member_handed_put_1m",
        unit: "GB/s",
        goal: NEAR,
        asking: Asking::Member(Wish::Handed { bytes: LARGE }),
        rival: Rival::Raw(Serve::RawTake1m),
        measure: Measure::Throughput { bytes: LARGE },
        ..HANDED
    },
    MEMBER_EXISTS,
    Row {
        name: "member_exists_paced",
        pace: Pace::Paced,
        spin: Duration::ZERO,
        rival_spin: Duration::ZERO,
        ..MEMBER_EXISTS
    },
    Row {
        asking: Asking::Member(Wish::Exists { batch: 500 }),
        measure: Measure::Rate {
            operations: 500,
            unit: 1_000_000,
        },
        ..bound("member_exists_500", "M keys/s", Goal::AtLeast(1.0), 3.0)
    },
    // 20 times what Mooncake's store was measured to do: 15,700 a second.
    Row {
        asking: Asking::Member(Wish::Get {
            bytes: SMALL,
            batch: 64,
        }),
        measure: Measure::Rate {
            operations: 64,
            unit: 1000,
        },
        ..bound("member_get_64x4k", "k/s", Goal::AtLeast(1.0), 314.0)
    },
    Row {
        name: "member_get_16x1m",
        unit: "GB/s",
        goal: Goal::AtLeast(0.90),
        asking: Asking::Member(Wish::Get {
            bytes: LARGE,
            batch: 16,
        }),
        rival: Rival::Raw(Serve::Raw16m),
        measure: Measure::Throughput { bytes: 16 * LARGE },
        ..MEMBER_GET_4K
    },
    Row {
        name: "member_near_1m",
        unit: "GB/s",
        goal: NEAR,
        asking: Asking::Member(Wish::Near {
            bytes: LARGE,
            batch: 1,
        }),
        rival: Rival::Raw(Serve::Raw1m),
        measure: Measure::Throughput { bytes: LARGE },
        ..MEMBER_GET_4K
    },
    Row {
        name: "member_near_16x1m",
        unit: "GB/s",
        goal: NEAR,
        asking: Asking::Member(Wish::Near {
            bytes: LARGE,
            batch: 16,
        }),
        rival: Rival::Raw(Serve::Raw16m),
        measure: Measure::Throughput { bytes: 16 * LARGE },
        ..MEMBER_GET_4K
    },
    exists("inside_exists_task", From::Task, 1.0),
    exists("inside_exists_thread", From::Thread, 3.0),
    Row {
        pace: Pace::Paced,
        ..exists("inside_exists_thread_paced", From::Thread, 15.0)
    },
    Row {
        asking: Asking::Inside(From::Task, Work::Exists { batch: 500 }),
        measure: Measure::Rate {
            operations: 500,
            unit: 1_000_000,
        },
        ..bound(
            "inside_exists_500_task",
            "M keys/s",
            Goal::AtLeast(1.0),
            10.0,
        )
    },
    rate("inside_put_4k_task", (From::Task, true), 1, 500.0),
    rate("inside_get_4k_task", (From::Task, false), 1, 500.0),
    rate("inside_put_4k_thread", (From::Thread, true), 1, 250.0),
    rate("inside_get_4k_thread", (From::Thread, false), 1, 250.0),
    rate("inside_put_64x4k_thread", (From::Thread, true), 64, 500.0),
    rate("inside_get_64x4k_thread", (From::Thread, false), 64, 500.0),
    beside_copies("inside_get_16x1m_task", get(LARGE, 16), 0.95),
    beside_copies("inside_put_16x1m_task", put(LARGE, 16), 0.87),
    Row {
        asking: Asking::Starting(Fact::Listening),
        ..bound("node_start_256m", "ms", Goal::AtMost(1.0), 100.0)
    },
    // Its core's, and one more.
    Row {
        asking: Asking::Starting(Fact::Threads(Idler::Node)),
        ..bound("node_idle_threads", "threads", Goal::AtMost(1.0), 2.0)
    },
    // A master's, idle, as it was measured.
    Row {
        asking: Asking::Starting(Fact::Memory(Idler::Node)),
        ..bound("node_idle_memory", "MB", Goal::AtMost(1.0), 55.0)
    },
    // A quarter of the shortest objects that are worth to be kept.
    Row {
        asking: Asking::Starting(Fact::PerObject),
        ..bound("node_object", "B", Goal::AtMost(1.0), 1024.0)
    },
];
