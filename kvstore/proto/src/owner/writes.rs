//! Writes: claim, bytes, publication.

use core::time::Duration;

use lunette_cluster_proto::fence::{Act, NamespaceKind, Standing};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use super::copies::{Held, State};
use super::{Out, Owner, OwnerAction};
use crate::answered::Known;
use crate::key::Fingerprint;
use crate::message::directory::{AskerId, CopyPlace, OpId, Refusal, ToHome, WAIT_MS_MAX};
use crate::placement::{Seat, home_of};
use crate::retention::Retention;
use crate::version::{COPIES_WANTED_MAX, CopyInfo, Form, Generation, Version, WriteKind};

/// What a writer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAsk {
    /// The key.
    pub key: Fingerprint,
    /// What is to become of what is there.
    pub kind: WriteKind,
    /// What its bytes are.
    pub form: Form,
    /// What the key's namespace wants of nodes that are cut off.
    pub namespace: NamespaceKind,
    /// How many copies there are to be, this one included.
    pub wanted: u8,
    /// How long the writer waits, in milliseconds; at most [`WAIT_MS_MAX`] count.
    pub wait_ms: u32,
    /// How it is to be kept in memory.
    pub retention: Retention,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAnswer {
    /// The object is there, as this version. In a cache namespace it may have been written while the
    /// node or the home was cut off; others may then know better.
    Written {
        /// The version.
        version: Version,
        /// See above.
        is_cut_off: bool,
    },
    /// A put found the key taken, and has succeeded.
    Exists {
        /// What is there.
        version: Version,
    },
    /// It took too long, or another write of the key is under way here. Nothing was done.
    Busy,
    /// A table is full. Nothing was done.
    Full,
    /// This node or the home is cut off. Nothing was done.
    Unavailable,
    /// The writer gave it up. Nothing was done.
    Aborted,
    /// It is not known whether it was done.
    Interrupted,
}

impl WriteAnswer {
    /// Whether nothing was done, so that asking again, also elsewhere, repeats nothing.
    #[must_use]
    pub const fn is_undone(self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Full | Self::Unavailable | Self::Aborted
        )
    }
}

impl From<Refusal> for WriteAnswer {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Busy => Self::Busy,
            Refusal::Full => Self::Full,
            Refusal::Fenced => Self::Unavailable,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Claiming,
    Claimed {
        version: Version,
        generation: Generation,
    },
    Publishing(CopyInfo),
}

/// A write under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) op: OpId,
    /// Who waits for it. Nobody, once the time of one that is published is over: its home may have recorded it, and had what it
    /// replaces dropped, so it ends as that one says.
    pub(super) author: Option<(AskerId, RequestId)>,
    /// Its home has said that it is recorded, and that what it replaces has to leave.
    pub(super) is_recorded: bool,
    pub(super) ask: WriteAsk,
    /// Length and checksum, once all bytes are here.
    whole: Option<(u32, u32)>,
    pub(super) stage: Stage,
    /// Until when somebody waits.
    until: Time,
    /// When the home was asked last.
    asked: Time,
    /// In which epoch its copy is new to its home.
    pub(super) moved_in: lunette_cluster_proto::map::Epoch,
}

impl Write {
    const fn act(&self) -> Act {
        act_of(self.ask.kind)
    }
}

const fn act_of(kind: WriteKind) -> Act {
    match kind {
        WriteKind::Put => Act::LocalPut,
        WriteKind::Upsert => Act::Change,
    }
}

impl Owner {
    /// Begins a write. With `Some`, bytes are wanted: say [`Owner::whole`] when they are here, or
    /// [`Owner::abort`]. Otherwise the answer is among the actions already. Asked twice with one
    /// request, a write is done once.
    pub fn write(
        &mut self,
        now: Time,
        asker: AskerId,
        request: RequestId,
        ask: WriteAsk,
        out: Out<'_>,
    ) -> Option<OpId> {
        let author = (asker, request);
        if let Some(known) = self.answered.get(asker, request) {
            let answer = match known {
                Known::Ended(answer) => answer,
                Known::Over => WriteAnswer::Aborted,
            };
            out.push(OwnerAction::Written(asker, request, answer));
            return None;
        }
        let under_way = self.writes.get(&ask.key);
        if under_way.is_some_and(|write| write.author == Some(author)) {
            return None;
        }
        let refusal = self.refusal(now, &ask, under_way.is_some());
        if let Some(answer) = refusal {
            // What was refused is not begun by a second copy of its request.
            if self.answered.len() < self.limits.answered_max {
                self.remember(now, author, answer);
            }
            out.push(OwnerAction::Written(asker, request, answer));
            return None;
        }
        let op = self.next_op();
        let wait_ms = ask.wait_ms.min(WAIT_MS_MAX);
        let write = Write {
            op,
            author: Some(author),
            is_recorded: false,
            ask,
            whole: None,
            stage: Stage::Claiming,
            until: now + Duration::from_millis(wait_ms.into()),
            asked: now,
            moved_in: self.map.epoch(),
        };
        self.writes.insert(ask.key, write);
        self.keys.insert(op, ask.key);
        self.ask_home(now, ask.key, out);
        Some(op)
    }

    pub(super) const fn next_op(&mut self) -> OpId {
        self.last_op += 1;
        OpId(self.last_op)
    }

    /// What can be said without asking anybody.
    fn refusal(&mut self, now: Time, ask: &WriteAsk, is_busy: bool) -> Option<WriteAnswer> {
        if self.permit(now, ask.namespace, act_of(ask.kind)).is_err() {
            return Some(WriteAnswer::Unavailable);
        }
        let latest = self.latest(now, ask.key, self.map.epoch());
        if let (WriteKind::Put, Some(version)) = (ask.kind, latest) {
            return Some(WriteAnswer::Exists { version });
        }
        if is_busy {
            return Some(WriteAnswer::Busy);
        }
        let under_way = self.writes.len();
        let is_full = under_way >= self.limits.writes_max
            || self.copies.len() + under_way >= self.limits.copies_max
            || self.answered.len() + under_way >= self.limits.answered_max
            || ask.wanted == 0
            || ask.wanted > COPIES_WANTED_MAX;
        self.stats.full += u64::from(is_full);
        is_full.then_some(WriteAnswer::Full)
    }

    /// All bytes of a write are here. A write that is over is ignored.
    pub fn whole(&mut self, now: Time, op: OpId, len_bytes: u32, crc32c: u32, out: Out<'_>) {
        let Some(key) = self.keys.get(&op).copied() else {
            return;
        };
        let write = self.writes.get_mut(&key).expect("listed writes are there");
        assert!(write.whole.is_none(), "a write becomes whole once");
        write.whole = Some((len_bytes, crc32c));
        self.publish_if_whole(now, key, out);
    }

    /// The writer is gone, or its bytes were damaged. A write that is over is ignored.
    pub fn abort(&mut self, now: Time, op: OpId, out: Out<'_>) {
        if let Some(key) = self.keys.get(&op).copied() {
            self.give_up(now, key, WriteAnswer::Aborted, out);
        }
    }

    /// Asks the home what the write's stage is about.
    fn ask_home(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let write = self.writes.get_mut(&key).expect("a write under way");
        write.asked = now;
        let Some(home) = home_of(&self.map, key) else {
            return;
        };
        let namespace = write.ask.namespace;
        let item = match write.stage {
            Stage::Claiming => {
                let wait = write.until.since(now).as_millis();
                ToHome::Claim {
                    op: write.op,
                    key,
                    kind: write.ask.kind,
                    namespace,
                    wait_ms: u32::try_from(wait).unwrap_or(WAIT_MS_MAX),
                }
            }
            Stage::Claimed { .. } => return,
            Stage::Publishing(info) => ToHome::Publish {
                op: write.op,
                key,
                info,
                namespace,
            },
        };
        out.push(OwnerAction::ToHome(home, item));
    }

    pub(super) fn granted(
        &mut self,
        now: Time,
        from: Seat,
        op: OpId,
        key: Fingerprint,
        (version, generation): (Version, Generation),
        out: Out<'_>,
    ) {
        match self.writes.get_mut(&key) {
            Some(write) if write.op == op => {
                if write.stage == Stage::Claiming {
                    write.stage = Stage::Claimed {
                        version,
                        generation,
                    };
                    self.publish_if_whole(now, key, out);
                }
            }
            // The write is over: others need not wait for it.
            _ => out.push(OwnerAction::ToHome(from, ToHome::Abandon { op, key })),
        }
    }

    fn publish_if_whole(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let epoch = self.map.epoch();
        let write = self.writes.get_mut(&key).expect("a write under way");
        let (
            Stage::Claimed {
                version,
                generation,
            },
            Some((len_bytes, crc32c)),
        ) = (write.stage, write.whole)
        else {
            return;
        };
        let info = CopyInfo {
            version,
            kind: write.ask.kind,
            form: write.ask.form,
            generation,
            wanted: write.ask.wanted,
            len_bytes,
            crc32c,
        };
        write.stage = Stage::Publishing(info);
        write.moved_in = epoch;
        if let Some(home) = home_of(&self.map, key) {
            self.by_home
                .entry(home)
                .or_default()
                .insert(CopyPlace { key, version }, ());
        }
        self.ask_home(now, key, out);
    }

    /// The claim of a write was answered, and is not granted.
    pub(super) fn claim_ended(&mut self, now: Time, op: OpId, answer: WriteAnswer, out: Out<'_>) {
        let Some(key) = self.keys.get(&op).copied() else {
            return;
        };
        if self.writes[&key].stage != Stage::Claiming {
            return;
        }
        out.push(OwnerAction::Discard(op));
        self.conclude(now, key, answer, out);
    }

    pub(super) fn recorded(
        &mut self,
        now: Time,
        home: Seat,
        (op, place): (OpId, CopyPlace),
        (is_cut_off, order): (bool, u64),
        out: Out<'_>,
    ) {
        let publishing = self.publishing(place).filter(|(write, _)| write.op == op);
        let Some((write, info)) = publishing else {
            self.keep(home, (op, order), place, out);
            return;
        };
        self.publish(now, (write, info), (place, order), is_cut_off, out);
    }

    /// The copy of a write is recorded, which is so told.
    pub(super) fn publish(
        &mut self,
        now: Time,
        (write, info): (Write, CopyInfo),
        (place, order): (CopyPlace, u64),
        is_cut_off: bool,
        out: Out<'_>,
    ) {
        let state = State::Published;
        let mut held = Held::new(write.op, info, write.ask.namespace, state, write.moved_in);
        held.is_recorded(self.map.epoch(), order);
        self.copies.insert(place.key, held);
        out.push(OwnerAction::Name(write.op, place));
        // Who lost its lease meanwhile cannot tell what others have done since.
        let answer = match self.permit(now, write.ask.namespace, write.act()) {
            Ok(standing) => WriteAnswer::Written {
                version: place.version,
                is_cut_off: is_cut_off || standing == Standing::CutOff,
            },
            Err(_) => WriteAnswer::Interrupted,
        };
        self.conclude(now, place.key, answer, out);
    }

    /// The write that publishes this copy.
    pub(super) fn publishing(&self, place: CopyPlace) -> Option<(Write, CopyInfo)> {
        let write = self.writes.get(&place.key)?;
        match write.stage {
            Stage::Publishing(info) if info.version == place.version => Some((*write, info)),
            _ => None,
        }
    }

    /// The home does not record the copy. Its claim is over, and the write begins anew.
    pub(super) fn lost(&mut self, now: Time, op: OpId, place: CopyPlace, out: Out<'_>) {
        if self
            .publishing(place)
            .is_some_and(|(write, _)| write.op == op)
        {
            self.unlist(place);
            let write = self.writes.get_mut(&place.key).expect("it publishes");
            if write.author.is_some() {
                write.stage = Stage::Claiming;
                write.is_recorded = false;
                self.ask_home(now, place.key, out);
            } else {
                out.push(OwnerAction::Discard(op));
                self.conclude(now, place.key, WriteAnswer::Aborted, out);
            }
        }
        self.has_not_joined(op, place, out);
    }

    pub(super) fn end_writes(&mut self, now: Time, out: Out<'_>) {
        let writes = self.writes.iter();
        let over = writes.filter(|(_, write)| now >= write.until);
        let over: Vec<Fingerprint> = over.map(|(&key, _)| key).collect();
        for key in over {
            self.give_up(now, key, WriteAnswer::Busy, out);
        }
    }

    /// Asks again where no answer has come since `before`.
    pub(super) fn write_again(&mut self, now: Time, before: Time, out: Out<'_>) {
        let writes = self.writes.iter();
        let due = writes.filter(|(_, write)| write.asked <= before);
        let due: Vec<Fingerprint> = due.map(|(&key, _)| key).collect();
        for key in due {
            self.ask_home(now, key, out);
        }
    }

    /// The map has changed: claims are void, publications may have been recorded.
    pub(super) fn write_anew(&mut self, now: Time, out: Out<'_>) {
        let epoch = self.map.epoch();
        for write in self.writes.values_mut() {
            match write.stage {
                Stage::Claiming => {}
                Stage::Claimed { .. } => write.stage = Stage::Claiming,
                Stage::Publishing(_) => write.moved_in = epoch,
            }
        }
        self.write_again(now, Time::MAX, out);
    }

    /// The node leaves its cluster: no write goes on. Nothing was done of those that were not published.
    pub fn leave(&mut self, now: Time, out: Out<'_>) {
        let keys: Vec<Fingerprint> = self.writes.keys().copied().collect();
        for key in keys {
            let write = self.writes[&key];
            let answer = match write.stage {
                Stage::Claiming | Stage::Claimed { .. } => WriteAnswer::Aborted,
                Stage::Publishing(_) => WriteAnswer::Interrupted,
            };
            out.push(OwnerAction::Discard(write.op));
            self.conclude(now, key, answer, out);
        }
    }

    /// "Remove all": what was published is dead, whether or not it was recorded.
    pub(super) fn clear_writes(&mut self, now: Time, out: Out<'_>) {
        let writes = self.writes.iter();
        let dead = writes.filter_map(|(&key, write)| match write.stage {
            Stage::Publishing(CopyInfo { version, .. }) => {
                Some((CopyPlace { key, version }, write.op))
            }
            _ => None,
        });
        let dead: Vec<(CopyPlace, OpId)> = dead.collect();
        for (place, op) in dead {
            self.unlist(place);
            out.push(OwnerAction::Discard(op));
            self.conclude(now, place.key, WriteAnswer::Interrupted, out);
        }
    }

    pub(super) fn conclude(
        &mut self,
        now: Time,
        key: Fingerprint,
        answer: WriteAnswer,
        out: Out<'_>,
    ) {
        self.answer(now, key, answer, out);
        let write = self.writes.remove(&key).expect("a write ends once");
        self.keys.remove(&write.op);
    }

    /// Tells who waits for a write, if somebody does.
    pub(super) fn answer(
        &mut self,
        now: Time,
        key: Fingerprint,
        answer: WriteAnswer,
        out: Out<'_>,
    ) {
        let write = self.writes.get_mut(&key).expect("a write under way");
        write.until = Time::MAX;
        if let Some(author) = write.author.take() {
            self.remember(now, author, answer);
            let (asker, request) = author;
            out.push(OwnerAction::Written(asker, request, answer));
        }
    }

    fn remember(&mut self, now: Time, author: (AskerId, RequestId), answer: WriteAnswer) {
        let (asker, request) = author;
        self.answered.remember(now, asker, request, answer);
    }
}
