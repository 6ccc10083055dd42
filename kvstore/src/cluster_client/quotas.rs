//! Quotas of tenants: to set one, and to be told of all.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::PAUSE;
use lunette_kvstore_proto::message::directory::{QuotaChange, QuotaMessage, QuotaReply, QuotaUse};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::time::Time;
use lunette_transfer::Attachments;

use super::calls::Called;
use super::maps::any_seat;
use super::terms::term;
use super::{ClusterClient, calls};
use crate::error::{StoreError, StoreErrorKind};

/// A tenant's quota, and what the tenant has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantQuota {
    /// Whose.
    pub tenant: String,
    /// How much memory of all members its objects may take, in bytes.
    pub quota_bytes: u64,
    /// How much they take.
    pub used_bytes: u64,
    /// How much of the quota is lent to cores: what they may use without asking.
    pub lent_bytes: u64,
}

/// What came of asking a member to set a quota.
enum Asked {
    Set,
    NotSet,
    InDoubt,
}

impl ClusterClient {
    /// Sets a tenant's quota: how much memory of all members its objects may take, in bytes, with their keys and all copies,
    /// rounded up as memory is given out; `None`: whatever others leave it. It is kept at the coordinator, and holds until it is
    /// set again. What the tenant has beyond it leaves memory, as what is least likely to be asked for again; what is
    /// on drives is not counted. Ends when the coordinator has it: members learn of it within moments.
    ///
    /// Cancelling it may set the quota or not.
    ///
    /// # Errors
    /// `OfAllTenants`: this client is of a tenant other than the default one. `Refused(TooManyQuotas)`:
    /// [`QUOTAS_MAX`](lunette_kvstore_proto::credit::QUOTAS_MAX) others have one. `TimedOut`: no member could be asked. `Interrupted`: it
    /// may be set, or not; set again it is no other. Members do not try for longer than this client waits, and change nothing
    /// that was set after that.
    pub async fn set_quota(
        &self,
        tenant: &Tenant,
        quota_bytes: Option<NonZeroU64>,
    ) -> Result<(), StoreError> {
        self.check_of_all()?;
        let until = time::now() + self.timeout;
        let (mut turn, mut is_in_doubt) = (entropy(), false);
        while time::now() < until {
            if let Some((to, address)) = any_seat(&self.asking.map(), turn) {
                let asked = self.ask_to_set(to, (tenant, quota_bytes), until).await;
                match asked.map_err(|kind| StoreError::at(address, kind))? {
                    Asked::Set => return Ok(()),
                    Asked::NotSet => {}
                    Asked::InDoubt => is_in_doubt = true,
                }
            }
            turn = turn.wrapping_add(1);
            // Those of the map that is known may all be gone.
            self.asking.renew_map(PAUSE).await;
        }
        Err(StoreError::local(if is_in_doubt {
            StoreErrorKind::Interrupted
        } else {
            StoreErrorKind::TimedOut
        }))
    }

    /// What comes of asking one member; if it is not set, another may do it, for which there is time left.
    async fn ask_to_set(
        &self,
        to: Seat,
        (tenant, quota_bytes): (&Tenant, Option<NonZeroU64>),
        until: Time,
    ) -> Result<Asked, StoreErrorKind> {
        let time_left = until.since(time::now());
        // Whatever comes of what follows is over when this client has gone on: the member can tell how long that takes.
        let Some(told_ns) = self.told_ns(to, time::now() + time_left / 4).await? else {
            return Ok(Asked::NotSet);
        };
        let until = time::now() + until.since(time::now()) / 2;
        let change = QuotaChange {
            tenant: tenant.clone(),
            quota_bytes: quota_bytes.map(NonZeroU64::get),
            term: term(told_ns, until),
        };
        let change = Some(change);
        self.ask_to_change(QuotaMessage { to, change }, until).await
    }

    async fn ask_to_change(
        &self,
        message: QuotaMessage,
        until: Time,
    ) -> Result<Asked, StoreErrorKind> {
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        let nothing = Attachments::default();
        let called = calls::call(&self.asking, message.to, Op::Quota, body, nothing);
        let called = time::timeout(until.since(time::now()), called).await;
        match called {
            Ok((Called::Reply(_, reply), _)) => match Status::from_code(reply.status) {
                Status::Ok => Ok(Asked::Set),
                Status::WrongSeat | Status::Busy => Ok(Asked::NotSet),
                // It leaves, for one, and may have told the coordinator before.
                status if status.is_retryable() => Ok(Asked::InDoubt),
                status => Err(StoreErrorKind::Refused(status)),
            },
            Ok((Called::Never(kind), _)) => Err(kind),
            Ok((Called::Unsent(_), _)) => Ok(Asked::NotSet),
            Ok((Called::Unanswered(_), _)) | Err(_) => Ok(Asked::InDoubt),
        }
    }

    /// All quotas, by tenant, and what the tenants have of them. Each core of each member is asked: while objects come and
    /// go it is no picture of one moment.
    ///
    /// # Errors
    /// `OfAllTenants`, as [`set_quota`](Self::set_quota). `TimedOut`, or what was last answered: a member could not be asked
    /// before the deadline.
    pub async fn quotas(&self) -> Result<Vec<TenantQuota>, StoreError> {
        self.check_of_all()?;
        let until = time::now() + self.timeout;
        let told = self.ask_everywhere(until, async |to| self.quotas_at(to, until).await);
        let mut all: BTreeMap<String, TenantQuota> = BTreeMap::new();
        for quotas in told.await? {
            for told in quotas {
                let name = told.tenant.name().to_owned();
                let of_tenant = all.entry(name.clone()).or_insert(TenantQuota {
                    tenant: name,
                    quota_bytes: told.quota_bytes,
                    used_bytes: 0,
                    lent_bytes: 0,
                });
                of_tenant.used_bytes = of_tenant.used_bytes.saturating_add(told.used_bytes);
                of_tenant.lent_bytes = of_tenant.lent_bytes.saturating_add(told.credit_bytes);
            }
        }
        Ok(all.into_values().collect())
    }

    async fn quotas_at(
        &self,
        to: Seat,
        until: Time,
    ) -> Result<(Epoch, Vec<QuotaUse>), StoreErrorKind> {
        let message = QuotaMessage { to, change: None };
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        let asked = calls::ask_owner(&self.asking, to, Op::Quota, body, None, until);
        let (version, reply) = asked.await?;
        match Status::from_code(reply.status) {
            Status::Ok => {
                let told = QuotaReply::decode(version, &reply.body)?;
                Ok((told.epoch, told.quotas))
            }
            status => Err(StoreErrorKind::Refused(status)),
        }
    }

    /// What is of all tenants is for clients of the default one.
    pub(super) fn check_of_all(&self) -> Result<(), StoreError> {
        if *self.tenant() == Tenant::default() {
            return Ok(());
        }
        Err(StoreError::local(StoreErrorKind::OfAllTenants))
    }
}
