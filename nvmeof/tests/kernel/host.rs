//! The kernel's host against our server.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use lunette_nvmeof::proto::auth::{Credentials, Group, Hash, Secret};
    use lunette_nvmeof::proto::controller::Secrets;

    use crate::blocks::BlockDevice;
    use crate::rig::{DIGESTS, KernelHost, can_authenticate, sh};
    use crate::server::{DISK_BYTES, OurServer, Serves, name};

    #[test]
    fn the_kernel_finds_its_bytes_under_every_digest() {
        for (index, digests) in (1..).zip(DIGESTS) {
            let server = OurServer::start([index; 16], Serves::Memory);
            let host = KernelHost::connect(server.address, &name(), digests, &[index; 16]);
            let path = host.path();
            assert_eq!(BlockDevice::len_bytes(&path), DISK_BYTES);
            let device = BlockDevice::open(&path);
            // In the capsule, with little and with much, by R2T, and by more than one command.
            for blocks in [(4096, 32), (61_440, 8), (196_608, 4), (2 << 20, 2)] {
                device.verify(usize::from(index), blocks, |_| {});
            }
            device.verify_zeroes(usize::from(index), 1 << 20);
            sh(&format!("blkdiscard {path}"));
            drop(host);
        }
    }

    #[test]
    fn the_kernel_proves_itself_to_us_and_we_to_it() {
        if !can_authenticate("the_kernel_proves_itself_to_us_and_we_to_it") {
            return;
        }
        let secret = |byte, hash| Secret::new(&[byte; 32], Some(hash)).expect("a secret");
        let host = secret(1, Hash::Sha256);
        let controller = secret(2, Hash::Sha384);
        for (index, hash, group) in [
            (70, Hash::Sha256, Group::Null),
            (71, Hash::Sha384, Group::Ffdhe2048),
            (72, Hash::Sha512, Group::Ffdhe3072),
        ] {
            let credentials = Credentials {
                hashes: vec![hash],
                groups: vec![group],
                ..Credentials::new(host.clone(), Some(controller.clone()))
            };
            let secrets = Secrets {
                of_others: Some(Arc::new(credentials)),
                ..Secrets::default()
            };
            let server = OurServer::start_with([index; 16], Serves::Memory, secrets);
            let connect = |host: &Secret, controller: Option<&Secret>| {
                let mut options = format!(",dhchap_secret={}", &*host.reveal());
                if let Some(controller) = controller {
                    options += &format!(",dhchap_ctrl_secret={}", &*controller.reveal());
                }
                let (address, uuid) = (server.address, [index; 16]);
                KernelHost::connect_with(address, &name(), DIGESTS[0], &uuid, &options)
            };
            for controller in [None, Some(&controller)] {
                let connected = connect(&host, controller).expect("connected");
                let device = BlockDevice::open(&connected.path());
                device.verify(usize::from(index), (4096, 8), |_| {});
                drop(device);
            }
            let refused = connect(&controller, None).map(drop);
            assert!(refused.is_err(), "{hash:?} {group:?}");
            let refused = connect(&host, Some(&host)).map(drop);
            assert!(refused.is_err(), "{hash:?} {group:?}");
        }
    }

    #[test]
    fn a_file_system_lives_there() {
        let server = OurServer::start([20; 16], Serves::Memory);
        let host = KernelHost::connect(server.address, &name(), DIGESTS[3], &[20; 16]);
        let device = host.path();
        file_system(&device);
    }

    /// Files of many lengths come back, from a file system that is found to be sound.
    fn file_system(device: &str) {
        const FOLDER: &str = "/run/nvmeof";
        let contents = |index: usize| -> Vec<u8> {
            let len = (index * index * 977) % (96 << 10);
            (0..len)
                .map(|at| u8::try_from((at * 7 + index) % 251).expect("a byte"))
                .collect()
        };
        let file = |index: usize| format!("{FOLDER}/{}/{index}", index % 3);
        sh(&format!(
            "modprobe ext4; mkfs.ext4 -q -F {device}
             mkdir -p {FOLDER}; mount {device} {FOLDER}; mkdir {FOLDER}/0 {FOLDER}/1 {FOLDER}/2"
        ));
        for index in 0..48 {
            fs::write(file(index), contents(index)).expect("written");
        }
        for index in (0..48).step_by(5) {
            fs::remove_file(file(index)).expect("removed");
        }
        sh(&format!(
            "umount {FOLDER}; fsck.ext4 -f -n {device} >/run/fsck 2>&1; mount {device} {FOLDER}"
        ));
        for index in 0..48 {
            let expected = (index % 5 > 0).then(|| contents(index));
            assert!(fs::read(file(index)).ok() == expected, "file {index}");
        }
        sh(&format!("umount {FOLDER}"));
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
        let device = BlockDevice::open(&host.path());
        device.verify(40, (64 << 10, 128), |index| {
            if index == 40 {
                server.cut();
            }
        });
        assert_eq!(host.state(), "live");
    }
}
