//! The names of the tenants that have something in one core's memory.

use std::collections::BTreeMap;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::residence::{Residence, TENANTS_MAX};
use lunette_kvstore_proto::tenant::{DEFAULT_TENANT, Tenant, TenantTag};

use crate::counting::TenantReport;

/// As far as keys have told them: at most [`TENANTS_MAX`].
#[derive(Debug, Default)]
pub(super) struct TenantNames(BTreeMap<TenantTag, Tenant>);

impl TenantNames {
    /// A copy under this key is about to be here.
    pub(super) fn learn(&mut self, tag: TenantTag, key: Key<'_>, residence: &Residence) {
        let Self(names) = self;
        if tag == TenantTag::DEFAULT || names.contains_key(&tag) {
            return;
        }
        let Some(tenant) = Tenant::of(key) else {
            return;
        };
        if names.len() >= TENANTS_MAX {
            names.retain(|known, _| residence.tenants().any(|used| used.tenant == *known));
        }
        if names.len() < TENANTS_MAX {
            names.insert(tag, tenant);
        }
    }

    /// What each has.
    pub(super) fn reports(&self, residence: &Residence) -> Vec<(TenantTag, TenantReport)> {
        let uses = residence.tenants();
        let reports = uses.map(|used| {
            let report = TenantReport {
                name: self.name(used.tenant),
                copies: used.copies,
                copies_bytes: used.bytes,
                ..TenantReport::default()
            };
            (used.tenant, report)
        });
        reports.collect()
    }

    fn name(&self, tag: TenantTag) -> String {
        match self.0.get(&tag) {
            Some(tenant) => tenant.name().to_owned(),
            None if tag == TenantTag::DEFAULT => DEFAULT_TENANT.to_owned(),
            None => format!("{:016x}", tag.0),
        }
    }
}
