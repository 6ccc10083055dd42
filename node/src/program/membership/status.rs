//! `lunette cluster status`.

use lunette::kvstore::StoreError;
use lunette_cluster::proto::map::{ClusterMap, MapMember};
use lunette_kvstore_proto::message::NodeStat;
use lunette_kvstore_proto::placement::Seat;
use serde_json::{Value, json};

use super::StatusArguments;
use crate::program::failure::Failure;
use crate::program::size::Size;
use crate::program::store::with_cluster_client;
use crate::program::{output, stat};

type SeatRow = (Seat, Result<NodeStat, StoreError>);

pub(super) fn run(arguments: &StatusArguments, as_json: bool) -> Result<(), Failure> {
    let (map, rows) = with_cluster_client(&arguments.cluster, |client| async move {
        let rows = client.stat().await;
        Ok((client.map(), rows))
    })?;
    if as_json {
        let members = map.members().iter();
        let members: Vec<Value> = members.map(|member| object(member, &rows)).collect();
        let status = json!({
            "epoch": map.epoch().0,
            "generation": map.generation(),
            "members": members,
        });
        return output::line(&status.to_string());
    }
    output::line(&table(&map, &rows))
}

/// A member's statistics over its cores.
fn sum(member: &MapMember, rows: &[SeatRow]) -> Result<NodeStat, StoreError> {
    let mut total = NodeStat::default();
    for (_, stat) in rows.iter().filter(|(seat, _)| seat.node == member.id) {
        total.add(&(*stat)?);
    }
    Ok(total)
}

fn object(member: &MapMember, rows: &[SeatRow]) -> Value {
    let mut object = match sum(member, rows) {
        Ok(total) => stat::object(&total),
        Err(error) => json!({ "error": error.to_string() }),
    };
    object["node_id"] = json!(member.id.0);
    object["address"] = json!(member.address.to_string());
    object["cores"] = json!(member.cores);
    object["home_weight"] = json!(member.home_weight);
    object["is_draining"] = json!(member.is_draining);
    object["since_epoch"] = json!(member.since.0);
    if member.rack.is_named() {
        object["rack"] = json!(member.rack.label());
    }
    #[cfg(feature = "next-version")]
    {
        object["next_in_map"] = json!(member.next);
    }
    object
}

fn table(map: &ClusterMap, rows: &[SeatRow]) -> String {
    let mut lines = vec![
        format!(
            "epoch {}, generation {}, {} members",
            map.epoch().0,
            map.generation(),
            map.members().len()
        ),
        format!(
            "{:>20} {:<21} {:>5} {:>6} {:>9} {:>10} {:>10} {:>10} {:>6} {:>10} {:>10} {:>7}",
            "node",
            "address",
            "cores",
            "weight",
            "objects",
            "used",
            "capacity",
            "evictions",
            "drives",
            "on drives",
            "drive size",
            "version"
        ),
    ];
    for member in map.members() {
        let head = format!(
            "{:>20} {:<21} {:>5} {:>6}",
            member.id.0,
            member.address,
            member.cores,
            member.weight(),
        );
        lines.push(match sum(member, rows) {
            Ok(total) => format!(
                "{head} {:>9} {:>10} {:>10} {:>10} {:>6} {:>10} {:>10} {:>7}",
                total.shards.entries,
                Size(total.shards.used_bytes).to_string(),
                Size(total.capacity_bytes).to_string(),
                total.shards.evictions,
                stat::drives(&total),
                Size(total.drive_used_bytes).to_string(),
                Size(total.drive_capacity_bytes).to_string(),
                total.newest_version,
            ),
            Err(error) => format!("{head} {error}"),
        });
    }
    lines.join("\n")
}
