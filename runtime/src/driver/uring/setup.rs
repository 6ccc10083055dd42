//! Opening a ring with what this kernel offers.

use io_uring::types::Napi;
use io_uring::{IoUring, Probe, Submitter, opcode};
use rustix::process::getpid;
use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::super::probe::{Features, ProbeError};
use super::super::{DriverOptions, OPERATIONS_MAX, SUBMISSIONS_MAX};
use super::registered::{self, Files};
use crate::pool::OfferRing;

/// Worker threads of one ring, of each kind. Hot paths need none.
const WORKERS_MAX: u32 = 4;
/// Fill a buffer of a provided ring piece by piece (`IOU_PBUF_RING_INC`, Linux 6.12).
pub(super) const INCREMENTAL: u16 = 2;

/// Operations without which there is no driver, all older than Linux 6.1.
const NEEDED: [(u8, &str); 12] = [
    (opcode::Recv::CODE, "IORING_OP_RECV"),
    (opcode::Send::CODE, "IORING_OP_SEND"),
    (opcode::SendMsg::CODE, "IORING_OP_SENDMSG"),
    (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
    (opcode::Connect::CODE, "IORING_OP_CONNECT"),
    (opcode::Read::CODE, "IORING_OP_READ"),
    (opcode::Write::CODE, "IORING_OP_WRITE"),
    (opcode::Readv::CODE, "IORING_OP_READV"),
    (opcode::Writev::CODE, "IORING_OP_WRITEV"),
    (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
    (opcode::LinkTimeout::CODE, "IORING_OP_LINK_TIMEOUT"),
    (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
];

/// The best ring that this kernel gives, and whether it defers task work.
pub(super) fn build() -> Result<(IoUring, bool), ProbeError> {
    // Twice as many completions as operations: multishot ones have several, and more than fit are
    // kept by the kernel (NODROP) until they have been asked for.
    let cq_entries = u32::try_from(OPERATIONS_MAX).expect("bounded") * 2;
    let mut deferred = IoUring::builder();
    deferred
        .dontfork()
        .setup_cqsize(cq_entries)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    match deferred.build(SUBMISSIONS_MAX) {
        Ok(ring) => return Ok((ring, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(ProbeError::from_io(&error)),
    }
    let mut cooperative = IoUring::builder();
    cooperative
        .dontfork()
        .setup_cqsize(cq_entries)
        .setup_submit_all()
        .setup_coop_taskrun()
        .setup_taskrun_flag();
    let ring = cooperative
        .build(SUBMISSIONS_MAX)
        .map_err(|error| ProbeError::from_io(&error))?;
    Ok((ring, false))
}

/// What a fresh ring offers. Registers what is kept for its life.
pub(super) fn features(
    submitter: &mut Submitter<'_>,
    defer_taskrun: bool,
    options: &DriverOptions,
) -> Result<(Features, Files), ProbeError> {
    let mut probe = Probe::new();
    submitter
        .register_probe(&mut probe)
        .map_err(|error| ProbeError::from_io(&error))?;
    for (code, name) in NEEDED {
        if !probe.is_supported(code) {
            return Err(ProbeError::TooOld(name));
        }
    }
    let files = Files::register(submitter);
    let pools = probe_pools(submitter);
    let features = Features {
        bounded_workers: bound_workers(submitter),
        busy_poll: busy_poll(submitter, options),
        defer_taskrun,
        device_commands: probe.is_supported(opcode::UringCmd80::CODE),
        incremental_pools: pools == Pools::Incremental,
        message_ring: probe.is_supported(opcode::MsgRingData::CODE),
        pools: pools != Pools::No,
        registered_buffers: registered::offers_buffers(submitter),
        registered_connections: files.offers_any() && frees_files_at_once(),
        registered_files: files.offers_any(),
        registered_ring: submitter.register_ring_fd().is_ok(),
        zero_copy_send: probe.is_supported(opcode::SendMsgZc::CODE),
    };
    Ok((features, files))
}

/// Whether a file that leaves the table is closed when its own operations have ended (Linux 6.13).
fn frees_files_at_once() -> bool {
    let name = uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6_u32, 13_u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pools {
    No,
    Whole,
    Incremental,
}

/// Whether the kernel picks buffers from rings, and whether piece by piece.
fn probe_pools(submitter: &Submitter<'_>) -> Pools {
    let ring = OfferRing::new(1);
    let offers = |flags| {
        // SAFETY: the ring's memory is valid until the end of this function, and it is taken away
        // from the kernel again before that. It offers no buffer.
        let done = unsafe {
            submitter.register_buf_ring_with_flags(ring.address(), ring.entries(), 0, flags)
        };
        done.is_ok() && submitter.unregister_buf_ring(0).is_ok()
    };
    if offers(INCREMENTAL) {
        Pools::Incremental
    } else if offers(0) {
        Pools::Whole
    } else {
        Pools::No
    }
}

/// Asks for busy polling of network devices while the ring waits (`IORING_REGISTER_NAPI`).
fn busy_poll(submitter: &Submitter<'_>, options: &DriverOptions) -> bool {
    let Some(budget) = options.busy_poll else {
        return false;
    };
    let micros = u32::try_from(budget.as_micros()).unwrap_or(u32::MAX);
    let mut napi = Napi::new()
        .set_busy_poll_timeout(micros)
        .set_prefer_busy_poll(true);
    submitter.register_napi(&mut napi).is_ok()
}

/// Bounds the kernel's worker threads of this ring, and keeps them off the calling thread's CPU if
/// it is pinned: a worker inherits the affinity of a core that never sleeps, and would starve.
fn bound_workers(submitter: &Submitter<'_>) -> bool {
    let bounded = submitter
        .register_iowq_max_workers(&mut [WORKERS_MAX; 2])
        .is_ok();
    // The process's first thread is not pinned: its CPUs are the process's.
    let masks = (sched_getaffinity(None), sched_getaffinity(Some(getpid())));
    let (Ok(own), Ok(process)) = masks else {
        return bounded;
    };
    let others = |&cpu: &usize| process.is_set(cpu) && !own.is_set(cpu);
    let mut others = (0..CpuSet::MAX_CPU).filter(others).peekable();
    if own.count() != 1 || others.peek().is_none() {
        return bounded;
    }
    // SAFETY: all zeros are a valid value of this plain structure: the empty set.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    for cpu in others {
        // SAFETY: `cpu` is below the size of the set, which is ours.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    bounded && submitter.register_iowq_aff(&set).is_ok()
}
