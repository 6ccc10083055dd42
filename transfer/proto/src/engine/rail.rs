//! One way to a peer.
//!
//! ```text
//!            connect                on_connected
//!   Down ------------> Connecting ----------------> Up
//!    ^  (when its pause is over)    |                |
//!    |                              | refused        | lost, stalled
//!    +------------------------------+----------------+
//!    ^                                               |
//!    +-----------------------------------------------+  idle: not paused
//!        paused; the pause doubles with each failure, and starts anew after bytes have come through
//! ```

use std::time::Duration;

use lunette_runtime_core::time::Time;

/// Rate that a rail is taken to have before it has been seen, in bytes per second.
const RATE_FIRST: u64 = 1_000_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Least rate that is reckoned with, so that no rail is written off for ever.
const RATE_MIN: u64 = 64 * 1024;
/// Fewer bytes say more about latency than about rate.
const RATED_BYTES_MIN: u64 = 32 * 1024;
/// Answers come in bursts: what is looked at is not shorter than this, unless the rail falls idle.
const RATED_TIME_MIN: Duration = Duration::from_micros(200);
/// The newest rate counts for one part in this many.
const RATE_MEMORY: u64 = 4;

/// How long an answer is taken to take before one has been seen.
const ANSWER_FIRST: Duration = Duration::from_millis(50);
/// How long the slowest answers took is forgotten by one part in this many with each that was faster.
const ANSWER_MEMORY: u32 = 8;
/// An answer may take so many times as long as the slowest of late.
const OVERDUE_TIMES: u32 = 2;
/// No answer is overdue by less than this.
pub(super) const OVERDUE_MIN: Duration = Duration::from_millis(1);
/// A rail that pauses is reckoned to be at most so many times slower than before.
const RATE_LOSS_MAX: u64 = 16;
/// Of a rail that has become slower than one part in so many of what it was, it is looked again whether it still is.
const SLOW_PART: u64 = 2;
/// The first time after as long as the pause after so many failures.
const LOOKED_AGAIN_AFTER: u32 = 4;

/// Least slices of the shortest kind that may be under way.
const WINDOW_SLICES_MIN: u64 = 2;
/// What is under way may take as long as so many slices should.
const WINDOW_SLICE_TIMES: u32 = 4;

/// Bounds of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOptions {
    /// Longest slice, in bytes.
    pub slice_bytes_max: u32,
    /// Shortest slice that a request is cut into, in bytes.
    pub slice_bytes_min: u32,
    /// How long a slice should be under way: a slow rail gets shorter ones.
    pub slice_time: Duration,
    /// Bytes under way on one rail at most. One slice is always allowed.
    pub window_bytes_max: u64,
    /// Slices under way on one rail at most.
    pub slices_max: u32,
    /// First pause after a failure.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Default for RailOptions {
    fn default() -> Self {
        Self {
            slice_bytes_max: 512 * 1024,
            slice_bytes_min: 64 * 1024,
            slice_time: Duration::from_millis(4),
            window_bytes_max: 1024 * 1024,
            slices_max: 256,
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_secs(10),
        }
    }
}

impl RailOptions {
    /// Those of rails over which bytes go from memory to memory: what is paid is paid per slice, so that slices
    /// are long where the rail is fast, and what is under way costs no memory.
    pub const ONE_SIDED: Self = Self {
        slice_bytes_max: 4 * 1024 * 1024,
        slice_bytes_min: 64 * 1024,
        slice_time: Duration::from_millis(1),
        window_bytes_max: 8 * 1024 * 1024,
        slices_max: 256,
        pause_min: Duration::from_millis(10),
        pause_max: Duration::from_secs(10),
    };

    const fn window_bytes_min(&self) -> u64 {
        WINDOW_SLICES_MIN * self.slice_bytes_min as u64
    }

    /// How long to pause after so many failures and one more.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.pause_min.saturating_mul(doubled).min(self.pause_max)
    }
}

/// How long so many bytes take.
pub(super) fn time_of(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_nanos(scaled(bytes, NANOS_PER_SECOND, bytes_per_second))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `value * times / by`. Mostly the product fits, and division is short then.
fn scaled(value: u64, times: u64, by: u64) -> u64 {
    match value.checked_mul(times) {
        Some(product) => product / by,
        None => {
            let product = u128::from(value) * u128::from(times);
            u64::try_from(product / u128::from(by)).unwrap_or(u64::MAX)
        }
    }
}

/// How a rail carries bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// By requests to the peer's engine, over a connection. It reaches everything, carries notifications and
    /// asks for fences; bytes go over it as long as no rail of the other kind is up.
    #[default]
    Stream,
    /// From memory to memory, by adapters. Neither engine has a part in it.
    OneSided,
}

/// Where a rail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailState {
    /// It is not connected, and not tried before this point in time.
    Down {
        /// When it may be tried.
        until: Time,
    },
    /// It is being connected.
    Connecting,
    /// It carries slices.
    Up,
}

/// One way to a peer: what is known of it.
#[derive(Clone, Debug)]
pub struct Rail {
    options: RailOptions,
    carrier: Carrier,
    state: RailState,
    /// Moves on with each connection, so that what is said of an old one is not taken for the new.
    connection: u32,
    /// Failures since bytes last came through.
    failures: u32,
    /// Bytes per second.
    rate: u64,
    /// Whether that has been seen, as against supposed.
    is_rated: bool,
    /// How long a slice should be, and how much may be under way, at that rate.
    slice_bytes: u32,
    window_bytes: u64,
    under_way_bytes: u64,
    under_way_slices: u32,
    /// Bytes that came through since `counted_since`, of which the rate is made.
    counted_bytes: u64,
    counted_since: Time,
    /// When bytes last came through, or the rail came up.
    moved: Time,
    /// What that was when slices were last taken back.
    overtaken: Option<Time>,
    /// How long the slowest answers of late took.
    answer: Duration,
    /// The fastest that it was seen to be.
    rate_best: u64,
    /// When its rate was last seen, or found to be less than was supposed.
    rate_known: Time,
    /// What its rate was, while it is taken to be as fast as ever.
    rate_doubted: Option<u64>,
    /// How often in a row it was not.
    disappointments: u32,
    /// Whether its connection carries notifications, although it is none of streams.
    tells: bool,
}

impl Rail {
    /// A rail that may be tried at once.
    #[must_use]
    pub const fn new(options: RailOptions) -> Self {
        Self::of(Carrier::Stream, options)
    }

    /// The same, of either kind.
    #[must_use]
    pub const fn of(carrier: Carrier, options: RailOptions) -> Self {
        Self {
            options,
            carrier,
            state: RailState::Down { until: Time::ZERO },
            connection: 0,
            failures: 0,
            rate: RATE_FIRST,
            is_rated: false,
            slice_bytes: options.slice_bytes_min,
            window_bytes: options.window_bytes_min(),
            under_way_bytes: 0,
            under_way_slices: 0,
            counted_bytes: 0,
            counted_since: Time::ZERO,
            moved: Time::ZERO,
            overtaken: None,
            answer: ANSWER_FIRST,
            rate_best: 0,
            rate_known: Time::ZERO,
            rate_doubted: None,
            disappointments: 0,
            tells: false,
        }
    }

    /// How it carries bytes.
    #[must_use]
    pub const fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Its bounds.
    #[must_use]
    pub const fn options(&self) -> &RailOptions {
        &self.options
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> RailState {
        self.state
    }

    /// Which of its connections it has, or had last; counted from 1.
    #[must_use]
    pub const fn connection(&self) -> u32 {
        self.connection
    }

    /// Bytes per second, as far as is known.
    #[must_use]
    pub const fn bytes_per_second(&self) -> u64 {
        self.rate
    }

    /// Failures since bytes last came through.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Bytes under way.
    #[must_use]
    pub const fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes
    }

    /// Whether it carries slices.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.state, RailState::Up)
    }

    /// Whether another slice may be sent now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.is_up()
            && self.under_way_slices < self.options.slices_max
            && (self.under_way_slices == 0 || self.under_way_bytes < self.window_bytes)
    }

    /// Whether a notification may go over it now, although it is from memory to memory. It has no bytes, so it need not
    /// wait for those that are under way.
    #[must_use]
    pub const fn takes_notes(&self) -> bool {
        self.tells && self.is_up() && self.under_way_slices < self.options.slices_max
    }

    /// Its connection carries notifications, too.
    pub(super) const fn on_tells(&mut self) {
        self.tells = true;
    }

    /// Bytes that may go over it now, as far as they are bounded.
    pub(super) fn room_bytes(&self) -> u64 {
        self.window_bytes.saturating_sub(self.under_way_bytes)
    }

    /// How long a slice should be.
    #[must_use]
    pub const fn slice_bytes(&self) -> u32 {
        self.slice_bytes
    }

    /// Measures by the rate: few bytes are under way until it is known how fast they are, and not for long
    /// ahead.
    fn measure(&mut self) {
        let options = self.options;
        let bytes = self.bytes_within(options.slice_time);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.slice_bytes = bytes.clamp(options.slice_bytes_min, options.slice_bytes_max);
        let least = options.window_bytes_min();
        self.window_bytes = self
            .bytes_within(options.slice_time * WINDOW_SLICE_TIMES)
            .clamp(least, options.window_bytes_max.max(least));
    }

    fn bytes_within(&self, time: Duration) -> u64 {
        scaled(self.rate, nanos(time), NANOS_PER_SECOND)
    }

    /// When `len_bytes` more would be through, from now on.
    #[must_use]
    pub fn finish(&self, len_bytes: u64) -> Duration {
        let bytes = self.under_way_bytes.saturating_add(len_bytes);
        time_of(bytes, self.rate.max(RATE_MIN))
    }

    /// How long one may wait on it for what is under way, without anything being wrong.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.finish(0) + self.patience_min()
    }

    /// However little is under way.
    fn patience_min(&self) -> Duration {
        self.answer * OVERDUE_TIMES + OVERDUE_MIN
    }

    /// Whether nothing is overdue on it.
    #[must_use]
    pub fn is_prompt(&self, now: Time) -> bool {
        let since = self.waits_since();
        since.is_none_or(|since| {
            // Mostly the first look is enough.
            now < since + self.patience_min() || now < since + self.patience()
        })
    }

    /// Since when nothing has come through although something is under way.
    #[must_use]
    pub const fn waits_since(&self) -> Option<Time> {
        if self.is_up() && self.under_way_slices > 0 {
            Some(self.moved)
        } else {
            None
        }
    }

    /// When bytes last came through, or the rail came up.
    #[must_use]
    pub const fn moved(&self) -> Time {
        self.moved
    }

    /// Nobody needs it: it is closed, and may be tried at once when somebody does.
    ///
    /// # Panics
    /// If something is under way.
    pub fn on_idle(&mut self, now: Time) {
        assert_eq!(
            self.under_way_slices, 0,
            "who carries something is not idle"
        );
        self.state = RailState::Down { until: now };
    }

    /// Begins to connect, if it is time. Whether it does.
    pub fn try_connect(&mut self, now: Time) -> bool {
        match self.state {
            RailState::Down { until } if until <= now => {
                self.state = RailState::Connecting;
                self.connection = self.connection.wrapping_add(1).max(1);
                self.tells = false;
                true
            }
            _ => false,
        }
    }

    /// It is connected.
    ///
    /// # Panics
    /// If it was not being connected.
    pub fn on_connected(&mut self, now: Time) {
        assert_eq!(
            self.state,
            RailState::Connecting,
            "who is connected was connecting"
        );
        self.state = RailState::Up;
        self.moved = now;
    }

    /// It failed: refused, lost, or given up. What was under way on it is not any more.
    pub fn on_failed(&mut self, now: Time) {
        self.state = RailState::Down {
            until: now + self.options.pause(self.failures),
        };
        self.failures = self.failures.saturating_add(1);
        self.disappoint(now);
        self.under_way_bytes = 0;
        self.under_way_slices = 0;
    }

    /// A slice is on its way.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn on_sent(&mut self, len_bytes: u64, now: Time) {
        let is_note = len_bytes == 0 && self.takes_notes();
        assert!(
            is_note || self.has_room(),
            "a slice goes where there is room"
        );
        if self.under_way_slices == 0 {
            self.moved = now;
            self.counted_bytes = 0;
            self.counted_since = now;
        }
        self.under_way_slices += 1;
        self.under_way_bytes += len_bytes;
    }

    /// A slice that was sent at `sent`, behind `ahead_bytes`, was done by an adapter, which takes one after the
    /// other: since then it has carried these too. Many may be told at once, so what lies between two that
    /// are told says nothing.
    pub fn on_done_in_order(&mut self, len_bytes: u64, ahead_bytes: u64, sent: Time, now: Time) {
        self.on_through(len_bytes, sent, now);
        let bytes = ahead_bytes + len_bytes;
        // Of a rail that was idle before, much of it is how long an answer takes.
        let is_telling = ahead_bytes >= len_bytes || !self.is_rated;
        if is_telling && bytes >= RATED_BYTES_MIN {
            self.rate(bytes, now.since(sent), now);
        }
    }

    /// A notification that was sent at `sent` was answered, which says nothing of how fast bytes are.
    pub fn on_told(&mut self, sent: Time, now: Time) {
        self.on_through(0, sent, now);
    }

    fn on_through(&mut self, len_bytes: u64, sent: Time, now: Time) {
        let faded = self.answer - self.answer / ANSWER_MEMORY;
        self.answer = faded.max(now.since(sent));
        self.leave(len_bytes);
        self.failures = 0;
        self.moved = now;
    }

    /// A slice that was sent at `sent` was answered.
    pub fn on_answered(&mut self, len_bytes: u64, sent: Time, now: Time) {
        self.on_through(len_bytes, sent, now);
        self.counted_bytes += len_bytes;
        let took = now.since(self.counted_since);
        let is_enough = took >= RATED_TIME_MIN || self.under_way_slices == 0;
        if is_enough && self.counted_bytes >= RATED_BYTES_MIN {
            self.rate(self.counted_bytes, took, now);
            self.counted_bytes = 0;
            self.counted_since = now;
        }
    }

    fn rate(&mut self, bytes: u64, took: Duration, now: Time) {
        let newest = scaled(bytes, NANOS_PER_SECOND, nanos(took).max(1));
        let newest = newest.min(u64::MAX / RATE_MEMORY);
        let before = self.rate_doubted.take().unwrap_or(self.rate);
        let known = if self.is_rated { before } else { newest };
        let rate = known / RATE_MEMORY * (RATE_MEMORY - 1) + newest / RATE_MEMORY;
        self.rate = rate.max(RATE_MIN);
        self.is_rated = true;
        self.disappointments = if newest < self.rate_best / SLOW_PART {
            self.disappointments.saturating_add(1)
        } else {
            0
        };
        self.rate_best = self.rate_best.max(self.rate);
        self.rate_known = now;
        self.measure();
    }

    /// Nothing has been sent over it for a while because it was slow: it is taken to be as fast as ever, so that
    /// little is, and is seen to be through or not. Each time that it is not, the next look is longer in coming.
    pub fn look_again(&mut self, now: Time) {
        let is_slow = self.rate < self.rate_best / SLOW_PART && self.rate_doubted.is_none();
        if !is_slow || !self.is_up() || self.under_way_slices > 0 {
            return;
        }
        let times = self.disappointments.saturating_add(LOOKED_AGAIN_AFTER);
        if now >= self.rate_known + self.options.pause(times) {
            self.rate_doubted = Some(self.rate);
            self.rate = self.rate_best;
        }
    }

    fn disappoint(&mut self, now: Time) {
        self.rate_known = now;
        if let Some(before) = self.rate_doubted.take() {
            self.rate = before;
            self.disappointments = self.disappointments.saturating_add(1);
        }
    }

    /// What is under way is taken back, to be had sooner over another rail. Nothing has come through here
    /// for a while, so this one is no faster than what is under way within that time; but one pause does
    /// not make a fast rail one that is never used again.
    pub fn on_overtaken(&mut self, now: Time) {
        if self.overtaken == Some(self.moved) {
            return;
        }
        self.overtaken = Some(self.moved);
        self.disappoint(now);
        let waited = now.since(self.moved).as_nanos().max(1);
        let bytes = u128::from(self.under_way_bytes) * 1_000_000_000 / waited;
        let seen = u64::try_from(bytes).unwrap_or(u64::MAX);
        let least = (self.rate / RATE_LOSS_MAX).max(RATE_MIN);
        self.rate = self.rate.min(seen.max(least));
        if self.is_rated {
            self.measure();
        }
    }

    /// A slice was refused: the rail is alive, and how fast it is was not seen.
    pub fn on_refused(&mut self, len_bytes: u64, now: Time) {
        self.leave(len_bytes);
        self.failures = 0;
        self.moved = now;
    }

    /// A slice is not under way any more, and was not answered.
    pub fn on_stopped(&mut self, len_bytes: u64) {
        self.leave(len_bytes);
    }

    fn leave(&mut self, len_bytes: u64) {
        let left = self.under_way_bytes.checked_sub(len_bytes);
        self.under_way_bytes = left.expect("no more leaves than was under way");
        self.under_way_slices -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn up(now: Time) -> Rail {
        let mut rail = Rail::new(RailOptions::default());
        assert!(rail.try_connect(now));
        rail.on_connected(now);
        rail
    }

    #[test]
    fn pauses_grow_to_their_bound_and_start_anew_after_bytes() {
        let mut rail = Rail::new(RailOptions::default());
        let mut now = Time::ZERO + MS;
        let mut pauses = Vec::new();
        for _ in 0..13 {
            assert!(rail.try_connect(now));
            assert!(!rail.try_connect(now), "once");
            rail.on_failed(now);
            let RailState::Down { until } = rail.state() else {
                panic!("{rail:?}")
            };
            let before = Time::from_ns(until.as_ns() - 1);
            assert!(!rail.try_connect(before));
            pauses.push(until.since(now).as_millis());
            now = until;
        }
        assert_eq!(pauses[..4], [10, 20, 40, 80]);
        assert_eq!(pauses[12], 10_000);
        assert!(rail.try_connect(now));
        rail.on_connected(now);
        rail.on_sent(1, now);
        rail.on_answered(1, now, now + MS);
        rail.on_failed(now + MS);
        assert_eq!(
            rail.state(),
            RailState::Down {
                until: now + MS * 11
            }
        );
        assert_eq!(rail.connection(), 14);
    }

    fn rated(now: Time) -> Rail {
        let mut rail = up(now);
        rail.on_sent(RATED_BYTES_MIN, now);
        rail.on_answered(RATED_BYTES_MIN, now, now + Duration::from_micros(32));
        rail
    }

    #[test]
    fn a_rail_that_is_not_known_yet_gets_little() {
        let mut rail = up(Time::ZERO);
        let least = RailOptions::default().slice_bytes_min;
        assert_eq!(rail.slice_bytes(), least);
        rail.on_sent(u64::from(least), Time::ZERO);
        rail.on_sent(u64::from(least), Time::ZERO);
        assert!(!rail.has_room());
        rail.on_answered(u64::from(least), Time::ZERO, Time::ZERO + MS);
        assert_eq!(
            rail.bytes_per_second(),
            u64::from(least) * 1000,
            "the first word counts"
        );
        assert!(rail.has_room() && rail.slice_bytes() > least);
    }

    #[test]
    fn what_is_done_in_order_and_told_at_once_says_how_fast_all_of_it_went() {
        let start = Time::ZERO + MS;
        let mut rail = up(start);
        for _ in 0..2 {
            rail.on_sent(64 * 1024, start);
        }
        for ahead in 0..2 {
            rail.on_done_in_order(64 * 1024, ahead * 64 * 1024, start, start + MS);
        }
        let (least, rate) = (64 * 1024 * 1000, rail.bytes_per_second());
        assert!((least..=2 * least).contains(&rate), "{rate}");
    }

    #[test]
    fn a_window_bounds_what_is_under_way_and_lets_one_slice_through() {
        let mut rail = rated(Time::ZERO);
        let window = RailOptions::default().window_bytes_max;
        rail.on_sent(window * 10, Time::ZERO);
        assert!(!rail.has_room(), "one slice, however long, and no second");
        rail.on_answered(window * 10, Time::ZERO, Time::ZERO + MS);
        rail.on_sent(window - 1, Time::ZERO);
        assert!(rail.has_room());
        rail.on_sent(1, Time::ZERO);
        assert!(!rail.has_room());
        rail.on_stopped(1);
        assert!(rail.has_room());
        for _ in 1..RailOptions::default().slices_max {
            rail.on_sent(0, Time::ZERO);
        }
        assert!(!rail.has_room(), "slices are counted too");
        rail.on_failed(Time::ZERO);
        assert_eq!((rail.under_way_bytes(), rail.has_room()), (0, false));
    }

    #[test]
    fn slices_shrink_with_the_rate() {
        let mut rail = rated(Time::ZERO);
        assert_eq!(rail.slice_bytes(), 512 * 1024);
        let mut now = Time::ZERO;
        for _ in 0..40 {
            rail.on_sent(64 * 1024, now);
            rail.on_answered(64 * 1024, now, now + MS);
            now = now + MS;
        }
        let rate = rail.bytes_per_second();
        assert!((60_000_000..70_000_000).contains(&rate), "{rate}");
        assert!((260_000..=270_000).contains(&rail.slice_bytes()));
        for _ in 0..40 {
            rail.on_sent(64 * 1024, now);
            rail.on_answered(64 * 1024, now, now + MS * 100);
            now = now + MS * 100;
        }
        assert_eq!(rail.slice_bytes(), 64 * 1024);
        assert!(rail.finish(650_000) > MS * 900);
        let before = rail.bytes_per_second();
        rail.on_sent(100, now);
        rail.on_answered(100, now, now + MS * 500);
        assert_eq!(
            rail.bytes_per_second(),
            before,
            "a short one says nothing of the rate"
        );
    }

    #[test]
    fn a_rail_that_was_slow_is_looked_at_again_and_less_often_while_it_stays_so() {
        let mut rail = rated(Time::ZERO);
        let fast = rail.bytes_per_second();
        let mut now = Time::ZERO + MS;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            rail.on_sent(64 * 1024, now);
            now = now + MS * 50;
            rail.on_overtaken(now);
            rail.on_stopped(64 * 1024);
            assert!(rail.bytes_per_second() < fast / SLOW_PART);
            let since = now;
            while rail.bytes_per_second() < fast {
                now = now + MS;
                rail.look_again(now);
            }
            pauses.push(now.since(since).as_millis());
        }
        assert_eq!(pauses[..4], [160, 320, 640, 1280]);
        assert_eq!(pauses[8], 10_000);
        // It is as fast as it was, and is known to be soon.
        for _ in 0..20 {
            rail.on_sent(64 * 1024, now);
            rail.on_answered(64 * 1024, now, now + Duration::from_micros(64));
            now = now + MS;
        }
        assert!(rail.bytes_per_second() > fast / SLOW_PART);
        rail.on_sent(64 * 1024, now);
        rail.on_overtaken(now + MS * 50);
        rail.on_stopped(64 * 1024);
        let slow = rail.bytes_per_second();
        rail.look_again(now + MS * 209);
        assert_eq!(rail.bytes_per_second(), slow);
        rail.look_again(now + MS * 210);
        assert_eq!(rail.bytes_per_second(), fast, "after the first pause again");
    }

    #[test]
    fn what_is_slow_and_busy_is_not_looked_at_again() {
        let mut rail = rated(Time::ZERO);
        let mut now = Time::ZERO;
        for _ in 0..30 {
            rail.on_sent(64 * 1024, now);
            now = now + MS * 100;
            rail.on_answered(64 * 1024, now, now);
        }
        let slow = rail.bytes_per_second();
        rail.on_sent(64 * 1024, now);
        rail.look_again(now + MS * 60_000);
        assert_eq!(rail.bytes_per_second(), slow, "what is under way says it");
    }

    #[test]
    fn it_waits_only_while_something_is_under_way() {
        let start = Time::ZERO + MS;
        let mut rail = up(start);
        assert_eq!(rail.waits_since(), None);
        rail.on_sent(5, start + MS);
        rail.on_sent(5, start + MS * 2);
        assert_eq!(rail.waits_since(), Some(start + MS));
        rail.on_answered(5, start, start + MS * 3);
        assert_eq!(rail.waits_since(), Some(start + MS * 3));
        rail.on_answered(5, start, start + MS * 4);
        assert_eq!(rail.waits_since(), None);
    }
}
