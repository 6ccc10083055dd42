//! Transfers between a file and memory of one engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lunette_runtime::Scope;
use lunette_transfer_proto::engine::scheduler::{Cause, Effect, Outcome};

use super::super::batch::{Local, Span};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::{Inner, spawned};

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
    /// Of each request, why it failed, if it did, and how many of its bytes were moved.
    requests: RefCell<Vec<(Option<Cause>, u64)>>,
}

impl Shared {
    /// Moves a batch of which some segments are files or devices of this engine.
    pub(in crate::engine) fn move_own(self: &Rc<Self>, posted: &Rc<Posted>) {
        let moving = Rc::new(Moving {
            posted: Rc::clone(posted),
            next: Cell::default(),
            requests: RefCell::new(vec![(None, 0); posted.batch.len()]),
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
        let pieces = |span: &Span| span.local.len().div_ceil(PIECE_BYTES_MAX);
        self.posted.batch.spans().iter().map(pieces).sum()
    }

    /// Moves one piece after the other until none is left.
    async fn run(&self, engine: &Inner) {
        while let Some((request, start, len)) = self.take() {
            let span = &self.posted.batch.spans()[request];
            let moved = match self.posted.is_over() {
                Some(cause) => Err(cause),
                None => move_piece(engine, span, start, len).await,
            };
            let (cause, bytes) = &mut self.requests.borrow_mut()[request];
            match moved {
                Ok(()) => {
                    *bytes += len as u64;
                    engine
                        .counts
                        .moved(span.way(), self.posted.options.intent, len as u64);
                }
                Err(why) => {
                    cause.get_or_insert(why);
                }
            }
        }
    }

    /// The next piece; requests that have failed have none.
    fn take(&self) -> Option<(usize, usize, usize)> {
        let (mut request, mut start) = self.next.get();
        loop {
            let span = self.posted.batch.spans().get(request)?;
            let has_failed = self.requests.borrow()[request].0.is_some();
            if !has_failed && start < span.local.len() {
                let len = PIECE_BYTES_MAX.min(span.local.len() - start);
                self.next.set((request, start + len));
                return Some((request, start, len));
            }
            (request, start) = (request + 1, 0);
        }
    }

    fn outcome(&self) -> Outcome {
        let requests = self.requests.borrow();
        let failures = requests.iter().enumerate().filter_map(|(request, failed)| {
            let (Some(cause), bytes) = *failed else {
                return None;
            };
            // A piece that failed may have been moved in part.
            let is_given_up = matches!(cause, Cause::Cancelled | Cause::DeadlineExceeded);
            let effect = if is_given_up && bytes == 0 {
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

async fn move_piece(engine: &Inner, span: &Span, start: usize, len: usize) -> Result<(), Cause> {
    let at = span.offset_bytes + start as u64;
    let reached = engine.registry.borrow().reach(
        span.segment,
        span.way(),
        at,
        len as u64,
        // What is the program's own it reaches without a capability.
        |_, _| Ok(()),
    );
    let (piece, _in_use) = reached.map_err(Cause::Refused)?;
    let moved = match span.local.slice(start, len) {
        Local::Into(local) => piece.read(local).await,
        Local::From(local) => piece.write(local).await,
    };
    moved.map_err(|error| {
        tracing::warn!(%error, "a file or a device");
        Cause::Refused(error.refusal())
    })
}
