//! The rules of posting, as properties: whatever is posted in whatever sizes, and whatever goes wrong.

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use lunette_runtime::{Idle, time};
    use lunette_verbs::sim::Fault;
    use lunette_verbs::{
        CompletionQueue, Patience, QueuePair, QueueSizes, RequestError, SetupError,
    };
    use lunette_verbs_proto::handshake::Peer;
    use lunette_verbs_proto::status::Status;
    use proptest::prelude::*;

    use crate::fabric::{sizes, two_adapters};
    use crate::rig::{self, ALL, End, connect, soon};

    /// Requests of one doorbell.
    const DOORBELL_REQUESTS_MAX: u64 = 32;

    /// Runs a case on a core of its own, and brings what it saw back.
    fn seen<T, F>(case: impl FnOnce() -> F + Send) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        rig::on_core(Idle::Latency, || {
            let case = case();
            async move { sender.send(case.await).expect("the receiver waits") }
        });
        receiver.recv().expect("the case ended")
    }

    /// A fault that strikes one request.
    fn fault() -> impl Strategy<Value = Fault> {
        prop_oneof![
            Just(Fault::ReceiverNotReady),
            Just(Fault::RetryExceeded),
            Just(Fault::Flush),
            Just(Fault::RemoteAccess),
            Just(Fault::CompletionOverrun),
            // Codes that no manual names survive too.
            (1..u32::MAX).prop_map(Fault::Code),
        ]
    }

    /// Writes in bursts, each awaited before the next one.
    async fn bursts(bursts: Vec<u32>) -> (u64, u64, u64) {
        let (_fabric, a, b) = two_adapters(1);
        let (one, other) = connect(&a, &b, sizes(128)).await;
        for burst in bursts {
            let write = |_| one.pair.write_inline(&[1], other.window.remote(), soon());
            let requests: Vec<_> = (0..burst).map(write).collect();
            for request in requests {
                assert_eq!(request.await.0, Ok(()));
            }
        }
        let counts = one.pair.counts();
        assert_eq!(counts.posted, counts.retired);
        (counts.posted, counts.doorbells, counts.signalled)
    }

    /// A write of so many inline bytes.
    async fn inline(limit: u32, len: usize) -> Result<(), RequestError> {
        let (_fabric, a, b) = two_adapters(2);
        let sizes = QueueSizes {
            inline_bytes: limit,
            ..sizes(4)
        };
        let (one, other) = connect(&a, &b, sizes).await;
        let remote = other.window.remote();
        let bytes = vec![7; len];
        let (outcome, _) = one.pair.write_inline(&bytes, remote, soon()).await;
        let written = if outcome.is_ok() { len } else { 0 };
        assert_eq!(other.seen(0, 128)[..written], bytes[..written]);
        assert!(
            other
                .seen(written, 128 - written)
                .iter()
                .all(|byte| *byte == 0)
        );
        outcome
    }

    /// Fills queue pairs that share a completion queue of just their depths, and breaks them all
    /// before anything completes: what comes back.
    async fn flush_all(depths: Vec<(u32, u32)>) {
        let (fabric, a, b) = two_adapters(3);
        let entries = depths
            .iter()
            .map(|(sends, receives)| sends + receives)
            .sum();
        let queue = CompletionQueue::new(&a, entries).expect("a queue");
        let (rig, other) = connect(&a, &b, sizes(2)).await;
        // Each step takes for ever, so that nothing is done before the end.
        fabric.inject(0, Fault::Slow { steps: u32::MAX });
        let mut pairs = Vec::new();
        for (sends, receives) in depths {
            let sizes = QueueSizes {
                sends,
                receives,
                inline_bytes: 8,
            };
            let mut random = rig::random();
            let own = QueuePair::new(&a, &queue, sizes, ALL, &mut random).expect("room for all");
            let sizes = QueueSizes { sends: 2, ..sizes };
            let far = CompletionQueue::new(&b, 2 + receives).expect("a queue");
            let far = QueuePair::new(&b, &far, sizes, ALL, &mut random).expect("the other end");
            let (own, far) = rig::join(own, far).await;
            for _ in 0..receives {
                own.post_receive(rig.piece(&[0])).expect("room");
            }
            let write = |_| own.write_inline(&[1], other.window.remote(), soon());
            let requests: Vec<_> = (0..sends).map(write).collect();
            pairs.push((own, far, requests, receives));
        }
        time::yield_now().await;
        pairs.iter().for_each(|(own, ..)| own.abort());
        for (own, _far, requests, receives) in pairs {
            for request in requests {
                assert_eq!(request.await.0, Err(RequestError::Flushed));
            }
            for _ in 0..receives {
                let arrival = own.arrival().await.expect("a receive comes back");
                assert_eq!(arrival.status, Status::Flushed);
            }
            assert_eq!(own.arrival().await.err(), Some(RequestError::Broken));
        }
        let counts = queue.counts();
        assert_eq!((counts.completions, counts.strays), (u64::from(entries), 0));
        assert_eq!(a.next_event(), None, "the queue held them all");
    }

    /// Requests of which one meets a fault: their outcomes.
    async fn struck(fault: Fault, before: u32, behind: u32) -> Vec<Result<(), RequestError>> {
        let (fabric, a, b) = two_adapters(4);
        let (one, other) = connect(&a, &b, sizes(64)).await;
        let write = |one: &End| {
            let remote = other.window.remote();
            one.pair.write(one.piece(&[1; 8]), 8, remote, soon())
        };
        let mut outcomes = Vec::new();
        for _ in 0..before {
            outcomes.push(write(&one).await.0);
        }
        fabric.inject(0, fault);
        let requests: Vec<_> = (0..=behind).map(|_| write(&one)).collect();
        for request in requests {
            let (outcome, piece) = request.await;
            assert!(piece.is_some(), "memory comes back in every case");
            outcomes.push(outcome);
        }
        let late = write(&one).await;
        assert_eq!(
            (late.0, late.1.is_some()),
            (Err(RequestError::Broken), true)
        );
        drop(late);
        assert_eq!(one.slab.used_bytes(), 0, "each piece is freed");
        let counts = one.pair.counts();
        assert_eq!(counts.posted, counts.retired, "each request ends once");
        outcomes
    }

    /// Requests of one doorbell, of which the adapter takes some: their outcomes, and how many the
    /// peer has seen.
    async fn taken_in_part(count: u32, taken: u32) -> (Vec<Result<(), RequestError>>, usize) {
        let (fabric, a, b) = two_adapters(6);
        let (one, other) = connect(&a, &b, sizes(64)).await;
        fabric.inject(0, Fault::PartialPost { taken });
        let remote = other.window.remote();
        let write = |n: u32| {
            let to = remote.at(u64::from(n) * 8);
            one.pair.write(one.piece(&[1; 8]), 8, to, soon())
        };
        let requests: Vec<_> = (0..count).map(write).collect();
        let mut outcomes = Vec::new();
        for request in requests {
            let (outcome, piece) = request.await;
            assert!(piece.is_some(), "memory comes back in every case");
            outcomes.push(outcome);
        }
        assert_eq!(one.pair.is_open(), taken >= count);
        let counts = one.pair.counts();
        assert_eq!(counts.posted, u64::from(count.min(taken)));
        assert_eq!((counts.retired, counts.doorbells), (count.into(), 1));
        let seen = other.seen(0, 8 * count as usize);
        (outcomes, seen.iter().filter(|byte| **byte == 1).count() / 8)
    }

    /// Whether a connection is this patient.
    async fn is_taken(patience: Patience) -> Result<(), SetupError> {
        let (_fabric, a, b) = two_adapters(5);
        let queue = |context| CompletionQueue::new(context, 16).expect("a queue");
        let sizes = QueueSizes {
            sends: 2,
            receives: 1,
            inline_bytes: 0,
        };
        let mut random = rig::random();
        let one = QueuePair::new(&a, &queue(&a), sizes, ALL, &mut random).expect("one");
        let other = QueuePair::new(&b, &queue(&b), sizes, ALL, &mut random).expect("other");
        let card = other.card();
        let agreement = one.card().capabilities.agree(&card.capabilities);
        let peer = Peer {
            card,
            agreement,
            epoch: 1,
        };
        one.connect(peer, patience).map(drop)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_turn_rings_one_doorbell_per_full_list_and_asks_for_its_last(
            sizes in prop::collection::vec(1..=128_u32, 1..6)
        ) {
            let lists: u64 = sizes.iter().map(|n| u64::from(*n).div_ceil(DOORBELL_REQUESTS_MAX)).sum();
            let total = sizes.iter().map(|n| u64::from(*n)).sum::<u64>();
            let (posted, doorbells, signalled) = seen(move || bursts(sizes));
            prop_assert_eq!((posted, doorbells), (total, lists));
            // The last of each list; a run of half the depth is never reached.
            prop_assert_eq!(signalled, lists);
        }

        #[test]
        fn inline_bytes_are_taken_up_to_their_limit(limit in 0..=64_u32, len in 0..=80_usize) {
            let outcome = seen(move || inline(limit, len));
            let expected = if len <= limit as usize { Ok(()) } else { Err(RequestError::Length) };
            prop_assert_eq!(outcome, expected);
        }

        #[test]
        fn a_completion_queue_holds_everything_that_can_be_flushed_at_once(
            depths in prop::collection::vec(((1..5_u32).prop_map(|bits| 1 << bits), 1..6_u32), 1..5)
        ) {
            seen(move || flush_all(depths));
        }

        #[test]
        fn whatever_strikes_each_request_ends_once_and_gives_its_memory_back(
            fault in fault(), before in 0..40_u32, behind in 0..40_u32
        ) {
            let outcomes = seen(move || struck(fault, before, behind));
            let before = before as usize;
            prop_assert!(outcomes[..before].iter().all(Result::is_ok));
            prop_assert!(outcomes[before..].iter().all(Result::is_err));
            if let Fault::Code(code) = fault {
                let status = Status::from_code(code);
                let own = if status == Status::Flushed {
                    RequestError::Flushed
                } else {
                    RequestError::Failed(status)
                };
                prop_assert_eq!(outcomes[before], Err(own));
            }
        }

        #[test]
        fn what_an_adapter_does_not_take_comes_back_and_has_no_effect(
            count in 1..=32_u32, taken in 0..40_u32
        ) {
            let (outcomes, seen) = seen(move || taken_in_part(count, taken));
            let (first, rest) = outcomes.split_at(count.min(taken) as usize);
            prop_assert!(rest.iter().all(|outcome| *outcome == Err(RequestError::Refused)));
            prop_assert!(seen <= first.len());
            // Nobody would be told of the end of the others, and so the queue pair breaks.
            let expected = if rest.is_empty() { Ok(()) } else { Err(RequestError::Flushed) };
            prop_assert!(first.iter().all(|outcome| *outcome == expected), "{first:?}");
        }

        #[test]
        fn nobody_is_patient_for_ever(
            timeout_exponent in prop_oneof![0..=2_u8, 28..=40_u8],
            retries in 0..=9_u8,
            receiver_not_ready_retries in 0..=9_u8,
        ) {
            let patience = Patience { timeout_exponent, retries, receiver_not_ready_retries };
            let ends = (1..=31).contains(&timeout_exponent)
                && retries <= 7
                && receiver_not_ready_retries < 7;
            let expected = if ends { Ok(()) } else { Err(SetupError::Endless) };
            prop_assert_eq!(seen(move || is_taken(patience)), expected);
        }
    }
}
