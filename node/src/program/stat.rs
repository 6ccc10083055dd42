//! `lunette stat`: what nodes hold and have counted, and whether a key is there.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;

use lunette::kvstore::StoreError;
use lunette_kvstore_proto::message::NodeStat;
use serde_json::{Value, json};

use super::arguments::StatArguments;
use super::failure::Failure;
use super::object::{not_found, shown};
use super::output;
use super::size::Size;
use super::store::with_store;

type NodeRow = (SocketAddr, Result<NodeStat, StoreError>);

pub(super) fn stat(arguments: &StatArguments, as_json: bool) -> Result<(), Failure> {
    if let Some(key) = &arguments.key {
        let bytes = key.as_bytes().to_vec();
        let tenant = arguments.of.tenant.clone();
        let present = with_store(&arguments.cluster, move |store| async move {
            Ok(store.of_tenant(tenant)?.exists(&[bytes]).await?)
        })?;
        let key = shown(key);
        if present != [true] {
            return not_found(&[key], as_json);
        }
        return if as_json {
            output::line(&json!({ "key": key, "exists": true }).to_string())
        } else {
            output::line(&format!("{key} is there"))
        };
    }
    let rows = with_store(
        &arguments.cluster,
        |store| async move { Ok(store.stat().await) },
    )?;
    if as_json {
        let nodes: Vec<Value> = rows.iter().map(row_object).collect();
        output::line(&json!({ "nodes": nodes }).to_string())?;
    } else {
        output::line(&table(&rows))?;
    }
    let failed = rows.into_iter().find_map(|(_, stat)| stat.err());
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// A node's statistics as a JSON object.
pub(super) fn object(stat: &NodeStat) -> Value {
    let shards = &stat.shards;
    #[cfg_attr(
        not(feature = "next-version"),
        expect(unused_mut, reason = "the next version says more")
    )]
    let mut object = json!({
        "entries": shards.entries,
        "resident_bytes": shards.resident_bytes,
        "used_bytes": shards.used_bytes,
        "capacity_bytes": stat.capacity_bytes,
        "connections": stat.connections,
        "gets": shards.gets,
        "hits": shards.hits,
        "misses": shards.misses,
        "puts": shards.puts,
        "touches": shards.touches,
        "removes": shards.removes,
        "evictions": shards.evictions,
        "evicted_bytes": shards.evicted_bytes,
        "busy": shards.busy,
        "aborts": shards.aborts,
        "refused_full": shards.refused_full,
        "refused_too_large": shards.refused_too_large,
        "refused_entries": shards.refused_entries,
        "cores": stat.cores,
        "requests": stat.requests,
        "refused": stat.refused,
        "room_waits": stat.room_waits,
        "pinned_bytes": stat.pinned_bytes,
        "drives": stat.drives,
        "drives_down": stat.drives_down,
        "drive_entries": stat.drive_entries,
        "drive_used_bytes": stat.drive_used_bytes,
        "drive_capacity_bytes": stat.drive_capacity_bytes,
        "drive_reads": stat.drive_reads,
        "payload_in_bytes": stat.payload_in_bytes,
        "payload_out_bytes": stat.payload_out_bytes,
        "state": stat.state().word(),
        "epoch": stat.epoch,
        "lease_left_ms": stat.lease_left_ms,
        "newest_version": stat.newest_version,
    });
    #[cfg(feature = "next-version")]
    {
        object["next"] = json!(stat.next);
    }
    object
}

/// How many of a node's drives work, in a word.
pub(super) fn drives(stat: &NodeStat) -> String {
    match (stat.drives, stat.drives_down) {
        (0, _) => "-".to_owned(),
        (drives, 0) => drives.to_string(),
        (drives, down) => format!("{}/{drives}", drives.saturating_sub(down)),
    }
}

/// A node's statistics in a few words.
pub(super) fn sentence(stat: &NodeStat) -> String {
    let shards = &stat.shards;
    format!(
        "{} objects in {}, {} puts, {} hits, {} misses, {} evictions",
        shards.entries,
        Size(shards.resident_bytes),
        shards.puts,
        shards.hits,
        shards.misses,
        shards.evictions,
    )
}

fn row_object((address, stat): &NodeRow) -> Value {
    let mut object = match stat {
        Ok(stat) => object(stat),
        Err(error) => json!({ "error": error.to_string() }),
    };
    object["address"] = json!(address.to_string());
    object
}

fn table(rows: &[NodeRow]) -> String {
    let mut lines = vec![format!(
        "{:<21} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>5}",
        "node",
        "entries",
        "resident",
        "capacity",
        "hits",
        "misses",
        "puts",
        "evictions",
        "refused",
        "conns"
    )];
    for (address, stat) in rows {
        lines.push(match stat {
            Ok(stat) => row(*address, stat),
            Err(error) => format!("{address:<21} {error}"),
        });
    }
    lines.join("\n")
}

fn row(address: SocketAddr, stat: &NodeStat) -> String {
    let shards = &stat.shards;
    let refused = shards.refused_full + shards.refused_too_large + shards.refused_entries;
    format!(
        "{:<21} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>5}",
        address.to_string(),
        shards.entries,
        Size(shards.resident_bytes).to_string(),
        Size(stat.capacity_bytes).to_string(),
        shards.hits,
        shards.misses,
        shards.puts,
        shards.evictions,
        refused,
        stat.connections,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_under_their_headings() {
        let address = "127.0.0.1:7400".parse().expect("an address");
        let text = table(&[(address, Ok(NodeStat::default()))]);
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths.len(), 2);
        assert_eq!(lengths[0], lengths[1], "{text}");
    }
}
