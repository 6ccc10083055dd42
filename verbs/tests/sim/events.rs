//! What devices say outside of completions reaches whom it names, at once.

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use lunette_runtime::{Idle, OpError, time};
    use lunette_verbs::events::EVENTS_KEPT_MAX;
    use lunette_verbs::sim::{Fabric, Fault, Raised};
    use lunette_verbs::{
        Cause, Context, DeviceEvent, PairEvent, PairNotices, QueuePair, QueueSizes, Ready, Request,
        RequestError, SetupError, SharedReceives,
    };
    use lunette_verbs_proto::status::Status;
    use proptest::prelude::*;
    use rustix::io::Errno;

    use crate::fabric::two_adapters;
    use crate::rig::{self, ALL, End, connect, join, soon};

    const SIZES: QueueSizes = QueueSizes {
        sends: 8,
        receives: 4,
        inline_bytes: 64,
    };

    /// Two adapters, the first so slow that nothing is done before its deadline.
    struct Rig {
        fabric: Fabric,
        a: Context,
        b: Context,
        one: End,
        other: End,
    }

    impl Rig {
        async fn new(seed: u64) -> Self {
            let (fabric, a, b) = two_adapters(seed);
            let (one, other) = connect(&a, &b, SIZES).await;
            fabric.inject(0, Fault::Slow { steps: u32::MAX });
            Self {
                fabric,
                a,
                b,
                one,
                other,
            }
        }

        fn write(&self, pair: &QueuePair<Ready>) -> Request {
            let remote = self.other.window.remote();
            pair.write(self.one.piece(&[1; 8]), 8, remote, soon())
        }

        /// One more queue pair of each adapter, with the completion queues of the first.
        async fn join(&self) -> (QueuePair<Ready>, QueuePair<Ready>) {
            let mut random = rig::random();
            let one = QueuePair::new(&self.a, &self.one.queue, SIZES, ALL, &mut random);
            let other = QueuePair::new(&self.b, &self.other.queue, SIZES, ALL, &mut random);
            join(one.expect("room"), other.expect("room")).await
        }

        /// Waits until the adapter has so many requests of the first queue pair: a turn posts what
        /// all have staged.
        async fn posted(&self, count: u64) {
            while self.one.pair.counts().posted < count {
                time::yield_now().await;
            }
        }

        fn raise(&self, event: Raised) {
            self.fabric.raise(0, event);
        }
    }

    fn number(pair: &QueuePair<Ready>) -> u32 {
        pair.number().expect("it has not ended")
    }

    /// A core that sleeps when it can, so that what wakes it is seen.
    fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
        rig::on_core(Idle::Efficient, test);
    }

    /// Each request ends for this cause, with its memory, long before its deadline.
    async fn all_declared(requests: Vec<Request>, cause: Cause) {
        let started = time::now();
        for request in requests {
            let (outcome, piece) = request.await;
            assert_eq!(outcome, Err(RequestError::Declared(cause)));
            assert!(piece.is_some(), "memory comes back in every case");
        }
        assert!(time::now() < started + Duration::from_secs(10));
    }

    #[test]
    fn a_queue_pair_that_is_declared_broken_ends_at_once_and_alone() {
        for (event, cause) in [
            (PairEvent::Fatal, Cause::Fatal),
            (PairEvent::InvalidRequest, Cause::InvalidRequest),
            (PairEvent::Access, Cause::Access),
        ] {
            on_core(move || async move {
                let rig = Rig::new(1).await;
                let (near, far) = rig.join().await;
                let pair = &rig.one.pair;
                pair.post_receive(rig.one.piece(&[0; 8])).expect("room");
                let requests = (0..5).map(|_| rig.write(pair)).collect();
                rig.posted(5).await;
                rig.raise(Raised::Pair(number(pair), event));
                all_declared(requests, cause).await;
                assert_eq!((pair.cause(), pair.is_open()), (Some(cause), false));
                assert_eq!(rig.write(pair).await.0, Err(RequestError::Broken));
                let arrival = pair.arrival().await.expect("the receive comes back");
                assert_eq!(arrival.status, Status::Flushed);
                assert_eq!(pair.arrival().await.err(), Some(RequestError::Broken));
                rig.fabric.inject(0, Fault::Slow { steps: 1 });
                assert_eq!(rig.write(&near).await.0, Ok(()), "the others go on");
                assert_eq!((near.cause(), far.cause()), (None, None));
                assert_eq!(pair.counts().deadlines, 0);
                assert_eq!(rig.a.next_event(), None, "the device is not concerned");
            });
        }
    }

    #[test]
    fn notices_are_counted_and_change_nothing() {
        on_core(|| async {
            let rig = Rig::new(2).await;
            rig.fabric.inject(0, Fault::Slow { steps: 1 });
            let pair = &rig.one.pair;
            for event in [
                PairEvent::Established,
                PairEvent::SendQueueDrained,
                PairEvent::PathMigrated,
                PairEvent::PathMigrationFailed,
            ] {
                rig.raise(Raised::Pair(number(pair), event));
            }
            assert_eq!(rig.write(pair).await.0, Ok(()));
            let expected = PairNotices {
                established: 1,
                drained: 1,
                migrated: 1,
                not_migrated: 1,
                last_receives: 0,
            };
            assert_eq!((pair.notices(), pair.cause()), (expected, None));
            assert_eq!(rig.other.pair.notices(), PairNotices::default());
        });
    }

    #[test]
    fn the_last_shared_receive_breaks_who_has_nothing_else_to_tell_it() {
        on_core(|| async {
            let rig = Rig::new(3).await;
            let pool = SharedReceives::new(&rig.a, &rig.one.queue, 2).expect("a pool");
            let mut random = rig::random();
            let near = QueuePair::sharing(&rig.a, &pool, SIZES, ALL, &mut random).expect("room");
            let far = QueuePair::new(&rig.b, &rig.other.queue, SIZES, ALL, &mut random);
            let (near, _far) = join(near, far.expect("room")).await;
            assert!(near.is_open());
            rig.raise(Raised::Pair(number(&near), PairEvent::LastReceiveTaken));
            assert_eq!(near.arrival().await.err(), Some(RequestError::Broken));
            assert_eq!((near.is_open(), near.notices().last_receives), (false, 1));
            pool.post(rig.one.piece(&[0; 8]))
                .expect("the pool is whole");
        });
    }

    #[test]
    fn a_completion_queue_that_breaks_takes_its_queue_pairs_and_no_time() {
        on_core(|| async {
            let rig = Rig::new(4).await;
            let (near, _far) = rig.join().await;
            let (apart, _) = connect(&rig.a, &rig.b, SIZES).await;
            let requests = [&rig.one.pair, &near].map(|pair| rig.write(pair));
            rig.posted(1).await;
            rig.raise(Raised::CompletionQueue(number(&near)));
            all_declared(requests.into(), Cause::CompletionQueue).await;
            for pair in [&rig.one.pair, &near] {
                assert_eq!(pair.cause(), Some(Cause::CompletionQueue));
            }
            assert_eq!((apart.pair.cause(), apart.pair.is_open()), (None, true));
            let queue = &rig.one.queue;
            let late = QueuePair::new(&rig.a, queue, SIZES, ALL, &mut rig::random());
            assert_eq!(late.err(), Some(SetupError::Broken));
            let polls = queue.counts().polls;
            time::sleep(Duration::from_millis(20)).await;
            assert_eq!(queue.counts().polls, polls, "nobody asks it any more");
        });
    }

    #[test]
    fn shared_receives_that_break_take_their_queue_pairs() {
        on_core(|| async {
            let rig = Rig::new(5).await;
            let pool = SharedReceives::new(&rig.a, &rig.one.queue, 2).expect("a pool");
            let mut random = rig::random();
            let near = QueuePair::sharing(&rig.a, &pool, SIZES, ALL, &mut random).expect("room");
            let far = QueuePair::new(&rig.b, &rig.other.queue, SIZES, ALL, &mut random);
            let (near, _far) = join(near, far.expect("room")).await;
            pool.post(rig.one.piece(&[0; 8])).expect("room");
            let requests = (0..3).map(|_| rig.write(&near)).collect();
            let unconcerned = rig.write(&rig.one.pair);
            rig.posted(1).await;
            rig.raise(Raised::SharedReceives(number(&near)));
            let declared = RequestError::Declared(Cause::SharedReceives);
            assert_eq!(pool.arrival().await.err(), Some(declared));
            all_declared(requests, Cause::SharedReceives).await;
            let refused = pool.post(rig.one.piece(&[0; 8])).expect_err("it is broken");
            assert_eq!(refused.0, RequestError::Broken);
            rig.fabric.inject(0, Fault::Slow { steps: 1 });
            assert_eq!(unconcerned.await.0, Ok(()));
        });
    }

    #[test]
    fn a_device_that_is_lost_takes_everything_and_says_so_once() {
        on_core(|| async {
            let rig = Rig::new(6).await;
            let (apart, _) = connect(&rig.a, &rig.b, SIZES).await;
            let requests = [&rig.one.pair, &apart.pair].map(|pair| rig.write(pair));
            rig.posted(1).await;
            rig.raise(Raised::DeviceLost);
            assert_eq!(rig.a.event().await, Ok(DeviceEvent::DeviceLost));
            all_declared(requests.into(), Cause::DeviceLost).await;
            assert_eq!(rig.a.event().await, Err(OpError::Os(Errno::NODEV)));
            assert!(rig.other.pair.is_open(), "the other device is whole");
            assert_eq!(rig.b.next_event(), None);
        });
    }

    #[test]
    fn events_end_with_what_they_name_and_those_that_nobody_wants_are_bounded() {
        on_core(|| async {
            let rig = Rig::new(7).await;
            for event in [PairEvent::Access, PairEvent::Established] {
                rig.raise(Raised::Pair(number(&rig.one.pair), event));
            }
            let Rig { fabric, a, one, .. } = rig;
            drop(one);
            assert_eq!(a.next_event(), None);
            let toggle = |count| {
                for _ in 0..count {
                    fabric.inject(0, Fault::LinkDown);
                }
            };
            let told = || std::iter::from_fn(|| a.next_event()).count();
            toggle(EVENTS_KEPT_MAX);
            assert_eq!(told(), EVENTS_KEPT_MAX);
            fabric.inject(0, Fault::LinkUp);
            toggle(EVENTS_KEPT_MAX);
            assert_eq!(
                a.next_event(),
                Some(DeviceEvent::PortDown),
                "the oldest went"
            );
            assert_eq!(told(), EVENTS_KEPT_MAX - 1);
        });
    }

    fn breaking() -> impl Strategy<Value = Option<PairEvent>> {
        prop_oneof![
            Just(None),
            Just(Some(PairEvent::Fatal)),
            Just(Some(PairEvent::InvalidRequest)),
            Just(Some(PairEvent::Access)),
        ]
    }

    /// Writes to one place each, an event (of the queue pair, or of its queue) after some turns:
    /// which writes say that they are done, and which are.
    async fn interrupted(seed: u64, event: Option<PairEvent>, turns: u32) -> Vec<(bool, bool)> {
        let rig = Rig::new(seed).await;
        rig.fabric.inject(0, Fault::Slow { steps: 2 });
        let (pair, remote) = (&rig.one.pair, rig.other.window.remote());
        let requests: Vec<_> = (0..8)
            .map(|at| pair.write(rig.one.piece(&[1; 8]), 8, remote.at(8 * at), soon()))
            .collect();
        for _ in 0..turns {
            time::yield_now().await;
        }
        rig.raise(match event {
            None => Raised::CompletionQueue(number(pair)),
            Some(event) => Raised::Pair(number(pair), event),
        });
        let cause = event.map_or(Some(Cause::CompletionQueue), PairEvent::cause);
        let cause = cause.expect("a cause");
        let mut ended = Vec::new();
        for (at, request) in requests.into_iter().enumerate() {
            let (outcome, piece) = request.await;
            assert!(piece.is_some(), "memory comes back in every case");
            let refused = Err(RequestError::Refused);
            // What the adapter flushes may be told before it says why.
            let declared = Err(RequestError::Declared(cause));
            let flushed = Err(RequestError::Flushed);
            let is_known = [Ok(()), refused, declared, flushed].contains(&outcome);
            assert!(is_known, "{outcome:?}, seed {seed}");
            let is_there = rig.other.seen(8 * at, 8) == [1; 8];
            assert!(outcome != refused || !is_there, "nothing was done");
            ended.push((outcome.is_ok(), is_there));
        }
        while pair.cause().is_none() {
            time::yield_now().await;
        }
        assert_eq!(pair.cause(), Some(cause), "seed {seed}");
        let counts = pair.counts();
        assert!(counts.retired >= counts.posted, "{counts:?}");
        ended
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn whenever_a_queue_pair_is_declared_broken_what_is_said_to_be_done_is_done(
            seed: u64, event in breaking(), turns in 0..24_u32
        ) {
            let (sender, ended) = mpsc::channel();
            rig::on_core(Idle::Latency, move || async move {
                sender.send(interrupted(seed, event, turns).await).expect("the receiver waits");
            });
            let ended = ended.recv().expect("the case ended");
            prop_assert!(ended.iter().all(|(said, is_there)| !said || *is_there));
            // In order: none is said to be done behind one that is not.
            prop_assert!(ended.is_sorted_by_key(|(said, _)| !said));
        }
    }
}
