//! Several paths to a namespace: lost at every byte, forgotten, and closed by what the controller says.

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::host::NoPath;
    use lunette_nvmeof::proto::log_page::AnaState;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{CommandError, RemoteNamespace, Server};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, spawn_local, time};
    use lunette_runtime_core::random::SplitMix64;

    use crate::ends::{
        WORLD_MAX, address, connected, every, ip, losses, options, serve, server, server_of,
    };
    use crate::middle::{Loss, Losses, be_in_the_middle};
    use crate::model::{BLOCK_BYTES, Model, TIMEOUT};

    /// Ports of one server, and who is between them and the host.
    const PORTS: [&str; 2] = ["10.0.0.1:4420", "10.0.0.1:4421"];
    const MIDDLES: [&str; 2] = ["10.0.0.2:4420", "10.0.0.4:4420"];
    const HOST: &str = "10.0.0.3:0";

    /// What happened to the host's commands.
    #[derive(Clone, Copy, Debug)]
    struct Outcome {
        in_doubt: u32,
        repeats: u64,
    }

    /// How a server's states change while the host is at work.
    type Changes = fn(Rc<Server>, SplitMix64) -> ();

    /// Loses each path at the places of its own, while states change, and a host is at work.
    fn lose(seed: u64, places: [Vec<Loss>; 2], change: Option<Changes>) -> Outcome {
        let counts = [places[0].len(), places[1].len()];
        let mut world = World::new(seed, WorldOptions::default());
        let mut process = |address| world.start(ip(address), 1, CoreOptions::default());
        let (target, host) = (process(PORTS[0]), process(HOST));
        let middles = MIDDLES.map(&mut process);
        world.spawn(target, 0, move || {
            let server = server(Secrets::default());
            if let Some(change) = change {
                change(Rc::clone(&server), SplitMix64::new(seed));
            }
            serve(server, &PORTS)
        });
        let places = places.map(Losses::new);
        for (index, middle) in middles.into_iter().enumerate() {
            let losses = Rc::clone(&places[index]);
            world.spawn(middle, 0, move || {
                be_in_the_middle(address(MIDDLES[index]), address(PORTS[index]), losses)
            });
        }
        let until = places.clone();
        let ended = world.spawn(host, 0, move || async move {
            let mut options = options(Digests::BOTH, &MIDDLES);
            options.config.keep_alive = Duration::from_secs(4);
            let namespace = connected(options).await;
            let mut model = Model::new();
            let mut random = SplitMix64::new(seed);
            let is_over = || {
                until
                    .iter()
                    .zip(counts)
                    .all(|(l, count)| l.happened.get() == count)
            };
            while !is_over() {
                let first = random.below(3) as usize;
                model.write(&namespace, first, 1).await;
                model.write(&namespace, 1, 2).await;
                model.read(&namespace).await;
                namespace.flush(TIMEOUT).await.expect("flushed again");
            }
            model.read(&namespace).await;
            Outcome {
                in_doubt: model.in_doubt,
                repeats: namespace.repeats(),
            }
        });
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || ended.is_there());
        let next = [&places[0], &places[1]].map(|losses| losses.next.get());
        ended
            .take()
            .unwrap_or_else(|| unreachable!("seed {seed}: it hangs before {next:?}"))
    }

    #[test]
    fn a_path_is_lost_at_every_byte_and_the_other_one_serves() {
        let bytes = (1..100).chain(every(31, 100..5400));
        let outcome = lose(11, [losses(false, bytes), Vec::new()], None);
        assert!(outcome.in_doubt > 0 && outcome.repeats > 5, "{outcome:?}");
        let bytes = (1..20_000).step_by(203);
        lose(12, [losses(true, bytes), Vec::new()], None);
    }

    #[test]
    fn both_paths_are_lost_again_and_again() {
        for seed in 20..24 {
            let places = [seed, seed + 100].map(|seed| {
                let mut random = SplitMix64::new(seed);
                let loss = |_| Loss {
                    is_admin: random.below(4) == 0,
                    bytes: 1 + random.below(9000) as usize,
                    is_silent: false,
                };
                (0..40).map(loss).collect()
            });
            lose(seed, places, None);
        }
    }

    #[test]
    fn a_path_that_forgets_what_it_is_given_is_found_out() {
        let places = (300..12_000).step_by(977).map(|bytes| Loss {
            is_admin: bytes % 2 == 0,
            bytes,
            is_silent: true,
        });
        let outcome = lose(30, [places.collect(), Vec::new()], None);
        assert!(outcome.in_doubt > 0 && outcome.repeats > 0, "{outcome:?}");
    }

    /// Any states of both ports, again and again, but for what lasts for ever.
    fn change_at_random(server: Rc<Server>, mut random: SplitMix64) {
        drop(spawn_local(async move {
            loop {
                time::sleep(Duration::from_millis(u64::from(random.below(30)))).await;
                let port = if random.below(2) == 0 { 1 } else { 2 };
                let states = [
                    AnaState::Optimized,
                    AnaState::NonOptimized,
                    AnaState::Inaccessible,
                    AnaState::Change,
                ];
                server.set_ana_state(port, 1, states[random.below(4) as usize]);
            }
        }));
    }

    #[test]
    fn states_change_while_paths_are_lost() {
        for seed in 40..44 {
            let places = [seed, seed + 100].map(|seed| {
                let mut random = SplitMix64::new(seed);
                let bytes = (0..20).map(|_| 1 + random.below(30_000) as usize);
                losses(false, bytes)
            });
            let outcome = lose(seed, places, Some(change_at_random));
            assert!(outcome.repeats > 0, "{outcome:?}");
        }
    }

    /// Runs a host against a server with two ports, without anybody between them.
    fn beside<T: 'static, F: Future<Output = T> + 'static>(
        at_host: impl FnOnce() -> F + Send + 'static,
        change: Changes,
    ) -> T {
        let mut world = World::new(7, WorldOptions::default());
        let mut process = |address| world.start(ip(address), 1, CoreOptions::default());
        let (target, host) = (process(PORTS[0]), process(HOST));
        world.spawn(target, 0, move || {
            let server = server(Secrets::default());
            change(Rc::clone(&server), SplitMix64::new(7));
            serve(server, &PORTS)
        });
        let ended = world.spawn(host, 0, at_host);
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || ended.is_there());
        ended.take().expect("it ends")
    }

    async fn read(namespace: &RemoteNamespace) -> (Duration, Result<(), CommandError>) {
        let began = time::now();
        let region = arena().alloc(BLOCK_BYTES).expect("room");
        let read = namespace.read(0, region, TIMEOUT).await;
        let read = read.map(drop).map_err(|failure| failure.error);
        (time::now().since(began), read)
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Both ports, one state after the other, twenty seconds each.
    fn change_in_turn(server: Rc<Server>, _random: SplitMix64) {
        drop(spawn_local(async move {
            for state in [
                AnaState::Inaccessible,
                AnaState::NonOptimized,
                AnaState::Change,
                AnaState::Optimized,
                AnaState::PersistentLoss,
            ] {
                for port in [1, 2] {
                    server.set_ana_state(port, 1, state);
                }
                time::sleep(20 * SECOND).await;
            }
        }));
    }

    #[test]
    fn commands_wait_for_a_path_as_long_as_controllers_say() {
        let host = || async {
            let began = time::now();
            let until = async |seconds| time::sleep_until(began + seconds * SECOND).await;
            until(1).await;
            let namespace = connected(options(Digests::NONE, &PORTS)).await;
            let closed = Err(CommandError::NoPath(NoPath::Inaccessible));
            // Ten seconds from when the path was first seen.
            let (waited, ended) = read(&namespace).await;
            assert!(ended == closed && waited > 9 * SECOND && waited < 11 * SECOND);
            let (waited, ended) = read(&namespace).await;
            assert!(ended == closed && waited < SECOND, "{waited:?} {ended:?}");
            until(21).await;
            assert_eq!(read(&namespace).await.1, Ok(()));
            assert_eq!(namespace.reconnects(), 0);
            // A change that takes too long has its connections made again, and commands wait on.
            until(41).await;
            let (waited, ended) = read(&namespace).await;
            assert!(
                ended == Ok(()) && waited > 18 * SECOND,
                "{waited:?} {ended:?}"
            );
            assert!(namespace.reconnects() >= 2, "{}", namespace.reconnects());
            until(81).await;
            let (waited, ended) = read(&namespace).await;
            let lost = Err(CommandError::NoPath(NoPath::PersistentLoss));
            assert!(ended == lost && waited < SECOND, "{waited:?} {ended:?}");
            let states = namespace.paths().into_iter().map(|path| path.state);
            assert!(states.eq([Some(AnaState::PersistentLoss); 2]));
        };
        beside(host, change_in_turn);
    }

    #[test]
    fn another_namespace_is_no_path() {
        const OTHER: &str = "10.0.0.5:4420";
        let mut world = World::new(8, WorldOptions::default());
        let mut process = |address| world.start(ip(address), 1, CoreOptions::default());
        let (target, other, host) = (process(PORTS[0]), process(OTHER), process(HOST));
        world.spawn(target, 0, || serve(server(Secrets::default()), &PORTS));
        world.spawn(other, 0, || {
            serve(server_of([8; 16], Secrets::default()), &[OTHER])
        });
        let ended = world.spawn(host, 0, || async {
            let namespace = connected(options(Digests::NONE, &[PORTS[0], OTHER, PORTS[1]])).await;
            time::sleep(10 * SECOND).await;
            let states: Vec<_> = namespace
                .paths()
                .into_iter()
                .map(|path| path.state)
                .collect();
            for _ in 0..10 {
                assert_eq!(read(&namespace).await.1, Ok(()));
            }
            states
        });
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || ended.is_there());
        let up = Some(AnaState::Optimized);
        let states = ended.take().expect("it ends");
        // Whichever of the two answered first is the namespace.
        assert!(
            states == [up, None, up] || states == [None, up, None],
            "{states:?}"
        );
    }
}
