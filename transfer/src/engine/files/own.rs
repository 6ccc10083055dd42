//! Transfers between a file, a device or a namespace and memory of one engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lunette_nvmeof::CommandError;
use lunette_runtime::Scope;
use lunette_transfer_proto::engine::scheduler::{Cause, Effect, Outcome};
use lunette_transfer_proto::engine::segment::Way;

use super::super::batch::{Local, Span};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::{Inner, Refusal, spawned};
use super::serving::{Piece, Unmoved};

/// Longest piece: what is longer is moved in several at the same time.
const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Pieces of one transfer at a time.
const PIECES_MAX: usize = 32;

/// A transfer whose pieces are being moved.
#[derive(Debug)]
struct Moving {
    posted: Rc<Posted>,
    /// The next piece: of which request, and from where in it.
    next: Cell<(usize, usize)>,
    requests: RefCell<Vec<Progress>>,
}

/// What became of a request so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Why it failed, if it did.
    cause: Option<Cause>,
    /// Whether something of what was to be written may still be written.
    may_still_change: bool,
    /// Whether its deadline passed while a command of it was under way.
    was_late: bool,
    /// How many of its bytes were moved.
    moved_bytes: u64,
}

/// Why a piece was not moved.
struct Failed {
    cause: Cause,
    /// Whether it may still be written.
    may_still_change: bool,
    /// Whether it was too late while it was being moved.
    was_late: bool,
}

impl Failed {
    /// Before anything was asked for.
    const fn unasked(cause: Cause) -> Self {
        Self {
            cause,
            may_still_change: false,
            was_late: false,
        }
    }
}

impl Shared {
    /// Moves a batch of which some segments are files or devices of this engine.
    pub(in crate::engine) fn move_own(self: &Rc<Self>, posted: &Rc<Posted>) {
        let moving = Rc::new(Moving {
            posted: Rc::clone(posted),
            next: Cell::default(),
            requests: RefCell::new(vec![Progress::default(); posted.batch.len()]),
        });
        let shared = Rc::clone(self);
        let work = Rc::clone(&moving);
        let is_started = spawned(self.tasks.spawn(async move {
            let movers = Scope::new();
            for _ in 0..PIECES_MAX.min(work.pieces()) {
                let (work, engine) = (Rc::clone(&work), Rc::clone(&shared.engine));
                if !spawned(movers.spawn(async move { work.run(&engine).await })) {
                    break;
                }
            }
            // Also where the core has room for none.
            work.run(&shared.engine).await;
            movers.join().await;
            shared.copied_within(&work.posted, work.outcome());
        }));
        if !is_started {
            self.fail_whole(posted, Cause::Lost);
        }
    }
}

impl Moving {
    /// How many pieces there are, about.
    fn pieces(&self) -> usize {
        let pieces = |span: &Span| span.len().div_ceil(PIECE_BYTES_MAX);
        self.posted.batch.spans().iter().map(pieces).sum()
    }

    /// Moves one piece after the other until none is left.
    async fn run(&self, engine: &Inner) {
        while let Some((request, start, len)) = self.take() {
            let span = &self.posted.batch.spans()[request];
            let moved = match self.posted.is_over() {
                Some(cause) => Err(Failed::unasked(cause)),
                None => self.move_piece(engine, span, start, len).await,
            };
            let progress = &mut self.requests.borrow_mut()[request];
            match moved {
                Ok(()) => progress.moved_bytes += len as u64,
                Err(failed) => {
                    progress.cause.get_or_insert(failed.cause);
                    progress.may_still_change |= failed.may_still_change;
                    progress.was_late |= failed.was_late;
                }
            }
        }
    }

    async fn move_piece(
        &self,
        engine: &Inner,
        span: &Span,
        start: usize,
        len: usize,
    ) -> Result<(), Failed> {
        let at = span.offset_bytes + start as u64;
        let reached = engine.registry.borrow().reach(
            span.segment,
            span.way(),
            at,
            len as u64,
            // What is the program's own it reaches without a capability.
            |_, _| Ok(()),
        );
        let (piece, _in_use) =
            reached.map_err(|refusal| Failed::unasked(Cause::Refused(refusal)))?;
        let left = self.posted.left();
        let moved = match span.local().slice(start, len) {
            Local::Into(local) => piece.read(local, left).await,
            Local::From(local) => piece.write(local, left).await,
        };
        moved.map_err(|error| {
            tracing::warn!(%error, "a file, a device or a namespace");
            let is_late = matches!(error, Unmoved::Namespace(CommandError::DeadlineExceeded));
            let over = self.posted.is_over().filter(|_| is_late);
            Failed {
                was_late: is_late,
                cause: over.unwrap_or_else(|| Cause::Refused(error.refusal())),
                may_still_change: span.way() == Way::Write && error.may_still_land(),
            }
        })?;
        let len_bytes = len as u64;
        let intent = self.posted.options.intent;
        engine.counts.moved(span.way(), intent, len_bytes);
        if matches!(piece, Piece::Namespace(_)) {
            engine.counts.moved_by_namespace(len_bytes);
        }
        Ok(())
    }

    /// The next piece; requests that have failed have none.
    fn take(&self) -> Option<(usize, usize, usize)> {
        let (mut request, mut start) = self.next.get();
        loop {
            let span = self.posted.batch.spans().get(request)?;
            let has_failed = self.requests.borrow()[request].cause.is_some();
            if !has_failed && start < span.len() {
                let len = PIECE_BYTES_MAX.min(span.len() - start);
                self.next.set((request, start + len));
                return Some((request, start, len));
            }
            (request, start) = (request + 1, 0);
        }
    }

    fn outcome(&self) -> Outcome {
        let requests = self.requests.borrow();
        let failures = requests
            .iter()
            .enumerate()
            .filter_map(|(request, progress)| {
                let cause = progress.cause?;
                // A piece that failed may have been moved in part.
                let is_untouched = match cause {
                    // A read that was late has been asked for.
                    Cause::Cancelled | Cause::DeadlineExceeded => !progress.was_late,
                    Cause::Refused(refusal) => refusal == Refusal::Unaligned,
                    _ => false,
                };
                let effect = if progress.may_still_change {
                    Effect::MayStillChange
                } else if is_untouched && progress.moved_bytes == 0 {
                    Effect::Untouched
                } else {
                    Effect::Partly
                };
                let request = u32::try_from(request).expect("requests are bounded");
                Some(self.posted.failure(Some(request), cause, effect))
            });
        Outcome {
            failures: failures.collect(),
            ..Outcome::default()
        }
    }
}
