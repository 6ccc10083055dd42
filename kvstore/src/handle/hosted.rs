//! What answers on a core.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::arena::{Exposed, SharedMemory};
use lunette_runtime::{Receiver, Scope, spawn_local, time};
use lunette_transfer::{Room, WriteSource};
use slab::Slab;

use super::cores::{BUSY_PAUSE, Cores, Seated};
use super::devices::Devices;
use super::landed::LandFailure;
use super::lengths::Lengths;
use super::lent::Lent;
use crate::cluster_client::{ClusterClient, Landing, Reservation};
use crate::error::{ClusterError, StoreErrorKind};
use crate::value::Value;

/// A question.
pub(super) type Job = Box<dyn FnOnce(&Rc<Hosted>) + Send>;

/// Questions that are taken before others on the core have their turn.
const TURN_QUESTIONS: usize = 64;

/// How long a question is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// To its end: it changes something.
    Done,
    /// It only reads: until it is done, or nobody waits for it.
    NobodyWaits,
}

/// A core's client, and what it does for threads.
pub(super) struct Hosted {
    pub(super) client: ClusterClient,
    pub(super) reservations: RefCell<Slab<Rc<Reservation>>>,
    /// Memory that owners write, for as long as somebody wants that.
    landings: RefCell<Vec<(Weak<()>, Landing)>>,
    cores: Weak<Cores>,
    core: usize,
    answering: Scope,
    /// Of values of which nobody says how long they are.
    pub(super) lengths: Arc<Lengths>,
    /// Devices of which threads lend memory.
    pub(super) devices: Devices,
    /// Makes and closes connections of threads, and tells them of maps.
    making: Scope,
    is_closing_lines: Rc<Cell<bool>>,
    /// What handles to memory keep here: nothing.
    keeps: Arc<dyn Any + Send + Sync>,
}

impl Hosted {
    pub(super) fn begin(seated: Seated, client: ClusterClient) -> Result<(), ClusterError> {
        let Ok(questions) = seated.questions.open() else {
            return Err(ClusterError::TooManyTasks);
        };
        let mut lengths = Arc::default();
        if let Some(cores) = seated.cores.upgrade() {
            client.look_by(cores.glance(), seated.core);
            cores.lines().allow(client.lines_max());
            if client.is_inside() {
                cores.set_inside();
            }
            lengths = Arc::clone(cores.lengths());
        }
        let hosted = Rc::new(Self {
            client,
            reservations: RefCell::default(),
            landings: RefCell::default(),
            cores: seated.cores,
            core: seated.core,
            answering: Scope::new(),
            lengths,
            devices: Devices::default(),
            making: Scope::new(),
            is_closing_lines: Rc::default(),
            keeps: Arc::new(()),
        });
        if let Some(cores) = hosted.cores.upgrade() {
            cores.on_map(&hosted.client.map());
        }
        let telling = tell_maps(hosted.client.clone(), Weak::clone(&hosted.cores));
        let is_told = hosted.making.spawn(telling);
        if is_told.is_err() {
            return Err(ClusterError::TooManyTasks);
        }
        let answering = spawn_local(answer_all(hosted, questions));
        if answering.is_finished() {
            return Err(ClusterError::TooManyTasks);
        }
        Ok(())
    }

    /// Answers at once, or in a task where that takes its time.
    pub(super) fn answer<T: 'static>(
        &self,
        until: Until,
        answer: impl Future<Output = T> + 'static,
        sender: oneshot::Sender<T>,
        refused: impl FnOnce(StoreErrorKind) -> T,
    ) {
        let mut answer = Box::pin(answer);
        // What is not ready is looked at again by its task, by which it is woken.
        let mut nobody = Context::from_waker(Waker::noop());
        if let Poll::Ready(done) = answer.as_mut().poll(&mut nobody) {
            // Nobody waits any more: then nobody is told. Everywhere here.
            drop(sender.send(done));
            return;
        }
        let sender = Rc::new(Cell::new(Some(sender)));
        let task = {
            let sender = Rc::clone(&sender);
            async move {
                let done = poll_fn(|cx| {
                    if until == Until::NobodyWaits && is_given_up(&sender, cx) {
                        return Poll::Ready(None);
                    }
                    answer.as_mut().poll(cx).map(Some)
                });
                if let Some(done) = done.await {
                    drop(sender.take().map(|sender| sender.send(done)));
                }
            }
        };
        if self.answering.spawn(task).is_err() {
            let refused = refused(StoreErrorKind::TooManyOperations);
            drop(sender.take().map(|sender| sender.send(refused)));
        }
    }

    /// A value of what threads have lent of this host.
    pub(super) fn value(&self, pieces: &[Lent]) -> Value {
        let pieces = pieces.iter().map(|piece| piece.here(&self.keeps));
        Value::gathered(pieces.map(WriteSource::Exposed).collect())
    }

    /// Room in what threads have lent of this host.
    pub(super) fn room(&self, pieces: &[Lent]) -> Room {
        Room::exposed(pieces.iter().map(|piece| piece.here(&self.keeps)).collect())
    }

    /// A handle to what a thread has lent of this host.
    pub(super) fn exposed(&self, lent: &Lent) -> Exposed {
        lent.here(&self.keeps)
    }

    /// The bytes of memory to which others have handles.
    pub(super) fn copy_of(&self, memory: &SharedMemory) -> Vec<u8> {
        memory.here(Arc::clone(&self.keeps)).to_vec()
    }

    /// Memory that owners write from now on, for as long as somebody has `wanted`; with how many adapters.
    pub(super) async fn land(&self, memory: &Lent, wanted: Weak<()>) -> Result<usize, LandFailure> {
        if memory.is_of_device() {
            return Ok(0);
        }
        let landing = self.client.land(memory.here(&self.keeps)).await?;
        let adapters = landing.adapters();
        if wanted.strong_count() > 0 {
            self.landings.borrow_mut().push((wanted, landing));
        }
        Ok(adapters)
    }

    /// Makes a connection to a home for threads, and sees to it that it is closed when they use it no more.
    pub(super) fn make_line(&self, seat: Seat) {
        let (client, cores) = (self.client.clone(), Weak::clone(&self.cores));
        let made = self.making.spawn(async move {
            let line = client.line(seat).await;
            if let Some(cores) = cores.upgrade() {
                cores.lines().made(seat, line);
            }
        });
        if made.is_err()
            && let Some(cores) = self.cores.upgrade()
        {
            cores.lines().made(seat, Err(BUSY_PAUSE));
        }
        if !self.is_closing_lines.replace(true) {
            let closing = close_lines(self.client.clone(), Weak::clone(&self.cores));
            let is_closing = Rc::clone(&self.is_closing_lines);
            let begun = self.making.spawn(async move {
                closing.await;
                is_closing.set(false);
            });
            self.is_closing_lines.set(begun.is_ok());
        }
    }

    /// Gives up what nobody has any more.
    fn drop_unwanted(&self) {
        let mut landings = self.landings.borrow_mut();
        landings.retain(|(wanted, _)| wanted.strong_count() > 0);
        drop(landings);
        if self.reservations.borrow().is_empty() {
            return;
        }
        let dropped = self
            .cores
            .upgrade()
            .map(|cores| cores.take_dropped(self.core));
        for index in dropped.unwrap_or_default() {
            let reservation = self.reservations.borrow_mut().try_remove(index);
            drop(reservation);
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(cores) = self.cores.upgrade() {
            cores.lines().end();
        }
    }
}

/// Closes connections of threads that are not used, until there are none. As long as there are, the client keeps one of its own,
/// over which it learns of newer maps.
async fn close_lines(client: ClusterClient, cores: Weak<Cores>) {
    let idle_timeout = client.idle_timeout();
    loop {
        time::sleep(idle_timeout / 4).await;
        let Some(cores) = cores.upgrade() else {
            return;
        };
        cores.lines().close_idle(idle_timeout);
        let Some(home) = cores.lines().any_home() else {
            return;
        };
        drop(cores);
        client.stay_connected(home).await;
    }
}

/// Tells threads each newer map, of which they may ask nobody else.
async fn tell_maps(client: ClusterClient, cores: Weak<Cores>) {
    loop {
        let next = client.next_map();
        let Some(told) = cores.upgrade() else {
            return;
        };
        told.on_map(&client.map());
        drop(told);
        if !next.await {
            return;
        }
    }
}

/// Whether nobody waits for the answer any more. If somebody does, the task is woken when that changes.
fn is_given_up<T>(sender: &Cell<Option<oneshot::Sender<T>>>, cx: &mut Context<'_>) -> bool {
    let Some(mut answered) = sender.take() else {
        return true;
    };
    let given_up = answered.poll_canceled(cx).is_ready();
    sender.set(Some(answered));
    given_up
}

async fn answer_all(hosted: Rc<Hosted>, mut questions: Receiver<Job>) {
    let mut taken = 0;
    while let Some(question) = questions.recv().await {
        question(&hosted);
        hosted.drop_unwanted();
        taken += 1;
        if taken % TURN_QUESTIONS == 0 {
            time::yield_now().await;
        }
    }
    // What has been begun is answered.
    hosted.answering.join().await;
}
