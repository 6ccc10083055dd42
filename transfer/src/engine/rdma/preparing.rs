//! What has to be known before a transfer can go from memory to memory.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{Operation, Refusal};
use lunette_transfer_proto::engine::one_sided::{read_windows, write_segment};
use lunette_transfer_proto::engine::scheduler::TransfersFull;
use lunette_transfer_proto::engine::segment::SegmentId;

use super::super::batch::{Local, Span};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::same_host::Under;
use super::super::spawned;
use crate::client::Attachments;
use crate::source::WriteSource;
use lunette_runtime::arena::Extent;

/// How long a transfer waits for rails, windows and registrations at most. What is not there by then goes over
/// streams.
const PREPARE_MAX: Duration = Duration::from_secs(2);

/// Where memory of a span begins, and all of which it is a part.
fn extent(local: &Local) -> Extent {
    match local {
        Local::Into(memory) | Local::From(WriteSource::Exposed(memory)) => memory.extent(),
        Local::From(WriteSource::Region(region)) => region.extent(),
    }
}

/// Whether adapters may reach it at all.
fn is_reached(span: &Span) -> bool {
    !span.is_remote && span.len() > 0
}

impl Shared {
    /// Posts a batch to the rails, now, or when it is known what of it goes from memory to memory.
    ///
    /// # Errors
    /// [`TransfersFull`].
    pub(in crate::engine) fn submit_prepared(
        self: &Rc<Self>,
        posted: &Rc<Posted>,
        now: Time,
    ) -> Result<(), TransfersFull> {
        if self.one_sided.len() == 0 || self.is_prepared(posted, now) {
            return self.submit(posted, now);
        }
        let mut state = self.state.borrow_mut();
        state.scheduler.expect()?;
        posted.under.set(Under::Preparing);
        drop(state);
        let preparing = Rc::clone(self).prepare(Rc::clone(posted));
        if !spawned(self.tasks.spawn(preparing)) {
            self.state.borrow_mut().scheduler.expect_no_more();
            return self.submit(posted, now);
        }
        self.pump_at(now);
        Ok(())
    }

    fn is_prepared(&self, posted: &Posted, now: Time) -> bool {
        // Where none is up streams begin, and another one may come up before they are done.
        if self.state.borrow().scheduler.is_one_sided(now).is_none() {
            return false;
        }
        // Requests of a batch are often of one memory here, and of one there.
        let mut last: Option<(SegmentId, Range<usize>)> = None;
        posted.batch.spans().iter().all(|span| {
            if !is_reached(span) {
                return true;
            }
            let start = span.local().start();
            let lies_there = last.as_ref().is_some_and(|(segment, settled)| {
                let end = start.checked_add(span.len());
                *segment == span.segment
                    && settled.start <= start
                    && end.is_some_and(|end| end <= settled.end)
            });
            if !lies_there {
                last = self.settled(span, now);
            }
            last.is_some()
        })
    }

    /// Whether nothing is to be done for a request.
    fn is_settled(&self, span: &Span, now: Time) -> bool {
        !is_reached(span) || self.settled(span, now).is_some()
    }

    /// Nothing is to be done for requests of this segment and memory at these addresses, among which the request's lies.
    fn settled(&self, span: &Span, now: Time) -> Option<(SegmentId, Range<usize>)> {
        if !self.one_sided.windows.is_settled(span.segment, now) {
            return None;
        }
        let (start, len) = (span.local().start(), span.len());
        let mut ends = self.one_sided.ends().iter();
        let settled = ends.try_fold(0..usize::MAX, |known, ends| {
            let here = ends.ours.settled(start, len)?;
            Some(known.start.max(here.start)..known.end.min(here.end))
        });
        Some((span.segment, settled?))
    }

    async fn prepare(self: Rc<Self>, posted: Rc<Posted>) {
        let left = posted.left();
        let prepared = time::timeout(PREPARE_MAX.min(left), self.make_ready(&posted)).await;
        if prepared.is_err() {
            tracing::debug!("a transfer does not wait for adapters any longer");
        }
        self.state.borrow_mut().scheduler.expect_no_more();
        // Who was cancelled is over.
        if posted.under.get() != Under::Preparing {
            return;
        }
        self.to_rails(&posted);
    }

    async fn make_ready(self: &Rc<Self>, posted: &Posted) {
        poll_fn(|cx| {
            let is_known = self.state.borrow().scheduler.is_one_sided(time::now());
            if is_known.is_some() {
                return Poll::Ready(());
            }
            self.one_sided.waiting.wait(cx.waker());
            Poll::Pending
        })
        .await;
        let now = time::now();
        let spans = posted.batch.spans().iter();
        let open: Vec<&Span> = spans.filter(|span| !self.is_settled(span, now)).collect();
        let segments: BTreeSet<SegmentId> = open.iter().map(|span| span.segment).collect();
        for segment in segments {
            if !self.one_sided.windows.is_settled(segment, now) {
                self.ask_windows(segment).await;
            }
        }
        for span in open {
            let (start, len) = (span.local().start(), span.len());
            for ends in self.one_sided.ends() {
                if !ends.ours.is_settled(start, len) {
                    ends.ours.register(extent(span.local())).await;
                }
            }
        }
    }

    async fn ask_windows(&self, segment: SegmentId) {
        let Some(stream) = self.stream() else {
            return;
        };
        let op = Operation::Windows.to_wire();
        let body = |out: &mut Vec<u8>| write_segment(out, segment);
        let asked = stream.call(op, body, Attachments::default(), PREPARE_MAX);
        let windows = match asked.await {
            Ok(reply) if Refusal::from_wire(reply.status).is_none() => read_windows(&reply.body),
            // It is reached over streams, or refused there with the right reason.
            Ok(_) => Ok(Vec::new()),
            Err(_) => return,
        };
        self.one_sided
            .windows
            .put(segment, windows.unwrap_or_default());
    }
}
