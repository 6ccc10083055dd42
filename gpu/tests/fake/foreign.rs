//! Memory of others: imported, shared between processes, handed to adapters.

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::rc::Rc;

    use lunette_gpu::fake::{FakeMachine, FakeOptions};
    use lunette_gpu::share::{AdapterWay, IpcHandle};
    use lunette_gpu::{Device, DeviceRegion, ImportError, SetupError, Stream, StreamOptions};
    use lunette_runtime::{Idle, arena};

    use crate::rig::{fill, host, on_core, pattern, region, seen, stream};

    fn with_machine<F: Future<Output = ()> + 'static>(
        options: FakeOptions,
        test: impl FnOnce(FakeMachine, Device) -> F + Send,
    ) {
        on_core(Idle::Efficient, || {
            let machine = FakeMachine::new(5);
            let index = machine.add_device(options);
            let device = Device::fake(&machine, index).expect("added above");
            test(machine, device)
        });
    }

    /// Says when it is dropped.
    struct Keeper(Rc<Cell<bool>>);

    impl Drop for Keeper {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    #[test]
    fn a_tensor_is_taken_in_by_its_address_and_kept() {
        with_machine(FakeOptions::default(), |_machine, device| async move {
            let stream = stream(&device);
            let tensor = region(&device, 8192);
            fill(&stream, &tensor, &pattern(8192, 1)).await;
            let gone = Rc::new(Cell::new(false));
            let keeper = (Keeper(Rc::clone(&gone)), tensor.clone());
            let part = DeviceRegion::import(&device, tensor.address() + 100, 50, keeper);
            let part = part.expect("inside");
            assert_eq!(seen(&stream, &part).await, pattern(8192, 1)[100..150]);
            let reading = stream.download(&part, host(&[0; 50]), 0);
            drop((part, tensor));
            assert!(!gone.get(), "the operation holds it");
            assert_eq!(reading.await.1.as_slice(), &pattern(8192, 1)[100..150]);
            assert!(gone.get());
        });
    }

    #[test]
    fn addresses_are_checked_from_both_sides() {
        with_machine(FakeOptions::default(), |machine, device| async move {
            let tensor = region(&device, 8192);
            let at = tensor.address();
            let import = |address, len| DeviceRegion::import(&device, address, len, ()).err();
            assert_eq!(import(at, 8192), None);
            assert_eq!(import(at + 8191, 1), None);
            assert_eq!(import(at, 8193), Some(ImportError::Range));
            assert_eq!(import(at + 8191, 2), Some(ImportError::Range));
            assert_eq!(import(at, 0), Some(ImportError::Range));
            assert_eq!(import(at, u64::MAX), Some(ImportError::Range));
            assert_eq!(import(at + 8192, 1), Some(ImportError::NotOfDevice));
            assert_eq!(import(at - 1, 1), Some(ImportError::NotOfDevice));
            let plain = host(&[0; 10]).as_slice().as_ptr().addr() as u64;
            assert_eq!(import(plain, 10), Some(ImportError::NotOfDevice));
            let second = machine.add_device(FakeOptions::default());
            let other = Device::fake(&machine, second).expect("added above");
            let refused = DeviceRegion::import(&other, at, 10, ()).err();
            assert_eq!(refused, Some(ImportError::NotOfDevice));
        });
    }

    #[test]
    fn a_handle_opens_the_same_memory_in_another_process() {
        with_machine(FakeOptions::default(), |machine, device| async move {
            let other = Device::fake(&machine, 0).expect("it is there");
            let memory = region(&device, 8192);
            let part = memory.slice(1000..3000);
            fill(&stream(&device), &part, &pattern(2000, 3)).await;
            let handle = part.ipc_handle().expect("plain memory");
            let wired = IpcHandle::from_bytes(&handle.to_bytes());
            assert_eq!(wired, handle);
            let opened = DeviceRegion::open_ipc(&other, &wired).expect("exported");
            assert_eq!(opened.len(), 2000);
            assert_eq!(seen(&stream(&other), &opened).await, pattern(2000, 3));
            fill(&stream(&other), &opened, &pattern(2000, 4)).await;
            assert_eq!(seen(&stream(&device), &part).await, pattern(2000, 4));
            // One's own handle is no other process's.
            assert!(DeviceRegion::open_ipc(&device, &wired).is_err());
        });
    }

    #[test]
    fn handles_of_strangers_are_refused() {
        with_machine(FakeOptions::default(), |machine, device| async move {
            let other = Device::fake(&machine, 0).expect("it is there");
            let memory = region(&device, 4096);
            let bytes = memory.ipc_handle().expect("plain memory").to_bytes();
            let open = |change: &dyn Fn(&mut [u8])| {
                let mut bytes = bytes;
                change(&mut bytes);
                DeviceRegion::open_ipc(&other, &IpcHandle::from_bytes(&bytes)).err()
            };
            assert_eq!(open(&|_| {}), None);
            let range = Some(ImportError::Range);
            assert_eq!(
                open(&|bytes| bytes[64] = 1),
                range,
                "it ends behind the memory"
            );
            assert_eq!(open(&|bytes| bytes[72..].fill(0)), range, "nothing of it");
            assert_eq!(open(&|bytes| bytes[64..].fill(0xff)), range);
            assert!(open(&|bytes| bytes[0] = 0).is_some());
            assert!(open(&|bytes| bytes[8] = 0xee).is_some());
        });
    }

    #[test]
    fn a_descriptor_opens_shareable_memory_in_another_process() {
        with_machine(FakeOptions::default(), |machine, device| async move {
            let other = Device::fake(&machine, 0).expect("it is there");
            let memory = DeviceRegion::alloc_shareable(&device, 4096).expect("supported");
            fill(&stream(&device), &memory, &pattern(4096, 5)).await;
            let exported = memory.export().expect("shareable");
            assert_eq!(
                (exported.allocation_bytes, exported.offset_bytes),
                (4096, 0)
            );
            let longer = DeviceRegion::import_shared(&other, exported.memory.as_fd(), 4097);
            assert!(longer.is_err());
            let nothing = DeviceRegion::import_shared(&other, exported.memory.as_fd(), 0);
            assert_eq!(nothing.err(), Some(ImportError::Range));
            let opened = DeviceRegion::import_shared(&other, exported.memory.as_fd(), 4096);
            let opened = opened.expect("exported");
            // The importer keeps it, whatever the exporter does.
            drop((memory, exported));
            assert_eq!(seen(&stream(&other), &opened).await, pattern(4096, 5));
            let plain = region(&device, 4096).export().expect_err("not shareable");
            assert!(plain.is_unavailable(), "{plain}");
        });
    }

    fn ways(region: &DeviceRegion) -> Vec<&'static str> {
        let name = |way| match way {
            AdapterWay::DmaBuf { .. } => "dma-buf",
            AdapterWay::PeerMemory(_) => "peer memory",
            AdapterWay::Staging => "staging",
        };
        region.adapter_ways().map(name).collect()
    }

    #[test]
    fn adapters_are_offered_what_there_is_the_best_first() {
        let table: [(bool, bool, &[&str]); 4] = [
            (true, true, &["dma-buf", "peer memory", "staging"]),
            (true, false, &["dma-buf", "staging"]),
            (false, true, &["peer memory", "staging"]),
            (false, false, &["staging"]),
        ];
        for (has_dma_buf, has_peer_memory, expected) in table {
            let options = FakeOptions {
                has_dma_buf,
                has_peer_memory,
                ..FakeOptions::default()
            };
            with_machine(options, move |_machine, device| async move {
                let memory = region(&device, 8192);
                assert_eq!(ways(&memory), expected);
                // An allocation that is not made of pages has no dma-buf.
                let odd = ways(&region(&device, 8191));
                assert!(!odd.contains(&"dma-buf") && odd.last() == Some(&"staging"));
            });
        }
    }

    #[test]
    fn a_dma_buf_is_of_the_allocation_and_says_where_the_region_begins() {
        with_machine(FakeOptions::default(), |_machine, device| async move {
            let part = region(&device, 8192).slice(100..200);
            let (dma_buf, offset) = part.dma_buf().expect("supported");
            assert_eq!(offset, 100);
            // Whoever has it and the device see the same bytes.
            let file = File::from(dma_buf);
            let stream = Stream::new(&device, StreamOptions::default()).expect("a stream");
            let mut bytes = arena().alloc(100).expect("room");
            bytes.as_mut_slice().fill(7);
            let (written, bytes) = stream.upload(bytes, 0, &part).await;
            written.expect("written");
            let mut found = [0; 102];
            file.read_exact_at(&mut found, 99).expect("read");
            assert_eq!(found[1..101], [7; 100]);
            assert!(found[0] != 7 && found[101] != 7);
            file.write_all_at(&[8; 50], 120).expect("written");
            let (read, bytes) = stream.download(&part, bytes, 0).await;
            read.expect("read");
            let expected = [vec![7; 20], vec![8; 50], vec![7; 30]].concat();
            assert_eq!(bytes.as_slice(), expected);
        });
        let without = FakeOptions {
            has_shareable: false,
            ..FakeOptions::default()
        };
        with_machine(without, |_machine, device| async move {
            let refused = DeviceRegion::alloc_shareable(&device, 4096).expect_err("told to");
            assert!(refused.is_unavailable());
            let refused: SetupError = region(&device, 4096).ipc_handle().expect_err("told to");
            assert!(refused.is_unavailable());
        });
    }
}
