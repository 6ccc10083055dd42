//! Reads of a file that are dropped and timed out.

use std::fs;
use std::sync::LazyLock;

use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::{JoinHandle, arena, spawn_local};
use tempfile::TempDir;

use crate::{Faults, SENT, given};

/// The blocks of the file.
pub(crate) const BLOCKS: u8 = 64;
const BLOCK_BYTES: usize = 4096;

/// A file, each block of which is full of a byte of its own.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let bytes: Vec<u8> = (0..BLOCKS)
        .flat_map(|block| [byte_of(block); BLOCK_BYTES])
        .collect();
    fs::write(folder.path().join("file"), bytes).expect("written");
    folder
});

const fn byte_of(block: u8) -> u8 {
    SENT | block
}

pub(crate) struct Reading {
    file: File,
}

impl Reading {
    pub(crate) async fn open() -> Self {
        let path = FOLDER.path().join("file");
        // What the page cache has is read at once, and then nothing is under way when it is dropped.
        let direct = OpenOptions {
            direct: true,
            ..OpenOptions::READ
        };
        let file = match File::open(&path, direct).await {
            Ok(file) => file,
            Err(_no_direct) => File::open(&path, OpenOptions::READ).await.expect("made"),
        };
        Self { file }
    }

    /// Reads that many blocks, for so many microseconds if that is said.
    pub(crate) fn read(
        &self,
        first: u8,
        blocks: u8,
        us: Option<u64>,
        faults: &Faults,
    ) -> Option<JoinHandle<()>> {
        let blocks = blocks.min(BLOCKS - first);
        let (len, offset) = (
            usize::from(blocks) * BLOCK_BYTES,
            usize::from(first) * BLOCK_BYTES,
        );
        let mut region = arena().alloc(len).ok()?;
        region.as_mut_slice().fill(0);
        let (file, faults) = (self.file.clone(), faults.clone());
        Some(spawn_local(async move {
            let read = file.read_exact_at(region, 0, len, offset as u64);
            let Some((done, region)) = given(us, read).await else {
                return;
            };
            done.expect("it is there");
            let blocks = region.as_slice().chunks(BLOCK_BYTES).zip(first..);
            for (bytes, block) in blocks {
                if bytes.iter().any(|&byte| byte != byte_of(block)) {
                    let fault = format!("block {block} is not as in the file");
                    faults.borrow_mut().push(fault);
                }
            }
        }))
    }
}
