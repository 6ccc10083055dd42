//! A second ring, for files whose devices are polled for completions instead of interrupting.
//!
//! Such a ring (`IORING_SETUP_IOPOLL`) takes reads and writes of direct files only, and finds their
//! completions only while it is asked. So a core that has any under way does not sleep.

use io_uring::{IoUring, squeue};
use rustix::io::Errno;

use super::super::{Completion, OPERATIONS_MAX, SUBMISSIONS_MAX};
use super::{assert_entered, reap};

/// The ring, once somebody has asked for it.
#[derive(Default)]
pub(super) struct Polled {
    ring: Option<Box<IoUring>>,
    /// Submitted and not completed.
    in_flight: usize,
    /// The answers to what could not be submitted, for the next turn.
    refused: Vec<Completion>,
}

impl Polled {
    /// Queues an entry. Where there is no such ring it completes with `EOPNOTSUPP`, as where the
    /// device cannot be polled.
    pub(super) fn push(&mut self, entry: &squeue::Entry) {
        let Some(ring) = self.open() else {
            let result = -Errno::OPNOTSUPP.raw_os_error();
            let refused = Completion::only(entry.get_user_data(), result);
            return self.refused.push(refused);
        };
        loop {
            // SAFETY: as for the other ring's entries: what the entry names is owned by the
            // operation table until its completion is reaped.
            let pushed = unsafe { ring.submission().push(entry) };
            if pushed.is_ok() {
                break;
            }
            // The queue has room again once the kernel has taken what is in it.
            assert_entered(&ring.submit());
        }
        self.in_flight += 1;
    }

    fn open(&mut self) -> Option<&mut IoUring> {
        if self.ring.is_none() {
            let cq_entries = u32::try_from(OPERATIONS_MAX).expect("bounded");
            let mut builder = IoUring::builder();
            builder
                .dontfork()
                .setup_cqsize(cq_entries)
                .setup_submit_all()
                .setup_single_issuer()
                .setup_iopoll();
            match builder.build(SUBMISSIONS_MAX) {
                Ok(ring) => self.ring = Some(Box::new(ring)),
                Err(error) => tracing::debug!(%error, "no ring that polls devices"),
            }
        }
        self.ring.as_deref_mut()
    }

    /// Whether somebody waits for it, so that the core is not to sleep.
    pub(super) const fn has_work(&self) -> bool {
        self.in_flight > 0 || !self.refused.is_empty()
    }

    /// Submits what is queued, and asks the devices once.
    pub(super) fn turn(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        if self.in_flight == 0 {
            return;
        }
        let Some(ring) = &mut self.ring else {
            unreachable!("what is in flight was submitted to a ring")
        };
        assert_entered(&ring.submit());
        let before = out.len();
        reap(ring, out);
        self.in_flight -= out.len() - before;
    }
}
