//! Transfers whose this side is a device's memory.
//!
//! A batch is cut into pieces. Each goes its way by itself, several of them at a time, so that one is being copied by
//! the device while another is with the peer:
//!
//! ```text
//!   read    room -> transfer into staging memory -> copies to the device
//!   write   room -> copies to staging memory     -> transfer from it
//! ```
//!
//! The transfer of a piece is an ordinary one, over whatever way there is: its retries, fences and rights are those of
//! any other. What the device reaches by itself is not staged (`near`).
//!
//! A device takes nothing back. A copy that is still under way when a transfer is over is waited for as a slice is,
//! for [`SchedulerOptions::settle`](lunette_transfer_proto::engine::scheduler::SchedulerOptions) at most; it keeps
//! its memory, and its share of the bound, until the device has let go.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use lunette_runtime::arena::Exposed;
use lunette_runtime::{Scope, spawn_local, time};
use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Outcome, RequestFailure, TransfersFull,
};
use lunette_transfer_proto::engine::segment::Way;

use super::super::batch::{Batch, End, Local, PostOptions, Span};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::spawned;
use super::pieces::{Cutting, Stretch};
use super::{DeviceFault, DevicePart};
use crate::source::WriteSource;
use crate::staging::Staged;

/// Pieces of one transfer at a time: one with the device and one with the peer, and one more of each, so that neither
/// waits for this core.
const PIECES_MAX: usize = 4;
/// Pause before the transfer of a piece is begun for which the peer's scheduler had no place.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A transfer that is being carried.
#[derive(Debug)]
pub(super) struct Carrying {
    pub(super) posted: Rc<Posted>,
    cutting: Cell<Cutting>,
    requests: RefCell<Vec<Progress>>,
    /// Sums of the pieces' transfers.
    sums: RefCell<Outcome>,
}

/// What became of a request so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    failure: Option<RequestFailure>,
    moved_bytes: usize,
}

/// A stretch, and the memory in which it is staged; of a request of this machine's memory none.
type Part = (Stretch, Option<Exposed>);
/// A copy between a device and something else.
pub(super) type Copying = Pin<Box<dyn Future<Output = Result<(), DeviceFault>>>>;
/// A copy of one stretch.
pub(super) type Copy = (Stretch, Copying);

impl Shared {
    /// Carries a batch of which some of this side is memory of devices.
    ///
    /// # Errors
    /// [`TransfersFull`]: as many as the peer's scheduler may have are being carried.
    pub(in crate::engine) fn carry_devices(
        self: &Rc<Self>,
        posted: &Rc<Posted>,
    ) -> Result<(), TransfersFull> {
        let transfers_max = self.engine.options.scheduler.transfers_max;
        let counted = Counted::new(self);
        if self.carried.get() > transfers_max {
            return Err(TransfersFull { transfers_max });
        }
        let carrying = Rc::new(Carrying {
            posted: Rc::clone(posted),
            cutting: Cell::default(),
            requests: RefCell::new(vec![Progress::default(); posted.batch.len()]),
            sums: RefCell::default(),
        });
        let shared = Rc::clone(self);
        let is_started = spawned(self.tasks.spawn(async move {
            let _counted = counted;
            carrying.run(&shared).await;
            let outcome = carrying.outcome();
            if shared.is_own() {
                shared.copied_within(&carrying.posted, outcome);
            } else {
                shared.copied(&carrying.posted, outcome);
            }
        }));
        if !is_started {
            self.fail_whole(posted, Cause::OwnRoom);
        }
        Ok(())
    }
}

/// Counts a transfer while it is being carried.
struct Counted(Rc<Shared>);

impl Counted {
    fn new(shared: &Rc<Shared>) -> Self {
        shared.carried.set(shared.carried.get() + 1);
        Self(Rc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.carried.set(self.0.carried.get() - 1);
    }
}

/// The transfer of a piece. It is cancelled if it is let go before it has ended.
struct UnderWay<'a> {
    shared: &'a Rc<Shared>,
    whole: &'a Posted,
    part: Rc<Posted>,
}

impl<'a> UnderWay<'a> {
    fn new(shared: &'a Rc<Shared>, whole: &'a Posted, part: Rc<Posted>) -> Self {
        whole.parts.borrow_mut().push(Rc::clone(&part));
        Self {
            shared,
            whole,
            part,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut parts = self.whole.parts.borrow_mut();
        parts.retain(|part| !Rc::ptr_eq(part, &self.part));
        drop(parts);
        self.shared.cancel(&self.part);
    }
}

impl Carrying {
    /// Carries all pieces, some of them at a time.
    async fn run(self: &Rc<Self>, shared: &Rc<Shared>) {
        let others = Scope::new();
        for _ in 1..PIECES_MAX {
            let (carrying, shared) = (Rc::clone(self), Rc::clone(shared));
            if !spawned(others.spawn(async move { carrying.walk(&shared).await })) {
                break;
            }
        }
        // Also where the core has room for none.
        self.walk(shared).await;
        others.join().await;
    }

    /// Carries one piece after the other until none is left.
    async fn walk(&self, shared: &Rc<Shared>) {
        while self.over(shared).is_none() {
            let piece = self.take();
            if piece.is_empty() {
                return;
            }
            let rest = self.carry_near(shared, piece).await;
            if !rest.is_empty() {
                self.carry(shared, rest).await;
            }
        }
    }

    /// Why nothing more of it is to be begun, if so.
    fn over(&self, shared: &Shared) -> Option<Cause> {
        let is_replaced = shared.state.borrow().is_replaced;
        let replaced = is_replaced.then_some(Cause::PeerReplaced);
        self.posted.is_over().or(replaced)
    }

    fn take(&self) -> Vec<Stretch> {
        let spans = self.posted.batch.spans();
        let requests = self.requests.borrow();
        let mut cutting = self.cutting.get();
        let piece = cutting.next(
            |at| spans.get(at).map(|span| (span.way(), span.len())),
            |at| requests[at].failure.is_some(),
        );
        self.cutting.set(cutting);
        piece
    }

    pub(super) fn span(&self, stretch: Stretch) -> &Span {
        &self.posted.batch.spans()[stretch.request]
    }

    /// The device's part of a stretch, if this side is a device's.
    pub(super) fn device(&self, stretch: Stretch) -> Option<DevicePart> {
        match &self.span(stretch).end {
            End::Device(_, part) => Some(part.slice(stretch.start, stretch.len)),
            End::Host(_) => None,
        }
    }

    /// Carries a piece by way of this machine's memory.
    async fn carry(&self, shared: &Rc<Shared>, piece: Vec<Stretch>) {
        let is_staged = |stretch: &&Stretch| self.device(**stretch).is_some();
        let len = piece.iter().filter(is_staged).map(|part| part.len).sum();
        let staged = match self.room(shared, len).await {
            Ok(staged) => staged,
            Err(cause) => {
                for stretch in piece {
                    self.fail(stretch, cause, Effect::Untouched);
                }
                return;
            }
        };
        let staged = Rc::new(staged);
        let parts = self.parts(piece, staged.as_ref().as_ref());
        match self.span(parts[0].0).way() {
            Way::Read => {
                let arrived = self.transfer(shared, parts).await;
                for stretch in self.copy_parts(shared, arrived, staged).await {
                    self.moved(stretch.0);
                }
            }
            Way::Write => {
                let ready = self.copy_parts(shared, parts, Rc::clone(&staged)).await;
                for stretch in self.transfer(shared, ready).await {
                    self.moved(stretch.0);
                }
                drop(staged);
            }
        }
    }

    /// Room for so many bytes, in its turn; none for none.
    async fn room(&self, shared: &Shared, len: usize) -> Result<Option<Staged>, Cause> {
        if len == 0 {
            return Ok(None);
        }
        let mut taking = pin!(shared.engine.device_staging.take(len));
        let waiting = poll_fn(|cx| {
            if let Some(cause) = self.over(shared) {
                return Poll::Ready(Err(cause));
            }
            self.posted.rouse(cx.waker());
            let taken = taking.as_mut().poll(cx);
            taken.map(|staged| staged.ok_or(Cause::OwnRoom))
        });
        let waited = time::timeout(self.posted.left(), waiting).await;
        waited.unwrap_or(Err(Cause::DeadlineExceeded)).map(Some)
    }

    fn parts(&self, piece: Vec<Stretch>, staged: Option<&Staged>) -> Vec<Part> {
        let mut start = 0;
        let part = |stretch: Stretch| {
            let is_staged = self.device(stretch).is_some();
            let memory = staged.filter(|_| is_staged).map(|staged| {
                let memory = staged.memory().slice(start, stretch.len);
                start += stretch.len;
                memory
            });
            (stretch, memory)
        };
        piece.into_iter().map(part).collect()
    }

    /// Has the device copy what is staged, to it or from it; those that are done, and those that it has no part in.
    async fn copy_parts(
        &self,
        shared: &Rc<Shared>,
        parts: Vec<Part>,
        staged: Rc<Option<Staged>>,
    ) -> Vec<Part> {
        let mut copies: Vec<Copy> = Vec::new();
        for (stretch, memory) in &parts {
            let (Some(memory), Some(device)) = (memory.clone(), self.device(*stretch)) else {
                continue;
            };
            let way = self.span(*stretch).way();
            let copy = async move {
                match way {
                    Way::Read => device.write(WriteSource::Exposed(memory)).await,
                    Way::Write => device.read(memory).await,
                }
            };
            copies.push((*stretch, Box::pin(copy)));
        }
        let mut failed = Vec::new();
        for (stretch, result) in self.copy_all(shared, copies, staged).await {
            if let Err(cause) = result {
                // What is copied from the device goes nowhere but to staging memory.
                let effect = match self.span(stretch).way() {
                    Way::Read => self.late_effect(cause),
                    Way::Write => Effect::Untouched,
                };
                self.fail(stretch, cause, effect);
                failed.push(stretch);
            }
        }
        let mut parts = parts;
        parts.retain(|(stretch, _)| !failed.contains(stretch));
        parts
    }

    /// Waits for copies, as long as may be. `keeps` stays until the last of them has ended.
    pub(super) async fn copy_all<K: 'static>(
        &self,
        shared: &Rc<Shared>,
        copies: Vec<Copy>,
        keeps: K,
    ) -> Vec<(Stretch, Result<(), Cause>)> {
        if copies.is_empty() {
            return Vec::new();
        }
        let (stretches, copies): (Vec<Stretch>, Vec<_>) = copies.into_iter().unzip();
        let copying = spawn_local(async move {
            let ended = join_all(copies).await;
            drop(keeps);
            ended
        });
        let patience = self.posted.left() + shared.engine.options.scheduler.settle;
        let ended = time::timeout(patience, copying).await;
        let results: Vec<Result<(), Cause>> = match ended {
            Ok(Ok(ended)) => {
                let result = |copied: Result<(), DeviceFault>| {
                    copied.map_err(|fault| {
                        tracing::warn!(%fault, "a device of this side");
                        fault.cause()
                    })
                };
                ended.into_iter().map(result).collect()
            }
            // The core ends, or takes no more tasks.
            Ok(Err(_)) => vec![Err(Cause::OwnRoom); stretches.len()],
            Err(_) => {
                let over = self.posted.is_over();
                vec![Err(over.unwrap_or(Cause::DeadlineExceeded)); stretches.len()]
            }
        };
        stretches.into_iter().zip(results).collect()
    }

    /// What a copy that failed so left where its bytes were to go: one that was not waited for any more still may.
    pub(super) const fn late_effect(&self, cause: Cause) -> Effect {
        match cause {
            Cause::DeadlineExceeded | Cause::Cancelled => Effect::MayStillChange,
            _ => Effect::Partly,
        }
    }

    /// Moves parts between this machine's memory and the peer; those that are done.
    async fn transfer(&self, shared: &Rc<Shared>, mut parts: Vec<Part>) -> Vec<Part> {
        if parts.is_empty() {
            return parts;
        }
        let outcome = match self.begin(shared, &parts).await {
            Ok(under_way) => poll_fn(|cx| under_way.part.poll_ended(cx)).await,
            Err(cause) => {
                for (stretch, _) in parts {
                    self.fail(stretch, cause, Effect::Untouched);
                }
                return Vec::new();
            }
        };
        let mut failed = Vec::new();
        for failure in outcome.failures {
            let index = failure.request.expect("a piece has no notification");
            let (stretch, memory) = &parts[index as usize];
            // What is read is staged, so what is left of it changes nothing.
            let is_staged = memory.is_some() && self.span(*stretch).way() == Way::Read;
            let effect = if is_staged {
                Effect::Untouched
            } else {
                failure.effect
            };
            self.record(*stretch, RequestFailure { effect, ..failure });
            failed.push(*stretch);
        }
        let mut sums = self.sums.borrow_mut();
        sums.slices += outcome.slices;
        sums.resent += outcome.resent;
        sums.stolen += outcome.stolen;
        parts.retain(|(stretch, _)| !failed.contains(stretch));
        parts
    }

    /// Begins the transfer of parts, as soon as the peer's scheduler has a place for it.
    async fn begin<'a>(
        &'a self,
        shared: &'a Rc<Shared>,
        parts: &[Part],
    ) -> Result<UnderWay<'a>, Cause> {
        let spans = parts.iter().map(|part| self.staged_span(part));
        let batch = Batch::of_parts(self.posted.batch.peer(), spans.collect());
        loop {
            if let Some(cause) = self.over(shared) {
                return Err(cause);
            }
            let options = PostOptions {
                timeout: self.posted.left(),
                notification: None,
                ..self.posted.options.clone()
            };
            let now = time::now();
            let part = Rc::new(Posted::part(&batch, options, now));
            if shared.dispatch(&part, now).is_ok() {
                return Ok(UnderWay::new(shared, &self.posted, part));
            }
            time::sleep(FULL_PAUSE).await;
        }
    }

    /// The request of a part, whose this side is this machine's memory.
    fn staged_span(&self, (stretch, memory): &Part) -> Span {
        let span = self.span(*stretch);
        let local = match (memory, span.way()) {
            (Some(memory), Way::Read) => Local::Into(memory.clone()),
            (Some(memory), Way::Write) => Local::From(memory.clone().into()),
            (None, _) => span.local().slice(stretch.start, stretch.len),
        };
        Span {
            end: End::Host(local),
            offset_bytes: span.offset_bytes + stretch.start as u64,
            ..span.clone()
        }
    }

    pub(super) fn moved(&self, stretch: Stretch) {
        self.requests.borrow_mut()[stretch.request].moved_bytes += stretch.len;
    }

    pub(super) fn fail(&self, stretch: Stretch, cause: Cause, effect: Effect) {
        self.record(stretch, self.posted.failure(None, cause, effect));
    }

    /// The first failure of a request says why, and the worst what it left behind.
    fn record(&self, stretch: Stretch, failure: RequestFailure) {
        let known = &mut self.requests.borrow_mut()[stretch.request].failure;
        let effect = known.map_or(failure.effect, |known| known.effect.max(failure.effect));
        let first = known.unwrap_or(failure);
        let age = self.posted.failure(None, first.cause, effect).age;
        *known = Some(RequestFailure {
            effect,
            age,
            ..first
        });
    }

    fn outcome(&self) -> Outcome {
        let spans = self.posted.batch.spans();
        let requests = self.requests.borrow();
        let failed = spans.iter().zip(&*requests).enumerate();
        let failures = failed.filter_map(|(index, (span, progress))| {
            let failure = match progress.failure {
                Some(failure) => failure,
                None if progress.moved_bytes == span.len() => return None,
                None => {
                    let over = self.posted.is_over().unwrap_or(Cause::PeerReplaced);
                    self.posted.failure(None, over, Effect::Untouched)
                }
            };
            let effect = if progress.moved_bytes > 0 {
                failure.effect.max(Effect::Partly)
            } else {
                failure.effect
            };
            Some(RequestFailure {
                request: Some(u32::try_from(index).expect("requests are bounded")),
                effect,
                ..failure
            })
        });
        Outcome {
            failures: failures.collect(),
            ..self.sums.borrow().clone()
        }
    }
}
