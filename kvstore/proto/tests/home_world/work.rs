//! What the askers of a world want, and how it is at the end.

use std::collections::{BTreeMap, BTreeSet};

use lunette_kvstore_proto::asker::{Asker, AskerAction, OperationId, Outcome, ReadAnswer, Wish};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{Answer, CopyPlace, Found, HoldWish, Only};
use lunette_kvstore_proto::owner::{EvictRefusal, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::{CopyInfo, Form, Version, WriteKind};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use super::oracle::What;
use super::traffic::Mail;
use super::{Event, WORK_END_MS, World, at_ms};

impl World {
    pub(crate) fn some_seat(&mut self) -> Seat {
        let count = u32::try_from(self.nodes.len()).expect("few");
        let node = self.random.below(count) as usize;
        let cores = u32::try_from(self.nodes[node].cores.len()).expect("few");
        let core = self.random.below(cores) as usize;
        self.nodes[node].seat(core)
    }

    /// Somebody wants something, or a node does.
    pub(crate) fn work(&mut self) {
        if self.now >= at_ms(WORK_END_MS) {
            return;
        }
        let us = 1000 + u64::from(self.random.below(16_000));
        self.after(us, Event::Work);
        match self.random.below(24) {
            0 => return self.evict(),
            1 => return self.repair(),
            _ => {}
        }
        let mut asker = self.random.below(3) as usize;
        let count = u32::try_from(self.keys.len()).expect("few");
        let mut key = self.keys[self.random.below(count) as usize];
        let (mut wish, what) = self.wish(key);
        let is_change = match what {
            What::Get => false,
            What::Remove => true,
            What::Write { kind, .. } => kind == WriteKind::Upsert,
        };
        if is_change && !self.ends_all && self.random.below(8) != 0 {
            // Most changes are of few keys, so that other objects live to see a fault.
            key = self.keys[self.random.below(2) as usize];
            if let Wish::Write(_, ask) = &mut wish {
                ask.key = key;
            }
        }
        if self.has_direct_puts {
            asker = self.put_inside(asker, &mut wish);
        }
        let until =
            self.now + core::time::Duration::from_millis(u64::from(self.random.below(1500)) + 200);
        let namespace = self.namespace;
        if let What::Write { value, .. } = what {
            // Its number is known before it begins: they are counted.
            self.last_value = value;
        }
        let mut out = Vec::new();
        let machine = &mut self.askers[asker].machine;
        let begun = machine.begin(self.now, key, namespace, wish, until, &mut out);
        let id = begun.expect("few operations");
        self.oracle.begin(self.now, asker, id, key, what);
        if let What::Write { value, .. } = what {
            self.askers[asker].values.insert(id, value);
        }
        self.do_asker(asker, out);
    }

    /// Lets an asker beside the home, if there is one, write there: every other time, so that such writes meet those
    /// that are claimed from elsewhere.
    fn put_inside(&self, asker: usize, wish: &mut Wish) -> usize {
        let Wish::Write(seat, ask) = wish else {
            return asker;
        };
        if !self.last_value.is_multiple_of(2) {
            return asker;
        }
        let mut askers = self.askers.iter();
        let inside = home_of(&self.map, ask.key).and_then(|home| {
            let node = self.index_of(home)?;
            let asker = askers.position(|asker| asker.beside == node)?;
            Some((home, asker))
        });
        if let Some((home, _)) = inside {
            *seat = home;
        }
        inside.map_or(asker, |(_, asker)| asker)
    }

    fn wish(&mut self, key: Fingerprint) -> (Wish, What) {
        let kind = match self.random.below(100) {
            0..45 => return (Wish::Get, What::Get),
            45..55 => {
                let ttl_ms = 50 + self.random.below(1000);
                let hold = HoldWish { holder: 1, ttl_ms };
                return (Wish::Lookup(Some(hold)), What::Get);
            }
            55..62 => return (Wish::Remove(Only::Any), What::Remove),
            62..68 => WriteKind::Upsert,
            _ => WriteKind::Put,
        };
        let value = self.last_value + 1;
        let wanted = u8::try_from(1 + key.0 % 3).expect("small");
        let namespace = self.namespace;
        let ask = WriteAsk {
            key,
            kind,
            form: Form::Whole,
            namespace,
            wanted,
            wait_ms: 1000,
            retention: Retention::default(),
        };
        (
            Wish::Write(self.some_seat(), ask),
            What::Write { kind, value },
        )
    }

    pub(crate) fn value_of(&self, asker: usize, request: RequestId) -> u64 {
        // A write that has just begun is not listed yet; it is the newest.
        let id = self.askers[asker]
            .machine
            .operation_of(request)
            .expect("it asks");
        let values = &self.askers[asker].values;
        values.get(&id).copied().unwrap_or(self.last_value)
    }

    /// One of the copies that some owner serves.
    fn some_copy(&mut self) -> Option<(Seat, CopyPlace, CopyInfo)> {
        let seat = self.some_seat();
        let node = self.index_of(seat)?;
        let core = &self.nodes[node].cores[usize::from(seat.core.0)];
        let served: Vec<_> = core.owner.served().collect();
        let count = u32::try_from(served.len()).expect("few");
        if count == 0 {
            return None;
        }
        let (place, info) = served[self.random.below(count) as usize];
        Some((seat, place, info))
    }

    /// An owner thinks that there are copies too few.
    fn repair(&mut self) {
        if let Some((from, place, info)) = self.some_copy() {
            let core = &self.nodes[self.index_of(from).expect("it serves")].cores;
            let value = core[usize::from(from.core.0)].stored[&place];
            let to = self.some_seat();
            if to.node != from.node {
                self.post(Mail::Replica(from, to, place.key, info, value));
            }
        }
    }

    /// Memory is short somewhere.
    fn evict(&mut self) {
        if let Some((seat, place, _)) = self.some_copy() {
            let mut is_leaving = false;
            self.at_owner(seat, |owner, now, out| {
                match owner.evict(now, place, 1, out) {
                    Ok(()) => is_leaving = true,
                    Err(EvictRefusal::Held { until }) => {
                        assert!(owner.is_held(now, place) && !owner.is_held(until, place));
                    }
                    Err(EvictRefusal::NotPublished) => unreachable!("it is served"),
                }
            });
            if is_leaving {
                self.oracle.on_evict(self.now, seat, place);
            }
        }
    }

    pub(crate) fn at_asker(
        &mut self,
        asker: usize,
        tell: impl FnOnce(&mut Asker, Time, &mut Vec<AskerAction>),
    ) {
        let mut out = Vec::new();
        tell(&mut self.askers[asker].machine, self.now, &mut out);
        self.do_asker(asker, out);
    }

    pub(crate) fn at_asker_reading(
        &mut self,
        asker: usize,
        request: RequestId,
        answer: ReadAnswer,
        read: (u64, bool),
    ) {
        if let Some(id) = self.askers[asker].machine.operation_of(request) {
            self.askers[asker].reads.insert(id, read);
        }
        self.at_asker(asker, |machine, now, out| {
            machine.on_read(now, request, answer, out)
        });
    }

    pub(crate) fn at_asker_brought(
        &mut self,
        asker: usize,
        request: RequestId,
        (from, version): (Seat, Version),
        read: (u64, bool),
    ) {
        let found = Found {
            version,
            form: Form::Whole,
            len_bytes: 0,
            crc32c: 0,
            held_ms: 0,
            owners: vec![from],
        };
        let mut out = Vec::new();
        let machine = &mut self.askers[asker].machine;
        machine.on_answer(self.now, request, Answer::Found(found), &mut out);
        match out[..] {
            [AskerAction::Read { request, .. }] => {
                self.at_asker_reading(asker, request, ReadAnswer::Bytes, read);
            }
            // It was a lookup, or is over.
            _ => self.do_asker(asker, out),
        }
    }

    pub(crate) fn tick_asker(&mut self, asker: usize) {
        self.at_asker(asker, |machine, now, out| machine.on_tick(now, out));
    }

    pub(crate) fn done(&mut self, asker: usize, id: OperationId, outcome: &Outcome) {
        let read = self.askers[asker].reads.remove(&id);
        if let Outcome::Found(found) = outcome
            && found.held_ms > 0
        {
            self.note_hold(asker, id, found.owners[0], (found.version, found.held_ms));
        }
        self.oracle.end(self.now, asker, id, outcome, read);
    }

    fn note_hold(
        &mut self,
        asker: usize,
        id: OperationId,
        owner: Seat,
        (version, held_ms): (Version, u32),
    ) {
        let place = self.oracle.place_found(asker, id, owner, version);
        if let (Some(place), Some(node)) = (place, self.index_of(owner)) {
            let local = self.nodes[node].local(self.now);
            // The answer was under way for a while, so it is held for less than that from now on.
            let left = u64::from(held_ms).saturating_sub(500) * 9 / 10;
            let until = local + core::time::Duration::from_millis(left);
            self.oracle.on_hold(owner, place, until);
        }
    }

    /// Long after the last fault.
    pub(crate) fn judge_end(&mut self) {
        self.oracle.judge_order_of_versions(self.now);
        let mut shown: BTreeSet<(Fingerprint, Seat, CopyPlace)> = BTreeSet::new();
        let mut served = BTreeSet::new();
        let mut wanted: BTreeMap<CopyPlace, (usize, usize)> = BTreeMap::new();
        let mut failures = Vec::new();
        let cores = self.nodes.iter().flat_map(|node| &node.cores);
        for stats in cores.map(|core| core.home.stats()) {
            self.oracle.add("surplus", stats.surplus);
            self.oracle.add("losers", stats.losers);
            self.oracle.add("cold", stats.cold);
            self.oracle.add("repairs", stats.repairs);
        }
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        let takers = alive.clone().filter(|node| !node.is_draining).count();
        self.oracle.add("emptied", (alive.count() - takers) as u64);
        for node in self.nodes.iter().filter(|node| node.is_alive) {
            for core in &node.cores {
                let seat = core.home.seat();
                if !core.home.is_complete() || !core.home.is_idle() {
                    failures.push(format!("home {seat:?} is not done: {:?}", core.home));
                }
                if takers > 0 && !core.owner.is_idle() {
                    failures.push(format!("owner {seat:?} is not done: {:?}", core.owner));
                }
                for (key, seat, info) in core.home.shown() {
                    let place = CopyPlace {
                        key,
                        version: info.version,
                    };
                    shown.insert((key, seat, place));
                }
                for (place, info) in core.owner.served() {
                    served.insert((place.key, seat, place));
                    if node.is_draining && takers > 0 {
                        failures.push(format!("{seat:?} is not empty: {place:?}"));
                    }
                    let entry = wanted.entry(place).or_default();
                    *entry = (entry.0 + 1, usize::from(info.wanted));
                }
            }
        }
        for ghost in shown.difference(&served) {
            failures.push(format!("a home shows {ghost:?}, which is not served"));
        }
        for orphan in served.difference(&shown) {
            failures.push(format!("{orphan:?} is served, and shown by no home"));
        }
        let mut keys = BTreeSet::new();
        for (place, (count, wanted)) in wanted {
            if count > wanted || !keys.insert(place.key) {
                failures.push(format!("{place:?} is surplus: {count} of {wanted}"));
            }
            if count < wanted.min(takers) {
                failures.push(format!("{place:?} is scarce: {count} of {wanted}"));
            }
        }
        if self
            .askers
            .iter()
            .any(|asker| asker.machine.under_way() > 0)
        {
            failures.push("operations are under way".to_owned());
        }
        for failure in failures {
            self.oracle.fail_at_end(self.now, &failure);
        }
    }
}
