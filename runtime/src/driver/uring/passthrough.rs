//! A ring for commands to NVMe namespaces (`uring_cmd`), without the block layer between.
//!
//! Such a command needs entries of twice the usual size, on both of a ring's queues, which the other
//! operations would pay for. So the ring is one of its own, opened for the first command. A core that
//! sleeps has the main ring wait for this one's descriptor.
//!
//! Opcodes and dwords of commands: NVM Command Set specification 1.0, sections 3.2.4 (read) and 3.2.6
//! (write).

use std::os::fd::{AsRawFd, RawFd};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::super::command::{COMMAND_BYTES, Command, request_code};
use super::super::target::Namespace;
use super::super::{Completion, CompletionFlags, Key, OPERATIONS_MAX, SUBMISSIONS_MAX, Submission};
use super::assert_entered;
use super::entry::{part, parts};
use crate::lease::Lease;

type Ring = IoUring<squeue::Entry128, cqueue::Entry32>;

/// Most bytes of one command. Below what any driver takes in one request whose pages lie apart
/// (Linux gives NVMe 127 segments), so that a command is never refused for its length.
const COMMAND_BYTES_MAX: usize = 256 * 1024;
/// Opcodes of the NVM command set.
const WRITE: u8 = 1;
const READ: u8 = 2;
/// The data is one range (`NVME_URING_CMD_IO`).
const ONE_RANGE: u32 = request_code(0x80);
/// The data is a list of ranges (`NVME_URING_CMD_IO_VEC`).
const LIST: u32 = request_code(0x81);

/// The ring, once somebody has asked for it.
#[derive(Default)]
pub(super) struct Passthrough {
    ring: Option<Box<Ring>>,
    /// Commands submitted and not completed.
    in_flight: usize,
    /// Bytes of each command, by its slot in the operation table: the device does not say.
    lens: Vec<u32>,
    /// The answers to what could not be submitted, for the next turn.
    refused: Vec<Completion>,
}

impl Passthrough {
    /// Queues a command. Where there is no such ring it completes with `EOPNOTSUPP`; with `EINVAL`
    /// if it does not begin and end with a block, or is a list that is too long.
    pub(super) fn push(
        &mut self,
        key: Key,
        fd: RawFd,
        namespace: Namespace,
        what: Submission,
        lease: &mut Lease,
    ) {
        let queued = command(namespace, what, lease).and_then(|(op, command, len)| {
            let ring = self.open().ok_or(Errno::OPNOTSUPP)?;
            let mut bytes = [0; 80];
            bytes[..COMMAND_BYTES].copy_from_slice(&command.to_bytes());
            let entry = opcode::UringCmd80::new(Fd(fd), op).cmd(bytes).build();
            queue(ring, &entry.user_data(key.user_data()));
            Ok(len)
        });
        match queued {
            Ok(len) => {
                self.lens.resize(OPERATIONS_MAX, 0);
                self.lens[key.index()] = len;
                self.in_flight += 1;
            }
            Err(errno) => {
                let refused = Completion::only(key.user_data(), -errno.raw_os_error());
                self.refused.push(refused);
            }
        }
    }

    fn open(&mut self) -> Option<&mut Ring> {
        if self.ring.is_none() {
            let cq_entries = u32::try_from(OPERATIONS_MAX).expect("bounded");
            let mut builder = Ring::builder();
            builder
                .dontfork()
                .setup_cqsize(cq_entries)
                .setup_submit_all()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag();
            match builder.build(SUBMISSIONS_MAX) {
                Ok(ring) => self.ring = Some(Box::new(ring)),
                Err(error) => tracing::debug!(%error, "no ring for commands to NVMe namespaces"),
            }
        }
        self.ring.as_deref_mut()
    }

    /// What becomes readable when a command completes, while there are any.
    pub(super) fn to_wait_for(&self) -> Option<RawFd> {
        let ring = self.ring.as_ref().filter(|_| self.in_flight > 0)?;
        Some(ring.as_raw_fd())
    }

    /// Whether a turn is known to have something to do.
    pub(super) fn has_work(&mut self) -> bool {
        if self.in_flight == 0 {
            return !self.refused.is_empty();
        }
        self.ring.as_deref_mut().is_some_and(|ring| {
            let submission = ring.submission();
            let queued = !submission.is_empty() || submission.taskrun();
            drop(submission);
            queued || !ring.completion().is_empty()
        })
    }

    /// Submits what is queued, and takes what has completed.
    pub(super) fn turn(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        if !self.has_work() {
            return;
        }
        let ring = self.ring.as_deref_mut().expect("it has work");
        assert_entered(&ring.submit());
        for entry in ring.completion() {
            let key = Key::from_user_data(entry.user_data());
            self.in_flight -= 1;
            let result = match entry.result() {
                0 => self.lens[key.index()].cast_signed(),
                errno if errno < 0 => errno,
                status => Completion::refused_by_device(status),
            };
            out.push(Completion {
                user_data: entry.user_data(),
                result,
                flags: CompletionFlags::NONE,
            });
        }
    }
}

/// Queues an entry, handing the full queue to the kernel first where needed.
fn queue(ring: &mut Ring, entry: &squeue::Entry128) {
    loop {
        // SAFETY: as for the other rings' entries: what the command names is owned by the operation
        // table until its completion is reaped.
        let pushed = unsafe { ring.submission().push(entry) };
        if pushed.is_ok() {
            return;
        }
        assert_entered(&ring.submit());
    }
}

/// The command of an operation, how its data is given, and its bytes.
fn command(
    namespace: Namespace,
    what: Submission,
    lease: &mut Lease,
) -> Result<(u32, Command, u32), Errno> {
    let block = 1_u32 << namespace.block_shift;
    let (kind, opcode, offset, (address, data_len), len) = match (what, lease) {
        (Submission::ReadAt { start, len, offset }, lease) => {
            let (to, len) = part(lease.writable(), start, len.min(COMMAND_BYTES_MAX));
            (ONE_RANGE, READ, offset, (to.expose_provenance(), len), len)
        }
        (Submission::WriteAt { start, len, offset }, lease) => {
            let (from, len) = part(lease.readable(), start, len.min(COMMAND_BYTES_MAX));
            let data = (from.expose_provenance(), len);
            (ONE_RANGE, WRITE, offset, data, len)
        }
        (Submission::ReadScatterAt { offset }, Lease::Scatter(scatter)) => {
            let len = list_bytes(scatter.len())?;
            let (list, count) = scatter.list();
            let data = (list.expose_provenance(), parts(count));
            (LIST, READ, offset, data, len)
        }
        (Submission::WriteMessageAt { offset }, Lease::Message(message)) => {
            let len = list_bytes(message.len())?;
            let (list, count) = message.list();
            let data = (list.expose_provenance(), parts(count));
            (LIST, WRITE, offset, data, len)
        }
        (what, lease) => unreachable!("{what:?} of {lease:?} is none of a file"),
    };
    if len == 0 || len % block != 0 || offset % u64::from(block) != 0 {
        return Err(Errno::INVAL);
    }
    let first_block = offset >> namespace.block_shift;
    let [low, high] = [first_block, first_block >> 32].map(|word| word & u64::from(u32::MAX));
    let command = Command {
        opcode,
        namespace_id: namespace.id,
        address: address as u64,
        data_len,
        dword_10: u32::try_from(low).expect("masked"),
        dword_11: u32::try_from(high).expect("masked"),
        // A count of blocks, less one.
        dword_12: len / block - 1,
    };
    Ok((kind, command, len))
}

/// The bytes of a list, which is not cut to what one command takes.
fn list_bytes(len: usize) -> Result<u32, Errno> {
    if len > COMMAND_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    Ok(u32::try_from(len).expect("bounded"))
}
