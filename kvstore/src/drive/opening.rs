//! The lock, the room, recovery or formatting.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use lunette_kvstore_log::effect::Effect;
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::options::{LogOptions, OptionsFault};
use lunette_kvstore_log::recovery::{OpenFault, Recovery, RecoveryReport};
use lunette_runtime::arena::{AllocError, Arena, ArenaOptions, HugePages, Region};
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime::{Signal, can_spawn, entropy, spawn_local, time};
use thiserror::Error;

use super::Keeper;
use super::driving::{self, Shared};
use super::staging::{STAGE_BYTES, Staging};

/// Memory of the log's own reads, beside the segment that it may read at once: what is being moved waits there.
const READ_BYTES_MAX: usize = 128 << 20;
const CHUNK_BYTES: usize = 64 << 20;

/// Which drive, and how its log works.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// A file, which is made and given its room if it is not there, or a device.
    pub path: PathBuf,
    /// How the log works. Its capacity is the file's length, or so much of the device.
    pub log: LogOptions,
    /// When it is formatted.
    pub format: Format,
}

/// When a drive is formatted. What is not this log, whatever it is, is never overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// It has a log.
    Never,
    /// When it is blank.
    Blank,
    /// Also when a part of its log cannot be read. Removals may have been there, and what they were about would be
    /// found; so nothing is.
    BlankOrDamaged,
}

/// How a drive was opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// What was found, unless it was blank.
    pub recovery: Option<RecoveryReport>,
    /// Whether it has been formatted.
    pub is_formatted: bool,
    /// Whether it is read and written around the page cache.
    pub is_direct: bool,
}

/// Why a drive was not opened.
#[derive(Debug, Error)]
pub enum DriveError {
    /// Another process has it, or the drive's former life here is still being written to its end.
    #[error("{}: another process uses this drive", .0.display())]
    Taken(PathBuf),
    /// The system refuses.
    #[error("{}: {error}", path.display())]
    File {
        /// Which drive.
        path: PathBuf,
        /// What the system says; of too little room, that.
        #[source]
        error: FileError,
    },
    /// The options do not fit together.
    #[error(transparent)]
    Options(#[from] OptionsFault),
    /// What is on it is not its log, or nothing is and it is not to be formatted.
    #[error("{}: {fault}", path.display())]
    Log {
        /// Which drive.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: OpenFault,
    },
    /// No memory for writes.
    #[error("no memory for a drive: {0}")]
    Memory(#[from] AllocError),
    /// It failed while its log was begun.
    #[error("{}: the drive failed", .0.display())]
    Failed(PathBuf),
}

impl DriveError {
    /// Whether the same may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Taken(_) | Self::Failed(_) => true,
            Self::Memory(error) => error.is_backpressure(),
            Self::Log { fault, .. } => fault.is_retryable(),
            Self::File { .. } | Self::Options(_) => false,
        }
    }

    /// Whether bytes that were once right have changed.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Log { fault, .. } if fault.is_corruption())
    }
}

pub(super) async fn open(
    options: DriveOptions,
    generation: u64,
    keeper: Rc<dyn Keeper>,
) -> Result<(Rc<Shared>, Opened), DriveError> {
    let DriveOptions {
        path,
        log: log_options,
        format,
    } = options;
    log_options.check()?;
    let (file, is_direct) = open_file(&path, log_options.geometry.capacity_bytes).await?;
    let chunk_bytes = CHUNK_BYTES.max(log_options.geometry.segment_bytes as usize);
    let arena = Arena::new(ArenaOptions {
        bytes_max: READ_BYTES_MAX + chunk_bytes,
        chunk_bytes,
        huge_pages: HugePages::Never,
        lock: false,
    });
    let stages = Arena::new(ArenaOptions {
        bytes_max: log_options.writes_in_flight_max * STAGE_BYTES * 2,
        chunk_bytes: CHUNK_BYTES,
        huge_pages: HugePages::Never,
        lock: false,
    });
    let staging = Staging::new(&stages, log_options.writes_in_flight_max)?;
    let recovered = recover(&file, &arena, Recovery::new(log_options, generation)?).await;
    let (found, recovery) = match recovered {
        Ok((_, report)) if format == Format::BlankOrDamaged && !report.is_whole() => {
            tracing::warn!(path = %path.display(), ?report, "a damaged drive is formatted");
            (None, Some(report))
        }
        Ok((log, report)) => (Some(log), Some(report)),
        Err(OpenFault::Blank) if format != Format::Never => (None, None),
        Err(fault) => return Err(DriveError::Log { path, fault }),
    };
    let is_formatted = found.is_none();
    let log = match found {
        Some(log) => log,
        None => Log::format(log_options, entropy(), generation, time::now())?,
    };
    let shared = Rc::new(Shared {
        log: RefCell::new(log),
        file,
        arena,
        staging,
        sources: RefCell::default(),
        appends: RefCell::default(),
        removals: RefCell::default(),
        keeper,
        woken_at: None.into(),
        moved: Signal::default(),
    });
    shared.pump();
    while !shared.with_log(|log| log.is_mounted()) {
        if shared.with_log(|log| log.stats().has_failed) {
            return Err(DriveError::Failed(path));
        }
        shared.moved.raised().await;
    }
    Ok((
        shared,
        Opened {
            recovery,
            is_formatted,
            is_direct,
        },
    ))
}

/// Opens, locks and makes room; whether that is around the page cache.
async fn open_file(path: &Path, capacity_bytes: u64) -> Result<(File, bool), DriveError> {
    let failed = |error| DriveError::File {
        path: path.to_owned(),
        error,
    };
    let direct = OpenOptions {
        direct: true,
        ..OpenOptions::READ_WRITE
    };
    let (file, is_direct) = match File::open(path, direct).await {
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            tracing::warn!(path = %path.display(), "no direct access here: a drive goes through the page cache");
            let file = File::open(path, OpenOptions::READ_WRITE)
                .await
                .map_err(failed)?;
            (file, false)
        }
        opened => (opened.map_err(failed)?, true),
    };
    if !file.try_lock().await.map_err(failed)? {
        return Err(DriveError::Taken(path.to_owned()));
    }
    if file.len_bytes().await.map_err(failed)? < capacity_bytes {
        file.allocate(capacity_bytes).await.map_err(failed)?;
    }
    Ok((file, is_direct))
}

/// Reads the drive, many places at a time.
async fn recover(
    file: &File,
    arena: &Arena,
    recovery: Recovery,
) -> Result<(Log, RecoveryReport), OpenFault> {
    let recovering = Rc::new(Recovering {
        machine: RefCell::new(recovery),
        moved: Signal::default(),
    });
    loop {
        while let Some(effect) = recovering.next() {
            let reading = Rc::clone(&recovering).read(file.clone(), arena.clone(), effect);
            if can_spawn() {
                spawn_local(reading);
            } else {
                reading.await;
            }
        }
        if recovering.machine.borrow().is_done() {
            break;
        }
        recovering.moved.raised().await;
    }
    let read = Rc::into_inner(recovering).expect("each read is over, and its task");
    read.machine.into_inner().finish(time::now())
}

/// A drive that is being read.
struct Recovering {
    machine: RefCell<Recovery>,
    moved: Signal,
}

impl Recovering {
    fn next(&self) -> Option<Effect> {
        self.machine.borrow_mut().poll_effect()
    }

    async fn read(self: Rc<Self>, file: File, arena: Arena, effect: Effect) {
        let Effect::Read {
            op,
            offset_bytes,
            len_bytes,
            ..
        } = effect
        else {
            return;
        };
        let read = driving::read(&file, &arena, offset_bytes, len_bytes).await;
        let bytes = read.as_ref().map(Region::as_slice).map_err(|fault| *fault);
        self.machine.borrow_mut().read_done(op, bytes);
        self.moved.raise();
    }
}
