//! Submission queue entries: what the ring is told of each operation.

use std::ptr::NonNull;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::super::{Submission, Target};
use crate::lease::Lease;

/// That there is something to read.
const POLLED_FOR: u32 = libc::POLLIN.cast_unsigned() as u32;

/// Most parts that the kernel takes in one list (`UIO_MAXIOV`); ours are shorter.
pub(super) fn parts(count: usize) -> u32 {
    u32::try_from(count).expect("a list is bounded")
}

/// The part `start..start + len` of a lease's memory, as the ring takes it.
pub(super) fn part(
    (address, room): (NonNull<u8>, usize),
    start: usize,
    len: usize,
) -> (*mut u8, u32) {
    assert!(start + len <= room, "an operation stays inside its lease");
    let len = u32::try_from(len).expect("a lease's length is bounded");
    (address.as_ptr().wrapping_add(start), len)
}

/// The entry of an operation whose lease is at its final place. `registered` knows the index of
/// the registered buffer in which a piece of memory lies.
pub(super) fn entry(
    target: Target,
    what: Submission,
    lease: &mut Lease,
    registered: impl Fn(*const u8, u32) -> Option<u16>,
) -> squeue::Entry {
    let (fd, flags) = match target.slot {
        Some(slot) => (slot, squeue::Flags::FIXED_FILE),
        None => (target.fd, squeue::Flags::empty()),
    };
    let fd = Fd(fd);
    let entry = match what {
        Submission::ReadAt { start, len, offset } => {
            let (to, len) = part(lease.writable(), start, len);
            match registered(to, len) {
                Some(index) => opcode::ReadFixed::new(fd, to, len, index)
                    .offset(offset)
                    .build(),
                None => opcode::Read::new(fd, to, len).offset(offset).build(),
            }
        }
        Submission::WriteAt { start, len, offset } => {
            let (from, len) = part(lease.readable(), start, len);
            match registered(from, len) {
                Some(index) => opcode::WriteFixed::new(fd, from, len, index)
                    .offset(offset)
                    .build(),
                None => opcode::Write::new(fd, from, len).offset(offset).build(),
            }
        }
        Submission::Readable => opcode::PollAdd::new(fd, POLLED_FOR).build(),
        Submission::RingsMany => opcode::PollAdd::new(fd, POLLED_FOR).multi(true).build(),
        Submission::ReadScatterAt { .. } | Submission::WriteMessageAt { .. } => {
            file_list(fd, what, lease)
        }
        _ => socket(fd, what, lease),
    };
    entry.flags(flags)
}

/// The entry of a file operation on a list.
fn file_list(fd: Fd, what: Submission, lease: &mut Lease) -> squeue::Entry {
    match (what, lease) {
        (Submission::ReadScatterAt { offset }, Lease::Scatter(scatter)) => {
            let (list, count) = scatter.list();
            opcode::Readv::new(fd, list, parts(count))
                .offset(offset)
                .build()
        }
        (Submission::WriteMessageAt { offset }, Lease::Message(message)) => {
            let (list, count) = message.list();
            opcode::Writev::new(fd, list, parts(count))
                .offset(offset)
                .build()
        }
        (what, lease) => unreachable!("{what:?} does not take {lease:?}"),
    }
}

/// The entry of a socket's operation.
fn socket(fd: Fd, what: Submission, lease: &mut Lease) -> squeue::Entry {
    // WAITALL: the kernel goes on after a full socket buffer, one completion in all.
    let send_all_of_one = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    let send_all = send_all_of_one.cast_unsigned();
    match (what, lease) {
        (Submission::Receive { start, len }, lease) => {
            let (to, len) = part(lease.writable(), start, len);
            opcode::Recv::new(fd, to, len).build()
        }
        (Submission::ReceiveScatter, Lease::Scatter(scatter)) => {
            opcode::RecvMsg::new(fd, scatter.header()).build()
        }
        (Submission::ReceiveMany, Lease::Pool(pool)) => {
            opcode::RecvMulti::new(fd, pool.group()).build()
        }
        (Submission::Send { start, len }, lease) => {
            let (from, len) = part(lease.readable(), start, len);
            opcode::Send::new(fd, from, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        }
        (Submission::SendMessage, Lease::Message(message)) => match message.only_part() {
            Some((from, len)) => opcode::Send::new(fd, from, len)
                .flags(send_all_of_one)
                .build(),
            None => opcode::SendMsg::new(fd, message.header())
                .flags(send_all)
                .build(),
        },
        (Submission::SendMessageZeroCopy, Lease::Message(message)) => {
            opcode::SendMsgZc::new(fd, message.header())
                .flags(send_all)
                .build()
        }
        (Submission::AcceptMany, Lease::Nothing) => opcode::AcceptMulti::new(fd)
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        (Submission::Connect, Lease::Address(address)) => {
            opcode::Connect::new(fd, address.as_ptr().cast(), address.addr_len()).build()
        }
        (what, lease) => unreachable!("{what:?} does not take {lease:?}"),
    }
}
