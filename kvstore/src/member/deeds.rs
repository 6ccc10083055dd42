//! What the machines of one core want of each other and of others, and what others tell them.
//!
//! What concerns this very core is done at once, one thing after the other, until nothing is left; the rest goes to
//! the [`Post`](super::post::Post).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::home::{Home, HomeAction, REPAIR_WAIT};
use lunette_kvstore_proto::message::directory::{
    Content, CopyPage, CopyPlace, OpId, SeatMessage, ToHome, ToOwner,
};
use lunette_kvstore_proto::owner::{Owner, OwnerAction};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::Form;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::core::{COPIES, MemberCore};
use super::replicas::{Cause, Scarce};
use crate::counting::CopyCounts;

/// How much is done for the machines of a core before its clock is looked at again.
const DEEDS_AT_ONE_TIME: usize = 16;

/// What concerns this core, and was said by itself or another.
enum Deed {
    /// To the home: from, epoch, item.
    ToHome(Seat, Epoch, ToHome),
    /// To the home: a part of a report.
    Page(Seat, Epoch, CopyPage),
    /// To the owner: from, epoch, item.
    ToOwner(Seat, Epoch, ToOwner),
}

/// What is to be done, in the order in which it was said.
#[derive(Default)]
pub(super) struct Deeds {
    waiting: RefCell<VecDeque<Deed>>,
    is_settling: Cell<bool>,
}

impl Deeds {
    fn push(&self, deed: Deed) {
        self.waiting.borrow_mut().push_back(deed);
    }

    fn next(&self) -> Option<Deed> {
        self.waiting.borrow_mut().pop_front()
    }
}

impl MemberCore {
    /// Tells the home something.
    pub(super) fn at_home(&self, tell: impl FnOnce(&mut Home, Time, &mut Vec<HomeAction>)) {
        self.at_home_at(time::now(), tell);
    }

    fn at_home_at(&self, now: Time, tell: impl FnOnce(&mut Home, Time, &mut Vec<HomeAction>)) {
        let mut out = Vec::new();
        let epoch = {
            let home = &mut self.machines().borrow_mut().home;
            tell(home, now, &mut out);
            self.tell_presence(home);
            home.epoch()
        };
        for action in out {
            match action {
                HomeAction::ToOwner(to, item) if to == self.seat() => {
                    self.deeds.push(Deed::ToOwner(self.seat(), epoch, item));
                }
                HomeAction::ToOwner(to, item) => self.post.to_owner(to, epoch, item),
                HomeAction::ToPeer(to, item) => self.post.put(to, epoch, Content::ToPeer(item)),
                HomeAction::Answer(asker, request, answer) => {
                    self.asks.answer((asker, request), answer);
                }
            }
        }
    }

    /// Tells the owner something. What it answers to askers goes to the home that sent them here.
    pub(super) fn at_owner<T>(
        &self,
        sent_by: Seat,
        tell: impl FnOnce(&mut Owner, Time, &mut Vec<OwnerAction>) -> T,
    ) -> T {
        self.at_owner_at(time::now(), sent_by, tell)
    }

    fn at_owner_at<T>(
        &self,
        now: Time,
        sent_by: Seat,
        tell: impl FnOnce(&mut Owner, Time, &mut Vec<OwnerAction>) -> T,
    ) -> T {
        let mut out = Vec::new();
        let (told, epoch) = {
            let owner = &mut self.machines().borrow_mut().owner;
            let told = tell(owner, now, &mut out);
            (told, owner.epoch())
        };
        for action in out {
            self.do_for_owner(sent_by, epoch, action);
        }
        told
    }

    fn do_for_owner(&self, sent_by: Seat, epoch: Epoch, action: OwnerAction) {
        match action {
            OwnerAction::ToHome(to, item) if to == self.seat() => {
                self.deeds.push(Deed::ToHome(self.seat(), epoch, item));
            }
            OwnerAction::ToHome(to, item) => self.post.to_home(to, epoch, item),
            OwnerAction::Page(to, page) if to == self.seat() => {
                self.deeds.push(Deed::Page(self.seat(), epoch, page));
            }
            OwnerAction::Page(to, page) => self.post.put(to, epoch, Content::Page(page)),
            OwnerAction::Name(op, place) => self.name(op, place),
            OwnerAction::Discard(op) if self.reservations.borrow().is_commit(op) => {
                let extent = self.bytes().borrow_mut().withdraw(op);
                let mut reservations = self.reservations.borrow_mut();
                reservations.take_back(time::now(), op, extent);
            }
            OwnerAction::Discard(op) => self.bytes().borrow_mut().discard(op),
            OwnerAction::Free(place, cause) => {
                tracing::trace!(?place, ?cause, "a copy is freed");
                let mut bytes = self.bytes().borrow_mut();
                self.copies.freed(cause, bytes.extent_bytes(place));
                bytes.free(place);
                drop(bytes);
                self.ungroup(place, cause);
                if let Some(tier) = self.tier() {
                    tier.forget(place);
                }
                self.tell_copy(place, cause.name());
            }
            OwnerAction::CameBack(key) => self.bytes().borrow_mut().came_back(key),
            OwnerAction::WasUsed(place, reuses) => {
                CopyCounts::add(&self.copies.came_back);
                self.bytes().borrow_mut().was_used(place, reuses);
            }
            OwnerAction::Replicate {
                place,
                info,
                namespace,
                missing,
                holders,
            } => {
                let cause = Cause::Repair {
                    missing,
                    holders,
                    until: time::now() + REPAIR_WAIT,
                };
                self.scarcity.push(Scarce {
                    place,
                    info,
                    namespace,
                    cause,
                });
            }
            OwnerAction::Written(asker, request, answer) => {
                self.writes.answer((asker, request), answer);
            }
            OwnerAction::Answer(asker, request, answer) if sent_by == self.seat() => {
                self.asks.answer((asker, request), answer);
            }
            OwnerAction::Answer(asker, request, answer) => {
                let relay = Content::Relay {
                    asker,
                    request,
                    answer,
                };
                self.post.put(sent_by, epoch, relay);
            }
        }
    }

    /// A write has become a copy.
    fn name(&self, op: OpId, place: CopyPlace) {
        let copy = self.machines().borrow().owner.copy(place);
        // What made it a copy may have ended it as well.
        let (form, wanted) = copy.map_or((Form::Whole, 1), |(info, _)| (info.form, info.wanted));
        let retention = self.bytes().borrow_mut().name(op, place, form);
        self.group(place, retention, wanted);
        self.reservations.borrow_mut().committed(op);
        self.tell_copy(place, "kept");
        CopyCounts::add(&self.copies.written);
        self.note_scarce(place);
    }

    /// Does what the machines want of each other, until they want nothing more.
    pub(super) fn settle(&self) {
        if self.deeds.is_settling.replace(true) {
            return;
        }
        let mut now = time::now();
        let mut has_done = false;
        for done in 1_usize.. {
            let deed = self.deeds.next();
            // What follows from one event happens at one time, if it is not much: leases are looked at by this clock.
            if done.is_multiple_of(DEEDS_AT_ONE_TIME) {
                now = time::now();
            }
            has_done |= deed.is_some();
            match deed {
                None => break,
                Some(Deed::ToHome(from, epoch, item)) => {
                    let dropped = match &item {
                        ToHome::Dropped { key, .. } => Some(*key),
                        _ => None,
                    };
                    self.at_home_at(now, |home, now, out| {
                        home.on_owner(now, from, epoch, item, out)
                    });
                    if let Some(key) = dropped {
                        self.on_dropped(key);
                    }
                }
                Some(Deed::Page(from, epoch, page)) => {
                    self.at_home_at(now, |home, now, out| {
                        home.on_page(now, from, epoch, page, out)
                    });
                }
                Some(Deed::ToOwner(from, epoch, item)) => {
                    self.tell_owner(now, from, epoch, item);
                }
            }
        }
        self.deeds.is_settling.set(false);
        // A lookup leaves nothing to come back to, and its answer does not wait for what would look.
        if has_done || !self.is_idle() {
            self.busy.raise();
        }
    }

    fn tell_owner(&self, now: Time, from: Seat, epoch: Epoch, item: ToOwner) {
        let recorded = match &item {
            ToOwner::Recorded { key, version, .. } => Some((*key, *version)),
            _ => None,
        };
        self.at_owner_at(now, from, |owner, now, out| {
            owner.on_home(now, from, epoch, item, out);
        });
        let is_traced = tracing::enabled!(target: COPIES, tracing::Level::TRACE);
        let is_told = is_traced || self.bytes().borrow().is_looked_at();
        let Some((key, version)) = recorded.filter(|_| is_told) else {
            return;
        };
        let place = CopyPlace { key, version };
        let copy = self.machines().borrow().owner.copy(place);
        if let Some((info, _)) = copy {
            self.list_soon(place, info.form);
            if is_traced {
                self.tell_copy(place, "recorded");
            }
        }
    }

    /// Another seat says something. Messages for another life of this one are dropped.
    pub(crate) fn on_told(&self, message: SeatMessage) {
        let SeatMessage {
            epoch,
            from,
            to,
            content,
            ..
        } = message;
        if to != self.seat() || self.has_left() {
            tracing::debug!(?to, "a message for another seat");
            return;
        }
        CopyCounts::add(&self.copies.messages_received);
        match content {
            Content::ToHome(items) => {
                let is_leaving = self.is_leaving();
                // Who claims asks the next home as soon as there is one.
                let is_begun =
                    |item: &ToHome| !(is_leaving && matches!(item, ToHome::Claim { .. }));
                let items = items.into_iter().filter(is_begun);
                let deeds = items.map(|item| Deed::ToHome(from, epoch, item));
                deeds.for_each(|deed| self.deeds.push(deed));
            }
            Content::ToOwner(items) => {
                let deeds = items
                    .into_iter()
                    .map(|item| Deed::ToOwner(from, epoch, item));
                deeds.for_each(|deed| self.deeds.push(deed));
            }
            Content::Page(page) => {
                self.deeds.push(Deed::Page(from, epoch, page));
            }
            Content::ToPeer(item) => {
                self.at_home(|home, now, out| home.on_peer(now, from, epoch, item, out));
            }
            Content::Relay {
                asker,
                request,
                answer,
            } => {
                self.asks.answer((asker, request), answer);
            }
            Content::Groups(items) => {
                items.into_iter().for_each(|news| self.on_group(from, news));
            }
            Content::Credit(items) => {
                let heard = items.into_iter();
                heard.for_each(|news| self.on_credit(from, epoch, news));
            }
        }
        self.settle();
    }

    pub(super) fn tell_copy(&self, place: CopyPlace, what: &'static str) {
        tracing::trace!(
            target: COPIES,
            node = self.seat().node.0,
            core = u64::from(self.seat().core.0),
            key_high = place.key.high(),
            epoch = place.version.epoch.0,
            sequence = place.version.sequence,
            what,
        );
    }

    pub(super) fn tell_away(&self, since: Epoch) {
        tracing::trace!(
            target: COPIES,
            node = self.seat().node.0,
            core = u64::from(self.seat().core.0),
            epoch = since.0,
            what = "away",
        );
    }

    /// A write has become a copy: others may be wanted.
    fn note_scarce(&self, place: CopyPlace) {
        let copy = self.machines().borrow().owner.copy(place);
        if let Some((info, namespace)) = copy
            && info.wanted > 1
        {
            let scarce = Scarce {
                place,
                info,
                namespace,
                cause: Cause::Write,
            };
            self.scarcity.push(scarce);
        }
    }
}
