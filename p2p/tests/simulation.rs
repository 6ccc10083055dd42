//! Swarms in virtual time: small ones, so that they are cheap. `lunette p2p simulate` runs the large ones.

use lunette_p2p::simulation::{
    Faults, Report, Scenario, adversities, equal_lines, simulate, simulate_mooncake,
};

/// An object of 512 chunks, over lines on which a chunk takes as long as one of 8 MiB at 100 Gb/s.
fn small(receivers: usize) -> Scenario {
    Scenario {
        receivers,
        object_bytes: 1 << 30,
        chunk_bytes: 2 << 20,
        bytes_per_s: 3_125_000_000,
        between_bytes_per_s: 3_125_000_000,
        ..Scenario::default()
    }
}

fn within(name: &str, report: &Report, ratio_max: f64) {
    let ratio = report.ratio();
    assert!(
        ratio <= ratio_max,
        "{name}: {ratio:.3} of the bound, {report:?}"
    );
    assert_eq!(report.unserved, 0, "{name}");
}

#[test]
fn many_take_little_longer_than_one() {
    for case in equal_lines(&small(0), 32) {
        let report = simulate(&case.scenario);
        within(&case.name, &report, case.ratio_max);
        assert!(report.origin_copies < 1.3, "{}: {report:?}", case.name);
    }
}

#[test]
fn adversities_cost_little() {
    for case in adversities(&small(16)) {
        // A pause of 50 ms weighs four times as much here as with 16 GiB.
        within(&case.name, &simulate(&case.scenario), case.ratio_max + 0.2);
    }
}

#[test]
fn between_racks_goes_about_one_copy() {
    let scenario = Scenario {
        racks: 2,
        between_bytes_per_s: 1_562_500_000,
        ..small(16)
    };
    let report = simulate(&scenario);
    assert!((1.0..1.1).contains(&report.crossed_copies), "{report:?}");
}

#[test]
fn a_seed_shows_the_same_run_again() {
    let scenario = Scenario {
        faults: Faults {
            dying: 0.25,
            corrupt: 0.02,
            ..Faults::default()
        },
        ..small(8)
    };
    assert_eq!(simulate(&scenario), simulate(&scenario));
    let other = Scenario {
        seed: 2,
        ..scenario.clone()
    };
    assert_ne!(simulate(&scenario), simulate(&other));
}

#[test]
fn without_its_only_origin_an_object_stays_in_parts() {
    let mut scenario = small(4);
    scenario.faults.origin_dies_at = Some(0.5);
    let report = simulate(&scenario);
    assert_eq!(report.unserved, 4);
    assert!(report.ratio().is_infinite());
}

#[test]
fn whole_replicas_leave_everybody_in_front_of_the_origin() {
    let report = simulate_mooncake(&small(8));
    assert!((6.0..10.0).contains(&report.ratio()), "{report:?}");
    let one = simulate_mooncake(&small(1));
    within("one receiver", &one, 1.05);
}
