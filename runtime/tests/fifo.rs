//! A core that spins with real-time priority does not starve the kernel's workers of its own ring,
//! which inherit its priority and, if nothing is done about it, its CPU. A process of its own,
//! because it takes a CPU.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::{
    CoreOptions, DriverKind, Idle, Placement, Runtime, arena, driver, spawn_local, time, topology,
};
use lunette_runtime_core::ids::CoreIndex;
use rustix::thread::gettid;

const NAME: &str = "workers_of_a_core_with_real_time_priority_are_not_starved";
const BLOCK_BYTES: usize = 16 * 1024;
const BLOCKS: usize = 16;

/// Gives the calling thread the lowest real-time priority. False where that is not allowed.
fn take_real_time_priority() -> bool {
    let id = gettid().as_raw_nonzero().to_string();
    let mut change = Command::new("chrt");
    change
        .args(["--fifo", "--pid", "1", &id])
        .stderr(Stdio::null());
    change.status().is_ok_and(|status| status.success())
}

async fn scenario(path: PathBuf) {
    let DriverKind::Uring(features) = driver() else {
        return println!("SKIP {NAME}: no io_uring here");
    };
    let direct = OpenOptions {
        direct: true,
        ..OpenOptions::READ_WRITE
    };
    let opened = File::open(path.join("file"), direct).await;
    let (Ok(file), true) = (opened, features.bounded_workers) else {
        return println!("SKIP {NAME}: no O_DIRECT, or no say in workers here");
    };
    if !take_real_time_priority() {
        return println!("SKIP {NAME}: no real-time priority here");
    }
    // Beyond the end of the file: this is what the kernel needs workers for.
    let writes: Vec<_> = (0..BLOCKS)
        .map(|block| {
            let file = file.clone();
            spawn_local(async move {
                let region = arena().alloc(BLOCK_BYTES).expect("room");
                let offset = (block * BLOCK_BYTES) as u64;
                let (written, _) = file.write_all_at(region, 0, BLOCK_BYTES, offset).await;
                written.expect("written");
            })
        })
        .collect();
    for write in writes {
        let done = time::timeout(Duration::from_secs(20), write).await;
        done.expect("the worker runs beside the core")
            .expect("no panic");
    }
}

#[test]
fn workers_of_a_core_with_real_time_priority_are_not_starved() {
    let cpus = topology::cpus();
    if cpus.len() < 2 {
        return println!("SKIP {NAME}: one CPU");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().to_owned();
    let cpu = cpus.last().expect("a CPU").os_index;
    let spins = CoreOptions {
        idle: Idle::Latency,
        ..CoreOptions::default()
    };
    let runtime = Runtime::start(&Placement::Pinned(vec![cpu]), spins).expect("a core");
    let done = runtime.spawn_on(CoreIndex(0), move || scenario(path));
    done.expect("the core runs").wait().expect("no panic");
    runtime.shut_down().expect("no panic");
}
