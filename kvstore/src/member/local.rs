//! What tasks of a member's own core ask of it: answered at once where this core can, without a message.

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::message::directory::Peek;
use lunette_kvstore_proto::message::directory::{Answer, Ask, AskerId, OpId};
use lunette_kvstore_proto::owner::{Read, WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::home_of;
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_kvstore_proto::residence::NoRoom;
use lunette_kvstore_proto::retention::{Pin, Retention};
use lunette_kvstore_proto::striped::Manifest;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::Room;

use super::bytes::{Carved, Extent, Frame};
use super::core::MemberCore;
use super::lending::Placed;
use super::service::WAITERS_MAX;
use super::waiters::Waiting;
use crate::counting::{Counting, Outcome};
use crate::value::{Value, extent_bytes};

/// Most copies that leave for one write in one turn of its core: beyond, it is refused, and finds more room when
/// it comes again.
const LEAVE_PER_WRITE_MAX: usize = 1024;

/// What a get finds on this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    /// The bytes are in the room.
    Hit {
        version: Version,
        is_cut_off: bool,
        len_bytes: usize,
        object_len_bytes: usize,
    },
    /// It is in parts.
    Striped {
        version: Version,
        is_cut_off: bool,
        manifest: Manifest,
    },
    /// A range does not lie inside the object.
    OutOfRange { object_len_bytes: usize },
    /// There is no object.
    Miss,
    /// Ask as others do.
    Unsure,
}

/// What a home was asked together.
#[derive(Debug)]
pub(crate) struct Questions {
    answered: Vec<(RequestId, Answer)>,
    waiting: Vec<(RequestId, Waiting<Answer>)>,
}

impl Questions {
    /// Whether all are answered.
    pub(super) const fn is_answered(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The answers that there are.
    pub(super) fn now(self) -> Vec<(RequestId, Answer)> {
        self.answered
    }

    /// All of them.
    pub(super) async fn all(self) -> Vec<(RequestId, Answer)> {
        let mut answered = self.answered;
        for (request, answer) in self.waiting {
            answered.push((request, answer.await.unwrap_or(Answer::Busy)));
        }
        answered
    }
}

/// A write on this core.
#[derive(Debug)]
pub(crate) enum Put {
    /// In the usual case.
    Done(WriteAnswer),
    /// Another write of the key comes first, or its home does not know enough yet.
    Waits(Waiting<WriteAnswer>, Counting),
}

impl MemberCore {
    /// What this core knows of keys without asking anybody.
    pub(crate) fn peek(
        &self,
        keys: &[Fingerprint],
        namespace: NamespaceKind,
        mut tell: impl FnMut(Peek),
    ) {
        if self.has_left() {
            return keys.iter().for_each(|_| tell(Peek::Unsure));
        }
        let (now, machines) = (time::now(), self.machines().borrow());
        machines.home.peek(now, keys, namespace, tell);
    }

    /// Whether it is the home of a key, as far as it knows.
    pub(crate) fn is_home_of(&self, key: Key<'_>) -> bool {
        !self.has_left() && home_of(&self.map(), key.fingerprint()) == Some(self.seat())
    }

    /// Asks this core as a home, for somebody whose requests below that one are over.
    pub(super) fn ask_all(
        &self,
        (asker, over_below): (AskerId, RequestId),
        epoch: Epoch,
        asks: Vec<Ask>,
    ) -> Questions {
        if asks.iter().any(|ask| matches!(ask, Ask::Remove { .. })) {
            self.over(asker, over_below);
        }
        let mut questions = Questions {
            answered: Vec::with_capacity(asks.len()),
            waiting: Vec::new(),
        };
        for ask in asks {
            let request = ask.request();
            let mut answer = self.ask(asker, epoch, ask);
            match answer.try_take() {
                Some(answer) => questions.answered.push((request, answer)),
                None => questions.waiting.push((request, answer)),
            }
        }
        questions
    }

    /// As a home is asked by a client on this core.
    ///
    /// # Errors
    /// The questions, if it is to be asked as others ask, who are told why it does not answer.
    pub(crate) async fn ask_here(
        &self,
        who: (AskerId, RequestId),
        epoch: Epoch,
        asks: Vec<Ask>,
    ) -> Result<Vec<(RequestId, Answer)>, Vec<Ask>> {
        let is_refused = self.is_leaving() && !asks.iter().all(Ask::is_read);
        if self.has_left() || is_refused || self.asks.len() >= WAITERS_MAX {
            return Err(asks);
        }
        let mut counting = self.counts.begin(Op::Ask.code());
        let asked = self.ask_all(who, epoch, asks);
        if !asked.is_answered() {
            counting = counting.waits();
        }
        let answers = asked.all().await;
        counting.end(Outcome::Ok);
        Ok(answers)
    }

    /// The length of an object that it has, in bytes.
    pub(crate) fn len_here(&self, key: Key<'_>, namespace: NamespaceKind) -> Option<usize> {
        if self.has_left() {
            return None;
        }
        let Read::Served { place, info, .. } = self.read_here(key, namespace) else {
            return None;
        };
        if info.form == Form::Striped {
            let (id, extent) = self.bytes().borrow_mut().pin(place, key)?;
            self.bytes().borrow_mut().unpin(id);
            return usize::try_from(extent.manifest()?.len_bytes()).ok();
        }
        let len_bytes = self.bytes().borrow().len_of(place, key)?;
        Some(len_bytes as usize)
    }

    /// Copies an object, or ranges of it, to the front of the room.
    pub(crate) fn get_here(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        ranges: &[ByteRange],
        room: &mut Room,
    ) -> Here {
        if self.has_left() {
            return Here::Unsure;
        }
        let mut counting = self.counts.begin(Op::Find.code());
        let here = match self.read_here(key, namespace) {
            Read::Served {
                place,
                info,
                is_cut_off,
            } => {
                let Some((id, extent)) = self.bytes().borrow_mut().pin(place, key) else {
                    counting.forget();
                    return Here::Unsure;
                };
                if info.form == Form::Striped {
                    self.bytes().borrow_mut().unpin(id);
                    counting.end(Outcome::Ok);
                    return striped(place.version, is_cut_off, &extent);
                }
                let object_len_bytes = extent.len_bytes() as usize;
                let copied = copy_parts(extent.value().as_slice(), ranges, room);
                self.bytes().borrow_mut().unpin(id);
                match copied {
                    Ok(len_bytes) => {
                        self.counts.sending(len_bytes);
                        self.list_read(place, id.slot_index);
                        Here::Hit {
                            version: place.version,
                            is_cut_off,
                            len_bytes,
                            object_len_bytes,
                        }
                    }
                    Err(NotCopied::OutOfRange) => Here::OutOfRange { object_len_bytes },
                    Err(NotCopied::RoomTooSmall) => Here::Unsure,
                }
            }
            Read::Unavailable => Here::Unsure,
            Read::Absent => {
                let mut known = Peek::Unsure;
                self.peek(&[key.fingerprint()], namespace, |peek| known = peek);
                match known {
                    Peek::Absent => Here::Miss,
                    Peek::Present | Peek::Unsure => Here::Unsure,
                }
            }
        };
        match here {
            Here::Hit { .. } | Here::Striped { .. } => counting.end(Outcome::Ok),
            Here::Miss => counting.end(Outcome::NotFound),
            Here::OutOfRange { .. } => counting.end(Outcome::BadRequest),
            // It is counted where it is asked.
            Here::Unsure => counting.forget(),
        }
        here
    }

    /// Whether so much fits without anything that would have to leave for it, now or in a moment.
    pub(crate) fn has_room(&self, extent_bytes: u64) -> bool {
        let bytes = self.bytes().borrow();
        let (limits, stats) = (bytes.limits(), bytes.stats());
        let is_roomy = stats.used_bytes + extent_bytes <= limits.low_watermark_bytes();
        is_roomy && stats.entries < limits.low_watermark_entries() as u64
    }

    /// Whether it is to keep objects of others' keys that were not wished to be here.
    pub(super) fn takes(&self, key: Key<'_>, len_bytes: usize) -> bool {
        let (map, seat) = (self.map(), self.seat());
        let member = map.member(seat.node);
        let is_staying = member.is_some_and(|member| !member.is_draining);
        is_staying && self.has_room(extent_bytes(key.bytes().len(), len_bytes))
    }

    /// Writes an object whose home this core is, or that is to be here, or that it has room for; `None` if it
    /// is none of these, or if nothing was done for want of room.
    pub(crate) fn put_here(
        &self,
        (asker, request): (AskerId, RequestId),
        key: Key<'_>,
        (value, placed): (&Value, Option<&Placed>),
        (ask, is_wished): (WriteAsk, bool),
    ) -> Option<Put> {
        // For what is placed there is room already.
        let is_wished = is_wished || placed.is_some();
        let is_taken = is_wished || self.is_home_of(key) || self.takes(key, value.len());
        if self.has_left() || self.is_leaving() || !is_taken {
            return None;
        }
        self.touch(ask.key);
        let (op, mut waiting) = self.write(asker, request, ask);
        let placed = placed.filter(|_| op.is_some());
        let placed = placed.and_then(|placed| placed.take(self, key));
        if let (Some(op), Some((frame, extent))) = (op, placed) {
            self.brought(op, frame, extent, ask.retention);
        } else if let Some(op) = op {
            let len_bytes = u32::try_from(value.len()).expect("a value is bounded");
            match self.carve_for(op, &mut waiting, key, len_bytes, ask.retention.pin) {
                Ok(carved) => self.bring(op, carved, value, ask.retention),
                Err(NotCarved::Over(answer)) => {
                    self.count_put(answer);
                    return Some(Put::Done(answer));
                }
                Err(NotCarved::NoRoom(_)) => return None,
            }
        }
        self.settle();
        match waiting.try_take() {
            Some(answer) => {
                self.count_put(answer);
                Some(Put::Done(answer))
            }
            None => {
                let counting = self.counts.begin(Op::Write.code()).waits();
                Some(Put::Waits(waiting, counting))
            }
        }
    }

    pub(super) fn count_put(&self, answer: WriteAnswer) {
        let mut counting = self.counts.begin(Op::Write.code());
        counting.end(Outcome::from(&answer));
    }

    /// Copies the value to where it stays.
    fn bring(&self, op: OpId, carved: Carved, value: &Value, retention: Retention) {
        let (frame, mut region) = carved.into_empty();
        let crc32c = value.copy_summed(frame.value_mut(&mut region));
        self.brought(op, frame, frame.filled(region, crc32c), retention);
    }

    /// The value is where it stays.
    fn brought(&self, op: OpId, frame: Frame, extent: Extent, retention: Retention) {
        self.bytes().borrow_mut().receive(op, frame, retention);
        self.counts.received(frame.len_bytes());
        self.on_whole(op, extent);
    }

    /// Room for the bytes of a write. Without, the write is given up.
    pub(crate) fn carve_for(
        &self,
        op: OpId,
        waiting: &mut Waiting<WriteAnswer>,
        key: Key<'_>,
        len_bytes: u32,
        pin: Pin,
    ) -> Result<Carved, NotCarved> {
        let carved = self.carve_or_make_room(key, len_bytes, pin);
        // While room was made, its claim may have been answered.
        if let Some(answer) = waiting.try_take() {
            if let Ok(carved) = carved {
                let (frame, _region) = carved.into_empty();
                self.bytes().borrow_mut().drop_unused(frame);
            }
            return Err(NotCarved::Over(answer));
        }
        carved.map_err(|no_room| {
            self.give_up(op);
            NotCarved::NoRoom(no_room)
        })
    }

    /// Room for an object. Where there is little or none, what may leave is asked to, which is done at once
    /// where this core is its home.
    pub(crate) fn carve_or_make_room(
        &self,
        key: Key<'_>,
        len_bytes: u32,
        pin: Pin,
    ) -> Result<Carved, NoRoom> {
        let mut left = LEAVE_PER_WRITE_MAX;
        loop {
            let carved = self.carve(key, len_bytes, pin);
            match carved {
                Err(NoRoom::Full { .. } | NoRoom::OverCredit { is_last: true, .. }) => {}
                Ok(ref carved_now) if self.bytes().borrow().is_tight_for(carved_now.id) => {
                    self.make_room();
                    return carved;
                }
                _ => return carved,
            }
            if left == LEAVE_PER_WRITE_MAX {
                self.counts.waits_for_room();
            }
            // A large object takes the place of many small ones.
            let leaving = self.make_room();
            if leaving == 0 || left == 0 {
                return carved;
            }
            left = left.saturating_sub(leaving);
        }
    }
}

fn striped(version: Version, is_cut_off: bool, extent: &Extent) -> Here {
    // Where it is damaged, others may have a copy.
    extent
        .manifest()
        .map_or(Here::Unsure, |manifest| Here::Striped {
            version,
            is_cut_off,
            manifest,
        })
}

/// Why there is no room for the bytes of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotCarved {
    /// The write is over.
    Over(WriteAnswer),
    NoRoom(NoRoom),
}

enum NotCopied {
    OutOfRange,
    RoomTooSmall,
}

/// Copies all of a value, or ranges of it; how much that was.
fn copy_parts(value: &[u8], ranges: &[ByteRange], room: &mut Room) -> Result<usize, NotCopied> {
    let whole = [ByteRange {
        offset_bytes: 0,
        len_bytes: u32::try_from(value.len()).expect("a value is bounded"),
    }];
    let ranges = if ranges.is_empty() { &whole } else { ranges };
    if !ranges
        .iter()
        .all(|range| range.is_within(value.len() as u64))
    {
        return Err(NotCopied::OutOfRange);
    }
    if total_bytes(ranges) > room.len() as u64 {
        return Err(NotCopied::RoomTooSmall);
    }
    let mut at = 0;
    for range in ranges {
        let start = usize::try_from(range.offset_bytes).expect("inside the value");
        let len = range.len_bytes as usize;
        room.place(at, &value[start..start + len]);
        at += len;
    }
    Ok(at)
}
