//! How busy a core is, as it knows itself: what it moved and answered lately, beside what a core can, and how
//! late its timers were.

use std::cell::Cell;
use std::time::Duration;

use lunette_kvstore_proto::shard::ShardStats;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::core::MemberCore;

/// For how long it is counted.
const LOOK: Duration = Duration::from_millis(250);
/// What a core that does nothing else moves, in bytes per second: about a connection's throughput.
const FULL_BYTES_PER_S: u64 = 2 << 30;
/// What a core that does nothing else answers, in requests per second.
const FULL_REQUESTS_PER_S: u64 = 250_000;
/// A core that does nothing else, in thousandths.
const FULL: u64 = 1000;

/// What was counted since the core was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Bytes received and sent.
    pub(super) moved_bytes: u64,
    pub(super) requests: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Loading {
    since: Cell<Time>,
    counted: Cell<Counted>,
    late: Cell<Duration>,
    permille: Cell<u16>,
}

impl Loading {
    /// The load of late, in thousandths.
    pub(super) const fn permille(&self) -> u16 {
        self.permille.get()
    }

    /// A timer was so much late.
    pub(super) fn was_late(&self, late: Duration) {
        self.late.set(self.late.get() + late);
    }

    /// Whether it is time to [look](Self::look).
    pub(super) fn is_due(&self, now: Time) -> bool {
        now.since(self.since.get()) >= LOOK
    }

    /// What was counted by now.
    pub(super) fn look(&self, now: Time, counted: Counted) {
        let passed_ns = now.since(self.since.replace(now)).as_nanos().max(1);
        let former = self.counted.replace(counted);
        let share = |count: u64, full_per_s: u64| {
            let full = u128::from(full_per_s) * passed_ns / 1_000_000_000;
            u128::from(count) * u128::from(FULL) / full.max(1)
        };
        let moved = counted.moved_bytes.saturating_sub(former.moved_bytes);
        let asked = counted.requests.saturating_sub(former.requests);
        let late_ns = self.late.replace(Duration::ZERO).as_nanos();
        let late = late_ns * u128::from(FULL) / passed_ns;
        let load = share(moved, FULL_BYTES_PER_S)
            .max(share(asked, FULL_REQUESTS_PER_S))
            .max(late)
            .min(FULL.into());
        self.permille
            .set(u16::try_from(load).expect("at most full"));
    }
}

impl MemberCore {
    /// A timer was so much late; once in a while the load is computed.
    pub(super) fn look_at_load(&self, late: Duration) {
        self.loading.was_late(late);
        let now = time::now();
        if self.loading.is_due(now) {
            let stat = self.counts.stat(ShardStats::default(), 0);
            let counted = Counted {
                moved_bytes: stat.payload_in_bytes + stat.payload_out_bytes,
                requests: stat.requests,
            };
            self.loading.look(now, counted);
        }
    }

    /// How busy the core was of late, in thousandths.
    pub(crate) const fn load_permille(&self) -> u16 {
        self.loading.permille()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    fn counted(moved_bytes: u64, requests: u64) -> Counted {
        Counted {
            moved_bytes,
            requests,
        }
    }

    #[test]
    fn the_load_is_of_late_and_of_what_the_core_is_short_of() {
        let loading = Loading::default();
        loading.look(at(1000), counted(7, 7));
        assert_eq!(loading.permille(), 0);
        assert!(!loading.is_due(at(1249)) && loading.is_due(at(1250)));
        loading.look(at(1250), counted(7 + (FULL_BYTES_PER_S / 8), 7));
        assert_eq!(
            loading.permille(),
            500,
            "an eighth of a second's in a fourth"
        );
        loading.look(
            at(1500),
            counted(7 + FULL_BYTES_PER_S, 7 + FULL_REQUESTS_PER_S / 16),
        );
        assert_eq!(loading.permille(), 1000, "never above");
        loading.look(
            at(1750),
            counted(7 + FULL_BYTES_PER_S, 7 + FULL_REQUESTS_PER_S / 8),
        );
        assert_eq!(loading.permille(), 250);
        loading.was_late(Duration::from_millis(20));
        loading.was_late(Duration::from_millis(80));
        loading.look(
            at(2000),
            counted(7 + FULL_BYTES_PER_S, 7 + FULL_REQUESTS_PER_S / 8),
        );
        assert_eq!(loading.permille(), 400);
        loading.look(
            at(2250),
            counted(7 + FULL_BYTES_PER_S, 7 + FULL_REQUESTS_PER_S / 8),
        );
        assert_eq!(loading.permille(), 0, "it is over");
    }
}
