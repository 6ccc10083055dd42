//! A drive's namespace by its character device, served to our host and to the kernel's.
//!
//! The drive is that of `LUNETTE_NVME_COMMANDS`, and `LUNETTE_NVME_BLOCKS` is its block device. Its
//! last 64 MiB are overwritten.

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use lunette_nvmeof::proto::completion::Status;
    use lunette_nvmeof::proto::io::Blocks;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{CommandError, NamespaceOptions, RemoteNamespace};
    use lunette_runtime::arena::RegionMut;
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local};

    use crate::blocks::{BlockDevice, fill};
    use crate::rig::{DIGESTS, KernelHost, TARGET_NAME, TARGET_UUID, bring_target_up, config, sh};
    use crate::server::{OurServer, Serves, name};

    const TIMEOUT: Duration = Duration::from_secs(60);
    /// What may be overwritten, at the end of the drive.
    const SCRATCH_BYTES: u64 = 64 << 20;
    const BLOCK: u64 = 4096;

    /// The character device and the block device, if there is a drive.
    fn drive(test: &str) -> Option<(String, String)> {
        let device = |name| std::env::var(name).ok();
        let found = device("LUNETTE_NVME_COMMANDS").zip(device("LUNETTE_NVME_BLOCKS"));
        if found.is_none() {
            println!("SKIP {test}: no NVMe drive is given to it");
        }
        found
    }

    fn run(scenario: impl AsyncFnOnce() + 'static) {
        block_on(None, CoreOptions::default(), move || async move {
            scenario().await
        })
        .expect("a core");
    }

    async fn connect(address: SocketAddr, digests: Digests) -> RemoteNamespace {
        let options = NamespaceOptions {
            path_timeout: TIMEOUT,
            ..NamespaceOptions::new(address, name(), config(digests))
        };
        RemoteNamespace::connect(options).await.expect("connected")
    }

    fn filled(len: usize, seed: usize) -> RegionMut {
        let mut region = arena().alloc(len).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from((index * 7 + index / 512 + seed) % 251).expect("a byte");
        }
        region
    }

    async fn read(namespace: &RemoteNamespace, offset: u64, len: usize) -> Vec<u8> {
        let region = arena().alloc(len).expect("room");
        let read = namespace.read(offset / BLOCK, region, TIMEOUT).await;
        read.expect("read").as_slice().to_vec()
    }

    async fn write(namespace: &RemoteNamespace, offset: u64, region: RegionMut) {
        let written = namespace.write(offset / BLOCK, region.freeze(), false, TIMEOUT);
        written
            .await
            .map_err(|failure| failure.error)
            .expect("written");
    }

    #[test]
    fn our_host_and_the_block_device_see_the_same_bytes() {
        const LONG: usize = (256 << 10) + 4096;
        let name = "our_host_and_the_block_device_see_the_same_bytes";
        let Some((commands, blocks)) = drive(name) else {
            return;
        };
        for digests in [DIGESTS[0], DIGESTS[3]] {
            let server = OurServer::start([50; 16], Serves::File(commands.clone()));
            let (address, blocks) = (server.address, blocks.clone());
            run(async move || {
                let namespace = connect(address, digests).await;
                let bytes = namespace.identity().blocks * BLOCK;
                assert_eq!(bytes, BlockDevice::len_bytes(&blocks));
                let on_the_drive = BlockDevice::open(&blocks);
                let start = bytes - SCRATCH_BYTES;
                // One command of the drive, the longest one, and more than one.
                for (len, seed) in [(4096, 1), (256 << 10, 2), (LONG, 3)] {
                    let expected = filled(len, seed).as_slice().to_vec();
                    write(&namespace, start, filled(len, seed)).await;
                    namespace.flush(TIMEOUT).await.expect("flushed");
                    assert!(on_the_drive.bytes_at(start, len) == expected, "{len}");
                    assert!(read(&namespace, start, len).await == expected, "{len}");
                }
                let zeroed = Blocks {
                    first: start / BLOCK + 1,
                    count: 60,
                };
                let zeroes = namespace.write_zeroes(zeroed, TIMEOUT).await;
                zeroes.map_err(|failure| failure.error).expect("zeroed");
                let mut expected = filled(LONG, 3);
                expected.as_mut_slice()[4096..61 * 4096].fill(0);
                assert!(on_the_drive.bytes_at(start, LONG) == expected.as_slice());
            });
        }
    }

    #[test]
    fn many_commands_are_under_way_at_once() {
        const WRITERS: u64 = 16;
        const ROUNDS: u64 = 4;
        const LEN: usize = 8 << 10;
        let name = "many_commands_are_under_way_at_once";
        let Some((commands, blocks)) = drive(name) else {
            return;
        };
        let server = OurServer::start([51; 16], Serves::File(commands));
        let address = server.address;
        run(async move || {
            let namespace = std::rc::Rc::new(connect(address, DIGESTS[3]).await);
            let start = namespace.identity().blocks * BLOCK - SCRATCH_BYTES;
            let place = move |piece: u64| start + piece * LEN as u64;
            let seed = |piece: u64| usize::try_from(piece).expect("small");
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let namespace = std::rc::Rc::clone(&namespace);
                    spawn_local(async move {
                        for round in 0..ROUNDS {
                            let piece = round * WRITERS + writer;
                            write(&namespace, place(piece), filled(LEN, seed(piece))).await;
                            let back = read(&namespace, place(piece), LEN).await;
                            assert!(back == filled(LEN, seed(piece)).as_slice(), "{piece}");
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await.expect("no panic");
            }
            namespace.flush(TIMEOUT).await.expect("flushed");
            let pieces = WRITERS * ROUNDS;
            let found = BlockDevice::open(&blocks).bytes_at(start, seed(pieces) * LEN);
            for (piece, found) in (0..pieces).zip(found.chunks(LEN)) {
                assert!(found == filled(LEN, seed(piece)).as_slice(), "{piece}");
            }
        });
    }

    #[test]
    fn the_kernel_finds_its_bytes_on_the_drive() {
        let name_of_test = "the_kernel_finds_its_bytes_on_the_drive";
        let Some((commands, blocks)) = drive(name_of_test) else {
            return;
        };
        let server = OurServer::start([52; 16], Serves::File(commands));
        let host = KernelHost::connect(server.address, &name(), DIGESTS[3], &[52; 16]);
        let (device, drive) = (host.path(), BlockDevice::open(&blocks));
        let start = BlockDevice::len_bytes(&device) - SCRATCH_BYTES;
        let device = BlockDevice::open(&device);
        let mut expected = vec![0; 1 << 20];
        fill(&mut expected, 9);
        device.write_at(start, &expected);
        assert!(device.bytes_at(start, 1 << 20) == expected, "by the host");
        assert!(drive.bytes_at(start, 1 << 20) == expected, "on the drive");
    }

    #[test]
    fn what_the_drive_answers_is_what_the_host_is_told() {
        // A drive of which a part cannot be read: the kernel's target, as the kernel's host has it.
        bring_target_up();
        let address = crate::rig::TARGET.parse().expect("an address");
        let subsystem = lunette_nvmeof::proto::nqn::Nqn::new(TARGET_NAME).expect("a name");
        let drive = KernelHost::connect(address, &subsystem, DIGESTS[0], &TARGET_UUID);
        let block_device = drive.path();
        let commands = block_device.replace("/dev/nvme", "/dev/ng");
        let server = OurServer::start([53; 16], Serves::File(commands));
        let address = server.address;
        let badblocks = "/sys/kernel/config/nullb/nullb7/badblocks";
        run(async move || {
            let namespace = connect(address, DIGESTS[0]).await;
            write(&namespace, 0, filled(256 << 10, 6)).await;
            sh(&format!("echo +128-135 >{badblocks}"));
            let region = arena().alloc(4096).expect("room");
            let failed = namespace.read(128 * 512 / BLOCK, region, TIMEOUT).await;
            sh(&format!("echo -128-135 >{badblocks}"));
            let failed = failed.map(drop).map_err(|failure| failure.error);
            // The target's own word for it; ours would be an unrecovered read.
            let told = CommandError::Status(Status::INTERNAL_ERROR.do_not_retry());
            assert_eq!(failed, Err(told));
            assert!(read(&namespace, 0, 256 << 10).await == filled(256 << 10, 6).as_slice());
        });
    }
}
