//! Quotas of tenants at one core: what each may have of its memory, and what all cores have of those at home here.
//!
//! See [`credit`](lunette_kvstore_proto::credit). What is said goes with the other messages between seats; what is said to this
//! very core is done at once, so that a node that is alone waits for nobody.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_cluster::proto::quota::Quotas;
use lunette_kvstore_proto::credit::{Borrower, CreditAction, CreditNews, Lender};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{Content, QuotaUse};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_kvstore_proto::residence::NoRoom;
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::tenant::{Tenant, TenantTag};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::bytes::Carved;
use super::core::MemberCore;
use crate::counting::TenantReport;

/// The quotas of a cluster, as all cores of a node are told them.
#[derive(Debug, Default)]
pub(crate) struct QuotaList {
    by_tag: BTreeMap<TenantTag, u64>,
    tenants: BTreeMap<TenantTag, Tenant>,
}

impl QuotaList {
    /// Names that no tenant has are left out. Of two whose tags are equal, which is as good as never, the last one counts.
    pub(crate) fn new(quotas: &Quotas) -> Self {
        let mut list = Self::default();
        for (name, quota_bytes) in quotas.iter() {
            if let Ok(tenant) = Tenant::named(name) {
                list.by_tag.insert(tenant.tag(), quota_bytes);
                list.tenants.insert(tenant.tag(), tenant);
            }
        }
        list
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Crediting {
    list: RefCell<Arc<QuotaList>>,
    borrower: RefCell<Borrower>,
    lender: RefCell<Lender>,
}

impl Crediting {
    pub(super) fn new(seat: Seat) -> Self {
        Self {
            list: RefCell::default(),
            borrower: RefCell::default(),
            lender: RefCell::new(Lender::new(seat)),
        }
    }
}

type Out<'a> = &'a mut Vec<CreditAction>;

impl MemberCore {
    /// These are the quotas from now on.
    pub(super) fn on_quotas(&self, list: Arc<QuotaList>) {
        let quotas = &list.by_tag;
        self.at_lender(|lender, now, out| lender.on_quotas(now, quotas, out));
        self.at_borrower(|borrower, now, used, out| borrower.on_quotas(now, quotas, used, out));
        *self.crediting.list.borrow_mut() = list;
    }

    /// The map is another one.
    pub(super) fn on_map_of_credit(&self, map: &ClusterMap) {
        self.at_lender(|lender, now, out| lender.on_map(now, map, out));
        self.at_borrower(|borrower, now, used, out| borrower.on_map(now, map, used, out));
    }

    /// Time passes.
    pub(super) fn on_tick_of_credit(&self) {
        if !self.crediting.borrower.borrow().is_empty() {
            self.at_lender(Lender::on_tick);
            self.at_borrower(|borrower, now, used, out| borrower.on_tick(now, used, out));
        }
    }

    /// A seat says something of credit.
    pub(super) fn on_credit(&self, from: Seat, epoch: Epoch, news: CreditNews) {
        self.at_lender(|lender, now, out| lender.on_news(now, (from, epoch), news, out));
        self.at_borrower(|borrower, now, used, out| borrower.on_news(now, from, news, used, out));
    }

    /// Room for an object, within what its tenant may have. More is asked for before it runs out.
    pub(crate) fn carve(&self, key: Key<'_>, len_bytes: u32, pin: Pin) -> Result<Carved, NoRoom> {
        let carve = || self.with_moving(|bytes, held| bytes.carve(key, len_bytes, pin, held));
        let carved = carve();
        if self.crediting.borrower.borrow().is_empty() {
            return carved;
        }
        let tenant = TenantTag::of(key);
        let over_bytes = match carved {
            Ok(_) => 0,
            Err(NoRoom::OverCredit { needed_bytes, .. }) => needed_bytes,
            Err(_) => return carved,
        };
        self.at_borrower(|borrower, now, used, out| {
            borrower.want(now, tenant, (used(tenant), over_bytes), out);
        });
        if over_bytes == 0 {
            return carved;
        }
        // This core may have lent it.
        carve()
    }

    fn at_lender(&self, tell: impl FnOnce(&mut Lender, Time, Out<'_>)) {
        let mut out = Vec::new();
        tell(
            &mut self.crediting.lender.borrow_mut(),
            time::now(),
            &mut out,
        );
        self.do_for_credit(out);
    }

    fn at_borrower(
        &self,
        tell: impl FnOnce(&mut Borrower, Time, &dyn Fn(TenantTag) -> u64, Out<'_>),
    ) {
        let mut out = Vec::new();
        let used = |tenant| self.bytes().borrow().charged_bytes(tenant);
        let mut borrower = self.crediting.borrower.borrow_mut();
        tell(&mut borrower, time::now(), &used, &mut out);
        drop(borrower);
        self.do_for_credit(out);
    }

    /// What this core says to itself it hears at once. That ends: each answer is to something new, or lowers what is lent.
    fn do_for_credit(&self, actions: Vec<CreditAction>) {
        if actions.is_empty() {
            return;
        }
        let (map, now) = (self.map(), time::now());
        let used = |tenant| self.bytes().borrow().charged_bytes(tenant);
        let mut actions = VecDeque::from(actions);
        let mut out = Vec::new();
        while let Some(action) = actions.pop_front() {
            match action {
                CreditAction::Changed(tenant) => {
                    let credit = self.crediting.borrower.borrow().credit(tenant);
                    self.bytes().borrow_mut().set_credit(tenant, credit);
                }
                CreditAction::Tell(to, news) if to == self.seat() => {
                    let from = (to, map.epoch());
                    let (mut lender, mut borrower) = (
                        self.crediting.lender.borrow_mut(),
                        self.crediting.borrower.borrow_mut(),
                    );
                    lender.on_news(now, from, news, &mut out);
                    borrower.on_news(now, to, news, used, &mut out);
                    actions.extend(out.drain(..));
                }
                CreditAction::Tell(to, news) if has_seat(&map, to) => {
                    let content = Content::Credit(vec![news]);
                    self.post.put(to, map.epoch(), content);
                }
                CreditAction::Tell(..) => {}
            }
        }
    }

    /// What this core knows of the quotas of all.
    pub(super) fn quota_uses(&self) -> Vec<QuotaUse> {
        let list = Arc::clone(&self.crediting.list.borrow());
        let (bytes, borrower) = (self.bytes().borrow(), self.crediting.borrower.borrow());
        let uses = list.tenants.iter().map(|(&tag, tenant)| QuotaUse {
            tenant: tenant.clone(),
            quota_bytes: list.by_tag[&tag],
            used_bytes: bytes.charged_bytes(tag),
            credit_bytes: borrower.credit(tag).map_or(0, |credit| credit.max_bytes),
        });
        uses.collect()
    }

    /// What each tenant has here, and may have.
    pub(super) fn tenant_reports(&self) -> Vec<TenantReport> {
        let list = Arc::clone(&self.crediting.list.borrow());
        let borrower = self.crediting.borrower.borrow();
        let reports = self.bytes().borrow().tenants().into_iter();
        let reports = reports.map(|(tag, report)| {
            let tenant = list.tenants.get(&tag);
            let name = tenant.map_or(report.name, |tenant| tenant.name().to_owned());
            TenantReport {
                name,
                quota_bytes: list.by_tag.get(&tag).copied(),
                credit_bytes: borrower.credit(tag).map(|credit| credit.max_bytes),
                ..report
            }
        });
        reports.collect()
    }
}
