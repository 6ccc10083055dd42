//! Devices that fail.

#[cfg(test)]
mod tests {
    use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
    use lunette_gpu::proto::fault::Fault as Code;
    use lunette_gpu::proto::planner::Method;
    use lunette_gpu::{
        CopyError, Device, DevicePool, DeviceRegion, HostPiece, OpenError, STREAMS_MAX, SetupError,
        Stream, StreamOptions,
    };
    use lunette_runtime::{Idle, arena};

    use crate::rig::{fill, host, on_core, pattern, region, scenes, seen, stream};

    /// A machine with one device, on a core that sleeps when it can.
    fn with_device<F: Future<Output = ()> + 'static>(
        test: impl FnOnce(FakeMachine, Device) -> F + Send,
    ) {
        on_core(Idle::Efficient, || {
            let machine = FakeMachine::new(77);
            let index = machine.add_device(FakeOptions::default());
            let device = Device::fake(&machine, index).expect("added above");
            test(machine, device)
        });
    }

    fn pieces(count: usize) -> Vec<HostPiece> {
        let piece = |at: usize| HostPiece {
            index: 0,
            host_bytes: at * 10,
            device_bytes: at as u64 * 10,
            len_bytes: 10,
        };
        (0..count).map(piece).collect()
    }

    #[test]
    fn a_list_that_is_refused_in_the_middle_is_waited_for() {
        with_device(|machine, device| async move {
            let stream = stream(&device);
            let memory = region(&device, 1000);
            fill(&stream, &memory, &[0; 1000]).await;
            let (executed, used) = (machine.counts().copies, arena().used_bytes());
            let fault = Fault::Refused { after: 3, code: 1 };
            machine.inject(0, fault);
            let copy =
                stream.upload_pieces(host(&[9; 100]), &pieces(10), &memory, Some(Method::Dma));
            assert!(!copy.is_over(), "three of them are under way");
            let (result, lent) = copy.await;
            assert_eq!(result, Err(CopyError::Failed(Code::Code(1))));
            assert!(result.is_err_and(|error| error.is_retryable()));
            assert_eq!(machine.counts().copies, executed + 3);
            drop(lent);
            assert_eq!(arena().used_bytes(), used);
            // The next one finds everything in order.
            fill(&stream, &memory, &pattern(1000, 4)).await;
            assert_eq!(seen(&stream, &memory).await, pattern(1000, 4));
        });
    }

    #[test]
    fn what_no_event_stands_behind_is_waited_for_at_once() {
        with_device(|machine, device| async move {
            let (stream, used) = (stream(&device), arena().used_bytes());
            let memory = region(&device, 100);
            let first = stream.upload(host(&[1; 100]), 0, &memory);
            machine.inject(0, Fault::Unrecorded);
            let executed = machine.counts().copies;
            let second = stream.upload(host(&[2; 100]), 0, &memory);
            assert_eq!(machine.counts().copies, executed + 2, "both are done");
            // Whether it was is more than the device says.
            assert_eq!(second.await.0, Err(CopyError::Failed(Code::Code(1))));
            assert_eq!(first.await.0, Ok(()));
            assert_eq!(seen(&stream, &memory).await, [2; 100]);
            assert_eq!(arena().used_bytes(), used);
        });
    }

    #[test]
    fn what_is_refused_at_once_is_over_at_once() {
        with_device(|machine, device| async move {
            let stream = stream(&device);
            let memory = region(&device, 100);
            machine.inject(0, Fault::Refused { after: 0, code: 2 });
            let copy = stream.upload(host(&[9; 100]), 0, &memory);
            assert!(copy.is_over() && stream.in_flight() == 0);
            let (result, lent) = copy.await;
            assert_eq!(result, Err(CopyError::Failed(Code::OutOfMemory)));
            assert!(result.is_err_and(|error| error.is_backpressure()));
            assert_eq!(lent.as_slice(), [9; 100]);
        });
    }

    #[test]
    fn a_poisoned_context_ends_everything_and_gives_everything_back() {
        with_device(|machine, device| async move {
            let used = arena().used_bytes();
            let streams = [stream(&device), stream(&device)];
            let memory = region(&device, 4096);
            machine.inject(0, Fault::Poisoned { code: 719 });
            let copies: Vec<_> = (0..20)
                .map(|index| streams[index % 2].upload(host(&[1; 4096]), 0, &memory))
                .collect();
            for copy in copies {
                let (result, lent) = copy.await;
                assert_eq!(result, Err(CopyError::Poisoned(Code::Poisoned(719))));
                assert!(result.is_err_and(|error| !error.is_retryable()));
                assert_eq!(lent.len(), 4096);
            }
            assert_eq!(arena().used_bytes(), used);
            // From now on nothing begins.
            let (result, _) = streams[0].upload(host(&[1; 4096]), 0, &memory).await;
            assert!(matches!(result, Err(CopyError::Poisoned(_))));
            let refused = DeviceRegion::alloc(&device, 1).err();
            assert_eq!(refused, Some(SetupError::Refused(Code::Poisoned(719))));
            // Another opening has a context of its own.
            drop((streams, memory, device));
            let device = Device::fake(&machine, 0).expect("it is there");
            scenes::bytes_go_there_and_back(&device).await;
        });
    }

    #[test]
    fn a_lost_device_ends_everything_with_its_streams_dropped() {
        with_device(|machine, device| async move {
            let used = arena().used_bytes();
            let stream = stream(&device);
            let memory = region(&device, 1 << 20);
            for _ in 0..10 {
                drop(stream.upload(host(&[1; 1 << 20]), 0, &memory));
            }
            machine.inject(0, Fault::Lost);
            drop((stream, memory, device));
            assert_eq!(arena().used_bytes(), used);
            let opened = Device::fake(&machine, 0).expect("a context");
            let refused = Stream::new(&opened, StreamOptions::default()).err();
            assert_eq!(refused, Some(SetupError::Refused(Code::Lost(46))));
        });
    }

    #[test]
    fn a_device_that_is_dropped_waits_for_what_is_in_flight() {
        with_device(|machine, device| async move {
            let used = arena().used_bytes();
            let stream = stream(&device);
            let memory = region(&device, 4096);
            let copy = stream.upload(host(&[5; 4096]), 0, &memory);
            assert!(!copy.is_over());
            let pool = DevicePool::new(&device, 4096).expect("device memory");
            drop((stream, memory, device));
            assert!(copy.is_over(), "nobody polls any more");
            // A pool goes on, with nothing that would move what is in it.
            drop(pool.alloc(100).expect("room"));
            drop(pool);
            let (result, lent) = copy.await;
            assert_eq!((result, lent.len()), (Ok(()), 4096));
            drop(lent);
            assert_eq!(arena().used_bytes(), used);
            assert_eq!(machine.counts().allocations, 0);
        });
    }

    #[test]
    fn an_operation_that_is_over_holds_no_device_memory() {
        with_device(|machine, device| async move {
            let stream = stream(&device);
            let memory = region(&device, 4096);
            let before = machine.counts().allocations;
            let copy = stream.upload(host(&[5; 4096]), 0, &memory);
            drop(memory);
            assert_eq!(machine.counts().allocations, before, "in flight");
            assert_eq!(stream.flushed().await.0, Ok(()));
            assert!(copy.is_over());
            assert_eq!(machine.counts().allocations, before - 1);
            assert_eq!(copy.await.0, Ok(()));
        });
    }

    #[test]
    fn memory_runs_out_and_comes_back() {
        with_device(|machine, device| async move {
            machine.inject(0, Fault::OutOfMemory);
            let full = DeviceRegion::alloc(&device, 4096).expect_err("told to");
            assert_eq!(full, SetupError::Refused(Code::OutOfMemory));
            assert!(full.is_backpressure() && !full.is_unavailable());
            let most = device.info().memory_bytes;
            let small = FakeOptions {
                memory_bytes: 1 << 20,
                ..FakeOptions::default()
            };
            let other = Device::fake(&machine, machine.add_device(small)).expect("added");
            assert!(most > 1 << 20);
            let whole = region(&other, 1 << 20);
            assert!(DeviceRegion::alloc(&other, 1).is_err());
            drop(whole);
            assert!(DeviceRegion::alloc(&other, 1 << 20).is_ok());
        });
    }

    #[test]
    fn memory_that_is_not_pinned_is_copied_all_the_same() {
        with_device(|machine, device| async move {
            machine.inject(0, Fault::PinRefused);
            let chunk = host(&[0; 10]).chunk();
            let refused = device.pin(&chunk).await.expect_err("told to");
            assert!(refused.is_unavailable(), "{refused}");
            scenes::bytes_go_there_and_back(&device).await;
            assert!(device.counts().unpinned > 0);
            assert!(machine.counts().unpinned > 0);
        });
    }

    #[test]
    fn a_stream_is_as_deep_as_it_says() {
        with_device(|_machine, device| async move {
            let options = StreamOptions {
                depth: 3,
                ..StreamOptions::default()
            };
            let stream = Stream::new(&device, options).expect("a stream");
            let memory = region(&device, 100);
            let copies: Vec<_> = (0..4)
                .map(|_| stream.upload(host(&[1; 100]), 0, &memory))
                .collect();
            let mut results = Vec::new();
            for copy in copies {
                results.push(copy.await.0);
            }
            assert_eq!(results, [Ok(()), Ok(()), Ok(()), Err(CopyError::Full)]);
            assert!(CopyError::Full.is_backpressure());
            for depth in [0, 1025] {
                let options = StreamOptions { depth, ..options };
                assert_eq!(Stream::new(&device, options).err(), Some(SetupError::Size));
            }
        });
    }

    #[test]
    fn streams_are_bounded_and_one_that_ends_makes_room() {
        with_device(|_machine, device| async move {
            let mut streams: Vec<_> = (0..STREAMS_MAX).map(|_| stream(&device)).collect();
            let refused = Stream::new(&device, StreamOptions::default()).err();
            assert_eq!(refused, Some(SetupError::TooMany));
            streams.pop();
            let memory = region(&device, 10);
            let (result, _) = streams[0].upload(host(&[1; 10]), 0, &memory).await;
            assert_eq!(result, Ok(()));
            streams.push(stream(&device));
        });
    }

    #[test]
    fn memory_of_another_opening_is_refused() {
        with_device(|machine, device| async move {
            let other = Device::fake(&machine, 0).expect("it is there");
            let (own, foreign) = (region(&device, 100), region(&other, 100));
            let stream = stream(&device);
            assert_eq!(stream.copy(&own, &foreign).await.0, Err(CopyError::Foreign));
            let (result, _) = stream.upload(host(&[1; 100]), 0, &foreign).await;
            assert_eq!(result, Err(CopyError::Foreign));
            let absent = Device::fake(&machine, 1).err();
            assert_eq!(absent, Some(OpenError::NoSuchDevice { index: 1, count: 1 }));
        });
    }

    #[test]
    fn a_slow_stream_is_overtaken_and_says_the_same() {
        with_device(|machine, device| async move {
            let (slow, fast) = (stream(&device), stream(&device));
            let (first, second) = (region(&device, 4096), region(&device, 4096));
            machine.inject(0, Fault::Slow { times: 30_000 });
            let late = slow.upload(host(&pattern(4096, 1)), 0, &first);
            machine.inject(0, Fault::Slow { times: 1 });
            fill(&fast, &second, &pattern(4096, 2)).await;
            assert!(!late.is_over());
            assert_eq!(late.await.0, Ok(()));
            assert_eq!(seen(&fast, &first).await, pattern(4096, 1));
        });
    }
}
