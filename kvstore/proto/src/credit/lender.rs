//! What all cores have of the tenants that are at home at one.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::time::Time;

use super::fair::level_bytes;
use super::{
    ASK_AGAIN, CreditAction, CreditNews, NEEDED_FOR, NO_MORE_WAIT, QUOTAS_MAX, SETTLE_WAIT,
    lender_of,
};
use crate::placement::{Seat, has_seat, seats};
use crate::tenant::TenantTag;

/// Most cores that are told at a time that there is more.
pub(super) const HUNGRY_MAX: usize = 8;

/// For how long it is remembered how much objects take.
const UNIT_FOR: Duration = Duration::from_secs(60);

type Out<'a> = &'a mut Vec<CreditAction>;

/// What a core has.
#[derive(Clone, Copy, Debug)]
struct Lent {
    number: u64,
    bytes: u64,
    want_bytes: u64,
    need_bytes: u64,
    /// Since when it has too little for what waits there.
    starved: Option<Time>,
    heard: Time,
}

#[derive(Debug)]
struct Account {
    quota_bytes: u64,
    /// Of those that are heard.
    lent: BTreeMap<Seat, Lent>,
    /// What they have is not known yet.
    unheard: BTreeSet<Seat>,
    /// Since when that is waited for, and since which map: what was said under older ones may have been said to another lender
    /// since.
    since: Time,
    epoch: Epoch,
    /// When cores were last asked to say what they have.
    asked: BTreeMap<Seat, Time>,
    /// The largest of what has waited for room of late, and since when.
    unit: (u64, Time),
    /// How much less cores are to have for those that have too little for anything.
    due: BTreeMap<Seat, u64>,
    /// When it was last looked whether more is lent than the quota.
    looked: Time,
}

/// The machine of one core. See the [module](super).
#[derive(Debug)]
pub struct Lender {
    seat: Seat,
    map: ClusterMap,
    quotas: BTreeMap<TenantTag, u64>,
    /// Of the tenants that are at home here.
    accounts: BTreeMap<TenantTag, Account>,
}

impl Lender {
    /// That of this core, which knows no map yet.
    #[must_use]
    pub fn new(seat: Seat) -> Self {
        Self {
            seat,
            map: ClusterMap::default(),
            quotas: BTreeMap::new(),
            accounts: BTreeMap::new(),
        }
    }

    /// What has been lent of a tenant's quota, in bytes; `None` where it is not at home here.
    #[must_use]
    pub fn lent_bytes(&self, tenant: TenantTag) -> Option<u64> {
        let account = self.accounts.get(&tenant)?;
        Some(account.lent_but(None))
    }

    /// Whether it lends although it has not heard what all cores have of this tenant.
    #[must_use]
    pub fn lends_unheard(&self, now: Time, tenant: TenantTag) -> bool {
        let account = self.accounts.get(&tenant);
        account.is_some_and(|account| !account.unheard.is_empty() && account.is_settled(now))
    }

    /// These are the quotas, of at most [`QUOTAS_MAX`] tenants.
    pub fn on_quotas(&mut self, now: Time, quotas: &BTreeMap<TenantTag, u64>, out: Out<'_>) {
        assert!(quotas.len() <= QUOTAS_MAX, "whoever tells them bounds them");
        self.quotas.clone_from(quotas);
        self.open(now, out);
    }

    /// The map is another one. Older ones than the one known are ignored.
    pub fn on_map(&mut self, now: Time, map: &ClusterMap, out: Out<'_>) {
        if map.epoch() <= self.map.epoch() {
            return;
        }
        let known = std::mem::replace(&mut self.map, map.clone());
        // Under a map in between, others may have lent.
        let is_next = map.epoch().0 == known.epoch().0 + 1;
        let unheard = seats(map).filter(|&seat| !is_next || !has_seat(&known, seat));
        let unheard: BTreeSet<Seat> = unheard.collect();
        for account in self.accounts.values_mut() {
            account.lent.retain(|&seat, _| has_seat(map, seat));
            account.unheard.retain(|&seat| has_seat(map, seat));
            account.asked.retain(|&seat, _| has_seat(map, seat));
            account.due.retain(|&seat, _| has_seat(map, seat));
            if !unheard.is_empty() {
                // One that comes back may have more than it would be lent.
                account.unheard.extend(&unheard);
                (account.since, account.epoch) = (now, map.epoch());
            }
        }
        self.open(now, out);
    }

    /// Has an account for each tenant that is at home here, and for no other.
    fn open(&mut self, now: Time, out: Out<'_>) {
        let (map, seat) = (&self.map, self.seat);
        let at_home = self.quotas.iter();
        let at_home = at_home.filter(|&(&tenant, _)| lender_of(map, tenant) == Some(seat));
        let at_home: BTreeMap<TenantTag, u64> = at_home.map(|(&t, &quota)| (t, quota)).collect();
        self.accounts
            .retain(|tenant, _| at_home.contains_key(tenant));
        for (tenant, quota_bytes) in at_home {
            let account = self.accounts.entry(tenant).or_insert_with(|| Account {
                quota_bytes,
                lent: BTreeMap::new(),
                unheard: seats(map).collect(),
                since: now,
                epoch: map.epoch(),
                asked: BTreeMap::new(),
                unit: (0, now),
                due: BTreeMap::new(),
                looked: now,
            });
            account.quota_bytes = quota_bytes;
        }
        self.ask_unheard(now, out);
    }

    /// Asks those again that have not said what they have.
    fn ask_unheard(&mut self, now: Time, out: Out<'_>) {
        for (&tenant, account) in &mut self.accounts {
            let unheard: Vec<Seat> = account.unheard.iter().copied().collect();
            for seat in unheard {
                account.ask(now, tenant, seat, out);
            }
        }
    }

    /// Time passes.
    pub fn on_tick(&mut self, now: Time, out: Out<'_>) {
        self.ask_unheard(now, out);
        for (&tenant, account) in &mut self.accounts {
            if now >= account.looked + ASK_AGAIN {
                account.looked = now;
                account.recall_excess(now, tenant, out);
            }
        }
    }

    /// A core says something, under a map of this epoch. It is not answered where the tenant is not at home here, or the core
    /// is not in the map.
    pub fn on_news(
        &mut self,
        now: Time,
        (from, epoch): (Seat, Epoch),
        news: CreditNews,
        out: Out<'_>,
    ) {
        let CreditNews::Use {
            tenant,
            number,
            have_bytes,
            want_bytes,
            need_bytes,
        } = news
        else {
            return;
        };
        if !has_seat(&self.map, from) {
            return;
        }
        let account = self.accounts.get_mut(&tenant);
        let Some(account) = account.filter(|account| epoch >= account.epoch) else {
            return;
        };
        let known = account.lent.get(&from).copied();
        if known.is_some_and(|known| known.number >= number) {
            return;
        }
        account.unheard.remove(&from);
        let lent = Lent {
            number,
            bytes: have_bytes,
            want_bytes,
            need_bytes,
            starved: known.and_then(|known| known.starved),
            heard: now,
        };
        account.lent.insert(from, lent);
        account.learn_unit(now, need_bytes);
        let (max_bytes, is_last) = account.lend(now, tenant, from, out);
        let news = CreditNews::Lent {
            tenant,
            number,
            max_bytes,
            is_last,
        };
        out.push(CreditAction::Tell(from, news));
        if known.is_some_and(|known| known.bytes > have_bytes.max(max_bytes)) {
            account.feed(now, tenant, from, out);
        }
    }
}

impl Account {
    /// Whether it is known what all cores have, or has been waited for.
    fn is_settled(&self, now: Time) -> bool {
        self.unheard.is_empty() || now >= self.since + SETTLE_WAIT
    }

    /// What is lent, to all or to all but one.
    fn lent_but(&self, except: Option<Seat>) -> u64 {
        let others = self.lent.iter().filter(|&(&seat, _)| Some(seat) != except);
        others.fold(0, |sum, (_, lent)| sum.saturating_add(lent.bytes))
    }

    /// What each may have: as much as others, but no less than the largest of what waits for room.
    fn level_bytes(&self) -> u64 {
        let wants = self.lent.values().map(|lent| lent.want_bytes);
        let fair_bytes = level_bytes(self.quota_bytes, wants.collect());
        fair_bytes.max(self.unit.0)
    }

    fn learn_unit(&mut self, now: Time, need_bytes: u64) {
        let (unit_bytes, since) = self.unit;
        if need_bytes >= unit_bytes || now >= since + UNIT_FOR {
            self.unit = (need_bytes, now);
        }
    }

    /// What a core may have now, and whether it cannot have more. If so, others are asked what they need.
    fn lend(&mut self, now: Time, tenant: TenantTag, to: Seat, out: Out<'_>) -> (u64, bool) {
        let others_bytes = self.lent_but(Some(to));
        let level_bytes = self.level_bytes();
        let is_settled = self.is_settled(now);
        let reserved_bytes = self.reserved_bytes(now, to);
        let lent = self.lent.get_mut(&to).expect("it has just been heard");
        let free_bytes = match is_settled {
            true => self.quota_bytes.saturating_sub(others_bytes),
            false => 0,
        };
        let free_bytes = free_bytes.saturating_sub(reserved_bytes);
        let fair_bytes = lent.want_bytes.min(level_bytes);
        let due_bytes = self.due.remove(&to).unwrap_or(0);
        let kept_bytes = lent.bytes.saturating_sub(due_bytes);
        let max_bytes = fair_bytes.min(free_bytes.max(kept_bytes));
        lent.bytes = lent.bytes.max(max_bytes);
        let is_last = max_bytes < lent.want_bytes && is_settled;
        let missing_bytes = self.missing_bytes(&self.lent[&to]);
        let lent = self.lent.get_mut(&to).expect("it has just been heard");
        lent.starved = (missing_bytes > 0).then(|| lent.starved.unwrap_or(now));
        if is_last {
            self.recall(now, tenant, (Some(to), level_bytes), out);
        }
        if is_last && missing_bytes > 0 {
            let missing_bytes = missing_bytes.saturating_add(reserved_bytes);
            self.call_in(now, tenant, (to, missing_bytes), out);
        }
        (max_bytes, is_last)
    }

    /// Who is given something first where there is too little: who has waited longest, and then those that wait for nothing.
    fn turn(&self, now: Time, seat: Seat) -> (Time, Seat) {
        let lent = self.lent.get(&seat);
        // What waits is asked for again and again.
        let heard = lent.filter(|lent| now < lent.heard + NEEDED_FOR);
        let starved = heard.and_then(|lent| lent.starved);
        (starved.unwrap_or(Time::MAX), seat)
    }

    /// What those have too little for whose turn is before this one's.
    fn reserved_bytes(&self, now: Time, to: Seat) -> u64 {
        let turn = self.turn(now, to);
        let before = self.lent.iter().filter(|&(&seat, _)| {
            let other = self.turn(now, seat);
            other.0 < Time::MAX && other < turn
        });
        before.fold(0, |sum, (_, lent)| {
            sum.saturating_add(self.missing_bytes(lent))
        })
    }

    /// What one has too little for what waits there.
    fn missing_bytes(&self, lent: &Lent) -> u64 {
        let need_bytes = lent.need_bytes.min(self.quota_bytes);
        need_bytes.saturating_sub(lent.bytes)
    }

    /// More may have been lent than there is: by others, or of a quota that was larger.
    fn recall_excess(&mut self, now: Time, tenant: TenantTag, out: Out<'_>) {
        if self.lent_but(None) > self.quota_bytes {
            self.recall(now, tenant, (None, self.level_bytes()), out);
        }
    }

    /// Asks those to say what they have that have more than all may, and those that have not said it for a while.
    fn recall(
        &mut self,
        now: Time,
        tenant: TenantTag,
        (except, level_bytes): (Option<Seat>, u64),
        out: Out<'_>,
    ) {
        let others = self.lent.iter().filter(|&(&seat, _)| Some(seat) != except);
        let others = others.filter(|(_, lent)| {
            let is_stale = now >= lent.heard + NO_MORE_WAIT;
            lent.bytes > level_bytes || (lent.bytes > 0 && is_stale)
        });
        let others: Vec<Seat> = others.map(|(&seat, _)| seat).collect();
        for seat in others {
            self.ask(now, tenant, seat, out);
        }
    }

    /// Has those that have most give so much for one that has too little for anything, and for those whose turn is before.
    fn call_in(
        &mut self,
        now: Time,
        tenant: TenantTag,
        (to, missing_bytes): (Seat, u64),
        out: Out<'_>,
    ) {
        let free_bytes = self.quota_bytes.saturating_sub(self.lent_but(None));
        let due = self
            .due
            .values()
            .fold(free_bytes, |sum, &due| sum.saturating_add(due));
        let mut missing_bytes = missing_bytes.saturating_sub(due);
        let turn = self.turn(now, to);
        let others = self.lent.iter();
        let others = others.filter(|&(&seat, _)| seat != to && self.turn(now, seat) > turn);
        let mut others: Vec<(u64, Seat)> = others.map(|(&seat, lent)| (lent.bytes, seat)).collect();
        others.sort_unstable_by(|one, other| other.cmp(one));
        for (bytes, seat) in others {
            if missing_bytes == 0 {
                break;
            }
            let due = self.due.entry(seat).or_default();
            let more = missing_bytes.min(bytes.saturating_sub(*due));
            *due += more;
            missing_bytes -= more;
            self.ask(now, tenant, seat, out);
        }
    }

    /// Something has been given back: those that have least of what they may have are told.
    fn feed(&mut self, now: Time, tenant: TenantTag, except: Seat, out: Out<'_>) {
        let level_bytes = self.level_bytes();
        let hungry = self.lent.iter().filter(|&(&seat, _)| seat != except);
        let hungry = hungry.filter(|(_, lent)| lent.bytes < lent.want_bytes.min(level_bytes));
        let mut hungry: Vec<(u64, Seat)> = hungry.map(|(&seat, lent)| (lent.bytes, seat)).collect();
        hungry.sort_unstable();
        for (_, seat) in hungry.into_iter().take(HUNGRY_MAX) {
            self.ask(now, tenant, seat, out);
        }
    }

    /// Has a core say what it has, unless it was asked just now.
    fn ask(&mut self, now: Time, tenant: TenantTag, seat: Seat, out: Out<'_>) {
        let asked = self.asked.get(&seat);
        if asked.is_none_or(|&asked| now >= asked + ASK_AGAIN) {
            self.asked.insert(seat, now);
            let news = CreditNews::Wanted { tenant };
            out.push(CreditAction::Tell(seat, news));
        }
    }
}
