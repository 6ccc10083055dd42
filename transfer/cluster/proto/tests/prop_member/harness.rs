//! Members and their coordinator, step by step.

mod draining;
mod quotas;

use std::collections::BTreeMap;

use lunette_cluster_proto::coordination::{
    Answer, Ask, Change, Compare, CoordinationFault, KeyRange, Op, OpOutcome, Outcome,
};
use lunette_cluster_proto::coordinator::{Coordinator, WatchId};
use lunette_cluster_proto::fence::{Act, Fenced, NamespaceKind, Standing};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_cluster_proto::member::{Action, MAP_CHANGE_MIN, Member, MemberOptions, OpId, Refusal};
use lunette_cluster_proto::quota::Quotas;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
pub(crate) const TTL_S: u32 = 5;
const STEP: u64 = 5 * MS;
/// How long a coordinator takes to start anew.
const DOWN: u64 = 700 * MS;
const DELAY_STEPS_MAX: u32 = 8;

pub(crate) struct Node {
    pub(crate) member: Member,
    id: u64,
    pub(crate) is_alive: bool,
    is_cut: bool,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) has_left: bool,
    watch: Option<(OpId, WatchId)>,
    /// What it knew when it said last that they have changed.
    quotas: Quotas,
    /// When serving stops, as the member said last.
    serves_until: Time,
    /// Until when it may begin to be emptied.
    drains_until: Time,
}

enum Mail {
    Ask {
        node: usize,
        op: OpId,
        ask: Ask,
        until: Time,
    },
    Answer {
        node: usize,
        op: OpId,
        answer: Result<Answer, CoordinationFault>,
    },
    Changes {
        node: usize,
        op: OpId,
        changes: Vec<Change>,
    },
    WatchEnd {
        node: usize,
        op: OpId,
    },
}

pub(crate) struct Cluster {
    pub(crate) now: Time,
    coordinator: Coordinator,
    pub(crate) nodes: Vec<Node>,
    mail: BTreeMap<(Time, u64), Mail>,
    mailed: u64,
    random: SplitMix64,
    pub(crate) epochs: Vec<Epoch>,
    sets: quotas::Sets,
    drains: draining::Drains,
    /// How often everything was read.
    pub(crate) loads: u64,
    /// How often it was told that a quota makes no sense.
    pub(crate) ignored: u64,
    map_changed: Option<Time>,
    known: Option<ClusterMap>,
    /// The coordinator starts anew until then.
    down_until: Time,
}

impl Cluster {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Time::from_ns(SECOND),
            coordinator: Coordinator::default(),
            nodes: Vec::new(),
            mail: BTreeMap::new(),
            mailed: 0,
            random: SplitMix64::new(seed),
            epochs: Vec::new(),
            sets: quotas::Sets::default(),
            drains: draining::Drains::default(),
            loads: 0,
            ignored: 0,
            map_changed: None,
            known: None,
            down_until: Time::ZERO,
        }
    }

    pub(crate) fn start(&mut self, id: u64) -> usize {
        self.start_with(id, |_| {})
    }

    pub(crate) fn start_with(&mut self, id: u64, change: impl FnOnce(&mut MemberOptions)) -> usize {
        let port = 7000 + u16::try_from(id).expect("few nodes");
        let mut options = MemberOptions {
            cluster: "kv".into(),
            prefix: "lunette".into(),
            member: MapMember {
                cores: 2,
                ..MapMember::new(
                    NodeId(id),
                    self.random.next() | 1,
                    ([192, 0, 2, 1], port).into(),
                )
            },
            versions: (1, 2),
            former: Vec::new(),
            lease_ttl_s: TTL_S,
            rejoin_wait: core::time::Duration::from_secs(10),
            seed: self.random.next(),
        };
        change(&mut options);
        self.nodes.push(Node {
            member: Member::new(options, self.now),
            id,
            is_alive: true,
            is_cut: false,
            refusal: None,
            has_left: false,
            watch: None,
            quotas: Quotas::default(),
            serves_until: Time::ZERO,
            drains_until: Time::ZERO,
        });
        self.nodes.len() - 1
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].is_alive = false;
        if let Some((_, watch)) = self.nodes[node].watch.take() {
            self.coordinator.end_watch(watch);
        }
    }

    pub(crate) fn kill_id(&mut self, id: u64) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].id == id && self.nodes[node].is_alive {
                self.kill(node);
            }
        }
    }

    pub(crate) fn leave(&mut self, node: usize) {
        self.nodes[node].member.leave(self.now);
    }

    /// Nothing reaches the coordinator from there, and the watch ends in silence.
    pub(crate) fn cut(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.is_cut = true;
        }
    }

    pub(crate) fn cut_all(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.cut(node));
    }

    pub(crate) fn mend(&mut self, node: usize) {
        self.nodes[node].is_cut = false;
        // What was lost meanwhile is noticed now.
        if let Some((op, watch)) = self.nodes[node].watch.take() {
            self.coordinator.end_watch(watch);
            self.post(Mail::WatchEnd { node, op });
        }
    }

    pub(crate) fn mend_all(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.mend(node));
    }

    /// Someone writes under the prefix what no member would.
    pub(crate) fn scribble(&mut self, key: &str, value: &[u8]) {
        let (key, value) = (key.into(), value.to_vec());
        let put = Ask::Op(Op::Put {
            key,
            value,
            lease: None,
        });
        let done = self.coordinator.handle(self.now, &put);
        assert!(done.is_ok(), "{done:?}");
    }

    pub(crate) fn compact(&mut self) {
        let revision = self.coordinator.revision();
        self.coordinator.compact(revision);
    }

    pub(crate) fn restart_coordinator(&mut self) {
        let bytes = self.coordinator.snapshot();
        let restored = Coordinator::restore(self.now, &bytes);
        self.coordinator = restored.expect("it is its own snapshot");
        self.down_until = Time::from_ns(self.now.as_ns() + DOWN);
        for node in 0..self.nodes.len() {
            if let Some((op, _)) = self.nodes[node].watch.take() {
                self.post(Mail::WatchEnd { node, op });
            }
        }
    }

    pub(crate) fn permit(
        &self,
        node: usize,
        kind: NamespaceKind,
        act: Act,
    ) -> Result<Standing, Fenced> {
        self.nodes[node].member.permit(self.now, kind, act)
    }

    /// The map at the coordinator.
    pub(crate) fn map(&self) -> ClusterMap {
        self.known.clone().expect("there is a map")
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.map()
            .members()
            .iter()
            .map(|member| member.id.0)
            .collect()
    }

    pub(crate) fn living(&self) -> Vec<u64> {
        let living = self.nodes.iter().filter(|node| node.is_alive);
        let mut ids: Vec<u64> = living.map(|node| node.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn run(&mut self, ns: u64) {
        let end = self.now.as_ns() + ns;
        while self.now.as_ns() < end {
            self.now = Time::from_ns(self.now.as_ns() + STEP);
            self.deliver();
            self.coordinator.on_timeout(self.now);
            self.tell_watches();
            for node in 0..self.nodes.len() {
                if self.nodes[node].is_alive {
                    let now = self.now;
                    let member = &mut self.nodes[node].member;
                    if member.poll_timeout().is_some_and(|due| due <= now) {
                        member.on_timeout(now);
                    }
                    // Its driver would ask for ever, and hear no answer.
                    let due = member.poll_timeout();
                    assert!(
                        due.is_none_or(|due| due > now),
                        "{now:?}: due at {due:?} still"
                    );
                    self.act(node);
                }
            }
            self.check();
        }
    }

    fn post(&mut self, mail: Mail) {
        let delay = u64::from(self.random.below(DELAY_STEPS_MAX)) * STEP;
        self.post_at(Time::from_ns(self.now.as_ns() + delay), mail);
    }

    fn post_at(&mut self, at: Time, mail: Mail) {
        self.mailed += 1;
        self.mail.insert((at, self.mailed), mail);
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.mail.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            match entry.remove() {
                Mail::Ask {
                    node,
                    op,
                    ask,
                    until,
                } => self.on_ask(node, op, &ask, until),
                Mail::Answer { node, op, answer } if self.nodes[node].is_alive => {
                    self.nodes[node].member.on_answer(self.now, op, answer);
                }
                Mail::Changes { node, op, changes } if self.nodes[node].is_alive => {
                    self.nodes[node].member.on_changes(self.now, op, &changes);
                }
                Mail::WatchEnd { node, op } if self.nodes[node].is_alive => {
                    self.nodes[node].member.on_watch_end(self.now, op);
                }
                _ => {}
            }
        }
    }

    fn on_ask(&mut self, node: usize, op: OpId, ask: &Ask, until: Time) {
        if self.now < self.down_until && !self.nodes[node].is_cut {
            let reason = "connection refused".to_owned();
            let answer = Err(CoordinationFault::Unreachable { reason });
            return self.post(Mail::Answer { node, op, answer });
        }
        self.loads += u64::from(matches!(ask, Ask::Op(Op::Range(_))));
        self.check_proposal(ask);
        let is_lost = self.nodes[node].is_cut || !self.nodes[node].is_alive;
        let answer = if is_lost && self.random.below(4) > 0 {
            Err(CoordinationFault::TimedOut)
        } else {
            // What reaches the coordinator may be done although its answer is lost.
            let answer = self.coordinator.handle(self.now, ask);
            if let Ok(done) = &answer {
                self.note_drain(node, ask, done);
            }
            if is_lost {
                Err(CoordinationFault::TimedOut)
            } else {
                answer
            }
        };
        if is_lost {
            self.post_at(until.max(self.now), Mail::Answer { node, op, answer });
        } else {
            self.post(Mail::Answer { node, op, answer });
        }
    }

    /// Who is dropped from the map must not have come back unseen: that it is gone is compared.
    fn check_proposal(&self, ask: &Ask) {
        let (Ask::Txn(txn), Some(known)) = (ask, &self.known) else {
            return;
        };
        let Some(Op::Put { key, value, .. }) = txn.success.first() else {
            return;
        };
        if key != b"lunette/map" {
            return;
        }
        let map = ClusterMap::decode(value).expect("members write maps");
        let is_next = map.epoch().0 == known.epoch().0 + 1;
        for gone in known
            .members()
            .iter()
            .filter(|old| map.member(old.id).is_none())
        {
            let key = format!("lunette/members/{:016x}", gone.id.0);
            let is_compared = txn.compare.contains(&Compare::absent(key));
            assert!(is_compared || !is_next, "{} may have come back", gone.id);
        }
    }

    fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].member.poll_action() {
            match action {
                Action::Ask { op, ask, until } => self.post(Mail::Ask {
                    node,
                    op,
                    ask,
                    until,
                }),
                Action::Watch { op, from } => {
                    if let Some((_, old)) = self.nodes[node].watch.take() {
                        self.coordinator.end_watch(old);
                    }
                    match self.coordinator.watch(from) {
                        Ok(watch) if !self.nodes[node].is_cut && self.now >= self.down_until => {
                            self.nodes[node].watch = Some((op, watch));
                        }
                        _ => self.post(Mail::WatchEnd { node, op }),
                    }
                }
                Action::MapChanged => {}
                Action::QuotasChanged => {
                    let node = &mut self.nodes[node];
                    node.quotas = node.member.quotas().clone();
                }
                Action::QuotaSet(ticket) => self.sets.on_set(self.now, node, ticket),
                Action::QuotaGivenUp(ticket) => self.sets.on_given_up(self.now, node, ticket),
                Action::QuotaIgnored { .. } => self.ignored += 1,
                Action::Refused(refusal) => self.nodes[node].refusal = Some(refusal),
                Action::Left => {
                    self.nodes[node].has_left = true;
                    self.nodes[node].is_alive = false;
                }
            }
        }
    }

    fn tell_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let Some((op, watch)) = self.nodes[node].watch else {
                continue;
            };
            if self.nodes[node].is_cut {
                continue;
            }
            match self.coordinator.poll_watch(watch) {
                Ok(None) => {}
                // One connection, in order.
                Ok(Some(changes)) => self.post_at(self.now, Mail::Changes { node, op, changes }),
                Err(_) => {
                    self.nodes[node].watch = None;
                    self.post(Mail::WatchEnd { node, op });
                }
            }
        }
    }

    /// What must hold at any time.
    fn check(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_alive) {
            node.serves_until = node.member.fence().until().unwrap_or_default();
            assert_eq!(*node.member.quotas(), node.quotas, "changes are told");
        }
        let key = b"lunette/map".to_vec();
        let ask = Ask::Op(Op::Range(KeyRange::one(key)));
        let answer = self
            .coordinator
            .handle(self.now, &ask)
            .expect("it is there");
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("a range was asked");
        };
        let Some(pair) = pairs.first() else { return };
        let map = ClusterMap::decode(&pair.value).expect("members write maps");
        let before = self.known.replace(map.clone());
        if before.as_ref() == Some(&map) {
            return;
        }
        if let (Some(before), Some(changed)) = (&before, self.map_changed) {
            assert_eq!(
                map.epoch().0,
                before.epoch().0 + 1,
                "epochs follow each other"
            );
            assert!(
                self.now.since(changed) >= MAP_CHANGE_MIN,
                "maps change slowly"
            );
        }
        for member in map.members() {
            let old = before.as_ref().and_then(|map| map.member(member.id));
            let old = old.filter(|old| old.incarnation == member.incarnation);
            let since = old.map_or(map.epoch(), |old| old.since);
            assert_eq!(member.since, since, "since when {} is there", member.id);
        }
        self.map_changed = Some(self.now);
        self.epochs.push(map.epoch());
        let incarnations = before.iter().flat_map(|map| map.members());
        for gone in incarnations.filter(|old| {
            map.member(old.id)
                .is_none_or(|new| new.incarnation != old.incarnation)
        }) {
            let serving = self
                .nodes
                .iter()
                .find(|node| node.id == gone.id.0 && node.is_alive && node.serves_until > self.now);
            let is_own_heir = map.member(gone.id).is_some();
            assert!(
                serving.is_none() || is_own_heir,
                "{} is out of the map and serves",
                gone.id
            );
        }
    }
}
