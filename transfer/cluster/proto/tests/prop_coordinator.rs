//! The embedded coordinator against a small model: a map of keys, and watches that replay into one.

use std::collections::BTreeMap;

use lunette_cluster_proto::coordination::{
    Ask, Change, KeyRange, Op, OpOutcome, Outcome, Revision, WatchFrom,
};
use lunette_cluster_proto::coordinator::{Coordinator, WatchId};
use lunette_generate::coordination::Step;
use lunette_generate::{Bytes, Source};
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const TTL_S: u64 = 3;

/// What should be there.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, (u8, Option<u8>)>,
    /// When each lease ends.
    leases: BTreeMap<u8, u64>,
}

impl Model {
    fn end(&mut self, lease: u8) {
        self.leases.remove(&lease);
        self.keys.retain(|_, (_, bound)| *bound != Some(lease));
    }

    fn expire(&mut self, now: u64) {
        let due = self.leases.iter().filter(|(_, end)| **end <= now);
        let due: Vec<u8> = due.map(|(lease, _)| *lease).collect();
        due.into_iter().for_each(|lease| self.end(lease));
    }
}

/// Both, and a watch from the beginning that is asked now and then.
struct Pair {
    coordinator: Coordinator,
    model: Model,
    now: u64,
    watch: Option<WatchId>,
    replayed: BTreeMap<u8, u8>,
    last: Revision,
}

impl Pair {
    fn ask(&mut self, ask: Ask) -> Option<Outcome> {
        self.model.expire(self.now);
        let before = self.coordinator.revision();
        let answer = self.coordinator.handle(Time::from_ns(self.now), &ask);
        assert!(self.coordinator.revision() >= before);
        answer.ok().map(|answer| answer.outcome)
    }

    fn pairs(&mut self) -> BTreeMap<u8, (u8, Revision)> {
        let everything = KeyRange {
            start: vec![0],
            end: Some(vec![0xff]),
        };
        let Some(Outcome::Op(OpOutcome::Range(pairs))) = self.ask(Ask::Op(Op::Range(everything)))
        else {
            unreachable!("reading is always answered");
        };
        let pairs = pairs.into_iter();
        pairs
            .map(|pair| (pair.key[0], (pair.value[0], pair.modified)))
            .collect()
    }

    /// What a step asks, and what came of it.
    fn ask_of(&mut self, step: Step, modified: Revision) -> Option<Outcome> {
        let ttl_s = u32::try_from(TTL_S).expect("small");
        let ask = step.ask(|key| vec![key], |value| vec![value], ttl_s, modified);
        self.ask(ask.expect("it asks something"))
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Pass { tenths } => self.now += u64::from(tenths) * SECOND / 10,
            Step::Compact => {
                let revision = self.coordinator.revision();
                self.coordinator.compact(revision);
            }
            Step::Restart => self.restart(),
            Step::Swap {
                keys,
                value,
                is_right,
            } => self.swap(step, keys, value, is_right),
            step => {
                let outcome = self.ask_of(step, Revision(0));
                self.compare(step, outcome);
            }
        }
    }

    /// What the model says to a step, and has of it.
    fn compare(&mut self, step: Step, outcome: Option<Outcome>) {
        let done = outcome.is_some();
        match step {
            Step::Put { key, value, lease } => {
                let is_leased = lease.is_none_or(|lease| self.model.leases.contains_key(&lease));
                assert_eq!(done, is_leased);
                if done {
                    self.model.keys.insert(key, (value, lease));
                }
            }
            Step::Delete { from, to } => {
                let before = self.model.keys.len();
                self.model.keys.retain(|key, _| !(from..to).contains(key));
                let deleted = (before - self.model.keys.len()) as u64;
                assert_eq!(outcome, Some(Outcome::Op(OpOutcome::Delete { deleted })));
            }
            Step::Read(key) => {
                let Some(Outcome::Op(OpOutcome::Range(pairs))) = outcome else {
                    unreachable!("reading is always answered");
                };
                let value = pairs.first().map(|pair| pair.value[0]);
                assert_eq!(value, self.model.keys.get(&key).map(|(value, _)| *value));
            }
            Step::Grant(lease) => {
                assert_eq!(done, !self.model.leases.contains_key(&lease));
                if done {
                    self.model.leases.insert(lease, self.now + TTL_S * SECOND);
                }
            }
            Step::KeepAlive(lease) => {
                assert_eq!(done, self.model.leases.contains_key(&lease));
                if done {
                    self.model.leases.insert(lease, self.now + TTL_S * SECOND);
                }
            }
            Step::Revoke(lease) => {
                assert_eq!(done, self.model.leases.contains_key(&lease));
                self.model.end(lease);
            }
            step => unreachable!("{step:?} is no question of this kind"),
        }
    }

    fn swap(&mut self, step: Step, (first, second): (u8, u8), value: u8, is_right: bool) {
        let modified = self
            .pairs()
            .get(&first)
            .map_or(0, |(_, revision)| revision.0);
        let outcome = self.ask_of(step, Revision(modified));
        if is_right && first == second {
            assert_eq!(outcome, None, "a key is put once in a transaction");
            return;
        }
        let succeeded = matches!(
            outcome,
            Some(Outcome::Txn {
                succeeded: true,
                ..
            })
        );
        assert_eq!(succeeded, is_right);
        if succeeded {
            self.model.keys.insert(first, (value, None));
            self.model.keys.insert(second, (value, None));
        }
    }

    fn restart(&mut self) {
        // Leases that were due have ended before; the others begin anew.
        self.model.expire(self.now);
        self.coordinator.on_timeout(Time::from_ns(self.now));
        let bytes = self.coordinator.snapshot();
        let restored = Coordinator::restore(Time::from_ns(self.now), &bytes);
        self.coordinator = restored.expect("it is its own snapshot");
        for end in self.model.leases.values_mut() {
            *end = self.now + TTL_S * SECOND;
        }
        self.watch = None;
    }

    /// Takes in what the watch tells; one that has ended begins anew from everything.
    fn look(&mut self) {
        let told = match self.watch {
            None => None,
            Some(watch) => self.coordinator.poll_watch(watch).ok(),
        };
        match told {
            Some(changes) => changes
                .into_iter()
                .flatten()
                .for_each(|change| self.replay(&change)),
            None => {
                let pairs = self.pairs();
                self.replayed = pairs
                    .into_iter()
                    .map(|(key, (value, _))| (key, value))
                    .collect();
                self.last = self.coordinator.revision();
                let revision = self.last.next();
                let range = KeyRange {
                    start: vec![0],
                    end: Some(vec![0xff]),
                };
                let watch = self.coordinator.watch(WatchFrom { range, revision });
                self.watch = Some(watch.expect("the future is always kept"));
            }
        }
    }

    fn replay(&mut self, change: &Change) {
        assert!(change.revision() >= self.last, "in order");
        self.last = change.revision();
        match change {
            Change::Put(pair) => drop(self.replayed.insert(pair.key[0], pair.value[0])),
            Change::Delete { key, .. } => {
                assert!(
                    self.replayed.remove(&key[0]).is_some(),
                    "what is removed was there"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn it_keeps_what_the_model_keeps_and_watches_tell_all_of_it(
        bytes in vec(any::<u8>(), 1..300),
    ) {
        let mut pair = Pair {
            coordinator: Coordinator::default(),
            model: Model::default(),
            now: SECOND,
            watch: None,
            replayed: BTreeMap::new(),
            last: Revision(0),
        };
        let mut source = Bytes::new(&bytes);
        while !source.is_spent() {
            pair.apply(Step::draw(&mut source));
            if source.flag() {
                pair.look();
            }
        }
        let pairs = pair.pairs();
        let values = |pairs: &BTreeMap<u8, (u8, Revision)>| -> BTreeMap<u8, u8> {
            pairs.iter().map(|(key, (value, _))| (*key, *value)).collect()
        };
        let expected: BTreeMap<u8, u8> = pair.model.keys.iter().map(|(key, (value, _))| (*key, *value)).collect();
        prop_assert_eq!(values(&pairs), expected);
        pair.look();
        prop_assert_eq!(&pair.replayed, &values(&pairs));
    }
}
