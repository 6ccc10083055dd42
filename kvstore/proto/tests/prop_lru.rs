//! The LRU list against a deque of slot indexes.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::VecDeque;

use lunette_kvstore_proto::lru::Lru;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Lists the slot, or touches it if it is listed.
    Use(u32),
    Remove(u32),
    PopTail,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_u32..20).prop_map(Op::Use),
        2 => (0_u32..20).prop_map(Op::Remove),
        1 => Just(Op::PopTail),
    ]
}

proptest! {
    #[test]
    fn the_list_agrees_with_a_deque(ops in prop::collection::vec(op(), 0..200)) {
        let mut lru = Lru::with_capacity(4);
        let mut from_tail = VecDeque::new();
        for op in ops {
            match op {
                Op::Use(slot_index) => {
                    if lru.contains(slot_index) {
                        lru.touch(slot_index);
                    } else {
                        lru.push_front(slot_index);
                    }
                    from_tail.retain(|&other| other != slot_index);
                    from_tail.push_back(slot_index);
                }
                Op::Remove(slot_index) => {
                    let listed = from_tail.contains(&slot_index);
                    prop_assert_eq!(lru.contains(slot_index), listed);
                    if listed {
                        lru.remove(slot_index);
                        from_tail.retain(|&other| other != slot_index);
                    }
                }
                Op::PopTail => prop_assert_eq!(lru.pop_tail(), from_tail.pop_front()),
            }
            prop_assert_eq!(lru.len(), from_tail.len());
            prop_assert_eq!(lru.is_empty(), from_tail.is_empty());
            prop_assert_eq!(lru.tail(), from_tail.front().copied());
            prop_assert!(lru.iter_from_tail().eq(from_tail.iter().copied()));
        }
    }
}
