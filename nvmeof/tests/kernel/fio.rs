//! fio writes, reads back and compares, through the kernel's host, on our server.

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::rig::{DIGESTS, KernelHost, sh};
    use crate::server::{OurServer, Serves, name};

    fn has_fio(test: &str) -> bool {
        let found = Command::new("fio").arg("--version").output().is_ok();
        if !found {
            println!("SKIP {test}: no fio");
        }
        found
    }

    /// A job of `name`: random writes of `blocks` all over the first megabyte of the device, each of
    /// which is then found again by its checksum.
    fn verification(name: &str, device: &str, blocks: &str, depth: u32) -> String {
        format!(
            "--name={name} --stonewall --filename={device} --direct=1 --ioengine=libaio \
             --iodepth={depth} --rw=randwrite --size=1M --bsrange={blocks} --blockalign=4k \
             --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 \
             --verify_state_save=0 --minimal"
        )
    }

    /// One that reads and writes at once, and compares what was written as it goes.
    fn mix(device: &str, depth: u32) -> String {
        format!(
            "--name=mix --stonewall --filename={device} --direct=1 --ioengine=io_uring \
             --iodepth={depth} --rw=randrw --size=1M --bs=4k --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
             --verify_state_save=0 --minimal"
        )
    }

    #[test]
    fn fio_finds_what_it_wrote_with_and_without_digests() {
        if !has_fio("fio_finds_what_it_wrote_with_and_without_digests") {
            return;
        }
        for (index, digests) in [(60, DIGESTS[0]), (61, DIGESTS[3])] {
            let server = OurServer::start([index; 16], Serves::Memory);
            let host = KernelHost::connect(server.address, &name(), digests, &[index; 16]);
            let device = host.path();
            // One program, one job after the other.
            sh(&format!(
                "cd ${{TMPDIR:-/tmp}}; fio {} {} {}",
                verification("short", &device, "4k-4k", 32),
                verification("mixed", &device, "4k-256k", 8),
                mix(&device, 16)
            ));
        }
    }

    #[test]
    fn fio_would_find_a_block_that_was_lost() {
        if !has_fio("fio_would_find_a_block_that_was_lost") {
            return;
        }
        let server = OurServer::start([64; 16], Serves::Memory);
        let host = KernelHost::connect(server.address, &name(), DIGESTS[0], &[64; 16]);
        let device = host.path();
        let verification = format!("fio {}", verification("lost", &device, "4k-4k", 32));
        sh(&verification);
        sh(&format!("{verification} --verify_only"));
        sh(&format!(
            "dd if=/dev/zero of={device} bs=4k seek=77 count=1 oflag=direct conv=notrunc status=none
             ! {verification} --verify_only"
        ));
    }
}
