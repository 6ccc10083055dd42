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

/// Reads each block of the file, all of them under way at a time.
async fn read_all(file: &File) {
    let reading: Vec<_> = (0..BLOCKS)
        .map(|block| {
            let file = file.clone();
            spawn_local(async move {
                let region = arena().alloc(BLOCK_BYTES).expect("room");
                let offset = (block * BLOCK_BYTES) as u64;
                let (read, _) = file.read_exact_at(region, 0, BLOCK_BYTES, offset).await;
                read.expect("read");
            })
        })
        .collect();
    for read in reading {
        read.await.expect("ran");
    }
    assert_eq!(workers(), [""; 0], "what is there needs no worker");
}

/// What would wake workers on the ring, the control thread does.
async fn no_call_needs_a_worker(file: &File, path: &Path) {
    let calls: Vec<_> = (0..8_u64)
        .map(|call| {
            let (file, path) = (file.clone(), path.join(format!("other_{call}")));
            spawn_local(async move {
                let other = File::open(path, OpenOptions::READ_WRITE).await;
                let other = other.expect("made");
                other.allocate(BLOCK_BYTES as u64).await.expect("room");
                other.sync_data().await.expect("synced");
                file.sync_data().await.expect("synced");
            })
        })
        .collect();
    for call in calls {
        call.await.expect("ran");
        assert_eq!(workers(), [""; 0], "these are not the ring's");
    }
}

/// Buffered reads of what the page cache has.
async fn no_page_that_is_there_needs_a_worker(path: &Path) {
    std_fs::read(path.join("file")).expect("it is there");
    let file = File::open(path.join("file"), OpenOptions::READ).await;
    read_all(&file.expect("it is there")).await;
}

/// A file that has its length and no block.
async fn sparse_file(path: &Path, name: &str, options: OpenOptions) -> File {
    let sparse = std_fs::File::create(path.join(name)).expect("made");
    let len_bytes = (BLOCKS * BLOCK_BYTES) as u64;
    sparse.set_len(len_bytes).expect("room in the file system");
    File::open(path.join(name), options).await.expect("made")
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
    read_all(&file).await;
    let path = path.as_ref();
    no_call_needs_a_worker(&file, path).await;
    no_page_that_is_there_needs_a_worker(path).await;
    // Where there is no room yet, which is for the file system to say how it is made.
    let hole = sparse_file(path, "hole", direct).await;
    write_all(&hole, 0).await;
    println!("workers of {BLOCKS} writes into a hole: {:?}", workers());
    // To pages one write follows the other, and so one worker has them all. When it waits for the device
    // the kernel may make a second one, which then finds nothing to do.
    let before = workers().len();
    let pages = sparse_file(path, "pages", OpenOptions::READ_WRITE).await;
    write_all(&pages, 0).await;
    let found = workers();
    println!("workers of {BLOCKS} writes to pages: {found:?}");
    assert!(found.len() <= before + 2, "{found:?}");
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
