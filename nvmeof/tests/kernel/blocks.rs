//! A block device of the kernel's, around the page cache.
//!
//! Without other programs: in an emulated machine it takes one longer to start than to write.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

/// What `O_DIRECT` wants of memory.
const ALIGN_BYTES: usize = 4096;

/// An open device.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    file: File,
}

impl BlockDevice {
    pub(crate) fn open(path: &str) -> Self {
        let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(direct);
        let file = options.open(path).expect(path);
        Self { file }
    }

    pub(crate) fn len_bytes(path: &str) -> u64 {
        // It may be a link.
        let device = std::fs::canonicalize(path).expect(path);
        let name = device.file_name().expect(path).display();
        let sectors = std::fs::read_to_string(format!("/sys/class/block/{name}/size"));
        let sectors: u64 = sectors.expect(path).trim().parse().expect("a number");
        sectors * 512
    }

    /// The bytes that lie there.
    pub(crate) fn bytes_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut memory = Aligned::new(len);
        self.read(offset, &mut memory);
        memory.bytes().to_vec()
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) {
        let mut memory = Aligned::new(bytes.len());
        memory.bytes().copy_from_slice(bytes);
        let written = self.file.write_all_at(memory.bytes(), offset);
        written.expect("written");
    }

    /// Writes bytes that `seed` names from the start on, `count` times `block_bytes`, calling `beside`
    /// before each, and then finds them.
    pub(crate) fn verify(
        &self,
        seed: usize,
        (block_bytes, count): (usize, usize),
        mut beside: impl FnMut(usize),
    ) {
        let mut memory = Aligned::new(block_bytes);
        for index in 0..count {
            beside(index);
            fill(memory.bytes(), seed + index);
            let written = self
                .file
                .write_all_at(memory.bytes(), at(index, block_bytes));
            written.expect("written");
        }
        let mut expected = vec![0; block_bytes];
        for index in 0..count {
            memory.bytes().fill(0);
            self.read(at(index, block_bytes), &mut memory);
            fill(&mut expected, seed + index);
            assert!(memory.bytes() == expected, "block {index} of {block_bytes}");
        }
    }

    /// Has the device fill its first bytes with zeroes, and finds them and what is behind.
    pub(crate) fn verify_zeroes(&self, seed: usize, len: usize) {
        self.verify(seed, (len, 2), |_| {});
        let range = fallocate(&self.file, FallocateFlags::ZERO_RANGE, 0, len as u64);
        range.expect("zeroed");
        let mut memory = Aligned::new(len);
        self.read(0, &mut memory);
        assert!(memory.bytes().iter().all(|&byte| byte == 0), "zeroes");
        self.read(len as u64, &mut memory);
        let mut expected = vec![0; len];
        fill(&mut expected, seed + 1);
        assert!(memory.bytes() == expected, "what is behind");
    }

    fn read(&self, offset: u64, memory: &mut Aligned) {
        let read = self.file.read_exact_at(memory.bytes(), offset);
        read.expect("read");
    }
}

fn at(index: usize, block_bytes: usize) -> u64 {
    (index * block_bytes) as u64
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn fill(bytes: &mut [u8], seed: usize) {
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        let mixed = ((index as u64) << 32 | seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
}

/// Memory that `O_DIRECT` takes.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGN_BYTES];
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
