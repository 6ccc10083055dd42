//! The accounting of a send queue against a model of an adapter that is stricter than any: it
//! refuses what it has no room for, says nothing of what was not asked for, flushes everything once
//! it failed, and may stay silent for ever.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::time::Duration;

    use lunette_runtime_core::time::Time;
    use lunette_verbs_proto::send_queue::{
        Expiry, FLUSH_MAX, Outcome, Posted, Retired, SendQueue, StageError,
    };
    use lunette_verbs_proto::status::Status;
    use proptest::prelude::*;

    const DEPTH: u32 = 8;

    #[derive(Clone, Debug)]
    enum Op {
        Stage {
            ttl_ns: u32,
        },
        /// Post the batch; the adapter takes so many, at most.
        Post {
            takes: u32,
        },
        /// The adapter executes so many.
        Execute {
            count: u32,
        },
        /// The adapter fails at what it would execute next.
        Fail {
            code: u32,
        },
        /// The driver takes so many completions.
        Poll {
            count: u32,
        },
        /// Time passes, and the driver looks at its deadlines.
        Pass {
            ns: u32,
        },
        /// A completion that nobody asked for.
        Forge {
            sequence: u32,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (1..5000_u32).prop_map(|ttl_ns| Op::Stage { ttl_ns }),
            6 => (0..12_u32).prop_map(|takes| Op::Post { takes }),
            6 => (1..6_u32).prop_map(|count| Op::Execute { count }),
            1 => prop::sample::select(vec![1, 4, 10, 12, 13, 77]).prop_map(|code| Op::Fail { code }),
            6 => (1..6_u32).prop_map(|count| Op::Poll { count }),
            2 => (1..2000_u32).prop_map(|ns| Op::Pass { ns }),
            1 => any::<u32>().prop_map(|sequence| Op::Forge { sequence }),
        ]
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fate {
        Staged,
        WithAdapter,
        Executed,
        Failed(u32),
        Flushed,
    }

    /// The adapter and what it did to each request.
    #[derive(Debug)]
    struct Adapter {
        queue: VecDeque<(u32, bool)>,
        completions: VecDeque<(u32, u32)>,
        is_broken: bool,
    }

    impl Adapter {
        fn execute(&mut self, fates: &mut BTreeMap<u32, Fate>) {
            let Some((sequence, is_signalled)) = self.queue.pop_front() else {
                return;
            };
            let fate = if self.is_broken {
                Fate::Flushed
            } else {
                Fate::Executed
            };
            fates.insert(sequence, fate);
            if self.is_broken {
                self.completions
                    .push_back((sequence, Status::Flushed.code()));
            } else if is_signalled {
                self.completions.push_back((sequence, 0));
            }
        }

        fn fail(&mut self, code: u32, fates: &mut BTreeMap<u32, Fate>) {
            if self.is_broken {
                return;
            }
            if let Some((sequence, _)) = self.queue.pop_front() {
                fates.insert(sequence, Fate::Failed(code));
                self.completions.push_back((sequence, code));
                self.is_broken = true;
            }
        }
    }

    struct World {
        queue: SendQueue,
        adapter: Adapter,
        now: Time,
        fates: BTreeMap<u32, Fate>,
        deadlines: BTreeMap<u32, Time>,
        next_retired: u32,
        /// The adapter got a request that asks for nothing at the end of a batch.
        needs_marker: bool,
        is_destroyed: bool,
    }

    impl World {
        fn new(first: u32) -> Self {
            Self {
                queue: SendQueue::new(DEPTH, first),
                adapter: Adapter {
                    queue: VecDeque::new(),
                    completions: VecDeque::new(),
                    is_broken: false,
                },
                now: Time::from_ns(1),
                fates: BTreeMap::new(),
                deadlines: BTreeMap::new(),
                next_retired: first,
                needs_marker: false,
                is_destroyed: false,
            }
        }

        fn retired(&mut self, out: &[Retired]) {
            for retired in out {
                let fate = self
                    .fates
                    .remove(&retired.sequence)
                    .expect("each ends once");
                let deadline = self.deadlines.remove(&retired.sequence).expect("staged");
                if retired.outcome == Outcome::Refused {
                    assert_eq!(fate, Fate::Staged, "a refused one has had no effect");
                    continue;
                }
                assert_eq!(retired.sequence, self.next_retired, "in order");
                self.next_retired = self.next_retired.wrapping_add(1);
                match retired.outcome {
                    Outcome::Done => assert_eq!(fate, Fate::Executed),
                    Outcome::Failed(status) => assert_eq!(fate, Fate::Failed(status.code())),
                    Outcome::Flushed => assert_eq!(fate, Fate::Flushed),
                    Outcome::TimedOut => {
                        assert_eq!(fate, Fate::Flushed);
                        assert!(deadline <= self.now, "only a passed deadline is one");
                    }
                    Outcome::Lost => assert!(self.is_destroyed, "the adapter spoke of each"),
                    Outcome::Refused => unreachable!("handled above"),
                }
            }
        }

        fn post(&mut self, takes: u32) {
            self.queue.seal();
            let (first, count) = self.queue.batch();
            let room = DEPTH - u32::try_from(self.adapter.queue.len()).unwrap();
            // What the adapter executed in silence still takes a place until it is told apart.
            assert!(count <= room, "more was posted than the adapter holds");
            let accepted = takes.min(count);
            let mut run = 0;
            for ahead in 0..accepted {
                let sequence = first.wrapping_add(ahead);
                let is_signalled = self.queue.is_signalled(sequence);
                run = if is_signalled { 0 } else { run + 1 };
                assert!(run <= DEPTH / 2, "completions are asked for often enough");
                self.adapter.queue.push_back((sequence, is_signalled));
                self.fates.insert(sequence, Fate::WithAdapter);
            }
            let mut out = Vec::new();
            let Posted {
                refused,
                needs_marker,
            } = self.queue.posted(accepted, &mut out);
            assert_eq!(refused, count - accepted);
            if accepted > 0 {
                assert_eq!(needs_marker, run > 0);
            }
            self.needs_marker = needs_marker;
            self.retired(&out);
        }

        fn poll(&mut self) {
            let Some((sequence, code)) = self.adapter.completions.pop_front() else {
                return;
            };
            let mut out = Vec::new();
            let status = Status::from_code(code);
            self.queue
                .complete(self.now, sequence, status, &mut out)
                .expect("in flight");
            assert_eq!(out.last().map(|retired| retired.sequence), Some(sequence));
            assert!(
                code == 0 || !self.queue.is_open(),
                "every failure breaks it"
            );
            self.retired(&out);
        }

        fn expire(&mut self) {
            match self.queue.expire(self.now) {
                None => {}
                Some(Expiry::Break) => {
                    assert!(self.deadlines.values().any(|at| *at <= self.now));
                    self.adapter.is_broken = true;
                }
                Some(Expiry::Destroy) => self.destroy(),
            }
        }

        fn destroy(&mut self) {
            self.is_destroyed = true;
            self.adapter.queue.clear();
            self.adapter.completions.clear();
            let mut out = Vec::new();
            self.queue.destroyed(&mut out);
            self.retired(&out);
        }

        fn apply(&mut self, op: &Op) {
            match *op {
                Op::Stage { ttl_ns } => {
                    let (deadline, credits) = (
                        self.now + Duration::from_nanos(ttl_ns.into()),
                        self.queue.credits(),
                    );
                    match self.queue.stage(deadline) {
                        Ok(sequence) => {
                            assert!(credits > 0 && self.queue.credits() == credits - 1);
                            self.fates.insert(sequence, Fate::Staged);
                            self.deadlines.insert(sequence, deadline);
                        }
                        Err(StageError::Full) => assert_eq!(self.fates.len(), DEPTH as usize),
                        Err(StageError::Broken) => assert!(!self.queue.is_open()),
                    }
                }
                Op::Post { takes } => self.post(takes),
                Op::Execute { count } => {
                    (0..count).for_each(|_| self.adapter.execute(&mut self.fates))
                }
                Op::Fail { code } => self.adapter.fail(code, &mut self.fates),
                Op::Poll { count } => (0..count).for_each(|_| self.poll()),
                Op::Pass { ns } => {
                    self.now = self.now + Duration::from_nanos(ns.into());
                    self.expire();
                }
                Op::Forge { sequence } => {
                    if !matches!(self.fates.get(&sequence), Some(fate) if *fate != Fate::Staged) {
                        let mut out = Vec::new();
                        assert!(
                            self.queue
                                .complete(self.now, sequence, Status::Success, &mut out)
                                .is_err()
                        );
                        assert!(out.is_empty());
                    }
                }
            }
            assert_eq!(self.queue.unretired() as usize, self.fates.len());
            assert_eq!(self.queue.credits(), DEPTH - self.queue.unretired());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn each_request_ends_once_in_order_and_as_the_adapter_did_it(
            ops in prop::collection::vec(op(), 1..120),
            first in prop::sample::select(vec![0, u32::MAX - 3, 1 << 20]),
        ) {
            let mut world = World::new(first);
            for op in &ops {
                if world.is_destroyed {
                    break;
                }
                world.apply(op);
            }
            // The adapter does all that it has; then nobody may be left waiting.
            if !world.is_destroyed {
                world.post(u32::MAX);
                (0..DEPTH).for_each(|_| world.adapter.execute(&mut world.fates));
                (0..DEPTH).for_each(|_| world.poll());
                prop_assert!(world.needs_marker || world.fates.is_empty(), "{:?}", world.fates);
                // A tail without a marker is found by its deadline.
                world.now = world.now + Duration::from_secs(1);
                world.expire();
                world.now = world.now + FLUSH_MAX;
                world.expire();
                prop_assert!(world.fates.is_empty(), "{:?}", world.fates);
            }
        }

        #[test]
        fn a_silent_adapter_keeps_nothing_for_ever(count in 1..DEPTH, ttl_ns in 1..1000_u32) {
            let mut world = World::new(0);
            for _ in 0..count {
                world.apply(&Op::Stage { ttl_ns });
            }
            world.post(count);
            for _ in 0..4 {
                if let Some(at) = world.queue.timeout() {
                    world.now = world.now.max(at);
                    world.expire();
                }
            }
            prop_assert!(world.is_destroyed && world.fates.is_empty());
        }
    }
}
