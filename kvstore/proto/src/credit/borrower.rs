//! What the tenants of one core may have of its memory.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::ClusterMap;
use lunette_runtime_core::time::Time;

use super::{
    ASK_AGAIN, Credit, CreditAction, CreditNews, NEEDED_FOR, NO_MORE_WAIT, QUOTAS_MAX, WANTED_FOR,
    lender_of, piece_bytes,
};
use crate::placement::{Seat, seats};
use crate::tenant::TenantTag;

type Out<'a> = &'a mut Vec<CreditAction>;

#[derive(Clone, Copy, Debug)]
struct Wanted {
    bytes: u64,
    need_bytes: u64,
    at: Time,
}

#[derive(Clone, Copy, Debug)]
struct Loan {
    quota_bytes: u64,
    lender: Option<Seat>,
    /// What the tenant may have here.
    max_bytes: u64,
    is_last: bool,
    /// Of what was said last.
    number: u64,
    /// What was said last of what it has.
    told_bytes: u64,
    /// What was asked for.
    asked_bytes: u64,
    /// What it would have had at last, how much of that waited for room, and when.
    wanted: Wanted,
    /// When it was said, if it has not been answered.
    asked: Option<Time>,
    /// When it was last answered.
    answered: Option<Time>,
}

/// The machine of one core. `used_bytes` is what a tenant has here, whoever may read or write it, until its memory is free.
#[derive(Debug, Default)]
pub struct Borrower {
    loans: BTreeMap<TenantTag, Loan>,
    map: ClusterMap,
    /// In the whole map.
    cores: u64,
    /// Of all that was said; numbers go on where a quota comes back.
    last_number: u64,
}

impl Borrower {
    /// What a tenant may have here; `None` if it has no quota.
    #[must_use]
    pub fn credit(&self, tenant: TenantTag) -> Option<Credit> {
        self.loans.get(&tenant).map(|loan| Credit {
            max_bytes: loan.max_bytes,
            quota_bytes: loan.quota_bytes,
            is_last: loan.is_last,
        })
    }

    /// The tenants that have a quota, in order.
    pub fn tenants(&self) -> impl Iterator<Item = TenantTag> + '_ {
        self.loans.keys().copied()
    }

    /// Whether no tenant has a quota.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    /// These are the quotas, of at most [`QUOTAS_MAX`] tenants. One that is new begins with what the tenant has.
    pub fn on_quotas(
        &mut self,
        now: Time,
        quotas: &BTreeMap<TenantTag, u64>,
        used_bytes: impl Fn(TenantTag) -> u64,
        out: Out<'_>,
    ) {
        assert!(quotas.len() <= QUOTAS_MAX, "whoever tells them bounds them");
        self.loans.retain(|tenant, _| {
            let is_kept = quotas.contains_key(tenant);
            if !is_kept {
                out.push(CreditAction::Changed(*tenant));
            }
            is_kept
        });
        for (&tenant, &quota_bytes) in quotas {
            let lender = lender_of(&self.map, tenant);
            let used_bytes = used_bytes(tenant);
            let loan = self.loans.entry(tenant).or_insert(Loan {
                quota_bytes: 0,
                lender,
                max_bytes: used_bytes,
                is_last: false,
                number: 0,
                told_bytes: 0,
                asked_bytes: 0,
                wanted: Wanted {
                    bytes: used_bytes,
                    need_bytes: 0,
                    at: now,
                },
                asked: None,
                answered: None,
            });
            if loan.quota_bytes == quota_bytes {
                continue;
            }
            loan.quota_bytes = quota_bytes;
            loan.is_last = false;
            out.push(CreditAction::Changed(tenant));
            self.say(now, tenant, used_bytes, out);
        }
    }

    /// The map is another one. Older ones than the one known are ignored.
    pub fn on_map(
        &mut self,
        now: Time,
        map: &ClusterMap,
        used_bytes: impl Fn(TenantTag) -> u64,
        out: Out<'_>,
    ) {
        if map.epoch() <= self.map.epoch() {
            return;
        }
        self.map = map.clone();
        self.cores = seats(map).count() as u64;
        let tenants: Vec<TenantTag> = self.tenants().collect();
        for tenant in tenants {
            let lender = lender_of(&self.map, tenant);
            let loan = self.loans.get_mut(&tenant).expect("it has one");
            if loan.lender != lender {
                loan.lender = lender;
                let used_bytes = used_bytes(tenant);
                self.say(now, tenant, used_bytes, out);
            }
        }
    }

    /// The tenant is to have so many bytes more than it has here: it is asked for, if they are not there with a piece to spare,
    /// and if that has not been done just now.
    pub fn want(
        &mut self,
        now: Time,
        tenant: TenantTag,
        (used_bytes, needed_bytes): (u64, u64),
        out: Out<'_>,
    ) {
        let Some(loan) = self.loans.get_mut(&tenant) else {
            return;
        };
        let wanted_bytes = used_bytes.saturating_add(needed_bytes);
        loan.wanted = Wanted {
            bytes: wanted_bytes,
            need_bytes: needed_bytes,
            at: now,
        };
        let piece_bytes = piece_bytes(loan.quota_bytes, self.cores);
        if wanted_bytes.saturating_add(piece_bytes / 2) <= loan.max_bytes {
            return;
        }
        let is_too_soon = match (loan.asked, loan.answered) {
            (Some(asked), _) => now < asked + ASK_AGAIN,
            // It can do nothing with what it has.
            (None, Some(answered)) if loan.is_last && needed_bytes > loan.max_bytes => {
                now < answered + ASK_AGAIN
            }
            (None, Some(answered)) if loan.is_last => now < answered + NO_MORE_WAIT,
            (None, Some(answered)) if loan.max_bytes < loan.asked_bytes => {
                now < answered + ASK_AGAIN
            }
            (None, _) => false,
        };
        if !is_too_soon {
            self.say(now, tenant, used_bytes, out);
        }
    }

    /// A lender says something. It means nothing if it is not the tenant's, or answers to what is not the last that was said.
    pub fn on_news(
        &mut self,
        now: Time,
        from: Seat,
        news: CreditNews,
        used_bytes: impl Fn(TenantTag) -> u64,
        out: Out<'_>,
    ) {
        match news {
            CreditNews::Lent {
                tenant,
                number,
                max_bytes,
                is_last,
            } => {
                let Some(loan) = self.loans.get_mut(&tenant) else {
                    return;
                };
                if loan.lender != Some(from) || loan.number != number || loan.asked.is_none() {
                    return;
                }
                (loan.max_bytes, loan.is_last) = (max_bytes, is_last);
                (loan.asked, loan.answered) = (None, Some(now));
                out.push(CreditAction::Changed(tenant));
                let used_bytes = used_bytes(tenant);
                if used_bytes <= max_bytes && max_bytes < loan.told_bytes {
                    self.say(now, tenant, used_bytes, out);
                }
            }
            CreditNews::Wanted { tenant } => {
                // What was just said is about to be answered, unless that was lost.
                let is_open = |loan: &Loan| {
                    let is_answered = loan.asked.is_none_or(|asked| now >= asked + ASK_AGAIN);
                    loan.lender == Some(from) && is_answered
                };
                if self.loans.get(&tenant).is_some_and(is_open) {
                    let used_bytes = used_bytes(tenant);
                    self.say(now, tenant, used_bytes, out);
                }
            }
            CreditNews::Use { .. } => {}
        }
    }

    /// Time passes: what is not answered is asked again, and what was evicted down to is told.
    pub fn on_tick(&mut self, now: Time, used_bytes: impl Fn(TenantTag) -> u64, out: Out<'_>) {
        let tenants: Vec<TenantTag> = self.tenants().collect();
        for tenant in tenants {
            let loan = &self.loans[&tenant];
            let is_due = match (loan.asked, loan.answered) {
                (Some(asked), _) => now >= asked + ASK_AGAIN,
                (None, Some(answered)) => {
                    let used_bytes = used_bytes(tenant);
                    let is_down = used_bytes <= loan.max_bytes || now >= answered + ASK_AGAIN;
                    is_down && loan.max_bytes.max(used_bytes) < loan.told_bytes
                }
                (None, None) => true,
            };
            if is_due {
                self.say(now, tenant, used_bytes(tenant), out);
            }
        }
    }

    /// Says what a tenant has, and that it would have what it has wanted of late, and a piece more; nothing where it has
    /// nothing and has wanted nothing.
    fn say(&mut self, now: Time, tenant: TenantTag, used_bytes: u64, out: Out<'_>) {
        let loan = self.loans.get_mut(&tenant).expect("it has one");
        let Some(lender) = loan.lender else {
            return;
        };
        let piece_bytes = piece_bytes(loan.quota_bytes, self.cores);
        let (wanted_bytes, need_bytes) = match loan.wanted {
            wanted if now < wanted.at + NEEDED_FOR => {
                (wanted.bytes.max(used_bytes), wanted.need_bytes)
            }
            // Nothing waits for it any more.
            wanted if now < wanted.at + WANTED_FOR => (wanted.bytes.max(used_bytes), 0),
            _ => (used_bytes, 0),
        };
        let ahead = wanted_bytes.saturating_add(piece_bytes / 2);
        let want_bytes = match wanted_bytes {
            0 => 0,
            _ => ahead.div_ceil(piece_bytes).saturating_mul(piece_bytes),
        };
        loan.asked_bytes = want_bytes;
        self.last_number += 1;
        loan.number = self.last_number;
        loan.told_bytes = loan.max_bytes.max(used_bytes);
        loan.asked = Some(now);
        let news = CreditNews::Use {
            tenant,
            number: loan.number,
            have_bytes: loan.told_bytes,
            want_bytes,
            need_bytes,
        };
        out.push(CreditAction::Tell(lender, news));
    }
}
