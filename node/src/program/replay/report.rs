//! What a replay says about itself at its end.

use serde_json::{Value, json};

use super::super::size::Size;
use super::tally::{Latency, Tally};

/// Quantiles that are reported, by their names.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

/// A replay that has ended.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) trace: String,
    pub(super) nodes: usize,
    /// Unknown of a cluster that was not started for the replay.
    pub(super) capacity_blocks: Option<u64>,
    pub(super) block_bytes: usize,
    pub(super) tally: Tally,
}

impl Report {
    pub(super) fn object(&self) -> Value {
        let tally = &self.tally;
        let mut object = json!({
            "trace": self.trace,
            "nodes": self.nodes,
            "capacity_blocks": self.capacity_blocks,
            "block_bytes": self.block_bytes,
            "requests": tally.hits.requests,
            "blocks_hit": tally.hits.blocks_hit,
            "blocks_missed": tally.hits.blocks_missed(),
            "blocks_lost": tally.lost,
            "block_hit_ratio": tally.hits.block_ratio(),
            "prefix_hit_ratio": tally.hits.prefix_ratio(),
            "token_hit_ratio": tally.hits.token_ratio(),
            "verify_errors": tally.verify_errors,
            "puts_refused": tally.puts_refused,
            "bytes_read": tally.bytes_read,
            "bytes_written": tally.bytes_written,
            "seconds": tally.timed().as_secs_f64(),
            "wall_seconds": tally.elapsed.as_secs_f64(),
            "gigabytes_per_second": tally.gigabytes_per_second(),
            "evictions": tally.evictions,
        });
        for (step, latency) in self.steps() {
            for (name, quantile) in QUANTILES {
                object[format!("{step}_us_{name}")] = json!(latency.us_at(quantile));
            }
        }
        object
    }

    pub(super) fn table(&self) -> String {
        let tally = &self.tally;
        let capacity = self.capacity_blocks.map_or_else(
            || "capacity unknown".to_owned(),
            |blocks| format!("room for {blocks}"),
        );
        let block = Size(self.block_bytes as u64);
        let mut lines = vec![
            row("trace", &self.trace),
            row(
                "cluster",
                &format!("{} nodes, blocks of {block}, {capacity}", self.nodes),
            ),
            row("requests", &tally.hits.requests.to_string()),
            row(
                "blocks",
                &format!(
                    "{} hit, {} missed ({} of them evicted between lookup and get)",
                    tally.hits.blocks_hit,
                    tally.hits.blocks_missed(),
                    tally.lost
                ),
            ),
            row(
                "block hit ratio",
                &format!("{:.4}", tally.hits.block_ratio()),
            ),
            row(
                "prefix hit ratio",
                &format!(
                    "{:.4} by blocks, {:.4} by tokens",
                    tally.hits.prefix_ratio(),
                    tally.hits.token_ratio()
                ),
            ),
            row(
                "bytes moved",
                &format!(
                    "{} read, {} written",
                    Size(tally.bytes_read),
                    Size(tally.bytes_written)
                ),
            ),
            row(
                "throughput",
                &format!(
                    "{:.2} GB/s over {:.1} timed seconds of {:.1}",
                    tally.gigabytes_per_second(),
                    tally.timed().as_secs_f64(),
                    tally.elapsed.as_secs_f64()
                ),
            ),
            row("evictions", &tally.evictions.to_string()),
            row("puts refused", &tally.puts_refused.to_string()),
            row("verify errors", &tally.verify_errors.to_string()),
            row("us per request", &cells(["p50", "p99", "p99.9"])),
        ];
        for (step, latency) in self.steps() {
            let values = QUANTILES.map(|(_, quantile)| format!("{:.0}", latency.us_at(quantile)));
            lines.push(row(&format!("  {step}"), &cells(values)));
        }
        lines.join("\n")
    }

    const fn steps(&self) -> [(&'static str, &Latency); 3] {
        let tally = &self.tally;
        [
            ("lookup", &tally.lookup),
            ("get", &tally.get),
            ("put", &tally.put),
        ]
    }
}

fn row(name: &str, value: &str) -> String {
    format!("{name:<17} {value}")
}

fn cells<T: AsRef<str>>(values: [T; 3]) -> String {
    let [a, b, c] = values;
    format!("{:>9} {:>9} {:>9}", a.as_ref(), b.as_ref(), c.as_ref())
}
