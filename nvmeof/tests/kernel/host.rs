//! The kernel's host against our server.

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use crate::rig::{DIGESTS, KernelHost, sh};
    use crate::server::{OurServer, Serves, name};

    /// Bytes go there and come back, around the page cache, in blocks of `block`.
    fn verify(device: &str, block: &str, count: u32) {
        sh(&format!(
            "cd ${{TMPDIR:-/tmp}}; dd if=/dev/urandom of=in bs={block} count={count} status=none
             dd if=in of={device} bs={block} oflag=direct conv=notrunc status=none
             dd if={device} of=out bs={block} count={count} iflag=direct status=none
             cmp in out; rm in out"
        ));
    }

    #[test]
    fn the_kernel_finds_its_bytes_under_every_digest() {
        for (index, digests) in (1..).zip(DIGESTS) {
            let server = OurServer::start([index; 16], Serves::Memory);
            let host = KernelHost::connect(server.address, &name(), digests, &[index; 16]);
            let device = host.path();
            assert_eq!(
                sh(&format!("blockdev --getsize64 {device}")).trim(),
                "67108864"
            );
            verify(&device, "4k", 64);
            verify(&device, "60k", 16);
            verify(&device, "1M", 8);
            sh(&format!("blkdiscard -z -l 1M {device}"));
            let zeroes = sh(&format!(
                "dd if={device} bs=1M count=1 iflag=direct status=none | tr -d '\\0' | wc -c"
            ));
            assert_eq!(zeroes.trim(), "0");
            sh(&format!("blkdiscard {device}"));
            drop(host);
        }
    }

    #[test]
    fn a_file_system_lives_there() {
        let server = OurServer::start([20; 16], Serves::Memory);
        let host = KernelHost::connect(server.address, &name(), DIGESTS[3], &[20; 16]);
        let device = host.path();
        file_system(&device);
    }

    fn file_system(device: &str) {
        sh(&format!(
            "modprobe ext4; mkfs.ext4 -q -F {device}
             mkdir -p /run/nvmeof; mount {device} /run/nvmeof
             cp -r /bin/bash /etc /run/nvmeof/ 2>/dev/null || true
             cd /run/nvmeof; find . -type f -exec sha256sum {{}} + >/run/before; sync; cd /
             umount /run/nvmeof; fsck.ext4 -f -n {device} >/run/fsck 2>&1
             mount {device} /run/nvmeof; cd /run/nvmeof
             sha256sum --quiet -c /run/before; cd /; umount /run/nvmeof"
        ));
        assert!(sh("wc -l </run/before").trim() != "0");
    }

    #[test]
    fn a_file_system_lives_in_a_file() {
        let file = "/run/nvmeof-disk";
        sh(&format!("truncate -s 64M {file}"));
        let server = OurServer::start([30; 16], Serves::File(file.to_owned()));
        let host = KernelHost::connect(server.address, &name(), DIGESTS[0], &[30; 16]);
        file_system(&host.path());
        drop(host);
        drop(server);
        sh(&format!(
            "fsck.ext4 -f -n {file} >/run/fsck 2>&1; rm {file}"
        ));
    }

    #[test]
    fn the_kernel_comes_back_after_a_cut_and_loses_nothing() {
        let server = OurServer::start([40; 16], Serves::Memory);
        let host = KernelHost::connect(server.address, &name(), DIGESTS[0], &[40; 16]);
        let device = host.path();
        let writing = thread::spawn(move || verify(&device, "64k", 256));
        thread::sleep(Duration::from_millis(100));
        server.cut();
        writing.join().expect("every byte came through");
        assert_eq!(host.state(), "live");
    }
}
