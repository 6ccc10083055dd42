//! The judge of a world: it sees every operation, every answer and the life of every copy.
//!
//! - Successful writes and removals are linearizable by their versions: what ended before another
//!   began has the earlier one; a put that wrote found no object that was surely there; a put that
//!   found the key taken names a version that was not removed or replaced before.
//! - A get returns the bytes of the write whose version it names, and of none that was removed,
//!   replaced or cleared before it began.
//! - A miss has a cause. There is none if an acknowledged copy was there from before the question to
//!   after the answer, at a member of all maps of that time, and nobody was removing or replacing it.
//! - A copy that its home ordered to be dropped had a reason to go, and one that was held was not
//!   evicted.
//!
//! A node that is cut off may, in a cache namespace, show and write what others know better. Answers
//! that say so are believed in nothing; those of homes that were, and cannot say so, are not judged
//! while a partition lasts.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::asker::{OperationId, Outcome};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{Away, CopyPlace};
use lunette_kvstore_proto::owner::{FreeCause, WriteAnswer};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime_core::time::Time;

use super::{MS, at_ms};

/// How long an old map may be believed: nobody is behind for longer and still has its lease.
const BELIEVED_MS: u64 = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Get,
    Remove,
    Write { kind: WriteKind, value: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// Nothing was done.
    Undone,
    /// It may have been done, or will be.
    Unsure,
    /// It was done, with this version; surely, or by somebody who was cut off.
    Done {
        version: Version,
        is_sure: bool,
    },
    /// A put found this.
    Exists {
        version: Version,
    },
}

#[derive(Clone, Debug)]
struct Operation {
    key: Fingerprint,
    what: What,
    start: Time,
    end: Time,
    how: End,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    seat: Seat,
    /// A copy of a copy: its home may not know of it yet.
    is_replica: bool,
    from: Time,
    to: Time,
    /// When a home last ordered that it be dropped: that takes its way.
    ordered: Option<Time>,
    cause: Option<Gone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Killed,
    Freed(FreeCause),
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    is_strict: bool,
    operations: BTreeMap<(usize, OperationId), Operation>,
    lives: BTreeMap<CopyPlace, Vec<Life>>,
    /// The value of each version, and the generation it is of.
    values: BTreeMap<CopyPlace, (u64, u64)>,
    /// When "remove all" was done, and the generation that began then.
    raises: Vec<(Time, u64)>,
    /// When everybody who may be serving knew of it.
    raises_done: Vec<(Time, u64)>,
    /// When each life of a node was in no map, or not surely in all.
    absences: Vec<(Seat, Time, Time)>,
    holds: BTreeMap<(Seat, CopyPlace), Time>,
    /// When partitions lasted.
    pub(crate) partitions: Vec<(Time, Time)>,
    /// Whether a home has dropped copies of nodes that were away for too long.
    pub(crate) has_cold: bool,
    /// When owners that were away were back, as they have told.
    backs: BTreeMap<Seat, Epoch>,
    pub(crate) failures: Vec<String>,
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl Oracle {
    pub(crate) fn new(is_strict: bool) -> Self {
        Self {
            is_strict,
            ..Self::default()
        }
    }

    pub(crate) fn fail(&mut self, now: Time, text: &str) {
        let ms = now.as_ns() / MS;
        self.failures.push(format!("{ms} ms: {text}"));
    }

    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        *self.tally.entry(what).or_default() += count;
    }

    fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(crate) fn begin(
        &mut self,
        now: Time,
        asker: usize,
        id: OperationId,
        key: Fingerprint,
        what: What,
    ) {
        let operation = Operation {
            key,
            what,
            start: now,
            end: Time::MAX,
            how: End::Open,
        };
        self.operations.insert((asker, id), operation);
    }

    /// Whether somebody wants an object's bytes.
    pub(crate) fn is_get(&self, asker: usize, id: OperationId) -> bool {
        let operation = self.operations.get(&(asker, id));
        operation.is_some_and(|operation| matches!(operation.what, What::Get))
    }

    /// An operation has ended. `is_cut_off`: whoever served the bytes said so.
    pub(crate) fn end(
        &mut self,
        now: Time,
        asker: usize,
        id: OperationId,
        outcome: &Outcome,
        read: Option<(u64, bool)>,
    ) {
        let operation = self.operations.get_mut(&(asker, id)).expect("it began");
        operation.end = now;
        operation.how = match outcome {
            Outcome::Written(WriteAnswer::Written {
                version,
                is_cut_off,
            }) => End::Done {
                version: *version,
                is_sure: !is_cut_off,
            },
            Outcome::Written(WriteAnswer::Exists { version }) => End::Exists { version: *version },
            Outcome::Removed { version, .. } => End::Done {
                version: *version,
                is_sure: true,
            },
            Outcome::Interrupted => End::Unsure,
            Outcome::Written(_) | Outcome::TimedOut | Outcome::NoRoom => End::Undone,
            Outcome::Hit(_) | Outcome::Found(_) | Outcome::Miss | Outcome::Unknown => End::Undone,
        };
        let operation = operation.clone();
        match (operation.what, outcome) {
            (_, Outcome::Hit(version)) => self.judge_hit(now, &operation, *version, read),
            (_, Outcome::Miss) => self.judge_miss(now, &operation),
            (_, Outcome::Unknown) => self.count("unknown"),
            (What::Get, _) => self.count("get failed"),
            (What::Remove, Outcome::Removed { .. }) => self.count("removed"),
            (What::Remove, _) => self.count("remove failed"),
            (What::Write { .. }, _) => self.judge_write(now, &operation),
        }
    }

    fn is_partitioned(&self, from: Time, to: Time) -> bool {
        let later = |time: Time| at_ms(time.as_ns() / MS + BELIEVED_MS);
        let mut partitions = self.partitions.iter();
        !self.is_strict && partitions.any(|&(begin, end)| from <= later(end) && begin <= to)
    }

    fn judge_hit(
        &mut self,
        now: Time,
        get: &Operation,
        version: Version,
        read: Option<(u64, bool)>,
    ) {
        self.count("hit");
        let place = CopyPlace {
            key: get.key,
            version,
        };
        let (value, is_cut_off) = read.expect("a hit has bytes");
        let Some(&(expected, generation)) = self.values.get(&place) else {
            self.fail(
                now,
                &format!("a hit of {place:?}, which nobody has written"),
            );
            return;
        };
        if value != expected {
            self.fail(now, &format!("{place:?} has value {expected}, not {value}"));
        }
        if is_cut_off {
            self.count("hit of somebody cut off");
            return;
        }
        if let Some(change) = self.ended_change(get.key, version, get.start) {
            self.fail(now, &format!("{place:?} was read after {change:?}"));
        }
        let cleared = self
            .raises_done
            .iter()
            .find(|(at, raised)| *raised > generation && get.start > *at);
        if let Some(cleared) = cleared {
            let text = format!("{place:?} was read after the clearing {cleared:?}");
            self.fail(now, &text);
        }
    }

    /// A removal or upsert of a later version that had ended before a time. What was there after that alone, and was being written
    /// when it began, is as well of after it.
    fn ended_change(&self, key: Fingerprint, version: Version, before: Time) -> Option<&Operation> {
        let lives = self.lives.get(&CopyPlace { key, version });
        let begun = lives.into_iter().flatten().map(|life| life.from).min();
        let written = self.written(key, version);
        self.changes(key).find(|change| {
            let is_later = matches!(change.how,
                End::Done { version: its, is_sure: true } if its > version);
            let was_there = begun.is_none_or(|begun| begun <= change.end);
            let was_over = written.is_some_and(|ended| ended < change.start);
            is_later && (was_there || was_over) && change.end < before
        })
    }

    /// When whoever wrote this version was told what has come of it.
    fn written(&self, key: Fingerprint, version: Version) -> Option<Time> {
        let (value, _) = *self.values.get(&CopyPlace { key, version })?;
        let mut operations = self.operations.values();
        let write = operations.find(
            |operation| matches!(operation.what, What::Write { value: its, .. } if its == value),
        );
        write.map(|write| write.end)
    }

    fn changes(&self, key: Fingerprint) -> impl Iterator<Item = &Operation> {
        let operations = self.operations.values();
        operations.filter(move |operation| {
            let is_change = match operation.what {
                What::Get => false,
                What::Remove => true,
                What::Write { kind, .. } => kind == WriteKind::Upsert,
            };
            operation.key == key && is_change
        })
    }

    fn judge_miss(&mut self, now: Time, get: &Operation) {
        self.count("miss");
        if self.is_partitioned(get.start, now) {
            return;
        }
        if let Some(place) = self.surely_there(get.key, get.start, now, None) {
            self.fail(now, &format!("a miss since {:?} of {place:?}", get.start));
        }
    }

    fn judge_write(&mut self, now: Time, write: &Operation) {
        let What::Write { kind, value } = write.what else {
            return;
        };
        match write.how {
            End::Done { version, is_sure } => {
                self.count("written");
                let place = CopyPlace {
                    key: write.key,
                    version,
                };
                if self.values.get(&place).map(|known| known.0) != Some(value) {
                    self.fail(now, &format!("{place:?} is not of value {value}"));
                }
                let is_judged = is_sure && kind == WriteKind::Put;
                if is_judged && !self.is_partitioned(write.start, now) {
                    let there = self.surely_there(write.key, write.start, now, Some(version));
                    if let Some(there) = there {
                        self.fail(now, &format!("{place:?} was written over {there:?}"));
                    }
                }
            }
            End::Exists { version } => {
                self.count("exists");
                if self.is_partitioned(write.start, now) {
                    return;
                }
                if let Some(change) = self.ended_change(write.key, version, write.start) {
                    let text = format!("{version:?} exists after {change:?}");
                    self.fail(now, &text);
                }
            }
            _ => self.count("write failed"),
        }
    }

    /// An object that was there all the time, so that everybody had to know.
    fn surely_there(
        &self,
        key: Fingerprint,
        from: Time,
        to: Time,
        except: Option<Version>,
    ) -> Option<CopyPlace> {
        let operations = self
            .operations
            .values()
            .filter(|operation| operation.key == key);
        let mut acknowledged = operations.filter_map(|operation| match operation.how {
            End::Done {
                version,
                is_sure: true,
            } if operation.end <= from && matches!(operation.what, What::Write { .. }) => {
                Some(version)
            }
            _ => None,
        });
        acknowledged
            .find(|&version| Some(version) != except && self.is_sure(key, version, from, to))
            .map(|version| CopyPlace { key, version })
    }

    fn is_sure(&self, key: Fingerprint, version: Version, from: Time, to: Time) -> bool {
        let place = CopyPlace { key, version };
        let generation = self.values.get(&place).map_or(0, |value| value.1);
        let mut raises = self.raises.iter();
        let may_be_cleared = raises.any(|(at, raised)| *raised > generation && *at <= to);
        let mut changes = self.changes(key);
        let may_be_changed = changes.any(|change| {
            let is_over = match change.how {
                End::Undone => true,
                End::Done {
                    version: its,
                    is_sure,
                } => is_sure && its <= version,
                _ => false,
            };
            !is_over && change.start <= to
        });
        let lives = self.lives.get(&place).into_iter().flatten();
        let mut lives = lives.filter(|life| !life.is_replica && life.from <= from && life.to >= to);
        if self.is_beaten(place, to) {
            return false;
        }
        let is_there = |life: &Life| {
            !self.is_absent(life.seat, from, to)
                && !self.may_be_cold(life.seat, place)
                && !self.is_leaving(life, place, to)
        };
        !may_be_cleared && !may_be_changed && lives.any(is_there)
    }

    /// An owner tells that it was away.
    pub(crate) fn on_away(&mut self, seat: Seat, away: Away) {
        let back = self.backs.entry(seat).or_default();
        *back = away.back.max(*back);
    }

    /// Whether a home that has just begun may not believe an owner that it has a copy: it missed a map since that was written,
    /// and nobody knows what was removed then, or that it stayed.
    fn may_be_cold(&self, seat: Seat, place: CopyPlace) -> bool {
        let back = self.backs.get(&seat);
        self.has_cold && back.is_some_and(|back| place.version.epoch < *back)
    }

    /// Whether a copy was ordered to be dropped, because of others of which none need be there any more.
    fn is_leaving(&self, life: &Life, place: CopyPlace, to: Time) -> bool {
        let Some(ordered) = life
            .ordered
            .filter(|at| to < at_ms(at.as_ns() / MS + BELIEVED_MS))
        else {
            return false;
        };
        let others = self.lives[&place]
            .iter()
            .filter(|other| other.seat != life.seat);
        let mut ended = others.filter(|other| other.to < Time::MAX);
        ended.any(|other| ordered <= other.to)
    }

    /// Whether an earlier put of its key has come back since: of two puts the earlier one wins.
    fn is_beaten(&self, place: CopyPlace, to: Time) -> bool {
        let begun = self.lives.get(&place).into_iter().flatten();
        let begun = begun.map(|life| life.from).min();
        let earlier = self.lives.iter();
        let earlier =
            earlier.filter(|(other, _)| other.key == place.key && other.version < place.version);
        let mut back = earlier.flat_map(|(_, lives)| lives);
        back.any(|life| life.is_replica && life.from <= to && Some(life.from) > begun)
    }

    fn is_absent(&self, seat: Seat, from: Time, to: Time) -> bool {
        let mut absences = self.absences.iter();
        absences.any(|&(of, begin, end)| {
            let is_same = (of.node, of.incarnation) == (seat.node, seat.incarnation);
            let end = at_ms(end.as_ns() / MS + BELIEVED_MS);
            is_same && from <= end && begin <= to
        })
    }

    /// A life of a node is in no map from now on.
    pub(crate) fn on_absent(&mut self, seat: Seat, now: Time) {
        self.absences.push((seat, now, at_ms(u64::MAX / MS / 2)));
    }

    pub(crate) fn on_present(&mut self, seat: Seat, now: Time) {
        for (of, _, end) in &mut self.absences {
            if *of == seat && *end > now {
                *end = now;
            }
        }
    }

    pub(crate) fn on_raise(&mut self, now: Time, generation: u64) {
        self.raises.push((now, generation));
    }

    /// Everybody who may be serving has heard of this generation.
    pub(crate) fn on_generation(&mut self, now: Time, generation: u64) {
        let known = self.raises_done.last().map_or(0, |raise| raise.1);
        if generation > known {
            self.raises_done.push((now, generation));
        }
    }

    /// A copy is there.
    pub(crate) fn on_copy(
        &mut self,
        now: Time,
        seat: Seat,
        place: CopyPlace,
        (value, generation): (u64, u64),
        is_replica: bool,
    ) {
        let known = self.values.entry(place).or_insert((value, generation));
        if known.0 != value {
            let text = format!("{place:?} is of value {} and of {value}", known.0);
            self.fail(now, &text);
        }
        let life = Life {
            seat,
            is_replica,
            from: now,
            to: Time::MAX,
            ordered: None,
            cause: None,
        };
        self.lives.entry(place).or_default().push(life);
    }

    /// The copy of `owner` that a lookup has found.
    pub(crate) fn place_found(
        &self,
        asker: usize,
        id: OperationId,
        owner: Seat,
        version: Version,
    ) -> Option<CopyPlace> {
        let key = self.operations.get(&(asker, id))?.key;
        let place = CopyPlace { key, version };
        let mut lives = self.lives.get(&place)?.iter();
        let is_there = lives.any(|life| life.seat == owner && life.cause.is_none());
        is_there.then_some(place)
    }

    /// An owner asks to let a copy go: from now on it need not be found.
    pub(crate) fn on_evict(&mut self, now: Time, seat: Seat, place: CopyPlace) {
        for life in self.lives.get_mut(&place).into_iter().flatten() {
            if life.seat == seat && life.cause.is_none() {
                life.to = now;
            }
        }
    }

    /// A home orders a copy to be dropped.
    pub(crate) fn on_order(&mut self, now: Time, seat: Seat, place: CopyPlace) {
        for life in self.lives.get_mut(&place).into_iter().flatten() {
            if life.seat == seat && life.cause.is_none() {
                life.ordered = Some(now);
            }
        }
    }

    pub(crate) fn on_hold(&mut self, seat: Seat, place: CopyPlace, until: Time) {
        let known = self.holds.entry((seat, place)).or_insert(until);
        *known = until.max(*known);
    }

    /// A copy was freed; `local` is the owner's own time.
    pub(crate) fn on_free(
        &mut self,
        now: Time,
        local: Time,
        seat: Seat,
        place: CopyPlace,
        cause: FreeCause,
    ) {
        for life in self.lives.get_mut(&place).into_iter().flatten() {
            if life.seat == seat && life.cause.is_none() {
                (life.to, life.cause) = (now.min(life.to), Some(Gone::Freed(cause)));
            }
        }
        let until = self.holds.remove(&(seat, place));
        match cause {
            FreeCause::Evicted => {
                self.count("evicted");
                if until.is_some_and(|until| local < until) {
                    self.fail(now, &format!("{place:?} was held and evicted"));
                }
            }
            FreeCause::Ordered => self.judge_order(now, seat, place),
            FreeCause::Cleared => self.count("cleared"),
            FreeCause::Unrecorded => self.count("unrecorded"),
        }
    }

    fn judge_order(&mut self, now: Time, seat: Seat, place: CopyPlace) {
        self.count("ordered");
        if !self.had_to_go(now, seat, place) {
            self.fail(
                now,
                &format!("{place:?} of {seat:?} was dropped without a reason"),
            );
        }
    }

    fn had_to_go(&self, now: Time, seat: Seat, place: CopyPlace) -> bool {
        let CopyPlace { key, version } = place;
        let mut changes = self.changes(key).filter(|change| change.start <= now);
        let is_changed = changes.any(|change| match change.how {
            End::Undone => false,
            End::Done { version: its, .. } => its > version,
            _ => true,
        });
        let is_cleared = self
            .raises
            .iter()
            .any(|(_, raised)| *raised > self.values[&place].1);
        // What is gone may have been relied on until everybody had heard of it.
        let is_recent =
            |life: &Life| now.as_ns() <= life.to.as_ns().saturating_add(BELIEVED_MS * MS);
        let mut rivals = self
            .lives
            .iter()
            .filter(|(other, _)| other.key == key && other.version < version);
        let has_rival = rivals.any(|(_, lives)| lives.iter().any(is_recent));
        let others = self.lives[&place].iter().filter(|life| life.seat != seat);
        let is_surplus = others.into_iter().any(|life| match life.cause {
            None => true,
            Some(Gone::Freed(FreeCause::Ordered)) => false,
            // It may have been asked for long before it was granted.
            Some(Gone::Freed(FreeCause::Evicted)) => true,
            Some(_) => is_recent(life),
        });
        let is_cold = self.may_be_cold(seat, place);
        [is_changed, is_cleared, has_rival, is_surplus, is_cold].contains(&true)
    }

    /// A life of a node ends, and all that it held.
    pub(crate) fn on_kill(&mut self, now: Time, node: Seat) {
        for life in self.lives.values_mut().flatten() {
            let is_there = (life.seat.node, life.seat.incarnation) == (node.node, node.incarnation);
            if is_there && life.cause.is_none() {
                (life.to, life.cause) = (now, Some(Gone::Killed));
            }
        }
    }

    /// The order of versions is the order of time.
    pub(crate) fn judge_order_of_versions(&mut self, now: Time) {
        let mut failures = Vec::new();
        let done = self
            .operations
            .values()
            .filter_map(|operation| match operation.how {
                End::Done {
                    version,
                    is_sure: true,
                } => Some((operation, version)),
                _ => None,
            });
        let done: Vec<_> = done.collect();
        for (first, version) in &done {
            for (second, later) in &done {
                let is_same_key = first.key == second.key;
                if is_same_key && first.end < second.start && version >= later {
                    failures.push(format!("{first:?} ended before {second:?} began"));
                }
            }
        }
        for failure in failures {
            self.fail(now, &failure);
        }
    }

    pub(crate) fn fail_at_end(&mut self, now: Time, text: &str) {
        self.fail(now, &format!("at the end: {text}"));
    }
}
