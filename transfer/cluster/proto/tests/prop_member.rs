//! Members and a coordinator on one clock, with everything that can happen between them.
//!
//! The harness carries asks and answers with a delay, loses them while a member is cut off, and
//! checks after each step: epochs only grow, maps change at most once a second, whoever is no
//! longer in the map has stopped serving before, quotas do not change without a word, and nobody is
//! emptied late, or is the last to be.

#[path = "prop_member/harness.rs"]
mod harness;

use core::time::Duration;

use harness::{Cluster, MS, SECOND, TTL_S};
use lunette_cluster_proto::fence::{Act, NamespaceKind, Standing};
use lunette_cluster_proto::map::Epoch;
use lunette_cluster_proto::member::{Draining, Refusal};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn joined(count: usize) -> Cluster {
    let mut cluster = Cluster::new(1);
    for index in 0..count {
        cluster.start(index as u64 + 1);
    }
    cluster.run(5 * SECOND);
    assert_eq!(cluster.ids(), (1..=count as u64).collect::<Vec<_>>());
    cluster
}

#[test]
fn members_that_start_together_come_in_one_change() {
    let cluster = joined(5);
    assert_eq!(cluster.epochs, [Epoch(1)]);
}

#[test]
fn a_member_that_crashes_leaves_the_map_after_its_lease() {
    let mut cluster = joined(3);
    cluster.kill(1);
    cluster.run(SECOND);
    assert_eq!(cluster.ids(), [1, 2, 3], "its lease holds");
    cluster.run(u64::from(TTL_S) * SECOND + 2 * SECOND);
    assert_eq!(cluster.ids(), [1, 3]);
    assert_eq!(cluster.epochs.last(), Some(&Epoch(2)));
}

#[test]
fn a_member_that_leaves_is_gone_at_once() {
    let mut cluster = joined(3);
    cluster.leave(0);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.ids(), [2, 3]);
    assert!(cluster.nodes[0].has_left);
}

#[test]
fn a_member_that_leaves_unheard_has_left_when_its_lease_is_over() {
    let mut cluster = joined(3);
    cluster.cut(0);
    cluster.leave(0);
    cluster.run((u64::from(TTL_S) + 5) * SECOND);
    assert!(cluster.nodes[0].has_left);
    assert_eq!(cluster.ids(), [2, 3]);
}

#[test]
fn a_member_that_drains_stays_without_weight() {
    let mut cluster = joined(2);
    cluster.drain(0, Time::MAX);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.ids(), [1, 2]);
    assert_eq!(cluster.map().home(7), Some(NodeId(2)));
    assert_eq!(cluster.drained(), [1]);
    // Also when it joins again.
    cluster.cut(0);
    cluster.run(u64::from(TTL_S) * SECOND + 2 * SECOND);
    assert_eq!(cluster.ids(), [2]);
    cluster.mend(0);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.ids(), [1, 2]);
    assert_eq!(cluster.drained(), [1]);
}

#[test]
fn of_those_who_would_all_be_emptied_at_one_time_one_stays() {
    for (seed, count) in (0..20).flat_map(|seed| [(seed, 2), (seed, 5)]) {
        let mut cluster = Cluster::new(seed);
        for id in 1..=count {
            cluster.start(id);
        }
        cluster.run(5 * SECOND);
        (1..=count).for_each(|id| cluster.drain_id(id, 10 * SECOND));
        cluster.run(5 * SECOND);
        assert_eq!(cluster.drained().len() as u64, count - 1);
        cluster.check_drained();
        let stays = |node: &&harness::Node| node.member.draining() == Draining::Last;
        assert_eq!(cluster.nodes.iter().filter(stays).count(), 1);
        // It is no more when there is another.
        let another = cluster.start(count + 1);
        cluster.run(5 * SECOND);
        assert_eq!(cluster.drained().len() as u64, count - 1, "nobody asks");
        (1..=count).for_each(|id| cluster.drain_id(id, SECOND));
        cluster.run(5 * SECOND);
        assert_eq!(cluster.drained().len() as u64, count);
        assert_eq!(cluster.nodes[another].member.draining(), Draining::No);
    }
}

#[test]
fn a_member_that_hears_nothing_in_time_is_not_emptied_later() {
    let mut cluster = joined(3);
    cluster.cut(0);
    cluster.drain_id(1, SECOND);
    cluster.run(2 * SECOND);
    cluster.mend(0);
    cluster.run(5 * SECOND);
    assert!(cluster.drained().is_empty());
    assert_eq!(cluster.nodes[0].member.draining(), Draining::No);
    cluster.drain_id(1, SECOND);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.drained(), [1]);
}

#[test]
fn a_restart_waits_for_its_old_lease_and_has_a_new_incarnation() {
    let mut cluster = joined(2);
    let before = cluster.map().member(NodeId(1)).unwrap().incarnation;
    cluster.kill(0);
    cluster.start(1);
    cluster.run(SECOND);
    assert!(!cluster.nodes[2].member.is_joined());
    cluster.run(u64::from(TTL_S) * SECOND + 3 * SECOND);
    assert!(cluster.nodes[2].member.is_joined());
    let after = cluster.map().member(NodeId(1)).unwrap().incarnation;
    assert_ne!(before, after);
}

#[test]
fn a_restart_that_knows_that_its_former_life_is_over_does_not_wait() {
    let mut cluster = joined(2);
    let before = cluster.map().member(NodeId(1)).unwrap().incarnation;
    cluster.kill(0);
    cluster.start_with(1, |options| options.former = vec![before ^ 2, before]);
    cluster.run(2 * SECOND);
    assert!(cluster.nodes[2].member.is_joined());
    let after = cluster.map().member(NodeId(1)).unwrap().incarnation;
    assert_ne!(before, after);
    // One that it does not know of is waited for.
    cluster.kill(2);
    cluster.start_with(1, |options| options.former = vec![before]);
    cluster.run(2 * SECOND);
    assert!(!cluster.nodes[3].member.is_joined());
}

#[test]
fn two_nodes_with_one_identity_are_one_too_many() {
    let mut cluster = joined(2);
    cluster.start(1);
    cluster.run(2 * u64::from(TTL_S) * SECOND + 5 * SECOND);
    let refusal = cluster.nodes[2].refusal.as_ref();
    assert_eq!(refusal, Some(&Refusal::IdentityTaken { id: NodeId(1) }));
    assert!(cluster.nodes[0].member.is_joined(), "the first one stays");
    assert_eq!(cluster.epochs.len(), 1);
}

#[test]
fn strangers_are_refused() {
    let mut cluster = joined(1);
    cluster.start_with(2, |options| options.cluster = "other".into());
    cluster.start_with(3, |options| options.versions = (9, 9));
    cluster.run(3 * SECOND);
    let found = "kv".to_owned();
    assert_eq!(
        cluster.nodes[1].refusal,
        Some(Refusal::WrongCluster { found })
    );
    let id = NodeId(1);
    let version = Refusal::WrongVersion {
        id,
        ours: (9, 9),
        theirs: (1, 2),
    };
    assert_eq!(cluster.nodes[2].refusal, Some(version));
    assert_eq!(cluster.ids(), [1]);
}

/// A rolling restart: version n+1 speaks n too.
#[test]
fn the_next_version_joins() {
    let mut cluster = joined(1);
    cluster.start_with(2, |options| options.versions = (2, 3));
    cluster.run(3 * SECOND);
    assert_eq!(cluster.ids(), [1, 2]);
}

#[test]
fn a_coordinator_that_is_away_from_the_start_is_waited_for() {
    let mut cluster = Cluster::new(3);
    cluster.start(1);
    cluster.cut_all();
    cluster.run(60 * SECOND);
    let permit = cluster.permit(0, NamespaceKind::Cache, Act::Read);
    assert!(permit.is_err(), "it was never a member");
    cluster.mend_all();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.ids(), [1]);
}

#[test]
fn a_coordinator_that_is_away_for_a_minute_costs_one_change_and_nobody() {
    let mut cluster = joined(5);
    cluster.cut_all();
    cluster.run(60 * SECOND);
    for node in 0..5 {
        let permit = |kind, act| cluster.permit(node, kind, act);
        assert_eq!(
            permit(NamespaceKind::Cache, Act::Read),
            Ok(Standing::CutOff)
        );
        assert_eq!(
            permit(NamespaceKind::Cache, Act::LocalPut),
            Ok(Standing::CutOff)
        );
        assert!(permit(NamespaceKind::Cache, Act::Change).is_err());
        assert!(permit(NamespaceKind::Strict, Act::Read).is_err());
    }
    cluster.mend_all();
    cluster.run(15 * SECOND);
    assert_eq!(cluster.ids(), [1, 2, 3, 4, 5]);
    assert_eq!(cluster.epochs, [Epoch(1), Epoch(2)]);
    let standing = cluster.permit(0, NamespaceKind::Strict, Act::Change);
    assert_eq!(standing, Ok(Standing::Leased));
}

#[test]
fn who_does_not_come_back_from_it_is_waited_for_and_then_given_up() {
    let mut cluster = joined(3);
    cluster.cut_all();
    cluster.run(30 * SECOND);
    cluster.kill(2);
    cluster.mend_all();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.ids(), [1, 2, 3], "it may still come");
    cluster.run(10 * SECOND);
    assert_eq!(cluster.ids(), [1, 2]);
    assert_eq!(cluster.epochs, [Epoch(1), Epoch(2)]);
}

#[test]
fn a_watch_whose_past_is_compacted_reads_everything() {
    let mut cluster = joined(2);
    cluster.cut(0);
    cluster.start(3);
    cluster.run(3 * SECOND);
    cluster.compact();
    cluster.mend(0);
    cluster.run(5 * SECOND);
    let known = cluster.nodes[0].member.map().cloned();
    assert_eq!(known, Some(cluster.map()));
}

#[test]
fn what_no_member_wrote_keeps_newcomers_out_and_members_in() {
    let mut cluster = joined(2);
    cluster.scribble("lunette/members/00000000000000ff", b"?");
    cluster.start(3);
    cluster.run(20 * SECOND);
    let refusal = &cluster.nodes[2].refusal;
    assert!(matches!(refusal, Some(Refusal::Record(_))), "{refusal:?}");
    for node in 0..2 {
        let standing = cluster.permit(node, NamespaceKind::Strict, Act::Change);
        assert_eq!(standing, Ok(Standing::Leased));
    }
    // Nor is it harmed by other keys.
    let mut cluster = joined(1);
    cluster.scribble("lunette/notes/1", b"?");
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.ids(), [1, 2]);
}

/// More members go than one transaction can compare. The first whose lease ends does not wait for the
/// others; they follow in as many changes as it takes.
#[test]
fn a_rack_that_goes_at_once_goes_in_few_changes() {
    let mut cluster = joined(180);
    (1..=150).for_each(|id| cluster.kill_id(id));
    cluster.run(u64::from(TTL_S) * SECOND + 4 * SECOND);
    assert_eq!(cluster.ids(), (151..=180).collect::<Vec<_>>());
    assert!(
        (3..=4).contains(&cluster.epochs.len()),
        "{:?}",
        cluster.epochs
    );
}

#[test]
fn a_raised_generation_is_in_the_next_map() {
    let mut cluster = joined(2);
    let now = cluster.now;
    cluster.nodes[1].member.raise_generation(now, 7, Time::MAX);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.map().generation(), 7);
    assert_eq!(cluster.epochs, [Epoch(1), Epoch(2)]);
}

/// Whoever wanted it has gone on, and may have written something since.
#[test]
fn a_generation_that_was_not_made_in_time_is_in_no_map() {
    let mut cluster = joined(2);
    cluster.cut_all();
    let now = cluster.now;
    let member = &mut cluster.nodes[1].member;
    member.raise_generation(now, 7, now + Duration::from_secs(1));
    member.raise_generation(now, 6, now + Duration::from_secs(60));
    cluster.run(2 * SECOND);
    cluster.mend_all();
    cluster.run(10 * SECOND);
    assert_eq!(cluster.map().generation(), 0);
    let now = cluster.now;
    let member = &mut cluster.nodes[1].member;
    member.raise_generation(now, 7, now);
    member.raise_generation(now, 7, now + Duration::from_secs(9));
    cluster.run(3 * SECOND);
    assert_eq!(cluster.map().generation(), 7, "another wants it for longer");
}

#[test]
fn a_map_that_is_to_count_no_more_is_followed_by_the_same_once() {
    let mut cluster = joined(2);
    let (now, epoch) = (cluster.now, cluster.map().epoch());
    let members = cluster.map().members().to_vec();
    for node in 0..2 {
        cluster.nodes[node].member.renew_map(now, epoch);
    }
    cluster.run(5 * SECOND);
    assert_eq!(cluster.map().members(), members);
    assert_eq!(cluster.epochs, [Epoch(1), Epoch(2)]);
    // It is known already that this one counts no more.
    cluster.nodes[1].member.renew_map(cluster.now, epoch);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.map().epoch(), Epoch(2));
}

/// Whoever is left when all go has the map that all of them have served under.
#[test]
fn who_is_about_to_leave_changes_no_map() {
    let mut cluster = joined(3);
    cluster.nodes[0].member.abstain();
    cluster.nodes[1].member.abstain();
    assert!(cluster.nodes[0].member.is_map_settled());
    assert!(!cluster.nodes[0].member.proposes() && cluster.nodes[2].member.proposes());
    cluster.kill_id(3);
    cluster.run((u64::from(TTL_S) + 3) * SECOND);
    assert_eq!(cluster.map().epoch(), Epoch(1));
    assert!(!cluster.nodes[0].member.is_map_settled());
}

#[test]
fn quotas_are_known_to_all_at_once_and_change_no_map() {
    let mut cluster = joined(3);
    cluster.set_quota(1, "default", Some(1 << 30));
    cluster.set_quota(2, "team/a", Some(7));
    cluster.run(300 * MS);
    cluster.check_quotas();
    let known: Vec<_> = cluster.nodes[2].member.quotas().iter().collect();
    assert_eq!(known, [("default", 1 << 30), ("team/a", 7)]);
    cluster.set_quota(3, "default", None);
    cluster.run(300 * MS);
    cluster.check_quotas();
    // Who comes later reads them, also from a coordinator that has started anew.
    cluster.restart_coordinator();
    cluster.start(4);
    cluster.run(10 * SECOND);
    cluster.check_quotas();
    assert_eq!(cluster.nodes[3].member.quotas().get("team/a"), Some(7));
    assert_eq!(cluster.epochs, [Epoch(1), Epoch(2)]);
}

#[test]
fn a_quota_that_two_set_at_once_is_one_of_both() {
    let mut cluster = joined(2);
    for bytes in 1..=20 {
        cluster.set_quota(1, "a", Some(bytes));
        cluster.set_quota(2, "a", Some(100 + bytes));
        cluster.run(2 * SECOND);
        cluster.check_quotas();
    }
}

#[test]
fn a_damaged_quota_is_told_once_and_not_read_for_ever() {
    let mut cluster = joined(3);
    cluster.set_quota(1, "a", Some(7));
    cluster.set_quota(1, "b", Some(8));
    cluster.run(SECOND);
    let loads = cluster.loads;
    cluster.damage_quota("a");
    cluster.run(60 * SECOND);
    cluster.check_quotas();
    assert_eq!(cluster.loads - loads, 3, "once by each");
    assert_eq!(cluster.ignored, 3);
    assert_eq!(cluster.nodes[1].member.quotas().len(), 1);
    cluster.set_quota(2, "a", Some(9));
    cluster.run(SECOND);
    cluster.check_quotas();
    assert_eq!(cluster.loads - loads, 3);
}

#[test]
fn a_quota_that_is_set_while_the_coordinator_is_away_is_set_when_it_is_back() {
    let mut cluster = joined(3);
    cluster.cut_all();
    cluster.set_quota(1, "a", Some(7));
    cluster.run(60 * SECOND);
    cluster.mend_all();
    cluster.run(20 * SECOND);
    cluster.check_quotas();
    assert_eq!(cluster.quotas().get("a"), Some(7));
}

/// What happens, for a while, to a node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut(usize),
    CutAll,
    Mend,
    Kill(usize),
    Restart(usize),
    Compact,
    RestartCoordinator,
    DamageQuota(usize),
    /// It is to be emptied, within so many milliseconds.
    Drain(usize, u64),
    Calm,
}

const TENANTS: [&str; 4] = ["default", "a", "b/c", "\u{fc}"];

/// A member that sets a quota: its id, whose, and how many bytes.
type Change = (u64, usize, Option<u64>);

fn change() -> impl Strategy<Value = Change> {
    (1_u64..=5, 0..TENANTS.len(), of(1_u64..100))
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0_usize..5).prop_map(Fault::Cut),
        Just(Fault::CutAll),
        Just(Fault::Mend),
        (0_usize..5).prop_map(Fault::Kill),
        (0_usize..5).prop_map(Fault::Restart),
        Just(Fault::Compact),
        Just(Fault::RestartCoordinator),
        (0..TENANTS.len()).prop_map(Fault::DamageQuota),
        (0_usize..5, 0_u64..4_000).prop_map(|(node, ms)| Fault::Drain(node, ms)),
        Just(Fault::Calm),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, the harness's rules hold; and once it is over, all who live are members, and know
    /// the quotas that were set last.
    #[test]
    fn the_living_are_members_in_the_end(
        seed in any::<u64>(),
        faults in vec((fault(), vec(change(), 0..4), 100_u64..9_000), 1..14),
        last in vec(change(), 0..6),
    ) {
        let mut cluster = Cluster::new(seed);
        (1..=5).for_each(|id| { cluster.start(id); });
        for (fault, changes, ms) in faults {
            match fault {
                Fault::Cut(node) => cluster.cut(node),
                Fault::CutAll => cluster.cut_all(),
                Fault::Mend => cluster.mend_all(),
                Fault::Kill(id) => cluster.kill_id(id as u64 + 1),
                Fault::Restart(id) => {
                    cluster.kill_id(id as u64 + 1);
                    cluster.start(id as u64 + 1);
                }
                Fault::Compact => cluster.compact(),
                Fault::RestartCoordinator => cluster.restart_coordinator(),
                Fault::DamageQuota(tenant) => cluster.damage_quota(TENANTS[tenant]),
                Fault::Drain(id, within) => cluster.drain_id(id as u64 + 1, within * MS),
                Fault::Calm => {}
            }
            for (id, tenant, bytes) in changes {
                cluster.set_quota(id, TENANTS[tenant], bytes);
            }
            cluster.run(ms * MS);
        }
        cluster.mend_all();
        // Where all were killed, nobody is left who could change the map, or make the first.
        if cluster.living().is_empty() {
            cluster.start(1);
        }
        // A lease that has to run out, the pauses of retries, the wait for those who are gone.
        cluster.run(3 * u64::from(TTL_S) * SECOND + 12 * SECOND);
        prop_assert_eq!(cluster.ids(), cluster.living());
        let map = cluster.map();
        for node in cluster.nodes.iter().filter(|node| node.is_alive) {
            prop_assert!(node.member.is_joined());
            prop_assert_eq!(node.member.map(), Some(&map));
        }
        cluster.check_quotas();
        cluster.check_drained();
        for (id, tenant, bytes) in last {
            cluster.set_quota(id, TENANTS[tenant], bytes);
        }
        cluster.run(5 * SECOND);
        cluster.check_quotas();
        // Nothing more happens.
        let epochs = cluster.epochs.len();
        cluster.run(20 * SECOND);
        prop_assert_eq!(cluster.epochs.len(), epochs);
    }
}

#[test]
fn the_harness_waits_in_seconds() {
    assert_eq!(Duration::from_nanos(SECOND), Duration::from_secs(1));
}
