//! Transfers within one engine: copies.

use std::rc::Rc;

use lunette_runtime::time;
use lunette_transfer_proto::engine::scheduler::{Cause, Effect, Outcome, RequestFailure};
use lunette_transfer_proto::engine::segment::Way;

use super::batch::Span;
use super::peer::{Posted, Shared};
use super::{Inner, Notification};

/// Bytes that are copied in one go, before other tasks get their turn.
const PIECE_BYTES: usize = 1024 * 1024;

impl Shared {
    /// Carries out a batch whose segments are this engine's own.
    pub(super) async fn copy(self: Rc<Self>, posted: Rc<Posted>) {
        let mut outcome = Outcome::default();
        let (began, options) = (time::now(), &posted.options);
        for (index, span) in (0..).zip(posted.batch.spans()) {
            let failure = |cause, effect| RequestFailure {
                request: Some(index),
                cause,
                effect,
                rail: None,
                attempts: 1,
                age: time::now().since(began),
            };
            let mut offset = 0;
            while offset < span.local.len() {
                if time::now().since(began) >= options.timeout {
                    let effect = if offset == 0 {
                        Effect::Untouched
                    } else {
                        Effect::Partly
                    };
                    outcome
                        .failures
                        .push(failure(Cause::DeadlineExceeded, effect));
                    break;
                }
                if offset > 0 {
                    time::yield_now().await;
                }
                let len = PIECE_BYTES.min(span.local.len() - offset);
                if let Err(cause) = self.engine.copy_piece(span, offset, len) {
                    outcome.failures.push(failure(cause, Effect::Partly));
                    break;
                }
                self.engine
                    .counts
                    .moved(span.way, options.intent, len as u64);
                offset += len;
            }
        }
        if let Some(bytes) = options.notification.clone()
            && outcome.failures.is_empty()
        {
            let from = self.epoch;
            if !self.engine.notify(Notification { from, bytes }) {
                outcome.failures.push(RequestFailure {
                    request: None,
                    cause: Cause::Refused(super::Refusal::Busy),
                    effect: Effect::Untouched,
                    rail: None,
                    attempts: 1,
                    age: time::now().since(began),
                });
            }
        }
        self.engine
            .counts
            .finished(outcome.failures.is_empty(), 0, 0);
        posted.finish(outcome);
    }
}

impl Inner {
    fn copy_piece(&self, span: &Span, offset: usize, len: usize) -> Result<(), Cause> {
        let at = span.offset_bytes + offset as u64;
        let registry = self.registry.borrow();
        let reached = registry.reach(span.segment, span.way, at, len as u64);
        let (there, _in_use) = reached.map_err(|refusal| Cause::Refused(refusal.into()))?;
        let here = span.local.slice(offset, len);
        match span.way {
            Way::Read => here.copy_from(0, &there),
            Way::Write => there.copy_from(0, &here),
        }
        Ok(())
    }
}
