//! Members and their coordinator in simulated worlds, each on a host of its own: the coordinator lost
//! at the start and for a minute, and everything at once, while quotas are set.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "worlds/town.rs"]
mod town;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_cluster::proto::fence::Standing;
    use lunette_cluster::proto::map::Epoch;

    use super::town::{TTL_S, Town};

    const SECOND: Duration = Duration::from_secs(1);
    const NODES: u64 = 5;
    const SEEDS: u64 = 6;
    /// Seeds of the world in which everything happens.
    const STORMS: u64 = 20;

    fn settled(seed: u64) -> Town {
        let mut town = Town::new(seed);
        (1..=NODES).for_each(|id| town.start_node(id));
        town.run_for(8 * SECOND);
        assert_eq!(
            town.newest_ids(),
            (1..=NODES).collect::<Vec<_>>(),
            "seed {seed}"
        );
        town
    }

    #[test]
    fn a_coordinator_that_is_unreachable_at_the_start_is_waited_for() {
        for seed in 0..SEEDS {
            let mut town = Town::new(seed);
            town.cut_off_all(NODES);
            (1..=NODES).for_each(|id| town.start_node(id));
            town.run_for(30 * SECOND);
            for id in 1..=NODES {
                let seen = town.seen(id);
                assert!(!seen.is_serving && seen.cache_read.is_err(), "seed {seed}");
            }
            town.mend_all(NODES);
            town.run_for(15 * SECOND);
            assert_eq!(
                town.newest_ids(),
                (1..=NODES).collect::<Vec<_>>(),
                "seed {seed}"
            );
            town.check(seed);
        }
    }

    #[test]
    fn a_coordinator_that_is_lost_for_a_minute_costs_one_epoch_and_nobody() {
        for seed in 0..SEEDS {
            let mut town = settled(seed);
            let before = town.newest_epoch();
            town.cut_off_all(NODES);
            town.run_for(60 * SECOND);
            for id in 1..=NODES {
                let seen = town.seen(id);
                assert_eq!(seen.cache_read, Ok(Standing::CutOff), "reads go on");
                assert_eq!(seen.cache_put, Ok(Standing::CutOff), "local puts go on");
                assert!(
                    seen.cache_change.is_err() && seen.strict_read.is_err(),
                    "seed {seed}"
                );
            }
            town.mend_all(NODES);
            town.run_for(25 * SECOND);
            assert_eq!(
                town.newest_ids(),
                (1..=NODES).collect::<Vec<_>>(),
                "seed {seed}"
            );
            assert_eq!(town.newest_epoch(), Epoch(before.0 + 1), "seed {seed}");
            for id in 1..=NODES {
                assert_eq!(
                    town.seen(id).strict_read,
                    Ok(Standing::Leased),
                    "seed {seed}"
                );
            }
            town.check(seed);
        }
    }

    #[test]
    fn a_coordinator_that_loses_power_goes_on_where_it_was() {
        for seed in 0..SEEDS {
            let mut town = settled(seed);
            let before = town.newest_epoch();
            for down in [SECOND / 2, 3 * SECOND, 20 * SECOND] {
                town.stop_coordinator();
                town.run_for(down);
                town.start_coordinator();
                town.run_for(20 * SECOND);
            }
            assert_eq!(
                town.newest_ids(),
                (1..=NODES).collect::<Vec<_>>(),
                "seed {seed}"
            );
            assert!(town.newest_epoch().0 <= before.0 + 3, "one each at most");
            town.check(seed);
        }
    }

    #[test]
    fn whoever_is_killed_leaves_and_whoever_returns_is_a_member_again() {
        for seed in 0..SEEDS {
            let mut town = settled(seed);
            town.kill_node(2);
            town.run_for(Duration::from_secs(u64::from(TTL_S)) + 4 * SECOND);
            assert_eq!(town.newest_ids(), [1, 3, 4, 5], "seed {seed}");
            town.start_node(2);
            town.run_for(6 * SECOND);
            assert_eq!(town.newest_ids(), [1, 2, 3, 4, 5], "seed {seed}");
            town.check(seed);
        }
    }

    #[test]
    fn one_that_is_cut_off_is_fenced_before_it_is_given_up() {
        for seed in 0..SEEDS {
            let mut town = settled(seed);
            town.cut_off(3);
            town.run_for(Duration::from_secs(u64::from(TTL_S)) + 4 * SECOND);
            assert_eq!(town.newest_ids(), [1, 2, 4, 5], "seed {seed}");
            assert!(town.seen(3).strict_read.is_err());
            town.mend(3);
            town.run_for(10 * SECOND);
            assert_eq!(town.newest_ids(), [1, 2, 3, 4, 5], "seed {seed}");
            town.check(seed);
        }
    }

    #[test]
    fn in_any_storm_the_rules_hold_and_afterwards_the_living_are_members_and_know_the_quotas() {
        let mut set = 0;
        for seed in 0..STORMS {
            let mut town = settled(seed);
            town.begin_quotas();
            town.storm(NODES, 14);
            town.end_quotas();
            town.mend_all(NODES);
            town.start_coordinator();
            town.run_for(50 * SECOND);
            set += town.check_quotas(seed);
            assert_eq!(town.newest_ids(), town.living(), "seed {seed}");
            for id in town.living() {
                assert!(town.seen(id).is_serving, "seed {seed}, node {id}");
            }
            town.check(seed);
        }
        assert!(set as u64 > 10 * STORMS, "{set}");
    }
}
