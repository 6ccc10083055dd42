//! Requests that come by messages over readers' queue pairs, and their answers.
//!
//! The messages of all queue pairs of an adapter come to one pool of receives. A reader has few requests under way
//! ([`ASKED_MAX`]); one that does not keep to that loses its queue pair, before it takes the others' receives.

use std::cell::Cell;
use std::rc::Rc;

use lunette_kvstore_proto::message::Status;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::adapters::{ASKED_MAX, Adapters, Messages};
use lunette_transfer::{ConnectionId, Response};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::message;
use lunette_verbs::SetupError;

use super::Pushing;
use crate::refusals::refusal;

/// Receives of each adapter: of so many readers that ask as much as they may.
const RECEIVES: u32 = 16 * ASKED_MAX;
/// Answers that are being sent by each adapter.
const SENDS_MAX: u32 = 256;
/// Requests of one queue pair at a time. A reader that has been written to knows it before this side does, so it may
/// be ahead by what was being written.
const UNDER_WAY_MAX: u32 = 8 * ASKED_MAX;

/// A queue pair over which something was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) connection: ConnectionId,
    /// What its reader calls it.
    pub(super) name: u64,
    /// No other has had it.
    pub(super) number: u64,
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct UnderWay(Rc<Cell<u32>>);

impl UnderWay {
    /// One more; `None` if there are as many as may be.
    pub(super) fn begin(counted: &Rc<Cell<u32>>) -> Option<Self> {
        if counted.get() >= UNDER_WAY_MAX {
            return None;
        }
        counted.set(counted.get() + 1);
        Some(Self(Rc::clone(counted)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Where the messages of each of these adapters come, if there are to be any; none where it has no room for them.
pub(super) fn open(adapters: &Adapters, are_wanted: bool) -> Vec<Option<Rc<Messages>>> {
    let opened = adapters.all().iter().map(|adapter| {
        if !are_wanted {
            return None;
        }
        let refused = |error: &SetupError| {
            let name = adapter.name();
            tracing::warn!(%name, %error, "readers ask over connections: there is no room for messages");
        };
        let messages = Messages::open(adapter, RECEIVES, SENDS_MAX);
        messages.inspect_err(refused).ok().map(Rc::new)
    });
    opened.collect()
}

impl Pushing {
    /// Where messages come of the adapters behind the first so many, each with its index, and how many adapters there
    /// are.
    pub(crate) fn messages_from(&self, first: usize) -> (Vec<(usize, Rc<Messages>)>, usize) {
        let messages = self.messages.borrow();
        let more = messages.iter().enumerate().skip(first);
        let more = more.filter_map(|(index, some)| Some((index, Rc::clone(some.as_ref()?))));
        (more.collect(), messages.len())
    }

    /// Waits until there are more adapters.
    pub(crate) async fn added(&self) {
        self.added.raised().await;
    }

    /// Over which queue pair a message came to this adapter; `None` if that has ended.
    pub(crate) fn over(&self, adapter: usize, number: u32) -> Option<Over> {
        self.pairs.borrow().over(adapter, number)
    }

    /// Counts one more request of a queue pair; `None` if there are more than may be.
    pub(crate) fn begin_asked(&self, over: Over) -> Option<UnderWay> {
        self.pairs.borrow().begin_asked(over)
    }

    /// Breaks a queue pair whose reader does not keep to the rules.
    pub(crate) fn break_off(&self, over: Over) {
        let pairs = self.pairs.borrow();
        if let Some((pair, _)) = pairs.at(over) {
            pair.abort();
        }
    }

    /// Runs `answering`, unless the queue pair ends first. False if there is no task for it.
    pub(crate) fn answer_later(
        &self,
        over: Over,
        answering: impl Future<Output = ()> + 'static,
    ) -> bool {
        self.pairs.borrow().spawn(over, answering)
    }

    /// Answers what was asked over a queue pair. Who has been written to knows that already; who is to be sent bytes
    /// asks again.
    pub(crate) fn answer(&self, over: Over, id: RequestId, response: Response) {
        let Response {
            status,
            body,
            payload,
        } = response;
        if status == Status::Pushed.code() {
            return;
        }
        let mut out = Vec::new();
        let is_whole =
            payload.is_none() && message::encode(&mut out, FrameKind::Response, status, id, &body);
        drop(payload);
        if !is_whole {
            let status = refusal(Status::OverConnection).status;
            let is_short = message::encode(&mut out, FrameKind::Response, status, id, &[]);
            assert!(is_short, "a status is a message");
        }
        let pairs = self.pairs.borrow();
        let Some((pair, adapter)) = pairs.at(over) else {
            return;
        };
        let messages = self.messages.borrow();
        let messages = messages.get(adapter).and_then(Option::as_ref);
        match messages.and_then(|messages| messages.send(pair, &out)) {
            // If it does not arrive, the queue pair ends, and its reader asks again.
            Some(sent) => drop(sent),
            None => pair.abort(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_under_way_are_bounded_and_make_room_when_they_are_over() {
        let counted = Rc::default();
        let mut all: Vec<UnderWay> = (0..UNDER_WAY_MAX)
            .map_while(|_| UnderWay::begin(&counted))
            .collect();
        assert_eq!(all.len(), UNDER_WAY_MAX as usize);
        assert!(UnderWay::begin(&counted).is_none(), "one more");
        drop(all.pop());
        assert!(UnderWay::begin(&counted).is_some());
    }
}
