//! The kernel's worker threads: what needs none wakes none, there are few of them, and they stay off
//! a pinned core's CPU. A process of its own, because workers are counted.
#![forbid(unsafe_code)]

use std::fs as std_fs;
use std::path::Path;

use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::{
    CoreOptions, DriverKind, Placement, Runtime, arena, driver, spawn_local, topology,
};
use lunette_runtime_core::ids::CoreIndex;

const BLOCK_BYTES: usize = 16 * 1024;
const BLOCKS: usize = 32;
/// What the driver asks for, of each of the kernel's two kinds.
const WORKERS_MAX: usize = 2 * 4;

/// The CPUs of each worker of this process.
fn workers() -> Vec<String> {
    let tasks = std_fs::read_dir("/proc/self/task").expect("a process has threads");
    let workers = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = std_fs::read_to_string(task.join("comm")).ok()?;
        let status = std_fs::read_to_string(task.join("status")).ok()?;
        let cpus = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        name.starts_with("iou-wrk").then(|| cpus.trim().to_owned())
    });
    workers.collect()
}

/// Writes each block of the file, all of them under way at a time.
async fn write_all(file: &File, first_block: usize) {
    let writing: Vec<_> = (first_block..first_block + BLOCKS)
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
    for write in writing {
        write.await.expect("ran");
    }
}

async fn scenario(path: impl AsRef<Path>, cpu: usize) {
    let DriverKind::Uring(features) = driver() else {
        println!("SKIP workers_are_few_and_off_the_cores: no io_uring here");
        return;
    };
    let direct = OpenOptions {
        direct: true,
        ..OpenOptions::READ_WRITE
    };
    let Ok(file) = File::open(path.as_ref().join("file"), direct).await else {
        println!("SKIP workers_are_few_and_off_the_cores: no O_DIRECT here");
        return;
    };
    let len_bytes = (BLOCKS * BLOCK_BYTES) as u64;
    file.allocate(len_bytes).await.expect("room on the device");
    // Into extents that were allocated and not written; then over what was written.
    for _ in 0..2 {
        write_all(&file, 0).await;
        assert_eq!(
            workers(),
            [""; 0],
            "what stays within a file needs no worker"
        );
    }
    // Beyond the end of the file: this is what the kernel needs workers for.
    write_all(&file, BLOCKS).await;
    let found = workers();
    println!("workers of {BLOCKS} writes that extend a file: {found:?}");
    assert!(found.len() <= WORKERS_MAX, "{found:?}");
    if features.bounded_workers && topology::cpus().len() == 1 {
        let own = cpu.to_string();
        assert!(
            found.iter().all(|cpus| *cpus != own),
            "{found:?} beside {own}"
        );
    }
}

#[test]
fn workers_are_few_and_off_the_cores() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().to_owned();
    let cpu = topology::cpus().last().expect("a CPU").os_index;
    let runtime = Runtime::start(&Placement::Pinned(vec![cpu]), CoreOptions::default());
    let runtime = runtime.expect("a core");
    let done = runtime.spawn_on(CoreIndex(0), move || scenario(path, cpu));
    done.expect("the core runs").wait().expect("no panic");
    runtime.shut_down().expect("no panic");
}
