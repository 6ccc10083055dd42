//! `cargo xtask vm`: a command in a throw-away Linux machine that has RDMA and NVMe devices.
//!
//! QEMU emulates the machine in software, so neither hardware nor KVM is needed, and times say
//! nothing. The guest boots one of Debian's kernels and sees the host's own tree, read-only, below
//! an overlay in memory: a program built on the host runs in the guest at the same path, in the
//! same folder, and what it writes is gone with the machine.
//!
//! ```text
//!   host                                   guest
//!   target/vm/kernel-RELEASE ──PVH boot──▶ init.sh: 9p tree + overlay
//!   run folder/guest         ──9p────────▶ guest.sh: ports, devices, then the command
//!   stdout, stderr, control  ◀──virtio──── its outputs; ready, failed, exit STATUS
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`cost`] | what a request costs, beside perftest's |
//! | [`disks`] | our ends of NVMe/TCP beside the kernel's |
//! | [`forwarded`] | our NVMe/TCP host on this machine, the kernel's target in another one |
//! | [`iwarp`] | the soft-iWARP module, compiled |
//! | [`kernel`] | Debian's kernels: which, fetched, unpacked, with an initial file system |
//! | [`machine`] | one run: QEMU, its channels, its end |
//! | [`suite`] | the lane: which test binaries run on which kernel |

mod cost;
mod disks;
mod forwarded;
mod iwarp;
mod kernel;
mod machine;
pub(crate) mod suite;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use crate::system::{self, Need};
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};
use kernel::Kernel;
use machine::Machine;

/// What makes and boots a machine.
const TOOLS: &[Need] = &[
    Need::new("qemu-system-x86", &["qemu-system-x86_64", "--version"]),
    Need::new("busybox-static", &["busybox", "true"]),
    Need::new("cpio", &["cpio", "--version"]),
    Need::new("kmod", &["modprobe", "--version"]),
    Need::new("zstd", &["zstd", "--version"]),
    Need::new("xz-utils", &["xz", "--version"]),
    Need::new("iproute2", &["rdma", "-V"]),
    Need::new(
        "ibverbs-providers",
        &["sh", "-c", "ls /usr/lib*/*/libibverbs/librxe-*.so"],
    ),
    // Writes and verifies at random through the kernel's NVMe/TCP host.
    Need::new("fio", &["fio", "--version"]),
    // For the test of the ABI against the C headers.
    Need::new(
        "libibverbs-dev",
        &["test", "-e", "/usr/include/infiniband/verbs.h"],
    ),
    Need::new(
        "librdmacm-dev",
        &["test", "-e", "/usr/include/rdma/rdma_cma.h"],
    ),
];

/// The oldest kernel that the project supports, and the newest that Debian 12 offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Series {
    /// Debian 12's own kernel, the oldest supported.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's newest kernel.
    #[value(name = "6.12")]
    V6_12,
}

/// The devices that carry RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rdma {
    /// None.
    None,
    /// Soft-RoCE: rxe0 and rxe1 on two ports linked to each other.
    Rxe,
    /// Soft-iWARP: siw0 and siw1 on the same ports; kernel 6.12 alone. Compiled on first use.
    Siw,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kernel series.
    #[arg(long, value_enum, default_value = "6.12")]
    pub(crate) kernel: Series,
    /// RDMA devices on net0 (10.1.0.1) and net1 (10.1.0.2).
    #[arg(long, value_enum, default_value = "rxe")]
    pub(crate) rdma: Rdma,
    /// A kernel NVMe/TCP target on port 4420, with a namespace of this many megabytes in memory.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 0)]
    pub(crate) nvmet: u32,
    /// An emulated NVMe drive of this many megabytes: /dev/ns1, and /dev/ng1 for passthrough.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 0)]
    pub(crate) nvme: u32,
    /// A file system that takes `O_DIRECT` for temporary files, on the first 512 megabytes of that drive.
    #[arg(long, requires = "nvme")]
    pub(crate) scratch: bool,
    /// Virtual CPUs.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cpus: u8,
    /// Memory of the machine in megabytes; the overlay may use three quarters of it.
    #[arg(long, value_name = "MEGABYTES", default_value_t = 3072)]
    pub(crate) memory: u32,
    /// Forwards a TCP port of this host, of 127.0.0.1, to one of the machine; may be given several times. Nothing else of
    /// the host's network can be reached in there.
    #[arg(long, value_name = "HOST:GUEST", value_parser = two_ports)]
    pub(crate) forward: Vec<(u16, u16)>,
    /// Lets the guest write to this folder of the host; may be given several times.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) rw: Vec<PathBuf>,
    /// Sets a variable for the command; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Limit of the command, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout: u64,
    /// One more argument for QEMU; may be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) qemu: Vec<OsString>,
    /// Measures what a request costs, beside perftest's, instead of running a command.
    #[arg(long, conflicts_with = "command")]
    pub(crate) cost: bool,
    /// Measures our ends of NVMe/TCP beside the kernel's, instead of running a command.
    #[arg(long, conflicts_with_all = ["command", "cost"])]
    pub(crate) disks: bool,
    /// The command, run as root in the current folder.
    #[arg(last = true, required_unless_present_any = ["cost", "disks"])]
    pub(crate) command: Vec<String>,
}

fn two_ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| text.parse().ok().filter(|&port: &u16| port > 0);
    let ports = text.split_once(':');
    let ports = ports.and_then(|(host, guest)| Some((port(host)?, port(guest)?)));
    ports.ok_or_else(|| "two ports are wanted, as 4420:4420".into())
}

impl Arguments {
    /// The command in one short line.
    fn spelled(&self) -> String {
        let text = self.command.join(" ");
        let line = text.lines().next().unwrap_or_default();
        let short: String = line.chars().take(60).collect();
        if short.len() < text.len() {
            short + " ..."
        } else {
            short
        }
    }

    /// What the lane asks for: a script in a fresh machine with RDMA devices and a drive.
    fn of_script((kernel, rdma): (Series, Rdma), script: String, timeout: Duration) -> Self {
        Self {
            kernel,
            rdma,
            nvmet: 0,
            nvme: 1024,
            scratch: true,
            cpus: 2,
            memory: 3072,
            forward: Vec::new(),
            rw: Vec::new(),
            // Properties are not what this lane is for.
            env: vec!["LUNETTE_VM=1".into(), "PROPTEST_CASES=32".into()],
            timeout: timeout.as_secs(),
            qemu: Vec::new(),
            cost: false,
            disks: false,
            command: vec!["bash".into(), "-c".into(), script],
        }
    }
}

/// Runs a command in a fresh machine with its output on ours.
///
/// # Errors
/// [`TaskError::Vm`] when no machine can be had here; [`TaskError::Failed`] when the command fails.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    if arguments.cost {
        return cost::run(workspace, arguments.kernel);
    }
    if arguments.disks {
        return disks::run(workspace, arguments.kernel);
    }
    run_lines(workspace, arguments, |_| true)
}

/// As [`run`], and hands each line of the command's standard output to `line`, which answers whether to
/// show it.
fn run_lines(
    workspace: &Workspace,
    arguments: &Arguments,
    line: impl FnMut(&str) -> bool + Send,
) -> Result<(), TaskError> {
    prepare(workspace)?;
    let kernel = Kernel::prepare(workspace, arguments.kernel)?;
    if arguments.rdma == Rdma::Siw {
        if arguments.kernel != Series::V6_12 {
            return Err(TaskError::Vm(
                "soft-iWARP is made for kernel 6.12 alone".into(),
            ));
        }
        iwarp::prepare(&kernel, &workspace.root().join("target/vm"))?;
    }
    let status = Machine::boot(workspace, &kernel, arguments)?.run(line)?;
    if status == 0 {
        return Ok(());
    }
    Err(TaskError::Failed {
        command: arguments.spelled(),
        status: format!("exit status {status}, in the machine"),
    })
}

/// What a script prints in a machine with the oldest kernel.
///
/// # Errors
/// As for [`run`].
pub(crate) fn lines_of(
    workspace: &Workspace,
    script: String,
    timeout: Duration,
) -> Result<Vec<String>, TaskError> {
    let arguments = Arguments {
        nvme: 0,
        scratch: false,
        ..Arguments::of_script((Series::V6_1, Rdma::None), script, timeout)
    };
    let mut lines = Vec::new();
    run_lines(workspace, &arguments, |line| {
        lines.push(line.to_owned());
        false
    })?;
    Ok(lines)
}

/// Sees to it that a machine can be made here.
///
/// # Errors
/// [`TaskError::Vm`], with the reason why not.
pub(crate) fn prepare(workspace: &Workspace) -> Result<(), TaskError> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(TaskError::Vm("only x86-64 hosts are supported".into()));
    }
    if !workspace::succeeds("apt-get", &["--version"]) {
        return Err(TaskError::Vm(
            "kernels come from Debian by apt-get, which is not here".into(),
        ));
    }
    system::ensure(TOOLS).map_err(|error| TaskError::Vm(error.to_string()))?;
    let folder = workspace.root().join("target/vm");
    std::fs::create_dir_all(&folder).map_err(|error| TaskError::Vm(error.to_string()))
}

/// Runs a tool to its end, quietly; its output is in the error.
fn tool(command: &mut Command) -> Result<Vec<u8>, TaskError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| TaskError::Start {
        program: program.clone(),
        source,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(TaskError::Vm(format!("`{program}`: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_in_twos() {
        assert_eq!(two_ports("1:65535"), Ok((1, 65_535)));
        for wrong in ["", "1", "1:", ":1", "0:1", "1:65536", "1:2:3"] {
            assert!(two_ports(wrong).is_err(), "{wrong}");
        }
    }
}
