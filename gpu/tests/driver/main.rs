//! The provider of real devices on drivers that the test builds: absent, lacking, and working ones.
#[cfg(test)]
#[path = "../device/processes.rs"]
mod processes;
#[path = "../rig/mod.rs"]
mod rig;
mod stub;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use lunette_gpu::proto::fault::Fault;
    use lunette_gpu::share::{AdapterWay, IpcHandle};
    use lunette_gpu::{
        CopyError, Device, DeviceRegion, Driver, EngineStream, HostPiece, ImportError, OpenError,
        Unavailable,
    };
    use lunette_runtime::arena::View;
    use lunette_runtime::{Idle, arena, control, spawn_local, time};
    use lunette_runtime_core::checksum::crc32c;

    use crate::rig::{fill, host, on_core, pattern, region, scenes, seen, stream};
    use crate::stub::stub;

    /// A driver of each test's own; the library of a process that uses it stays what it is.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "of real devices there may be none"
    )]
    pub(crate) fn driver_for(test: &str) -> Option<Driver> {
        Some(Driver::probe_at(&stub(test, &[])).expect("it works"))
    }

    #[test]
    fn why_there_is_no_gpu_is_told_by_name() {
        let at = |name, definitions: &[&str]| Driver::probe_at(&stub(name, definitions)).err();
        let missing = |name| Some(Unavailable::SymbolMissing { name });
        assert_eq!(at("none", &["INIT_CODE=100"]), Some(Unavailable::NoDevice));
        assert_eq!(at("empty", &["DEVICES=0"]), Some(Unavailable::NoDevice));
        let code = 803;
        assert_eq!(
            at("other", &["INIT_CODE=803"]),
            Some(Unavailable::Driver { code })
        );
        assert_eq!(at("bare", &["ONLY_INIT"]), missing("cuDriverGetVersion"));
        assert_eq!(
            at("lacking", &["WITHOUT_LAUNCH"]),
            missing("cuLaunchKernel")
        );
        let absent = Driver::probe_at(Path::new("no-such-folder/libcuda.so.1")).err();
        assert!(matches!(absent, Some(Unavailable::NoDriver { .. })));
    }

    #[test]
    fn this_machine_says_what_it_has_and_says_it_again() {
        match Driver::probe() {
            Ok(driver) => assert!(driver.device_count() > 0),
            Err(absent) => assert!(!absent.to_string().is_empty()),
        }
        assert_eq!(Driver::probe().err(), Driver::probe().err());
        on_core(Idle::Efficient, || async {
            let (opened, probed) = (Device::open(0), Driver::probe());
            match probed {
                Ok(_) => assert!(opened.is_ok()),
                Err(absent) => assert_eq!(opened.err(), Some(OpenError::Unavailable(absent))),
            }
        });
    }

    #[test]
    fn every_scene_plays_on_a_driver_that_works() {
        let driver = Driver::probe_at(&stub("whole", &[])).expect("it works");
        for idle in [Idle::Efficient, Idle::default(), Idle::Latency] {
            on_core(idle, move || async move {
                let prepared = control(move || driver.prepare(0)).await;
                assert_eq!(prepared, Ok(Ok(())));
                let device = Device::open_with(driver, 0).expect("one device");
                let info = device.info();
                assert_eq!((info.name.as_str(), info.capability), ("stub", 90));
                assert!(info.has_batches && info.has_dma_buf && info.has_shareable);
                scenes::all(&device).await;
                assert_eq!(device.counts().unpinned, 0);
                let index = 1;
                let absent = Device::open_with(driver, index).err();
                assert_eq!(driver.prepare(index).err(), absent);
                assert_eq!(absent, Some(OpenError::NoSuchDevice { index, count: 1 }));
            });
        }
    }

    #[test]
    fn batches_of_the_older_interface_do_the_same() {
        let driver = Driver::probe_at(&stub("batches", &["OLD_BATCH"])).expect("it works");
        on_core(Idle::Latency, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            assert!(device.info().has_batches);
            scenes::all(&device).await;
        });
    }

    #[test]
    fn the_end_of_a_context_is_noticed_and_gives_everything_back() {
        let path = stub("dying", &[]);
        let driver = Driver::probe_at(&path).expect("it works");
        on_core(Idle::Efficient, move || async move {
            // SAFETY: built by this test, and loaded already.
            let library = unsafe { libloading::Library::new(&path) }.expect("it is loaded");
            // SAFETY: as the source above has it.
            let poison = unsafe { library.get::<unsafe extern "C" fn(i32)>(b"stub_poison") };
            let poison = poison.expect("a function of this driver");
            let device = Device::open_with(driver, 0).expect("one device");
            let (stream, memory) = (stream(&device), region(&device, 4096));
            fill(&stream, &memory, &pattern(4096, 1)).await;
            let used = arena().used_bytes();
            let copies: Vec<_> = (0..5)
                .map(|_| stream.upload(host(&[1; 4096]), 0, &memory))
                .collect();
            // SAFETY: it sets a number.
            unsafe { poison(719) };
            for copy in copies {
                let (result, lent) = copy.await;
                assert_eq!(result, Err(CopyError::Poisoned(Fault::Poisoned(719))));
                assert_eq!(lent.as_slice(), [1; 4096]);
            }
            let (result, _) = stream.upload(host(&[1; 4096]), 0, &memory).await;
            assert_eq!(result, Err(CopyError::Poisoned(Fault::Poisoned(719))));
            assert_eq!((stream.in_flight(), arena().used_bytes()), (0, used));
        });
    }

    #[test]
    fn an_older_driver_does_the_same_without_what_it_lacks() {
        let without = ["WITHOUT_BATCH", "WITHOUT_SHARING", "WITHOUT_MAPPINGS"];
        let lacking = stub("older", &without);
        let driver = Driver::probe_at(&lacking).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let info = device.info();
            assert!(!info.has_batches && !info.has_dma_buf && !info.has_shareable);
            scenes::all(&device).await;
            let memory = region(&device, 4096);
            let found = driver.locate(memory.address() + 1).map(|found| found.base);
            assert_eq!(found, Some(memory.address()));
            let refusals = [
                memory.ipc_handle().err(),
                memory.export().err(),
                memory.dma_buf().err(),
                DeviceRegion::alloc_shareable(&device, 4096).err(),
            ];
            for refusal in refusals {
                assert!(refusal.is_some_and(|refusal| refusal.is_unavailable()));
            }
            // Before or behind them stands nvidia-peermem, where a machine has that.
            let last = memory.adapter_ways().last();
            assert!(matches!(last, Some(AdapterWay::Staging)));
        });
    }

    #[test]
    fn a_core_sleeps_and_a_thread_of_the_driver_wakes_it() {
        let driver = Driver::probe_at(&stub("waking", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let (stream, memory) = (stream(&device), region(&device, 4096));
            for which in 0..50 {
                fill(&stream, &memory, &pattern(4096, which)).await;
            }
            // A machine with other things to do may not fall asleep each time.
            assert!(device.counts().parks >= 5, "{:?}", device.counts());
        });
    }

    #[test]
    fn memory_is_shared_with_other_processes_and_adapters() {
        let driver = Driver::probe_at(&stub("sharing", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let other = Device::open_with(driver, 0).expect("one device");
            let memory = DeviceRegion::alloc_shareable(&device, 5000).expect("supported");
            fill(&stream(&device), &memory, &pattern(5000, 1)).await;
            let exported = memory.slice(1000..5000).export().expect("shareable");
            assert_eq!(
                (exported.allocation_bytes, exported.offset_bytes),
                (2 << 20, 1000)
            );
            let open = |len| DeviceRegion::import_shared(&other, exported.memory.as_fd(), len);
            let opened = open(exported.allocation_bytes)
                .expect("exported")
                .slice(0..5000);
            assert_eq!(seen(&stream(&other), &opened).await, pattern(5000, 1));
            fill(&stream(&other), &opened, &pattern(5000, 2)).await;
            assert_eq!(seen(&stream(&device), &memory).await, pattern(5000, 2));
            assert!(open(4 << 20).is_err());

            let plain = region(&device, 8192);
            let part = plain.slice(100..300);
            fill(&stream(&device), &part, &pattern(200, 3)).await;
            let handle = part.ipc_handle().expect("supported");
            let opened = DeviceRegion::open_ipc(&other, &handle).expect("exported");
            assert_eq!(seen(&stream(&other), &opened).await, pattern(200, 3));
            let nobody = IpcHandle::from_bytes(&[0; 80]);
            assert!(DeviceRegion::open_ipc(&other, &nobody).is_err());

            let first = part.adapter_ways().next();
            let is_dma_buf = |way| {
                matches!(
                    way,
                    AdapterWay::DmaBuf {
                        offset_bytes: 100,
                        ..
                    }
                )
            };
            assert!(first.is_some_and(is_dma_buf));
            let import = |address, len| DeviceRegion::import(&device, address, len, ()).err();
            assert_eq!(import(plain.address(), 8192), None);
            assert_eq!(import(plain.address() + 1, 8192), Some(ImportError::Range));
            let ours = host(&[0; 100]);
            let ours = ours.as_slice().as_ptr().addr() as u64;
            assert_eq!(import(ours, 100), Some(ImportError::NotOfDevice));
        });
    }

    #[test]
    fn a_chunk_is_pinned_by_another_thread_while_copies_go_on() {
        let driver = Driver::probe_at(&stub("pinning", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let (stream, memory) = (stream(&device), region(&device, 4096));
            let chunk = host(&[0; 10]).chunk();
            let asked = |device: &Device| {
                let (device, chunk) = (device.clone(), chunk.clone());
                spawn_local(async move { device.pin(&chunk).await })
            };
            let (first, second) = (asked(&device), asked(&device));
            time::yield_now().await;
            // In between, or afterwards: both are right.
            fill(&stream, &memory, &pattern(4096, 1)).await;
            assert_eq!((first.await, second.await), (Ok(Ok(())), Ok(Ok(()))));
            let before = device.counts().unpinned;
            assert_eq!(seen(&stream, &memory).await, pattern(4096, 1));
            assert_eq!(device.counts().unpinned, before);
            assert_eq!(device.pin(&chunk).await, Ok(()));
            // Another device of this core shares it, and keeps it.
            let other = Device::open_with(driver, 0).expect("one device");
            assert_eq!(other.pin(&chunk).await, Ok(()));
            drop((stream, memory, device));
            scenes::all(&other).await;
            assert_eq!(other.counts().unpinned, 0);
            drop(other);
            // Whoever asks may go.
            let other = Device::open_with(driver, 0).expect("one device");
            let asks = async { other.pin(&chunk).await };
            let _late = time::timeout(Duration::ZERO, asks).await;
            drop(other);
        });
    }

    #[test]
    fn cores_share_what_is_pinned_of_others() {
        let driver = Driver::probe_at(&stub("shared_pins", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let bytes = pattern(1 << 20, 5);
            let ours = host(&bytes).expose();
            let view = || {
                let share = ours.share().expect("a memfd");
                View::map(share.memfd, share.offset_bytes, share.len_bytes).expect("sealed")
            };
            let view = Arc::new(view());
            let device = Device::open_with(driver, 0).expect("one device");
            assert_eq!(device.pin_view(&view).await, Ok(()));
            let theirs = Arc::clone(&view);
            // Another core, which goes on with it when this one has let go.
            let (go_on, wait) = mpsc::channel::<()>();
            let other = thread::spawn(move || {
                on_core(Idle::Efficient, move || async move {
                    let device = Device::open_with(driver, 0).expect("one device");
                    assert_eq!(device.pin_view(&theirs).await, Ok(()));
                    assert!(device.is_pinned(&theirs));
                    wait.recv().expect_err("nothing is sent");
                    let (stream, memory) = (stream(&device), region(&device, 1 << 20));
                    let piece = HostPiece {
                        index: 0,
                        host_bytes: 0,
                        device_bytes: 0,
                        len_bytes: 1 << 20,
                    };
                    let pieces = [(piece, memory.clone())];
                    let begun = stream.upload_summed(vec![theirs], &pieces);
                    let (copied, summed) = begun.expect("it is pinned").await;
                    assert_eq!((copied, summed.crc32c(0)), (Ok(()), crc32c(&bytes)));
                    assert!(seen(&stream, &memory).await == bytes);
                });
            });
            drop((device, view));
            drop(go_on);
            while !other.is_finished() {
                time::sleep(Duration::from_millis(1)).await;
            }
            other.join().expect("it is well");
        });
    }

    #[test]
    fn streams_of_an_engine_are_waited_for_and_wait() {
        let driver = Driver::probe_at(&stub("engine", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let stream = stream(&device);
            let mut engine = 0u8;
            let engine = (&raw mut engine).cast();
            // SAFETY: to this driver a stream is any address but null.
            let after = unsafe { stream.after_engine(engine) };
            assert!(!after.is_over());
            // SAFETY: as above.
            let before = unsafe { stream.before_engine(engine) };
            assert_eq!((after.await.0, before.await.0), (Ok(()), Ok(())));
            // SAFETY: this driver refuses null, and looks no further.
            let refused = unsafe { stream.after_engine(std::ptr::null_mut()) };
            assert_eq!(refused.await.0, Err(CopyError::Failed(Fault::Code(1))));
        });
    }

    #[test]
    fn an_address_is_of_a_device_or_is_not() {
        let driver = Driver::probe_at(&stub("locating", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let memory = region(&device, 5000);
            for address in [memory.address(), memory.address() + 4999] {
                let found = driver.locate(address).expect("of the device");
                assert_eq!((found.device, found.len_bytes), (0, 5000));
                assert_eq!(found.base, memory.address());
            }
            // Of the host, pinned or not, of nobody, and given back.
            let ours = host(&[0; 100]);
            let address = ours.as_slice().as_ptr().addr() as u64;
            assert!(driver.locate(address).is_none());
            assert_eq!(device.pin(&ours.chunk()).await, Ok(()));
            let gone = memory.address();
            drop(memory);
            for address in [address, 0, u64::MAX, gone] {
                assert!(driver.locate(address).is_none(), "{address:#x}");
            }
            // This machine's driver knows nothing of it.
            assert!(lunette_gpu::locate(address).is_none());
        });
    }

    #[test]
    fn the_host_cannot_touch_what_is_the_devices() {
        let driver = Driver::probe_at(&stub("apart", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let memory = region(&device, 5000);
            let first = format!("{:x}-", memory.address());
            let maps = std::fs::read_to_string("/proc/self/maps").expect("a table of memory");
            let line = maps.lines().find(|line| line.starts_with(&first));
            let line = line.expect("it is mapped");
            assert!(line.contains(" ---s "), "{line}");
        });
    }

    #[test]
    fn copies_are_behind_what_a_named_stream_does() {
        let driver = Driver::probe_at(&stub("named", &[])).expect("it works");
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let (first, second) = (stream(&device), stream(&device));
            let memory = region(&device, 1 << 16);
            // What has been queued elsewhere takes as long as all of it; the default stream is behind nothing.
            let filled: Vec<_> = (0..40)
                .map(|which| first.upload(host(&pattern(1 << 16, which)), 0, &memory))
                .collect();
            let after = second.after(&first);
            let waited = second.after_stream(EngineStream::DEFAULT);
            let (read, bytes) = second.download(&memory, host(&[0; 1 << 16]), 0).await;
            assert_eq!(read, Ok(()));
            assert_eq!(bytes.as_slice(), pattern(1 << 16, 39));
            assert_eq!((after.await.0, waited.await.0), (Ok(()), Ok(())));
            drop(filled);
        });
    }

    #[test]
    fn the_ways_are_measured() {
        let driver = Driver::probe_at(&stub("measured", &[])).expect("it works");
        on_core(Idle::default(), move || async move {
            let device = Device::open_with(driver, 0).expect("one device");
            let planner = stream(&device).calibrate().await.expect("room");
            assert_eq!(device.planner(), planner);
        });
    }
}
