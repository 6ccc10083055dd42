//! What the protocol costs in a cluster that is larger than any test: the figures of `kvstore/README.md`, computed from
//! the messages as they are.

#![cfg(not(feature = "next-version"))]
#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::{
    Content, CopyPage, Gone, ITEMS_MAX, Losses, OpId, PAGE_COPIES_MAX, SeatMessage, ToHome,
    ToOwner, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::random::SplitMix64;

const NODES: u64 = 1_000;
const KEYS: u64 = 1_000_000_000;

fn map(epoch: u64, nodes: impl Iterator<Item = u64>) -> ClusterMap {
    let members = nodes.map(|id| MapMember {
        home_weight: 16,
        ..MapMember::new(NodeId(id), id + 1, ([10, 0, 0, 1], 7400).into())
    });
    ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
}

const fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

const VERSION: Version = Version {
    epoch: Epoch(9),
    sequence: 1,
};

const fn info() -> CopyInfo {
    CopyInfo {
        version: VERSION,
        kind: WriteKind::Put,
        form: Form::Whole,
        generation: Generation(0),
        wanted: 1,
        len_bytes: 1,
        crc32c: 1,
    }
}

fn len_of(content: Content) -> u64 {
    let message = SeatMessage::new(Epoch(9), seat(1), seat(2), content);
    let mut body = Vec::new();
    message.encode(FormatVersion(1), &mut body);
    body.len() as u64
}

fn page(count: usize) -> u64 {
    len_of(Content::Page(CopyPage {
        after: None,
        is_full: false,
        away: None,
        copies: vec![(Fingerprint(7), info()); count],
        is_last: true,
    }))
}

/// What a message adds to a batch of its kind.
fn each<T: Clone>(item: T, content: fn(Vec<T>) -> Content) -> u64 {
    let all = len_of(content(vec![item.clone(); ITEMS_MAX]));
    (all - len_of(content(vec![item]))) / (ITEMS_MAX as u64 - 1)
}

#[test]
fn a_map_of_a_thousand_nodes_is_short() {
    let len_bytes = map(9, 0..NODES).encode().len();
    assert_eq!(len_bytes, 65_030);
}

#[test]
fn a_lost_node_costs_what_it_was_the_home_of() {
    let (before, after) = (map(9, 0..NODES), map(10, 1..NODES));
    let mut random = SplitMix64::new(1);
    const DRAWN: u64 = 100_000;
    let mut moved = 0;
    for _ in 0..DRAWN {
        let key = Fingerprint(u128::from(random.next()) << 64 | u128::from(random.next()));
        let (from, to) = (home_of(&before, key), home_of(&after, key));
        let was_there = from.is_some_and(|home| home.node == NodeId(0));
        assert_eq!(
            from.map(|home| home.node) != to.map(|home| home.node),
            was_there
        );
        moved += u64::from(was_there);
    }
    assert!(
        (50..200).contains(&moved),
        "{moved} of {DRAWN}: a thousandth"
    );
    let copy_bytes = (page(PAGE_COPIES_MAX) - page(1)) / (PAGE_COPIES_MAX as u64 - 1);
    let reported_bytes = KEYS / NODES * copy_bytes;
    assert_eq!(copy_bytes, 51);
    // Of all members together, a thousandth of it each; and a page for each pair of seats, mostly an empty one.
    assert_eq!(reported_bytes, 51_000_000);
    assert_eq!(page(0), 52);
    // The same of tombstones, who was lost; and whether each is complete, asked and answered.
    let gone = Gone {
        life: Some((NodeId(0), 1)),
        last: Epoch(9),
    };
    let tombstones = TombstonePage {
        is_informed: true,
        losses: Losses {
            open: vec![gone],
            past: vec![],
        },
        ..TombstonePage::default()
    };
    let peer = |item| len_of(Content::ToPeer(item));
    assert_eq!(peer(ToPeer::Tombstones(tombstones)), 89);
    let asked = peer(ToPeer::CompleteWanted) + peer(ToPeer::Complete);
    assert_eq!(asked, 94);
}

#[test]
fn a_put_away_from_its_home_costs_four_messages() {
    let (op, key, namespace) = (OpId(1), Fingerprint(7), NamespaceKind::Cache);
    let claim = ToHome::Claim {
        op,
        key,
        kind: WriteKind::Put,
        namespace,
        wait_ms: 1000,
    };
    let publish = ToHome::Publish {
        op,
        key,
        info: info(),
        namespace,
    };
    let granted = ToOwner::Granted {
        op,
        key,
        version: VERSION,
        generation: Generation(0),
    };
    let recorded = ToOwner::Recorded {
        op,
        key,
        version: VERSION,
        is_cut_off: false,
        order: 0,
    };
    let to_home = each(claim, Content::ToHome) + each(publish, Content::ToHome);
    let to_owner = each(granted, Content::ToOwner) + each(recorded, Content::ToOwner);
    assert_eq!((to_home, to_owner), (31 + 61, 49 + 50));
}

#[test]
fn what_came_back_elsewhere_costs_a_word_to_each_owner() {
    let key = Fingerprint(7);
    let came_back = each(ToOwner::CameBack { key }, Content::ToOwner);
    let was_used = each(ToOwner::WasUsed { key, reuses: 1 }, Content::ToOwner);
    assert_eq!((came_back, was_used), (17, 18));
}
