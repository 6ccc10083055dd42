//! The lock or the claim, the room, recovery or formatting.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::claim::{ClaimRefused, ClaimTerms};
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::options::{LogOptions, OptionsFault};
use lunette_kvstore_log::recovery::{OpenFault, Recovery, RecoveryReport};
use lunette_nvmeof::ConnectError;
use lunette_runtime::arena::{AllocError, Arena, ArenaOptions, HugePages};
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime::{Signal, entropy, time};
use thiserror::Error;

use super::Keeper;
use super::device::{Device, On};
use super::driving::{self, Shared};
use super::front::{FRONT_BYTES, Front, short_of};
use super::holder::Holder;
use super::holding::Holding;
use super::medium::Medium;
use super::recovering::recover;
use super::remote::{Patience, Remote, RemoteFault};
use super::staging::{STAGE_BYTES, Staging};

/// Memory of the log's own reads, beside the segment that it may read at once: what is being moved waits there.
const READ_BYTES_MAX: usize = 128 << 20;
const CHUNK_BYTES: usize = 64 << 20;
/// How long it may take to look at the front of a device.
const FRONT_PATIENCE: Duration = Duration::from_secs(10);

/// Which drive, and how its log works.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// What the log lies on.
    pub medium: Medium,
    /// Where on it the log begins, in bytes: several logs may share a device, each in a part of its own. A multiple of
    /// a block of 4 KiB; 0 in a file.
    pub begin_bytes: u64,
    /// How a device is claimed. Files are locked.
    pub claim: ClaimTerms,
    /// A folder of this host alone, in which processes say that they hold a device: what the claim of one that has
    /// ended says need not be watched until it has lapsed.
    pub holders: Option<PathBuf>,
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
    #[error("{drive}: another process uses this drive")]
    Taken {
        /// Which drive.
        drive: String,
    },
    /// It is claimed, or it could not be claimed.
    #[error("{drive}: the drive is not to be had: {why}")]
    Claimed {
        /// Which drive.
        drive: String,
        /// Why.
        #[source]
        why: ClaimRefused,
    },
    /// The system refuses.
    #[error("{drive}: {error}")]
    File {
        /// Which drive.
        drive: String,
        /// What the system says; of too little room, that.
        #[source]
        error: FileError,
    },
    /// The namespace cannot be reached.
    #[error("{drive}: {error}")]
    Connect {
        /// Which drive.
        drive: String,
        /// Why.
        #[source]
        error: ConnectError,
    },
    /// A block of the log is not made of whole blocks of the device.
    #[error("{drive}: blocks of {block_bytes} bytes: a drive has blocks of at most {BLOCK_BYTES}")]
    BlockLength {
        /// Which drive.
        drive: String,
        /// Length of its blocks.
        block_bytes: u64,
    },
    /// The device has too little room.
    #[error("{drive}: {len_bytes} bytes, and {needed_bytes} are needed")]
    Short {
        /// Which drive.
        drive: String,
        /// What it has.
        len_bytes: u64,
        /// Where the log would end.
        needed_bytes: u64,
    },
    /// Nothing is where the log would begin, but something is behind that: another's data. A device that is given to
    /// a drive begins with zeros.
    #[error(
        "{drive}: something else is there: to give it to a drive, fill its first 128 KiB with zeros"
    )]
    NotBlank {
        /// Which drive.
        drive: String,
    },
    /// The options do not fit together.
    #[error(transparent)]
    Options(#[from] OptionsFault),
    /// What is on it is not its log, or nothing is and it is not to be formatted.
    #[error("{drive}: {fault}")]
    Log {
        /// Which drive.
        drive: String,
        /// What is wrong with it.
        #[source]
        fault: OpenFault,
    },
    /// No memory for writes.
    #[error("no memory for a drive: {0}")]
    Memory(#[from] AllocError),
    /// It failed while its log was begun.
    #[error("{drive}: the drive failed")]
    Failed {
        /// Which drive.
        drive: String,
    },
}

impl DriveError {
    /// Whether the same may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Taken { .. } | Self::Claimed { .. } | Self::Failed { .. } => true,
            Self::Memory(error) => error.is_backpressure(),
            Self::Connect { error, .. } => error.is_retryable(),
            Self::Log { fault, .. } => fault.is_retryable(),
            Self::File { .. }
            | Self::BlockLength { .. }
            | Self::Short { .. }
            | Self::NotBlank { .. }
            | Self::Options(_) => false,
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
    let log_options = options.log;
    log_options.check()?;
    if !options.begin_bytes.is_multiple_of(BLOCK_BYTES.into()) || !options.claim.is_valid() {
        return Err(OptionsFault("begin_bytes").into());
    }
    let chunk_bytes = CHUNK_BYTES.max(log_options.geometry.segment_bytes as usize);
    let arena = arena_of(READ_BYTES_MAX + chunk_bytes, chunk_bytes);
    let stages_bytes = log_options.writes_in_flight_max * STAGE_BYTES * 2;
    let stages = arena_of(stages_bytes, CHUNK_BYTES);
    let staging = Staging::new(&stages, log_options.writes_in_flight_max)?;
    let opening = Opening {
        drive: options.medium.to_string(),
        options,
    };
    let (device, is_direct) = opening.device(&arena).await?;
    let device = Rc::new(device);
    let recovered = match opening.short(&device, &arena).await? {
        Some(fault) => Err(fault),
        None => recover(&device, &arena, Recovery::new(log_options, generation)?).await,
    };
    let (found, recovery) = opening.judge(recovered, &device)?;
    let is_formatted = found.is_none();
    let log = match found {
        Some(log) => log,
        None => Log::format(log_options, entropy(), generation, time::now())?,
    };
    let capacity_bytes = log.superblock().geometry.capacity_bytes;
    opening.give_room(&device, capacity_bytes).await?;
    let shared = Rc::new(Shared {
        log: RefCell::new(log),
        device,
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
            let drive = opening.drive;
            return Err(DriveError::Failed { drive });
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

fn arena_of(bytes_max: usize, chunk_bytes: usize) -> Arena {
    Arena::new(ArenaOptions {
        bytes_max,
        chunk_bytes,
        huge_pages: HugePages::Never,
        lock: false,
    })
}

/// A drive that is being opened.
struct Opening {
    options: DriveOptions,
    /// What it is called.
    drive: String,
}

impl Opening {
    /// What its log lies on, which is nobody else's from now on; and whether that is around the page cache.
    async fn device(&self, arena: &Arena) -> Result<(Device, bool), DriveError> {
        let DriveOptions {
            medium,
            begin_bytes,
            ..
        } = &self.options;
        let (on, len_bytes, is_direct) = match medium {
            Medium::File(path) => {
                let (file, is_direct) = self.locked_file(path).await?;
                (On::File(file), u64::MAX, is_direct)
            }
            Medium::Device(path) => {
                let (file, is_direct) = self.opened_file(path, false).await?;
                let block_bytes = file.align_bytes() as u64;
                if !u64::from(BLOCK_BYTES).is_multiple_of(block_bytes) {
                    return Err(self.block_length(block_bytes));
                }
                let len_bytes = file.len_bytes().await;
                let len_bytes = len_bytes.map_err(|error| self.file_error(error))?;
                (On::File(file), len_bytes, is_direct)
            }
            Medium::Namespace(options) => {
                let remote = Remote::connect((**options).clone()).await;
                let remote = remote.map_err(|fault| self.remote_error(fault))?;
                let len_bytes = remote.len_bytes();
                (On::Remote(remote), len_bytes, true)
            }
        };
        let capacity_bytes = self.options.log.geometry.capacity_bytes;
        let needed_bytes = begin_bytes.saturating_add(capacity_bytes);
        if needed_bytes > len_bytes {
            let drive = self.drive.clone();
            return Err(DriveError::Short {
                drive,
                len_bytes,
                needed_bytes,
            });
        }
        let mut device = Device {
            on: Rc::new(on),
            begin_bytes: *begin_bytes,
            holding: None,
        };
        if medium.is_claimed() && self.may_be_claimed(&device, arena).await? {
            let part = (Rc::clone(&device.on), *begin_bytes);
            let holder = Holder::begin(self.options.holders.as_deref());
            let holding = Holding::take(part, self.options.claim, holder, arena).await;
            device.holding = Some(holding.map_err(|why| self.claimed(why))?);
        }
        Ok((device, is_direct))
    }

    /// What recovery has found, where that may be used: a log, or nothing, which is formatted then.
    fn judge(
        &self,
        recovered: Result<(Log, RecoveryReport), OpenFault>,
        device: &Device,
    ) -> Result<(Option<Log>, Option<RecoveryReport>), DriveError> {
        let DriveOptions { medium, format, .. } = &self.options;
        let may_write = device.holding.is_some() || !medium.is_claimed();
        match recovered {
            // Somebody else has begun a log since the device was looked at.
            Ok(_) if !may_write => Err(self.claimed(ClaimRefused::Gone)),
            Ok((_, report)) if *format == Format::BlankOrDamaged && !report.is_whole() => {
                tracing::warn!(drive = self.drive, ?report, "a damaged drive is formatted");
                Ok((None, Some(report)))
            }
            Ok((log, report)) => Ok((Some(log), Some(report))),
            Err(OpenFault::Blank) if *format != Format::Never && may_write => Ok((None, None)),
            Err(fault) => {
                let drive = self.drive.clone();
                Err(DriveError::Log { drive, fault })
            }
        }
    }

    /// Whether the claim of this log may be written to a device: where that is blank, or has this log. What else is
    /// there is not touched, and recovery says what it is.
    async fn may_be_claimed(&self, device: &Device, arena: &Arena) -> Result<bool, DriveError> {
        let patience = Patience::Until(time::now() + FRONT_PATIENCE);
        let capacity_bytes = self.options.log.geometry.capacity_bytes;
        let len_bytes = u32::try_from(capacity_bytes).unwrap_or(FRONT_BYTES);
        let part = (0, len_bytes.min(FRONT_BYTES));
        let front = driving::read(device, arena, part, patience).await;
        let front = front.map_err(|fault| self.claimed(fault.into()))?;
        match Front::of(front.as_slice(), self.options.log.identity) {
            Front::Ours => Ok(true),
            Front::Blank => Ok(self.options.format != Format::Never),
            Front::Other => Ok(false),
            Front::SomethingBehind => {
                let drive = self.drive.clone();
                Err(DriveError::NotBlank { drive })
            }
        }
    }

    /// A file that nobody else has.
    async fn locked_file(&self, path: &Path) -> Result<(File, bool), DriveError> {
        let failed = |error| self.file_error(error);
        let (file, is_direct) = self.opened_file(path, true).await?;
        if !file.try_lock().await.map_err(failed)? {
            let drive = self.drive.clone();
            return Err(DriveError::Taken { drive });
        }
        Ok((file, is_direct))
    }

    /// What a file is that is too short to be read as a log: made just now, since its maker did not get further, or
    /// something else. `None` where that is told by reading it.
    async fn short(&self, device: &Device, arena: &Arena) -> Result<Option<OpenFault>, DriveError> {
        let (On::File(file), Medium::File(_)) = (&*device.on, &self.options.medium) else {
            return Ok(None);
        };
        let failed = |error| self.file_error(error);
        if file.len_bytes().await.map_err(failed)? >= FRONT_BYTES.into() {
            return Ok(None);
        }
        let len = FRONT_BYTES as usize;
        let (read, front) = file.read_at(arena.alloc(len)?, 0, len, 0).await;
        Ok(read.map_or(None, |count| short_of(&front.as_slice()[..count])))
    }

    /// Gives a file the room of its log, which is known by now: a log that was cut short is read as far as it goes, and
    /// what is no log is not made longer.
    async fn give_room(&self, device: &Device, capacity_bytes: u64) -> Result<(), DriveError> {
        let (On::File(file), Medium::File(_)) = (&*device.on, &self.options.medium) else {
            return Ok(());
        };
        let failed = |error| self.file_error(error);
        if file.len_bytes().await.map_err(failed)? < capacity_bytes {
            file.allocate(capacity_bytes).await.map_err(failed)?;
        }
        Ok(())
    }

    /// A file or a device, and whether it is used around the page cache.
    async fn opened_file(&self, path: &Path, create: bool) -> Result<(File, bool), DriveError> {
        let failed = |error| self.file_error(error);
        let buffered = OpenOptions {
            create,
            ..OpenOptions::READ_WRITE
        };
        let direct = OpenOptions {
            direct: true,
            ..buffered
        };
        match File::open(path, direct).await {
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!(
                    drive = self.drive,
                    "no direct access here: a drive goes through the page cache"
                );
                let file = File::open(path, buffered).await.map_err(failed)?;
                Ok((file, false))
            }
            opened => Ok((opened.map_err(failed)?, true)),
        }
    }

    fn file_error(&self, error: FileError) -> DriveError {
        let drive = self.drive.clone();
        DriveError::File { drive, error }
    }

    fn remote_error(&self, fault: RemoteFault) -> DriveError {
        let drive = self.drive.clone();
        match fault {
            RemoteFault::Connect(error) => DriveError::Connect { drive, error },
            RemoteFault::Blocks(block_bytes) => self.block_length(block_bytes),
        }
    }

    fn block_length(&self, block_bytes: u64) -> DriveError {
        let drive = self.drive.clone();
        DriveError::BlockLength { drive, block_bytes }
    }

    fn claimed(&self, why: ClaimRefused) -> DriveError {
        let drive = self.drive.clone();
        DriveError::Claimed { drive, why }
    }
}
