//! Figures on the surrogate of the synthetic trace, with their stated tolerances. (Fig 14 is tested
//! beside the constants, in `policy/src/cost.rs`; figures of the conversation trace beside its
//! reader, in the tests of the package `lunette`.)

use lunette_conductor::figure::Figure;
use lunette_conductor::{Workload, figure::Table};

/// The rows that the paper gives, and that are missed.
fn missed(table: &Table) -> Vec<String> {
    let rows = table.rows.iter();
    let missed = rows.filter(|row| row.is_met() == Some(false));
    missed.map(|row| row.what.clone()).collect()
}

#[test]
fn fig_14_is_met_by_every_point() {
    let table = Figure::Fast14.table(&Workload::default());
    assert_eq!(table.met(), (15, 15), "{:?}", missed(&table));
}

/// Tolerances: 3 points (7 with 5 nodes, where the load was fitted), 0.5 s (1 s), 5 ms. The paper's
/// decode side is slower than this model's: with 9 and more prefill nodes its time between tokens
/// is missed, and with 11 the effective requests.
#[test]
fn fig_15_has_its_plateau_and_its_knee() {
    let table = Figure::Fast15.table(&Workload::default());
    assert_eq!(table.rows.len(), 21);
    let expected = [
        "9 prefill nodes: mean TBT, ms",
        "10 prefill nodes: mean TBT, ms",
        "11 prefill nodes: effective requests, %",
        "11 prefill nodes: mean TBT, ms",
    ];
    assert_eq!(missed(&table), expected);
}

/// Tolerance: a quarter of the paper's value. At 100 and 400 Gbit/s ours is a little faster than that.
#[test]
fn fig_13_has_its_knee_with_a_pool_and_none_with_algorithm_1() {
    let table = Figure::Fast13.table(&Workload::default());
    assert_eq!(missed(&table), ["100 Gbit/s, pool", "400 Gbit/s, pool"]);
    let ours = |what: &str| {
        let row = table.rows.iter().find(|row| row.what == what);
        row.expect(what).ours
    };
    assert!(ours("24 Gbit/s, pool") > 3.0 * ours("100 Gbit/s, pool"));
    assert!(ours("100 Gbit/s, pool") < 1.3 * ours("400 Gbit/s, pool"));
    assert!(ours("24 Gbit/s, Algorithm 1") < 1.5 * ours("400 Gbit/s, Algorithm 1"));
}
