//! Whatever strikes: each operation ends once, with its memory; what is done is done right; and
//! everything comes back.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
    use lunette_gpu::proto::planner::Method;
    use lunette_gpu::{
        CopyError, Device, DeviceRegion, HostPiece, Operation, Stream, StreamOptions,
    };
    use lunette_runtime::arena::RegionMut;
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, time};
    use lunette_runtime_core::random::SplitMix64;

    use crate::rig::{host, pattern};

    const REGION_BYTES: usize = 4096;
    const STREAMS: usize = 4;
    const STEPS: u32 = 60;

    /// A stream with a region that no other one touches.
    struct Lane {
        stream: Stream,
        region: DeviceRegion,
        /// What the region holds once everything in flight is done, if that is known.
        holds: Option<Vec<u8>>,
        flights: Vec<Flight>,
    }

    struct Flight {
        operation: Operation<RegionMut>,
        /// What the lent memory holds afterwards, where the operation reads the region.
        brings: Option<Vec<u8>>,
    }

    impl Lane {
        fn new(device: &Device) -> Option<Self> {
            let options = StreamOptions {
                depth: 8,
                ..StreamOptions::default()
            };
            Some(Self {
                stream: Stream::new(device, options).ok()?,
                region: DeviceRegion::alloc(device, REGION_BYTES as u64).ok()?,
                holds: None,
                flights: Vec::new(),
            })
        }

        /// Writes pieces of the region, and takes note if that was queued.
        fn write(&mut self, random: &mut SplitMix64) {
            let bytes = pattern(
                REGION_BYTES,
                u8::try_from(random.below(256)).expect("a byte"),
            );
            let cut = 1 + random.below(4095) as usize;
            let piece = |start: usize, len| HostPiece {
                index: 0,
                host_bytes: start,
                device_bytes: start as u64,
                len_bytes: len,
            };
            let pieces = [piece(0, cut), piece(cut, REGION_BYTES - cut)];
            let by = Some([Method::Dma, Method::BatchedDma][random.below(2) as usize]);
            let lent = host(&bytes);
            let operation = self.stream.upload_pieces(lent, &pieces, &self.region, by);
            // Over at once: nothing of it was queued.
            if !operation.is_over() {
                self.holds = Some(bytes);
            }
            self.flights.push(Flight {
                operation,
                brings: None,
            });
        }

        fn read(&mut self) {
            let lent = host(&[0; REGION_BYTES]);
            let operation = self.stream.download(&self.region, lent, 0);
            self.flights.push(Flight {
                operation,
                brings: self.holds.clone(),
            });
        }

        /// Drops a future. Whether what it wrote was written will never be told.
        fn forget(&mut self) {
            let is_write = self
                .flights
                .pop()
                .is_some_and(|flight| flight.brings.is_none());
            if is_write {
                self.holds = None;
            }
        }

        /// Waits for everything in flight, and compares.
        async fn wait(&mut self) {
            // What fails leaves anything behind, so what is read later is anything.
            let mut is_known = true;
            for Flight { operation, brings } in self.flights.drain(..) {
                let (result, lent) = operation.await;
                assert_eq!(lent.len(), REGION_BYTES);
                match result {
                    Ok(()) if is_known => {
                        let is_right = brings.is_none_or(|bytes| lent.as_slice() == bytes);
                        assert!(is_right, "other bytes than were written");
                    }
                    Ok(()) | Err(CopyError::Full) => {}
                    Err(CopyError::Failed(_) | CopyError::Poisoned(_)) => is_known = false,
                    Err(other) => unreachable!("{other}"),
                }
            }
            if !is_known {
                self.holds = None;
            }
        }
    }

    fn strike(machine: &FakeMachine, random: &mut SplitMix64) {
        let code = [1, 2, 304, 801][random.below(4) as usize];
        let after = random.below(3);
        machine.inject(
            0,
            match random.below(40) {
                0 => Fault::Poisoned { code: 700 },
                1 => Fault::Lost,
                2 => Fault::PinRefused,
                3..6 => Fault::Unrecorded,
                6..15 => Fault::Slow {
                    times: 1 + random.below(50),
                },
                15..30 => Fault::Refused { after, code },
                _ => Fault::OutOfMemory,
            },
        );
    }

    async fn story(machine: FakeMachine, seed: u64) {
        let mut random = SplitMix64::new(seed);
        let index = machine.add_device(FakeOptions::default());
        let device = Device::fake(&machine, index).expect("added above");
        let used = arena().used_bytes();
        let lanes = (0..STREAMS).map(|_| Lane::new(&device));
        let mut lanes: Vec<Lane> = lanes
            .map(|lane| lane.expect("nothing strikes yet"))
            .collect();
        for _ in 0..STEPS {
            let which = random.below(4) as usize;
            let lane = &mut lanes[which];
            match random.below(16) {
                0..5 => lane.write(&mut random),
                5..9 => lane.read(),
                9..11 => lane.forget(),
                11..13 => lane.wait().await,
                13 => strike(&machine, &mut random),
                14 => time::sleep(Duration::from_micros(u64::from(random.below(200)))).await,
                _ => {
                    let waits = time::timeout(Duration::from_micros(5), lane.stream.flushed());
                    let _ended_or_not = waits.await;
                }
            }
        }
        for mut lane in lanes {
            if random.below(3) > 0 {
                lane.wait().await;
            }
        }
        drop(device);
        assert_eq!(arena().used_bytes(), used, "all of the host's memory");
        assert_eq!(
            machine.counts().allocations,
            0,
            "all of the device's memory"
        );
    }

    fn run(seed: u64) -> (u64, u64) {
        let mut world = World::new(seed, WorldOptions::default());
        let process = world.start([10, 0, 0, 1].into(), 1, CoreOptions::default());
        let machine = FakeMachine::new(seed);
        let done = world.spawn(process, 0, || story(machine.clone(), seed));
        let until = world.now() + Duration::from_secs(60);
        assert!(world.run_until(until, || done.is_there()), "seed {seed}");
        (machine.counts().hash, world.trace_hash())
    }

    #[test]
    fn whatever_strikes_each_operation_ends_once_and_everything_comes_back() {
        for seed in 0..150 {
            run(seed);
        }
    }

    #[test]
    fn a_seed_shows_the_same_story_again() {
        for seed in [3, 77, 1000] {
            assert_eq!(run(seed), run(seed));
        }
    }
}
