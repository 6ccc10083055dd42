//! The strict fabric in simulated worlds: virtual time, and a seed that shows the same again.

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, time};
    use lunette_verbs::sim::{Fabric, Fault, Raised};
    use lunette_verbs::{Cause, Context, PairEvent, QueueSizes, RequestError};

    use crate::rig::{End, connect, scenes, soon};

    /// Every scene in a world, over a slow link. Its hashes: of the fabric, and of the world.
    fn run(seed: u64) -> ((u64, u64), u64) {
        let mut world = World::new(seed, WorldOptions::default());
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let fabric = Fabric::new(seed);
        let done = world.spawn(process, 0, || {
            let fabric = fabric.clone();
            async move {
                let (a, b) = (fabric.add_device(), fabric.add_device());
                fabric.inject(a, Fault::Slow { steps: 5 });
                let context = |index| Context::simulated(&fabric, index).expect("added above");
                let (context, other) = (context(a), context(b));
                let (a, b) = connect(&context, &other, QueueSizes::default()).await;
                scenes::bytes_go_there_and_back(&a, &b).await;
                scenes::atomics_change_a_word(&a, &b).await;
                scenes::messages_meet_receives(&a, &b).await;
                scenes::notices_meet_receives(&a, &b).await;
                scenes::slabs_share_a_chunk(&a, &b, &context).await;
                a_failure_is_told_in_no_time(&fabric, &a, &b).await;
            }
        });
        let until = world.now() + Duration::from_secs(30);
        assert!(world.run_until(until, || done.is_there()), "seed {seed}");
        (fabric.trace(), world.trace_hash())
    }

    /// The adapter fails at a queue pair that has requests in flight, and its core sleeps meanwhile.
    async fn a_failure_is_told_in_no_time(fabric: &Fabric, a: &End, b: &End) {
        fabric.inject(0, Fault::Silence);
        let write = |_| a.pair.write_inline(&[1], b.window.remote(), soon());
        let requests: Vec<_> = (0..5).map(write).collect();
        time::sleep(Duration::from_millis(1)).await;
        let started = time::now();
        let number = a.pair.number().expect("it has not ended");
        fabric.raise(0, Raised::Pair(number, PairEvent::Fatal));
        for request in requests {
            let declared = RequestError::Declared(Cause::Fatal);
            assert_eq!(request.await.0, Err(declared));
        }
        assert!(time::now().since(started) < Duration::from_millis(1));
    }

    #[test]
    fn queue_pairs_work_in_a_world_and_a_seed_shows_it_again() {
        let first: Vec<_> = (0..5).map(run).collect();
        let second: Vec<_> = (0..5).map(run).collect();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }
}
