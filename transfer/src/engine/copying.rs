//! Transfers that are copies by this core: within one engine, and from what a peer of this host shows.

use std::rc::Rc;

use lunette_runtime::time;
use lunette_transfer_proto::engine::scheduler::{Cause, Effect, Outcome};

use super::batch::{Local, Span};
use super::peer::Shared;
use super::posted::Posted;
use super::same_host::{Link, ReadFault};
use super::{Inner, Notification, Refusal};

/// Bytes that are copied in one go, before other tasks get their turn.
const TURN_BYTES: usize = 1024 * 1024;
/// A batch of no more bytes is copied when it is posted.
const AT_ONCE_BYTES_MAX: u64 = 64 * 1024;

/// Where the segments of a batch lie.
#[derive(Debug)]
pub(super) enum Near {
    /// In this engine.
    Own,
    /// In an engine that shows them, and each is mapped.
    Mapped(Rc<Link>),
}

/// A batch that is being copied.
#[derive(Debug)]
struct Copying {
    posted: Rc<Posted>,
    near: Near,
    request: usize,
    offset: usize,
    outcome: Outcome,
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unfinished,
    Finished,
    /// It goes over the rails.
    NotHere,
}

impl Shared {
    /// Copies a batch whose segments are near: now if it is short, else from now on.
    pub(super) fn copy(self: &Rc<Self>, posted: &Rc<Posted>, near: Near) {
        let mut copying = Copying {
            posted: Rc::clone(posted),
            near,
            request: 0,
            offset: 0,
            outcome: Outcome::default(),
        };
        let shared = Rc::clone(self);
        if posted.batch.len_bytes() <= AT_ONCE_BYTES_MAX {
            let progress = copying.turn(&shared.engine);
            shared.after_copy(copying, progress);
            return;
        }
        let started = self.tasks.spawn(async move {
            let progress = loop {
                match copying.turn(&shared.engine) {
                    Progress::Unfinished => time::yield_now().await,
                    progress => break progress,
                }
            };
            shared.after_copy(copying, progress);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "nothing is copied");
            self.fail_whole(posted, Cause::Lost);
        }
    }

    fn after_copy(self: &Rc<Self>, copying: Copying, progress: Progress) {
        let Copying {
            posted,
            near,
            request,
            offset,
            outcome,
        } = copying;
        match (progress, near) {
            (Progress::NotHere, _) => {
                posted.is_touched.set(request > 0 || offset > 0);
                self.to_rails(&posted);
            }
            (_, Near::Own) => self.copied_within(&posted, outcome),
            (_, Near::Mapped(_)) => self.copied(&posted, outcome),
        }
    }

    /// The bytes of a batch have been copied between two engines; its notification follows over the
    /// rails.
    pub(super) fn copied(self: &Rc<Self>, posted: &Rc<Posted>, outcome: Outcome) {
        if outcome.failures.is_empty() && posted.options.notification.is_some() {
            self.note_to_rails(posted);
        } else {
            self.finish(posted, outcome);
        }
    }

    pub(super) fn copied_within(&self, posted: &Rc<Posted>, mut outcome: Outcome) {
        if let Some(bytes) = posted.options.notification.clone()
            && outcome.failures.is_empty()
        {
            let from = self.epoch;
            let notices = &self.engine.alive.siblings().notices;
            if let Err(refusal) = notices.notify(Notification { from, bytes }) {
                let busy = Cause::Refused(refusal);
                outcome
                    .failures
                    .push(posted.failure(None, busy, Effect::Untouched));
            }
        }
        self.finish(posted, outcome);
    }
}

impl Copying {
    /// Copies for a turn.
    fn turn(&mut self, engine: &Inner) -> Progress {
        let posted = Rc::clone(&self.posted);
        if let Some(cause) = posted.is_over() {
            self.fail_rest(cause);
            return Progress::Finished;
        }
        let mut left = TURN_BYTES;
        while let Some(span) = posted.batch.spans().get(self.request) {
            let len = left.min(span.len() - self.offset);
            match self.near.copy(engine, span, self.offset, len) {
                Ok(()) => self.has_copied(engine, span, len),
                Err(Fault::NotHere) => return Progress::NotHere,
                Err(Fault::Refused(refusal, is_touched)) => {
                    let cause = Cause::Refused(refusal);
                    self.fail_one(cause, is_touched);
                }
            }
            left -= len;
            if left == 0 {
                return Progress::Unfinished;
            }
        }
        Progress::Finished
    }

    fn has_copied(&mut self, engine: &Inner, span: &Span, len: usize) {
        let intent = self.posted.options.intent;
        engine.counts.moved(span.way(), intent, len as u64);
        if matches!(self.near, Near::Mapped(_)) {
            engine.counts.moved_here(len as u64);
        }
        self.offset += len;
        if self.offset == span.len() {
            self.request += 1;
            self.offset = 0;
        }
    }

    /// The request that is being copied fails; the others are copied.
    fn fail_one(&mut self, cause: Cause, is_touched: bool) {
        let effect = if is_touched || self.offset > 0 {
            Effect::Partly
        } else {
            Effect::Untouched
        };
        let request = u32::try_from(self.request).expect("requests are bounded");
        let failure = self.posted.failure(Some(request), cause, effect);
        self.outcome.failures.push(failure);
        self.request += 1;
        self.offset = 0;
    }

    fn fail_rest(&mut self, cause: Cause) {
        while self.request < self.posted.batch.len() {
            self.fail_one(cause, false);
        }
    }
}

/// Why a piece was not copied.
enum Fault {
    NotHere,
    /// Why, and whether some of it may have been.
    Refused(Refusal, bool),
}

impl Near {
    fn copy(&self, engine: &Inner, span: &Span, offset: usize, len: usize) -> Result<(), Fault> {
        let at = span.offset_bytes + offset as u64;
        let here = span.local().slice(offset, len);
        let link = match self {
            Self::Own => return engine.copy_within(span, at, &here),
            Self::Mapped(link) => link,
        };
        let Local::Into(here) = &here else {
            unreachable!("what is written is not copied from a view");
        };
        link.read(span.segment, at, here)
            .map_err(|fault| match fault {
                ReadFault::NotMapped => Fault::NotHere,
                ReadFault::Hidden => Fault::Refused(Refusal::Stale, true),
            })
    }
}

impl Inner {
    fn copy_within(&self, span: &Span, at: u64, here: &Local) -> Result<(), Fault> {
        let registry = self.registry.borrow();
        let len_bytes = here.len() as u64;
        // What is the program's own it reaches without a capability.
        let reached = registry.reach_memory(span.segment, span.way(), at, len_bytes, |_, _| Ok(()));
        let (there, _in_use) = reached.map_err(|refusal| Fault::Refused(refusal, false))?;
        match here {
            Local::Into(here) => here.copy_from(0, &there),
            Local::From(here) => here.copy_to(&there),
        }
        Ok(())
    }
}
