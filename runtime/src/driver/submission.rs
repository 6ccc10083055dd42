//! What is asked of a driver, and what it answers.

use rustix::io::Errno;

/// The largest errno (`MAX_ERRNO`, `linux/err.h`).
const ERRNO_MAX: i32 = 4095;
/// The largest status of an NVMe command: its 15 bits without the phase tag.
const STATUS_MAX: i32 = 0x7fff;

/// What to do. Offsets and lengths name a part of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    /// Receive at most `len` bytes to `start` of the lease.
    Receive { start: usize, len: usize },
    /// Receive into what is left of the lease, a scatter list.
    ReceiveScatter,
    /// Receive again and again, each time into a buffer of the lease, a pool.
    ReceiveMany,
    /// Send `len` bytes from `start` of the lease.
    Send { start: usize, len: usize },
    /// Send what is left of the lease, a gather list.
    SendMessage,
    /// As `SendMessage`, from the lease's memory itself instead of a copy of it.
    SendMessageZeroCopy,
    /// Accept connections, again and again; the results are their descriptors.
    AcceptMany,
    /// Connect to the lease, an address.
    Connect,
    /// Wait until the descriptor can be read.
    Readable,
    /// Read the counter of an eventfd into the lease; where there is no ring.
    ReadCounter,
    /// Tell each time that the counter of an eventfd is raised, again and again, which is not read. For the ring alone.
    RingsMany,
    /// Read at most `len` bytes from `offset` of a file to `start` of the lease.
    ReadAt {
        start: usize,
        len: usize,
        offset: u64,
    },
    /// Write at most `len` bytes from `start` of the lease to `offset` of a file.
    WriteAt {
        start: usize,
        len: usize,
        offset: u64,
    },
    /// Read from `offset` of a file into what is left of the lease, a scatter list.
    ReadScatterAt { offset: u64 },
    /// Write what is left of the lease, a gather list, to `offset` of a file.
    WriteMessageAt { offset: u64 },
}

impl Submission {
    /// Whether it goes on after a completion, until it fails, ends or is cancelled.
    pub(crate) const fn is_multishot(self) -> bool {
        matches!(self, Self::AcceptMany | Self::ReceiveMany | Self::RingsMany)
    }

    /// Whether it takes what a peer sends.
    pub(crate) const fn is_receive(self) -> bool {
        matches!(
            self,
            Self::Receive { .. } | Self::ReceiveScatter | Self::ReceiveMany
        )
    }

    /// Whether it waits for its descriptor to become readable, as against writable.
    pub(crate) const fn is_read(self) -> bool {
        match self {
            Self::Receive { .. }
            | Self::ReceiveScatter
            | Self::ReceiveMany
            | Self::AcceptMany
            | Self::Readable
            | Self::ReadCounter
            | Self::RingsMany
            | Self::ReadAt { .. }
            | Self::ReadScatterAt { .. } => true,
            Self::Send { .. }
            | Self::SendMessage
            | Self::SendMessageZeroCopy
            | Self::Connect
            | Self::WriteAt { .. }
            | Self::WriteMessageAt { .. } => false,
        }
    }
}

/// One answer to an operation. Most operations have one; a multishot one has many, and a send
/// without copies has two: its result, then the notice that the device has let go of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The key of the operation, as submitted.
    pub(crate) user_data: u64,
    /// A count, or an error ([`Completion::error`]).
    pub(crate) result: i32,
    pub(crate) flags: CompletionFlags,
}

impl Completion {
    /// The only completion of an operation.
    pub(crate) const fn only(user_data: u64, result: i32) -> Self {
        let flags = CompletionFlags::NONE;
        Self {
            user_data,
            result,
            flags,
        }
    }

    /// The result that says that an NVMe device refused a command with this status.
    pub(super) fn refused_by_device(status: i32) -> i32 {
        assert!((1..=STATUS_MAX).contains(&status), "a status is 15 bits");
        -ERRNO_MAX - status
    }

    /// The error of a negative result: the system's, or the status of an NVMe device.
    pub(crate) fn error(result: i32) -> Result<Errno, u16> {
        let code = result.saturating_neg();
        assert!(code > 0, "{result} is no error");
        match u16::try_from(code - ERRNO_MAX) {
            Ok(status) if status > 0 => Err(status),
            _ => Ok(Errno::from_raw_os_error(code)),
        }
    }
}

/// What a completion says beside its result, laid out as in `io_uring_cqe.flags`
/// (`io_uring_enter(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionFlags(u32);

impl CompletionFlags {
    pub(crate) const NONE: Self = Self(0);
    const BUFFER: u32 = 1 << 0;
    const MORE: u32 = 1 << 1;
    const BUFFER_MORE: u32 = 1 << 4;
    const BUFFER_SHIFT: u32 = 16;

    pub(super) const fn from_ring(flags: u32) -> Self {
        Self(flags)
    }

    /// Another completion of the same operation will follow.
    pub(crate) const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// The bytes lie in buffer `id` of the pool.
    pub(crate) const fn with_buffer(self, id: u16) -> Self {
        Self(self.0 | Self::BUFFER | (id as u32) << Self::BUFFER_SHIFT)
    }

    /// Whether another completion of the same operation will follow.
    pub(crate) const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// The buffer of the pool in which the bytes lie.
    pub(crate) const fn buffer(self) -> Option<u16> {
        let [_, _, low, high] = self.0.to_le_bytes();
        if self.0 & Self::BUFFER == 0 {
            None
        } else {
            Some(u16::from_le_bytes([low, high]))
        }
    }

    /// Whether that buffer's rest is still the system's, to be filled by a later completion.
    pub(crate) const fn keeps_buffer(self) -> bool {
        self.0 & Self::BUFFER_MORE != 0
    }
}
