//! The provider of real devices on the GPU that this machine has; without one each test is skipped by name.
#[path = "../rig/mod.rs"]
mod rig;

#[cfg(test)]
mod lost;
#[cfg(test)]
mod processes;

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;

    use lunette_gpu::share::{AdapterWay, IpcHandle};
    use lunette_gpu::{Device, DeviceRegion, Driver, EngineStream, ImportError, OpenError};
    use lunette_runtime::{Idle, control};

    use crate::rig::{fill, host, on_core, pattern, region, scenes, seen, stream};

    /// The driver, where this machine has a GPU; else it is said that this test is skipped.
    pub(crate) fn driver_for(test: &str) -> Option<Driver> {
        match Driver::probe() {
            Ok(driver) => Some(driver),
            Err(absent) => {
                println!("SKIP {test}: {absent}");
                None
            }
        }
    }

    #[test]
    fn every_scene_plays_on_the_gpu_of_this_machine() {
        let Some(driver) = driver_for("every_scene_plays_on_the_gpu_of_this_machine") else {
            return;
        };
        for idle in [Idle::Efficient, Idle::default(), Idle::Latency] {
            on_core(idle, move || async move {
                let prepared = control(move || driver.prepare(0)).await;
                assert_eq!(prepared, Ok(Ok(())));
                let device = Device::open_with(driver, 0).expect("it is there");
                println!("{:?}", device.info());
                assert!(device.info().memory_bytes > 0 && device.info().capability >= 70);
                scenes::all(&device).await;
                assert_eq!(device.counts().unpinned, 0);
            });
        }
        on_core(Idle::Efficient, move || async move {
            let index = driver.device_count();
            let absent = Device::open_with(driver, index).err();
            let count = index;
            assert_eq!(absent, Some(OpenError::NoSuchDevice { index, count }));
        });
    }

    #[test]
    fn a_core_sleeps_and_a_thread_of_the_driver_wakes_it() {
        let Some(driver) = driver_for("a_core_sleeps_and_a_thread_of_the_driver_wakes_it") else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let (stream, memory) = (stream(&device), region(&device, 4 << 20));
            for which in 0..50 {
                fill(&stream, &memory, &pattern(4 << 20, which)).await;
            }
            println!("{:?}", device.counts());
            // A machine with other things to do may not fall asleep each time.
            assert!(device.counts().parks >= 5, "{:?}", device.counts());
        });
    }

    #[test]
    fn an_address_is_of_a_device_or_is_not() {
        let Some(driver) = driver_for("an_address_is_of_a_device_or_is_not") else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let memory = region(&device, 5000);
            for address in [memory.address(), memory.address() + 4999] {
                let found = driver.locate(address).expect("of the device");
                assert_eq!((found.device, found.len_bytes), (0, 5000));
                assert_eq!(found.base, memory.address());
                assert!(lunette_gpu::locate(address).is_some());
            }
            let import = |address, len| DeviceRegion::import(&device, address, len, ()).err();
            assert_eq!(import(memory.address(), 5000), None);
            let beyond = import(memory.address(), 5001);
            assert_eq!(beyond, Some(ImportError::Range));
            // Of the host, pinned or not, of nobody, and given back.
            let ours = host(&[0; 100]);
            let address = ours.as_slice().as_ptr().addr() as u64;
            assert!(driver.locate(address).is_none());
            assert_eq!(device.pin(&ours.chunk()).await, Ok(()));
            assert_eq!(import(address, 100), Some(ImportError::NotOfDevice));
            let gone = memory.address();
            drop(memory);
            for address in [address, 0, u64::MAX, gone] {
                assert!(driver.locate(address).is_none(), "{address:#x}");
            }
        });
    }

    #[test]
    fn a_handle_of_this_process_is_not_opened_here() {
        let Some(driver) = driver_for("a_handle_of_this_process_is_not_opened_here") else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let memory = region(&device, 4096);
            let handle = memory.ipc_handle().expect("plain memory").to_bytes();
            let opened = DeviceRegion::open_ipc(&device, &IpcHandle::from_bytes(&handle));
            println!("{opened:?}");
            assert!(opened.is_err());
            // And whoever is refused goes on.
            fill(&stream(&device), &memory, &pattern(4096, 3)).await;
        });
    }

    #[test]
    fn adapters_are_offered_a_dma_buf_where_the_system_has_it() {
        let Some(driver) = driver_for("adapters_are_offered_a_dma_buf_where_the_system_has_it")
        else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let whole = region(&device, 4 << 20);
            let part = whole.slice(100..200);
            match (part.dma_buf(), device.info().has_dma_buf) {
                (Ok((_file, offset)), true) => assert_eq!(offset, 100),
                (Err(refused), _) => assert!(refused.is_unavailable(), "{refused}"),
                (Ok(_), false) => unreachable!("it says that it has none"),
            }
            let ways: Vec<AdapterWay> = part.adapter_ways().collect();
            println!("{ways:?}");
            assert!(matches!(ways.last(), Some(AdapterWay::Staging)));
            let has_dma_buf = matches!(ways.first(), Some(AdapterWay::DmaBuf { .. }));
            assert_eq!(has_dma_buf, part.dma_buf().is_ok());
        });
    }

    #[test]
    fn copies_are_behind_what_other_streams_do() {
        let Some(driver) = driver_for("copies_are_behind_what_other_streams_do") else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            // SAFETY: the driver is loaded already.
            let library = unsafe { libloading::Library::new("libcuda.so.1") };
            let library = library.expect("it is loaded");
            type Begin = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
            // SAFETY: as the driver's header has it.
            let begin = unsafe { library.get::<Begin>(b"cuStreamCreate") }.expect("a function");
            let mut engines: *mut c_void = ptr::null_mut();
            // SAFETY: the result is ours to write; the device that was opened is current. It does not wait for the
            // default stream.
            assert_eq!(unsafe { begin(&raw mut engines, 1) }, 0);
            let stream = stream(&device);
            let memory = region(&device, 64 << 20);
            // What an engine has queued takes as long as all of it.
            type Fill = unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> u32;
            // SAFETY: as the driver's header has it.
            let set = unsafe { library.get::<Fill>(b"cuMemsetD8Async") }.expect("a function");
            for value in 0..=200 {
                let at = memory.address();
                // SAFETY: the memory is held until the copies behind this are over.
                let code = unsafe { set(at, value, 64 << 20, engines) };
                assert_eq!(code, 0);
            }
            // SAFETY: it was made above, and is never ended.
            let after = unsafe { stream.after_engine(engines) };
            let waited = stream.after_stream(EngineStream::DEFAULT);
            let (last, room) = stream
                .download(&memory.slice((64 << 20) - 9..64 << 20), host(&[0; 9]), 0)
                .await;
            assert_eq!((last, room.as_slice()), (Ok(()), [200; 9].as_slice()));
            // SAFETY: as above.
            let before = unsafe { stream.before_engine(engines) };
            assert_eq!((after.await.0, waited.await.0), (Ok(()), Ok(())));
            assert_eq!(before.await.0, Ok(()));
        });
    }

    #[test]
    fn the_ways_are_measured_and_pages_move_by_what_was_chosen() {
        let Some(driver) = driver_for("the_ways_are_measured_and_pages_move_by_what_was_chosen")
        else {
            return;
        };
        on_core(Idle::default(), move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let planner = stream(&device).calibrate().await.expect("room");
            assert_eq!(device.planner(), planner);
            println!("{planner:?}");
            scenes::all(&device).await;
        });
    }

    #[test]
    fn more_than_there_is_is_refused_and_others_go_on() {
        let Some(driver) = driver_for("more_than_there_is_is_refused_and_others_go_on") else {
            return;
        };
        on_core(Idle::Efficient, move || async move {
            let device = Device::open_with(driver, 0).expect("it is there");
            let more = device.info().memory_bytes + (1 << 30);
            let refused = DeviceRegion::alloc(&device, more).expect_err("too much");
            assert!(refused.is_backpressure(), "{refused}");
            let (stream, memory) = (stream(&device), region(&device, 100));
            fill(&stream, &memory, &pattern(100, 1)).await;
            assert_eq!(seen(&stream, &memory).await, pattern(100, 1));
        });
    }
}
