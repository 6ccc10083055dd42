//! The table, and the object.

use lunette_kvstore_proto::message::NodeStat;
use serde_json::{Value, json};

use super::sample::{Deeds, Row, Watched, as_float};
use crate::program::size::Size;
use crate::program::stat::drives;

/// What happened, as a JSON object.
pub(super) fn object(watched: &Watched) -> Value {
    let nodes: Vec<Value> = watched.rows.iter().map(|row| node(watched, row)).collect();
    let (stat, deeds) = watched.total();
    json!({
        "interval_s": watched.interval.as_secs_f64(),
        "nodes": nodes,
        "total": told(watched, &stat, Some(deeds)),
    })
}

fn node(watched: &Watched, row: &Row) -> Value {
    let mut object = match &row.stat {
        Ok(stat) => told(watched, stat, row.deeds),
        Err(error) => json!({ "error": error.to_string() }),
    };
    object["address"] = json!(row.address.to_string());
    object
}

fn told(watched: &Watched, stat: &NodeStat, deeds: Option<Deeds>) -> Value {
    let rate = |of: fn(&Deeds) -> u64| deeds.map(|deeds| watched.per_second(of(&deeds)));
    json!({
        "state": stat.state().word(),
        "epoch": stat.epoch,
        "lease_left_ms": stat.lease_left_ms,
        "cores": stat.cores,
        "connections": stat.connections,
        "objects": stat.shards.entries,
        "used_bytes": stat.shards.used_bytes,
        "capacity_bytes": stat.capacity_bytes,
        "hit_ratio": deeds.and_then(|deeds| deeds.hit_ratio()),
        "requests_per_s": rate(|deeds| deeds.requests),
        "refused_per_s": rate(|deeds| deeds.refused),
        "payload_in_bytes_per_s": rate(|deeds| deeds.in_bytes),
        "payload_out_bytes_per_s": rate(|deeds| deeds.out_bytes),
        "evictions_per_s": rate(|deeds| deeds.evictions),
        "drives": stat.drives,
        "drives_down": stat.drives_down,
        "drive_objects": stat.drive_entries,
        "drive_used_bytes": stat.drive_used_bytes,
        "drive_capacity_bytes": stat.drive_capacity_bytes,
        "drive_reads_per_s": rate(|deeds| deeds.drive_reads),
    })
}

/// What happened, as a table.
pub(super) fn table(watched: &Watched) -> String {
    let mut lines = vec![line([
        "node", "state", "epoch", "objects", "used", "capacity", "hits", "op/s", "in GB/s",
        "out GB/s", "evict/s", "drives", "full", "read/s", "conns",
    ])];
    for row in &watched.rows {
        let name = row.address.to_string();
        lines.push(match &row.stat {
            Ok(stat) => node_line(watched, &name, stat, row.deeds),
            Err(error) => format!("{name:<21} {error}"),
        });
    }
    if watched.rows.len() > 1 {
        let (stat, deeds) = watched.total();
        let nodes = format!("{} nodes", watched.rows.len());
        lines.push(node_line(watched, &nodes, &stat, Some(deeds)));
    }
    lines.join("\n")
}

fn node_line(watched: &Watched, name: &str, stat: &NodeStat, deeds: Option<Deeds>) -> String {
    let unknown = || "-".to_owned();
    let rate = |of: fn(&Deeds) -> u64| deeds.map(|deeds| watched.per_second(of(&deeds)));
    let count = |of| rate(of).map_or_else(unknown, |rate| format!("{rate:.0}"));
    let gigabytes = |of| rate(of).map_or_else(unknown, |rate| format!("{:.3}", rate / 1e9));
    let ratio = deeds.and_then(|deeds| deeds.hit_ratio());
    let ratio = ratio.map_or_else(unknown, |ratio| format!("{:.1}%", ratio * 100.0));
    let share = |used, of: u64| format!("{:.1}%", as_float(used) / as_float(of.max(1)) * 100.0);
    let on_drives = |told: String| if stat.drives > 0 { told } else { unknown() };
    line([
        name,
        stat.state().word(),
        &stat.epoch.to_string(),
        &stat.shards.entries.to_string(),
        &share(stat.shards.used_bytes, stat.capacity_bytes),
        &Size(stat.capacity_bytes).to_string(),
        &ratio,
        &count(|deeds| deeds.requests),
        &gigabytes(|deeds| deeds.in_bytes),
        &gigabytes(|deeds| deeds.out_bytes),
        &count(|deeds| deeds.evictions),
        &drives(stat),
        &on_drives(share(stat.drive_used_bytes, stat.drive_capacity_bytes)),
        &on_drives(count(|deeds| deeds.drive_reads)),
        &stat.connections.to_string(),
    ])
}

fn line(cells: [&str; 15]) -> String {
    let [name, state, cells @ ..] = cells;
    let widths = [5, 9, 6, 9, 6, 8, 8, 8, 8, 6, 6, 7, 5];
    let mut line = format!("{name:<21} {state:<8}");
    for (cell, width) in cells.into_iter().zip(widths) {
        line.push_str(&format!(" {cell:>width$}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use lunette_kvstore_proto::shard::ShardStats;

    use super::*;

    fn watched() -> Watched {
        let stat = NodeStat {
            cores: 2,
            capacity_bytes: 1 << 30,
            state_code: 2,
            epoch: 7,
            shards: ShardStats {
                entries: 5,
                used_bytes: 1 << 29,
                ..ShardStats::default()
            },
            drives: 2,
            drives_down: 1,
            drive_used_bytes: 1 << 30,
            drive_capacity_bytes: 1 << 32,
            ..NodeStat::default()
        };
        let deeds = Deeds {
            requests: 100,
            drive_reads: 40,
            hits: 3,
            misses: 1,
            out_bytes: 4_000_000_000,
            ..Deeds::default()
        };
        let row = |port, deeds| Row {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            stat: Ok(stat),
            deeds,
        };
        Watched {
            interval: Duration::from_secs(2),
            rows: vec![row(7400, Some(deeds)), row(7401, None)],
        }
    }

    #[test]
    fn columns_stay_under_their_headings_and_say_what_is_known() {
        let text = table(&watched());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        let expected =
            "127.0.0.1:7400 serving 7 5 50.0% 1GiB 75.0% 50 0.000 2.000 0 1/2 25.0% 20 0";
        assert_eq!(cells.join(" "), expected);
        assert!(lines[2].contains(" - "), "a rate is not known: {text}");
        assert!(lines[3].starts_with("2 nodes"), "{text}");
    }

    #[test]
    fn the_object_has_nulls_where_nothing_is_known() {
        let object = object(&watched());
        assert_eq!(object["nodes"][0]["hit_ratio"], 0.75);
        assert_eq!(object["nodes"][0]["payload_out_bytes_per_s"], 2e9);
        assert_eq!(object["nodes"][1]["requests_per_s"], Value::Null);
        assert_eq!(object["total"]["requests_per_s"], 50.0);
        assert_eq!(object["total"]["objects"], 10);
    }
}
