//! The scenarios that are measured.

use super::scenario::{Faults, Scenario};

/// A scenario with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// What is run.
    pub scenario: Scenario,
    /// How many times the bound it may take at most.
    pub ratio_max: f64,
}

/// Receivers on equal lines: powers of two up to 64, then 256, as far as `receivers_max` goes.
#[must_use]
pub fn equal_lines(base: &Scenario, receivers_max: usize) -> Vec<Case> {
    let counts = [1, 2, 4, 8, 16, 32, 64, 256].into_iter();
    let counts = counts.filter(|&receivers| receivers <= receivers_max);
    let case = |receivers| Case {
        name: format!("{receivers} on equal lines"),
        scenario: Scenario {
            receivers,
            ..base.clone()
        },
        ratio_max: 1.15,
    };
    counts.map(case).collect()
}

/// What else may be: deaths, stragglers, mixed lines, racks, damage, a catalogue that is away.
#[must_use]
pub fn adversities(base: &Scenario) -> Vec<Case> {
    let with = |name: &str, ratio_max: f64, change: &dyn Fn(&mut Scenario)| {
        let mut scenario = base.clone();
        change(&mut scenario);
        Case {
            name: format!("{}, {name}", base.receivers),
            scenario,
            ratio_max,
        }
    };
    let faults = |faults: Faults| move |scenario: &mut Scenario| scenario.faults = faults.clone();
    vec![
        with(
            "a tenth dies",
            1.3,
            &faults(Faults {
                dying: 0.1,
                ..Faults::default()
            }),
        ),
        with("an eighth has a line of a tenth", 1.3, &|scenario| {
            scenario.stragglers = scenario.receivers / 8;
        }),
        with("lines of a half, one and two", 1.15, &|scenario| {
            scenario.is_mixed = true;
        }),
        with("two racks, half a line between", 1.15, &|scenario| {
            scenario.racks = 2;
            scenario.between_bytes_per_s = scenario.bytes_per_s / 2;
        }),
        with(
            "one chunk of a hundred damaged",
            1.3,
            &faults(Faults {
                corrupt: 0.01,
                ..Faults::default()
            }),
        ),
        with(
            "no catalogue for most of the time",
            1.15,
            &faults(Faults {
                catalogue_lost: Some((0.05, 0.8)),
                ..Faults::default()
            }),
        ),
        with("one of two origins dies at half", 1.15, &|scenario| {
            scenario.origins = 2;
            scenario.faults.origin_dies_at = Some(0.5);
        }),
    ]
}
