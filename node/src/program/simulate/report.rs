//! Reports of simulations, as a table and as JSON.

use lunette_conductor::Report;
use lunette_conductor::interval::mean_and_interval;
use lunette_conductor::policy::ids::LengthClass;
use lunette_conductor::report::Ending;
use serde_json::{Map, Value, json};

type Figure = (&'static str, fn(&Report) -> f64);

const FIGURES: [Figure; 20] = [
    ("good_requests", |report| report.all.good),
    ("good_tokens", |report| report.all.good_tokens),
    ("good_short", |report| {
        report.classes[LengthClass::Short.index()].good
    }),
    ("good_medium", |report| {
        report.classes[LengthClass::Medium.index()].good
    }),
    ("good_long", |report| {
        report.classes[LengthClass::Long.index()].good
    }),
    ("late", |report| count(report.late)),
    ("slow", |report| count(report.slow)),
    ("ttft_mean_s", |report| report.ttft_s.mean),
    ("ttft_p50_s", |report| report.ttft_s.p50),
    ("ttft_p90_s", |report| report.ttft_s.p90),
    ("ttft_p99_s", |report| report.ttft_s.p99),
    ("tbt_mean_s", |report| report.tbt_s.mean),
    ("tbt_p50_s", |report| report.tbt_s.p50),
    ("tbt_p90_s", |report| report.tbt_s.p90),
    ("tbt_p99_s", |report| report.tbt_s.p99),
    ("hit_tokens", |report| report.hit_tokens),
    ("prefill_s", |report| report.prefill_s),
    ("prefill_utilization", |report| report.prefill_utilization),
    ("wasted_prefill_s", |report| report.wasted_prefill_s),
    ("fetched_tokens", |report| report.fetched_tokens),
];

fn count(requests: usize) -> f64 {
    f64::from(u32::try_from(requests).unwrap_or(u32::MAX))
}

fn figures(reports: &[Report]) -> Vec<(&'static str, f64, Option<f64>)> {
    let of = |(name, figure): &Figure| {
        let values: Vec<f64> = reports.iter().map(figure).collect();
        let (mean, interval) = mean_and_interval(&values);
        (*name, mean, interval)
    };
    FIGURES.iter().map(of).collect()
}

fn endings(reports: &[Report]) -> Vec<(&'static str, f64)> {
    let mean = |at: usize| {
        let counts: Vec<f64> = reports
            .iter()
            .map(|report| count(report.endings[at]))
            .collect();
        mean_and_interval(&counts).0
    };
    let named = Ending::ALL.into_iter().enumerate();
    named
        .map(|(at, ending)| (ending.name(), mean(at)))
        .collect()
}

/// All runs as one JSON object: means, and intervals where there are several runs.
pub(super) fn object(cluster: &str, reports: &[Report]) -> Value {
    let mut object = Map::new();
    object.insert("cluster".to_owned(), json!(cluster));
    object.insert("requests".to_owned(), json!(reports[0].all.requests));
    object.insert("runs".to_owned(), json!(reports.len()));
    for (name, mean, interval) in figures(reports) {
        object.insert(name.to_owned(), json!(mean));
        if let Some(interval) = interval {
            object.insert(format!("{name}_interval"), json!(interval));
        }
    }
    for (name, mean) in endings(reports) {
        object.insert(name.to_owned(), json!(mean));
    }
    Value::Object(object)
}

/// All runs as a table for people.
pub(super) fn table(cluster: &str, reports: &[Report]) -> String {
    let requests = reports[0].all.requests;
    let mut lines = vec![format!(
        "{requests} requests, {} run(s), {cluster} instances",
        reports.len()
    )];
    for (name, mean, interval) in figures(reports) {
        let interval = interval.map_or(String::new(), |half| format!("  +- {half:.4}"));
        lines.push(format!("  {name:<22}{mean:>14.4}{interval}"));
    }
    for (name, mean) in endings(reports) {
        lines.push(format!("  {name:<22}{mean:>14.1}"));
    }
    lines.join("\n")
}
