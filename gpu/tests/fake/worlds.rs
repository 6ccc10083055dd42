//! Fake devices natively and in simulated worlds, where a seed shows the same again.

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use lunette_gpu::Device;
    use lunette_gpu::fake::{FakeCounts, FakeMachine, FakeOptions};
    use lunette_gpu::proto::planner::{Direction, Method};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, Idle};

    use crate::rig::{on_core, scenes, stream};

    /// Every scene in a world. Its hash, and the machine's.
    fn run(seed: u64) -> (FakeCounts, u64) {
        let mut world = World::new(seed, WorldOptions::default());
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let machine = FakeMachine::new(seed);
        let done = world.spawn(process, 0, || {
            let machine = machine.clone();
            async move {
                let index = machine.add_device(FakeOptions::default());
                let device = Device::fake(&machine, index).expect("added above");
                scenes::all(&device).await;
            }
        });
        let until = world.now() + Duration::from_secs(30);
        assert!(world.run_until(until, || done.is_there()), "seed {seed}");
        let hash = world.trace_hash();
        drop(world);
        (machine.counts(), hash)
    }

    #[test]
    fn every_scene_plays_in_worlds_and_a_seed_shows_it_again() {
        let first: Vec<_> = (0..5).map(run).collect();
        let second: Vec<_> = (0..5).map(run).collect();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
        for (counts, _) in first {
            assert_eq!(counts.allocations, 0, "everything was given back");
            assert_eq!(counts.unpinned, 0, "everything was pinned");
            assert!(counts.launches > 0 && counts.batches > 0 && counts.overtakings > 0);
        }
    }

    #[test]
    fn every_scene_plays_natively_whatever_a_core_does_when_it_is_idle() {
        for idle in [Idle::Efficient, Idle::default(), Idle::Latency] {
            on_core(idle, || async {
                let machine = FakeMachine::new(11);
                let index = machine.add_device(FakeOptions::default());
                let device = Device::fake(&machine, index).expect("added above");
                scenes::all(&device).await;
                drop(device);
                assert_eq!(machine.counts().allocations, 0);
            });
        }
    }

    #[test]
    fn a_device_without_batches_and_mapping_does_the_same() {
        on_core(Idle::Efficient, || async {
            let machine = FakeMachine::new(12);
            let options = FakeOptions {
                has_batches: false,
                ..FakeOptions::default()
            };
            let device = Device::fake(&machine, machine.add_device(options)).expect("added");
            scenes::all(&device).await;
            assert_eq!(machine.counts().batches, 0);
        });
    }

    #[test]
    fn what_is_measured_at_start_decides() {
        let mut world = World::new(3, WorldOptions::default());
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let machine = FakeMachine::new(3);
        let done = world.spawn(process, 0, || {
            let machine = machine.clone();
            async move {
                let index = machine.add_device(FakeOptions::default());
                let device = Device::fake(&machine, index).expect("added above");
                let planner = stream(&device).calibrate().await.expect("room");
                assert_eq!(device.planner(), planner);
                planner
            }
        });
        let until = world.now() + Duration::from_secs(30);
        assert!(world.run_until(until, || done.is_there()));
        let planner = done.take().expect("it ended");
        for direction in Direction::ALL {
            // Each copy of a fake device takes its time, a launch once for all of them.
            let chosen = planner.choose(direction, 4096, 4096 << 12, |_| true);
            assert_eq!(chosen, Method::Kernel, "{direction:?} {planner:?}");
            assert!(planner.cost(direction, Method::Dma).is_some());
        }
    }
}
