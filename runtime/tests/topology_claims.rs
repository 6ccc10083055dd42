//! Claims among processes: a claim is seen by others, and ends with its holder, however that ends.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use lunette_runtime::topology::{self, ClaimError, CoreClaim};
use lunette_runtime::{CoreOptions, Placement, Runtime};
use lunette_runtime_core::ids::CoreIndex;

/// Set for child processes of this test: what they are to do.
const ROLE: &str = "LUNETTE_CLAIM_ROLE";
const CPU: usize = 1;
const TEST: &str = "a_claim_ends_with_its_process";

/// This test again, as a process that plays a role.
struct Player {
    child: Child,
    // Its output goes on after what it is asked for; a closed pipe would trouble it.
    _output: Lines<BufReader<ChildStdout>>,
    said: String,
}

/// Starts a player with its claims in `folder`, and waits for what it says of its claim.
fn start(role: &str, folder: &Path) -> Player {
    let mut child = Command::new(env::current_exe().expect("a test program"))
        .args(["--exact", TEST, "--nocapture"])
        .env(ROLE, role)
        .env("XDG_RUNTIME_DIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said = output
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("claim: ")?.1.to_owned()));
    Player {
        child,
        _output: output,
        said: said.expect("it says how its claim went"),
    }
}

/// Claims the CPU and says how that went. A holder keeps the claim until it is killed, or its
/// standard input ends because the test is gone.
fn play(role: &str) {
    if role == "runtime" {
        return play_runtime();
    }
    let claim = CoreClaim::acquire(CPU);
    let said = match &claim {
        Ok(_) => "held".to_owned(),
        Err(ClaimError::Taken { by, .. }) => format!("taken by {by:?}"),
        Err(error) => error.to_string(),
    };
    println!("claim: {said}");
    if role == "hold" {
        let ended = io::stdin().lines().next();
        assert!(ended.is_none(), "nothing is said to a holder");
    }
}

/// Runs one core on a CPU of its own, and says whether it is, while it runs and afterwards.
fn play_runtime() {
    let runtime = Runtime::start(&Placement::Claimed(1), CoreOptions::default());
    let runtime = runtime.expect("a core");
    let mask = runtime.spawn_on(CoreIndex(0), || async { topology::cpus() });
    let mask = mask.expect("the core runs").wait().expect("it answers");
    assert_eq!(mask.len(), 1, "pinned");
    let cpu = mask[0];
    let meanwhile = CoreClaim::acquire(cpu.os_index);
    let meanwhile = matches!(meanwhile, Err(ClaimError::Taken { .. }));
    runtime.shut_down().expect("no panic");
    let afterwards = CoreClaim::acquire(cpu.os_index).is_ok();
    println!("claim: taken {meanwhile}, free again {afterwards}");
}

#[test]
fn a_claim_ends_with_its_process() {
    if let Ok(role) = env::var(ROLE) {
        return play(&role);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let probe = || {
        let mut player = start("probe", folder.path());
        let status = player.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        player.said
    };
    let mut runtime = start("runtime", folder.path());
    assert_eq!(runtime.said, "taken true, free again true");
    assert!(runtime.child.wait().expect("it ends").success());
    let mut holder = start("hold", folder.path());
    assert_eq!(holder.said, "held");
    assert_eq!(probe(), format!("taken by Some({})", holder.child.id()));
    holder.child.kill().expect("it runs");
    holder.child.wait().expect("it ends");
    assert_eq!(probe(), "held");
    assert_eq!(probe(), "held", "the first probe's claim ended with it");
}
