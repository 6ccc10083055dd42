//! Files.
//!
//! Reads and writes go through the driver and own their buffers (`access`). Opening, allocating and
//! syncing block, so they are done by the control thread: on the ring they would wake its worker
//! threads. An NVMe namespace's character device is a file too (`namespace`).

mod access;
mod namespace;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, SeekFrom, StatxFlags, fallocate, flock, fstat, seek,
    statx,
};
use rustix::io::Errno;
use thiserror::Error;

use crate::control::{ControlError, control};
use crate::driver::{Descriptor, Handle, Via};
use crate::executor::Core;
use crate::sim::{SimulatedFile, SimulatedHost};
use crate::time;
use namespace::Geometry;

/// Alignment in bytes that any direct read or write keeps: of memory, offset and length. Regions of
/// an arena keep it in memory. A device with larger blocks asks for more ([`File::align_bytes`]).
pub const DIRECT_ALIGN_BYTES: usize = 512;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Made if it does not exist. Needs `write`.
    pub create: bool,
    /// Around the page cache (`O_DIRECT`): memory, offsets and lengths are multiples of
    /// [`DIRECT_ALIGN_BYTES`].
    pub direct: bool,
    /// The device is polled for completions instead of interrupting, where it can be
    /// ([`File::is_polled`]). Needs `direct`. The core does not sleep while such a read or write is
    /// under way, and does not cancel it.
    pub polled: bool,
}

impl OpenOptions {
    /// For reading.
    pub const READ: Self = Self {
        read: true,
        write: false,
        create: false,
        direct: false,
        polled: false,
    };
    /// For reading and writing; made if it does not exist.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
        create: true,
        direct: false,
        polled: false,
    };
}

/// Why a blocking operation on a file failed.
#[derive(Debug, Error)]
pub enum FileError {
    /// The system's reason.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The control thread did not take the call.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// When a file was changed last, as its system tells. Two that differ tell of a change between them, and two that are equal
/// of none, with two exceptions: systems count time in ticks of up to [`FileStamp::TICK_MAX`], so a change may follow
/// another one unseen within one; and of what programs write to a mapping of theirs the first byte is told of, and more only
/// when the system has written the page out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    len_bytes: u64,
    /// Seconds and nanoseconds.
    changed: (i64, u64),
}

impl FileStamp {
    /// The longest time that systems take for one.
    pub const TICK_MAX: Duration = Duration::from_millis(10);

    /// How long the file is, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// An open file, owned by one core. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct File {
    fd: Rc<Descriptor>,
    align_bytes: usize,
    /// Of an NVMe namespace.
    geometry: Option<Geometry>,
}

/// A file as the control thread has opened it.
struct Opened {
    file: fs::File,
    align_bytes: usize,
    geometry: Option<Geometry>,
}

impl File {
    /// Opens a file.
    ///
    /// The character device of an NVMe namespace (`/dev/ng0n1`) is read and written by commands to
    /// the device, around the block layer; [`OpenOptions::direct`] and [`OpenOptions::polled`] say
    /// nothing new of it. Such a command is not cancelled, and a list of parts goes into one
    /// command, which is refused above 256 KiB.
    ///
    /// # Errors
    /// [`FileError::Io`] with the system's reason; `InvalidInput` where a file system has no direct
    /// access; `Unsupported` for a namespace where the driver passes no commands on (epoll), or
    /// whose blocks carry metadata.
    pub async fn open(path: impl Into<PathBuf>, options: OpenOptions) -> Result<Self, FileError> {
        let core = Core::current();
        let path = path.into();
        if let Some(host) = core.simulated_host() {
            return Self::open_simulated(&host, &path, options).await;
        }
        let opened = control(move || Opened::open(path, options)).await??;
        let fd = match opened.geometry {
            Some(_) if !core.passes_commands() => {
                return Err(io::Error::from(io::ErrorKind::Unsupported).into());
            }
            Some(geometry) => Descriptor::namespace(geometry.namespace, opened.file.into()),
            None if options.polled && options.direct => {
                Descriptor::polled(Handle::System(opened.file.into()))
            }
            None => Descriptor::registered(&core, Handle::System(opened.file.into())),
        };
        Ok(Self {
            fd,
            align_bytes: opened.align_bytes,
            geometry: opened.geometry,
        })
    }

    async fn open_simulated(
        host: &SimulatedHost,
        path: &Path,
        options: OpenOptions,
    ) -> Result<Self, FileError> {
        let file = host.open_file(path, options)?;
        time::sleep(file.latency()).await;
        let align_bytes = if options.direct {
            DIRECT_ALIGN_BYTES
        } else {
            1
        };
        let handle = Handle::SimulatedFile(file);
        let fd = if options.polled && options.direct {
            Descriptor::polled(handle)
        } else {
            Descriptor::plain(handle)
        };
        Ok(Self {
            fd,
            align_bytes,
            geometry: None,
        })
    }

    /// The simulated file, if it is one, after the time that its drive takes.
    async fn simulated(&self) -> Option<&SimulatedFile> {
        let Handle::SimulatedFile(file) = self.fd.handle() else {
            return None;
        };
        time::sleep(file.latency()).await;
        Some(file)
    }

    /// Whether the file's device is polled, as far as is known: the first read or write tells.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.fd.via() == Via::Polling
    }

    /// What offsets and lengths of reads and writes are multiples of, in bytes: the device's block
    /// for a namespace, what the system asks for a direct file, else one.
    #[must_use]
    pub const fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    /// How long the file, block device or namespace is, in bytes.
    ///
    /// # Errors
    /// [`FileError`], with the system's reason.
    pub async fn len_bytes(&self) -> Result<u64, FileError> {
        if let Some(file) = self.simulated().await {
            return Ok(file.len_bytes().map_err(io::Error::from)?);
        }
        match self.geometry {
            Some(geometry) => Ok(geometry.len_bytes()),
            None => self.blocking(|fd| seek(fd, SeekFrom::End(0))).await,
        }
    }

    /// How long the file is, and when it was changed last: its bytes, its length, or what else is told of it.
    ///
    /// # Errors
    /// [`FileError`], with the system's reason.
    pub async fn stamp(&self) -> Result<FileStamp, FileError> {
        if let Some(file) = self.simulated().await {
            return Ok(FileStamp {
                len_bytes: file.len_bytes().map_err(io::Error::from)?,
                changed: (0, file.changes().map_err(io::Error::from)?),
            });
        }
        let told = self.blocking(|fd| fstat(fd)).await?;
        Ok(FileStamp {
            len_bytes: u64::try_from(told.st_size).unwrap_or(0),
            changed: (told.st_ctime, told.st_ctime_nsec),
        })
    }

    /// Makes room for the file's first `len_bytes`, so that later writes within them do not extend
    /// it (an extending direct write wakes worker threads of the ring).
    ///
    /// # Errors
    /// [`FileError::Io`]: `StorageFull`, say.
    pub async fn allocate(&self, len_bytes: u64) -> Result<(), FileError> {
        if let Some(file) = self.simulated().await {
            return Ok(file.allocate(len_bytes).map_err(io::Error::from)?);
        }
        let done = self.blocking(move |fd| fallocate(fd, FallocateFlags::empty(), 0, len_bytes));
        done.await
    }

    /// Waits until what has been written is on the device, the file's length included.
    ///
    /// # Errors
    /// [`FileError::Io`]: what was written since the last success may be lost.
    pub async fn sync_data(&self) -> Result<(), FileError> {
        if let Some(file) = self.simulated().await {
            return Ok(file.sync().map_err(io::Error::from)?);
        }
        match self.geometry {
            Some(geometry) => self.blocking(move |fd| geometry.flush(fd)).await,
            None => self.blocking(|fd| rustix::fs::fdatasync(fd)).await,
        }
    }

    /// Locks the file, as a whole, against others who would lock it: whether nobody has. The lock is given up when
    /// the last handle is, and each operation under way is one: so who gets it knows that nothing of its former
    /// holder is still written. In a simulated host there is no other, and the lock is always had.
    ///
    /// # Errors
    /// [`FileError`], with the system's reason.
    pub async fn try_lock(&self) -> Result<bool, FileError> {
        if self.simulated().await.is_some() {
            return Ok(true);
        }
        let locked =
            self.blocking(
                |fd| match flock(fd, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::WOULDBLOCK) => Ok(false),
                    locked => locked.map(|()| true),
                },
            );
        locked.await
    }

    /// A call of the control thread on this file.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OwnedFd) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, FileError> {
        // Its own descriptor: ours may be closed before the call is done.
        let fd = self.fd.system().try_clone()?;
        Ok(control(move || call(&fd)).await?.map_err(io::Error::from)?)
    }
}

impl Opened {
    fn open(path: PathBuf, options: OpenOptions) -> io::Result<Self> {
        // A character device has no cache to go around, and says so by refusing.
        let is_character_device =
            fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_char_device());
        let is_direct = options.direct && !is_character_device;
        let file = fs::OpenOptions::new()
            .read(options.read)
            .write(options.write)
            .create(options.create)
            .custom_flags(if is_direct { libc::O_DIRECT } else { 0 })
            .open(path)?;
        let geometry = if is_character_device {
            Geometry::of(&file)?
        } else {
            None
        };
        let align_bytes = match geometry {
            Some(geometry) => geometry.block_bytes(),
            None if is_direct => direct_align_bytes(&file),
            None => 1,
        };
        Ok(Self {
            file,
            align_bytes,
            geometry,
        })
    }
}

/// What the system asks of direct reads and writes of this file, where it says so (Linux 6.1).
fn direct_align_bytes(file: &fs::File) -> usize {
    let asked = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .map_or(0, |stat| stat.stx_dio_offset_align);
    DIRECT_ALIGN_BYTES.max(asked as usize)
}
