//! Devices whose SMs others have.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_gpu::Device;
    use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
    use lunette_gpu::proto::crowd::LOOK_PERIOD;
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, can_spawn, spawn_local, time};

    const WAIT: Duration = Duration::from_millis(8);

    async fn look(device: &Device) {
        device.look();
        time::sleep(WAIT + LOOK_PERIOD * 2).await;
    }

    /// What a test says of a device in a world, where time is what it is said to be.
    fn in_a_world<F: Future<Output = ()> + 'static>(test: fn(FakeMachine, Device) -> F) {
        let mut world = World::new(9, WorldOptions::default());
        let process = world.start([10, 0, 0, 1].into(), 1, CoreOptions::default());
        let done = world.spawn(process, 0, move || async move {
            let machine = FakeMachine::new(9);
            let index = machine.add_device(FakeOptions::default());
            let device = Device::fake(&machine, index).expect("added above");
            test(machine, device).await;
        });
        let until = world.now() + Duration::from_secs(60);
        assert!(world.run_until(until, || done.is_there()));
        done.take().expect("it ended");
    }

    #[test]
    fn looks_find_out_how_long_kernels_wait() {
        in_a_world(|machine, device| async move {
            let launches = machine.counts().launches;
            look(&device).await;
            assert!(device.kernel_wait() < LOOK_PERIOD, "there is room");
            machine.inject(0, Fault::Crowded { wait: WAIT });
            for _ in 0..12 {
                look(&device).await;
            }
            let known = device.kernel_wait();
            assert!(known > WAIT * 9 / 10 && known < WAIT, "{known:?}");
            machine.inject(
                0,
                Fault::Crowded {
                    wait: Duration::ZERO,
                },
            );
            for _ in 0..20 {
                look(&device).await;
            }
            assert!(device.kernel_wait() < WAIT / 50);
            assert_eq!(machine.counts().launches, launches, "they do nothing");
        });
    }

    #[test]
    fn a_core_that_did_not_look_has_not_waited() {
        in_a_world(|_machine, device| async move {
            device.look();
            time::sleep(LOOK_PERIOD / 100).await;
            device.was_away(WAIT);
            time::sleep(WAIT).await;
            assert_eq!(device.kernel_wait(), Duration::ZERO);
        });
    }

    #[test]
    fn a_look_that_is_refused_or_lost_is_the_end_of_none() {
        in_a_world(|machine, device| async move {
            let before = device.counts().operations;
            machine.inject(0, Fault::Refused { after: 0, code: 1 });
            look(&device).await;
            assert_eq!(device.counts().operations, before);
            look(&device).await;
            assert_eq!(device.counts().operations, before + 1, "there are others");
            device.look();
            machine.inject(0, Fault::Lost);
            time::sleep(Duration::from_secs(1)).await;
            assert_eq!(device.counts().operations, before + 2, "it was told");
            device.look();
            time::sleep(WAIT).await;
            drop(device);
            assert_eq!(machine.counts().allocations, 0);
        });
    }

    #[test]
    fn a_core_that_takes_no_more_tasks_looks_later() {
        in_a_world(|machine, device| async move {
            look(&device).await;
            machine.inject(0, Fault::Crowded { wait: WAIT });
            while can_spawn() {
                drop(spawn_local(time::sleep(WAIT)));
            }
            device.look();
            time::sleep(WAIT * 2).await;
            for _ in 0..2 {
                assert!(device.kernel_wait() < WAIT / 8);
                look(&device).await;
            }
            assert!(device.kernel_wait() > WAIT / 8, "two were had");
        });
    }

    #[test]
    fn a_device_may_go_while_a_look_is_under_way() {
        in_a_world(|machine, device| async move {
            machine.inject(0, Fault::Crowded { wait: WAIT });
            device.look();
            drop(device);
            time::sleep(WAIT * 2).await;
            assert_eq!(machine.counts().allocations, 0);
        });
    }
}
