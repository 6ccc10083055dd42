//! Our rules beside Algorithm 1 over a grid of loads.

use std::ops::Range;
use std::path::Path;

use indicatif::ProgressBar;
use lunette_conductor::Workload;
use lunette_conductor::grid::{self, Pair, Plan, Point, SplitReport};
use lunette_conductor::plot;
use lunette_conductor::policy::conductor::Options;
use serde_json::{Value, json};

use crate::program::failure::Failure;
use crate::program::output;

const SPLITS: [(usize, usize); 2] = [(12, 4), (8, 8)];
/// Speed-ups in quarters: 1.0 to 4.5.
const QUARTERS: std::ops::RangeInclusive<u8> = 4..=18;

/// The grid of these seeds, with these rules as ours.
pub(super) fn plan(seeds: Range<u64>, ours: Options) -> Plan {
    Plan {
        splits: SPLITS.to_vec(),
        speed_ups: QUARTERS.map(|quarters| f64::from(quarters) / 4.0).collect(),
        seeds: seeds.collect(),
        ours,
    }
}

/// Runs the grid, draws it if asked to, and prints it.
pub(super) fn print(
    plan: &Plan,
    load: impl Fn(u64) -> Workload,
    drawing: Option<&Path>,
    as_json: bool,
) -> Result<(), Failure> {
    let progress = ProgressBar::new_spinner();
    let reports = grid::run(plan, load, |step| {
        progress.set_message(step);
        progress.tick();
    });
    progress.finish_and_clear();
    if let Some(path) = drawing {
        super::draw(path, &plot::grid(&reports))?;
    }
    if as_json {
        let objects: Vec<Value> = reports.iter().map(object).collect();
        return output::line(&Value::Array(objects).to_string());
    }
    for report in &reports {
        output::line(&text(report))?;
    }
    Ok(())
}

fn pair(pair: Pair) -> Value {
    json!({ "ours": pair.ours, "algorithm1": pair.theirs, "interval": pair.interval })
}

fn point(point: &Point) -> Value {
    json!({
        "speedup": point.speed_up,
        "requests": pair(point.requests),
        "tokens": pair(point.tokens),
        "short": pair(point.classes[0]),
        "medium": pair(point.classes[1]),
        "long": pair(point.classes[2]),
        "ttft_mean_s": pair(point.ttft_s),
    })
}

fn object(report: &SplitReport) -> Value {
    let points = |points: &[Point]| points.iter().map(point).collect::<Vec<_>>();
    let verdicts = report.verdicts().into_iter().map(|verdict| {
        json!({ "what": verdict.what, "met": verdict.is_met, "evidence": verdict.evidence })
    });
    json!({
        "prefill": report.split.0,
        "decode": report.split.1,
        "rejection": report.rejection.name(),
        "load": pair(report.load),
        "proportional": points(&report.proportional),
        "fixed_rejection": report.fixed_rejection.name(),
        "fixed_load": report.fixed_load,
        "fixed": points(&report.fixed),
        "near_load": points(&report.near_load),
        "verdicts": verdicts.collect::<Vec<_>>(),
    })
}

fn rows(lines: &mut Vec<String>, points: &[Point]) {
    lines.push(format!(
        "  {:>5}  {:^15}  {:^15}  {:^15}  {:^15}",
        "x", "requests", "tokens", "long", "mean TTFT, s"
    ));
    for point in points {
        let shares = [point.requests, point.tokens, point.classes[2]];
        let [requests, tokens, long] =
            shares.map(|pair| format!("{:>7.3} {:>7.3}", pair.ours, pair.theirs));
        let Pair { ours, theirs, .. } = point.ttft_s;
        let (speed_up, gain) = (point.speed_up, 100.0 * point.ttft_s.gain());
        lines.push(format!(
            "  {speed_up:>5.2}  {requests}  {tokens}  {long}  {ours:>7.2} {theirs:>7.2}  {gain:+.0} %"
        ));
    }
}

fn text(report: &SplitReport) -> String {
    let (prefill, decode) = report.split;
    let mut lines = vec![format!(
        "{prefill} prefill and {decode} decode instances: ours, then Algorithm 1"
    )];
    let rejection = report.rejection.name();
    lines.push(format!(
        "  proportional objective; Algorithm 1 with rejection {rejection}"
    ));
    rows(&mut lines, &report.proportional);
    let rejection = report.fixed_rejection.name();
    lines.push(format!(
        "  fixed objective; Algorithm 1 with rejection {rejection}, 95 % up to x {:.3}; last 0.9 \
         and 1.0 of that",
        report.fixed_load
    ));
    rows(
        &mut lines,
        &[&report.fixed[..], &report.near_load[..]].concat(),
    );
    for verdict in report.verdicts() {
        let word = if verdict.is_met { "met" } else { "missed" };
        let (what, evidence) = (verdict.what, verdict.evidence);
        lines.push(format!("  {word}: {what}: {evidence}"));
    }
    lines.push(String::new());
    lines.join("\n")
}
