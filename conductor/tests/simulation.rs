//! What every run keeps to, whatever the rules.

use lunette_conductor::policy::admission::Admission;
use lunette_conductor::policy::conductor::Options;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::Slo;
use lunette_conductor::report::Ending;
use lunette_conductor::{Arrival, Report, Scenario, Timing, Workload, simulate};
use lunette_runtime_core::random::SplitMix64;
use proptest::prelude::*;

/// Sessions whose prompts grow from turn to turn, as `rate` requests a second.
fn sessions(seed: u64, requests: u32, rate: f64) -> Workload {
    let mut random = SplitMix64::new(seed);
    let mut turns: Vec<(u64, u32)> = Vec::new();
    let arrivals = (0..requests).map(|at| {
        if turns.is_empty() || random.below(100) < 60 {
            turns.push((random.next(), 1 + random.below(40)));
        }
        let last = u32::try_from(turns.len()).expect("they are few");
        let session = usize::try_from(random.below(last)).expect("it is small");
        let (id, blocks) = turns[session];
        turns[session].1 += 1 + random.below(4);
        Arrival {
            arrival_s: f64::from(at) / rate,
            input_tokens: u64::from(blocks * 512 - random.below(512)),
            output_tokens: u64::from(1 + random.below(300)),
            hashes: (0..blocks).map(|block| id ^ u64::from(block)).collect(),
        }
    });
    Workload::new(arrivals.collect::<Vec<_>>())
}

fn scenario(routing: Routing, admission: Admission) -> Scenario {
    Scenario::new(3, 2, Slo::PROPORTIONAL, Options::new(routing, admission))
}

/// What holds for each record; the simulation itself asserts conservation and causality.
fn check(report: &Report) {
    let ended: usize = report.endings.iter().sum();
    assert_eq!(ended, report.records.len());
    for record in &report.records {
        assert!(record.cached_tokens <= record.input_tokens);
        assert!(record.ttft_s >= 0.0 && record.tbt_s >= 0.0 && record.decode_wait_s >= 0.0);
        if record.ending == Ending::Served {
            assert!(record.ttft_s > 0.0);
            assert_eq!(record.tbt_s > 0.0, record.output_tokens > 1);
        } else {
            assert!(!record.is_good);
        }
        if matches!(
            record.ending,
            Ending::RefusedForPrefill | Ending::RefusedForDecode
        ) {
            assert_eq!(record.prefill_s, 0.0);
        }
    }
}

#[test]
fn every_rule_serves_everything_when_there_is_little_to_do() {
    let workload = sessions(1, 200, 0.5);
    for routing in Routing::ALL {
        for admission in Admission::ALL {
            let report = simulate(&workload, &scenario(routing, admission));
            check(&report);
            let served = report.endings[0];
            assert!(
                served >= 190,
                "{}, {}: {served}",
                routing.name(),
                admission.name()
            );
        }
    }
}

#[test]
fn every_rule_survives_overload() {
    let workload = sessions(2, 600, 40.0);
    for routing in Routing::ALL {
        for admission in Admission::ALL {
            let report = simulate(&workload, &scenario(routing, admission));
            check(&report);
            let is_none = admission == Admission::None;
            assert_eq!(report.refused() == 0, is_none, "{}", admission.name());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_another() {
    for (routing, admission) in [
        (Routing::Random, Admission::Early),
        (Routing::Marginal, Admission::Marginal),
    ] {
        let run = |seed| {
            let workload = sessions(3, 400, 4.0).timed(Timing::Spread { seed }, 1.5);
            let mut options = Options::new(routing, admission);
            options.seed = seed;
            simulate(&workload, &Scenario::new(3, 2, Slo::PROPORTIONAL, options))
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}

#[test]
fn a_cache_of_nothing_hits_nothing_and_a_drive_serves_what_memory_cannot() {
    let workload = sessions(4, 300, 1.0);
    let hits = |dram_blocks, ssd_blocks| {
        let mut scenario = scenario(Routing::CacheAware, Admission::None);
        scenario.dram_blocks = dram_blocks;
        scenario.ssd_blocks = ssd_blocks;
        simulate(&workload, &scenario).hit_tokens
    };
    assert_eq!(hits(0, 0), 0.0);
    assert!(hits(200, 0) < hits(200, 5_000));
    assert!(hits(200, 5_000) <= hits(20_000, 0) + 0.02);
}

#[test]
fn keys_and_values_that_are_sent_during_the_prefill_arrive_earlier() {
    let workload = sessions(5, 200, 1.0);
    let tbt = |is_layer_wise| {
        let mut scenario = scenario(Routing::Algorithm1, Admission::None);
        scenario.is_layer_wise = is_layer_wise;
        scenario.counts_first_interval = true;
        simulate(&workload, &scenario).tbt_s.mean
    };
    assert!(tbt(true) < tbt(false));
}

#[test]
fn what_is_queued_is_computed_once_and_questions_wait_for_it() {
    // Three questions to one document, while all instances are busy; and one to another.
    let asked = |arrival_s, document: u64, question: u64| Arrival {
        arrival_s,
        input_tokens: 30 * 512,
        output_tokens: 2,
        hashes: (0..29)
            .map(|at| document << 32 | at)
            .chain([question << 48])
            .collect(),
    };
    let busy = (0..3).map(|at| asked(0.0, 90 + at, 90 + at));
    let questions = (1..4).map(|at| asked(0.01 * at as f64, 7, at));
    let arrivals = busy.chain(questions).chain([asked(0.05, 8, 8)]);
    let workload = Workload::new(arrivals.collect::<Vec<_>>());
    let hits = |follows| {
        let mut scenario = scenario(Routing::Marginal, Admission::None);
        scenario.options.follows = follows;
        let report = simulate(&workload, &scenario);
        check(&report);
        let cached = report.records.iter().map(|record| record.cached_tokens);
        cached.collect::<Vec<_>>()
    };
    let document = 29 * 512;
    assert_eq!(hits(true), [0, 0, 0, 0, document, document, 0]);
    assert!(hits(false).iter().sum::<u32>() < 2 * document);
}

#[test]
fn without_memory_for_two_answers_they_are_made_one_after_the_other() {
    let request = |arrival_s| Arrival {
        arrival_s,
        input_tokens: 1_000,
        output_tokens: 400,
        hashes: vec![1, 2],
    };
    let workload = Workload::new([request(0.0), request(0.1)]);
    let waits = |vram_tokens| {
        let mut scenario = scenario(Routing::Algorithm1, Admission::None);
        scenario.vram_tokens = vram_tokens;
        scenario.decode = 1;
        let records = simulate(&workload, &scenario).records;
        [
            records[0].decode_wait_s > 1.0,
            records[1].decode_wait_s > 1.0,
        ]
    };
    assert_eq!(waits(2_799), [false, true]);
    assert_eq!(waits(2_800), [false, false]);
}

#[test]
fn a_workload_of_nothing_makes_an_empty_report() {
    let report = simulate(
        &Workload::default(),
        &scenario(Routing::Marginal, Admission::Marginal),
    );
    assert_eq!(report.all.requests, 0);
    assert_eq!(report.endings, [0; 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random clusters and loads, small memories: the assertions of the simulation hold.
    #[test]
    fn invariants(
        seed in any::<u64>(),
        rate in 0.5_f64..60.0,
        (prefill, decode) in (1_usize..6, 1_usize..4),
        (dram_blocks, ssd_blocks) in (0_usize..300, 0_usize..300),
        vram_tokens in 25_000_u64..300_000,
        routing in prop::sample::select(&Routing::ALL[..]),
        admission in prop::sample::select(&Admission::ALL[..]),
        (is_layer_wise, counts_first_interval) in any::<(bool, bool)>(),
    ) {
        let mut scenario = scenario(routing, admission);
        scenario.prefill = prefill;
        scenario.decode = decode;
        scenario.dram_blocks = dram_blocks;
        scenario.ssd_blocks = ssd_blocks;
        scenario.vram_tokens = vram_tokens;
        scenario.is_layer_wise = is_layer_wise;
        scenario.counts_first_interval = counts_first_interval;
        check(&simulate(&sessions(seed, 150, rate), &scenario));
    }
}
