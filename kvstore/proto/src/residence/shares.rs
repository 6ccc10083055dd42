//! What each tenant has of one core's memory, and which one gives when room is made.
//!
//! Copies of each tenant are in an order of their own, so that one which asks for everything once teaches nothing about
//! what others will ask for. The tenant with the largest share gives first. So, where several would fill all of it,
//! each keeps an equal share, and what some of them leave of theirs is divided among the rest (max-min fairness). A
//! share is what is larger: that of the bytes, or that of the entries (the dominant one: Ghodsi and others, NSDI 2011).
//!
//! Pins, and what stands by, hold within that: they outlast all else of those who have more than an equal share. What
//! those who have less than that have goes last.

use lunette_runtime_core::time::Time;

use super::order::Order;
use crate::shard::{EntryId, ShardLimits};
use crate::tenant::TenantTag;

/// Most tenants whose shares one core tells apart. Those that come while there are so many have theirs together with the
/// default tenant's; a tenant that has nothing makes room for another.
pub const TENANTS_MAX: usize = 32;
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
    /// Copies that are here, also those that leave.
    copies: u64,
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
            copies: 0,
        }
    }
}

/// See the [module](self). The first share is the default tenant's.
#[derive(Debug)]
pub(super) struct Shares {
    all: Vec<Share>,
    memory: Size,
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
        let new = || Share::new(tenant, Order::new(0, self.memory.bytes / REMEMBERED_SHARE));
        if self.all.len() < TENANTS_MAX {
            let new = new();
            self.all.push(new);
            return self.all.len() - 1;
        }
        let others = self.all.iter().skip(1);
        let empty = others.clone().position(|share| share.copies == 0);
        empty.map_or(0, |index| {
            let new = new();
            self.all[index + 1] = new;
            index + 1
        })
    }

    /// A copy of this tenant's is here from now on. Whose share it is of.
    pub(super) fn come(&mut self, tenant: TenantTag, bytes: u64) -> ShareId {
        let id = self.id_of(tenant);
        let share = &mut self.all[usize::from(id.0)];
        share.copies += 1;
        share.staying.add(bytes);
        id
    }

    /// One that stayed leaves.
    pub(super) fn leave(&mut self, id: ShareId, bytes: u64) {
        self.all[usize::from(id.0)].staying.take(bytes);
    }

    /// One that left stays.
    pub(super) fn stay(&mut self, id: ShareId, bytes: u64) {
        self.all[usize::from(id.0)].staying.add(bytes);
    }

    /// A copy has [left](Self::leave), and is no more.
    pub(super) fn gone(&mut self, id: ShareId) {
        self.all[usize::from(id.0)].copies -= 1;
    }

    /// The order of those that are of this share.
    pub(super) fn order(&mut self, id: ShareId) -> &mut Order {
        &mut self.all[usize::from(id.0)].order
    }

    /// As [`order`](Self::order), to look at.
    pub(super) fn order_of(&self, id: ShareId) -> &Order {
        &self.all[usize::from(id.0)].order
    }

    /// Room is to be made: say so before [`next`](Self::next).
    pub(super) fn begin(&mut self, now: Time, is_resident: impl Fn(EntryId) -> bool + Copy) {
        for share in &mut self.all {
            share.told = Size::default();
            share.order.begin(now, is_resident);
        }
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
