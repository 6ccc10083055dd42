//! What a device of this side reaches by itself: nothing of it is staged.
//!
//! In this engine that is memory of an arena, and of the same device. In an engine of this host it is memory of devices
//! that it hands out, where both trust each other: the copy is one of this side's device, whichever way bytes go.

use std::rc::Rc;

use lunette_transfer_proto::engine::scheduler::{Cause, Effect};
use lunette_transfer_proto::engine::segment::Way;

use super::super::files::Piece;
use super::super::peer::Shared;
use super::super::registry::InUse;
use super::super::same_host::{Link, Used};
use super::carrying::{Carrying, Copy, Copying};
use super::pieces::Stretch;
use crate::source::WriteSource;

impl Carrying {
    /// Carries what of a piece the device reaches by itself; what is left.
    pub(super) async fn carry_near(
        &self,
        shared: &Rc<Shared>,
        piece: Vec<Stretch>,
    ) -> Vec<Stretch> {
        if shared.is_own() {
            return self.carry_within(shared, piece).await;
        }
        match shared.link() {
            Some(link) if link.reads_peer() => self.carry_by_handle(shared, &link, piece).await,
            _ => piece,
        }
    }

    /// As [`carry_near`](Self::carry_near), in this engine.
    async fn carry_within(&self, shared: &Rc<Shared>, piece: Vec<Stretch>) -> Vec<Stretch> {
        let (mut rest, mut copies, mut in_use) = (Vec::new(), Vec::new(), Vec::new());
        for stretch in piece {
            match self.within(shared, stretch) {
                Ok(Some((copy, hold))) => {
                    copies.push((stretch, copy));
                    in_use.push(hold);
                }
                Ok(None) => rest.push(stretch),
                Err(cause) => self.fail(stretch, cause, Effect::Untouched),
            }
        }
        for (stretch, result) in self.copy_all(shared, copies, in_use).await {
            match result {
                // Of another opening of the device, or of another device.
                Err(Cause::OwnDeviceForeign) => rest.push(stretch),
                Err(cause) => self.fail(stretch, cause, self.late_effect(cause)),
                Ok(()) => self.moved_near(shared, stretch),
            }
        }
        rest
    }

    /// The copy of a stretch between a device and a segment of this engine that it reaches, and a hold on that.
    fn within(&self, shared: &Shared, stretch: Stretch) -> Result<Option<(Copying, InUse)>, Cause> {
        let Some(here) = self.device(stretch) else {
            return Ok(None);
        };
        let span = self.span(stretch);
        let (at, len) = (span.offset_bytes + stretch.start as u64, stretch.len as u64);
        let registry = shared.engine.registry.borrow();
        // What is the program's own it reaches without a capability.
        let reached = registry.reach(span.segment, span.way(), at, len, |_, _| Ok(()));
        let (there, hold) = reached.map_err(Cause::Refused)?;
        let way = span.way();
        Ok(match there {
            Piece::Memory(memory) if memory.chunk().is_some() => {
                let copy = async move {
                    match way {
                        Way::Read => here.write(WriteSource::Exposed(memory)).await,
                        Way::Write => here.read(memory).await,
                    }
                };
                Some((Box::pin(copy), hold))
            }
            Piece::Device(there) => {
                let copy = async move {
                    match way {
                        Way::Read => here.copy_from(&there).await,
                        Way::Write => there.copy_from(&here).await,
                    }
                };
                Some((Box::pin(copy), hold))
            }
            Piece::Memory(_) | Piece::File(_) | Piece::Namespace(_) => None,
        })
    }

    /// As [`carry_near`](Self::carry_near), of an engine of this host. What cannot be copied so, for whatever reason, is
    /// left: it goes another way, whose owner says what is wrong.
    async fn carry_by_handle(
        &self,
        shared: &Rc<Shared>,
        link: &Rc<Link>,
        piece: Vec<Stretch>,
    ) -> Vec<Stretch> {
        let (mut rest, mut copies, mut held) =
            (Vec::<Stretch>::new(), Vec::<Copy>::new(), Vec::new());
        for stretch in piece {
            match self.by_handle(link, stretch) {
                Some((copy, used)) => {
                    copies.push((stretch, copy));
                    held.push(used);
                }
                None => rest.push(stretch),
            }
        }
        for (stretch, result) in self.copy_all(shared, copies, held).await {
            match result {
                Ok(()) if link.still_shows(self.span(stretch).segment) => {
                    shared.engine.counts.moved_here(stretch.len as u64);
                    self.moved_near(shared, stretch);
                }
                Err(cause @ (Cause::DeadlineExceeded | Cause::Cancelled)) => {
                    self.fail(stretch, cause, self.late_effect(cause));
                }
                _ => rest.push(stretch),
            }
        }
        rest
    }

    fn by_handle(&self, link: &Rc<Link>, stretch: Stretch) -> Option<(Copying, Used)> {
        let here = self.device(stretch)?;
        let span = self.span(stretch);
        let at = span.offset_bytes + stretch.start as u64;
        let (there, used) = link.device(span.segment, span.way(), at, &here)?;
        let copy: Copying = match span.way() {
            Way::Read => Box::pin(async move { here.copy_from(&there).await }),
            Way::Write => Box::pin(async move { there.copy_from(&here).await }),
        };
        Some((copy, used))
    }

    fn moved_near(&self, shared: &Shared, stretch: Stretch) {
        let intent = self.posted.options.intent;
        let way = self.span(stretch).way();
        shared.engine.counts.moved(way, intent, stretch.len as u64);
        self.moved(stretch);
    }
}
