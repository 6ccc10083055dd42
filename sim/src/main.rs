//! `lunette-sim`: runs seeds, and says what came of them.
#![forbid(unsafe_code)]

mod replay_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lunette_sim::scenario::Scenario;
use lunette_sim::summary::Summary;

/// Below this many seeds a fault may well not occur.
const SEEDS_FOR_ALL: u64 = 200;

/// Runs the store in simulated worlds, one per seed, and judges every answer.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask sim",
    bin_name = "cargo xtask sim",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// Which kind of worlds.
    #[arg(long, default_value = "nodes", value_parser = scenario)]
    scenario: Scenario,
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// One seed alone, run twice.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Prints what happens in the world of the one seed.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Prints one line of JSON.
    #[arg(long)]
    json: bool,
    /// Switches a bug on, which is to be found: then it is a success to fail. `all` for each of
    /// them, one after the other.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutant: Option<String>,
}

/// What else there is to be simulated.
#[derive(Debug, Subcommand)]
enum Instead {
    /// Has members of a cluster serve a trace, and says how much of what was asked for was there.
    Replay(replay_command::Arguments),
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let named = Scenario::ALL.into_iter().find(|(own, _)| *own == name);
    let names = Scenario::ALL.map(|(name, _)| name);
    named.map_or_else(
        || Err(format!("there are {names:?}")),
        |(_, scenario)| Ok(scenario),
    )
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Instead::Replay(arguments)) = &arguments.instead {
        return replay_command::run(arguments);
    }
    #[cfg(feature = "mutants")]
    if let Some(name) = &arguments.mutant {
        return mutants::find(name, &arguments);
    }
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

/// Bugs to be found.
#[cfg(feature = "mutants")]
mod mutants {
    use std::panic;
    use std::process::ExitCode;

    use lunette_runtime_core::mutant::{Mutant, choose};

    use super::{Arguments, one};

    /// Looks for one bug, or for all of them.
    pub(super) fn find(name: &str, arguments: &Arguments) -> ExitCode {
        let all = arguments.scenario.mutants();
        let chosen = all.iter().filter(|(own, _)| name == "all" || *own == name);
        let chosen: Vec<_> = chosen.copied().collect();
        if chosen.is_empty() {
            let names: Vec<_> = all.iter().map(|(name, _)| name).collect();
            eprintln!("no such bug; there are {names:?}");
            return ExitCode::FAILURE;
        }
        if let ([(_, mutant)], Some(seed)) = (&chosen[..], arguments.seed) {
            choose(*mutant);
            return one(seed, arguments);
        }
        // Panics are findings here, and there are many.
        panic::set_hook(Box::new(|_| {}));
        let missed = chosen
            .into_iter()
            .filter(|(name, mutant)| !is_found(name, *mutant, arguments));
        ExitCode::from(u8::from(missed.count() > 0))
    }

    fn is_found(name: &str, mutant: Mutant, arguments: &Arguments) -> bool {
        choose(mutant);
        for seed in arguments.first..arguments.first + arguments.seeds {
            let report = arguments.scenario.run(seed, false);
            // An assertion of the product would find it too, some time; the oracle has to.
            if report.is_found_by_oracle {
                println!("{name}: found by seed {seed}: {}", report.failures[0]);
                return true;
            }
        }
        println!(
            "{name}: NOT found by the oracle in {} seeds",
            arguments.seeds
        );
        false
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let scenario = arguments.scenario;
    let (report, again) = (scenario.run(seed, arguments.log), scenario.run(seed, false));
    for line in &report.log {
        println!("{line}");
    }
    let mut summary = Summary::new(arguments.scenario);
    summary.add(seed, &report);
    print(&summary, arguments.json);
    for failure in &report.failures {
        eprintln!("seed {seed}: {failure}");
    }
    if report.trace_hash != again.trace_hash {
        eprintln!("seed {seed} is another world the second time");
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(!report.failures.is_empty()))
}

fn many(arguments: &Arguments) -> ExitCode {
    let mut summary = Summary::new(arguments.scenario);
    for seed in arguments.first..arguments.first + arguments.seeds {
        summary.add(seed, &arguments.scenario.run(seed, false));
    }
    print(&summary, arguments.json);
    if let Some((seed, failure)) = summary.first_failing() {
        eprintln!("seed {seed}: {failure}");
        let scenario = arguments.scenario.name();
        eprintln!(
            "again, with what happened: cargo xtask sim --scenario {scenario} --seed {seed} --log"
        );
        return ExitCode::FAILURE;
    }
    let never = summary.never_seen();
    if arguments.seeds >= SEEDS_FOR_ALL && !never.is_empty() {
        eprintln!(
            "never seen in {} seeds: {}",
            arguments.seeds,
            never.join(", ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn print(summary: &Summary, as_json: bool) {
    let json = summary.json();
    if as_json {
        println!("{json}");
    } else {
        println!("{json:#}");
    }
}
