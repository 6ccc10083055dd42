//! `lunette cluster clear`.

use lunette_kvstore_proto::tenant::Tenant;
use serde_json::json;

use super::ClearArguments;
use crate::program::arguments::ClusterArguments;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::store::with_cluster_client;

pub(super) fn run(arguments: &ClearArguments, as_json: bool) -> Result<(), Failure> {
    if !arguments.yes {
        return Err(Failure::Usage(
            "cluster clear removes every object of every member, whoever put it, or all that a tenant has: say --yes if that is meant",
        ));
    }
    if let Some(tenant) = &arguments.tenant {
        return clear_tenant(&arguments.cluster, tenant, as_json);
    }
    let cleared = with_cluster_client(&arguments.cluster, |client| async move {
        Ok(client.clear().await?)
    })?;
    let generation = cleared.generation.0;
    let late: Vec<u64> = cleared.late.iter().map(|node| node.0).collect();
    if as_json {
        let object = json!({ "cleared": true, "generation": generation, "late": late });
        return output::line(&object.to_string());
    }
    let mut text = format!("everything is removed: generation {generation}");
    if !late.is_empty() {
        let late: Vec<String> = late.iter().map(u64::to_string).collect();
        let nodes = late.join(", ");
        text +=
            &format!("\nnot told yet: {nodes}; they learn of it within a lease, or stop serving");
    }
    output::line(&text)
}

fn clear_tenant(cluster: &ClusterArguments, tenant: &Tenant, as_json: bool) -> Result<(), Failure> {
    let of = tenant.clone();
    let removed = with_cluster_client(cluster, |client| async move {
        Ok(client.of_tenant(of).remove_listed(b"").await?)
    })?;
    let name = tenant.name();
    if as_json {
        let object = json!({ "cleared": true, "tenant": name, "removed": removed });
        return output::line(&object.to_string());
    }
    output::line(&format!("{removed} objects of tenant {name} are removed"))
}
