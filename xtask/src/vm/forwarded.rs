//! Our NVMe/TCP host on this machine, and the kernel's target in an emulated one, whose port is forwarded.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, process};

use super::kernel::io;
use super::machine::NVMET_NQN;
use super::{Arguments, Rdma, Series, run_lines};
use crate::binaries::Binary;
use crate::tally::Tally;
use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// Which tests of the binary.
const FILTER: &str = "target::";
/// Where they expect the target, and under what name.
const VARIABLES: [&str; 2] = ["LUNETTE_NVMET_ADDRESS", "LUNETTE_NVMET_NQN"];
/// Where the target listens in its machine, and its size.
const GUEST_PORT: u16 = 4420;
const DISK_MEGABYTES: u32 = 64;
/// What the machine says when it is ready.
const UP: &str = "the target is up";
const MACHINE_MAX: Duration = Duration::from_secs(600);
/// Limit of the tests, in seconds.
const TESTS_MAX: &str = "300";

/// Boots a machine and runs the tests beside it.
///
/// # Errors
/// Those of the machine; [`TaskError::Failed`] of the tests, and if none ran.
pub(super) fn run(
    workspace: &Workspace,
    binary: &Binary,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let name = format!("target/vm/forwarded.{}", process::id());
    let folder = workspace.root().join(name);
    io(fs::create_dir_all(&folder))?;
    let ran = beside_machine(workspace, binary, &folder, tally);
    io(fs::remove_dir_all(&folder))?;
    ran
}

fn beside_machine(
    workspace: &Workspace,
    binary: &Binary,
    folder: &Path,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let port = free_port()?;
    let over = folder.join("over");
    let wait = format!(
        "echo {UP}; until [[ -e '{}' ]]; do sleep 0.2; done",
        over.display()
    );
    let mut arguments = Arguments::of_script((Series::V6_12, Rdma::None), wait, MACHINE_MAX);
    (arguments.nvme, arguments.scratch) = (0, false);
    arguments.nvmet = DISK_MEGABYTES;
    arguments.forward = vec![(port, GUEST_PORT)];
    arguments.rw = vec![folder.to_path_buf()];
    let mut outcome = None;
    run_lines(workspace, &arguments, |line| {
        if line == UP && outcome.is_none() {
            outcome = Some(natively(binary, port, tally).and(io(fs::write(&over, ""))));
        }
        line != UP
    })?;
    let silent = || {
        Err(TaskError::Vm(
            "the machine does not say that it is up".into(),
        ))
    };
    outcome.unwrap_or_else(silent)
}

/// One that nobody has now.
fn free_port() -> Result<u16, TaskError> {
    let listener = io(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(io(listener.local_addr())?.port())
}

/// Runs the tests.
fn natively(binary: &Binary, port: u16, tally: &mut Tally) -> Result<(), TaskError> {
    let address = format!("127.0.0.1:{port}");
    let output = Command::new("timeout")
        .args(["-k", "10", TESTS_MAX])
        .arg(&binary.executable)
        .args(["--show-output", "--test-threads", "1", FILTER])
        .envs(VARIABLES.into_iter().zip([address.as_str(), NVMET_NQN]))
        .current_dir(&binary.folder)
        .output();
    let output = io(output)?;
    let mut passed = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        passed += usize::from(line.starts_with("test ") && line.ends_with("... ok"));
        if tally.line(line) {
            println!("{line}");
        }
    }
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() && passed > 0 {
        return Ok(());
    }
    Err(TaskError::Failed {
        command: format!("kernel {FILTER}"),
        status: format!("{}, {passed} tests passed", output.status),
    })
}
