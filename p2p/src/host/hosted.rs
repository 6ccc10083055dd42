//! What answers on the core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use futures_channel::oneshot;
use lunette_runtime::arena::{Exposed, SharedMemory};
use lunette_runtime::{Receiver, Scope};

use super::handle::{Answered, Dropped, HandleError, HeldHandle, Questions, Telling};
use crate::error::HoldError;
use crate::store::{Held, Store};

/// A question.
pub(super) type Question = Box<dyn FnOnce(&Hosted) + Send>;

/// A store, what threads hold by it, and what they wait for.
pub(super) struct Hosted {
    store: Store,
    kept: Rc<Table>,
    answering: Scope,
}

/// What threads hold, by the numbers that their handles have.
struct Table {
    last: Cell<u64>,
    held: RefCell<BTreeMap<u64, Rc<Held>>>,
    dropped: Dropped,
}

impl Table {
    fn keep(&self, held: Held, questions: Questions) -> HeldHandle {
        let number = self.last.get() + 1;
        self.last.set(number);
        let handle = HeldHandle::new(questions, number, &held);
        self.held.borrow_mut().insert(number, Rc::new(held));
        handle
    }

    fn take_dropped(&self) -> Vec<Rc<Held>> {
        let numbers = {
            let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *dropped)
        };
        let mut held = self.held.borrow_mut();
        let numbers = numbers.into_iter();
        numbers.filter_map(|number| held.remove(&number)).collect()
    }
}

impl Hosted {
    pub(super) fn new(store: Store, dropped: Dropped) -> Self {
        let kept = Table {
            last: Cell::default(),
            held: RefCell::default(),
            dropped,
        };
        Self {
            store,
            kept: Rc::new(kept),
            answering: Scope::new(),
        }
    }

    pub(super) fn store(&self) -> Store {
        self.store.clone()
    }

    /// Memory that was lent, for this core.
    pub(super) fn here(buffers: &[SharedMemory]) -> Vec<Exposed> {
        let keeps = Arc::new(());
        buffers
            .iter()
            .map(|buffer| buffer.here(Arc::clone(&keeps) as _))
            .collect()
    }

    pub(super) fn held(&self, number: u64) -> Answered<Rc<Held>> {
        let held = self.kept.held.borrow().get(&number).cloned();
        held.ok_or(HandleError::LetGo)
    }

    /// Answers in a task, which ends when nobody waits for it.
    pub(super) fn answer<T: 'static>(
        &self,
        answer: impl Future<Output = Answered<T>> + 'static,
        sender: oneshot::Sender<Answered<T>>,
    ) {
        let sender = Rc::new(Cell::new(Some(sender)));
        let told = Rc::clone(&sender);
        let task = async move {
            let Some(mut sender) = sender.take() else {
                return;
            };
            let answered = {
                let mut answer = pin!(answer);
                let until_given_up = poll_fn(|cx| {
                    if sender.poll_canceled(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    answer.as_mut().poll(cx).map(Some)
                });
                until_given_up.await
            };
            if let Some(answered) = answered {
                // Nobody waits any more: then nobody is told. A handle is dropped, and tells that.
                drop(sender.send(answered));
            }
        };
        if self.answering.spawn(task).is_err() {
            let sender = told.take();
            drop(sender.map(|sender| sender.send(Err(HandleError::Tasks))));
        }
    }

    /// Begins to hold an object: given up when nobody waits for it.
    pub(super) fn hold(
        &self,
        holding: impl Future<Output = Result<Held, HoldError>> + 'static,
        telling: Telling,
    ) {
        let Telling { questions, sender } = telling;
        let table = Rc::clone(&self.kept);
        let holding = async move { Ok(table.keep(holding.await?, questions)) };
        self.answer(holding, sender);
    }

    /// Lets go of an object, to the end, whether anybody waits for it or not.
    pub(super) fn unregister(&self, number: u64, sender: oneshot::Sender<Answered<()>>) {
        let table = Rc::clone(&self.kept);
        let told = Rc::new(Cell::new(Some(sender)));
        let sender = Rc::clone(&told);
        let task = async move {
            let held = table.held.borrow().get(&number).cloned();
            if let Some(held) = held {
                drop(held.let_go().await);
                table.held.borrow_mut().remove(&number);
            }
            drop(sender.take().map(|sender| sender.send(Ok(()))));
        };
        if self.answering.spawn(task).is_err() {
            let sender = told.take();
            drop(sender.map(|sender| sender.send(Err(HandleError::Tasks))));
        }
    }

    /// Answers as long as anybody can ask.
    pub(super) async fn answer_all(self, mut questions: Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            question(&self);
            for held in self.kept.take_dropped() {
                let letting_go = async move { drop(held.let_go().await) };
                if self.answering.spawn(letting_go).is_err() {
                    tracing::warn!(
                        "the core takes no more tasks: an object is held until the store ends"
                    );
                }
            }
        }
    }
}
