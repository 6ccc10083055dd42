//! Answers that are not there yet: who waits for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_channel::oneshot;
use lunette_kvstore_proto::message::directory::AskerId;
use lunette_runtime_core::ids::RequestId;

/// A request, of all askers.
pub(crate) type Asked = (AskerId, RequestId);

type Table<T> = Rc<RefCell<BTreeMap<Asked, (u64, oneshot::Sender<T>)>>>;

/// The requests that wait at one core. What waits no longer leaves the table at once.
#[derive(Debug)]
pub(crate) struct Waiters<T> {
    table: Table<T>,
    last: RefCell<u64>,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            table: Rc::default(),
            last: RefCell::default(),
        }
    }
}

impl<T> Waiters<T> {
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// Waits for the answer to a request. Whoever waited for it before is told no more: the same
    /// request has come again, over another connection.
    pub(crate) fn wait(&self, asked: Asked) -> Waiting<T> {
        let (answer, receiver) = oneshot::channel();
        let number = {
            let mut last = self.last.borrow_mut();
            *last += 1;
            *last
        };
        self.table.borrow_mut().insert(asked, (number, answer));
        Waiting {
            table: Rc::clone(&self.table),
            asked,
            number,
            receiver,
        }
    }

    /// Whether somebody waited.
    pub(crate) fn answer(&self, asked: Asked, answer: T) -> bool {
        let waiter = self.table.borrow_mut().remove(&asked);
        waiter.is_some_and(|(_, waiter)| waiter.send(answer).is_ok())
    }
}

/// Waits for an answer: `None` if there will be none.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    table: Table<T>,
    asked: Asked,
    number: u64,
    receiver: oneshot::Receiver<T>,
}

impl<T> Waiting<T> {
    /// The answer, if it is there already.
    pub(crate) fn try_take(&mut self) -> Option<T> {
        self.receiver.try_recv().ok().flatten()
    }
}

impl<T> Future for Waiting<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.receiver).poll(cx).map(Result::ok)
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        let mut table = self.table.borrow_mut();
        if table
            .get(&self.asked)
            .is_some_and(|(number, _)| *number == self.number)
        {
            table.remove(&self.asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: u64) -> Asked {
        (AskerId(1), RequestId(request))
    }

    #[test]
    fn an_answer_reaches_who_asked_last() {
        let waiters = Waiters::default();
        let mut first = waiters.wait(asked(1));
        let mut second = waiters.wait(asked(1));
        assert!(waiters.answer(asked(1), 7));
        assert!(!waiters.answer(asked(1), 8), "it is answered once");
        assert_eq!((first.try_take(), second.try_take()), (None, Some(7)));
    }

    #[test]
    fn who_waits_no_longer_is_in_no_table() {
        let waiters = Waiters::<()>::default();
        let first = waiters.wait(asked(1));
        let second = waiters.wait(asked(1));
        drop(first);
        assert_eq!(waiters.len(), 1, "the second still waits");
        drop(second);
        assert_eq!(waiters.len(), 0);
    }
}
