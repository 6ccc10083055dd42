//! The state machine of a member.

mod draining;
mod quotas;

use core::cmp::Ordering;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::quotas::QuotaChanges;
use super::record::{CLUSTER_NAME_BYTES_MAX, ClusterIdentity, Keys, RecordFault, Registration};
use super::view::{Proposal, View};
use super::{
    ANSWER_WAIT_MAX, Action, BAD_RECORDS_MAX, Draining, FORMER_MAX, MAP_CHANGE_MIN, MemberOptions,
    OpId, PROPOSAL_STEP, PROPOSAL_WAIT_MAX, QuotaTicket, RETRY_MAX, RETRY_MIN, Refusal,
};
use crate::coordination::{
    Answer, Ask, Change, Compare, CoordinationFault, Expected, KeyValue, LeaseId, Op, OpOutcome,
    Outcome, Revision, Txn, WatchFrom,
};
use crate::fence::{Act, CLOCK_DRIFT_MAX, Fence, Fenced, NamespaceKind, Standing};
use crate::map::{ClusterMap, Epoch, MapMember};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Joined,
    Leaving,
    Left,
    Refused,
}

/// What an ask was for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
    Load,
    CreateIdentity,
    Grant(LeaseId),
    Register(LeaseId),
    KeepAlive(LeaseId),
    Propose(ClusterMap),
    SetQuota(QuotaTicket),
    Drain,
    RevokeOwn,
    RevokeStale,
}

#[derive(Debug)]
struct Pending {
    purpose: Purpose,
    sent: Time,
}

/// A lease that this member holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: LeaseId,
    /// When what granted or renewed it was sent.
    renewed: Time,
    keep_alive_at: Time,
}

/// A member of a cluster, for the whole life of a process.
#[derive(Debug)]
pub struct Member {
    options: MemberOptions,
    keys: Keys,
    random: SplitMix64,
    phase: Phase,
    view: View,
    fence: Fence,
    was_in_map: bool,
    /// How many times in a row what was read made no sense.
    bad_records: u32,
    lease: Option<Held>,
    pending: BTreeMap<OpId, Pending>,
    watch: Option<OpId>,
    /// Whether everything under the prefix is to be read (again).
    must_load: bool,
    draining: Draining,
    /// The generation that is wanted at least, and until when it is.
    raised: (u64, Time),
    /// The next map is of a later epoch than this one, whoever is in it.
    renewed: Epoch,
    /// It proposes nothing any more.
    abstains: bool,
    quota_changes: QuotaChanges,
    /// A change of a quota that cannot be made must not keep the map from being changed.
    has_quota_failed: bool,
    ops_issued: u64,
    /// Nothing but keeping the lease alive is asked before.
    retry_at: Time,
    failures: u32,
    /// Since when another process is registered under this identity.
    rival_since: Option<Time>,
    actions: VecDeque<Action>,
}

impl Member {
    /// A member that begins to join at `now`.
    ///
    /// # Panics
    /// If its options break a limit that the caller knows.
    #[must_use]
    pub fn new(options: MemberOptions, now: Time) -> Self {
        let checked = options.member.check();
        assert_eq!(checked, Ok(()), "a member that no map takes");
        assert!(options.cluster.len() <= CLUSTER_NAME_BYTES_MAX);
        assert!(options.former.len() <= FORMER_MAX);
        assert!(0 < options.versions.0 && options.versions.0 <= options.versions.1);
        let is_drained = options.member.is_draining;
        let mut member = Self {
            keys: Keys::new(&options.prefix),
            random: SplitMix64::new(options.seed),
            options,
            phase: Phase::Joining,
            view: View::default(),
            fence: Fence::default(),
            was_in_map: false,
            bad_records: 0,
            lease: None,
            pending: BTreeMap::new(),
            watch: None,
            must_load: true,
            draining: Draining::No,
            raised: (0, Time::MAX),
            renewed: Epoch(0),
            abstains: false,
            quota_changes: QuotaChanges::default(),
            has_quota_failed: false,
            ops_issued: 0,
            retry_at: now,
            failures: 0,
            rival_since: None,
            actions: VecDeque::new(),
        };
        if is_drained {
            member.set_drained();
        }
        member.advance(now);
        member
    }

    /// The next thing to do, if there is one.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`on_timeout`](Self::on_timeout), unless something happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Left | Phase::Refused) {
            return None;
        }
        // Who leaves lets its lease go.
        let is_kept = self.phase != Phase::Leaving;
        let keep_alive = self
            .lease
            .filter(|held| is_kept && !self.is_kept_alive(held.id));
        let keep_alive = keep_alive.map(|held| held.keep_alive_at);
        let main = self.is_idle().then_some(self.retry_at);
        let given_up = self.next_late_quota().filter(|_| is_kept);
        [keep_alive, main, given_up].into_iter().flatten().min()
    }

    /// Time has passed. Early and repeated calls change nothing.
    pub fn on_timeout(&mut self, now: Time) {
        self.advance(now);
    }

    /// Whether it is registered and has seen the map of late.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.phase == Phase::Joined
    }

    /// From when on the map may change again, as far as it knows: a member that leaves before is in the map until then, and
    /// what it serves nobody does.
    #[must_use]
    pub fn map_may_change_at(&self) -> Time {
        let seen = self.view.map_seen;
        seen.map_or(Time::ZERO, |seen| seen + MAP_CHANGE_MIN)
    }

    /// The newest map that it knows, also while it is cut off.
    #[must_use]
    pub fn map(&self) -> Option<&ClusterMap> {
        self.view.map.as_ref().map(|known| &known.map)
    }

    /// Whose prefix it is, once that is known.
    #[must_use]
    pub const fn identity(&self) -> Option<&ClusterIdentity> {
        self.view.identity.as_ref()
    }

    /// The clock of its lease, which is renewed only while it is registered.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether it is in the map that it knows, in this life of it.
    #[must_use]
    pub fn is_in_map(&self) -> bool {
        let MapMember {
            id, incarnation, ..
        } = self.options.member;
        let own = self.map().and_then(|map| map.member(id));
        own.is_some_and(|own| own.incarnation == incarnation)
    }

    /// Whether it is in the map, and its lease holds for sure.
    #[must_use]
    pub fn is_serving(&self, now: Time) -> bool {
        self.is_in_map() && self.fence.is_leased(now)
    }

    /// Whether this may be done now. One that has come back, and is not in the map again yet, is as
    /// good as cut off.
    ///
    /// # Errors
    /// [`Fenced`].
    pub fn permit(
        &self,
        now: Time,
        namespace: NamespaceKind,
        act: Act,
    ) -> Result<Standing, Fenced> {
        if !self.was_in_map {
            return Err(Fenced);
        }
        let mut fence = self.fence;
        if !self.is_in_map() {
            fence.end(now);
        }
        fence.permit(now, namespace, act)
    }

    /// The map is another one.
    fn on_map(&mut self) {
        self.was_in_map |= self.is_in_map();
        self.actions.push_back(Action::MapChanged);
    }

    /// Whether the map that it knows is of those who are registered, as far as it knows: nobody will propose another.
    #[must_use]
    pub fn is_map_settled(&self) -> bool {
        self.view.is_settled()
    }

    /// From now on it proposes no map: it is about to leave. Where all members do at one time, the map stays that under which
    /// all of them have served.
    pub const fn abstain(&mut self) {
        self.abstains = true;
    }

    /// Whether it has not been told to [abstain](Self::abstain).
    #[must_use]
    pub const fn proposes(&self) -> bool {
        !self.abstains
    }

    /// Gives up the lease: the next map is without it.
    pub fn leave(&mut self, now: Time) {
        if matches!(self.phase, Phase::Joining | Phase::Joined) {
            self.phase = Phase::Leaving;
            self.fence.end(now);
            self.retry_at = now;
            self.advance(now);
        }
    }

    /// Wants the next map to have at least this generation: everything older is dead. Until then: where no such map could be
    /// made in time, nobody wants it any more.
    pub fn raise_generation(&mut self, now: Time, generation: u64, until: Time) {
        let (raised, wanted_until) = self.raised;
        self.raised = match generation.cmp(&raised) {
            Ordering::Less if now < wanted_until => (raised, wanted_until),
            Ordering::Equal => (raised, wanted_until.max(until)),
            Ordering::Less | Ordering::Greater => (generation, until),
        };
        self.retry_at = self.retry_at.min(now);
        self.advance(now);
    }

    /// Wants another map than that of this epoch, also if nothing else changes: what was written down for it counts no more.
    pub fn renew_map(&mut self, now: Time, epoch: Epoch) {
        self.renewed = self.renewed.max(epoch);
        self.retry_at = self.retry_at.min(now);
        self.advance(now);
    }

    /// An ask was answered, or was not. Answers to what was not asked, or is over, change nothing.
    pub fn on_answer(&mut self, now: Time, op: OpId, answer: Result<Answer, CoordinationFault>) {
        let Some(Pending { purpose, sent }) = self.pending.remove(&op) else {
            return;
        };
        if matches!(self.phase, Phase::Left | Phase::Refused) {
            return;
        }
        match (purpose, answer) {
            (Purpose::KeepAlive(lease), answer) => self.on_kept_alive(now, sent, lease, answer),
            (purpose, Ok(answer)) => {
                self.failures = 0;
                self.on_done(now, sent, purpose, answer);
            }
            (purpose, Err(fault)) => self.on_fault(now, &purpose, &fault),
        }
        self.advance(now);
    }

    /// Changes that the watch told.
    pub fn on_changes(&mut self, now: Time, op: OpId, changes: &[Change]) {
        if self.watch != Some(op) {
            return;
        }
        let own = self.options.member.id;
        for change in changes {
            match self.view.apply(now, &self.keys, change) {
                Ok(true) => self.on_map(),
                Ok(false) => {}
                // It may have been damaged on its way: what is there is read.
                Err(_) => {
                    self.on_watch_end(now, op);
                    return;
                }
            }
            self.tell_quotas();
        }
        self.note_draining();
        self.retry_at = self.retry_at.min(now);
        if self.phase == Phase::Joined && !self.view.members.contains_key(&own) {
            self.lose_lease(now);
        }
        self.advance(now);
    }

    /// The watch ended, for whatever reason: everything is read again.
    pub fn on_watch_end(&mut self, now: Time, op: OpId) {
        if self.watch == Some(op) {
            self.watch = None;
            self.must_load = true;
            self.pause(now);
            self.advance(now);
        }
    }

    /// Whether nothing but a renewal is under way.
    fn is_idle(&self) -> bool {
        self.pending
            .values()
            .all(|pending| matches!(pending.purpose, Purpose::KeepAlive(_)))
    }

    fn is_kept_alive(&self, lease: LeaseId) -> bool {
        self.pending
            .values()
            .any(|pending| pending.purpose == Purpose::KeepAlive(lease))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(u64::from(self.options.lease_ttl_s))
    }

    /// Issues what is due.
    fn advance(&mut self, now: Time) {
        match self.phase {
            Phase::Left | Phase::Refused => return,
            Phase::Joining | Phase::Joined => {
                self.give_up_quotas(now);
                self.keep_alive(now);
            }
            Phase::Leaving => {}
        }
        if !self.is_idle() || now < self.retry_at {
            return;
        }
        self.retry_at = Time::MAX;
        match self.phase {
            Phase::Leaving => self.revoke_own(now),
            _ if self.must_load => {
                let ask = Ask::Op(Op::Range(self.keys.all()));
                self.ask(now, Purpose::Load, ask);
            }
            Phase::Joining => self.join(now),
            Phase::Joined => self.change(now),
            Phase::Left | Phase::Refused => unreachable!("nothing is due any more"),
        }
    }

    fn ask(&mut self, now: Time, purpose: Purpose, ask: Ask) {
        let op = self.next_op();
        let until = now + ANSWER_WAIT_MAX.min(self.ttl() / 3);
        self.pending.insert(op, Pending { purpose, sent: now });
        self.actions.push_back(Action::Ask { op, ask, until });
    }

    const fn next_op(&mut self) -> OpId {
        self.ops_issued += 1;
        OpId(self.ops_issued)
    }

    fn keep_alive(&mut self, now: Time) {
        let Some(held) = self.lease else { return };
        if now >= held.keep_alive_at && !self.is_kept_alive(held.id) {
            self.ask(now, Purpose::KeepAlive(held.id), Ask::KeepAlive(held.id));
        }
    }

    /// Changes what is to be changed for all: first the quotas, unless one was just tried in vain.
    fn change(&mut self, now: Time) {
        self.begin_draining(now);
        if !self.is_idle() {
            return;
        }
        let is_behind = core::mem::take(&mut self.has_quota_failed);
        if is_behind {
            self.propose(now);
        }
        if self.is_idle() {
            self.change_quota(now);
        }
        if self.is_idle() && !is_behind {
            self.propose(now);
        }
    }

    /// The next step towards membership, everything having been read.
    fn join(&mut self, now: Time) {
        let id = self.options.member.id;
        let incarnation = self.options.member.incarnation;
        let Some(identity) = &self.view.identity else {
            return self.create_identity(now);
        };
        if identity.name != self.options.cluster {
            let found = identity.name.clone();
            return self.refuse(now, Refusal::WrongCluster { found });
        }
        let ours = self.options.versions;
        let others = self
            .view
            .members
            .values()
            .filter(|known| known.registration.member.id != id);
        let stranger = others
            .map(|known| known.registration)
            .find(|other| !other.shares_version(ours));
        if let Some(other) = stranger {
            let (id, theirs) = (other.member.id, other.versions);
            return self.refuse(now, Refusal::WrongVersion { id, ours, theirs });
        }
        let held = self.lease.map(|held| held.id);
        match self.view.members.get(&id).copied() {
            Some(own) if own.registration.member.incarnation != incarnation => {
                let is_over = (self.options.former).contains(&own.registration.member.incarnation);
                match own.lease {
                    Some(former) if is_over => {
                        self.ask(now, Purpose::RevokeStale, Ask::Revoke(former));
                    }
                    _ => self.wait_for_rival(now, own.registration.ttl_s),
                }
            }
            Some(own) if held.is_some() && own.lease == held => self.become_joined(now),
            // A registration of this process's own, under a lease that it has given up.
            Some(own) => match own.lease {
                Some(stale) => self.ask(now, Purpose::RevokeStale, Ask::Revoke(stale)),
                None => self.wait_for_rival(now, self.options.lease_ttl_s),
            },
            None => match held {
                None => {
                    let lease = LeaseId::new(self.random.next());
                    let ttl_s = self.options.lease_ttl_s;
                    self.ask(now, Purpose::Grant(lease), Ask::Grant { lease, ttl_s });
                }
                Some(lease) => self.register(now, lease),
            },
        }
    }

    fn create_identity(&mut self, now: Time) {
        let key = self.keys.identity();
        let (id, name) = (self.random.next(), self.options.cluster.clone());
        let value = ClusterIdentity { id, name }.encode();
        let txn = Txn {
            compare: vec![Compare::absent(key.clone())],
            success: vec![Op::Put {
                key,
                value,
                lease: None,
            }],
            failure: Vec::new(),
        };
        self.ask(now, Purpose::CreateIdentity, Ask::Txn(txn));
    }

    /// Another process is registered: it is waited out, or it is alive.
    fn wait_for_rival(&mut self, now: Time, ttl_s: u32) {
        let since = *self.rival_since.get_or_insert(now);
        // A coordinator that elects another leader lets leases begin anew, once.
        let patience = Duration::from_secs(2 * u64::from(ttl_s)) + CLOCK_DRIFT_MAX + RETRY_MAX;
        if now >= since + patience {
            let id = self.options.member.id;
            return self.refuse(now, Refusal::IdentityTaken { id });
        }
        self.must_load = true;
        self.retry_at = now + Duration::from_millis(500);
    }

    fn registration(&self) -> Registration {
        Registration {
            versions: self.options.versions,
            ttl_s: self.options.lease_ttl_s,
            member: self.options.member,
        }
    }

    fn register(&mut self, now: Time, lease: LeaseId) {
        let key = self.keys.member(self.options.member.id);
        let value = self.registration().encode();
        let txn = Txn {
            compare: vec![Compare::absent(key.clone())],
            success: vec![Op::Put {
                key,
                value,
                lease: Some(lease),
            }],
            failure: Vec::new(),
        };
        self.ask(now, Purpose::Register(lease), Ask::Txn(txn));
    }

    /// It is registered under its lease, and everything was read since: it watches from there.
    fn become_joined(&mut self, now: Time) {
        let held = self.lease.expect("who is registered holds a lease");
        self.fence.renew(held.renewed, self.ttl());
        self.phase = Phase::Joined;
        self.rival_since = None;
        self.retry_at = now;
        self.watch_on();
        self.advance(now);
    }

    fn watch_on(&mut self) {
        let op = self.next_op();
        self.watch = Some(op);
        let (range, revision) = (self.keys.all(), self.view.revision.next());
        let from = WatchFrom { range, revision };
        self.actions.push_back(Action::Watch { op, from });
    }

    /// Proposes a map if this one is out of date, not too soon after the last change.
    fn propose(&mut self, now: Time) {
        if self.abstains {
            return;
        }
        let (generation, until) = self.raised;
        let wanted = (if now < until { generation } else { 0 }, self.renewed);
        let map = match self.view.proposal(now, self.options.rejoin_wait, wanted) {
            Proposal::Nothing => return,
            Proposal::Wait(until) => {
                self.retry_at = until;
                return;
            }
            Proposal::Map(map) => map,
        };
        let rank = u32::try_from(self.view.rank(self.options.member.id)).unwrap_or(u32::MAX);
        let turn = PROPOSAL_STEP.saturating_mul(rank).min(PROPOSAL_WAIT_MAX);
        let seen = self.view.map_seen.unwrap_or(now);
        self.view.map_seen = Some(seen);
        let due = seen + MAP_CHANGE_MIN + turn;
        if now < due {
            self.retry_at = due;
            return;
        }
        let key = self.keys.map();
        let expected = Expected::Modified(self.view.map_revision());
        let mut compare = vec![Compare {
            key: key.clone(),
            expected,
        }];
        // Who has come back meanwhile must not be removed: it serves again.
        let removed = self.view.removed_by(&map).into_iter();
        compare.extend(removed.map(|id| Compare::absent(self.keys.member(id))));
        let value = map.encode();
        let txn = Txn {
            compare,
            success: vec![Op::Put {
                key,
                value,
                lease: None,
            }],
            failure: Vec::new(),
        };
        self.ask(now, Purpose::Propose(map), Ask::Txn(txn));
    }

    fn revoke_own(&mut self, now: Time) {
        match self.lease {
            Some(held) => self.ask(now, Purpose::RevokeOwn, Ask::Revoke(held.id)),
            None => self.become_left(),
        }
    }

    fn become_left(&mut self) {
        self.phase = Phase::Left;
        self.watch = None;
        self.actions.push_back(Action::Left);
    }

    fn refuse(&mut self, now: Time, refusal: Refusal) {
        self.phase = Phase::Refused;
        self.watch = None;
        self.fence.end(now);
        self.actions.push_back(Action::Refused(refusal));
    }

    /// The lease is over: whatever was registered under it is gone, or will be.
    fn lose_lease(&mut self, now: Time) {
        self.fence.end(now);
        self.lease = None;
        self.must_load = true;
        if self.phase == Phase::Joined {
            self.phase = Phase::Joining;
            self.watch = None;
        }
        self.retry_at = now;
    }

    fn on_kept_alive(
        &mut self,
        now: Time,
        sent: Time,
        lease: LeaseId,
        answer: Result<Answer, CoordinationFault>,
    ) {
        let ttl = self.ttl();
        let is_registered = self.phase == Phase::Joined;
        let Some(held) = self.lease.as_mut().filter(|held| held.id == lease) else {
            return;
        };
        match answer {
            Ok(_) => {
                held.renewed = held.renewed.max(sent);
                held.keep_alive_at = sent + ttl / 3;
                if is_registered {
                    self.fence.renew(sent, ttl);
                }
            }
            Err(CoordinationFault::LeaseNotFound) => self.lose_lease(now),
            Err(_) => held.keep_alive_at = now + RETRY_MIN.max(ttl / 20),
        }
    }

    fn on_done(&mut self, now: Time, sent: Time, purpose: Purpose, answer: Answer) {
        self.retry_at = now;
        match (purpose, answer.outcome) {
            (Purpose::Load, Outcome::Op(OpOutcome::Range(pairs))) => {
                self.on_loaded(now, &pairs, answer.revision);
            }
            (Purpose::Grant(id), _) => {
                let keep_alive_at = sent + self.ttl() / 3;
                self.lease = Some(Held {
                    id,
                    renewed: sent,
                    keep_alive_at,
                });
            }
            (
                Purpose::Propose(map),
                Outcome::Txn {
                    succeeded: true, ..
                },
            ) => {
                self.on_proposed(now, &map, answer.revision);
            }
            // Another proposal was taken; the watch tells it.
            (Purpose::Propose(_), _) => self.retry_at = now + RETRY_MIN,
            (Purpose::SetQuota(ticket), outcome) => {
                self.on_quota_answer(now, ticket, &outcome, answer.revision);
            }
            (
                Purpose::Drain,
                Outcome::Txn {
                    succeeded: true, ..
                },
            ) => self.set_drained(),
            (Purpose::RevokeOwn, _) => self.become_left(),
            // What came of the others is read rather than believed.
            _ => self.must_load = true,
        }
    }

    fn on_loaded(&mut self, now: Time, pairs: &[KeyValue], revision: Revision) {
        self.must_load = false;
        let reset = self.view.reset(now, &self.keys, pairs, revision);
        self.tell_quotas();
        self.note_draining();
        match reset {
            Ok(true) => self.on_map(),
            Ok(false) => {}
            Err(fault) => return self.on_bad_record(now, fault),
        }
        self.bad_records = 0;
        if self.phase == Phase::Joined {
            let own = self.view.members.get(&self.options.member.id);
            let is_own = own.is_some_and(|own| own.lease == self.lease.map(|held| held.id));
            if is_own {
                self.watch_on();
            } else {
                self.lose_lease(now);
                self.must_load = false;
            }
        }
    }

    /// What was read makes no sense. Who wants to join gives up when it is so again and again; who is
    /// a member already goes on as it was, and looks again.
    fn on_bad_record(&mut self, now: Time, fault: RecordFault) {
        self.bad_records += 1;
        if self.bad_records >= BAD_RECORDS_MAX && !self.was_in_map {
            return self.refuse(now, fault.into());
        }
        self.must_load = true;
        self.pause(now);
    }

    /// The map is the one that this member proposed.
    fn on_proposed(&mut self, now: Time, map: &ClusterMap, modified: Revision) {
        let pair = KeyValue {
            key: self.keys.map(),
            value: map.encode(),
            created: modified,
            modified,
            lease: None,
        };
        // The watch tells it too; only the newer of both counts. The view's own revision stays: other
        // changes before this one may not have been told yet.
        let known = self.view.revision;
        let applied = self.view.apply(now, &self.keys, &Change::Put(pair));
        self.view.revision = known;
        if applied == Ok(true) {
            self.on_map();
        }
    }

    fn on_fault(&mut self, now: Time, purpose: &Purpose, fault: &CoordinationFault) {
        // A coordinator that was away lets every lease begin anew.
        self.rival_since = None;
        match (purpose, fault) {
            (Purpose::RevokeOwn, CoordinationFault::LeaseNotFound) => return self.become_left(),
            (Purpose::Register(_) | Purpose::Drain, CoordinationFault::LeaseNotFound) => {
                self.lose_lease(now);
            }
            (Purpose::RevokeStale, CoordinationFault::LeaseNotFound) => self.must_load = true,
            // It may have been done: what is there is read before anything is asked again.
            (Purpose::Register(_) | Purpose::CreateIdentity | Purpose::Drain, _) => {
                self.must_load = true;
            }
            (Purpose::SetQuota(_), _) => self.has_quota_failed = true,
            (Purpose::RevokeOwn, _) if self.lease_is_over(now) => return self.become_left(),
            _ => {}
        }
        self.pause(now);
    }

    /// Whether the lease has ended by itself, even by a slow clock.
    fn lease_is_over(&self, now: Time) -> bool {
        self.lease
            .is_none_or(|held| now >= held.renewed + self.ttl() + CLOCK_DRIFT_MAX)
    }

    /// Waits longer with each failure in a row, and not for as long as the others.
    fn pause(&mut self, now: Time) {
        let longest = RETRY_MIN
            .saturating_mul(1 << self.failures.min(8))
            .min(RETRY_MAX);
        self.failures += 1;
        let ms = u32::try_from(longest.as_millis()).expect("a few seconds");
        let jitter = Duration::from_millis(u64::from(self.random.below(ms / 2 + 1)));
        self.retry_at = now + (longest - jitter);
    }
}
