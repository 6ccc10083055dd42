//! The default policy against a model that looks at every block.

use std::collections::{BTreeMap, BTreeSet};

use lunette_kvstore_policy::class::{Found, Use};
use lunette_kvstore_policy::{Learned, Policy};
use proptest::prelude::*;

const SLOTS: u32 = 12;
const GHOSTS_MAX: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    Insert { slot: u32, key: u64, used: Use },
    Touch { slot: u32, used: Use },
    Withhold(u32),
    Offer(u32),
    EvictVictim,
    Remove(u32),
}

fn used() -> impl Strategy<Value = Use> {
    (any::<bool>(), 0..Found::ALL.len()).prop_map(|(is_last, found)| Use {
        is_last,
        found: Found::ALL[found],
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SLOTS, 0_u64..30, used()).prop_map(|(slot, key, used)| Step::Insert { slot, key, used }),
        4 => (0..SLOTS, used()).prop_map(|(slot, used)| Step::Touch { slot, used }),
        1 => (0..SLOTS).prop_map(Step::Withhold),
        1 => (0..SLOTS).prop_map(Step::Offer),
        3 => Just(Step::EvictVictim),
        1 => (0..SLOTS).prop_map(Step::Remove),
    ]
}

/// Slots by key, and those that are withheld.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u32, u64>,
    withheld: BTreeSet<u32>,
    gone: BTreeSet<u64>,
}

fn check(policy: &mut Learned, model: &Model, was_reordered: bool) {
    assert!(policy.ghosts() <= GHOSTS_MAX);
    let offered: Vec<u32> = model
        .keys
        .keys()
        .copied()
        .filter(|slot| !model.withheld.contains(slot))
        .collect();
    let victim = policy.victim();
    assert_eq!(victim.is_some(), !offered.is_empty());
    let Some(victim) = victim else { return };
    assert!(offered.contains(&victim), "{victim} is not offered");
    if !was_reordered {
        let least = offered
            .iter()
            .map(|&slot| policy.chance(slot))
            .fold(f64::MAX, f64::min);
        assert_eq!(policy.chance(victim), least);
    }
    for &key in &model.gone {
        assert!(!policy.remembers(key) || !model.keys.values().any(|&here| here == key));
    }
}

proptest! {
    #[test]
    fn the_victim_is_an_offered_block_of_the_least_chance(
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut policy = Learned::with_ghosts(4, GHOSTS_MAX);
        let (mut model, mut was_reordered) = (Model::default(), false);
        for step in steps {
            match step {
                Step::Insert { slot, key, used } => {
                    if model.keys.contains_key(&slot) || model.keys.values().any(|&here| here == key) {
                        continue;
                    }
                    policy.insert(slot, key, used);
                    model.keys.insert(slot, key);
                    model.gone.remove(&key);
                }
                Step::Touch { slot, used } if model.keys.contains_key(&slot) => policy.touch(slot, used),
                Step::Withhold(slot) if model.keys.contains_key(&slot) => {
                    policy.withhold(slot);
                    model.withheld.insert(slot);
                }
                Step::Offer(slot) if model.keys.contains_key(&slot) => {
                    policy.offer(slot);
                    model.withheld.remove(&slot);
                    was_reordered = true;
                }
                Step::EvictVictim => {
                    if let Some(victim) = policy.victim() {
                        policy.evict(victim);
                        let key = model.keys.remove(&victim).expect("a block that is here");
                        prop_assert!(policy.remembers(key));
                        model.gone.insert(key);
                    }
                }
                Step::Remove(slot) if model.keys.contains_key(&slot) => {
                    policy.remove(slot);
                    let key = model.keys.remove(&slot).expect("it is here");
                    model.withheld.remove(&slot);
                    prop_assert!(!policy.remembers(key));
                }
                _ => {}
            }
            check(&mut policy, &model, was_reordered);
        }
    }
}
