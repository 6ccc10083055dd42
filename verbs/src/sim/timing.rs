//! When requests are done, at adapters that have a rate.
//!
//! A port takes one request after the other, in the order in which they were posted. That of a read is held
//! by the side that asks, as if its bytes were sent there: each port carries so many bytes in all.

use std::task::Waker;
use std::time::Duration;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::qp_state::QpState;

use super::adapter::Pair;
use super::world::World;

/// How often a peer that does not answer is tried again.
const PROBE_EVERY: Duration = Duration::from_millis(1);
/// The unit of a queue pair's patience.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

impl World {
    fn is_timed(&self) -> bool {
        self.devices.iter().any(|adapter| adapter.speed.is_some())
    }

    /// The time, where any adapter has a rate. Elsewhere there is no clock to be asked.
    pub(super) fn now(&self) -> Option<Time> {
        self.is_timed().then(time::now)
    }

    /// Begins with what was posted to an adapter.
    pub(super) fn begin(&mut self, device: usize, number: u32) {
        let Some(speed) = self.devices[device].speed else {
            return;
        };
        let Some(pair) = self.devices[device].pairs.get(&number) else {
            return;
        };
        let peer = pair.route.and_then(|route| self.device_of(route.peer_gid));
        let there = peer.and_then(|peer| self.devices[peer].speed);
        let rate = there.map_or(speed.bytes_per_second, |there| {
            there.bytes_per_second.min(speed.bytes_per_second)
        });
        let now = time::now();
        let adapter = &mut self.devices[device];
        let mut free = adapter.busy_until.max(now);
        let pair = adapter.pairs.get_mut(&number).expect("just found");
        for held in pair.sends.iter_mut().filter(|held| held.due.is_none()) {
            let nanos = u128::from(held.request.len_bytes) * 1_000_000_000 / u128::from(rate);
            free = free + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            held.due = Some(free + speed.latency);
        }
        adapter.busy_until = free;
        self.wake_tickers();
    }

    pub(super) fn wake_tickers(&mut self) {
        if self.is_timed() {
            self.tickers.drain(..).for_each(Waker::wake);
        }
    }

    /// When the next request is done, at adapters with a rate.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let adapters = self.devices.iter().filter(|adapter| !adapter.is_silent);
        let pairs = adapters.flat_map(|adapter| adapter.pairs.values());
        let due = pairs
            .filter(|pair| !pair.is_mute && pair.state != QpState::Error)
            .filter_map(|pair| pair.sends.front()?.due);
        due.min()
    }

    /// Wakes whoever waits for the next request to be done when there is another one.
    pub(crate) fn wake_at_begin(&mut self, waker: &Waker) {
        if !self.tickers.iter().any(|known| known.will_wake(waker)) {
            self.tickers.push(waker.clone());
        }
    }
}

impl Pair {
    /// Whether the time of its first request has not come yet.
    pub(super) fn is_early(&self, now: Option<Time>) -> bool {
        let due = self.sends.front().and_then(|held| held.due);
        match (due, now) {
            (Some(due), Some(now)) => now < due && self.state != QpState::Error,
            _ => false,
        }
    }

    /// The first request met nobody: it is tried again later. False when that was so for as long as retries
    /// last. `None` without a clock.
    pub(super) fn waits_for_answer(&mut self, now: Option<Time>) -> Option<bool> {
        let now = now?;
        let patience = self.route?.patience;
        let held = self.sends.front_mut()?;
        held.due?;
        let since = *self.unanswered_since.get_or_insert(now);
        let once = TIMEOUT_UNIT * 2_u32.saturating_pow(patience.timeout_exponent.into());
        let most = once * (u32::from(patience.retries) + 1);
        held.due = Some(now + PROBE_EVERY);
        Some(now < since + most)
    }
}
