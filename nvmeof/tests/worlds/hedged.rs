//! Reads that are sent a second way when the first one is slow.

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::host::{HedgeCounts, HedgeDelay, HedgeOptions};
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{NamespaceOptions, RemoteNamespace};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, spawn_local, time};
    use lunette_runtime_core::random::SplitMix64;

    use crate::ends::{WORLD_MAX, address, connected, ip, options, serve, server};
    use crate::middle::{Loss, Losses, be_in_the_middle};
    use crate::model::{BLOCK_BYTES, Model, TIMEOUT};

    const PORTS: [&str; 2] = ["10.0.0.1:4420", "10.0.0.1:4421"];
    const MIDDLES: [&str; 2] = ["10.0.0.2:4420", "10.0.0.4:4420"];
    const HOST: &str = "10.0.0.3:0";
    const SLOW: Duration = Duration::from_millis(200);

    /// Runs a host of two paths, each with somebody between.
    fn between<T: 'static, F: Future<Output = T> + 'static>(
        seed: u64,
        middles: [Rc<Losses>; 2],
        at_host: impl FnOnce() -> F + 'static,
    ) -> T {
        let mut world = World::new(seed, WorldOptions::default());
        let mut process = |address| world.start(ip(address), 1, CoreOptions::default());
        let (target, host) = (process(PORTS[0]), process(HOST));
        let hosts = MIDDLES.map(&mut process);
        world.spawn(target, 0, || serve(server(Secrets::default()), &PORTS));
        for ((index, process), losses) in hosts.into_iter().enumerate().zip(middles) {
            world.spawn(process, 0, move || {
                be_in_the_middle(address(MIDDLES[index]), address(PORTS[index]), losses)
            });
        }
        let ended = world.spawn(host, 0, at_host);
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || ended.is_there());
        ended
            .take()
            .unwrap_or_else(|| unreachable!("seed {seed}: it hangs"))
    }

    fn hedged(delay: HedgeDelay, budget_percent: u8, bytes_max: usize) -> NamespaceOptions {
        NamespaceOptions {
            hedge: Some(HedgeOptions {
                delay,
                budget_percent,
                bytes_max,
            }),
            ..options(Digests::BOTH, &MIDDLES)
        }
    }

    async fn both_up(namespace: &RemoteNamespace) {
        while namespace.paths().iter().any(|path| path.state.is_none()) {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reads a block, and says how long that took.
    async fn read(namespace: &RemoteNamespace) -> Duration {
        let began = time::now();
        let region = arena().alloc(BLOCK_BYTES).expect("room");
        let read = namespace.read(0, region, TIMEOUT).await;
        let read = read.map_err(|failure| failure.error).expect("read");
        assert_eq!(read.len(), BLOCK_BYTES);
        time::now().since(began)
    }

    /// Waits until every slower request has been answered.
    async fn reaped(namespace: &RemoteNamespace) {
        while namespace.hedge_bytes() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let in_flight = namespace.paths().into_iter().map(|path| path.in_flight);
        assert_eq!(in_flight.sum::<u32>(), 0);
    }

    #[test]
    fn a_slow_path_costs_a_read_no_more_than_the_delay() {
        let middles = [(); 2].map(|()| Losses::new(Vec::new()));
        let slow = Rc::clone(&middles[0]);
        let fixed = HedgeDelay::Fixed(Duration::from_millis(20));
        let counts = between(1, middles, move || async move {
            let namespace = connected(hedged(fixed, 100, 4 * BLOCK_BYTES)).await;
            both_up(&namespace).await;
            slow.delay.set(SLOW);
            for _ in 0..20 {
                let took = read(&namespace).await;
                assert!(took < Duration::from_millis(60), "{took:?}");
                reaped(&namespace).await;
            }
            namespace.hedge_counts()
        });
        // In turn, every second one goes by the slow path.
        let expected = HedgeCounts {
            reads: 20,
            sent: 10,
            won: 10,
            withheld: 0,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn memory_beyond_the_limit_is_not_taken() {
        let middles = [(); 2].map(|()| Losses::new(Vec::new()));
        let slow = Rc::clone(&middles[0]);
        let fixed = HedgeDelay::Fixed(Duration::from_millis(20));
        let counts = between(2, middles, move || async move {
            let namespace = connected(hedged(fixed, 100, 2 * BLOCK_BYTES)).await;
            both_up(&namespace).await;
            slow.delay.set(SLOW);
            // What is slow keeps its memory: the third read by that path has to wait for it.
            let mut slow_reads = 0;
            for _ in 0..6 {
                slow_reads += u32::from(read(&namespace).await >= SLOW);
                let bytes = namespace.hedge_bytes();
                assert!(bytes <= 2 * BLOCK_BYTES, "{bytes}");
            }
            assert_eq!(slow_reads, 1);
            let counts = namespace.hedge_counts();
            reaped(&namespace).await;
            counts
        });
        assert!(counts.sent == 2 && counts.withheld == 1, "{counts:?}");
    }

    #[test]
    fn what_is_slow_is_learnt_and_second_requests_stay_within_their_budget() {
        let middles = [(); 2].map(|()| Losses::new(Vec::new()));
        let slow = Rc::clone(&middles[0]);
        let learnt = HedgeDelay::Learnt {
            permille: 990,
            least: Duration::from_micros(100),
        };
        let counts = between(3, middles, move || async move {
            let namespace = connected(hedged(learnt, 5, 1 << 20)).await;
            both_up(&namespace).await;
            for _ in 0..400 {
                read(&namespace).await;
            }
            let before = namespace.hedge_counts();
            slow.delay.set(SLOW);
            for _ in 0..30 {
                read(&namespace).await;
            }
            // Half of them go by the slow path, until that is what is learnt.
            let after = namespace.hedge_counts();
            assert!(after.won >= before.won + 5, "{before:?} {after:?}");
            reaped(&namespace).await;
            after
        });
        assert!(counts.sent * 100 <= counts.reads * 5, "{counts:?}");
    }

    #[test]
    fn hedged_reads_of_paths_that_are_lost_are_right() {
        for seed in 50..54 {
            let middles = [seed, seed + 100].map(|seed| {
                let mut random = SplitMix64::new(seed);
                let loss = |_| Loss {
                    is_admin: random.below(4) == 0,
                    bytes: 1 + random.below(20_000) as usize,
                    is_silent: false,
                };
                Losses::new((0..20).map(loss).collect())
            });
            let until = middles.clone();
            let fixed = HedgeDelay::Fixed(Duration::from_micros(300));
            between(seed, middles, move || async move {
                let namespace = Rc::new(connected(hedged(fixed, 100, 8 * BLOCK_BYTES)).await);
                let mut model = Model::new();
                let mut random = SplitMix64::new(seed);
                while until.iter().any(|losses| losses.next.get().is_some()) {
                    for losses in &until {
                        let delay = Duration::from_micros(u64::from(random.below(900)));
                        losses.delay.set(delay);
                    }
                    let beside = Rc::clone(&namespace);
                    // Somebody who does not wait for the answer.
                    let patience = Duration::from_micros(u64::from(random.below(3000)));
                    let given_up = spawn_local(async move {
                        let answered = time::timeout(patience, read(&beside)).await;
                        answered.is_ok()
                    });
                    model.write(&namespace, random.below(4) as usize, 1).await;
                    model.read(&namespace).await;
                    given_up.await.expect("no panic");
                }
                reaped(&namespace).await;
                let counts = namespace.hedge_counts();
                assert!(counts.sent > 10 && counts.won > 0, "{counts:?}");
            });
        }
    }
}
