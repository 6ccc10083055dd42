//! Files.
//!
//! Reads and writes go through the driver and own their buffers. Opening, allocating and syncing
//! block, so they are done by the control thread: on the ring they would wake its worker threads.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use thiserror::Error;

use crate::control::{ControlError, control};
use crate::driver::{Descriptor, Submission};
use crate::executor::Core;
use crate::lease::{Lend, LendRead, LendWrite};
use crate::op::{BufResult, Op, OpError};
use crate::vectored::{Message, Scatter};

/// Alignment in bytes that any direct read or write keeps: of memory, offset and length. Regions of
/// an arena keep it in memory. A device with larger blocks may ask for more.
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

/// An open file, owned by one core. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct File {
    fd: Rc<Descriptor>,
}

impl File {
    /// Opens a file.
    ///
    /// # Errors
    /// [`FileError::Io`] with the system's reason; `InvalidInput` where a file system has no direct
    /// access.
    pub async fn open(path: impl Into<PathBuf>, options: OpenOptions) -> Result<Self, FileError> {
        let path = path.into();
        let opened = control(move || {
            fs::OpenOptions::new()
                .read(options.read)
                .write(options.write)
                .create(options.create)
                .custom_flags(if options.direct { libc::O_DIRECT } else { 0 })
                .open(path)
        });
        let file = opened.await??;
        let fd = if options.polled && options.direct {
            Descriptor::polled(file.into())
        } else {
            Descriptor::registered(&Core::current(), file.into())
        };
        Ok(Self { fd })
    }

    /// Whether the file's device is polled, as far as is known: the first read or write tells.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    /// One operation, done again by the ordinary way if the device turns out not to be polled.
    async fn operate<B: Lend>(&self, what: Submission, buffer: B) -> BufResult<u32, B> {
        let core = Core::current();
        let was_polled = self.fd.is_polled();
        let (result, buffer) = Op::submit(&core, what, &self.fd, buffer).await;
        match result {
            Err(OpError::Os(Errno::OPNOTSUPP)) if was_polled => {
                self.fd.stop_polling();
                Op::submit(&core, what, &self.fd, buffer).await
            }
            result => (result, buffer),
        }
    }

    /// Reads at most `len` bytes from `offset` of the file to `start` of `buffer`; fewer at the
    /// end of the file, and possibly elsewhere.
    ///
    /// The buffer belongs to the system until the future ends. Dropping the future asks for
    /// cancellation; a read that is on its way to the device goes on, and its buffer is freed when
    /// it has ended.
    pub async fn read_at<B: LendWrite>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<usize, B> {
        let what = Submission::ReadAt { start, len, offset };
        let (result, buffer) = self.operate(what, buffer).await;
        (result.map(|count| count as usize), buffer)
    }

    /// Reads exactly `len` bytes, in as many pieces as it takes.
    ///
    /// The file's end within them is [`OpError::Os`] with `NODATA`.
    pub async fn read_exact_at<B: LendWrite>(
        &self,
        mut buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<(), B> {
        let mut got = 0;
        while got < len {
            let (result, back) = self
                .read_at(buffer, start + got, len - got, offset + got as u64)
                .await;
            buffer = back;
            match result {
                Ok(0) => return (Err(OpError::Os(Errno::NODATA)), buffer),
                Ok(count) => got += count,
                Err(error) if error.is_interruption() => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Writes at most `len` bytes from `start` of `buffer` to `offset` of the file. Ownership and
    /// cancellation are as for [`File::read_at`]: a write that was cancelled may have happened.
    pub async fn write_at<B: LendRead>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<usize, B> {
        let what = Submission::WriteAt { start, len, offset };
        let (result, buffer) = self.operate(what, buffer).await;
        (result.map(|count| count as usize), buffer)
    }

    /// Writes exactly `len` bytes, in as many pieces as it takes.
    pub async fn write_all_at<B: LendRead>(
        &self,
        mut buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<(), B> {
        let mut put = 0;
        while put < len {
            let (result, back) = self
                .write_at(buffer, start + put, len - put, offset + put as u64)
                .await;
            buffer = back;
            match result {
                Ok(0) => return (Err(OpError::Os(Errno::NOSPC)), buffer),
                Ok(count) => put += count,
                Err(error) if error.is_interruption() => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Reads from `offset` of the file until the list is full, in as many pieces as it takes.
    ///
    /// Ownership and cancellation are as for [`File::read_at`]. The file's end within it is
    /// [`OpError::Os`] with `NODATA`; the list then says what is left.
    pub async fn read_scatter_at(
        &self,
        mut scatter: Box<Scatter>,
        offset: u64,
    ) -> BufResult<(), Box<Scatter>> {
        let mut offset = offset;
        while !scatter.is_empty() {
            let what = Submission::ReadScatterAt { offset };
            let (result, back) = self.operate(what, scatter).await;
            scatter = back;
            match result {
                Ok(0) => return (Err(OpError::Os(Errno::NODATA)), scatter),
                Ok(count) => {
                    scatter.advance(count as usize);
                    offset += u64::from(count);
                }
                Err(error) if error.is_interruption() => {}
                Err(error) => return (Err(error), scatter),
            }
        }
        (Ok(()), scatter)
    }

    /// Writes what is left of `message` to `offset` of the file, all of it or an error; the message
    /// then says how much.
    ///
    /// Ownership and cancellation are as for [`File::write_at`]. In a direct file each part of the
    /// message keeps [`DIRECT_ALIGN_BYTES`], which control bytes do not.
    pub async fn write_message_at(
        &self,
        mut message: Box<Message>,
        offset: u64,
    ) -> BufResult<(), Box<Message>> {
        let mut offset = offset;
        while !message.is_empty() {
            let what = Submission::WriteMessageAt { offset };
            let (result, back) = self.operate(what, message).await;
            message = back;
            match result {
                Ok(0) => return (Err(OpError::Os(Errno::NOSPC)), message),
                Ok(count) => {
                    message.advance(count as usize);
                    offset += u64::from(count);
                }
                Err(error) if error.is_interruption() => {}
                Err(error) => return (Err(error), message),
            }
        }
        (Ok(()), message)
    }

    /// Makes room for the file's first `len_bytes`, so that later writes within them do not extend
    /// it (an extending direct write wakes worker threads of the ring).
    ///
    /// # Errors
    /// [`FileError::Io`]: `StorageFull`, say.
    pub async fn allocate(&self, len_bytes: u64) -> Result<(), FileError> {
        let done = self.blocking(move |fd| fallocate(fd, FallocateFlags::empty(), 0, len_bytes));
        done.await
    }

    /// Waits until what has been written is on the device, the file's length included.
    ///
    /// # Errors
    /// [`FileError::Io`]: what was written since the last success may be lost.
    pub async fn sync_data(&self) -> Result<(), FileError> {
        self.blocking(|fd| rustix::fs::fdatasync(fd)).await
    }

    /// A call of the control thread on this file.
    async fn blocking(
        &self,
        call: impl FnOnce(&OwnedFd) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), FileError> {
        // Its own descriptor: ours may be closed before the call is done.
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        Ok(control(move || call(&fd)).await?.map_err(io::Error::from)?)
    }
}
