//! The index against a plain model: a set of (instance, tier, hash).

use std::collections::{BTreeMap, BTreeSet};

use lunette_conductor_policy::feed::{Change, EARLY_EVENTS_MAX, Fed, IndexFeed};
use lunette_conductor_policy::ids::{InstanceId, Tier};
use lunette_conductor_policy::index::Match;
use proptest::prelude::*;

const INSTANCES: u16 = 9;
const HASHES: u64 = 12;

#[derive(Default)]
struct Model {
    held: BTreeSet<(u16, Tier, u64)>,
}

impl Model {
    fn apply(&mut self, instance: u16, change: &Change) {
        match change {
            Change::Stored { tier, hashes } => {
                self.held
                    .extend(hashes.iter().map(|&hash| (instance, *tier, hash)));
            }
            Change::Removed { tier, hashes } => {
                for &hash in hashes {
                    self.held.remove(&(instance, *tier, hash));
                }
            }
            Change::Cleared => self.held.retain(|held| held.0 != instance),
        }
    }

    fn find(&self, hashes: &[u64]) -> Vec<Match> {
        let leading = |instance: u16, tiers: &[Tier]| {
            let is_held = |hash| {
                tiers
                    .iter()
                    .any(|&t| self.held.contains(&(instance, t, hash)))
            };
            let blocks = hashes.iter().take_while(|&&hash| is_held(hash)).count();
            u32::try_from(blocks).expect("a query is short")
        };
        let of = |instance| Match {
            blocks: leading(instance, &Tier::ALL),
            memory_blocks: leading(instance, &[Tier::Vram, Tier::Dram]),
        };
        (0..INSTANCES).map(of).collect()
    }
}

fn change() -> impl Strategy<Value = Change> {
    let tier = || prop::sample::select(&Tier::ALL[..]);
    let hashes = || prop::collection::vec(0..HASHES, 1..8);
    prop_oneof![
        6 => (tier(), hashes()).prop_map(|(tier, hashes)| Change::Stored { tier, hashes }),
        4 => (tier(), hashes()).prop_map(|(tier, hashes)| Change::Removed { tier, hashes }),
        1 => Just(Change::Cleared),
    ]
}

fn agree(feed: &IndexFeed, model: &Model, query: &[u64]) -> Result<(), TestCaseError> {
    let mut found = Vec::new();
    feed.index().find(query, &mut found);
    prop_assert_eq!(found, model.find(query));
    let blocks: BTreeSet<u64> = model.held.iter().map(|held| held.2).collect();
    prop_assert_eq!(feed.index().len(), blocks.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Events in order: after each of them, index and model say the same.
    #[test]
    fn in_order(
        events in prop::collection::vec((0..INSTANCES, change()), 1..120),
        query in prop::collection::vec(0..HASHES, 0..10),
    ) {
        let mut feed = IndexFeed::new(usize::from(INSTANCES));
        let mut model = Model::default();
        let mut numbers = BTreeMap::new();
        for (instance, change) in events {
            model.apply(instance, &change);
            let number = numbers.entry(instance).or_insert(0);
            let fed = feed.feed(InstanceId(instance), *number, change);
            prop_assert_eq!(fed, Some(Fed::Applied { events: 1 }));
            *number += 1;
            agree(&feed, &model, &query)?;
        }
    }

    /// Events in any order, some twice: in the end, as if each had come once and in order.
    #[test]
    fn out_of_order_with_duplicates(
        changes in prop::collection::vec(change(), 1..60),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        query in prop::collection::vec(0..HASHES, 0..10),
    ) {
        let mut feed = IndexFeed::new(usize::from(INSTANCES));
        let mut model = Model::default();
        let picked = order.iter().map(|index| index.index(changes.len()));
        for at in picked.chain(0..changes.len()) {
            feed.feed(InstanceId(4), at.try_into().expect("it fits"), changes[at].clone());
        }
        for change in &changes {
            model.apply(4, change);
        }
        agree(&feed, &model, &query)?;
    }

    /// A gap that stays: the instance is forgotten, and only what came behind the gap counts.
    #[test]
    fn behind_a_gap(
        before in prop::collection::vec(change(), 0..20),
        gap in 1_u64..5,
        behind in prop::collection::vec(change(), EARLY_EVENTS_MAX + 1),
        query in prop::collection::vec(0..HASHES, 0..10),
    ) {
        let mut feed = IndexFeed::new(usize::from(INSTANCES));
        let mut model = Model::default();
        let other = Change::Stored { tier: Tier::Dram, hashes: vec![0, 1] };
        model.apply(1, &other);
        feed.feed(InstanceId(1), 0, other);
        for (change, number) in before.iter().zip(0..) {
            feed.feed(InstanceId(0), number, change.clone());
        }
        let lost = u64::try_from(before.len()).expect("it fits");
        let mut last = None;
        for (change, number) in behind.iter().zip(lost + gap..) {
            last = feed.feed(InstanceId(0), number, change.clone());
            model.apply(0, change);
        }
        prop_assert_eq!(last, Some(Fed::Lost { first: lost, last: lost + gap - 1 }));
        agree(&feed, &model, &query)?;
    }
}
