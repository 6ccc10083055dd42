//! FAST'25 Fig 15, on a surrogate of its trace, with stated tolerances. (Fig 14 is tested beside
//! the constants, in `policy/src/cost.rs`; figures of the conversation trace beside its reader, in
//! the tests of the package `lunette`.)
//!
//! The synthetic trace itself is not published with the constants used here. The surrogate has its
//! published statistics: 3,993 requests at 3.91 a second (Poisson), prompts of 15.3 thousand
//! tokens on average, answers of 149, .65 of the prompts' tokens in an unbounded cache.

use lunette_conductor::policy::admission::Admission;
use lunette_conductor::policy::conductor::Options;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::{Slo, TtftSlo};
use lunette_conductor::{Arrival, Report, Scenario, Timing, Workload, hits, simulate};
use lunette_runtime_core::random::SplitMix64;

const REQUESTS: u32 = 3_993;
const RATE: f64 = 3.91;

/// Between the values at shares 0, 1/n, 2/n .. 1, in straight lines.
fn draw(random: &mut SplitMix64, quantiles: &[f64]) -> f64 {
    let last = u32::try_from(quantiles.len() - 1).expect("tables are short");
    let at = usize::try_from(random.below(last)).expect("tables are short");
    quantiles[at] + (quantiles[at + 1] - quantiles[at]) * random.unit()
}

/// Whole tokens of a draw, counted up because no cast loses a part here.
fn tokens(drawn: f64) -> u32 {
    let mut low = 0;
    let mut high = 1 << 20;
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if f64::from(middle) <= drawn {
            low = middle;
        } else {
            high = middle;
        }
    }
    low.max(1)
}

fn surrogate() -> Workload {
    let mut random = SplitMix64::new(15);
    let opening = [100.0, 900.0, 2_500.0, 5_000.0, 9_000.0, 19_000.0, 38_000.0];
    let document = [6_000.0, 11_000.0, 17_000.0, 24_000.0, 33_000.0, 45_000.0];
    let answers = [1.0, 20.0, 45.0, 69.0, 140.0, 260.0, 560.0];
    let mut documents: Vec<(u64, u32)> = Vec::new();
    let mut now_s = 0.0;
    let arrivals: Vec<Arrival> = (0..REQUESTS)
        .map(|_| {
            now_s -= (1.0 - random.unit()).ln() / RATE;
            let kind = random.below(100);
            let (id, input_tokens) = if kind < 48 {
                (random.next(), tokens(draw(&mut random, &opening)))
            } else if kind < 54 || documents.is_empty() {
                documents.push((random.next(), tokens(draw(&mut random, &document))));
                documents[documents.len() - 1]
            } else {
                let known = u32::try_from(documents.len()).expect("they are few");
                let recent = known.min(40);
                let at = known - 1 - random.below(recent);
                documents[usize::try_from(at).expect("it is small")]
            };
            let blocks = input_tokens.div_ceil(512);
            let own = u64::from(random.below(1 << 30)) << 32;
            let block = |at: u32| {
                if at + 1 == blocks {
                    own | id
                } else {
                    id ^ u64::from(at)
                }
            };
            Arrival {
                arrival_s: now_s,
                input_tokens: u64::from(input_tokens),
                output_tokens: u64::from(tokens(draw(&mut random, &answers))),
                hashes: (0..blocks).map(block).collect(),
            }
        })
        .collect();
    Workload::new(arrivals)
}

fn run(workload: &Workload, prefill: usize) -> Report {
    let slo = Slo {
        ttft: TtftSlo::Fixed { limit_s: 10.0 },
        tbt_s: 0.1,
    };
    let options = Options::new(Routing::Algorithm1, Admission::None);
    simulate(
        workload,
        &Scenario::new(prefill, 16 - prefill, slo, options),
    )
}

#[test]
fn the_surrogate_has_the_published_statistics() {
    let workload = surrogate();
    let report = run(&workload, 8);
    let requests = f64::from(REQUESTS);
    let mean = |value: fn(&lunette_conductor::report::Record) -> u32| {
        let sum: f64 = report
            .records
            .iter()
            .map(|record| f64::from(value(record)))
            .sum();
        sum / requests
    };
    let input = mean(|record| record.input_tokens);
    let output = mean(|record| record.output_tokens);
    let hit = hits::hit_tokens(&workload, usize::MAX);
    assert!((14_500.0..16_500.0).contains(&input), "{input}");
    assert!((130.0..170.0).contains(&output), "{output}");
    assert!((0.60..0.70).contains(&hit), "{hit}");
}

/// The paper: 77.7 97.3 99.2 99.1 99.3 98.5 86.2 % effective for 5 to 11 prefill nodes of 16, mean
/// TTFT 5.75 1.73 1.32 1.20 1.14 1.13 1.15 s.
///
/// The load of the paper's run is not published, and the surrogate at its recorded rate does not
/// saturate 5 nodes. One free parameter, a speed-up of 1.35, is fixed by the first point (7 points
/// of tolerance there); the others follow: 3 points and 0.5 s from 6 to 10 nodes. With 11 nodes the
/// paper's decode side is slower than this model: not reproduced, and not asserted.
#[test]
fn fig_15_has_its_plateau_and_its_knee() {
    let workload = surrogate().timed(Timing::Recorded, 1.35);
    let reports: Vec<Report> = (5..=10).map(|prefill| run(&workload, prefill)).collect();
    let paper = [
        (97.3, 1.73),
        (99.2, 1.32),
        (99.1, 1.20),
        (99.3, 1.14),
        (98.5, 1.13),
    ];
    for (report, (effective, ttft_s)) in reports[1..].iter().zip(paper) {
        let ours = 100.0 * report.all.good;
        assert!(
            (ours - effective).abs() <= 3.0,
            "{ours} % against {effective} %"
        );
        let ours_s = report.ttft_s.mean;
        assert!(
            (ours_s - ttft_s).abs() <= 0.5,
            "{ours_s} s against {ttft_s} s"
        );
    }
    let at_5 = 100.0 * reports[0].all.good;
    assert!((at_5 - 77.7).abs() <= 7.0, "{at_5} %");
    assert!((reports[0].ttft_s.mean - 5.75).abs() <= 1.0);
}
