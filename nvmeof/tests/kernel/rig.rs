//! The kernel's ends, by the files that it is steered with.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use lunette_nvmeof::HostConfig;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;

/// Where the kernel's target listens.
pub(crate) const TARGET: &str = "127.0.0.1:4421";
/// Where it listens, too, once [`bring_second_port_up`] has been called.
pub(crate) const SECOND_TARGET: &str = "127.0.0.1:4422";
/// Its subsystem.
pub(crate) const TARGET_NAME: &str = "nqn.2026-01.example:kernel";
/// Its namespace.
pub(crate) const TARGET_UUID: [u8; 16] = [0x77; 16];
/// Length of its namespace.
pub(crate) const TARGET_BYTES: u64 = 64 << 20;

pub(crate) const DIGESTS: [Digests; 4] = [
    Digests::NONE,
    Digests {
        header: true,
        data: false,
    },
    Digests {
        header: false,
        data: true,
    },
    Digests::BOTH,
];

/// Where the kernel's target is, if that is another machine: its address, and the name of its subsystem.
const ELSEWHERE: [&str; 2] = ["LUNETTE_NVMET_ADDRESS", "LUNETTE_NVMET_NQN"];

fn elsewhere() -> Option<[String; 2]> {
    let [address, name] = ELSEWHERE.map(|name| std::env::var(name).ok());
    Some([address?, name?])
}

/// Where the kernel's target listens, here or elsewhere.
pub(crate) fn target_address() -> SocketAddr {
    let address = elsewhere().map_or_else(|| TARGET.to_owned(), |[address, _]| address);
    address.parse().expect("an address")
}

/// Its subsystem.
pub(crate) fn target_name() -> Nqn {
    let name = elsewhere().map_or_else(|| TARGET_NAME.to_owned(), |[_, name]| name);
    Nqn::new(&name).expect("a name")
}

/// Runs a script, and fails with what it said if it fails.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("bash").args(["-euc", script]).output();
    let output = output.expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A target in the kernel, with a namespace in memory, unless there is one elsewhere.
pub(crate) fn bring_target_up() {
    if elsewhere().is_some() {
        return;
    }
    let (port, megabytes) = (4421, TARGET_BYTES >> 20);
    let uuid = "77777777-7777-7777-7777-777777777777";
    sh(&format!(
        "modprobe configfs; modprobe null_blk nr_devices=0; modprobe -a nvmet nvmet_tcp nvme_tcp
         mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
         target=/sys/kernel/config/nvmet; disk=/sys/kernel/config/nullb/nullb7
         subsystem=$target/subsystems/{TARGET_NAME}
         [[ -e $target/ports/7 ]] && exit 0
         mkdir $disk; echo {megabytes} >$disk/size; echo 1 >$disk/memory_backed
         echo 1 >$disk/discard; echo 1 >$disk/power
         mkdir $subsystem $subsystem/namespaces/1; echo 1 >$subsystem/attr_allow_any_host
         echo -n /dev/nullb7 >$subsystem/namespaces/1/device_path
         echo {uuid} >$subsystem/namespaces/1/device_uuid
         echo 1 >$subsystem/namespaces/1/enable
         mkdir $target/ports/7; cd $target/ports/7
         echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 127.0.0.1 >addr_traddr
         echo {port} >addr_trsvcid
         ln -s $subsystem subsystems/"
    ));
}

/// A second port of the target in the kernel.
pub(crate) fn bring_second_port_up() {
    bring_target_up();
    sh(&format!(
        "target=/sys/kernel/config/nvmet; [[ -e $target/ports/8 ]] && exit 0
         mkdir $target/ports/8; cd $target/ports/8
         echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 127.0.0.1 >addr_traddr
         echo 4422 >addr_trsvcid
         ln -s $target/subsystems/{TARGET_NAME} subsystems/"
    ));
}

/// Sets how the kernel's namespace can be reached by port 7 or 8.
pub(crate) fn set_target_state(port: u16, state: &str) {
    let groups = format!("/sys/kernel/config/nvmet/ports/{port}/ana_groups");
    sh(&format!("echo {state} >{groups}/1/ana_state"));
}

/// Whether the kernel can authenticate, as a host and as a target; says so if it cannot.
pub(crate) fn can_authenticate(test: &str) -> bool {
    // Both ends use it; older kernels have the option of the host without it.
    let can = sh("modprobe -q nvme_auth && echo yes || echo no").trim() == "yes";
    if !can {
        println!("SKIP {test}: this kernel cannot authenticate over NVMe/TCP");
    }
    can
}

/// A subsystem of the kernel's target, without namespaces, that [`config`]'s host alone may use
/// after it has proved `secret`; the controller then proves `of_controller`.
pub(crate) fn bring_closed_target_up(
    (hash, group): (&str, &str),
    secret: &str,
    of_controller: &str,
) -> Nqn {
    bring_target_up();
    let name = "nqn.2026-01.example:closed";
    sh(&format!(
        "cd /sys/kernel/config/nvmet; host=hosts/nqn.2026-01.example:host
         mkdir -p $host subsystems/{name}
         echo -n '{secret}' >$host/dhchap_key; echo -n '{of_controller}' >$host/dhchap_ctrl_key
         echo 'hmac({hash})' >$host/dhchap_hash; echo {group} >$host/dhchap_dhgroup
         allowed=subsystems/{name}/allowed_hosts/nqn.2026-01.example:host
         [[ -e $allowed ]] || ln -s $PWD/$host $allowed
         served=ports/7/subsystems/{name}
         [[ -e $served ]] || ln -s $PWD/subsystems/{name} $served"
    ));
    Nqn::new(name).expect("a name")
}

/// Cuts every connection to the kernel's target, which can be connected to again at once.
pub(crate) fn cut_target() {
    sh(&format!(
        "cd /sys/kernel/config/nvmet/ports/7/subsystems; rm {TARGET_NAME}
         ln -s /sys/kernel/config/nvmet/subsystems/{TARGET_NAME} ."
    ));
}

pub(crate) fn config(digests: Digests) -> HostConfig {
    let host = Nqn::new("nqn.2026-01.example:host").expect("a name");
    HostConfig {
        digests,
        io_queues: 2,
        keep_alive: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
        ..HostConfig::new(host, [9; 16])
    }
}

/// A controller that the kernel's host has connected; disconnected when dropped.
pub(crate) struct KernelHost {
    instance: String,
    pub(crate) device: PathBuf,
}

impl KernelHost {
    /// Connects to `address` and waits for the namespace with this UUID.
    pub(crate) fn connect(
        address: SocketAddr,
        subsystem: &Nqn,
        digests: Digests,
        uuid: &[u8; 16],
    ) -> Self {
        let connected = Self::connect_with(address, subsystem, digests, uuid, "");
        connected.expect("connected")
    }

    /// The same with more options.
    pub(crate) fn connect_with(
        address: SocketAddr,
        subsystem: &Nqn,
        digests: Digests,
        uuid: &[u8; 16],
        more: &str,
    ) -> io::Result<Self> {
        static LOADED: Once = Once::new();
        LOADED.call_once(|| {
            sh("modprobe nvme_tcp");
            // Kernel 6.1 joins neighbouring huge pages that it sends over loopback, and then stops
            // whoever receives them ("usercopy: Kernel memory exposure attempt detected").
            let huge_pages = "/sys/kernel/mm/transparent_hugepage/enabled";
            fs::write(huge_pages, "never").expect(huge_pages);
        });
        let mut options = format!(
            "transport=tcp,traddr={},trsvcid={},nqn={subsystem},reconnect_delay=1,nr_io_queues=2,\
             queue_size=64,hostnqn=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001,\
             hostid=00000000-0000-4000-8000-000000000001{more}",
            address.ip(),
            address.port()
        );
        for (is_on, option) in [
            (digests.header, ",hdr_digest"),
            (digests.data, ",data_digest"),
        ] {
            if is_on {
                options += option;
            }
        }
        let fabrics = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/nvme-fabrics");
        let mut fabrics = fabrics.expect("the kernel's host");
        fabrics.write_all(options.as_bytes())?;
        let mut answer = [0; 256];
        let count = fabrics.read(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        let instance = answer
            .split(',')
            .next()
            .and_then(|first| first.split('=').nth(1));
        let instance = format!("nvme{}", instance.expect("an instance").trim());
        let device = device_with(uuid);
        Ok(Self { instance, device })
    }

    pub(crate) fn path(&self) -> String {
        self.device.display().to_string()
    }

    /// How the controller's namespace can be reached by it, as the kernel knows.
    pub(crate) fn ana_state(&self) -> String {
        let found = sh(&format!(
            "cat /sys/class/nvme/{0}/nvme*n*/ana_state",
            self.instance
        ));
        found.trim().to_owned()
    }

    pub(crate) fn state(&self) -> String {
        let state = fs::read_to_string(format!("/sys/class/nvme/{}/state", self.instance));
        state.unwrap_or_default().trim().to_owned()
    }
}

impl Drop for KernelHost {
    fn drop(&mut self) {
        let path = format!("/sys/class/nvme/{}/delete_controller", self.instance);
        if let Err(error) = fs::write(&path, "1") {
            eprintln!("{path}: {error}");
        }
    }
}

/// The block device of the namespace with this UUID, once it is there.
fn device_with(uuid: &[u8; 16]) -> PathBuf {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let entries = fs::read_dir("/sys/block").expect("sysfs");
        for entry in entries.flatten() {
            let found = fs::read_to_string(entry.path().join("uuid")).unwrap_or_default();
            let device = PathBuf::from("/dev").join(entry.file_name());
            if found.trim().replace('-', "") == hex && device.exists() {
                return device;
            }
        }
        assert!(
            Instant::now() < deadline,
            "no namespace with the UUID {hex} appeared"
        );
        thread::sleep(Duration::from_millis(50));
    }
}
