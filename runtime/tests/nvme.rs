//! A real NVMe drive: commands from the ring, and polling for completions.
//!
//! They run where a drive is given to them by `LUNETTE_NVME_COMMANDS`, the character device of a
//! namespace (`/dev/ng0n1`), and `LUNETTE_NVME_BLOCKS`, the block device of the same one. Its last
//! 64 MiB are overwritten.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime::vectored::{Message, Scatter};
use lunette_runtime::{
    CoreOptions, DriverChoice, DriverKind, Idle, OpError, arena, block_on, driver, spawn_local,
    time,
};
use rustix::io::Errno;

/// What may be overwritten, at the end of the drive.
const SCRATCH_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const DIRECT: OpenOptions = OpenOptions {
    direct: true,
    create: false,
    ..OpenOptions::READ_WRITE
};

/// The two devices of the drive, if there is one.
fn drive(test: &str) -> Option<(PathBuf, PathBuf)> {
    let device = |name| std::env::var_os(name).map(PathBuf::from);
    let found = device("LUNETTE_NVME_COMMANDS").zip(device("LUNETTE_NVME_BLOCKS"));
    if found.is_none() {
        println!("SKIP {test}: no NVMe drive is given to it");
    }
    found
}

/// Runs a scenario on io_uring. A core sleeps as soon as it has nothing to do, so that completions
/// have to wake it.
fn run<F: Future<Output = ()> + 'static>(scenario: impl FnOnce() -> F + Send + 'static) {
    let options = CoreOptions {
        driver: DriverChoice::Uring,
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, scenario).expect("io_uring");
}

async fn open(path: PathBuf, options: OpenOptions) -> (File, u64) {
    let file = File::open(path, options).await.expect("opened");
    let len = file.len_bytes().await.expect("a length");
    assert!(len > SCRATCH_BYTES, "a drive of {len} bytes");
    (file, len - SCRATCH_BYTES)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| u8::try_from((index / 512 * 7 + index + seed * 31) % 251).expect("small"))
        .collect()
}

#[test]
fn commands_and_the_block_device_see_the_same_bytes() {
    let name = "commands_and_the_block_device_see_the_same_bytes";
    let Some((commands, blocks)) = drive(name) else {
        return;
    };
    run(|| async move {
        let (commands, start) = open(commands, DIRECT).await;
        let (blocks, block_start) = open(blocks, DIRECT).await;
        assert_eq!(start, block_start, "one drive, one length");
        assert_eq!(commands.align_bytes() % 512, 0);
        const LEN: usize = 1 << 20;
        let mut region = arena().alloc(LEN).expect("room");
        region.as_mut_slice().copy_from_slice(&pattern(1, LEN));
        let (written, region) = commands.write_all_at(region, 0, LEN, start).await;
        written.expect("written by command, in several");
        commands.sync_data().await.expect("flushed");
        let (read, back) = blocks.read_exact_at(region, 0, LEN, start).await;
        read.expect("read from the block device");
        assert!(back.as_slice() == pattern(1, LEN), "what was written");

        let mut region = back;
        region.as_mut_slice().copy_from_slice(&pattern(2, LEN));
        let (written, region) = blocks.write_all_at(region, 0, LEN, start).await;
        written.expect("written to the block device");
        blocks.sync_data().await.expect("flushed");
        let (read, back) = commands.read_exact_at(region, 0, LEN, start).await;
        read.expect("read by command");
        assert!(back.as_slice() == pattern(2, LEN), "what was written");
    });
}

#[test]
fn many_commands_are_under_way_at_once_and_wake_a_core_that_sleeps() {
    const READERS: usize = 64;
    const ROUNDS: usize = 20;
    let name = "many_commands_are_under_way_at_once_and_wake_a_core_that_sleeps";
    let Some((commands, _)) = drive(name) else {
        return;
    };
    run(|| async move {
        let (file, start) = open(commands, DIRECT).await;
        let whole = pattern(3, READERS * BLOCK);
        let (written, whole) = file.write_all_at(whole, 0, READERS * BLOCK, start).await;
        written.expect("written");
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let file = file.clone();
                let expected = whole[reader * BLOCK..(reader + 1) * BLOCK].to_vec();
                spawn_local(async move {
                    let mut region = arena().alloc(BLOCK).expect("room");
                    for _ in 0..ROUNDS {
                        region.as_mut_slice().fill(0);
                        let at = start + (reader * BLOCK) as u64;
                        let (read, back) = file.read_exact_at(region, 0, BLOCK, at).await;
                        read.expect("read");
                        assert!(back.as_slice() == expected, "reader {reader}");
                        region = back;
                    }
                })
            })
            .collect();
        for reader in readers {
            let done = time::timeout(Duration::from_secs(60), reader).await;
            done.expect("no completion is lost").expect("no panic");
        }
    });
}

#[test]
fn lists_go_into_one_command() {
    let Some((commands, _)) = drive("lists_go_into_one_command") else {
        return;
    };
    run(|| async move {
        let (file, start) = open(commands, DIRECT).await;
        let mut message = Message::new();
        for part in 0..8 {
            let mut region = arena().alloc(BLOCK).expect("room");
            region.as_mut_slice().copy_from_slice(&pattern(part, BLOCK));
            message.payload(region.freeze());
        }
        let (written, _message) = file.write_message_at(message, start).await;
        written.expect("written");
        let mut scatter = Scatter::new();
        for _ in 0..4 {
            let region = arena().alloc(2 * BLOCK).expect("room");
            scatter.push(region, 0, 2 * BLOCK).expect("room");
        }
        let (read, scatter) = file.read_scatter_at(scatter, start).await;
        read.expect("read");
        let got: Vec<u8> = scatter
            .into_regions()
            .iter()
            .flat_map(|region| region.as_slice().to_vec())
            .collect();
        let expected: Vec<u8> = (0..8).flat_map(|part| pattern(part, BLOCK)).collect();
        assert!(got == expected, "each part at its place");

        let mut long = Scatter::new();
        let region = arena().alloc((256 << 10) + BLOCK).expect("room");
        let len = region.len();
        long.push(region, 0, len).expect("room");
        let (refused, long) = file.read_scatter_at(long, start).await;
        assert_eq!(refused, Err(OpError::Os(Errno::INVAL)), "too long a list");
        assert_eq!(long.len(), len, "nothing was read");
    });
}

#[test]
fn what_a_drive_cannot_do_is_said_and_hands_the_memory_back() {
    let name = "what_a_drive_cannot_do_is_said_and_hands_the_memory_back";
    let Some((commands, _)) = drive(name) else {
        return;
    };
    run(|| async move {
        let (file, start) = open(commands, DIRECT).await;
        let end = start + SCRATCH_BYTES;
        let (beyond, bytes) = file.read_at(vec![0; BLOCK], 0, BLOCK, end).await;
        let Err(OpError::Nvme(status)) = beyond else {
            unreachable!("LBA out of range: {beyond:?}")
        };
        assert_eq!(status & 0x7ff, 0x80, "{status:#x}");
        assert_eq!(bytes.len(), BLOCK);
        let block = file.align_bytes();
        for (len, at) in [(block - 1, start), (block, start + 1), (0, start)] {
            let (refused, _) = file.read_at(vec![0; BLOCK], 0, len, at).await;
            assert_eq!(refused, Err(OpError::Os(Errno::INVAL)), "{len} at {at}");
        }
        // The drive goes on.
        let (read, _) = file.read_at(vec![0; BLOCK], 0, BLOCK, start).await;
        assert_eq!(read, Ok(BLOCK));
        // One command's worth, and the caller asks for the rest.
        let (part, _) = file.read_at(vec![0; 1 << 20], 0, 1 << 20, start).await;
        assert_eq!(part, Ok(256 << 10));
    });
}

#[test]
fn without_a_ring_there_are_no_commands() {
    let Some((commands, _)) = drive("without_a_ring_there_are_no_commands") else {
        return;
    };
    on_each_driver::run(0, move || {
        let commands = commands.clone();
        async move {
            let opened = File::open(commands, DIRECT).await;
            match driver() {
                DriverKind::Uring(features) if features.device_commands => {
                    opened.expect("opened");
                }
                _ => {
                    let Err(FileError::Io(error)) = opened else {
                        unreachable!("epoll passes nothing on")
                    };
                    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
                }
            }
        }
    });
}

#[test]
fn a_drive_with_queues_for_it_is_polled() {
    let Some((_, blocks)) = drive("a_drive_with_queues_for_it_is_polled") else {
        return;
    };
    run(|| async move {
        let polled = OpenOptions {
            polled: true,
            ..DIRECT
        };
        let (file, start) = open(blocks, polled).await;
        let mut region = arena().alloc(16 * BLOCK).expect("room");
        let expected = pattern(5, 16 * BLOCK);
        region.as_mut_slice().copy_from_slice(&expected);
        let (written, mut region) = file.write_all_at(region, 0, 16 * BLOCK, start).await;
        written.expect("written");
        assert!(file.is_polled(), "the device took it");
        region.as_mut_slice().fill(0);
        let (read, region) = file.read_exact_at(region, 0, 16 * BLOCK, start).await;
        read.expect("read");
        assert!(region.as_slice() == expected);
        assert!(file.is_polled(), "the device took it");
    });
}
