//! What happens at the devices of a fake machine.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use lunette_gpu_proto::fault::Fault as Code;
use lunette_gpu_proto::kernel::Job;
use lunette_gpu_proto::sums::{self, Stripe, SumJob};
use lunette_gpu_proto::transfer::PagePair;
use lunette_runtime::Signal;
use lunette_runtime_core::random::{SplitMix64, mix};
use lunette_runtime_core::time::Time;

use super::memory::{Memory, User};
use super::stream::{Queued, StreamState, Work};
use super::{DEVICES_MAX, FakeCounts, FakeOptions, Fault};
use crate::provider::{Address, RawCopy};

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const LOST: u32 = 46;
/// The operating system's refusal.
const REFUSED: u32 = 304;

#[derive(Debug)]
pub(super) struct Device {
    pub(super) options: FakeOptions,
    is_lost: bool,
    slow_times: u32,
    kernels_wait: Duration,
    refuses_pins: bool,
    is_out_of_memory: bool,
    is_unrecorded: bool,
    /// Copies and launches until one is refused, and its code.
    refuses: Option<(u32, u32)>,
    poisons: VecDeque<u32>,
}

/// Where an event is.
#[derive(Clone, Copy, Debug)]
enum EventState {
    /// Not recorded since it was made.
    Fresh,
    Recorded,
    Come(Time),
    Gone,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) memory: Memory,
    devices: Vec<Device>,
    /// What each context died of.
    contexts: Vec<Option<u32>>,
    streams: Vec<Option<StreamState>>,
    events: Vec<EventState>,
    random: SplitMix64,
    next_number: u64,
    last_ended: u64,
    counts: FakeCounts,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            memory: Memory::new(),
            devices: Vec::new(),
            contexts: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            random: SplitMix64::new(seed),
            next_number: 0,
            last_ended: 0,
            counts: FakeCounts {
                hash: seed,
                ..FakeCounts::default()
            },
        }
    }

    pub(super) fn add_device(&mut self, options: FakeOptions) -> usize {
        assert!(self.devices.len() < DEVICES_MAX, "devices are bounded");
        self.devices.push(Device {
            options,
            is_lost: false,
            slow_times: 1,
            kernels_wait: Duration::ZERO,
            refuses_pins: false,
            is_out_of_memory: false,
            is_unrecorded: false,
            refuses: None,
            poisons: VecDeque::new(),
        });
        self.devices.len() - 1
    }

    pub(super) fn device(&self, index: usize) -> &Device {
        &self.devices[index]
    }

    pub(super) const fn device_count(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn counts(&self) -> FakeCounts {
        FakeCounts {
            allocations: self.memory.allocations(),
            ..self.counts
        }
    }

    pub(super) fn inject(&mut self, device: usize, fault: Fault) {
        let found = &mut self.devices[device];
        match fault {
            Fault::OutOfMemory => found.is_out_of_memory = true,
            Fault::PinRefused => found.refuses_pins = true,
            Fault::Unrecorded => found.is_unrecorded = true,
            Fault::Refused { after, code } => found.refuses = Some((after, code)),
            Fault::Poisoned { code } => found.poisons.push_back(code),
            Fault::Lost => found.is_lost = true,
            Fault::Slow { times } => found.slow_times = times.max(1),
            Fault::Crowded { wait } => found.kernels_wait = wait,
        }
        if fault == Fault::Lost {
            let streams = self.streams.iter_mut().flatten();
            for stream in streams.filter(|stream| stream.user.device == device) {
                stream.line.clear();
            }
        }
    }

    pub(super) fn add_context(&mut self) -> u32 {
        self.contexts.push(None);
        u32::try_from(self.contexts.len() - 1).expect("contexts are few")
    }

    /// What everything of this context answers with, once it is dead.
    pub(super) fn alive(&self, user: User) -> Result<(), Code> {
        if self.devices[user.device].is_lost {
            return Err(Code::Lost(LOST));
        }
        let dead = self.contexts[user.context as usize];
        dead.map_or(Ok(()), |code| Err(Code::from_code(code)))
    }

    pub(super) fn alloc(&mut self, user: User, len: u64, share: bool) -> Result<(u64, u64), Code> {
        self.alive(user)?;
        let device = &mut self.devices[user.device];
        if share && !device.options.has_shareable {
            return Err(Code::Unsupported(801));
        }
        if std::mem::take(&mut device.is_out_of_memory) {
            return Err(Code::OutOfMemory);
        }
        let limit = device.options.memory_bytes;
        self.memory.alloc(user, len, (limit, share))
    }

    pub(super) fn pin(&mut self, user: User, start: u64, len: u64) -> Result<u64, Code> {
        self.alive(user)?;
        if self.devices[user.device].refuses_pins {
            return Err(Code::Refused(REFUSED));
        }
        self.memory.pin(user.context, start, len)
    }

    pub(super) fn add_stream(&mut self, user: User) -> (usize, Rc<Signal>) {
        let state = StreamState::new(user);
        let changed = Rc::clone(&state.changed);
        self.streams.push(Some(state));
        (self.streams.len() - 1, changed)
    }

    pub(super) fn remove_stream(&mut self, stream: usize) {
        let state = self.streams[stream].take().expect("a stream ends once");
        // Calls to the host may still be in line: they name no memory.
        assert!(
            !state.moves() || self.alive(state.user).is_err(),
            "a stream moves nothing when it ends"
        );
        state.changed.raise();
    }

    pub(super) fn add_event(&mut self) -> usize {
        self.events.push(EventState::Fresh);
        self.events.len() - 1
    }

    pub(super) fn remove_event(&mut self, event: usize) {
        self.events[event] = EventState::Gone;
    }

    /// Whether an event has come. One that was never recorded has.
    pub(super) fn has_come(&self, event: usize) -> bool {
        match self.events[event] {
            EventState::Fresh | EventState::Come(_) => true,
            EventState::Recorded => false,
            EventState::Gone => unreachable!("an event that is gone is not asked"),
        }
    }

    fn come_at(&self, event: usize) -> Option<Time> {
        match self.events[event] {
            EventState::Fresh => Some(Time::ZERO),
            EventState::Come(at) => Some(at),
            EventState::Recorded => None,
            EventState::Gone => unreachable!("an event that is gone is not waited for"),
        }
    }

    fn user_of(&self, stream: usize) -> User {
        self.streams[stream].as_ref().expect("a live stream").user
    }

    /// Queues a piece of work.
    pub(super) fn queue(&mut self, stream: usize, work: Work, now: Time) -> Result<(), Code> {
        let user = self.user_of(stream);
        self.alive(user)?;
        let moves = match &work {
            Work::Copy(copy) => Some(copy.len as u64),
            Work::Launch(job) => Some(bytes_of(job)),
            Work::Sum(job) => Some(u64::from(job.stripes) * sums::STRIPE_BYTES as u64),
            _ => None,
        };
        if moves.is_some() {
            self.admit(user)?;
        }
        if let Work::Record(event) = work {
            if std::mem::take(&mut self.devices[user.device].is_unrecorded) {
                return Err(Code::Code(1));
            }
            self.events[event] = EventState::Recorded;
        }
        let mut takes = moves.map_or(Duration::ZERO, |bytes| self.time_of(user, bytes));
        if matches!(work, Work::Launch(_) | Work::Sum(_)) {
            takes += self.devices[user.device].kernels_wait;
        }
        self.next_number += 1;
        let queued = Queued {
            work,
            since: now,
            takes,
            number: self.next_number,
        };
        let state = self.streams[stream].as_mut().expect("a live stream");
        state.line.push_back(queued);
        for stream in self.streams.iter().flatten() {
            stream.changed.raise();
        }
        Ok(())
    }

    /// Whether a copy or launch is taken.
    fn admit(&mut self, user: User) -> Result<(), Code> {
        let refuses = &mut self.devices[user.device].refuses;
        match refuses {
            None => Ok(()),
            Some((0, code)) => {
                let fault = Code::from_code(*code);
                assert!(!fault.is_sticky(), "that is what Fault::Poisoned is for");
                *refuses = None;
                Err(fault)
            }
            Some((after, _)) => {
                *after -= 1;
                Ok(())
            }
        }
    }

    fn time_of(&mut self, user: User, bytes: u64) -> Duration {
        let device = &self.devices[user.device];
        let (least, most) = device.options.latency;
        let spread = most.saturating_sub(least).as_nanos();
        let spread = u32::try_from(spread).unwrap_or(u32::MAX - 1);
        let extra = Duration::from_nanos(u64::from(self.random.below(spread + 1)));
        let rate = device.options.bytes_per_second.max(1);
        let moving = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let moving = Duration::from_nanos(u64::try_from(moving).unwrap_or(u64::MAX));
        (least + extra + moving) * device.slow_times
    }

    fn pairs_of(&self, user: User, job: &Job) -> Vec<PagePair> {
        let (at, count) = job.pairs();
        let at = self.memory.kernel_address(user, at, u64::from(count) * 8);
        let bytes = self.memory.read(user, at, count as usize * 8);
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let pair = |bytes: &[u8]| PagePair {
            from: word(&bytes[..4]),
            to: word(&bytes[4..]),
        };
        bytes.chunks_exact(8).map(pair).collect()
    }

    /// When anything happens next.
    fn next_due(&self) -> Option<(Time, usize)> {
        let streams = self.streams.iter().enumerate();
        let due = streams.filter_map(|(index, state)| {
            let state = state.as_ref()?;
            let at = state.due(|event| self.come_at(event))?;
            Some((at, index))
        });
        due.min()
    }

    /// When a stream is to be looked at although its core sleeps: as on a real machine, only where
    /// somebody asked to be called.
    pub(super) fn alarm(&self, stream: usize) -> Option<Option<Time>> {
        let state = self.streams[stream].as_ref()?;
        if !state.notifies() {
            return Some(None);
        }
        let due = state.notice_due(|event| self.come_at(event));
        // What it waits for is looked for whenever anything happens.
        Some(due.or_else(|| self.next_due().map(|(at, _)| at)))
    }

    /// Everything that has happened by now.
    pub(super) fn advance(&mut self, now: Time) {
        while let Some((at, stream)) = self.next_due() {
            if at > now {
                return;
            }
            self.step(stream, at);
        }
    }

    /// Everything that is queued in a stream, whatever time it takes.
    pub(super) fn finish(&mut self, stream: usize) -> Result<(), Code> {
        let user = self.user_of(stream);
        let is_busy = |world: &Self| {
            let state = world.streams[stream].as_ref();
            state.is_some_and(|state| !state.line.is_empty())
        };
        while is_busy(self) {
            let (at, next) = self.next_due().expect("a stream that waits for ever");
            self.step(next, at);
        }
        self.alive(user)
    }

    fn step(&mut self, stream: usize, at: Time) {
        let state = self.streams[stream].as_mut().expect("a live stream");
        let user = state.user;
        let queued = state.line.pop_front().expect("it is due");
        state.free_at = at;
        self.counts.overtakings += u64::from(queued.number < self.last_ended);
        self.last_ended = queued.number;
        self.counts.hash = mix(self.counts.hash ^ queued.number ^ (stream as u64) << 48);
        match queued.work {
            Work::Copy(copy) => self.execute(user, |world| world.copy(user, &copy)),
            Work::Launch(job) => self.execute(user, |world| world.launch(user, &job)),
            Work::Sum(job) => self.execute(user, |world| world.sum(user, &job)),
            Work::Record(event) => self.events[event] = EventState::Come(at),
            Work::Wait(_) => {}
            Work::Notify(waker) => {
                self.counts.wakes += 1;
                waker.wake();
            }
        }
    }

    /// Does it, unless that is what the context dies of.
    fn execute(&mut self, user: User, work: impl FnOnce(&mut Self)) {
        let Some(code) = self.devices[user.device].poisons.pop_front() else {
            return work(self);
        };
        assert!(Code::from_code(code).is_sticky(), "a code that is survived");
        self.contexts[user.context as usize] = Some(code);
        let streams = self.streams.iter_mut().flatten();
        for stream in streams.filter(|stream| stream.user == user) {
            stream.line.clear();
        }
    }

    fn copy(&mut self, user: User, copy: &RawCopy) {
        self.counts.copies += 1;
        let is_pinned = self.memory.copy(user, copy.from, copy.to, copy.len);
        self.counts.unpinned += u64::from(!is_pinned);
    }

    fn launch(&mut self, user: User, job: &Job) {
        self.counts.launches += 1;
        let pairs = self.pairs_of(user, job);
        let copies: Vec<_> = job.copies(&pairs).collect();
        for (from, to, len) in copies {
            let place = |address| self.memory.kernel_address(user, address, len);
            let (from, to): (Address, Address) = (place(from), place(to));
            let len = usize::try_from(len).expect("a piece fits");
            self.memory.copy(user, from, to, len);
        }
    }

    /// Copies each stripe and tells its remainder.
    fn sum(&mut self, user: User, job: &SumJob) {
        // What has nothing to do is a look.
        self.counts.launches += u64::from(job.stripes > 0);
        let place =
            |memory: &Memory, address, len: usize| memory.kernel_address(user, address, len as u64);
        for index in 0..u64::from(job.stripes) {
            let memory = &self.memory;
            let entry_at = job.list_at + index * sums::ENTRY_BYTES as u64;
            let entry = memory.read(
                user,
                place(memory, entry_at, sums::ENTRY_BYTES),
                sums::ENTRY_BYTES,
            );
            let Stripe {
                from,
                to,
                len_bytes,
            } = Stripe::from_bytes(&entry.try_into().expect("as long as an entry"));
            let bytes = memory.read(user, place(memory, from, len_bytes), len_bytes);
            memory.write(user, place(memory, to, len_bytes), &bytes);
            let sum_at = job.sums_at + index * sums::SUM_BYTES as u64;
            let told = sums::remainder(&bytes).to_le_bytes();
            memory.write(user, place(memory, sum_at, told.len()), &told);
        }
    }

    pub(super) fn batched(&mut self) {
        self.counts.batches += 1;
    }
}

/// About as much as a launch moves: its list may not have been written yet.
fn bytes_of(job: &Job) -> u64 {
    let (_, pairs) = job.pairs();
    let page = job.copies(&[PagePair { from: 0, to: 0 }]);
    page.map(|(_, _, len)| len).sum::<u64>() * u64::from(pairs)
}
