//! Random direct reads of one file, some of them under way at a time.

use std::cell::{Cell, RefCell};
use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_bench::harness::{Failure, Sample};
use rustix::fs::OFlags;

use crate::batches::as_f64;

/// Bytes of a read; also the alignment of offsets and memory.
pub(super) const READ_BYTES: usize = 4096;
/// Blocks of the file: 256 MiB.
const BLOCKS: u64 = 1 << 16;
const WARM_UP: Duration = Duration::from_millis(50);
const RUN: Duration = Duration::from_millis(400);
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// The file, beside the program so that it is on a disk.
pub(super) fn path() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("rivals-read.bin"))
}

/// Writes the file unless it is there. Its blocks differ, so that no layer folds them.
pub(crate) fn make_file() -> io::Result<()> {
    let path = path()?;
    let bytes = BLOCKS * as_u64(READ_BYTES);
    if fs::metadata(&path).is_ok_and(|file| file.len() == bytes) {
        return Ok(());
    }
    let mut file = io::BufWriter::new(File::create(&path)?);
    let mut block = vec![7; READ_BYTES];
    for number in 0..BLOCKS {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    file.into_inner()?.sync_all()
}

/// Opens the file for direct reads.
pub(super) fn open() -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(direct()?).open(path()?)
}

/// The flag of direct access.
pub(super) fn direct() -> io::Result<i32> {
    i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)
}

/// A buffer in which [`READ_BYTES`] from the returned position are aligned.
pub(super) fn aligned() -> (Vec<u8>, usize) {
    let buffer = vec![0; 2 * READ_BYTES];
    let start = buffer.as_ptr().align_offset(READ_BYTES);
    (buffer, start)
}

/// What the readers of one run share.
pub(super) struct Reads {
    opened: Instant,
    random: Cell<u64>,
    latencies_ns: RefCell<Histogram<u64>>,
}

impl Reads {
    pub(super) fn new() -> Result<Rc<Self>, Failure> {
        Ok(Rc::new(Self {
            opened: Instant::now(),
            random: Cell::new(0x9e37_79b9_7f4a_7c15),
            latencies_ns: RefCell::new(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?),
        }))
    }

    /// Where to read next, and when that begins; `None` if the run is over.
    pub(super) fn next(&self) -> Option<(u64, Instant)> {
        let now = Instant::now();
        // Marsaglia's xorshift.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        let offset = random % BLOCKS * as_u64(READ_BYTES);
        (now - self.opened < WARM_UP + RUN).then_some((offset, now))
    }

    /// A read has ended, with this many bytes.
    pub(super) fn end(&self, begun: Instant, count: usize) {
        assert_eq!(count, READ_BYTES, "no read ends at the file's end");
        if self.opened.elapsed() >= WARM_UP {
            let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.latencies_ns.borrow_mut().saturating_record(took);
        }
    }

    /// Microseconds per read.
    pub(super) fn sample(&self) -> Result<Sample, Failure> {
        let took = self.opened.elapsed().saturating_sub(WARM_UP);
        let latencies_ns = self.latencies_ns.borrow();
        if latencies_ns.is_empty() {
            return Err("no read ended".into());
        }
        Ok(Sample {
            value: took.as_secs_f64() * 1e6 / as_f64(latencies_ns.len()),
            p99: as_f64(latencies_ns.value_at_quantile(0.99)) / 1e3,
        })
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a small constant")
}
