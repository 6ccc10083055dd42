//! What no rules can pass on a workload, whatever they are.
//!
//! Each prompt is granted all blocks that any earlier one had, served or not, in host memory where
//! it is prefilled. Instances are never idle while the load lasts, and none waits for a transfer.
//! Those refused are known in advance to be the costliest. Decoding costs nothing.

use std::hash::BuildHasherDefault;

use hashbrown::HashSet;
use lunette_conductor_policy::cost::PrefillCost;
use lunette_conductor_policy::ids::{BlockHash, LengthClass, TOKENS_PER_BLOCK};
use lunette_conductor_policy::slo::Slo;

use crate::cache::MixHasher;
use crate::report::number;
use crate::workload::Workload;

/// Bounds of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// No speed-up above it can be served. Infinite if the load fits into the time that the last
    /// requests are given.
    pub speed_up: f64,
    /// No rules that serve all have a lower mean time to first token, in seconds.
    pub ttft_mean_s: f64,
    /// Mean work of the requests that are served at that speed-up, in seconds.
    pub work_mean_s: f64,
}

/// The bounds for this many prefill instances, if `share` of the requests and `class_share` of each
/// length class are to be served in time.
#[must_use]
pub fn bound(
    workload: &Workload,
    cost: &PrefillCost,
    slo: &Slo,
    prefill: usize,
    (share, class_share): (f64, f64),
) -> Bound {
    let mut works = works(workload, cost);
    let all_s: f64 = works.iter().map(|(work_s, _)| work_s).sum();
    let requests = number(workload.len());
    let in_class = |class| number(works.iter().filter(|(_, of)| *of == class).count());
    let mut refusable = LengthClass::ALL.map(|class| (1.0 - class_share) * in_class(class));
    let mut refusable_in_all = (1.0 - share) * requests;
    works.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut served_s, mut served) = (0.0, 0.0);
    for (work_s, class) in works {
        let of_class = &mut refusable[class.index()];
        if refusable_in_all >= 1.0 && *of_class >= 1.0 {
            refusable_in_all -= 1.0;
            *of_class -= 1.0;
        } else {
            served_s += work_s;
            served += 1.0;
        }
    }
    let limits =
        (0..workload.len()).map(|at| slo.ttft_limit_s(cost, workload.get(at).input_tokens));
    let limit_s = limits.fold(0.0, f64::max);
    let last = workload.len().checked_sub(1);
    let end_s = last.map_or(0.0, |last| workload.get(last).arrival_s);
    let needed_s = served_s / number(prefill) - limit_s;
    let mean = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
    Bound {
        speed_up: if needed_s > 0.0 {
            end_s / needed_s
        } else {
            f64::INFINITY
        },
        ttft_mean_s: mean(all_s, requests),
        work_mean_s: mean(served_s, served),
    }
}

/// The least work of each request, in seconds, and its class.
fn works(workload: &Workload, cost: &PrefillCost) -> Vec<(f64, LengthClass)> {
    let mut seen: HashSet<BlockHash, BuildHasherDefault<MixHasher>> = HashSet::default();
    let mut works = Vec::with_capacity(workload.len());
    for at in 0..workload.len() {
        let item = workload.get(at);
        let cached = item.hashes.iter().take_while(|hash| seen.contains(*hash));
        let blocks = u32::try_from(cached.count()).expect("a prompt has fewer blocks");
        let tokens = item.input_tokens;
        let cached_tokens = blocks.saturating_mul(TOKENS_PER_BLOCK).min(tokens);
        works.push((cost.time_s(tokens, cached_tokens), LengthClass::of(tokens)));
        seen.extend(item.hashes);
    }
    works
}

#[cfg(test)]
mod tests {
    use lunette_conductor_policy::admission::Admission;
    use lunette_conductor_policy::conductor::Options;
    use lunette_conductor_policy::cost::CostModel;
    use lunette_conductor_policy::routing::Routing;

    use super::*;
    use crate::capacity::{self, Measure};
    use crate::figure::surrogate;
    use crate::scenario::Scenario;
    use crate::simulation::simulate;
    use crate::workload::{Arrival, Timing};

    #[test]
    fn a_repeated_prompt_is_computed_once_and_the_costliest_are_refused() {
        let request = |second: u32, input_tokens: u64, id: u64| Arrival {
            arrival_s: f64::from(second),
            input_tokens,
            output_tokens: 1,
            hashes: (0..input_tokens.div_ceil(512))
                .map(|at| id << 32 | at)
                .collect(),
        };
        let short = (0..19).map(|second| request(10 * second, 4_096, 1));
        let workload = Workload::new(short.chain([request(190, 7_168, 2)]));
        let cost = CostModel::a800_llama3_70b().prefill;
        let of = |share| bound(&workload, &cost, &Slo::PROPORTIONAL, 1, (share, 0.85));
        let cold_s = cost.time_s(4_096, 0) + cost.time_s(7_168, 0);
        let expected_s = (cold_s + 18.0 * cost.time_s(4_096, 4_096)) / 20.0;
        assert!((of(1.0).ttft_mean_s - expected_s).abs() < 1e-9);
        assert!(of(0.95).work_mean_s < of(1.0).work_mean_s);
        assert_eq!(of(0.96).work_mean_s, of(1.0).work_mean_s);
        assert_eq!(
            of(1.0).speed_up,
            f64::INFINITY,
            "all fits into the last limit"
        );
    }

    #[test]
    fn no_rules_pass_it() {
        let workload = surrogate::uniform(1, 400, 1.0, 16_384, 64);
        let cost = CostModel::a800_llama3_70b().prefill;
        let most = bound(&workload, &cost, &Slo::PROPORTIONAL, 4, (0.95, 0.85)).speed_up;
        for (routing, admission) in [
            (Routing::Algorithm1, Admission::Prediction),
            (Routing::Marginal, Admission::Marginal),
        ] {
            let options = Options::new(routing, admission);
            let scenario = Scenario::new(4, 4, Slo::PROPORTIONAL, options);
            let run = |load: &Workload| simulate(load, &scenario);
            let asked = (Measure::Requests, 0.95);
            let search = (0.25, 16.0, 0.01);
            let found = capacity::speed_up(&workload, Timing::Recorded, run, asked, search);
            assert!(found <= most, "{}: {found} of {most}", routing.name());
            assert!(found > 0.5 * most, "{}: {found} of {most}", routing.name());
        }
    }
}
