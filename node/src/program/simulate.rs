//! `lunette simulate`: a trace through a simulated cluster, under the rules of the conductor.

mod bound;
mod coupled;
mod figure;
mod grid;
mod report;
mod surrogate;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use lunette::trace::Request;
use lunette::trace::generator::{Generator, REQUESTS_DEFAULT};
use lunette_conductor::capacity::{self, Measure};
use lunette_conductor::interval::mean_and_interval;
use lunette_conductor::plot::{self, Chart};
use lunette_conductor::policy::admission::Admission;
use lunette_conductor::policy::conductor::Options;
use lunette_conductor::policy::discipline::Discipline;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::{Slo, TtftSlo};
use lunette_conductor::{Arrival, Report, Scenario, Timing, Workload, simulate as run};
use lunette_conductor::{CoupledScenario, simulate_coupled};
use serde_json::json;

use super::failure::Failure;
use super::output;
use super::replay::read_trace;
use coupled::CoupledArguments;
use surrogate::Surrogate;

/// Lowest and highest speed-up of a search, and how near to each other its ends come.
const SPEED_UP_SEARCHED: (f64, f64, f64) = (0.25, 16.0, 0.01);

/// Simulate a cluster that serves a trace of requests, and measure what the scheduler makes of it.
///
/// Prefill and decode instances, their caches and the network are simulated with a performance
/// model fitted to published measurements of Llama-3-70B on nodes of eight A800. Nothing runs on an
/// accelerator.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette simulate --prefill 12 --decode 4 --speedup 3
  lunette simulate --trace conversation_trace.jsonl --policy algorithm1 --admission early --json
  lunette simulate --policy algorithm1 --admission early --attain 0.95 --timing spread --seeds 5
  lunette simulate --speedup 3 --plot run.png
  lunette simulate --coupled --chunk 512 --prefill 12 --decode 4 --speedup 3
  lunette simulate --figure v3-12
  lunette simulate --grid --trace conversation_trace.jsonl --timing spread --seeds 5
  lunette simulate --bound 0.95 --surrogate synthetic
  lunette simulate --policy ours --admission ours --slo fixed --ttft-s 30 --seeds 5 --timing spread")]
pub(crate) struct SimulateArguments {
    /// A trace file in Mooncake's format. Default: a generated workload like its conversation trace.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Use the generated workload, which is the default.
    #[arg(long, conflicts_with = "trace")]
    generated: bool,
    /// Use a stand-in for a trace that cannot be had, with its published statistics.
    #[arg(long, value_enum, conflicts_with_all = ["generated", "requests", "figure"])]
    surrogate: Option<Surrogate>,
    /// Most requests to simulate. Default: all of the trace; of the generated workload, 12031.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// How the prefill instance is chosen: random, round-robin, least-load, longest-match,
    /// cache-aware, algorithm1 (Mooncake's), pooled, dynamo-like, ours. Default: ours; with --coupled,
    /// least-load.
    #[arg(long, value_name = "NAME", value_parser = routing)]
    policy: Option<Routing>,
    /// What is refused: none, baseline, early, prediction, ours.
    #[arg(long, value_name = "NAME", default_value = "ours", value_parser = admission)]
    admission: Admission,
    /// How prefill instances queue. Default: deadline for the policy ours, fifo for the others.
    #[arg(long, value_enum)]
    queue: Option<Queue>,
    /// Prefill instances.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    prefill: u16,
    /// Decode instances.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    decode: u16,
    /// How many times faster than recorded the requests arrive.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    speedup: f64,
    /// Seed of random choices, of spread arrivals and of the generated workload.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Simulate this many seeds, from the given one on, and show mean and 95 % interval.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// When requests arrive: as recorded, in batches, or spread over the three seconds of a batch.
    #[arg(long, value_enum, default_value_t = TimingChoice::Recorded)]
    timing: TimingChoice,
    /// Form of the objective for the time to first token: fixed, or 2 s and 3 times what the
    /// prompt takes alone.
    #[arg(long, value_enum, default_value_t = SloChoice::Proportional)]
    slo: SloChoice,
    /// The fixed objective, or the base time of the proportional one, in seconds.
    #[arg(long, value_name = "S", value_parser = positive)]
    ttft_s: Option<f64>,
    /// The multiple of the proportional objective.
    #[arg(long, value_name = "X", default_value_t = 3.0, value_parser = positive)]
    ttft_factor: f64,
    /// Objective for the time between tokens (mean of the longest tenth), in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = positive)]
    tbt_ms: f64,
    /// Blocks of host memory at each prefill instance.
    #[arg(long, value_name = "N", default_value_t = 5_859)]
    dram_blocks: usize,
    /// Blocks on the drive of each prefill instance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ssd_blocks: usize,
    /// What a node sends and receives, in gigabytes per second.
    #[arg(long, value_name = "GB", default_value_t = 87.0, value_parser = positive)]
    network_gb_s: f64,
    /// Gives every answer this many tokens.
    #[arg(long, value_name = "N")]
    output_tokens: Option<u32>,
    /// Share of the time between tokens at which the admissions early, prediction and baseline
    /// hold a decode instance for full.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    decode_share: f64,
    /// Draw the first run into this file, as its ending says (.svg or .png): distributions, and
    /// load over time; with --grid, what is good against load.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Instead of one run, simulate a figure of Mooncake's papers and print its numbers beside ours:
    /// 1, 5, 9, 10, 13, 14, 15 (FAST'25), v3-8, v3-12, v3-13, v3-table-3 (arXiv), or all.
    #[arg(long, value_name = "NAME", value_parser = figure::figures,
          conflicts_with_all = ["attain", "plot"])]
    figure: Option<figure::Figures>,
    /// Instead of one run, compare with Algorithm 1 and its best rejection over speed-ups from 1 to
    /// 4.5 in steps of .25, with 12 prefill and 4 decode instances and with 8 and 8, and say what
    /// holds. Takes minutes; meant for --timing spread --seeds 5.
    #[arg(long, conflicts_with_all = ["attain", "figure", "speedup"])]
    grid: bool,
    /// Instead of one run, look for the speed-up at which this share of the requests is good.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with_all = ["speedup", "plot"])]
    attain: Option<f64>,
    /// Instead of one run, say what no rules can pass: the speed-up at which this share of the
    /// requests could be served if every prompt found all blocks that an earlier one had, no
    /// instance ever idled and the costliest were refused; and the least mean time to first token.
    #[arg(long, value_name = "SHARE", value_parser = share,
          conflicts_with_all = ["attain", "coupled", "figure", "grid", "plot", "speedup"])]
    bound: Option<f64>,
    /// Of ours: what a token of a prompt is worth, where a request is worth one.
    #[arg(long, value_name = "X", value_parser = positive)]
    token_value: Option<f64>,
    /// Of ours: what a second of delay of a queued request counts.
    #[arg(long, value_name = "X", value_parser = positive)]
    delay_weight: Option<f64>,
    /// Of ours: copy fetched blocks where memory is tight, too, instead of moving them.
    #[arg(long)]
    copy_only: bool,
    /// Of ours: let no request wait for a queued prefill whose prompt begins with the same blocks.
    #[arg(long)]
    no_follow: bool,
    #[command(flatten)]
    coupled: CoupledArguments,
    /// Of ours: share of the long requests that is to be served in time.
    #[arg(long, value_name = "SHARE", value_parser = positive)]
    class_floor: Option<f64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TimingChoice {
    /// As the trace says.
    Recorded,
    /// Over the three seconds of a batch.
    Spread,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SloChoice {
    /// The same time for every request.
    Fixed,
    /// More for longer prompts.
    Proportional,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Queue {
    /// In order of arrival.
    Fifo,
    /// In slices, by remaining work and deadline.
    Deadline,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
enum ClusterScenario {
    /// Prefill and decode instances.
    Separate(Scenario),
    /// Instances that do both.
    Coupled(CoupledScenario),
}

impl ClusterScenario {
    fn run(&self, workload: &Workload) -> Report {
        match self {
            Self::Separate(scenario) => run(workload, scenario),
            Self::Coupled(scenario) => simulate_coupled(workload, scenario),
        }
    }
}

fn routing(text: &str) -> Result<Routing, String> {
    let found = Routing::ALL.into_iter().find(|rule| rule.name() == text);
    found.ok_or_else(|| format!("one of {}", Routing::ALL.map(Routing::name).join(", ")))
}

fn admission(text: &str) -> Result<Admission, String> {
    let found = Admission::ALL.into_iter().find(|rule| rule.name() == text);
    found.ok_or_else(|| format!("one of {}", Admission::ALL.map(Admission::name).join(", ")))
}

fn share(text: &str) -> Result<f64, String> {
    let value = positive(text)?;
    if value <= 1.0 {
        Ok(value)
    } else {
        Err("more than all".to_owned())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err("not a number above zero".to_owned())
    }
}

impl SimulateArguments {
    fn slo(&self) -> Slo {
        let ttft = match self.slo {
            SloChoice::Fixed => TtftSlo::Fixed {
                limit_s: self.ttft_s.unwrap_or(30.0),
            },
            SloChoice::Proportional => TtftSlo::Proportional {
                base_s: self.ttft_s.unwrap_or(2.0),
                factor: self.ttft_factor,
            },
        };
        let tbt_s = self.tbt_ms / 1000.0;
        Slo { ttft, tbt_s }
    }

    fn options(&self, seed: u64) -> Options {
        let policy = self.policy.unwrap_or(Routing::Marginal);
        let mut options = Options::new(policy, self.admission);
        options.seed = seed;
        options.decode_share = self.decode_share;
        options.token_value = self.token_value.unwrap_or(options.token_value);
        options.delay_weight = self.delay_weight.unwrap_or(options.delay_weight);
        options.moves_blocks &= !self.copy_only;
        options.follows &= !self.no_follow;
        options.class_floor = self.class_floor.unwrap_or(options.class_floor);
        match self.queue {
            None => {}
            Some(Queue::Fifo) => options.discipline = Discipline::Fifo,
            Some(Queue::Deadline) => options.discipline = Discipline::DEADLINE_AWARE,
        }
        options
    }

    fn scenario(&self, seed: u64) -> Scenario {
        let options = self.options(seed);
        let (prefill, decode) = (usize::from(self.prefill), usize::from(self.decode));
        let mut scenario = Scenario::new(prefill, decode, self.slo(), options);
        scenario.dram_blocks = self.dram_blocks;
        scenario.ssd_blocks = self.ssd_blocks;
        scenario.cost.network_bytes_per_s = self.network_gb_s * 1e9;
        scenario
    }

    /// The cluster of this seed: separate instances, or a coupled one.
    fn cluster(&self, seed: u64) -> Result<ClusterScenario, Failure> {
        if !self.coupled.coupled {
            return Ok(ClusterScenario::Separate(self.scenario(seed)));
        }
        let routing = self.policy.unwrap_or(Routing::LeastLoad);
        if routing.fetches() {
            return Err(Failure::Usage(
                "--coupled needs a --policy that fetches nothing: random, round-robin, least-load, \
                 longest-match, cache-aware or dynamo-like",
            ));
        }
        let instances = usize::from(self.prefill) + usize::from(self.decode);
        let scenario = self.coupled.scenario(instances, self.slo(), routing, seed);
        Ok(ClusterScenario::Coupled(scenario))
    }

    fn workload(&self, seed: u64, trace: Option<&Workload>) -> Workload {
        let generated = || {
            let requests = self.requests.unwrap_or(REQUESTS_DEFAULT);
            let requests = usize::try_from(requests).unwrap_or(usize::MAX);
            Workload::new(Generator::new(seed).take(requests).map(arrival))
        };
        let timing = match self.timing {
            TimingChoice::Recorded => Timing::Recorded,
            TimingChoice::Spread => Timing::Spread { seed },
        };
        let given = || trace.cloned().unwrap_or_else(generated);
        let workload = match self.surrogate {
            Some(surrogate) => surrogate.workload(seed, given),
            None => given(),
        };
        let workload = workload.timed(timing, 1.0);
        match self.output_tokens {
            Some(tokens) => workload.with_output_tokens(tokens),
            None => workload,
        }
    }
}

pub(super) fn simulate(arguments: &SimulateArguments, as_json: bool) -> Result<(), Failure> {
    let trace = arguments
        .trace
        .as_ref()
        .map(|path| {
            let requests = read_trace(path, arguments.requests.unwrap_or(u64::MAX))?;
            Ok::<_, Failure>(Workload::new(requests.into_iter().map(arrival)))
        })
        .transpose()?;
    if let Some(figures) = &arguments.figure {
        let conversation = arguments.workload(arguments.seed, trace.as_ref());
        return figure::print(figures, &conversation, as_json);
    }
    if arguments.grid {
        let seed = arguments.seed;
        let plan = grid::plan(
            seed..seed.saturating_add(u64::from(arguments.seeds)),
            arguments.options(seed),
        );
        let load = |seed| arguments.workload(seed, trace.as_ref());
        return grid::print(&plan, load, arguments.plot.as_deref(), as_json);
    }
    if let Some(share) = arguments.bound {
        let workload = arguments.workload(arguments.seed, trace.as_ref());
        let prefill = usize::from(arguments.prefill);
        return bound::print(&workload, &arguments.slo(), prefill, share, as_json);
    }
    if let Some(share) = arguments.attain {
        return attain(arguments, trace.as_ref(), share, as_json);
    }
    let seeds = arguments.seed..arguments.seed.saturating_add(u64::from(arguments.seeds));
    let progress = ProgressBar::new(u64::from(arguments.seeds));
    let reports: Vec<Report> = progress
        .wrap_iter(seeds)
        .map(|seed| {
            let workload = arguments.workload(seed, trace.as_ref());
            let workload = workload.timed(Timing::Recorded, arguments.speedup);
            Ok(arguments.cluster(seed)?.run(&workload))
        })
        .collect::<Result<_, Failure>>()?;
    progress.finish_and_clear();
    if let Some(path) = &arguments.plot {
        draw(path, &plot::run(&reports[0]))?;
    }
    let cluster = if arguments.coupled.coupled {
        "coupled"
    } else {
        "separate"
    };
    if as_json {
        output::line(&report::object(cluster, &reports).to_string())
    } else {
        output::line(&report::table(cluster, &reports))
    }
}

/// Draws the charts into a file, as an image if its name says so.
fn draw(path: &Path, charts: &[Chart]) -> Result<(), Failure> {
    let name = path.display().to_string();
    let is_image = path.extension().is_some_and(|ending| ending == "png");
    let drawing = if is_image {
        let image = plot::png(charts).map_err(io::Error::other);
        image.map_err(|error| Failure::file(&name, error))?
    } else {
        plot::svg(charts).into_bytes()
    };
    fs::write(path, drawing).map_err(|error| Failure::file(&name, error))
}

/// Searches for the load at which `share` of the requests is good, and says it.
fn attain(
    arguments: &SimulateArguments,
    trace: Option<&Workload>,
    share: f64,
    as_json: bool,
) -> Result<(), Failure> {
    let seeds = arguments.seed..arguments.seed.saturating_add(u64::from(arguments.seeds));
    let progress = ProgressBar::new(u64::from(arguments.seeds));
    let found: Vec<f64> = progress
        .wrap_iter(seeds)
        .map(|seed| {
            let workload = arguments.workload(seed, trace);
            let cluster = arguments.cluster(seed)?;
            Ok(capacity::speed_up(
                &workload,
                Timing::Recorded,
                |load| cluster.run(load),
                (Measure::Requests, share),
                SPEED_UP_SEARCHED,
            ))
        })
        .collect::<Result<_, Failure>>()?;
    progress.finish_and_clear();
    let (mean, interval) = mean_and_interval(&found);
    if as_json {
        let object = json!({ "share": share, "speedup": mean, "speedup_interval": interval });
        return output::line(&object.to_string());
    }
    let interval = interval.map_or(String::new(), |half| format!(" +- {half:.3}"));
    output::line(&format!(
        "{share} of the requests are good up to a speed-up of {mean:.3}{interval}"
    ))
}

fn arrival(request: Request) -> Arrival {
    // Exact up to 2^53 ms, which is 285 thousand years.
    let milliseconds = request.timestamp_ms as f64;
    Arrival {
        arrival_s: milliseconds / 1000.0,
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
        hashes: request.hash_ids,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name() {
        for rule in Routing::ALL {
            assert_eq!(routing(rule.name()), Ok(rule));
        }
        for rule in Admission::ALL {
            assert_eq!(admission(rule.name()), Ok(rule));
        }
        let error = routing("best").expect_err("there is no such rule");
        assert!(error.contains("algorithm1"), "{error}");
        assert!(admission("").is_err());
    }

    #[test]
    fn factors_are_above_zero_and_shares_at_most_one() {
        assert_eq!(share("1"), Ok(1.0));
        assert!(share("1.01").is_err() && share("0").is_err());
        assert_eq!(positive("0.5"), Ok(0.5));
        for text in ["0", "-1", "inf", "NaN", "x"] {
            assert!(positive(text).is_err(), "{text}");
        }
    }
}
