//! The memory of an operation in flight, for a driver that does the work itself.
//!
//! What the ring's entries say in the kernel's terms, this says in ours: where the part of the lease
//! lies that the operation may read or write. All of the driver's raw system calls are here.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, connect};

use super::Submission;
use crate::lease::Lease;
use crate::vectored::empty_header;

/// A part of a lease, by address. Valid from the submission until the completion: the operation
/// table keeps the lease in place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    Nothing,
    Range {
        address: NonNull<u8>,
        len: usize,
    },
    Message(*const libc::msghdr),
    List {
        parts: *const libc::iovec,
        count: usize,
    },
    Address(NonNull<SocketAddrAny>),
}

impl Memory {
    pub(crate) fn of(what: Submission, lease: &mut Lease) -> Self {
        match (what, lease) {
            (Submission::Receive { start, len } | Submission::ReadAt { start, len, .. }, lease) => {
                let (address, room) = lease.writable();
                Self::range(address, room, start, len)
            }
            (Submission::Send { start, len } | Submission::WriteAt { start, len, .. }, lease) => {
                let (address, room) = lease.readable();
                Self::range(address, room, start, len)
            }
            (Submission::ReadCounter, lease) => {
                let (address, len) = lease.writable();
                Self::Range { address, len }
            }
            (
                Submission::SendMessage | Submission::SendMessageZeroCopy,
                Lease::Message(message),
            ) => Self::Message(message.header()),
            (
                Submission::ReadScatterAt { .. } | Submission::ReceiveScatter,
                Lease::Scatter(scatter),
            ) => {
                let (parts, count) = scatter.list();
                Self::List { parts, count }
            }
            (Submission::WriteMessageAt { .. }, Lease::Message(message)) => {
                let (parts, count) = message.list();
                Self::List { parts, count }
            }
            (Submission::Connect, Lease::Address(address)) => {
                Self::Address(NonNull::from(address.as_mut()))
            }
            (
                Submission::AcceptMany | Submission::Readable | Submission::RingsMany,
                Lease::Nothing,
            )
            | (Submission::ReceiveMany, Lease::Pool(_)) => Self::Nothing,
            (what, lease) => unreachable!("{what:?} does not take {lease:?}"),
        }
    }

    fn range(address: NonNull<u8>, room: usize, start: usize, len: usize) -> Self {
        assert!(start + len <= room, "an operation stays inside its lease");
        // SAFETY: the assert keeps address+start inside the lease's memory. The result is used only
        // while the operation is in flight.
        let address = unsafe { address.add(start) };
        Self::Range { address, len }
    }

    fn bounds(self) -> (NonNull<u8>, usize) {
        match self {
            Self::Range { address, len } => (address, len),
            other => unreachable!("{other:?} is no range"),
        }
    }

    /// Writes `bytes` from `start` on: what a simulated device does.
    pub(crate) fn fill(self, start: usize, bytes: &[u8]) {
        let (address, len) = self.bounds();
        assert!(
            start + bytes.len() <= len,
            "a device stays in what it was lent"
        );
        let to = address.as_ptr().wrapping_add(start);
        // SAFETY: the assert keeps the range in a lease that the operation table keeps in place and
        // lends to nobody else until the completion, which comes after this call.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Writes `bytes` to the front of a range, or over the parts of a list.
    pub(crate) fn scatter(self, mut bytes: &[u8]) {
        let Self::List { parts, count } = self else {
            return self.fill(0, bytes);
        };
        for index in 0..count {
            // SAFETY: the list has that many parts, and belongs to the lease as its parts do: see
            // `fill`.
            let part = unsafe { parts.wrapping_add(index).read() };
            let (now, later) = bytes.split_at(bytes.len().min(part.iov_len));
            let address = NonNull::new(part.iov_base.cast::<u8>()).expect("a part lies somewhere");
            let len = part.iov_len;
            Self::Range { address, len }.fill(0, now);
            bytes = later;
        }
        assert!(bytes.is_empty(), "a device stays in what it was lent");
    }

    /// Appends at most `len` of the bytes from `start` on to `out`: what a simulated device reads.
    pub(crate) fn gather(self, start: usize, len: usize, out: &mut Vec<u8>) {
        let end = out.len() + len;
        let mut skip = start;
        let mut take = |address: *const u8, part: usize| {
            let skipped = skip.min(part);
            skip -= skipped;
            let count = (part - skipped).min(end - out.len());
            let from = address.wrapping_add(skipped);
            // SAFETY: the part lies in a lease that the operation table keeps in place until the
            // completion, which comes after this call; it is only read.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
        };
        match self {
            Self::Range { address, len } => take(address.as_ptr(), len),
            Self::Message(header) => {
                // SAFETY: as above; the header is part of the lease.
                let header = unsafe { header.read() };
                for index in 0..header.msg_iovlen {
                    // SAFETY: as above; the list has that many parts.
                    let part = unsafe { header.msg_iov.wrapping_add(index).read() };
                    take(part.iov_base.cast(), part.iov_len);
                }
            }
            Self::List { parts, count } => {
                for index in 0..count {
                    // SAFETY: as above; the list has that many parts.
                    let part = unsafe { parts.wrapping_add(index).read() };
                    take(part.iov_base.cast(), part.iov_len);
                }
            }
            other => unreachable!("{other:?} is not sent"),
        }
    }

    /// The peer's address.
    pub(crate) fn peer(self) -> Result<SocketAddr, Errno> {
        let Self::Address(address) = self else {
            unreachable!("{self:?} is no address")
        };
        // SAFETY: as in `connect`.
        let address = unsafe { address.as_ref() };
        SocketAddr::try_from(address.clone())
    }

    pub(super) fn receive(self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let (address, len) = self.bounds();
        let at = address.as_ptr().cast();
        // SAFETY: the range lies in a lease that the operation table keeps in place and lends to
        // nobody else until the completion, which comes after this call.
        let got = unsafe { libc::recv(socket.as_raw_fd(), at, len, libc::MSG_DONTWAIT) };
        count(got)
    }

    pub(super) fn receive_list(self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let (parts, len) = self.list();
        let mut header = empty_header();
        header.msg_iov = parts.cast_mut();
        header.msg_iovlen = len;
        // SAFETY: the list and the parts that it names belong to a boxed scatter list that the
        // operation table keeps in place and lends to nobody else until the completion, which comes
        // after this call; the header lives here.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        count(got)
    }

    pub(super) fn send(self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let (address, len) = self.bounds();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let from = address.as_ptr().cast_const().cast();
        // SAFETY: as in `receive`; the memory is only read.
        count(unsafe { libc::send(socket.as_raw_fd(), from, len, flags) })
    }

    pub(super) fn send_message(self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let Self::Message(header) = self else {
            unreachable!("{self:?} is no message")
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: header, gather list and the parts that it names belong to a boxed message that the
        // operation table keeps in place until the completion, which comes after this call.
        count(unsafe { libc::sendmsg(socket.as_raw_fd(), header, flags) })
    }

    pub(super) fn read(self, file: BorrowedFd<'_>) -> Result<usize, Errno> {
        let (address, len) = self.bounds();
        // SAFETY: as in `receive`.
        count(unsafe { libc::read(file.as_raw_fd(), address.as_ptr().cast(), len) })
    }

    pub(super) fn read_at(self, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Errno> {
        let (address, len) = self.bounds();
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: as in `receive`.
        count(unsafe { libc::pread(file.as_raw_fd(), address.as_ptr().cast(), len, offset) })
    }

    pub(super) fn write_at(self, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Errno> {
        let (address, len) = self.bounds();
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let from = address.as_ptr().cast_const().cast();
        // SAFETY: as in `receive`; the memory is only read.
        count(unsafe { libc::pwrite(file.as_raw_fd(), from, len, offset) })
    }

    fn list(self) -> (*const libc::iovec, usize) {
        let Self::List { parts, count } = self else {
            unreachable!("{self:?} is no list")
        };
        (parts, count)
    }

    /// As calls on files take it.
    fn file_list(self) -> (*const libc::iovec, i32) {
        let (parts, count) = self.list();
        (parts, i32::try_from(count).expect("a list is bounded"))
    }

    pub(super) fn read_list_at(self, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Errno> {
        let (parts, len) = self.file_list();
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: the list and the parts that it names belong to a boxed scatter list that the
        // operation table keeps in place and lends to nobody else until the completion, which comes
        // after this call.
        count(unsafe { libc::preadv(file.as_raw_fd(), parts, len, offset) })
    }

    pub(super) fn write_list_at(self, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Errno> {
        let (parts, len) = self.file_list();
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: as in `send_message`; the memory is only read.
        count(unsafe { libc::pwritev(file.as_raw_fd(), parts, len, offset) })
    }

    pub(super) fn connect(self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let Self::Address(address) = self else {
            unreachable!("{self:?} is no address")
        };
        // SAFETY: the address is boxed in a lease that the operation table keeps in place until the
        // completion, which comes after this call; it is only read.
        let address = unsafe { address.as_ref() };
        connect(socket, address)
    }
}

/// The result of a raw call, which leaves its errno behind.
fn count(returned: isize) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
