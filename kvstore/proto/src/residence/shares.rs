//! What each tenant has of one core's memory, and which one gives when room is made.
//!
//! Copies of each tenant are in an order of their own, so that one which asks for everything once teaches nothing about
//! what others will ask for. The tenant with the largest share gives first. So, where several would fill all of it,
//! each keeps an equal share, and what some of them leave of theirs is divided among the rest (max-min fairness). A
//! share is what is larger: that of the bytes, or that of the entries (the dominant one: Ghodsi and others, NSDI 2011).
//!
//! Pins, and what stands by, hold within that: they outlast all else of those who have more than an equal share. What
//! those who have less than that have goes last.
//!
//! A tenant with a quota has [`Credit`] besides, and never takes more: what it wants beyond that, it makes room for by
//! itself, whatever others leave free.

use std::collections::BTreeMap;

use lunette_runtime_core::time::Time;

use super::TIGHT_BYTES_MAX;
use super::order::Order;
use crate::credit::{Credit, QUOTAS_MAX};
use crate::retention::Pin;
use crate::shard::{EntryId, ShardLimits};
use crate::tenant::TenantTag;

/// Most tenants whose shares one core tells apart, besides those with quotas. Those that come while there are so many have
/// theirs together with the default tenant's; a tenant that has nothing makes room for another.
pub const TENANTS_MAX: usize = 32;
/// Most shares: tenants without quotas, and with.
const SHARES_MAX: usize = TENANTS_MAX + QUOTAS_MAX;
/// One such part of what it may have is kept free by a tenant that can have no more, but at most [`TIGHT_BYTES_MAX`]: so
/// that what it puts next finds room.
const FREE_SHARE: u64 = 16;
/// What a tenant other than the default one is remembered by, of what left: one such part of what that one is.
const REMEMBERED_SHARE: u64 = 8;

/// Whose share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShareId(u8);

/// What a tenant has of one core's memory, without what is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantUse {
    /// Whose it is.
    pub tenant: TenantTag,
    /// Copies.
    pub copies: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// How much of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    bytes: u64,
    entries: u64,
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.entries += 1;
    }

    fn take(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.entries -= 1;
    }
}

#[derive(Debug)]
struct Share {
    tenant: TenantTag,
    order: Order,
    /// Of what stays: that is what it is judged by.
    staying: Size,
    /// What of that has been told to leave since room began to be made.
    told: Size,
    /// Bytes that were to be told then for the sake of its credit.
    to_tell_bytes: u64,
    /// Of what is being written.
    arriving_bytes: u64,
    /// Of all entries that are not released: it is these that are paid for.
    charged: Size,
    /// Of those that are pinned for ever.
    pinned_bytes: u64,
    /// What it may have, if it has a quota.
    credit: Option<Credit>,
    /// Bytes that a write of it was refused for, while it may have no more.
    wanted_bytes: u64,
}

impl Share {
    const fn new(tenant: TenantTag, order: Order) -> Self {
        const NONE: Size = Size {
            bytes: 0,
            entries: 0,
        };
        Self {
            tenant,
            order,
            staying: NONE,
            told: NONE,
            to_tell_bytes: 0,
            arriving_bytes: 0,
            charged: NONE,
            pinned_bytes: 0,
            credit: None,
            wanted_bytes: 0,
        }
    }

    /// Bytes that are here, and are not leaving.
    const fn remaining_bytes(&self) -> u64 {
        self.arriving_bytes + self.staying.bytes
    }

    /// Bytes that are to leave so that so many are free of what it may have.
    fn excess_bytes(&self, free_bytes: u64) -> u64 {
        self.credit.map_or(0, |credit| {
            let target = credit.max_bytes.saturating_sub(free_bytes);
            self.remaining_bytes().saturating_sub(target)
        })
    }

    /// Bytes that are to leave for the sake of its credit.
    fn over_bytes(&self) -> u64 {
        let ahead = self
            .credit
            .filter(|_| self.is_tight())
            .map_or(0, free_bytes);
        self.excess_bytes(ahead.max(self.wanted_bytes))
    }

    /// Whether it is time to make room, so that what it puts next finds some.
    fn is_tight(&self) -> bool {
        self.credit.is_some_and(|credit| {
            let left = credit.max_bytes.saturating_sub(self.remaining_bytes());
            credit.is_last && left < free_bytes(credit) / 2
        })
    }
}

fn free_bytes(credit: Credit) -> u64 {
    (credit.max_bytes / FREE_SHARE).min(TIGHT_BYTES_MAX)
}

/// More than a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverCredit {
    pub(super) used_bytes: u64,
    pub(super) pinned_bytes: u64,
    pub(super) credit: Credit,
}

/// See the [module](self). The first share is the default tenant's.
#[derive(Debug)]
pub(super) struct Shares {
    all: Vec<Share>,
    memory: Size,
    /// Those with credit that have no share yet, while so many others have something: at most [`QUOTAS_MAX`].
    without: BTreeMap<TenantTag, Credit>,
}

impl Shares {
    pub(super) fn new(limits: &ShardLimits) -> Self {
        let memory = Size {
            bytes: limits.high_watermark_bytes(),
            entries: limits.entries_max() as u64,
        };
        let order = Order::new(limits.entries_max(), memory.bytes);
        Self {
            all: vec![Share::new(TenantTag::DEFAULT, order)],
            memory,
            without: BTreeMap::new(),
        }
    }

    /// What each tenant has, the default one first.
    pub(super) fn uses(&self) -> impl Iterator<Item = TenantUse> + '_ {
        self.all.iter().map(|share| TenantUse {
            tenant: share.tenant,
            copies: share.staying.entries,
            bytes: share.staying.bytes,
        })
    }

    /// The share of a tenant, from now on if it has none.
    fn id_of(&mut self, tenant: TenantTag) -> ShareId {
        let known = self.all.iter().position(|share| share.tenant == tenant);
        let index = known.unwrap_or_else(|| self.found(tenant));
        ShareId(u8::try_from(index).expect("there are few"))
    }

    fn found(&mut self, tenant: TenantTag) -> usize {
        let unpaid = self.all.iter().filter(|share| share.credit.is_none());
        if unpaid.count() < TENANTS_MAX && self.all.len() < SHARES_MAX {
            self.add(tenant)
        } else {
            self.replace(tenant).unwrap_or(0)
        }
    }

    fn add(&mut self, tenant: TenantTag) -> usize {
        let new = self.empty(tenant);
        self.all.push(new);
        self.all.len() - 1
    }

    /// The share takes the place of one that has nothing.
    fn replace(&mut self, tenant: TenantTag) -> Option<usize> {
        let others = self.all.iter().skip(1);
        let is_unused = |share: &Share| share.charged.entries == 0 && share.credit.is_none();
        let unused = others.clone().position(is_unused)?;
        self.all[unused + 1] = self.empty(tenant);
        Some(unused + 1)
    }

    fn empty(&self, tenant: TenantTag) -> Share {
        Share::new(tenant, Order::new(0, self.memory.bytes / REMEMBERED_SHARE))
    }

    /// What a tenant may have; `None`: whatever others leave it. One that is among others so far has a share of its own
    /// from now on: what it has already stays with theirs.
    pub(super) fn set_credit(&mut self, tenant: TenantTag, credit: Option<Credit>) {
        self.without.remove(&tenant);
        let known = self.all.iter().position(|share| share.tenant == tenant);
        let index = match (known, credit) {
            (Some(index), _) => index,
            (None, None) => return,
            (None, Some(_)) if self.all.len() < SHARES_MAX => self.add(tenant),
            (None, Some(credit)) => match self.replace(tenant) {
                Some(index) => index,
                // So many have just lost their quotas, and still have something.
                None => {
                    self.without.insert(tenant, credit);
                    return;
                }
            },
        };
        let share = &mut self.all[index];
        share.credit = credit;
        if credit.is_none_or(|credit| !credit.is_last) {
            share.wanted_bytes = 0;
        }
        if credit.is_none() {
            self.place_next();
        }
    }

    /// Who has waited for a share has one, if there is one that nobody uses.
    fn place_next(&mut self) {
        if let Some((tenant, credit)) = self.without.pop_first() {
            self.set_credit(tenant, Some(credit));
        }
    }

    /// Bytes of all entries of this tenant that are not released, where it has a share of its own.
    pub(super) fn charged_bytes(&self, tenant: TenantTag) -> u64 {
        let share = self.all.iter().find(|share| share.tenant == tenant);
        share.map_or(0, |share| share.charged.bytes)
    }

    /// Whether this tenant may have so many bytes more. Where it has all it may have, that is wanted from now on.
    pub(super) fn check(&mut self, tenant: TenantTag, bytes: u64) -> Result<(), OverCredit> {
        let share = self.all.iter_mut().find(|share| share.tenant == tenant);
        let Some(share) = share else {
            return Ok(());
        };
        let Some(credit) = share.credit else {
            return Ok(());
        };
        let used_bytes = share.charged.bytes;
        if used_bytes + bytes <= credit.max_bytes {
            if bytes >= share.wanted_bytes {
                share.wanted_bytes = 0;
            }
            return Ok(());
        }
        if credit.is_last && bytes <= credit.max_bytes {
            share.wanted_bytes = share.wanted_bytes.max(bytes);
        }
        Err(OverCredit {
            used_bytes,
            pinned_bytes: share.pinned_bytes,
            credit,
        })
    }

    /// An entry of this tenant's is here from now on, which is being written. Whose share it is of.
    pub(super) fn admit(&mut self, tenant: TenantTag, bytes: u64, pin: Pin) -> ShareId {
        let id = self.id_of(tenant);
        let share = &mut self.all[usize::from(id.0)];
        share.arriving_bytes += bytes;
        share.charged.add(bytes);
        if pin == Pin::Hard {
            share.pinned_bytes += bytes;
        }
        id
    }

    /// What was being written will not be a copy.
    pub(super) fn discard(&mut self, id: ShareId, bytes: u64) {
        self.all[usize::from(id.0)].arriving_bytes -= bytes;
    }

    /// What was being written is a copy from now on.
    pub(super) fn come(&mut self, id: ShareId, bytes: u64) {
        let share = &mut self.all[usize::from(id.0)];
        share.arriving_bytes -= bytes;
        share.staying.add(bytes);
    }

    /// One that stayed leaves.
    pub(super) fn leave(&mut self, id: ShareId, bytes: u64) {
        let share = &mut self.all[usize::from(id.0)];
        share.staying.take(bytes);
        if share.excess_bytes(share.wanted_bytes) == 0 {
            share.wanted_bytes = 0;
        }
    }

    /// One that left stays.
    pub(super) fn stay(&mut self, id: ShareId, bytes: u64) {
        self.all[usize::from(id.0)].staying.add(bytes);
    }

    /// An entry is no more.
    pub(super) fn release(&mut self, id: ShareId, bytes: u64, pin: Pin) {
        let share = &mut self.all[usize::from(id.0)];
        share.charged.take(bytes);
        if pin == Pin::Hard {
            share.pinned_bytes -= bytes;
        }
        if share.charged.entries == 0 {
            self.place_next();
        }
    }

    /// Whether the share is short of what its tenant may have.
    pub(super) fn is_tight(&self, id: ShareId) -> bool {
        self.all[usize::from(id.0)].is_tight()
    }

    /// Whether a tenant has more than it may.
    pub(super) fn is_over(&self) -> bool {
        self.all.iter().any(|share| share.over_bytes() > 0)
    }

    /// The order of those that are of this share.
    pub(super) fn order(&mut self, id: ShareId) -> &mut Order {
        &mut self.all[usize::from(id.0)].order
    }

    /// As [`order`](Self::order), to look at.
    pub(super) fn order_of(&self, id: ShareId) -> &Order {
        &self.all[usize::from(id.0)].order
    }

    /// All orders, to look at.
    pub(super) fn orders(&self) -> impl Iterator<Item = &Order> {
        self.all.iter().map(|share| &share.order)
    }

    /// A key that left came back elsewhere.
    pub(super) fn came_back(&mut self, key: u64) {
        for share in &mut self.all {
            share.order.came_back(key);
        }
    }

    /// Room is to be made: say so before [`next`](Self::next).
    pub(super) fn begin(&mut self, now: Time, is_resident: impl Fn(EntryId) -> bool + Copy) {
        for share in &mut self.all {
            share.told = Size::default();
            share.to_tell_bytes = share.over_bytes();
            share.order.begin(now, is_resident);
        }
    }

    /// Who leaves next of a tenant that has more than it may, and of whose share it is. [`told`](Self::told) is to be said
    /// of it.
    pub(super) fn next_over(
        &mut self,
        asks_again: bool,
        is_resident: impl Fn(EntryId) -> bool + Copy,
    ) -> Option<(ShareId, u32)> {
        let over = (0..).map(ShareId).zip(&mut self.all);
        let over = over.filter(|(_, share)| share.told.bytes < share.to_tell_bytes);
        over.into_iter().find_map(|(id, share)| {
            let next = share.order.ordinary(asks_again, is_resident);
            let next = next.or_else(|| share.order.last_resort());
            next.map(|slot_index| (id, slot_index))
        })
    }

    /// Who leaves next, as [`Order::ordinary`] and, where there is none, [`Order::last_resort`] say, and of whose share it
    /// is. [`told`](Self::told) is to be said of it.
    pub(super) fn next(
        &mut self,
        asks_again: bool,
        is_resident: impl Fn(EntryId) -> bool + Copy,
    ) -> Option<(ShareId, u32)> {
        if let [only] = &mut self.all[..] {
            let next = only.order.ordinary(asks_again, is_resident);
            let next = next.or_else(|| only.order.last_resort());
            return next.map(|slot_index| (ShareId::default(), slot_index));
        }
        let (by_size, over) = self.by_size();
        for group in [&by_size[..over], &by_size[over..]] {
            for &id in group {
                let next = self.order(id).ordinary(asks_again, is_resident);
                if let Some(slot_index) = next {
                    return Some((id, slot_index));
                }
            }
            for &id in group {
                if let Some(slot_index) = self.order(id).last_resort() {
                    return Some((id, slot_index));
                }
            }
        }
        None
    }

    /// One that is of this share was told to leave.
    pub(super) fn told(&mut self, id: ShareId, bytes: u64) {
        self.all[usize::from(id.0)].told.add(bytes);
    }

    /// All shares that have something, the largest one first, and how many of them are at least as large as the mean.
    fn by_size(&self) -> (Vec<ShareId>, usize) {
        let shares = (0..).map(ShareId).zip(&self.all);
        let sizes = shares.map(|(id, share)| (self.dominant(share), id));
        let mut sizes: Vec<(u128, ShareId)> = sizes.filter(|(size, _)| *size > 0).collect();
        sizes.sort_by_key(|&(size, ShareId(index))| (std::cmp::Reverse(size), index));
        let sum: u128 = sizes.iter().map(|(size, _)| size).sum();
        let count = sizes.len() as u128;
        let over = sizes.partition_point(|(size, _)| size * count >= sum);
        (sizes.into_iter().map(|(_, id)| id).collect(), over)
    }

    /// What a share is of memory, in some unit, without what has been told to leave.
    fn dominant(&self, share: &Share) -> u128 {
        let left = |staying: u64, told: u64| u128::from(staying.saturating_sub(told));
        let bytes = left(share.staying.bytes, share.told.bytes);
        let entries = left(share.staying.entries, share.told.entries);
        let of_bytes = bytes * u128::from(self.memory.entries);
        of_bytes.max(entries * u128::from(self.memory.bytes))
    }

    #[cfg(test)]
    pub(super) fn first(&self) -> &Order {
        self.order_of(ShareId::default())
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}
