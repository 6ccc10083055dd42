//! Shares, movement and agreement of the placement.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::placement::{ClusterMap, Member};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use proptest::prelude::*;

fn members() -> impl Strategy<Value = Vec<Member>> {
    let fields = (1_u32..=8, 1_u16..=16);
    prop::collection::btree_map(any::<u64>(), fields, 1..=12).prop_map(|members| {
        (members.into_iter())
            .map(|(id, (weight, cores))| Member {
                id: NodeId(id),
                weight,
                cores,
            })
            .collect()
    })
}

fn map(members: &[Member]) -> ClusterMap {
    ClusterMap::new(members.to_vec()).expect("valid members")
}

fn home_id(map: &ClusterMap, fingerprint: Fingerprint) -> (NodeId, CoreIndex) {
    let home = map.home(fingerprint);
    let member = map.members()[home.member_index];
    assert!(home.core.0 < member.cores, "a core that the member lacks");
    (member.id, home.core)
}

fn keys(count: u64) -> impl Iterator<Item = Fingerprint> {
    (0..count).map(|number| {
        Key::new(format!("model/layer/{number}").as_bytes())
            .expect("a key")
            .fingerprint()
    })
}

/// A count of `keys` draws with probability `share` stays within six standard deviations.
fn assert_share(count: u32, keys: u64, share: f64, what: &str) {
    let keys = f64::from(u32::try_from(keys).expect("few keys"));
    let deviation = (keys * share * (1.0 - share)).sqrt();
    let off = (f64::from(count) - keys * share).abs();
    assert!(
        off <= 6.0 * deviation + 1.0,
        "{what}: {count} of {keys} for a share of {share}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn shares_follow_weights(members in members()) {
        const KEYS: u64 = 4000;
        let map = map(&members);
        let total: u32 = members.iter().map(|member| member.weight).sum();
        let homes: Vec<_> = keys(KEYS).map(|key| home_id(&map, key)).collect();
        for member in &members {
            let of_member = |(id, _): &&(NodeId, CoreIndex)| *id == member.id;
            let count = u32::try_from(homes.iter().filter(of_member).count()).expect("few keys");
            assert_share(count, KEYS, f64::from(member.weight) / f64::from(total), "member");
            for core in 0..member.cores {
                let here = (member.id, CoreIndex(core));
                let on_core = homes.iter().filter(|&&home| home == here).count();
                let on_core = u32::try_from(on_core).expect("few keys");
                assert_share(on_core, count.into(), 1.0 / f64::from(member.cores), "core");
            }
        }
    }

    #[test]
    fn only_the_keys_of_a_member_move_with_it(members in members(), nth in any::<prop::sample::Index>()) {
        prop_assume!(members.len() > 1);
        let gone = members[nth.index(members.len())];
        let fewer: Vec<_> = members.iter().copied().filter(|member| *member != gone).collect();
        let (before, after) = (map(&members), map(&fewer));
        for key in keys(2000) {
            let (old, new) = (home_id(&before, key), home_id(&after, key));
            prop_assert!(new.0 != gone.id);
            prop_assert!(old == new || old.0 == gone.id, "{:?} moved from {:?} to {:?}", key, old, new);
        }
    }

    #[test]
    fn more_weight_only_attracts(members in members(), nth in any::<prop::sample::Index>()) {
        let mut heavier = members.clone();
        let grown = nth.index(members.len());
        heavier[grown].weight += 1;
        let (before, after) = (map(&members), map(&heavier));
        for key in keys(2000) {
            let (old, new) = (home_id(&before, key), home_id(&after, key));
            prop_assert!(old == new || new.0 == members[grown].id);
        }
    }

    #[test]
    fn the_order_of_members_does_not_matter(
        shuffled in members().prop_flat_map(|members| (Just(members.clone()), Just(members).prop_shuffle())),
        fingerprints in prop::collection::vec(any::<u128>(), 100),
    ) {
        let (one, other) = (map(&shuffled.0), map(&shuffled.1));
        for fingerprint in fingerprints {
            prop_assert_eq!(one.home(Fingerprint(fingerprint)), other.home(Fingerprint(fingerprint)));
        }
    }
}
