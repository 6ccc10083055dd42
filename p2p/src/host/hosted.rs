//! What answers on the core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::PoisonError;
use std::task::Poll;

use futures_channel::oneshot;
use lunette_runtime::{Receiver, Scope};
use lunette_transfer::engine::LentDevices;

use super::handle::{Answered, Claim, Dropped, HandleError, HeldHandle, Questions, Telling};
use super::updating::{OfferHandle, UpdateHandle};
use crate::store::{Held, Store};
use crate::update::{Offer, Update};

/// A question.
pub(super) type Question = Box<dyn FnOnce(&Hosted) + Send>;

/// A store, what threads hold by it, and what they wait for.
pub(super) struct Hosted {
    store: Store,
    devices: Rc<LentDevices>,
    kept: Rc<Table>,
    answering: Scope,
}

/// What threads hold, by the numbers that their handles have.
struct Table {
    last: Cell<u64>,
    held: RefCell<BTreeMap<u64, Thing>>,
    dropped: Dropped,
}

/// What a handle stands for.
#[derive(Clone)]
pub(super) enum Thing {
    Held(Rc<Held>),
    Offer(Rc<Offer>),
    Update(Rc<Update>),
}

impl Thing {
    async fn let_go(&self) {
        match self {
            Self::Held(held) => {
                // Whoever lent its memory has it without being given it.
                held.abandon();
                drop(held.let_go().await);
            }
            Self::Offer(offer) => offer.withdraw().await,
            Self::Update(update) => update.close().await,
        }
    }
}

impl Table {
    fn keep(&self, thing: Thing, questions: Questions) -> Claim {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.held.borrow_mut().insert(number, thing);
        Claim::new(number, questions)
    }

    fn take_dropped(&self) -> Vec<Thing> {
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
            devices: Rc::default(),
            kept: Rc::new(kept),
            answering: Scope::new(),
        }
    }

    pub(super) fn store(&self) -> Store {
        self.store.clone()
    }

    /// Devices whose memory threads lend.
    pub(super) fn devices(&self) -> Rc<LentDevices> {
        Rc::clone(&self.devices)
    }

    pub(super) fn held(&self, number: u64) -> Answered<Rc<Held>> {
        match self.kept.held.borrow().get(&number) {
            Some(Thing::Held(held)) => Ok(Rc::clone(held)),
            Some(Thing::Offer(_) | Thing::Update(_)) | None => Err(HandleError::LetGo),
        }
    }

    pub(super) fn update(&self, number: u64) -> Answered<Rc<Update>> {
        match self.kept.held.borrow().get(&number) {
            Some(Thing::Update(update)) => Ok(Rc::clone(update)),
            Some(Thing::Held(_) | Thing::Offer(_)) | None => Err(HandleError::LetGo),
        }
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
    pub(super) fn hold<E: Into<HandleError>>(
        &self,
        holding: impl Future<Output = Result<Held, E>> + 'static,
        telling: Telling<HeldHandle>,
    ) {
        let Telling { questions, sender } = telling;
        let table = Rc::clone(&self.kept);
        let holding = async move {
            let held = Rc::new(holding.await.map_err(Into::into)?);
            let claim = table.keep(Thing::Held(Rc::clone(&held)), questions);
            Ok(HeldHandle::new(claim, &held))
        };
        self.answer(holding, sender);
    }

    /// Begins to offer weights: given up when nobody waits for it.
    pub(super) fn offer(
        &self,
        offering: impl Future<Output = Answered<Offer>> + 'static,
        telling: Telling<OfferHandle>,
    ) {
        let Telling { questions, sender } = telling;
        let table = Rc::clone(&self.kept);
        let offering = async move {
            let offer = Rc::new(offering.await?);
            let claim = table.keep(Thing::Offer(Rc::clone(&offer)), questions);
            Ok(OfferHandle::new(claim, &offer))
        };
        self.answer(offering, sender);
    }

    /// Begins to take an update: closed when nobody waits for it.
    pub(super) fn follow(
        &self,
        following: impl Future<Output = Answered<Update>> + 'static,
        telling: Telling<UpdateHandle>,
    ) {
        let Telling { questions, sender } = telling;
        let table = Rc::clone(&self.kept);
        let following = async move {
            let update = Rc::new(following.await?);
            Ok(UpdateHandle::new(
                table.keep(Thing::Update(update), questions),
            ))
        };
        self.answer(following, sender);
    }

    /// Lets go of an object, to the end, whether anybody waits for it or not.
    pub(super) fn let_go(&self, number: u64, sender: oneshot::Sender<Answered<()>>) {
        let table = Rc::clone(&self.kept);
        let letting_go = async move {
            let thing = table.held.borrow().get(&number).cloned();
            if let Some(thing) = thing {
                thing.let_go().await;
                table.held.borrow_mut().remove(&number);
            }
            Ok(())
        };
        self.answer_to_end(letting_go, sender);
    }

    /// Answers in a task, which goes on to its end whether anybody waits for it or not.
    fn answer_to_end<T: 'static>(
        &self,
        answer: impl Future<Output = Answered<T>> + 'static,
        sender: oneshot::Sender<Answered<T>>,
    ) {
        let told = Rc::new(Cell::new(Some(sender)));
        let sender = Rc::clone(&told);
        let task = async move {
            let answered = answer.await;
            // Nobody waits any more: then nobody is told. A handle is dropped, and tells that.
            drop(sender.take().map(|sender| sender.send(answered)));
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
                let letting_go = async move { held.let_go().await };
                if self.answering.spawn(letting_go).is_err() {
                    tracing::warn!(
                        "the core takes no more tasks: an object is held until the store ends"
                    );
                }
            }
        }
    }
}
