//! The thread's end of a lane.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use lunette_kvstore_proto::message::directory::AskerId;
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::arena::{SharedMemory, Words};
use lunette_runtime::net::LocalSender;
use lunette_runtime_core::carve::{Carved, Carver};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::{
    ANSWER, ANSWER_BYTES_MAX, ANSWERED, ASKED, ASKED_FROM, ASLEEP, ENDED, LANE_WINDOW_BYTES,
    LANE_WORDS, OWNER_SLEEPS, PIECE_BYTES, READY, REQUEST, SLOTS_MAX, STATE, STATUS, SUBMITTED,
    VALUE, at, bits_of, processor_word, to_word,
};

/// What takes so long to copy that a core had better wake up meanwhile.
const WOKEN_EARLY_BYTES: usize = 32 << 10;
/// Where values begin in the window: as memory is copied best.
const ALIGN: u32 = 64;

/// A lane to one core of another process. It ends with the channel over which it was opened.
pub(crate) struct Lane {
    seat: Seat,
    version: FormatVersion,
    asker: AskerId,
    timeout: Duration,
    words: Words,
    window: SharedMemory,
    waker: LocalSender,
    state: Mutex<State>,
    is_over: AtomicBool,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("seat", &self.seat)
            .finish_non_exhaustive()
    }
}

/// What is used of a lane.
struct State {
    room: Carver,
    slots: [Option<Slot>; SLOTS_MAX as usize],
    /// Slots that nobody waits for, and that are the core's still.
    abandoned: u64,
    last_request: u64,
    body: Vec<u8>,
}

/// A slot that is used.
#[derive(Clone, Copy)]
struct Slot {
    request: u64,
    part: Carved,
}

/// Who asks, and what is over, for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) asker: AskerId,
    pub(crate) request: RequestId,
    pub(crate) over_below: RequestId,
    pub(crate) version: FormatVersion,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered(WriteAnswer),
    /// Nothing was done.
    Refused(Status),
    /// The lane has ended after the core had looked at it, or there was no answer in time: nobody knows.
    Unanswered,
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct HandedOver {
    lane: Arc<Lane>,
    slot: u32,
    until: Instant,
}

impl Lane {
    /// A lane to this core, whose words these are; with the file of its window. Requests are in this version of the format,
    /// and take no longer than `timeout`.
    ///
    /// # Errors
    /// The system's, and that these are no such words.
    pub(crate) fn new(
        (seat, version): (Seat, FormatVersion),
        (asker, timeout): (AskerId, Duration),
        words: OwnedFd,
        waker: LocalSender,
    ) -> io::Result<(Self, OwnedFd)> {
        let (window, file) = SharedMemory::shared(LANE_WINDOW_BYTES as usize)?;
        let state = State {
            room: Carver::new(LANE_WINDOW_BYTES),
            slots: [None; SLOTS_MAX as usize],
            abandoned: 0,
            last_request: 0,
            body: Vec::new(),
        };
        let lane = Self {
            seat,
            version,
            asker,
            timeout,
            words: Words::map(words, LANE_WORDS).map_err(io::Error::other)?,
            window,
            waker,
            state: Mutex::new(state),
            is_over: AtomicBool::new(false),
        };
        Ok((lane, file))
    }

    pub(crate) const fn seat(&self) -> Seat {
        self.seat
    }

    /// How long a request may take.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request over, with a value of so many bytes: `write` writes the request, and `fill` copies a part of the value
    /// to that place in the window, for each part in turn. `None`, with nothing done, if there is no room for it now, or no
    /// lane any more.
    pub(crate) fn ask(
        self: &Arc<Self>,
        value_len: usize,
        write: impl FnOnce(Asked, &mut Vec<u8>),
        mut fill: impl FnMut(Range<usize>, &SharedMemory, usize),
    ) -> Option<HandedOver> {
        if self.is_over() {
            return None;
        }
        let value_len = u32::try_from(value_len).ok()?;
        let mut state = self.state();
        let slot = state.free_slot(&self.words)?;
        let asked = state.next(self.asker, self.version);
        let mut body = std::mem::take(&mut state.body);
        body.clear();
        write(asked, &mut body);
        let body_len = u32::try_from(body.len()).expect("a request is short");
        let value_at = body_len.next_multiple_of(ALIGN);
        let part = value_at
            .checked_add(value_len)
            .and_then(|len| state.room.alloc(len));
        if let Some(part) = part {
            state.slots[slot as usize] = Some(Slot {
                request: asked.request.0,
                part,
            });
            self.window.copy_in(part.offset_bytes as usize, &body);
        }
        state.body = body;
        drop(state);
        let start = part?.offset_bytes;
        let handed = HandedOver {
            lane: Arc::clone(self),
            slot,
            until: Instant::now() + self.timeout,
        };
        let value = start + value_at..start + value_at + value_len;
        self.words[at(slot, REQUEST)].store(to_word(&(start..start + body_len)), Ordering::Relaxed);
        self.words[at(slot, VALUE)].store(to_word(&value), Ordering::Relaxed);
        let (value_at, value_len) = (value.start as usize, value.len());
        let mut fill_to = |ready: usize| {
            let part = ready..value_len.min(ready + PIECE_BYTES);
            let end = part.end;
            fill(part, &self.window, value_at + ready);
            self.words[at(slot, READY)].store(end as u64, Ordering::Release);
            end
        };
        if value_len > PIECE_BYTES {
            self.words[at(slot, READY)].store(0, Ordering::Relaxed);
            self.submit(slot);
            self.wake_core_early();
            let mut ready = 0;
            while ready < value_len {
                ready = fill_to(ready);
            }
        } else {
            if value_len > WOKEN_EARLY_BYTES {
                self.wake_core_early();
            }
            fill_to(0);
            self.submit(slot);
        }
        // What was written before the look: who sleeps after the look has seen it.
        fence(Ordering::SeqCst);
        self.wake_core();
        Some(handed)
    }

    /// Tells the core of a slot, if it looks.
    fn submit(&self, slot: u32) {
        self.words[at(slot, STATE)].store(ASKED, Ordering::Relaxed);
        self.words[SUBMITTED].fetch_or(1 << slot, Ordering::Release);
    }

    /// A core that sleeps wakes up while this thread copies, unless it would take this thread's processor to do so.
    fn wake_core_early(&self) {
        fence(Ordering::SeqCst);
        if self.words[OWNER_SLEEPS].load(Ordering::Relaxed) != processor_word() {
            self.wake_core();
        }
    }

    fn wake_core(&self) {
        self.words[ASKED_FROM].store(processor_word(), Ordering::Relaxed);
        let sleeps = &self.words[OWNER_SLEEPS];
        if sleeps.load(Ordering::Relaxed) != 0
            && sleeps.swap(0, Ordering::SeqCst) != 0
            && let Err(error) = self.waker.send(&Packet::Wake.encode())
        {
            // Full of wake-ups that were not read yet, or its other end is gone: both are news there.
            tracing::trace!(%error, "a wake-up");
        }
    }

    /// The channel has ended: what is under way is not answered any more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        for slot in 0..SLOTS_MAX {
            let state = &self.words[at(slot, STATE)];
            // Who falls asleep after this sees that it is over.
            let woken = state.compare_exchange(ASLEEP, ENDED, Ordering::SeqCst, Ordering::SeqCst);
            if woken.is_ok() {
                self.words.wake(at(slot, STATE));
            }
        }
    }

    /// Takes back what the core has not looked at and never will, as if it had refused it. Whether that is so: whoever clears a
    /// slot's bit has what was asked there.
    fn take_back(&self, slot: u32) -> bool {
        let bit = 1 << slot;
        if self.words[SUBMITTED].fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return false;
        }
        let status = u64::from(Status::Unavailable.code());
        self.words[at(slot, STATUS)].store(status, Ordering::Relaxed);
        self.words[at(slot, STATE)].store(ANSWERED, Ordering::Release);
        true
    }

    fn is_answered(&self, slot: u32) -> bool {
        is_answered(&self.words, slot)
    }

    /// What a slot says that is answered.
    fn answer(&self, slot: u32) -> Outcome {
        let word = self.words[at(slot, STATUS)].load(Ordering::Relaxed);
        let status = Status::from_code(u16::try_from(word & 0xffff).expect("so many bits"));
        if status != Status::Ok {
            return Outcome::Refused(status);
        }
        let mut bytes = [0; ANSWER_BYTES_MAX];
        for (index, to) in bytes.chunks_exact_mut(8).enumerate() {
            let word = self.words[at(slot, ANSWER + index)].load(Ordering::Relaxed);
            to.copy_from_slice(&word.to_le_bytes());
        }
        let len = usize::try_from(word >> 32).unwrap_or(usize::MAX);
        let answer = bytes
            .get(..len)
            .map(|bytes| WriteAnswer::decode(self.version, bytes));
        match answer {
            Some(Ok(answer)) => Outcome::Answered(answer),
            // It has been done, or not.
            Some(Err(_)) | None => Outcome::Unanswered,
        }
    }
}

fn is_answered(words: &Words, slot: u32) -> bool {
    words[at(slot, STATE)].load(Ordering::Acquire) == ANSWERED
}

impl State {
    /// A slot that is nobody's, if there is one.
    fn free_slot(&mut self, words: &Words) -> Option<u32> {
        for slot in bits_of(self.abandoned) {
            if is_answered(words, slot) {
                self.abandoned &= !(1 << slot);
                self.free(slot);
            }
        }
        let free = self.slots.iter().position(Option::is_none)?;
        u32::try_from(free).ok()
    }

    fn free(&mut self, slot: u32) {
        let used = self.slots[slot as usize].take().expect("it was used");
        let freed = self.room.free(used.part.slot_index, used.part.generation);
        freed.expect("a slot has its part to itself");
    }

    fn next(&mut self, asker: AskerId, version: FormatVersion) -> Asked {
        self.last_request += 1;
        let under_way = self.slots.iter().flatten().map(|slot| slot.request);
        let first = under_way.min().unwrap_or(self.last_request);
        Asked {
            asker,
            request: RequestId(self.last_request),
            over_below: RequestId(first),
            version,
        }
    }
}

impl HandedOver {
    /// What came of it, if that is known: also that it took too long.
    pub(crate) fn look(&self) -> Option<Outcome> {
        if self.lane.is_answered(self.slot) {
            return Some(self.lane.answer(self.slot));
        }
        if !self.lane.is_over() {
            return None;
        }
        // It may have been answered just before.
        Some(
            if self.lane.is_answered(self.slot) || self.lane.take_back(self.slot) {
                self.lane.answer(self.slot)
            } else {
                Outcome::Unanswered
            },
        )
    }

    /// As [`look`](Self::look), after its time is over: `Unanswered` then.
    pub(crate) fn look_late(&self) -> Option<Outcome> {
        let is_late = || Instant::now() >= self.until;
        self.look()
            .or_else(|| is_late().then_some(Outcome::Unanswered))
    }

    /// Sleeps until there is an answer, and no longer than `timeout`, or its time.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let (words, state) = (&self.lane.words, at(self.slot, STATE));
        let left = self.until.saturating_duration_since(Instant::now());
        let slept =
            words[state].compare_exchange(ASKED, ASLEEP, Ordering::SeqCst, Ordering::SeqCst);
        // If it was before, it has woken for no reason, or at its timeout.
        let is_asleep = slept.is_ok() || slept == Err(ASLEEP);
        if is_asleep && !self.lane.is_over() {
            words.sleep(state, ASLEEP, timeout.min(left));
        }
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        if self.lane.is_answered(self.slot) {
            state.free(self.slot);
        } else {
            // It is the core's until it is answered.
            state.abandoned |= 1 << self.slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lunette_runtime::net::{LocalChannel, LocalListener};
    use lunette_runtime::{CoreOptions, block_on};
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::super::tests::stay_here;
    use super::*;

    /// A lane, and what keeps its wake-ups.
    fn lane(name: &str) -> (Arc<Lane>, LocalListener, LocalChannel) {
        let words = Words::new(LANE_WORDS, false).expect("memory");
        let words = words.as_fd().try_clone_to_owned().expect("a descriptor");
        let listener = LocalListener::bind(name.as_bytes()).expect("a name of its own");
        let channel = LocalChannel::connect(name.as_bytes()).expect("it listens");
        let waker = channel.sender().expect("a descriptor");
        let seat = Seat {
            node: NodeId(1),
            incarnation: 1,
            core: CoreIndex(0),
        };
        let who = (AskerId(1), Duration::from_secs(1));
        let lane = Lane::new((seat, FormatVersion(1)), who, words, waker).expect("words");
        (Arc::new(lane.0), listener, channel)
    }

    /// Of what a core has not looked at when its lane ends it is known that nothing was done; not of what it has.
    #[test]
    fn what_nobody_has_looked_at_is_taken_back_when_the_lane_ends() {
        let name = format!("lunette-lane-ends-{}", std::process::id());
        block_on(None, CoreOptions::default(), move || async move {
            let (lane, _listener, _channel) = lane(&name);
            let ask = || {
                lane.ask(10, |_, _| {}, |_, _, _| {})
                    .expect("there is room")
            };
            let looked_at = ask();
            assert_eq!(lane.words[SUBMITTED].swap(0, Ordering::Acquire), 1);
            let unseen = ask();
            assert_eq!((looked_at.look(), unseen.look()), (None, None));
            lane.end();
            for _twice in 0..2 {
                assert_eq!(looked_at.look(), Some(Outcome::Unanswered));
                assert_eq!(unseen.look(), Some(Outcome::Refused(Status::Unavailable)));
            }
            assert_eq!(
                lane.words[SUBMITTED].load(Ordering::Acquire),
                0,
                "it is not seen any more"
            );
        })
        .expect("a core");
    }

    #[test]
    fn a_core_that_sleeps_is_woken_early_unless_it_would_take_this_threads_processor() {
        let name = format!("lunette-lane-early-{}", std::process::id());
        block_on(None, CoreOptions::default(), move || async move {
            stay_here();
            let (lane, _listener, _channel) = lane(&name);
            let here = processor_word();
            for len_bytes in [WOKEN_EARLY_BYTES, WOKEN_EARLY_BYTES + 1, PIECE_BYTES + 1] {
                for slept_at in [here, here + 1] {
                    let sleeps = &lane.words[OWNER_SLEEPS];
                    sleeps.store(slept_at, Ordering::Relaxed);
                    let mut slept_on = Vec::new();
                    let fill = |_, _: &SharedMemory, _| {
                        slept_on.push(sleeps.load(Ordering::Relaxed) != 0);
                    };
                    let asked = lane.ask(len_bytes, |_, _| {}, fill);
                    assert!(asked.is_some(), "there is room");
                    let is_early = len_bytes > WOKEN_EARLY_BYTES && slept_at != here;
                    assert!(slept_on.iter().all(|&on| on != is_early), "{len_bytes}");
                    assert_eq!(sleeps.load(Ordering::Relaxed), 0, "it is woken in the end");
                    assert_eq!(lane.words[ASKED_FROM].load(Ordering::Relaxed), here);
                }
            }
        })
        .expect("a core");
    }
}
