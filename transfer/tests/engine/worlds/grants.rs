//! Capabilities against a model: whatever is granted, redeemed, replayed, revoked, unregistered and lost in
//! whatever order, exactly those accesses are done that the model allows, the others are refused for the
//! model's reason, and no byte changes otherwise.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Engine, EngineOptions, Refusal, RegisterOptions, Rights, SegmentId, Token, Way,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;

use crate::raw::{Raw, WRITTEN};

const LEN: u64 = 100;
const LEN_BYTES: usize = 100;
const SEGMENTS: usize = 2;
/// Session epochs.
const HOLDERS: [u64; 2] = [5, 6];

#[derive(Clone, Debug)]
enum Step {
    Grant {
        segment: usize,
        holder: usize,
        rights: Rights,
        start: u64,
        len: u64,
    },
    /// A holder presents a token, its own or another's.
    Redeem(Index, usize),
    Access {
        segment: usize,
        holder: usize,
        way: Way,
        at: u64,
        len: u32,
    },
    Revoke(usize),
    /// A segment is unregistered, and its memory registered again.
    Replace(usize),
    /// A holder's only connection ends, and it makes another.
    Lose(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (segment, holder) = (0..SEGMENTS, 0..HOLDERS.len());
    let rights = prop::sample::select(vec![Rights::READ, Rights::WRITE, Rights::READ_WRITE]);
    let grant = (segment.clone(), holder.clone(), rights, 0..LEN, 1..=LEN).prop_map(
        |(segment, holder, rights, start, len)| Step::Grant {
            segment,
            holder,
            rights,
            start,
            len: len.min(LEN - start),
        },
    );
    let way = prop::sample::select(vec![Way::Read, Way::Write]);
    let access = (segment.clone(), holder.clone(), way, 0..=LEN, 0..50_u32).prop_map(
        |(segment, holder, way, at, len)| Step::Access {
            segment,
            holder,
            way,
            at,
            len,
        },
    );
    let redeem = (any::<Index>(), holder.clone());
    let step = prop_oneof![
        4 => grant,
        8 => redeem.prop_map(|(token, holder)| Step::Redeem(token, holder)),
        16 => access,
        1 => segment.clone().prop_map(Step::Revoke),
        1 => segment.prop_map(Step::Replace),
        1 => holder.prop_map(Step::Lose),
    ];
    prop::collection::vec(step, 1..80)
}

/// What was granted.
struct Granted {
    token: Token,
    segment: SegmentId,
    /// How often the segment had been revoked.
    revocations: u32,
    holder: usize,
    rights: Rights,
    start: u64,
    end: u64,
}

struct Segment {
    id: SegmentId,
    memory: Exposed,
    model: Vec<u8>,
    revocations: u32,
}

/// How often each thing came about.
#[derive(Debug, Default)]
struct Seen {
    done: u32,
    refused: BTreeSet<String>,
}

struct Scene {
    owner: Engine,
    segments: Vec<Segment>,
    askers: Vec<Raw>,
    granted: Vec<Granted>,
    /// By holder, the indices of what it has redeemed.
    redeemed: Vec<BTreeSet<usize>>,
    /// What was taken away.
    replaced: Vec<SegmentId>,
    seen: Seen,
}

fn by_capability() -> RegisterOptions {
    RegisterOptions {
        name: None,
        by_capability: true,
        ..RegisterOptions::named("")
    }
}

impl Scene {
    async fn new() -> Self {
        let options = EngineOptions {
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            ..EngineOptions::default()
        };
        let owner = Engine::start(options).expect("an engine");
        let segments = (0..SEGMENTS).map(|_| {
            let memory = Exposed::map(LEN_BYTES, HugePages::Never, &mut Vec::new());
            let memory = memory.expect("memory");
            let id = owner.register(memory.clone(), &by_capability());
            Segment {
                id: id.expect("registered"),
                memory,
                model: vec![0; LEN_BYTES],
                revocations: 0,
            }
        });
        let segments = segments.collect();
        let mut askers = Vec::new();
        for epoch in HOLDERS {
            askers.push(Raw::new(owner.addresses()[0], epoch).await);
        }
        Self {
            owner,
            segments,
            askers,
            granted: Vec::new(),
            redeemed: vec![BTreeSet::new(); HOLDERS.len()],
            replaced: Vec::new(),
            seen: Seen::default(),
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Grant {
                segment,
                holder,
                rights,
                start,
                len,
            } => {
                let Segment {
                    id, revocations, ..
                } = self.segments[segment];
                let end = start + len;
                let token = self.owner.grant(id, HOLDERS[holder], rights, start..end);
                self.granted.push(Granted {
                    token: token.expect("granted"),
                    segment: id,
                    revocations,
                    holder,
                    rights,
                    start,
                    end,
                });
            }
            Step::Redeem(index, holder) if !self.granted.is_empty() => {
                let index = index.index(self.granted.len());
                self.redeem(index, holder).await;
            }
            Step::Redeem(..) => {}
            Step::Access {
                segment,
                holder,
                way,
                at,
                len,
            } => self.access(segment, holder, way, at, len).await,
            Step::Revoke(segment) => {
                assert!(self.owner.revoke(self.segments[segment].id));
                self.segments[segment].revocations += 1;
            }
            Step::Replace(segment) => {
                let segment = &mut self.segments[segment];
                let memory = self
                    .owner
                    .unregister(segment.id)
                    .await
                    .expect("it is there");
                self.replaced.push(segment.id);
                let id = self.owner.register(memory, &by_capability());
                segment.id = id.expect("registered");
                segment.revocations = 0;
            }
            Step::Lose(holder) => {
                let address = self.owner.addresses()[0];
                drop(self.askers.remove(holder));
                time::sleep(Duration::from_secs(1)).await;
                let asker = Raw::new(address, HOLDERS[holder]).await;
                self.askers.insert(holder, asker);
                self.redeemed[holder].clear();
            }
        }
    }

    /// Whether what was granted holds still, as a refusal if not.
    fn holds(&self, granted: &Granted) -> Result<(), Refusal> {
        let mut segments = self.segments.iter();
        let segment = segments.find(|segment| segment.id == granted.segment);
        match segment {
            None => Err(Refusal::Stale),
            Some(segment) if segment.revocations != granted.revocations => Err(Refusal::Revoked),
            Some(_) => Ok(()),
        }
    }

    async fn redeem(&mut self, index: usize, holder: usize) {
        let granted = &self.granted[index];
        let expected = match self.holds(granted) {
            Err(Refusal::Stale) => Some(Refusal::Stale),
            _ if granted.holder != holder => Some(Refusal::BadCapability),
            holds => holds.err(),
        };
        let answer = self.askers[holder].redeem(granted.token.as_bytes()).await;
        assert_eq!(answer, expected, "the token {index} by {holder}");
        if answer.is_none() {
            self.redeemed[holder].insert(index);
        }
        self.see(answer);
    }

    /// Why an access is refused, if it is.
    fn judge(&self, id: SegmentId, holder: usize, way: Way, at: u64, len: u32) -> Option<Refusal> {
        let wanted = match way {
            Way::Read => Rights::READ,
            Way::Write => Rights::WRITE,
        };
        let mut best = (0, Some(Refusal::NoCapability));
        for &index in &self.redeemed[holder] {
            let granted = &self.granted[index];
            if granted.segment != id {
                continue;
            }
            let end = at + u64::from(len);
            let verdict = match self.holds(granted) {
                Err(refusal) => (1, Some(refusal)),
                Ok(()) if !granted.rights.allow(wanted) => (2, Some(Refusal::Forbidden)),
                Ok(()) if at < granted.start || end > granted.end => (3, Some(Refusal::OutOfRange)),
                Ok(()) => (4, None),
            };
            if verdict.0 > best.0 {
                best = verdict;
            }
        }
        best.1
    }

    async fn access(&mut self, segment: usize, holder: usize, way: Way, at: u64, len: u32) {
        let id = self.segments[segment].id;
        let expected = self.judge(id, holder, way, at, len);
        let answer = self.askers[holder].reach(way, id, at, len).await;
        assert_eq!(answer, expected, "{holder}: {way:?} {len} at {at} of {id}");
        if answer.is_none() && way == Way::Write {
            let first = usize::try_from(at).expect("short");
            self.segments[segment].model[first..first + len as usize].fill(WRITTEN);
        }
        self.see(answer);
        if let Some(&gone) = self.replaced.last() {
            let answer = self.askers[holder].reach(way, gone, at, len).await;
            assert_eq!(answer, Some(Refusal::Stale));
        }
        for segment in &self.segments {
            assert_eq!(segment.memory.to_vec(), segment.model);
        }
    }

    fn see(&mut self, answer: Option<Refusal>) {
        match answer {
            None => self.seen.done += 1,
            Some(refusal) => {
                self.seen.refused.insert(format!("{refusal:?}"));
            }
        }
    }
}

fn play(steps: Vec<Step>) -> Seen {
    let options = WorldOptions {
        short_receives_per_mille: 0,
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(1, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let played = world.spawn(process, 0, move || async move {
        let mut scene = Scene::new().await;
        for step in steps {
            scene.take(step).await;
        }
        scene.seen
    });
    let until = world.now() + Duration::from_secs(3600);
    assert!(world.run_until(until, || played.is_there()));
    played.take().expect("it is there")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn capabilities_allow_what_the_model_allows(steps in steps()) {
        play(steps);
    }
}

/// The steps above reach every answer, so that none of them is right by never being given.
#[test]
fn the_model_is_asked_everything() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut done = 0;
    let mut refused = BTreeSet::new();
    for _ in 0..40 {
        let tree = steps().new_tree(&mut runner).expect("steps");
        let seen = play(tree.current());
        done += seen.done;
        refused.extend(seen.refused);
    }
    let expected = [
        "BadCapability",
        "Forbidden",
        "NoCapability",
        "OutOfRange",
        "Revoked",
        "Stale",
    ];
    assert!(done > 0);
    assert_eq!(refused, expected.map(str::to_owned).into());
}
