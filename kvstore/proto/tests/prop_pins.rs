//! Pinned copies and the order in which copies leave memory, beside a model.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::residence::{Arrival, HARD_PINNED_SHARE, NoRoom, Residence};
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_kvstore_proto::version::Version;
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;

const LOW_BYTES: u64 = 3_000;
const HIGH_BYTES: u64 = 4_000;
const EXTENT_BYTES: u32 = 100;

#[derive(Clone, Copy, Debug)]
enum Step {
    Keep(Pin),
    Read(prop::sample::Index),
    Remove(prop::sample::Index),
    /// Whoever is told leaves, cannot, or stays after all.
    MakeRoom([Fate; 4]),
    Wait(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Leaves,
    IsSpared,
    Stays,
}

fn step() -> impl Strategy<Value = Step> {
    let soft = (1..3_000_u32).prop_map(|ttl_ms| Pin::Soft { ttl_ms });
    let pin = prop_oneof![3 => Just(Pin::None), 2 => soft, 1 => Just(Pin::Hard)];
    let fate = prop_oneof![
        4 => Just(Fate::Leaves),
        1 => Just(Fate::IsSpared),
        1 => Just(Fate::Stays),
    ];
    prop_oneof![
        6 => pin.prop_map(Step::Keep),
        2 => any::<prop::sample::Index>().prop_map(Step::Read),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        2 => prop::array::uniform4(fate).prop_map(Step::MakeRoom),
        1 => any::<u16>().prop_map(Step::Wait),
    ]
}

/// What is known of a copy that is here.
#[derive(Clone, Copy, Debug)]
struct Known {
    pin: Pin,
    since: Time,
    /// It was spared, and is not told again before others were.
    is_spared: bool,
}

impl Known {
    fn is_pinned(&self, now: Time) -> bool {
        match self.pin {
            Pin::None => false,
            Pin::Soft { ttl_ms } => now < self.since + Duration::from_millis(ttl_ms.into()),
            Pin::Hard => true,
        }
    }
}

struct World {
    memory: Residence,
    model: BTreeMap<u64, Known>,
    now: Time,
    next: u64,
}

fn place(number: u64) -> CopyPlace {
    CopyPlace {
        key: Fingerprint(number.into()),
        version: Version {
            epoch: Epoch(1),
            sequence: number,
        },
    }
}

impl World {
    fn new() -> Self {
        let limits = ShardLimits::new(HIGH_BYTES, LOW_BYTES, 1000).expect("limits");
        Self {
            memory: Residence::new(limits),
            model: BTreeMap::new(),
            now: Time::ZERO,
            next: 0,
        }
    }

    fn hard_bytes(&self) -> u64 {
        let hard = self.model.values().filter(|known| known.pin == Pin::Hard);
        hard.count() as u64 * u64::from(EXTENT_BYTES)
    }

    fn keep(&mut self, pin: Pin) {
        match self.memory.admit(EXTENT_BYTES, pin, TenantTag::DEFAULT) {
            Ok(id) => {
                let number = self.next;
                self.next += 1;
                (self.memory).reside(self.now, id, place(number), Arrival::default());
                let known = Known {
                    pin,
                    since: self.now,
                    is_spared: false,
                };
                self.model.insert(number, known);
            }
            Err(NoRoom::Pinned { pinned_bytes, .. }) => {
                assert_eq!((pin, pinned_bytes), (Pin::Hard, self.hard_bytes()));
                let after = pinned_bytes + u64::from(EXTENT_BYTES);
                assert!(after > LOW_BYTES / HARD_PINNED_SHARE, "{pinned_bytes}");
            }
            Err(_full) => {
                let used_bytes = self.model.len() as u64 * u64::from(EXTENT_BYTES);
                assert_eq!(used_bytes, HIGH_BYTES, "there was room");
            }
        }
    }

    fn some(&self, index: prop::sample::Index) -> Option<u64> {
        let all: Vec<_> = self.model.keys().copied().collect();
        (!all.is_empty()).then(|| *index.get(&all))
    }

    fn make_room(&mut self, fates: [Fate; 4]) {
        let told = self.memory.victims(self.now, true);
        let numbers: Vec<_> = told.iter().map(|place| place.version.sequence).collect();
        for (at, number) in numbers.iter().enumerate() {
            let known = self.model[number];
            assert_ne!(known.pin, Pin::Hard, "{number} never leaves");
            if known.is_pinned(self.now) {
                let first = self.model.iter().find(|(other, known)| {
                    let is_as_others = !known.is_pinned(self.now) && !known.is_spared;
                    is_as_others && !numbers[..at].contains(other)
                });
                assert!(first.is_none(), "{number} is told, and {first:?} is not");
            }
        }
        for (place, fate) in told.into_iter().zip(fates.into_iter().cycle()) {
            let number = place.version.sequence;
            match fate {
                Fate::Leaves => {
                    self.memory.leave(place);
                    assert!(self.memory.free(place).is_some());
                    self.model.remove(&number);
                }
                Fate::IsSpared => {
                    self.memory.spare(place);
                    let known = self.model.get_mut(&number).expect("here");
                    known.is_spared = true;
                }
                Fate::Stays => {
                    self.memory.leave(place);
                    self.memory.stay(place);
                }
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.memory.stats().hard_pinned_bytes, self.hard_bytes());
        for (number, known) in &self.model {
            let pin = self.memory.pin_of(self.now, place(*number));
            assert_eq!(pin != Pin::None, known.is_pinned(self.now), "{number}");
        }
    }
}

proptest! {
    #[test]
    fn what_is_pinned_outlasts_the_rest(steps in vec(step(), 1..300)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Keep(pin) => world.keep(pin),
                Step::Read(index) => {
                    if let Some(number) = world.some(index) {
                        let id = world.memory.pin(place(number)).expect("here");
                        world.memory.unpin(id);
                    }
                }
                Step::Remove(index) => {
                    if let Some(number) = world.some(index) {
                        prop_assert!(world.memory.free(place(number)).is_some());
                        world.model.remove(&number);
                    }
                }
                Step::MakeRoom(fates) => world.make_room(fates),
                Step::Wait(ms) => world.now = world.now + Duration::from_millis(ms.into()),
            }
            world.check();
        }
    }
}
