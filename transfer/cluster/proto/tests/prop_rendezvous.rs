//! Who wins a key, under any map: a member that leaves moves what it had, and nothing else.

use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::mix;
use proptest::collection::btree_map;
use proptest::prelude::*;

const SHARDS: u64 = 512;

fn members() -> impl Strategy<Value = Vec<MapMember>> {
    let fields = (0_u32..9, any::<bool>(), 1_u16..64, any::<u16>());
    btree_map(any::<u64>(), fields, 1..12).prop_map(|members| {
        let member =
            |(id, (home_weight, is_draining, cores, port)): (u64, (u32, bool, u16, u16))| {
                MapMember {
                    home_weight,
                    cores,
                    is_draining,
                    ..MapMember::new(NodeId(id), id | 1, ([192, 0, 2, 1], port.max(1)).into())
                }
            };
        members.into_iter().map(member).collect()
    })
}

fn map(epoch: u64, members: Vec<MapMember>) -> ClusterMap {
    ClusterMap::new(Epoch(epoch), 0, members).expect("ids differ")
}

proptest! {
    #[test]
    fn a_member_that_leaves_moves_only_its_own(members in members(), leaving in any::<prop::sample::Index>()) {
        let mut rest = members.clone();
        let gone = rest.remove(leaving.index(members.len()));
        let (before, after) = (map(1, members), map(2, rest));
        for shard in (0..SHARDS).map(mix) {
            let ranking = before.ranking(shard, 2);
            prop_assert_eq!(before.home(shard), ranking.first().copied());
            let expected = if ranking.first() == Some(&gone.id) { ranking.get(1) } else { ranking.first() };
            prop_assert_eq!(after.home(shard), expected.copied(), "the next in order inherits");
        }
    }

    #[test]
    fn the_order_of_the_list_and_the_way_over_the_wire_do_not_matter(members in members(), by in 0_usize..12) {
        let mut turned = members.clone();
        turned.rotate_left(by % members.len());
        let (one, other) = (map(1, members), map(1, turned));
        let read = ClusterMap::decode(&one.encode());
        prop_assert_eq!(&read, &Ok(other.clone()));
        for shard in (0..SHARDS).map(mix) {
            prop_assert_eq!(one.home(shard), other.home(shard));
        }
    }

    #[test]
    fn a_member_of_more_weight_keeps_what_it_has(members in members(), which in any::<prop::sample::Index>()) {
        let index = which.index(members.len());
        let mut heavier = members.clone();
        heavier[index].home_weight += 1;
        let id = members[index].id;
        let (before, after) = (map(1, members), map(2, heavier));
        for shard in (0..SHARDS).map(mix) {
            let (old, new) = (before.home(shard), after.home(shard));
            prop_assert!(new == old || new == Some(id));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(ClusterMap::decode(&bytes).is_err());
    }
}
