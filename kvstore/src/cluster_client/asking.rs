//! The asker of a client, with its connections: what it wants sent is sent, what comes is told to it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::asker::{Asker, AskerAction, OperationId, Outcome, ReadAnswer, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{Answer, Ask, AskerId, ITEMS_MAX, ReservationId};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::Version;
use lunette_runtime::{Scope, Signal, entropy, time};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::adapters::ByAdapters;
use super::calls::{self, CALL_TIMEOUT};
use super::local::Local;
use super::one_sided::Sights;
use super::running::{Arrived, Brought, Committed, Ended, LentRoom, Running, SentValue, Table};
use super::scattering::{ToWrite, Together};
use crate::error::StoreErrorKind;
use crate::seats::Seats;
use crate::value::Value;

/// How often the asker looks whether something is overdue.
const TICK: Duration = Duration::from_millis(5);
/// Longest future of a request: it is copied several times until it is a task.
const CALL_BYTES_MAX: usize = 17 * 256;

/// What came of a request.
#[derive(Debug)]
pub(super) enum News {
    /// A home, or an owner for it, has answered.
    Answer(RequestId, Answer),
    /// An owner has answered a read.
    Read(RequestId, ReadAnswer),
    /// An owner has answered a write.
    Written(RequestId, WriteAnswer),
    /// Who was asked cannot be reached, or says nothing, and was tried for so long: nothing was done there.
    Unreached(RequestId, Duration),
}

/// A client's asker. See the [module](self).
pub(super) struct Asking {
    asker: RefCell<Asker>,
    table: RefCell<Table>,
    pub(super) seats: Seats,
    /// The memory of owners on this host.
    pub(super) sights: Sights,
    /// Bytes that adapters bring.
    pub(super) adapters: ByAdapters,
    /// Of a client on a member's core.
    local: Option<Rc<Local>>,
    /// Questions that leave at the end of the turn: to whom, under which map, and whether they read.
    outbox: RefCell<BTreeMap<(Seat, Epoch, bool), Vec<Ask>>>,
    flush: Signal,
    /// Writes that leave with others.
    pub(super) together: Together,
    /// Raised when an operation begins.
    begun: Signal,
    /// Raised when a newer map is wanted.
    pub(super) stale: Signal,
    map: RefCell<Rc<ClusterMap>>,
    /// Raised when the map is another one.
    renewed: RefCell<Vec<oneshot::Sender<()>>>,
    calls: Scope,
    namespace: Cell<NamespaceKind>,
    get_timeout: Duration,
    last_reservation: Cell<u64>,
}

impl Asking {
    pub(super) fn new(
        seats: Seats,
        (sights, adapters): (Sights, ByAdapters),
        local: Option<Rc<Local>>,
        (namespace, timeout): (NamespaceKind, Duration),
    ) -> Self {
        Self {
            asker: RefCell::new(Asker::new(AskerId(entropy()))),
            table: RefCell::default(),
            seats,
            sights,
            adapters,
            local,
            outbox: RefCell::default(),
            flush: Signal::default(),
            together: Together::default(),
            begun: Signal::default(),
            stale: Signal::default(),
            map: RefCell::default(),
            renewed: RefCell::default(),
            calls: Scope::new(),
            namespace: Cell::new(namespace),
            get_timeout: CALL_TIMEOUT.min(timeout),
            last_reservation: Cell::new(0),
        }
    }

    /// Longest that a call is waited for which has a get's room.
    pub(super) const fn get_timeout(&self) -> Duration {
        self.get_timeout
    }

    /// How long a read waits for a seat to say something.
    pub(super) fn patience(&self, seat: Seat) -> Duration {
        self.asker.borrow_mut().patience(time::now(), seat)
    }

    pub(super) fn over_below(&self) -> RequestId {
        self.asker.borrow().over_below()
    }

    /// The core on which this client is, if it has this seat.
    pub(super) fn local_at(&self, seat: Seat) -> Option<Rc<Local>> {
        let local = self.local.as_ref()?;
        (local.seat() == seat).then(|| Rc::clone(local))
    }

    pub(super) fn id(&self) -> AskerId {
        self.asker.borrow().id()
    }

    /// A name for a reservation, which no other of this client has.
    pub(super) fn next_reservation(&self) -> ReservationId {
        let next = self.last_reservation.get() + 1;
        self.last_reservation.set(next);
        ReservationId(next)
    }

    pub(super) const fn namespace(&self) -> NamespaceKind {
        self.namespace.get()
    }

    pub(super) fn map(&self) -> Rc<ClusterMap> {
        Rc::clone(&self.map.borrow())
    }

    pub(super) fn on_map(&self, map: ClusterMap) {
        if map.epoch() <= self.map.borrow().epoch() {
            return;
        }
        self.seats.on_map(&map);
        self.sights.on_map(&map);
        self.asker.borrow_mut().on_map(&map);
        *self.map.borrow_mut() = Rc::new(map);
        for waiter in self.renewed.borrow_mut().drain(..) {
            if waiter.send(()).is_err() {
                tracing::trace!("who waited for a map has given up");
            }
        }
    }

    /// Asks for a newer map, and waits for one for at most `timeout`.
    pub(super) async fn renew_map(&self, timeout: Duration) {
        let next = self.next_map();
        self.stale.raise();
        let waited = time::timeout(timeout, next).await;
        tracing::trace!(?waited, "map");
    }

    /// Ends when the map is another one, or there will be no other.
    pub(super) fn next_map(&self) -> oneshot::Receiver<()> {
        let (renewed, wait) = oneshot::channel();
        let mut waiting = self.renewed.borrow_mut();
        waiting.retain(|waiter| !waiter.is_canceled());
        waiting.push(renewed);
        wait
    }

    /// Begins an operation, which ends at `until` at the latest. A get ends with the future; everything else goes
    /// on whatever becomes of that. Questions that are begun in one turn leave together.
    pub(super) fn begin(
        self: &Rc<Self>,
        key: Key<'_>,
        wish: Wish,
        brought: Brought,
        until: Time,
    ) -> impl Future<Output = Ended> + use<> {
        let (done, ended) = oneshot::channel();
        let running = Running::new(key.bytes().to_vec(), brought, done);
        let mut out = Vec::new();
        let (key, namespace) = (key.fingerprint(), self.namespace.get());
        let begun =
            (self.asker.borrow_mut()).begin(time::now(), key, namespace, wish, until, &mut out);
        let mut refused = None;
        let mut wanted = Wanted(None);
        match begun {
            Ok(id) => {
                if running.may_be_given_up() {
                    wanted = Wanted(Some((Rc::clone(self), id)));
                }
                self.table.borrow_mut().insert(id, running);
                self.act(out);
                self.begun.raise();
            }
            Err(_too_many) => refused = Some((StoreErrorKind::TooManyOperations, running.room)),
        }
        async move {
            let ended = match refused {
                None => ended.await.ok(),
                Some((kind, room)) => return Ended::failed(kind, room),
            };
            if ended.is_some() {
                wanted.has_ended();
            }
            ended.unwrap_or_else(|| Ended::failed(StoreErrorKind::ShutDown, None))
        }
    }

    /// Does what the asker wants, until it wants nothing more.
    fn act(self: &Rc<Self>, out: Vec<AskerAction>) {
        let mut actions = VecDeque::from(out);
        while let Some(action) = actions.pop_front() {
            match action {
                AskerAction::Ask(seat, epoch, ask) => self.ask(seat, epoch, ask),
                AskerAction::Read {
                    owner,
                    request,
                    version,
                    ..
                } => {
                    let Some(id) = self.operation_of(request) else {
                        continue;
                    };
                    if self.has_arrived(id, version) {
                        let mut more = Vec::new();
                        let (now, bytes) = (time::now(), ReadAnswer::Bytes);
                        (self.asker.borrow_mut()).on_read(now, request, bytes, &mut more);
                        actions.extend(more);
                    } else if let Some(room) = self.lend(id) {
                        self.spawn(calls::read(
                            Rc::clone(self),
                            id,
                            (owner, version),
                            request,
                            room,
                        ));
                    }
                }
                AskerAction::Write(seat, request, ask) => {
                    let Some(id) = self.operation_of(request) else {
                        continue;
                    };
                    if self.is_first(id, request) {
                        self.write_soon(seat, ToWrite { id, request, ask });
                    }
                }
                AskerAction::MapWanted(_) => self.stale.raise(),
                AskerAction::Done(id, outcome) => self.table.borrow_mut().end(id, Ok(outcome)),
            }
        }
    }

    fn ask(self: &Rc<Self>, seat: Seat, epoch: Epoch, ask: Ask) {
        let request = ask.request();
        let Some(id) = self.operation_of(request) else {
            return;
        };
        let is_get = (self.table.borrow_mut().get_mut(id)).is_some_and(|running| running.is_get());
        if is_get {
            if let Some(room) = self.lend(id) {
                self.spawn(calls::find(
                    Rc::clone(self),
                    id,
                    (seat, epoch),
                    request,
                    room,
                ));
            }
        } else if self.is_first(id, request) {
            let mut outbox = self.outbox.borrow_mut();
            let together = (seat, epoch, ask.is_read());
            outbox.entry(together).or_default().push(ask);
            self.flush.raise();
        }
    }

    /// Whether no call is under way with this request.
    fn is_first(&self, id: OperationId, request: RequestId) -> bool {
        let mut table = self.table.borrow_mut();
        let Some(running) = table.get_mut(id) else {
            return false;
        };
        running.calling.replace(request) != Some(request)
    }

    /// The room of a get, unless a call has it, and what ends if nobody wants the get any more.
    fn lend(&self, id: OperationId) -> Option<LentRoom> {
        let mut table = self.table.borrow_mut();
        let running = table.get_mut(id)?;
        let room = running.room.take()?;
        Some(LentRoom {
            room,
            wanted: running.lent(),
        })
    }

    /// A call is over that had the room of a get.
    pub(super) fn give_back(&self, id: OperationId, room: Option<Room>) {
        self.table.borrow_mut().give_back(id, room);
    }

    /// A call is over: the same request may be sent again.
    pub(super) fn has_called(&self, id: OperationId) {
        if let Some(running) = self.table.borrow_mut().get_mut(id) {
            running.calling = None;
        }
    }

    fn has_arrived(&self, id: OperationId, version: Version) -> bool {
        let mut table = self.table.borrow_mut();
        let arrived = table.get_mut(id).and_then(|running| running.arrived);
        arrived.is_some_and(|arrived| arrived.version() == version)
    }

    /// A get is answered.
    pub(super) fn on_arrived(&self, id: OperationId, arrived: Arrived) {
        if let Some(running) = self.table.borrow_mut().get_mut(id) {
            running.arrived = Some(arrived);
        }
    }

    pub(super) fn key_of(&self, id: OperationId) -> Option<Vec<u8>> {
        let mut table = self.table.borrow_mut();
        table.get_mut(id).map(|running| running.key.clone())
    }

    /// The value of a write, for a call.
    pub(super) fn send(&self, id: OperationId) -> Option<SentValue> {
        let mut table = self.table.borrow_mut();
        table.get_mut(id).and_then(Running::send)
    }

    /// The value of a write.
    pub(super) fn value_of(&self, id: OperationId) -> Option<Value> {
        let mut table = self.table.borrow_mut();
        table.get_mut(id).and_then(|running| running.value.clone())
    }

    pub(super) fn reserved_of(&self, id: OperationId) -> Option<Committed> {
        let mut table = self.table.borrow_mut();
        table.get_mut(id).and_then(|running| running.reserved)
    }

    pub(super) fn ranges_of(&self, id: OperationId) -> Vec<ByteRange> {
        let mut table = self.table.borrow_mut();
        let running = table.get_mut(id);
        running.map_or_else(Vec::new, |running| running.ranges.clone())
    }

    /// The node will never do this: the operation ends, whatever the asker thinks of it.
    pub(super) fn fail(&self, id: OperationId, kind: StoreErrorKind) {
        self.asker.borrow_mut().give_up(id);
        self.table.borrow_mut().end(id, Err(kind));
    }

    /// As [`fail`](Self::fail), where only the request is known.
    pub(super) fn fail_request(&self, request: RequestId, kind: StoreErrorKind) {
        if let Some(id) = self.operation_of(request) {
            self.fail(id, kind);
        }
    }

    /// The operation under way of which this is a request.
    pub(super) fn operation_of(&self, request: RequestId) -> Option<OperationId> {
        self.asker.borrow().operation_of(request)
    }

    pub(super) fn on_news(self: &Rc<Self>, news: Vec<News>) {
        let mut out = Vec::new();
        {
            let mut asker = self.asker.borrow_mut();
            let now = time::now();
            for news in news {
                match news {
                    News::Answer(request, answer) => {
                        if let Some(id) = asker.operation_of(request) {
                            self.has_called(id);
                        }
                        asker.on_answer(now, request, answer, &mut out);
                    }
                    News::Unreached(request, for_time) => {
                        if let Some(id) = asker.operation_of(request) {
                            self.has_called(id);
                        }
                        asker.on_unreached(now, request, for_time, &mut out);
                    }
                    News::Read(request, answer) => asker.on_read(now, request, answer, &mut out),
                    News::Written(request, answer) => {
                        asker.on_written(now, request, answer, &mut out);
                    }
                }
            }
        }
        self.act(out);
    }

    pub(super) fn spawn<F: Future<Output = ()> + 'static>(&self, call: F) {
        const {
            assert!(
                size_of::<F>() <= CALL_BYTES_MAX,
                "what is rare belongs into a box"
            )
        };
        // Without room for its task, the asker asks again.
        if let Err(error) = self.calls.spawn(call) {
            tracing::warn!(%error, "a request was not sent");
        }
    }

    /// Sends the questions of each turn together: they are answered together, so that who reads goes apart from who removes,
    /// and may wait for somebody who is gone.
    pub(super) async fn send_questions(self: Rc<Self>) {
        loop {
            self.flush.raised().await;
            let outbox = std::mem::take(&mut *self.outbox.borrow_mut());
            for ((seat, epoch, _), mut asks) in outbox {
                while !asks.is_empty() {
                    let rest = asks.split_off(asks.len().min(ITEMS_MAX));
                    self.spawn(calls::ask(Rc::clone(&self), seat, epoch, asks));
                    asks = rest;
                }
            }
        }
    }

    /// Closes connections on which nothing is asked.
    pub(super) async fn close_idle(self: Rc<Self>) {
        self.seats.close_idle().await;
    }

    /// Lets time pass while something is under way.
    pub(super) async fn keep_time(self: Rc<Self>) {
        loop {
            if self.asker.borrow().under_way() == 0 {
                self.begun.raised().await;
            }
            time::sleep(TICK).await;
            let mut out = Vec::new();
            (self.asker.borrow_mut()).on_tick(time::now(), &mut out);
            self.act(out);
        }
    }
}

/// A get or a write that somebody waits for: dropped, it is given up.
struct Wanted(Option<(Rc<Asking>, OperationId)>);

impl Wanted {
    /// It is in no table any more.
    fn has_ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if let Some((asking, id)) = self.0.take() {
            asking.asker.borrow_mut().give_up(id);
            // Its room and its value go with it, or with the call that has them.
            let given_up = asking.table.borrow_mut().give_up(id);
            drop(given_up);
        }
    }
}

/// What a lookup's end means for who asks whether there is an object.
pub(super) const fn is_present(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Found(_) | Outcome::Hit(_))
}
