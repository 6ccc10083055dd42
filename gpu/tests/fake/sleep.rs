//! Cores that sleep while a device works.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
    use lunette_gpu::{CopyError, Device, Notice, Stream, StreamOptions};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, Idle, core_counts, time};

    use crate::rig::{host, on_core, pattern, region};

    /// Slow enough for a core to fall asleep.
    fn slow() -> FakeOptions {
        FakeOptions {
            latency: (Duration::from_millis(3), Duration::from_millis(4)),
            ..FakeOptions::default()
        }
    }

    fn options(notice: Notice) -> StreamOptions {
        StreamOptions {
            notice,
            ..StreamOptions::default()
        }
    }

    #[test]
    fn a_core_sleeps_and_the_device_wakes_it() {
        on_core(Idle::Efficient, || async {
            let machine = FakeMachine::new(1);
            let device = Device::fake(&machine, machine.add_device(slow())).expect("added");
            let stream = Stream::new(&device, options(Notice::Sleep)).expect("a stream");
            let memory = region(&device, 4096);
            let before = core_counts();
            for round in 0..5 {
                let (result, _) = stream.upload(host(&pattern(4096, round)), 0, &memory).await;
                assert_eq!(result, Ok(()));
            }
            let turns = core_counts().turns - before.turns;
            // A machine with other things to do may not fall asleep each time.
            assert!(device.counts().parks >= 2, "{:?}", device.counts());
            assert!(machine.counts().wakes >= 2, "{machine:?}");
            assert!(turns < 100, "it slept: {turns} turns");
        });
    }

    /// How long the first of three operations took in a world, and how often the host was called.
    fn first_of_three(notice: Notice) -> (Duration, u64) {
        let mut world = World::new(5, WorldOptions::default());
        let process = world.start([10, 0, 0, 1].into(), 1, CoreOptions::default());
        let machine = FakeMachine::new(5);
        let done = world.spawn(process, 0, || {
            let machine = machine.clone();
            async move {
                let device = Device::fake(&machine, machine.add_device(slow())).expect("added");
                let stream = Stream::new(&device, options(notice)).expect("a stream");
                let memory = region(&device, 4096);
                let began = time::now();
                let mut copies: Vec<_> = (0..3)
                    .map(|which| stream.upload(host(&pattern(4096, which)), 0, &memory))
                    .collect();
                assert_eq!(copies.remove(0).await.0, Ok(()));
                let took = time::now().since(began);
                for copy in copies {
                    assert_eq!(copy.await.0, Ok(()));
                }
                took
            }
        });
        let until = world.now() + Duration::from_secs(1);
        assert!(world.run_until(until, || done.is_there()));
        (done.take().expect("it ended"), machine.counts().wakes)
    }

    #[test]
    fn a_call_for_each_operation_is_told_of_each_operation() {
        let (took, wakes) = first_of_three(Notice::Operation);
        assert!(took < Duration::from_micros(4100), "{took:?}");
        assert_eq!(wakes, 3);
        // One call behind all three: the first one is seen when all of them are done, or nearly.
        let (took, wakes) = first_of_three(Notice::Sleep);
        // The timer wheel may wake the core a little before.
        let all = Duration::from_micros(8300)..Duration::from_micros(12_500);
        assert!(all.contains(&took), "{took:?}");
        assert_eq!(wakes, 1);
    }

    #[test]
    fn the_end_of_a_context_wakes_nobody_and_is_noticed() {
        for fault in [Fault::Poisoned { code: 700 }, Fault::Lost] {
            let mut world = World::new(6, WorldOptions::default());
            let process = world.start([10, 0, 0, 1].into(), 1, CoreOptions::default());
            let machine = FakeMachine::new(6);
            let index = machine.add_device(slow());
            let done = world.spawn(process, 0, || {
                let machine = machine.clone();
                async move {
                    let device = Device::fake(&machine, index).expect("added");
                    let stream = Stream::new(&device, options(Notice::Sleep)).expect("a stream");
                    let memory = region(&device, 4096);
                    let (result, lent) = stream.upload(host(&[1; 4096]), 0, &memory).await;
                    assert_eq!(lent.len(), 4096);
                    result
                }
            });
            world.run_for(Duration::from_millis(1));
            machine.inject(index, fault);
            let until = world.now() + Duration::from_millis(120);
            assert!(world.run_until(until, || done.is_there()), "{fault:?}");
            let result = done.take().expect("it ended");
            assert!(matches!(result, Err(CopyError::Poisoned(_))), "{result:?}");
            assert_eq!(machine.counts().wakes, 0);
        }
    }
}
