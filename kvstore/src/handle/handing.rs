//! Objects that threads put at another process's cores themselves, past their own process's core, which neither carries them
//! nor wakes for them: on this host by memory that both share, on others, where they are short, by [lines](super::lines).

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{Scattered, WAIT_MS_MAX, WriteMessage};
use lunette_kvstore_proto::placement::home_of;
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{Patience, Pending, SPIN};

use super::StoreHandle;
use super::cores::{Cores, work_of};
use super::devices::{Copied, are_of_device};
use super::hosted::Until;
use super::lent::Lent;
use super::placing::{Filled, ToPut};
use super::round::{Ended, Round};
use super::sending::{Sent, send};
use crate::cluster_client::{Among, PutOptions, Stored, parts_of, retention_in, stored_as};
use crate::error::{StoreError, StoreErrorKind};
use crate::member::{HANDED_BYTES_MAX, HandedOver, Lane, Outcome};

/// Looks in between which the clock is not read.
const LOOKS: u32 = 32;

/// Objects whose bytes are being copied from devices at a time.
const COPYING_MAX: usize = 64;

/// Objects that are being put. See [`StoreHandle::hand_over`].
#[must_use = "what is left is not put unless it is finished"]
pub struct Handing {
    cores: Arc<Cores>,
    begun: Instant,
    until: Until,
    options: PutOptions,
    /// What lies in memory of a device and is to be copied to where this thread reads it, the next one last.
    of_devices: Vec<Object>,
    /// What is being copied so, in that order.
    copying: VecDeque<(Object, Pending<Result<Copied, StoreError>>)>,
    /// What is to be handed over, the next one last.
    left: Vec<Object>,
    /// What has been, in that order.
    asked: VecDeque<(Object, HandedOver)>,
    /// What has been sent to other hosts.
    sending: Round<Sent>,
    /// What cores are to put.
    others: Vec<Object>,
    stored: Vec<Option<Result<Stored, StoreError>>>,
}

/// One of the objects.
pub(super) struct Object {
    index: usize,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<Lent>,
    pub(super) among: Among,
    /// The value's bytes, if it is a device's.
    copied: Option<Copied>,
}

impl Object {
    pub(super) fn len_bytes(&self) -> usize {
        self.value.iter().map(Lent::len).sum()
    }

    /// How it is put, where that is how all are.
    pub(super) fn options(&self, options: &PutOptions) -> PutOptions {
        PutOptions {
            group: self.among.group.or(options.group),
            behind: self.among.behind.or(options.behind),
            ..*options
        }
    }
}

impl fmt::Debug for Handing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handing")
            .field("of_devices", &(self.of_devices.len() + self.copying.len()))
            .field("left", &self.left.len())
            .field("asked", &self.asked.len())
            .field("homes", &self.sending.len())
            .finish_non_exhaustive()
    }
}

impl StoreHandle {
    /// Whether this process has [met](crate::ClusterClient::one_sided) another one on this host that lets threads put objects
    /// by memory that both share.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.cores.glance().has_lanes()
    }

    /// Whether threads may [put](Self::hand_over) short objects at homes on other hosts: not those of clients inside of nodes,
    /// which put things at their own node first.
    #[must_use]
    pub fn sends_itself(&self) -> bool {
        !self.cores.is_inside()
    }

    /// As [`put_all`](Self::put_all), for a thread that waits: objects of up to 4 MiB whose homes are cores of another process
    /// on this host, which this one has met, are handed over to these without a core of this process; short ones whose homes
    /// are on other hosts are sent to these, if they are a few homes, as by [`look_up`](Self::look_up). The rest
    /// is put by cores, with [`finish`](Handing::finish): what is longer, preferred elsewhere, or in parts. What lies in memory
    /// of a device is handed over alike, after a core has had the device copy it to memory of the host.
    ///
    /// The values are copied by this thread, here if they are sent, else in [`step`](Handing::step). What is dropped before the
    /// end may be put, or not; its memory is the caller's at once.
    ///
    /// # Errors
    /// With `finish`.
    pub fn hand_over(&self, objects: Vec<impl Into<ToPut>>, options: PutOptions) -> Handing {
        let count = objects.len();
        let objects = objects.into_iter().map(Into::into).enumerate();
        // The last one first, as in `ClusterClient::put_all`; `left` is taken from its end.
        let left = objects.map(|(index, object): (usize, ToPut)| Object {
            index,
            among: object.among(index, count),
            key: object.key,
            value: object.value,
            copied: None,
        });
        let mut handing = Handing {
            cores: Arc::clone(&self.cores),
            begun: Instant::now(),
            until: self.puts,
            options,
            of_devices: Vec::new(),
            copying: VecDeque::new(),
            left: left.collect(),
            asked: VecDeque::new(),
            sending: Round::none(),
            others: Vec::new(),
            stored: (0..count).map(|_| None).collect(),
        };
        handing.pick();
        handing.send();
        handing
    }

    /// As [`put_all`](Self::put_all), for a thread that waits: see [`hand_over`](Self::hand_over).
    ///
    /// # Errors
    /// One for each.
    pub fn put_all_waiting(
        &self,
        objects: Vec<impl Into<ToPut>>,
        options: PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        let mut handing = self.hand_over(objects, options);
        handing.wait(Duration::MAX);
        handing.finish().wait()
    }
}

impl Handing {
    /// Leaves to cores what cannot be handed over.
    fn pick(&mut self) {
        let options = self.options;
        let is_anywhere = options.preferred.is_empty() && !options.is_same_node;
        let is_valid = options.check().is_ok() && is_anywhere;
        for object in std::mem::take(&mut self.left) {
            let (len_bytes, value) = (object.len_bytes(), &object.value);
            let is_whole =
                len_bytes <= HANDED_BYTES_MAX && parts_of(len_bytes, options) == Ok(None);
            let is_copied = len_bytes > 0
                && value.iter().all(Lent::is_of_device)
                && self.lane_of(&object.key).is_some();
            let list = match (is_valid && is_whole, are_of_device(value)) {
                (true, false) => &mut self.left,
                (true, true) if is_copied => &mut self.of_devices,
                _ => &mut self.others,
            };
            list.push(object);
        }
    }

    /// Sends what has no home on this host, or leaves it to cores.
    fn send(&mut self) {
        let (near, far) = if self.cores.glance().has_lanes() {
            let left = std::mem::take(&mut self.left).into_iter();
            left.partition(|object| self.lane_of(&object.key).is_some())
        } else {
            (Vec::new(), std::mem::take(&mut self.left))
        };
        self.left = near;
        if far.is_empty() {
            return;
        }
        match send(&self.cores, &self.options, far) {
            Ok(sending) => self.sending = sending,
            Err(mut far) => self.others.append(&mut far),
        }
    }

    /// How many bytes are to be copied by [`step`](Self::step).
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.left.iter().map(Object::len_bytes).sum()
    }

    /// Whether nothing more is to be handed over or answered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_copied = self.of_devices.is_empty() && self.copying.is_empty();
        is_copied && self.left.is_empty() && self.asked.is_empty() && self.sending.is_over()
    }

    /// Hands over as much as there is room for, and takes the answers that there are. Whether all have been answered; else
    /// this is to be called again, after a while, or when it has [slept](Self::sleep).
    pub fn step(&mut self) -> bool {
        self.take_answers();
        self.copy();
        while let Some(mut object) = self.left.pop() {
            match self.lane_of(&object.key) {
                Some(lane) => match self.ask(&lane, &object) {
                    Some(asked) => {
                        // Its core has room for others again.
                        object.copied = None;
                        self.asked.push_back((object, asked));
                    }
                    // There is room when one of these has been answered.
                    None if !self.asked.is_empty() => {
                        self.left.push(object);
                        break;
                    }
                    // Others have it.
                    None => self.others.push(object),
                },
                None => self.others.push(object),
            }
        }
        self.take_sent() && self.asked.is_empty() && self.copying.is_empty()
    }

    /// Takes what has been copied from devices, and has more of it copied.
    fn copy(&mut self) {
        while let Some((_, copying)) = self.copying.front_mut()
            && let Some(copied) = copying.look()
        {
            let (mut object, _) = self.copying.pop_front().expect("it was looked at");
            match copied {
                Ok(copied) => {
                    object.copied = Some(copied);
                    self.left.push(object);
                }
                // Cores find out again, and tell.
                Err(_) => self.others.push(object),
            }
        }
        while self.copying.len() < COPYING_MAX
            && let Some(object) = self.of_devices.pop()
        {
            let core = self.cores.core_of(&object.key);
            let copying = self.cores.copy_of_device(core, object.value.clone());
            self.copying.push_back((object, copying));
        }
    }

    /// Takes what homes on other hosts have answered. Whether all have.
    fn take_sent(&mut self) -> bool {
        let (others, stored) = (&mut self.others, &mut self.stored);
        self.sending
            .step(|sent, ended| note_sent(sent, ended, others, stored))
    }

    /// Sleeps until there is an answer to take, and no longer than `timeout`; it may wake for no reason.
    pub fn sleep(&mut self, timeout: Duration) {
        // What waits to be handed over has memory that what is copied next may be in want of.
        if let (true, Some((_, copying))) = (self.left.is_empty(), self.copying.front_mut()) {
            return copying.sleep(timeout);
        }
        let mut asked = self.asked.iter().map(|(_, asked)| asked);
        // What waits for room goes on with the first; else the last one is answered last, in the usual case.
        let awaited = match self.left.is_empty() {
            true => asked.rfind(|asked| asked.look().is_none()),
            false => asked.next(),
        };
        match awaited {
            Some(awaited) => awaited.sleep(timeout),
            None => self.sending.sleep(timeout),
        }
    }

    /// Blocks this thread until all that is handed over has been answered, and no longer than `timeout`; whether it has been.
    /// It looks for a while, where that has paid [lately](Patience), then sleeps.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        thread_local! {
            static PATIENCE: Patience = const { Patience::new() };
        }
        // What is copied is no waiting.
        if self.step() {
            return true;
        }
        PATIENCE.with(|patience| {
            let spin = patience.spin(SPIN + self.sending.work());
            let begun = Instant::now();
            loop {
                let waited = begun.elapsed();
                if waited >= spin {
                    self.sleep(timeout.saturating_sub(waited));
                } else {
                    (0..LOOKS).for_each(|_| std::hint::spin_loop());
                }
                if self.step() {
                    patience.learn(spin, begun.elapsed());
                    return true;
                }
                if begun.elapsed() >= timeout {
                    return false;
                }
            }
        })
    }

    /// Has cores put what is left, in what is left of an operation's time; what came of each, in their order.
    ///
    /// # Errors
    /// [`StoreError`] for each, as of [`StoreHandle::put`]: `Interrupted` if the other process has ended, or has not answered
    /// in time, or yet.
    pub fn finish(mut self) -> Pending<Vec<Result<Stored, StoreError>>> {
        while let Some((object, asked)) = self.asked.pop_front() {
            self.end(object, asked.look().unwrap_or(Outcome::Unanswered));
        }
        let (others, stored) = (&mut self.others, &mut self.stored);
        self.sending
            .give_up(|sent, ended| note_sent(sent, ended, others, stored));
        let copying = self.copying.drain(..).map(|(object, _)| object);
        self.others.extend(copying);
        self.others.append(&mut self.of_devices);
        self.others.append(&mut self.left);
        if self.others.is_empty() {
            return Pending::ready(self.stored.into_iter().flatten().collect());
        }
        self.others.sort_by_key(|object| object.index);
        let indices: Vec<usize> = self.others.iter().map(|object| object.index).collect();
        let objects = self.others.into_iter();
        let objects = objects.map(|object| Filled::by_core(object.key, object.value, object.among));
        let work = work_of(indices.len());
        let until = (self.until, self.begun.elapsed());
        let asked = (self.cores).put_filled(objects.collect(), self.options, until);
        let mut stored = self.stored;
        Pending::here(async move {
            for (index, answer) in indices.into_iter().zip(asked.await) {
                stored[index] = Some(answer);
            }
            stored.into_iter().flatten().collect()
        })
        .taking(work)
    }

    fn take_answers(&mut self) {
        while let Some((_, asked)) = self.asked.front() {
            let Some(outcome) = asked.look_late() else {
                return;
            };
            let (object, _) = self.asked.pop_front().expect("it was looked at");
            self.end(object, outcome);
        }
    }

    fn end(&mut self, object: Object, outcome: Outcome) {
        let stored = match outcome {
            Outcome::Answered(answer) => stored_as(answer),
            Outcome::Refused(_) => Ok(None),
            Outcome::Unanswered => Err(StoreError::local(StoreErrorKind::Interrupted)),
        };
        match stored.transpose() {
            Some(stored) => self.stored[object.index] = Some(stored),
            // Nothing was done: cores know how to go on.
            None => self.others.push(object),
        }
    }

    /// By what an object is handed over to its home, if it can be.
    fn lane_of(&self, key: &[u8]) -> Option<Arc<Lane>> {
        let key = self.cores.tenant().key(key);
        let key = self.cores.tenant().check(&key).ok()?;
        let home = home_of(self.cores.map().as_ref()?, key.fingerprint())?;
        self.cores.glance().lane(home)
    }

    fn ask(&self, lane: &Arc<Lane>, object: &Object) -> Option<HandedOver> {
        let key = self.cores.tenant().key(&object.key);
        let key = Key::new(&key).expect("it was looked at");
        let options = object.options(&self.options);
        let retention = retention_in(self.cores.tenant(), &options, object.among.is_last);
        let wait_ms = u32::try_from(lane.timeout().as_millis()).unwrap_or(u32::MAX);
        lane.ask(
            object.len_bytes(),
            |asked, out| {
                let asker = (asked.asker, asked.request);
                let message = WriteMessage {
                    kind: options.kind,
                    wanted: options.copies,
                    wait_ms: wait_ms.min(WAIT_MS_MAX),
                    retention,
                    ..WriteMessage::new(asker, asked.over_below, lane.seat(), key)
                };
                message.encode(asked.version, out);
            },
            |part, window, at| match &object.copied {
                Some(copied) => window.copy_in(at, &copied.bytes()[part]),
                None => copy_part(&object.value, part, window, at),
            },
        )
    }
}

/// Notes what came of objects that a home was sent. What nothing was done of is left to cores, which know how to go on.
fn note_sent(
    sent: Sent,
    ended: Ended,
    others: &mut Vec<Object>,
    stored: &mut [Option<Result<Stored, StoreError>>],
) {
    let mut scattered = sent.scattered.into_iter();
    let is_lost = ended == Ended::Lost || sent.is_nonsense;
    for object in sent.objects {
        let done = match (ended, scattered.next()) {
            _ if is_lost => Err(StoreError::local(StoreErrorKind::Interrupted)),
            (Ended::Answered, Some(Scattered::Done { answer })) => stored_as(answer),
            _ => Ok(None),
        };
        match done.transpose() {
            Some(done) => stored[object.index] = Some(done),
            None => others.push(object),
        }
    }
}

/// Copies a part of what lies in pieces, one after the other, into other memory, from `at` on.
fn copy_part(pieces: &[Lent], part: Range<usize>, to: &SharedMemory, mut at: usize) {
    let mut begins_at = 0;
    for piece in pieces {
        let ends_at = begins_at + piece.len();
        let (from, end) = (part.start.max(begins_at), part.end.min(ends_at));
        if from < end {
            piece.copy_to(from - begins_at..end - begins_at, to, at);
            at += end - from;
        }
        begins_at = ends_at;
    }
}
