//! Memory of several tenants, beside a model that counts: whoever gives has most, whatever came and went before.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::residence::{Arrival, Residence};
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_kvstore_proto::version::Version;
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;

const BYTES: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An object of this tenant, of so many bytes, if there is room.
    Keep(u64, u32),
    /// The nth that is there is read.
    Read(usize),
    /// It is removed.
    Remove(usize),
    /// Room is made.
    MakeRoom,
    /// The nth that leaves is gone, or stays.
    End(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u64..4, 1_u32..900).prop_map(|(tenant, bytes)| Step::Keep(tenant, bytes)),
        2 => any::<usize>().prop_map(Step::Read),
        1 => any::<usize>().prop_map(Step::Remove),
        3 => Just(Step::MakeRoom),
        2 => any::<(usize, bool)>().prop_map(|(nth, is_gone)| Step::End(nth, is_gone)),
    ]
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

/// What is there: of whom, how long, and whether it leaves.
#[derive(Default)]
struct Model {
    objects: BTreeMap<u64, (u64, u32, bool)>,
    numbers: u64,
}

impl Model {
    fn nth(&self, nth: usize, leaves: bool) -> Option<u64> {
        let of_them = self.objects.iter().filter(|(_, object)| object.2 == leaves);
        let numbers: Vec<u64> = of_them.map(|(&number, _)| number).collect();
        numbers.get(nth.checked_rem(numbers.len())?).copied()
    }

    fn staying(&self) -> BTreeMap<u64, u64> {
        let mut sizes = BTreeMap::new();
        for &(tenant, bytes, leaves) in self.objects.values() {
            if !leaves {
                *sizes.entry(tenant).or_default() += u64::from(bytes);
            }
        }
        sizes
    }

    /// Each that is told is of one that has most by then.
    fn check(&self, told: &[CopyPlace]) -> Result<(), TestCaseError> {
        let mut sizes = self.staying();
        for victim in told {
            let (tenant, bytes, leaves) = self.objects[&victim.version.sequence];
            prop_assert!(!leaves);
            let most = sizes.values().max().copied();
            let size = sizes.get_mut(&tenant).expect("it has some");
            prop_assert_eq!(Some(*size), most, "{}", tenant);
            *size -= u64::from(bytes);
        }
        Ok(())
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let limits = ShardLimits::new(BYTES, BYTES * 4 / 5, 10_000).expect("limits");
    let (mut memory, mut model) = (Residence::new(limits), Model::default());
    for step in steps {
        match step {
            Step::Keep(tenant, bytes) => {
                let Ok(id) = memory.admit(bytes, Pin::None, TenantTag(tenant)) else {
                    continue;
                };
                model.numbers += 1;
                memory.reside(Time::ZERO, id, place(model.numbers), Arrival::default());
                model.objects.insert(model.numbers, (tenant, bytes, false));
            }
            Step::Read(nth) => {
                if let Some(number) = model.nth(nth, false) {
                    let id = memory.pin(place(number)).expect("it is there");
                    prop_assert!(!memory.unpin(id));
                }
            }
            Step::Remove(nth) => {
                if let Some(number) = model.nth(nth, false) {
                    prop_assert!(memory.free(place(number)).is_some());
                    model.objects.remove(&number);
                }
            }
            Step::MakeRoom => {
                let told = memory.victims(Time::ZERO, true);
                model.check(&told)?;
                for victim in told {
                    memory.leave(victim);
                    let object = model.objects.get_mut(&victim.version.sequence);
                    object.expect("it is there").2 = true;
                }
            }
            Step::End(nth, is_gone) => {
                let Some(number) = model.nth(nth, true) else {
                    continue;
                };
                if is_gone {
                    prop_assert!(memory.free(place(number)).is_some());
                    model.objects.remove(&number);
                } else {
                    memory.stay(place(number));
                    model.objects.get_mut(&number).expect("it is there").2 = false;
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn who_has_most_gives(steps in vec(step(), 0..300)) {
        run(steps)?;
    }
}
