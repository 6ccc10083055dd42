//! What the paper reports of its conversation trace, beside what the simulator makes of it.
//!
//! With `LUNETTE_TRACE_DIR` set to a folder that holds `conversation_trace.jsonl` the real trace is
//! used, and else the generated workload, which has its statistics. The tolerances hold for both.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use lunette::trace::Request;
use lunette::trace::format::TraceReader;
use lunette::trace::generator::Generator;
use lunette_conductor::policy::admission::Admission;
use lunette_conductor::policy::conductor::Options;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::Slo;
use lunette_conductor::{Arrival, Report, Scenario, Timing, Workload, hits, simulate};

const REQUESTS: usize = 12_031;

fn conversation() -> Workload {
    let requests: Vec<Request> = match std::env::var_os("LUNETTE_TRACE_DIR") {
        Some(folder) => {
            let path = PathBuf::from(folder).join("conversation_trace.jsonl");
            let file = File::open(&path).expect("LUNETTE_TRACE_DIR holds the trace");
            let requests: Result<_, _> = TraceReader::new(BufReader::new(file)).collect();
            requests.expect("the trace is well-formed")
        }
        None => Generator::new(1).take(REQUESTS).collect(),
    };
    Workload::new(requests.into_iter().map(|request| Arrival {
        arrival_s: request.timestamp_ms as f64 / 1000.0,
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
        hashes: request.hash_ids,
    }))
}

fn run(
    workload: &Workload,
    routing: Routing,
    admission: Admission,
    (p, d): (usize, usize),
) -> Report {
    let options = Options::new(routing, admission);
    simulate(workload, &Scenario::new(p, d, Slo::PROPORTIONAL, options))
}

/// Fig 9: hit rate of one LRU cache, .075 .089 .122 .217 .249 .302 .328 .400 .403 for 0.1, 1, 2, 4,
/// 5, 8, 10, 50 and 100 million tokens. Tolerance: 6 points. (Known gap, here as in other
/// replays of the published trace: 3 to 5 points below at 5 to 10 million tokens and above.)
#[test]
fn fig_9_hit_rate_grows_with_the_cache() {
    let workload = conversation();
    let paper = [
        (0.1, 0.075),
        (1.0, 0.089),
        (2.0, 0.122),
        (4.0, 0.217),
        (5.0, 0.249),
        (8.0, 0.302),
        (10.0, 0.328),
        (50.0, 0.400),
        (100.0, 0.403),
    ];
    let mut last = 0.0;
    for (blocks, (tokens_m, expected)) in [
        195, 1_953, 3_906, 7_812, 9_765, 15_625, 19_531, 97_656, 195_312,
    ]
    .into_iter()
    .zip(paper)
    {
        let hit = hits::hit_tokens(&workload, blocks);
        assert!(hit >= last, "a larger cache never hits less here");
        let error: f64 = hit - expected;
        assert!(
            error.abs() <= 0.06,
            "{tokens_m}M tokens: {hit} against {expected}"
        );
        last = hit;
    }
}

/// Fig 5: mean TTFT of random, load balancing, local cache-aware and global scheduling, 19.65 5.27
/// 3.58 3.07 s: this order, and global 14 % below local. Its prefill to decode ratio is not
/// published; 6 to 10 fits best. Tolerance: the order, and 5 to 30 %.
#[test]
fn fig_5_order_and_gain() {
    let workload = conversation();
    let ttft_s = |routing| {
        run(&workload, routing, Admission::None, (6, 10))
            .ttft_s
            .mean
    };
    let random = ttft_s(Routing::Random);
    let least_load = ttft_s(Routing::LeastLoad);
    let local = ttft_s(Routing::CacheAware);
    let global = ttft_s(Routing::Algorithm1);
    eprintln!("random {random}, least load {least_load}, local {local}, global {global}");
    assert!(random > least_load && least_load > local && local > global);
    let gain = 1.0 - global / local;
    assert!((0.05..0.30).contains(&gain), "{gain}");
}

/// Fig 10, the half that reproduces: 10 prefill nodes, one output token, caches shared: hit rate
/// about .38 and 1.05 s of prefill a request. Tolerance: 4 points and 0.2 s. The paper's local
/// scheduling hits .17; here even the longest match alone hits more, so its ratio of 2.22 does not
/// reproduce and is not asserted.
#[test]
fn fig_10_global_hit_rate_and_prefill_time() {
    let workload = conversation().with_output_tokens(1);
    let global = run(&workload, Routing::Algorithm1, Admission::None, (10, 1));
    assert!(
        (global.hit_tokens - 0.38).abs() <= 0.04,
        "{}",
        global.hit_tokens
    );
    assert!(
        (global.prefill_s - 1.05).abs() <= 0.2,
        "{}",
        global.prefill_s
    );
}

/// The point of our rules: 30 % beyond the load that Algorithm 1 serves at 95 %, most requests are
/// still in time, more tokens are than with Algorithm 1, and the longest prompts keep their floor.
#[test]
fn ours_serves_a_load_at_which_algorithm_1_has_lost_half() {
    let workload = conversation().timed(Timing::Spread { seed: 1 }, 3.6);
    let ours = run(&workload, Routing::Marginal, Admission::Marginal, (12, 4));
    let theirs = run(&workload, Routing::Algorithm1, Admission::Early, (12, 4));
    eprintln!(
        "{:?} {:?} against {:?} {:?}",
        ours.all, ours.classes, theirs.all, theirs.classes
    );
    assert!(ours.all.good >= 0.92, "{}", ours.all.good);
    assert!(theirs.all.good <= 0.70, "{}", theirs.all.good);
    assert!(ours.all.good_tokens >= theirs.all.good_tokens);
    for (class, theirs) in ours.classes.iter().zip(theirs.classes) {
        assert!(class.good >= theirs.good.min(0.83), "{class:?} {theirs:?}");
    }
}
