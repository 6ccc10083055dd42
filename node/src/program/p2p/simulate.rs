//! Swarms in virtual time.

use clap::Args;
use lunette_p2p::simulation::{
    Case, Report, Scenario, adversities, equal_lines, simulate as run, simulate_mooncake,
};
use serde_json::{Value, json};

use crate::program::failure::Failure;
use crate::program::output;
use crate::program::size::Size;

#[derive(Args, Debug)]
pub(super) struct SimulateArguments {
    /// The most receivers: there are runs with 1, 2, 4 and so on up to it, and up to 64 and 256 at most.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    receivers: u16,
    /// Length of the object.
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = Size::parse)]
    object: Size,
    /// Length of its chunks.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = Size::parse)]
    chunk: Size,
    /// What each host's line carries each way, in gigabits per second.
    #[arg(long, value_name = "GBIT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    rate: u16,
    /// Draws everything: the same runs for the same number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out Mooncake's scheme.
    #[arg(long)]
    no_mooncake: bool,
}

/// Most chunks of a simulated object, so that a run ends.
const CHUNKS_MAX: u64 = 16_384;

pub(super) fn simulate(arguments: &SimulateArguments, as_json: bool) -> Result<(), Failure> {
    let (object_bytes, chunk_bytes) = (arguments.object.0, arguments.chunk.0);
    if object_bytes == 0 || chunk_bytes == 0 || object_bytes.div_ceil(chunk_bytes) > CHUNKS_MAX {
        return Err(Failure::Usage(
            "a simulated object has 1 to 16,384 chunks: make them longer, or it shorter",
        ));
    }
    let bytes_per_s = u64::from(arguments.rate) * 125_000_000;
    let base = Scenario {
        receivers: usize::from(arguments.receivers),
        object_bytes,
        chunk_bytes,
        bytes_per_s,
        between_bytes_per_s: bytes_per_s,
        seed: arguments.seed,
        ..Scenario::default()
    };
    let mut cases = equal_lines(&base, base.receivers);
    cases.extend(adversities(&base));
    if !as_json {
        output::line(HEAD)?;
    }
    for case in &cases {
        let report = run(&case.scenario);
        let mooncake = (!arguments.no_mooncake).then(|| simulate_mooncake(&case.scenario));
        output::line(&if as_json {
            object(case, &report, mooncake.as_ref()).to_string()
        } else {
            row(case, &report, mooncake.as_ref())
        })?;
    }
    Ok(())
}

const HEAD: &str = "\
receivers                                 bound s   last s   ratio     bar  origin  crossed  wasted  \
mooncake
                                                                             copies   copies  copies   \
 ratio";

fn row(case: &Case, report: &Report, mooncake: Option<&Report>) -> String {
    let last = report.last.map_or(f64::INFINITY, |last| last.as_secs_f64());
    let mooncake = mooncake.map_or(String::new(), |report| format!("{:.2}", report.ratio()));
    format!(
        "{:40}{:9.3}{last:9.3}{:8.3}{:8.2}{:8.2}{:9.3}{:8.3}{mooncake:>10}",
        case.name,
        report.bound.as_secs_f64(),
        report.ratio(),
        case.ratio_max,
        report.origin_copies,
        report.crossed_copies,
        report.wasted_copies,
    )
}

fn object(case: &Case, report: &Report, mooncake: Option<&Report>) -> Value {
    json!({
        "case": case.name,
        "receivers": case.scenario.receivers,
        "seed": case.scenario.seed,
        "ratio_max": case.ratio_max,
        "swarm": numbers(report),
        "mooncake": mooncake.map(numbers),
    })
}

fn numbers(report: &Report) -> Value {
    let seconds = |at: Option<std::time::Duration>| at.map(|at| at.as_secs_f64());
    json!({
        "bound_s": report.bound.as_secs_f64(),
        "first_s": seconds(report.first),
        "median_s": seconds(report.median),
        "last_s": seconds(report.last),
        "stragglers_s": seconds(report.stragglers),
        "unserved": report.unserved,
        // Without a number if somebody is left without the object.
        "ratio": report.ratio(),
        "origin_copies": report.origin_copies,
        "crossed_copies": report.crossed_copies,
        "wasted_copies": report.wasted_copies,
        "messages_per_chunk": report.messages_per_chunk,
    })
}
