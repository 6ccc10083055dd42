//! `lunette cluster quota`.

use std::num::NonZeroU64;

use lunette::kvstore::TenantQuota;
use lunette_kvstore_proto::tenant::Tenant;
use serde_json::{Value, json};

use super::QuotaArguments;
use crate::program::arguments::ClusterArguments;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::size::Size;
use crate::program::store::with_cluster_client;

pub(super) fn run(arguments: &QuotaArguments, as_json: bool) -> Result<(), Failure> {
    let Some(tenant) = &arguments.tenant else {
        return show(&arguments.cluster, as_json);
    };
    let quota_bytes = match (arguments.memory, arguments.none) {
        (Some(Size(bytes)), _) => Some(NonZeroU64::new(bytes).expect("a size is above zero")),
        (None, true) => None,
        (None, false) => {
            return Err(Failure::Usage(
                "cluster quota of a tenant: say --memory SIZE, or --none for whatever others leave it",
            ));
        }
    };
    set(&arguments.cluster, (tenant, quota_bytes), as_json)
}

fn set(
    cluster: &ClusterArguments,
    (tenant, quota_bytes): (&Tenant, Option<NonZeroU64>),
    as_json: bool,
) -> Result<(), Failure> {
    let of = tenant.clone();
    with_cluster_client(cluster, move |client| async move {
        Ok(client.set_quota(&of, quota_bytes).await?)
    })?;
    let name = tenant.name();
    if as_json {
        let bytes = quota_bytes.map(NonZeroU64::get);
        let object = json!({ "tenant": name, "quota_bytes": bytes });
        return output::line(&object.to_string());
    }
    output::line(&match quota_bytes {
        Some(bytes) => format!("tenant {name} may have {}", Size(bytes.get())),
        None => format!("tenant {name} may have whatever others leave it"),
    })
}

fn show(cluster: &ClusterArguments, as_json: bool) -> Result<(), Failure> {
    let quotas = with_cluster_client(cluster, |client| async move { Ok(client.quotas().await?) })?;
    if as_json {
        let quotas: Vec<Value> = quotas.iter().map(object).collect();
        return output::line(&json!({ "quotas": quotas }).to_string());
    }
    if quotas.is_empty() {
        return output::line("no tenant has a quota");
    }
    let head = format!("{:>10} {:>10} {:>10} tenant", "quota", "used", "lent");
    let rows = quotas.iter().map(|quota| {
        let [of_all, used, lent] = [quota.quota_bytes, quota.used_bytes, quota.lent_bytes]
            .map(|bytes| Size(bytes).to_string());
        format!("{of_all:>10} {used:>10} {lent:>10} {}", quota.tenant)
    });
    let lines: Vec<String> = std::iter::once(head).chain(rows).collect();
    output::line(&lines.join("\n"))
}

fn object(quota: &TenantQuota) -> Value {
    json!({
        "tenant": quota.tenant,
        "quota_bytes": quota.quota_bytes,
        "used_bytes": quota.used_bytes,
        "lent_bytes": quota.lent_bytes,
    })
}
