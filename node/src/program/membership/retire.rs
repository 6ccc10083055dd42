//! `lunette cluster retire`.

use std::net::SocketAddr;
use std::time::Duration;

use lunette::kvstore::ClusterClient;
use lunette_runtime::time;
use serde_json::json;

use super::RetireArguments;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::store::with_cluster_client;

/// How often a member is asked what it has left.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(arguments: &RetireArguments, as_json: bool) -> Result<(), Failure> {
    let (member, wait) = (arguments.member, arguments.wait_ms);
    let left = with_cluster_client(&arguments.cluster, move |client| async move {
        client.retire(member).await?;
        let wait = wait.map(Duration::from_millis);
        left_after(&client, member, wait.unwrap_or_default()).await
    })?;
    if as_json {
        let object = json!({ "retired": member.to_string(), "objects": left });
        output::line(&object.to_string())?;
    } else {
        output::line(&match left {
            0 => format!("{member} is empty: stop it"),
            1 => format!("{member} has one object, which others take if they have room"),
            _ => format!("{member} has {left} objects, which others take as they have room"),
        })?;
    }
    if wait.is_some() && left > 0 {
        return Err(Failure::NotEmpty { member, left });
    }
    Ok(())
}

/// How many objects it has in memory, and on drives if those are more, when it has none or that time is over.
async fn left_after(
    client: &ClusterClient,
    member: SocketAddr,
    wait: Duration,
) -> Result<u64, Failure> {
    let until = time::now() + wait;
    loop {
        let map = client.map();
        let mut members = map.members().iter();
        let Some(known) = members.find(|known| known.address == member) else {
            return Err(Failure::Gone { member });
        };
        let stats = client.stat().await.into_iter();
        let cores: Vec<_> = stats.filter(|(seat, _)| seat.node == known.id).collect();
        let is_there = !cores.is_empty();
        let mut left = 0;
        for (_, stat) in cores {
            let stat = stat?;
            left += stat.shards.entries.max(stat.drive_entries);
        }
        if is_there && (left == 0 || time::now() >= until) {
            return Ok(left);
        }
        time::sleep(LOOK).await;
    }
}
