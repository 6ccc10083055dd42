//! A model of a disk: what may be read of it.

use std::time::Duration;

use lunette_nvmeof::{CommandError, RemoteNamespace};
use lunette_runtime::{arena, time};

/// How long a command may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a write may still be underway when its connection has ended.
const STRAY_MAX: Duration = Duration::from_secs(1);
pub(crate) const BLOCK_BYTES: usize = 512;
pub(crate) const BLOCKS: usize = 4;

/// What may lie in each block: a number that says what was written there.
#[derive(Debug)]
pub(crate) struct Model {
    may_be: [Vec<u32>; BLOCKS],
    writes: u32,
    /// Writes whose fate their caller was not told.
    pub(crate) in_doubt: u32,
}

fn block(number: u32) -> impl Iterator<Item = u8> {
    (0..BLOCK_BYTES / 4).flat_map(move |at| {
        let word = u32::try_from(at).expect("a block is short") ^ number << 8;
        word.to_le_bytes()
    })
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            may_be: core::array::from_fn(|_| vec![0]),
            writes: 0,
            in_doubt: 0,
        }
    }

    /// Writes `count` blocks from `first` on.
    pub(crate) async fn write(&mut self, namespace: &RemoteNamespace, first: usize, count: usize) {
        self.writes += 1;
        let number = self.writes;
        let mut region = arena().alloc(count * BLOCK_BYTES).expect("room");
        let bytes = (0..count).flat_map(|_| block(number));
        for (place, byte) in region.as_mut_slice().iter_mut().zip(bytes) {
            *place = byte;
        }
        let writing = namespace.write(first as u64, region.freeze(), false, TIMEOUT);
        match writing.await.map_err(|failure| failure.error) {
            Ok(()) => self.may_be[first..first + count].fill(vec![number]),
            Err(CommandError::Disconnected(_)) => {
                self.in_doubt += 1;
                // By another path a read may be faster than what is left of the write.
                time::sleep(STRAY_MAX).await;
                for may_be in &mut self.may_be[first..first + count] {
                    may_be.push(number);
                }
            }
            Err(error) => unreachable!("a write ends well or in doubt: {error}"),
        }
    }

    /// Reads all blocks, whatever happens to the connection.
    pub(crate) async fn read(&mut self, namespace: &RemoteNamespace) {
        let region = arena().alloc(BLOCKS * BLOCK_BYTES).expect("room");
        let read = namespace.read(0, region, TIMEOUT).await;
        let read = read.map_err(|failure| failure.error).expect("read again");
        let blocks = read.as_slice().chunks(BLOCK_BYTES);
        for (index, (bytes, may_be)) in blocks.zip(&mut self.may_be).enumerate() {
            let is = |number: u32| {
                let is_zero = number == 0 && bytes.iter().all(|&byte| byte == 0);
                is_zero || bytes.iter().copied().eq(block(number))
            };
            let found = may_be.iter().copied().find(|&number| is(number));
            let found = found.unwrap_or_else(|| {
                unreachable!("block {index} is none of {may_be:?}: {:?}", &bytes[..8])
            });
            // What was read is what there is: nothing is carried out later.
            *may_be = vec![found];
        }
    }
}
