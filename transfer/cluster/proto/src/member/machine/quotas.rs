//! How a member changes quotas.

use lunette_runtime_core::time::Time;

use super::{Member, Phase, Purpose};
use crate::coordination::{
    Ask, Compare, Expected, KeyRange, Op, OpOutcome, Outcome, Revision, Txn,
};
use crate::member::{Action, QuotaRefusal, QuotaTicket, RETRY_MIN};
use crate::quota::{QUOTAS_MAX, Quotas, encode_quota, is_quota_name};

impl Member {
    /// The newest quotas that it knows, also while it is cut off.
    #[must_use]
    pub const fn quotas(&self) -> &Quotas {
        self.view.quotas.quotas()
    }

    /// Sets the quota of a tenant, in bytes, or removes it. [`Action::QuotaSet`] follows when the
    /// coordinator has done it, and [`quotas`](Self::quotas) has it then. Changes are made one after
    /// the other, in the order in which they were asked for, and wait until this node has joined.
    /// One that fails is tried again, before `until`. Then it is given up ([`Action::QuotaGivenUp`]): it may
    /// have been made, and changes nothing that another has set by then. A member that leaves, or is
    /// refused, makes none any more and says nothing of those that wait: the first of them may have been
    /// made.
    ///
    /// # Errors
    /// [`QuotaRefusal`]; nothing will be changed then.
    pub fn set_quota(
        &mut self,
        now: Time,
        name: &str,
        bytes: Option<u64>,
        until: Time,
    ) -> Result<QuotaTicket, QuotaRefusal> {
        if !matches!(self.phase, Phase::Joining | Phase::Joined) {
            return Err(QuotaRefusal::Left);
        }
        if !is_quota_name(name) {
            return Err(QuotaRefusal::BadName);
        }
        if bytes == Some(0) {
            return Err(QuotaRefusal::NoBytes);
        }
        self.give_up_quotas(now);
        if self.quota_changes.is_full() {
            return Err(QuotaRefusal::Busy);
        }
        let others = self.quota_changes.others(&self.view.quotas, name);
        if bytes.is_some() && others >= QUOTAS_MAX {
            return Err(QuotaRefusal::TooMany);
        }
        // Behind another that is waited with, this one waits too.
        if self.quota_changes.is_empty() && self.phase == Phase::Joined {
            self.retry_at = self.retry_at.min(now);
        }
        let ticket = self.quota_changes.push(name, bytes, until);
        self.advance(now);
        Ok(ticket)
    }

    /// Tries no more what was to be made by now; what is being tried has an answer first.
    pub(super) fn give_up_quotas(&mut self, now: Time) {
        for ticket in self.quota_changes.take_late(now, self.asked_quota()) {
            self.actions.push_back(Action::QuotaGivenUp(ticket));
        }
    }

    /// When the next of them is given up.
    pub(super) fn next_late_quota(&self) -> Option<Time> {
        self.quota_changes.next_late(self.asked_quota())
    }

    fn asked_quota(&self) -> Option<QuotaTicket> {
        let mut asked = self.pending.values();
        asked.find_map(|pending| match pending.purpose {
            Purpose::SetQuota(ticket) => Some(ticket),
            _ => None,
        })
    }

    /// Asks for the first change that waits, if there is one.
    pub(super) fn change_quota(&mut self, now: Time) {
        let Some(change) = self.quota_changes.first() else {
            return;
        };
        let key = self.keys.quota(&change.name);
        let known = self.view.quotas.modified(&change.name);
        // An ask that was given up may still come: it must change nothing that was made after it.
        let expected = Expected::Modified(change.modified.unwrap_or(known));
        let mut compare = vec![Compare {
            key: key.clone(),
            expected,
        }];
        // One that was on its way for longer than this member's lease comes from who was cut off: it is in nobody's mind any more.
        let id = self.options.member.id;
        let own = self.view.members.get(&id);
        compare.extend(own.map(|own| Compare {
            key: self.keys.member(id),
            expected: Expected::Created(own.created),
        }));
        let range = KeyRange::one(key.clone());
        let success = match change.bytes {
            Some(bytes) => Op::Put {
                key,
                value: encode_quota(bytes),
                lease: None,
            },
            None => Op::Delete(range.clone()),
        };
        let txn = Txn {
            compare,
            success: vec![success],
            failure: vec![Op::Range(range)],
        };
        self.ask(now, Purpose::SetQuota(change.ticket), Ask::Txn(txn));
    }

    /// What came of a change.
    pub(super) fn on_quota_answer(
        &mut self,
        now: Time,
        ticket: QuotaTicket,
        outcome: &Outcome,
        revision: Revision,
    ) {
        let Some(change) = self.quota_changes.first_mut(ticket) else {
            return;
        };
        let made = match outcome {
            Outcome::Txn {
                succeeded: true, ..
            } => Some(revision),
            Outcome::Txn { outcomes, .. } => match &outcomes[..] {
                [OpOutcome::Range(pairs)] => change.on_found(pairs.first(), revision),
                _ => None,
            },
            _ => None,
        };
        let Some(made) = made else {
            self.has_quota_failed = true;
            self.retry_at = now + RETRY_MIN;
            return;
        };
        let change = self.quota_changes.take_first().expect("it is the first");
        (self.view.quotas).set_early(&change.name, change.bytes, made);
        self.tell_quotas();
        self.actions.push_back(Action::QuotaSet(ticket));
    }

    /// Says what is new of the quotas.
    pub(super) fn tell_quotas(&mut self) {
        for (name, fault) in self.view.quotas.take_ignored() {
            self.actions.push_back(Action::QuotaIgnored { name, fault });
        }
        if self.view.quotas.refresh(self.view.revision) {
            self.actions.push_back(Action::QuotasChanged);
        }
        self.must_load |= self.view.quotas.is_short();
    }
}

#[cfg(test)]
mod tests;
