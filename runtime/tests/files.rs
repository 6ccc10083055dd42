//! Files on each driver: pieces, ends, direct access, errors, cancellation.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use lunette_runtime::fs::{DIRECT_ALIGN_BYTES, File, FileError, FileStamp, OpenOptions};
use lunette_runtime::vectored::{Message, Scatter};
use lunette_runtime::{
    DriverKind, OpError, RegisterError, arena, driver, register_arena, spawn_local, time,
};
use rustix::io::Errno;

const WORLDS: u64 = 10;

/// Runs a scenario on each driver, with the path of a file that is not there yet.
fn run<F: Future<Output = ()> + 'static>(scenario: impl Fn(PathBuf) -> F) {
    on_each_driver::run(WORLDS, || {
        let folder = tempfile::tempdir().expect("a folder");
        let done = scenario(folder.path().join("file"));
        async move {
            done.await;
            drop(folder);
        }
    });
}

#[test]
fn what_is_written_is_read_anywhere_in_the_file() {
    run(|path| async move {
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("made");
        let text = b"what is written is read".to_vec();
        let len = text.len();
        let (written, text) = file.write_all_at(text, 0, len, 1000).await;
        written.expect("written");
        file.sync_data().await.expect("synced");
        let (read, buffer) = file.read_exact_at(vec![0; len + 4], 2, len, 1000).await;
        read.expect("read");
        assert_eq!(&buffer[2..len + 2], text);
        assert_eq!(
            (&buffer[..2], &buffer[len + 2..]),
            (&[0; 2][..], &[0; 2][..])
        );
        let (hole, buffer) = file.read_at(vec![9; 10], 0, 10, 990).await;
        assert_eq!((hole, buffer), (Ok(10), vec![0; 10]));
        let (end, _) = file.read_at(vec![0; 10], 0, 10, 1000 + len as u64).await;
        assert_eq!(end, Ok(0));
        let (short, _) = file
            .read_exact_at(vec![0; 10], 0, 10, 1000 + len as u64 - 5)
            .await;
        assert_eq!(short, Err(OpError::Os(Errno::NODATA)));
    });
}

#[test]
fn direct_access_goes_between_regions_and_an_allocated_file() {
    run(|path| async move {
        let direct = OpenOptions {
            direct: true,
            ..OpenOptions::READ_WRITE
        };
        let file = match File::open(&path, direct).await {
            Ok(file) => file,
            Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                println!(
                    "SKIP direct_access_goes_between_regions_and_an_allocated_file: this file system has none"
                );
                return;
            }
            Err(error) => unreachable!("{error}"),
        };
        const LEN: usize = 1 << 20;
        const BLOCK: usize = 4096;
        file.allocate(2 * LEN as u64).await.expect("room");
        let mut region = arena().alloc(LEN).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from(index / DIRECT_ALIGN_BYTES % 251).expect("small");
        }
        let region = region.freeze();
        let (written, region) = file.write_all_at(region, 0, LEN, LEN as u64).await;
        written.expect("written");
        file.sync_data().await.expect("synced");
        let reads: Vec<_> = (0..LEN / BLOCK)
            .map(|block| {
                let file = file.clone();
                spawn_local(async move {
                    let buffer = arena().alloc(BLOCK).expect("room");
                    let offset = (LEN + block * BLOCK) as u64;
                    let (read, buffer) = file.read_exact_at(buffer, 0, BLOCK, offset).await;
                    read.expect("read");
                    buffer
                })
            })
            .collect();
        for (block, read) in reads.into_iter().enumerate() {
            let buffer = read.await.expect("no panic");
            let expected = &region.as_slice()[block * BLOCK..(block + 1) * BLOCK];
            assert!(buffer.as_slice() == expected, "block {block}");
        }
    });
}

#[test]
fn errors_are_the_systems_and_buffers_come_back() {
    run(|path| async move {
        let missing = File::open(&path, OpenOptions::READ)
            .await
            .expect_err("not there");
        assert!(matches!(missing, FileError::Io(e) if e.kind() == std::io::ErrorKind::NotFound));
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("made");
        let read_only = File::open(&path, OpenOptions::READ).await.expect("opened");
        let (written, buffer) = read_only.write_at(vec![1, 2, 3], 0, 3, 0).await;
        assert_eq!(
            (written, buffer),
            (Err(OpError::Os(Errno::BADF)), vec![1, 2, 3])
        );
        let error = file.allocate(0).await.expect_err("no bytes");
        assert!(matches!(error, FileError::Io(e) if e.kind() == std::io::ErrorKind::InvalidInput));
    });
}

#[test]
fn a_dropped_read_keeps_its_region_until_it_has_ended() {
    run(|path| async move {
        const LEN: usize = 1 << 20;
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("made");
        let (written, _) = file.write_all_at(vec![7; LEN], 0, LEN, 0).await;
        written.expect("written");
        for _ in 0..20 {
            let reading = file.clone();
            let read = spawn_local(async move {
                let region = arena().alloc(LEN).expect("room");
                reading.read_at(region, 0, LEN, 0).await
            });
            time::yield_now().await;
            read.abort();
        }
        let deadline = time::now() + Duration::from_secs(5);
        while arena().used_bytes() > 0 {
            assert!(time::now() < deadline, "every region comes back");
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn lists_are_scattered_and_gathered_across_their_parts() {
    run(|path| async move {
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("made");
        let mut message = Message::new();
        message.control(|out| out.extend_from_slice(b"head"));
        let mut region = arena().alloc(100_000).expect("room");
        for (at, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from(at % 253).expect("small");
        }
        let region = region.freeze();
        message.payload(region.clone());
        let total = message.len();
        let (written, message) = file.write_message_at(message, 10).await;
        written.expect("written");
        assert!(message.is_empty());
        let mut scatter = Scatter::new();
        for len in [1, 4000, 7, total - 4008] {
            let part = arena().alloc(len + 3).expect("room");
            scatter.push(part, 3, len).expect("room in the list");
        }
        let (read, scatter) = file.read_scatter_at(scatter, 10).await;
        read.expect("read");
        let mut got = Vec::new();
        for part in scatter.into_regions() {
            got.extend_from_slice(&part.as_slice()[3..]);
        }
        assert_eq!(&got[..4], b"head");
        assert_eq!(&got[4..], region.as_slice());
        let mut beyond = Scatter::new();
        let part = arena().alloc(total + 1).expect("room");
        beyond.push(part, 0, total + 1).expect("room in the list");
        let (end, beyond) = file.read_scatter_at(beyond, 10).await;
        assert_eq!(end, Err(OpError::Os(Errno::NODATA)));
        assert_eq!(beyond.len(), 1, "all but the byte that is not there");
    });
}

#[test]
fn registered_memory_is_read_and_written_as_any_other() {
    run(|path| async move {
        let mut region = arena().alloc(1 << 16).expect("room");
        match register_arena() {
            Ok(chunks) => assert_eq!(chunks, 1),
            Err(RegisterError::Unsupported) => {
                assert!(!matches!(driver(), DriverKind::Uring(_)));
            }
            Err(error) => panic!("{error}"),
        }
        // Nothing is registered twice.
        assert_eq!(register_arena(), register_arena());
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::READ_WRITE
        };
        let file = match File::open(&path, options).await {
            Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                println!("SKIP registered_memory_is_read_and_written_as_any_other: no O_DIRECT");
                return;
            }
            other => other.expect("made"),
        };
        region.as_mut_slice().fill(3);
        let (written, mut region) = file.write_all_at(region, 0, 1 << 16, 0).await;
        written.expect("written");
        region.as_mut_slice().fill(0);
        let (read, region) = file.read_exact_at(region, 512, 4096, 8192).await;
        read.expect("read");
        let bytes = region.as_slice();
        assert!(bytes[512..4608].iter().all(|&byte| byte == 3));
        assert!(
            bytes[..512]
                .iter()
                .chain(&bytes[4608..])
                .all(|&byte| byte == 0)
        );
    });
}

#[test]
fn a_device_that_cannot_be_polled_is_used_the_ordinary_way() {
    run(|path| async move {
        let options = OpenOptions {
            direct: true,
            polled: true,
            ..OpenOptions::READ_WRITE
        };
        let file = match File::open(&path, options).await {
            Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                println!(
                    "SKIP a_device_that_cannot_be_polled_is_used_the_ordinary_way: no O_DIRECT"
                );
                return;
            }
            other => other.expect("made"),
        };
        assert!(file.is_polled());
        let writing: Vec<_> = (0..40_u8)
            .map(|number| {
                let file = file.clone();
                spawn_local(async move {
                    let mut region = arena().alloc(4096).expect("room");
                    region.as_mut_slice().fill(number);
                    let offset = u64::from(number) * 4096;
                    let (written, _) = file.write_all_at(region, 0, 4096, offset).await;
                    written.expect("written, polled or not");
                })
            })
            .collect();
        for write in writing {
            write.await.expect("ran");
        }
        for number in 0..40_u8 {
            let region = arena().alloc(4096).expect("room");
            let offset = u64::from(number) * 4096;
            let (read, region) = file.read_exact_at(region, 0, 4096, offset).await;
            read.expect("read, polled or not");
            assert!(region.as_slice().iter().all(|&byte| byte == number));
        }
        println!("polled: {}", file.is_polled());
    });
}

#[test]
fn changes_of_a_file_are_seen_in_its_stamp() {
    run(|path| async move {
        let file = File::open(&path, OpenOptions::READ_WRITE)
            .await
            .expect("made");
        let stamp = async || file.stamp().await.expect("told");
        // So that each change is in a tick of its own.
        let tick = async || time::sleep(FileStamp::TICK_MAX * 2).await;
        let empty = stamp().await;
        assert_eq!((empty.len_bytes(), stamp().await), (0, empty));
        tick().await;
        file.write_all_at(vec![1; 9], 0, 9, 0)
            .await
            .0
            .expect("written");
        let longer = stamp().await;
        assert_eq!(longer.len_bytes(), 9);
        tick().await;
        file.write_all_at(vec![2; 1], 0, 1, 4)
            .await
            .0
            .expect("written");
        let other = stamp().await;
        assert_eq!(other.len_bytes(), 9);
        assert_ne!(other, longer);
        tick().await;
        file.read_exact_at(vec![0; 9], 0, 9, 0)
            .await
            .0
            .expect("read");
        assert_eq!(stamp().await, other, "a read changes nothing");
    });
}
