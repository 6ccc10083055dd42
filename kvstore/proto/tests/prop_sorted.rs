//! The sorted table against a tree.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::BTreeMap;

use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::sorted::{LANES, Sorted};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(Fingerprint, u32),
    Remove(Fingerprint),
    After(Fingerprint),
    Clear,
}

/// Keys of which many begin alike: in no, few, or all of their first 64 bits.
fn key() -> impl Strategy<Value = Fingerprint> {
    let head = prop_oneof![
        4 => any::<u64>(),
        2 => (0_u64..40).prop_map(|low| (5 << 60) | low),
        1 => Just(u64::MAX),
        1 => Just(0),
    ];
    (head, 0_u128..40).prop_map(|(head, low)| Fingerprint((u128::from(head) << 64) | low))
}

fn op(keys: Vec<Fingerprint>) -> impl Strategy<Value = Op> {
    let key = prop::sample::select(keys);
    prop_oneof![
        400 => (key.clone(), any::<u32>()).prop_map(|(key, value)| Op::Insert(key, value)),
        300 => key.clone().prop_map(Op::Remove),
        20 => key.prop_map(Op::After),
        1 => Just(Op::Clear),
    ]
}

/// Operations on few keys, so that many meet theirs.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let keys = prop::collection::vec(key(), 1..600);
    keys.prop_flat_map(|keys| prop::collection::vec(op(keys), 0..3000))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_table_agrees_with_a_tree(ops in ops()) {
        let mut sorted = Sorted::default();
        let mut tree = BTreeMap::new();
        for op in ops {
            match op {
                Op::Insert(key, value) => {
                    prop_assert_eq!(sorted.insert(key, value), tree.insert(key, value));
                    *sorted.get_mut(key).expect("it is there") ^= 1;
                    *tree.get_mut(&key).expect("it is there") ^= 1;
                    prop_assert_eq!(sorted.get(key), Some(value ^ 1));
                }
                Op::Remove(key) => {
                    prop_assert_eq!(sorted.get(key), tree.get(&key).copied());
                    prop_assert_eq!(sorted.remove(key), tree.remove(&key));
                    prop_assert!(sorted.get(key).is_none() && sorted.get_mut(key).is_none());
                }
                Op::After(key) => {
                    let rest = tree.range(key..).filter(|(other, _)| **other > key);
                    prop_assert!(sorted.after(Some(key)).eq(rest.map(|(&key, &value)| (key, value))));
                }
                Op::Clear => {
                    let keys = tree.into_keys();
                    let all = keys.fold(true, |all, key| all & sorted.remove(key).is_some());
                    prop_assert!(all && sorted.is_empty());
                    tree = BTreeMap::new();
                }
            }
            prop_assert_eq!(sorted.len(), tree.len());
        }
        let keys: Vec<_> = tree.keys().flat_map(|&key| [key, Fingerprint(key.0 ^ 1)]).collect();
        for keys in keys.chunks(LANES - 1) {
            let values = keys.iter().map(|key| tree.get(key).copied());
            prop_assert!(sorted.get_each(keys)[..keys.len()].iter().copied().eq(values));
        }
        prop_assert!(sorted.iter().eq(tree.into_iter()));
    }
}
