//! Members that are to be emptied: which of them the coordinator has taken, and when.

use std::collections::BTreeMap;

use lunette_cluster_proto::coordination::{Answer, Ask, KeyRange, Op, OpOutcome, Outcome};
use lunette_cluster_proto::coordinator::Coordinator;
use lunette_cluster_proto::member::Draining;
use lunette_runtime_core::time::Time;

use super::{Cluster, DELAY_STEPS_MAX, Node, STEP};

const MEMBERS: &[u8] = b"lunette/members/";

/// Who is registered as one that is emptied, by its key.
#[derive(Default)]
pub(super) struct Drains {
    drained: BTreeMap<Vec<u8>, bool>,
}

impl Cluster {
    /// A node is to be emptied, which may be begun until that time.
    pub(crate) fn drain(&mut self, node: usize, until: Time) {
        let node = &mut self.nodes[node];
        if node.is_alive {
            node.drains_until = node.drains_until.max(until);
            node.member.drain(self.now, until);
        }
    }

    /// The living of this identity.
    pub(crate) fn drain_id(&mut self, id: u64, ns: u64) {
        let until = Time::from_ns(self.now.as_ns() + ns);
        let named = |node: &Node| node.id == id && node.is_alive;
        if let Some(node) = self.nodes.iter().position(named) {
            self.drain(node, until);
        }
    }

    pub(crate) fn drained(&self) -> Vec<u64> {
        let map = self.map();
        let members = map.members().iter().filter(|member| member.is_draining);
        members.map(|member| member.id.0).collect()
    }

    /// What a member says of itself is what the coordinator has, and what is in the map.
    pub(crate) fn check_drained(&self) {
        let drained = self.drained();
        for node in self.nodes.iter().filter(|node| node.is_alive) {
            let is_drained = node.member.draining() == Draining::Yes;
            assert_eq!(is_drained, drained.contains(&node.id), "node {}", node.id);
        }
    }

    /// The coordinator has done what was asked.
    pub(super) fn note_drain(&mut self, node: usize, ask: &Ask, answer: &Answer) {
        let (
            Ask::Txn(txn),
            Outcome::Txn {
                succeeded: true, ..
            },
        ) = (ask, &answer.outcome)
        else {
            return;
        };
        let Some(Op::Put { key, .. }) = txn.success.first() else {
            return;
        };
        if !key.starts_with(MEMBERS) {
            return;
        }
        let node = &self.nodes[node];
        // Who joins compares that nobody else has.
        if txn.compare.len() == 1 {
            let is_drained = node.member.draining() == Draining::Yes;
            self.drains.drained.insert(key.clone(), is_drained);
            return;
        }
        self.drains.drained.insert(key.clone(), true);
        let stays = |key: &Vec<u8>| !self.drains.drained[key];
        let registered = registered(&mut self.coordinator, self.now);
        assert!(registered.iter().any(stays), "the last one is emptied");
        let on_its_way = u64::from(DELAY_STEPS_MAX) * STEP;
        let late = self.now.as_ns() - node.drains_until.as_ns().min(self.now.as_ns());
        assert!(late <= on_its_way, "emptied {late} ns late");
    }
}

/// The keys of those who are registered.
fn registered(coordinator: &mut Coordinator, now: Time) -> Vec<Vec<u8>> {
    let ask = Ask::Op(Op::Range(KeyRange::prefix(MEMBERS)));
    let answer = coordinator.handle(now, &ask).expect("it is there");
    let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
        unreachable!("a range was asked");
    };
    pairs.into_iter().map(|pair| pair.key).collect()
}
