//! The coupled cluster.

use lunette_conductor::figure::surrogate;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::Slo;
use lunette_conductor::report::Ending;
use lunette_conductor::{Arrival, Batching, CoupledScenario, Report, Workload, simulate_coupled};
use proptest::prelude::*;

const WHOLE: Batching = Batching::PrefillFirst { tokens_max: 16_384 };
const CHUNKED: Batching = Batching::Chunked { tokens_max: 512 };

fn check(report: &Report) {
    let ended: usize = report.endings.iter().sum();
    assert_eq!(ended, report.records.len());
    for record in &report.records {
        assert!(record.cached_tokens < record.input_tokens);
        if record.ending == Ending::Served {
            assert!(record.ttft_s + 1e-6 >= record.prefill_s, "{record:?}");
            assert_eq!(record.tbt_s > 0.0, record.output_tokens > 1);
        }
    }
}

fn request(arrival_s: f64, id: u64, input_tokens: u64, output_tokens: u64) -> Arrival {
    Arrival {
        arrival_s,
        input_tokens,
        output_tokens,
        hashes: (0..input_tokens.div_ceil(512))
            .map(|at| id << 32 | at)
            .collect(),
    }
}

#[test]
fn alone_a_request_takes_what_the_model_says() {
    let workload = Workload::new([request(0.0, 1, 16_384, 129)]);
    let report = simulate_coupled(&workload, &CoupledScenario::new(1, WHOLE, Slo::FIXED));
    let cost = CoupledScenario::new(1, WHOLE, Slo::FIXED).cost;
    let expected = cost.prefill.time_s(16_384, 0);
    assert!((report.records[0].ttft_s - expected).abs() < 1e-9);
    let step_s = cost.decode.step_s(1.0, 16_384.0);
    assert!((report.records[0].tbt_s - step_s).abs() < 0.001);
}

#[test]
fn a_whole_prompt_stops_the_batch_and_chunks_do_not() {
    let workload = Workload::new([request(0.0, 1, 1_000, 500), request(5.0, 2, 64_000, 2)]);
    let slowest = |batching| {
        let scenario = CoupledScenario::new(1, batching, Slo::FIXED);
        let report = simulate_coupled(&workload, &scenario);
        check(&report);
        report.records[0].tbt_s
    };
    let longest = 10.0 / 50.0;
    assert!(slowest(WHOLE) > longest, "{}", slowest(WHOLE));
    assert!(slowest(CHUNKED) < longest, "{}", slowest(CHUNKED));
}

#[test]
fn a_prefix_is_found_again_only_with_a_cache() {
    let workload = Workload::new([request(0.0, 1, 8_192, 2), request(9.0, 1, 8_192, 2)]);
    for (cache_blocks, cached) in [(0, 0), (100, 8_191)] {
        let mut scenario = CoupledScenario::new(1, CHUNKED, Slo::FIXED);
        scenario.cache_blocks = cache_blocks;
        let report = simulate_coupled(&workload, &scenario);
        assert_eq!(report.records[1].cached_tokens, cached);
    }
}

#[test]
fn what_fits_into_no_memory_is_refused_and_the_rest_is_served() {
    let workload = Workload::new([request(0.0, 1, 1_000, 24), request(0.0, 2, 1_000, 25)]);
    let mut scenario = CoupledScenario::new(1, WHOLE, Slo::FIXED);
    scenario.vram_tokens = 1_024;
    let report = simulate_coupled(&workload, &scenario);
    assert_eq!(report.records[0].ending, Ending::Served);
    assert_eq!(report.records[1].ending, Ending::RefusedForDecode);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Random clusters and loads: the assertions of the simulation hold, and a run repeats itself.
    #[test]
    fn invariants(
        seed in any::<u64>(),
        per_s in 0.1_f64..20.0,
        instances in 1_usize..5,
        batching in prop::sample::select(&[WHOLE, CHUNKED, Batching::Chunked { tokens_max: 1 }][..]),
        cache_blocks in 0_usize..100,
        vram_tokens in 4_300_u64..40_000,
        routing in prop::sample::select(&[Routing::Random, Routing::LeastLoad][..]),
    ) {
        let mut scenario = CoupledScenario::new(instances, batching, Slo::FIXED);
        scenario.cache_blocks = cache_blocks;
        scenario.vram_tokens = vram_tokens;
        scenario.routing = routing;
        let workload = surrogate::uniform(seed, 60, per_s, 4_096, 40);
        let report = simulate_coupled(&workload, &scenario);
        check(&report);
        prop_assert_eq!(report, simulate_coupled(&workload, &scenario));
    }
}
