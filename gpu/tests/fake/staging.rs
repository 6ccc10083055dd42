//! Between files and device memory.

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
    use lunette_gpu::staging::{STAGED_PIECES_MAX, StagingError, StagingOptions};
    use lunette_gpu::{CopyError, Device, SetupError};
    use lunette_runtime::fs::{File, OpenOptions};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, Idle, arena, time};

    use crate::rig::{fill, on_core, pattern, region, seen, stream};

    const LEN: usize = 100_000;

    fn options(piece_bytes: usize, pieces: usize) -> StagingOptions {
        StagingOptions {
            piece_bytes,
            pieces,
        }
    }

    /// Out to a file and back into other memory, in pieces of all sizes.
    async fn there_and_back(device: Device, path: PathBuf) {
        let stream = stream(&device);
        let (from, to) = (region(&device, LEN as u64), region(&device, LEN as u64));
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("a file");
        let used = arena().used_bytes();
        for (round, (piece, pieces)) in (0..).zip([(1 << 20, 1), (4096, 2), (10_000, 3), (777, 16)])
        {
            fill(&stream, &from, &pattern(LEN, round)).await;
            let staged = options(piece, pieces);
            let written = stream.write_file(&from, (&file, 4096), staged).await;
            assert_eq!(written, Ok(()));
            let read = stream.read_file((&file, 4096), &to, staged).await;
            assert_eq!(read, Ok(()));
            assert_eq!(seen(&stream, &to).await, pattern(LEN, round));
        }
        assert_eq!(arena().used_bytes(), used);
    }

    fn device() -> (FakeMachine, Device) {
        let machine = FakeMachine::new(9);
        let index = machine.add_device(FakeOptions::default());
        let device = Device::fake(&machine, index).expect("added above");
        (machine, device)
    }

    #[test]
    fn bytes_go_to_files_and_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages");
        on_core(Idle::default(), || there_and_back(device().1, path.clone()));
    }

    #[test]
    fn bytes_go_to_simulated_drives_and_back() {
        for seed in 0..5 {
            let mut world = World::new(seed, WorldOptions::default());
            let process = world.start([10, 0, 0, 1].into(), 1, CoreOptions::default());
            let story = || there_and_back(device().1, Path::new("/pages").into());
            let done = world.spawn(process, 0, story);
            let until = world.now() + Duration::from_secs(60);
            assert!(world.run_until(until, || done.is_there()), "seed {seed}");
        }
    }

    #[test]
    fn whatever_fails_is_told_when_nothing_is_in_flight() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("short");
        std::fs::write(&path, pattern(LEN - 1, 0)).expect("written");
        on_core(Idle::default(), || async move {
            let (machine, device) = device();
            let stream = stream(&device);
            let memory = region(&device, LEN as u64);
            let file = File::open(&path, OpenOptions::READ).await.expect("a file");
            let used = arena().used_bytes();
            let short = stream
                .read_file((&file, 0), &memory, options(4096, 4))
                .await;
            assert!(matches!(short, Err(StagingError::File(_))), "{short:?}");
            let denied = stream
                .write_file(&memory, (&file, 0), options(4096, 4))
                .await;
            assert!(matches!(denied, Err(StagingError::File(_))), "{denied:?}");
            machine.inject(0, Fault::Refused { after: 5, code: 1 });
            let part = memory.slice(0..LEN as u64 - 1);
            let refused = stream.read_file((&file, 0), &part, options(4096, 4)).await;
            assert!(matches!(
                refused,
                Err(StagingError::Copy(CopyError::Failed(_)))
            ));
            assert_eq!((stream.in_flight(), arena().used_bytes()), (0, used));
            machine.inject(0, Fault::Poisoned { code: 700 });
            let dead = stream.read_file((&file, 0), &part, options(4096, 4)).await;
            assert!(matches!(
                dead,
                Err(StagingError::Copy(CopyError::Poisoned(_)))
            ));
            assert_eq!((stream.in_flight(), arena().used_bytes()), (0, used));
        });
    }

    #[test]
    fn options_are_checked_from_both_sides_and_a_drop_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages");
        std::fs::write(&path, pattern(LEN, 0)).expect("written");
        on_core(Idle::default(), || async move {
            let (_machine, device) = device();
            let stream = stream(&device);
            let memory = region(&device, LEN as u64);
            let file = File::open(&path, OpenOptions::READ).await.expect("a file");
            let used = arena().used_bytes();
            let read = async |piece, pieces| {
                let options = options(piece, pieces);
                stream.read_file((&file, 0), &memory, options).await
            };
            let size = Err(StagingError::Room(SetupError::Size));
            assert_eq!(read(4096, STAGED_PIECES_MAX).await, Ok(()));
            assert_eq!(read(4096, STAGED_PIECES_MAX + 1).await, size);
            assert_eq!(read(4096, 0).await, size);
            assert_eq!(read(0, 1).await, size);
            let full = Err(StagingError::Room(SetupError::Full));
            assert_eq!(read(1 << 40, 1).await, full);
            let late = time::timeout(Duration::from_micros(50), read(512, 8)).await;
            assert!(late.is_err(), "200 pieces take longer");
            let began = time::now();
            while arena().used_bytes() > used {
                assert!(time::now().since(began) < crate::rig::SOON);
                time::sleep(Duration::from_micros(100)).await;
            }
        });
    }
}
