//! The core's end of its lanes.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{WAIT_MS_MAX, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::version::Form;
use lunette_runtime::arena::{Exposed, Words};
use lunette_runtime::{Signal, Source, SourceGuard, add_source, asked_from, spawn_local, time};
use lunette_runtime_core::checksum::joined_crc32c;
use lunette_transfer::WriteSource;

use super::super::core::MemberCore;
use super::super::direct::AtOnce;
use super::super::lending::Placed;
use super::super::local::Put;
use super::super::service::WAITERS_MAX;
use super::{
    ANSWER, ANSWER_BYTES_MAX, ANSWERED, ASKED_FROM, ASLEEP, HANDED_BYTES_MAX, LANE_WINDOW_BYTES,
    LANE_WORDS, OWNER_SLEEPS, PIECE_BYTES, READY, REQUEST, STATE, STATUS, SUBMITTED, VALUE, at,
    bits_of, from_word, processor_word,
};
use crate::counting::{CopyCounts, Outcome};
use crate::value::Value;

/// Lanes of one core; who asks for a further one goes over its connection.
const LANES_MAX: usize = 64;
/// Bytes that are copied for one lane before others get their turn.
const TURN_BYTES: usize = 1 << 20;
/// How often it is looked in vain for more of a value before its core does something else meanwhile.
const LOOKS_MAX: u32 = 1000;
/// For how long that is.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a thread on this core's processor has it to itself at most, while it copies.
const OTHERS_TURN: Duration = Duration::from_micros(200);

/// The lanes of a core, polled by it as one source.
#[derive(Debug, Default)]
pub(in crate::member) struct Lanes {
    taken: RefCell<Vec<Rc<OwnerLane>>>,
    /// While there are any.
    guard: RefCell<Option<SourceGuard>>,
}

/// One lane, as its core has it.
struct OwnerLane {
    words: Words,
    window: OnceCell<Exposed>,
    /// Slots that were looked at, and are not answered.
    under_way: Cell<u64>,
    /// Slots that are to be looked at.
    left: Cell<u64>,
    /// Raised when its client does not keep to the rules.
    broken: Signal,
    is_broken: Cell<bool>,
    /// Raised when the thread has woken its core.
    woken: Signal,
    /// Its channel has ended.
    is_over: Cell<bool>,
}

impl fmt::Debug for OwnerLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerLane")
            .field("under_way", &self.under_way.get())
            .finish_non_exhaustive()
    }
}

/// A lane for as long as its channel lasts.
pub(in crate::member) struct Taken {
    core: Rc<MemberCore>,
    lane: Rc<OwnerLane>,
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&self.lane).finish()
    }
}

impl Taken {
    /// One more; `None` if there are as many as there may be.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::member) fn begin(core: &Rc<MemberCore>) -> io::Result<Option<Self>> {
        let lanes = &core.lanes;
        if lanes.taken.borrow().len() >= LANES_MAX || core.has_left() {
            return Ok(None);
        }
        let lane = Rc::new(OwnerLane::new()?);
        let mut guard = lanes.guard.borrow_mut();
        if guard.is_none() {
            let source = LaneSource(Rc::downgrade(core));
            *guard = Some(add_source(source).map_err(|_| io::ErrorKind::QuotaExceeded)?);
        }
        lanes.taken.borrow_mut().push(Rc::clone(&lane));
        let core = Rc::clone(core);
        Ok(Some(Self { core, lane }))
    }

    /// The file of its words, for who asks.
    pub(in crate::member) fn words(&self) -> io::Result<OwnedFd> {
        self.lane.words.as_fd().try_clone_to_owned()
    }

    /// Joins the window that who asks has handed out. Whether it is one, and the first.
    pub(in crate::member) fn open_window(&self, file: OwnedFd, len_bytes: u64) -> bool {
        if len_bytes != u64::from(LANE_WINDOW_BYTES) {
            return false;
        }
        let refused = |error: &_| tracing::debug!(%error, "a window is not mapped");
        let window = Exposed::join(file, LANE_WINDOW_BYTES as usize).inspect_err(refused);
        window.is_ok_and(|window| self.lane.window.set(window).is_ok())
    }

    /// Ends when who asks does not keep to the rules.
    pub(in crate::member) async fn broken(&self) {
        self.lane.broken.raised().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.lane.is_over.set(true);
        self.lane.refuse_the_rest();
        let lanes = &self.core.lanes;
        let mut taken = lanes.taken.borrow_mut();
        taken.retain(|lane| !Rc::ptr_eq(lane, &self.lane));
        if taken.is_empty() {
            drop(taken);
            let guard = lanes.guard.take();
            drop(guard);
        }
    }
}

impl OwnerLane {
    /// One of which nobody has the words yet, nor has given it a window.
    fn new() -> io::Result<Self> {
        Ok(Self {
            words: Words::new(LANE_WORDS, false)?,
            window: OnceCell::new(),
            under_way: Cell::new(0),
            left: Cell::new(0),
            broken: Signal::default(),
            is_broken: Cell::new(false),
            woken: Signal::default(),
            is_over: Cell::new(false),
        })
    }

    /// Looks at what has been asked, up to its turn's bound; how many requests that were.
    fn poll(self: &Rc<Self>, core: &Rc<MemberCore>, budget: usize) -> usize {
        let words = &self.words;
        if words[SUBMITTED].load(Ordering::Relaxed) != 0 {
            let asked = words[SUBMITTED].swap(0, Ordering::Acquire);
            self.note_asked();
            if asked & (self.under_way.get() | self.left.get()) != 0 {
                self.give_up();
            }
            self.left.set(self.left.get() | asked);
        }
        let Some(window) = self.window.get().filter(|_| self.left.get() != 0) else {
            return 0;
        };
        let (mut done, mut bytes) = (0, 0);
        for slot in bits_of(self.left.get()) {
            if done >= budget || bytes >= TURN_BYTES || self.is_broken.get() {
                break;
            }
            self.left.set(self.left.get() & !(1 << slot));
            self.under_way.set(self.under_way.get() | 1 << slot);
            bytes += self.serve(core, window, slot);
            done += 1;
        }
        done
    }

    /// Refuses what has not been begun.
    fn refuse_the_rest(&self) {
        let asked = self.words[SUBMITTED].swap(0, Ordering::Acquire);
        let unbegun = (asked | self.left.take()) & !self.under_way.get();
        self.under_way.set(self.under_way.get() | unbegun);
        for slot in bits_of(unbegun) {
            self.answer(slot, Err(Status::WrongSeat));
        }
    }

    /// The thread has asked, or woken the core.
    fn note_asked(&self) {
        let from = self.words[ASKED_FROM].load(Ordering::Relaxed);
        if let Some(Ok(processor)) = from.checked_sub(1).map(usize::try_from) {
            asked_from(processor);
        }
    }

    /// Does what a slot asks for; how many bytes that took.
    fn serve(self: &Rc<Self>, core: &Rc<MemberCore>, window: &Exposed, slot: u32) -> usize {
        let part = |word| {
            let part = from_word(self.words[at(slot, word)].load(Ordering::Relaxed))?;
            Some(window.slice(part.start as usize, part.len()))
        };
        let (Some(body), Some(value)) = (part(REQUEST), part(VALUE)) else {
            self.give_up();
            return 0;
        };
        let len_bytes = value.len();
        // Looked at once: it may be another one afterwards.
        let body = body.to_vec();
        if len_bytes > PIECE_BYTES {
            let (lane, core) = (Rc::clone(self), Rc::clone(core));
            let written = spawn_local(async move {
                let served = lane.write_long(&core, slot, &body, value).await;
                lane.answer_with(slot, served);
            });
            if written.is_finished() {
                // There is no room for its task.
                self.answer(slot, Err(Status::Busy));
            }
            return PIECE_BYTES;
        }
        self.answer_with(slot, self.write(core, slot, &body, (&value, None)));
        len_bytes
    }

    fn answer_with(&self, slot: u32, served: Result<Served, Status>) {
        match served {
            Ok(Served::Done(version, answer)) => self.answer(slot, Ok((version, answer))),
            Ok(Served::Waits) => {}
            Err(status) => self.answer(slot, Err(status)),
        }
    }

    /// As [`write`](Self::write), of what is still being copied to the window.
    async fn write_long(
        self: &Rc<Self>,
        core: &Rc<MemberCore>,
        slot: u32,
        body: &[u8],
        value: Exposed,
    ) -> Result<Served, Status> {
        let message = checked(core, body, value.len())?;
        let until = time::now() + Duration::from_millis(message.wait_ms.min(WAIT_MS_MAX).into());
        let len_bytes = u32::try_from(value.len()).expect("just checked");
        let room = core.lend_room(message.key, len_bytes, message.retention.pin);
        let mut room = room.ok_or(Status::Full)?;
        let (mut copied, mut crc32c, mut looks) = (0, None, 0);
        while copied < value.len() {
            let ready = self.words[at(slot, READY)].load(Ordering::Acquire);
            let ready = usize::try_from(ready).map_or(value.len(), |ready| ready.min(value.len()));
            let Some(count) = ready.checked_sub(copied).filter(|count| *count > 0) else {
                if self.is_over.get() || time::now() >= until {
                    return Err(Status::Busy);
                }
                looks += 1;
                self.more(looks).await;
                continue;
            };
            let count = count.min(PIECE_BYTES);
            let to = &mut room.value_mut()[copied..copied + count];
            let then = value.slice(copied, count).copy_out_summed(0, to);
            crc32c = Some(crc32c.map_or(then, |sum| joined_crc32c(sum, then, count as u64)));
            (copied, looks) = (copied + count, 0);
            time::yield_now().await;
        }
        let placed = core.filled(room, crc32c.expect("what is long has pieces"));
        self.write(core, slot, body, (&value, Some(&placed)))
    }

    /// Waits until there may be more of what is being copied.
    async fn more(&self, looks: u32) {
        if self.words[ASKED_FROM].load(Ordering::Relaxed) == processor_word() {
            // Who copies does not run while this core does. Should its wake-up be missed, that is not for long.
            let woken = time::timeout(OTHERS_TURN, self.woken.raised()).await;
            tracing::trace!(?woken, "a thread has copied");
        } else if looks < LOOKS_MAX {
            time::yield_now().await;
        } else {
            time::sleep(PAUSE).await;
        }
    }

    /// Puts an object as tasks of this core do.
    fn write(
        self: &Rc<Self>,
        core: &Rc<MemberCore>,
        slot: u32,
        body: &[u8],
        (value, placed): (&Exposed, Option<&Placed>),
    ) -> Result<Served, Status> {
        let message = checked(core, body, value.len())?;
        let version = FormatVersion::of(body).map_err(|_fault| Status::BadRequest)?;
        CopyCounts::add(&core.copies.handed_over);
        let value = Value::gathered(vec![WriteSource::Exposed(value.clone())]);
        let (key, ask) = (message.key, message.ask());
        match core.put_at_once(key, (&value, placed), ask) {
            AtOnce::Done(answer) => return Ok(Served::Done(version, answer)),
            AtOnce::NoRoom => return Err(Status::Full),
            AtOnce::Unsure => {}
        }
        core.over(message.asker, message.over_below);
        let asked = (message.asker, message.request);
        let put = core.put_here(asked, key, (&value, placed), (ask, true));
        match put {
            Some(Put::Done(answer)) => Ok(Served::Done(version, answer)),
            Some(Put::Waits(waiting, mut counting)) => {
                let lane = Rc::clone(self);
                let waits = spawn_local(async move {
                    let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
                    counting.end(Outcome::from(&answer));
                    lane.answer(slot, Ok((version, answer)));
                });
                if waits.is_finished() {
                    // There is no room for its task: the write goes on without.
                    self.answer(slot, Ok((version, WriteAnswer::Interrupted)));
                }
                Ok(Served::Waits)
            }
            None => Err(Status::Full),
        }
    }

    /// Answers a slot, which is its client's again.
    fn answer(&self, slot: u32, answer: Result<(FormatVersion, WriteAnswer), Status>) {
        let under_way = self.under_way.get();
        if under_way & 1 << slot == 0 {
            return;
        }
        let mut bytes = Vec::with_capacity(ANSWER_BYTES_MAX);
        let status = match answer {
            Ok((version, answer)) => {
                answer.encode(version, &mut bytes);
                Status::Ok
            }
            Err(status) => status,
        };
        assert!(bytes.len() <= ANSWER_BYTES_MAX, "an answer is short");
        let word = u64::from(status.code()) | (bytes.len() as u64) << 32;
        self.words[at(slot, STATUS)].store(word, Ordering::Relaxed);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; size_of::<u64>()];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word);
            self.words[at(slot, ANSWER + index)].store(word, Ordering::Relaxed);
        }
        self.under_way.set(under_way & !(1 << slot));
        let state = &self.words[at(slot, STATE)];
        let before = state.swap(ANSWERED, Ordering::AcqRel);
        if before == ASLEEP {
            self.words.wake(at(slot, STATE));
        }
    }

    fn give_up(&self) {
        if !self.is_broken.replace(true) {
            self.broken.raise();
        }
    }

    fn has_work(&self) -> bool {
        let asked = self.words[SUBMITTED].load(Ordering::Acquire);
        (asked != 0 || self.left.get() != 0) && self.window.get().is_some() && !self.is_broken.get()
    }
}

/// A request that makes sense, with a value of so many bytes.
fn checked<'a>(
    core: &MemberCore,
    body: &'a [u8],
    value_len: usize,
) -> Result<WriteMessage<'a>, Status> {
    let message = WriteMessage::decode(body).map_err(|_fault| Status::BadRequest)?;
    if message.form != Form::Whole || value_len > HANDED_BYTES_MAX {
        return Err(Status::BadRequest);
    }
    if message.to != core.seat() || core.has_left() || core.is_leaving() {
        return Err(Status::WrongSeat);
    }
    if core.writes.len() >= WAITERS_MAX {
        return Err(Status::Busy);
    }
    Ok(message)
}

/// What came of a request.
enum Served {
    Done(FormatVersion, WriteAnswer),
    /// It is answered later.
    Waits,
}

struct LaneSource(Weak<MemberCore>);

impl Source for LaneSource {
    fn poll(&mut self, budget: usize) -> usize {
        let Some(core) = self.0.upgrade() else {
            return 0;
        };
        let mut done = 0;
        // One that ends meanwhile moves the others.
        for index in 0..LANES_MAX {
            let lane = core.lanes.taken.borrow().get(index).map(Rc::clone);
            let Some(lane) = lane else {
                break;
            };
            done += lane.poll(&core, budget);
        }
        done
    }

    fn try_park(&mut self) -> bool {
        let Some(core) = self.0.upgrade() else {
            return true;
        };
        let taken = core.lanes.taken.borrow();
        let here = processor_word();
        for lane in taken.iter() {
            lane.words[OWNER_SLEEPS].store(here, Ordering::Relaxed);
        }
        // That we may sleep before the look: who submits after the look sees that we may.
        fence(Ordering::SeqCst);
        let has_work = taken.iter().any(|lane| lane.has_work());
        drop(taken);
        if has_work {
            self.unpark();
        }
        !has_work
    }

    fn unpark(&mut self) {
        if let Some(core) = self.0.upgrade() {
            for lane in core.lanes.taken.borrow().iter() {
                let sleeps = &lane.words[OWNER_SLEEPS];
                if sleeps.load(Ordering::Relaxed) == 0 {
                    lane.note_asked();
                    lane.woken.raise();
                }
                sleeps.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use lunette_runtime::{CoreOptions, block_on};

    use super::super::tests::stay_here;
    use super::*;

    /// Whether the core looks again within a few turns.
    async fn looks_soon(lane: &OwnerLane) -> bool {
        let mut more = pin!(lane.more(1));
        for _ in 0..4 {
            let is_ready = poll_fn(|cx| Poll::Ready(more.as_mut().poll(cx).is_ready()));
            if is_ready.await {
                return true;
            }
            time::yield_now().await;
        }
        false
    }

    #[test]
    fn a_core_leaves_its_processor_to_the_thread_that_copies_there() {
        block_on(None, CoreOptions::default(), || async {
            stay_here();
            let lane = OwnerLane::new().expect("memory");
            let from = |word| lane.words[ASKED_FROM].store(word, Ordering::Relaxed);
            for elsewhere in [0, processor_word() + 1] {
                from(elsewhere);
                assert!(looks_soon(&lane).await);
            }
            from(processor_word());
            let mut left_it = 0;
            for _ in 0..100 {
                left_it += u32::from(!looks_soon(&lane).await);
                // The thread has copied.
                lane.woken.raise();
                assert!(looks_soon(&lane).await);
            }
            // Others may have had the processor in between, for as long as it waits at most.
            assert!(left_it > 50, "it has left it {left_it} times");
        })
        .expect("a core");
    }
}
