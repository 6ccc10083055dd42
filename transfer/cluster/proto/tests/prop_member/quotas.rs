//! What members were asked to set, and which quotas may be there because of it.

use std::collections::BTreeSet;
use std::time::Duration;

use lunette_cluster_proto::coordination::{Ask, KeyRange, Op, OpOutcome, Outcome};
use lunette_cluster_proto::member::{QuotaRefusal, QuotaTicket};
use lunette_cluster_proto::quota::{Quotas, decode_quota};
use lunette_runtime_core::time::Time;

use super::Cluster;

const PREFIX: &str = "lunette/quota/";

/// One quota that was to be set, by a member or by somebody else.
#[derive(Debug)]
struct Set {
    by: Option<(usize, QuotaTicket)>,
    name: String,
    bytes: Option<u64>,
    asked: Time,
    /// When it was said to be set.
    done: Option<Time>,
    /// When it was said that it is not tried any more.
    given_up: Option<Time>,
}

/// All that was ever asked.
#[derive(Debug, Default)]
pub(crate) struct Sets(Vec<Set>);

impl Sets {
    pub(super) fn on_set(&mut self, now: Time, node: usize, ticket: QuotaTicket) {
        let set = self
            .0
            .iter_mut()
            .find(|set| set.by == Some((node, ticket)))
            .expect("it was asked for");
        assert_eq!(set.done.replace(now), None, "it is set once");
    }

    pub(super) fn on_given_up(&mut self, now: Time, node: usize, ticket: QuotaTicket) {
        let mut all = self.0.iter_mut();
        let set = all.find(|set| set.by == Some((node, ticket)));
        let set = set.expect("it was asked for");
        assert_eq!(set.given_up.replace(now).or(set.done), None, "it ends once");
    }

    /// Whether this may be what is there: it was set, and nothing that was asked for later is.
    fn allow(&self, name: &str, bytes: Option<u64>) -> bool {
        let of_name = || self.0.iter().filter(|set| set.name == name);
        let is_newest = |since: Option<Time>| {
            let mut done = of_name().filter(|set| set.done.is_some());
            since.is_none_or(|since| done.all(|later| later.asked <= since))
        };
        let is_untouched = bytes.is_none() && of_name().all(|set| set.done.is_none());
        let mut same = of_name().filter(|set| set.bytes == bytes);
        is_untouched || same.any(|set| is_newest(set.done.or(set.given_up)))
    }
}

impl Cluster {
    /// A member that lives is asked to set a quota.
    pub(crate) fn set_quota(&mut self, id: u64, name: &str, bytes: Option<u64>) {
        let mut nodes = self.nodes.iter_mut().enumerate();
        let Some((node, living)) = nodes.find(|(_, node)| node.id == id && node.is_alive) else {
            return;
        };
        // Some do not wait for long.
        let is_short = self.sets.0.len() % 3 == 2;
        let wait = Duration::from_secs(if is_short { 2 } else { 600 });
        match (living.member).set_quota(self.now, name, bytes, self.now + wait) {
            Ok(ticket) => self.sets.0.push(Set {
                by: Some((node, ticket)),
                name: name.to_owned(),
                bytes,
                asked: self.now,
                done: None,
                given_up: None,
            }),
            Err(refusal) => assert_eq!(refusal, QuotaRefusal::Busy),
        }
    }

    /// Someone writes what is no quota: it counts as none.
    pub(crate) fn damage_quota(&mut self, name: &str) {
        self.scribble(&format!("{PREFIX}{name}"), b"LNTQ?");
        self.sets.0.push(Set {
            by: None,
            name: name.to_owned(),
            bytes: None,
            asked: self.now,
            done: Some(self.now),
            given_up: None,
        });
    }

    /// Those at the coordinator.
    pub(crate) fn quotas(&mut self) -> Quotas {
        let ask = Ask::Op(Op::Range(KeyRange::prefix(PREFIX)));
        let answer = self.coordinator.handle(self.now, &ask).expect("it is read");
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("a range was asked");
        };
        let quota = |pair: &lunette_cluster_proto::coordination::KeyValue| {
            let name = String::from_utf8(pair.key[PREFIX.len()..].to_vec());
            Some((
                name.expect("names are text"),
                decode_quota(&pair.value).ok()?,
            ))
        };
        pairs.iter().filter_map(quota).collect()
    }

    /// All who live know what is there, which was set last, and nobody waits any more.
    pub(crate) fn check_quotas(&mut self) {
        let quotas = self.quotas();
        let names: BTreeSet<_> = self.sets.0.iter().map(|set| set.name.clone()).collect();
        for name in names {
            let bytes = quotas.get(&name);
            let sets = &self.sets;
            assert!(sets.allow(&name, bytes), "{name}: {bytes:?} of {sets:?}");
        }
        for node in self.nodes.iter().filter(|node| node.is_alive) {
            assert_eq!(*node.member.quotas(), quotas, "n{}", node.id);
        }
        for set in self
            .sets
            .0
            .iter()
            .filter(|set| set.done.or(set.given_up).is_none())
        {
            let is_alive = set.by.is_some_and(|(node, _)| self.nodes[node].is_alive);
            assert!(!is_alive, "{set:?}");
        }
    }
}
