//! A member of a cluster: its machine, its connections, its clock.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster_proto::coordination::{Answer, Ask, Change, CoordinationFault, WatchFrom};
use lunette_cluster_proto::fence::{Act, Fence, Fenced, NamespaceKind, Standing};
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_cluster_proto::member::{
    ANSWER_WAIT_MAX, Action, ClusterIdentity, Draining, Member, MemberOptions, OpId, QuotaRefusal,
    QuotaTicket, Refusal,
};
use lunette_cluster_proto::quota::Quotas;
use lunette_runtime::{JoinError, Scope, Signal, time};
use lunette_runtime_core::time::Time;

use crate::client::Client;

/// Shortest time between two looks at the clock.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// What a task has to tell the machine.
enum Event {
    Answer(OpId, Result<Answer, CoordinationFault>),
    Changes(OpId, Vec<Change>),
    WatchEnd(OpId, CoordinationFault),
}

/// Who waits until a quota is set.
#[derive(Default)]
struct QuotaWaiter {
    /// What came of it.
    set: Cell<Option<Result<(), QuotaRefusal>>>,
    /// Raised when that is known, or never will be.
    over: Signal,
}

struct State {
    client: Client,
    member: RefCell<Member>,
    events: RefCell<VecDeque<Event>>,
    /// Raised when the machine has something to do.
    wake: Signal,
    /// Who waits for a change; each is told once.
    waiting: RefCell<Vec<Rc<Signal>>>,
    /// One for each change that the machine has not made yet, also if nobody waits any more.
    quota_waiters: RefCell<BTreeMap<QuotaTicket, Rc<QuotaWaiter>>>,
    refusal: RefCell<Option<Refusal>>,
    has_left: Cell<bool>,
    /// Acts that were permitted although the coordinator was not reached in time.
    cut_off_acts: Cell<u64>,
}

/// This node's membership, of one core. Dropping it gives nothing up but the connections: the lease
/// runs out, as in a crash. Call [`leave`](Self::leave) to go at once.
pub struct Membership {
    state: Rc<State>,
    _task: Scope,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Membership({:?})",
            self.state.member.borrow().map().map(ClusterMap::epoch)
        )
    }
}

impl Membership {
    /// Begins to join. It goes on for as long as it takes, also while no coordinator can be reached.
    ///
    /// # Errors
    /// [`JoinError::TooManyTasks`]: the core has no room for its task.
    ///
    /// # Panics
    /// If an option breaks a limit; see [`Member::new`].
    pub fn start(client: Client, options: MemberOptions) -> Result<Self, JoinError> {
        let state = Rc::new(State {
            client,
            member: RefCell::new(Member::new(options, time::now())),
            events: RefCell::default(),
            wake: Signal::default(),
            waiting: RefCell::default(),
            quota_waiters: RefCell::default(),
            refusal: RefCell::default(),
            has_left: Cell::new(false),
            cut_off_acts: Cell::new(0),
        });
        let task = Scope::new();
        task.spawn(run(Rc::clone(&state)))?;
        Ok(Self { state, _task: task })
    }

    /// The newest map that is known, also while it is cut off.
    #[must_use]
    pub fn map(&self) -> Option<ClusterMap> {
        self.state.member.borrow().map().cloned()
    }

    /// The newest quotas of tenants that are known, also while this node is cut off.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        self.state.member.borrow().quotas().clone()
    }

    /// Sets the quota of a tenant, in bytes, or removes it. Ends when the coordinator has done it, and
    /// [`quotas`](Self::quotas) has it then; other nodes are told within moments. It goes on until then,
    /// also while no coordinator can be reached, but no longer than `until`. If two set the same one at
    /// once, one of both stays.
    ///
    /// Dropping the future takes nothing back: the change is made all the same, unless this node
    /// leaves before, or the time is over.
    ///
    /// # Errors
    /// [`QuotaRefusal`]. After [`QuotaRefusal::Left`] and [`QuotaRefusal::Late`] it may have been made, if it was waited for.
    pub async fn set_quota(
        &self,
        name: &str,
        bytes: Option<u64>,
        until: Time,
    ) -> Result<(), QuotaRefusal> {
        let ticket = {
            let mut member = self.state.member.borrow_mut();
            member.set_quota(time::now(), name, bytes, until)?
        };
        let waiter = Rc::new(QuotaWaiter::default());
        let waits = Rc::clone(&waiter);
        self.state.quota_waiters.borrow_mut().insert(ticket, waits);
        self.state.wake.raise();
        waiter.over.raised().await;
        waiter.set.get().unwrap_or(Err(QuotaRefusal::Left))
    }

    /// Whose cluster it is, once that is known. Peers tell each other, and refuse another's.
    #[must_use]
    pub fn identity(&self) -> Option<ClusterIdentity> {
        self.state.member.borrow().identity().cloned()
    }

    /// Whether this node is in the map, and its lease holds for sure.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.state.member.borrow().is_serving(time::now())
    }

    /// The clock of its lease, for those who serve on other cores. It is renewed only after everything
    /// was read: who is told of it later than of the map never serves under an older one.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.state.member.borrow().fence()
    }

    /// Why it cannot become a member, if that is known. It does not try any more.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.state.refusal.borrow().clone()
    }

    /// Whether this may be done now. It costs a comparison: ask each time.
    ///
    /// # Errors
    /// [`Fenced`]: until the coordinator is reached again.
    pub fn permit(&self, namespace: NamespaceKind, act: Act) -> Result<Standing, Fenced> {
        let member = self.state.member.borrow();
        let standing = member.permit(time::now(), namespace, act);
        if standing == Ok(Standing::CutOff) {
            self.state
                .cut_off_acts
                .set(self.state.cut_off_acts.get() + 1);
        }
        standing
    }

    /// How many acts were permitted beyond the lease, in cache namespaces: each may have shown what
    /// was removed meanwhile.
    #[must_use]
    pub fn cut_off_acts(&self) -> u64 {
        self.state.cut_off_acts.get()
    }

    /// Waits until something has changed: the map, the quotas, whether it is registered, a refusal. Ask
    /// what.
    pub async fn changed(&self) {
        let signal = Rc::new(Signal::default());
        self.state.waiting.borrow_mut().push(Rc::clone(&signal));
        signal.raised().await;
    }

    /// Waits until this node is in the map, which is returned.
    ///
    /// # Errors
    /// [`Refusal`]: it never will be.
    pub async fn joined(&self) -> Result<ClusterMap, Refusal> {
        loop {
            if let Some(refusal) = self.refusal() {
                return Err(refusal);
            }
            if let Some(map) = self.map().filter(|_| self.is_serving()) {
                return Ok(map);
            }
            self.changed().await;
        }
    }

    /// From when on the map may change again, as far as is known: see [`Member::map_may_change_at`].
    #[must_use]
    pub fn map_may_change_at(&self) -> Time {
        self.state.member.borrow().map_may_change_at()
    }

    /// Whether the map is of those who are registered: see [`Member::is_map_settled`].
    #[must_use]
    pub fn is_map_settled(&self) -> bool {
        self.state.member.borrow().is_map_settled()
    }

    /// Whether this node proposes maps, as it does until it [abstains](Self::abstain).
    #[must_use]
    pub fn proposes(&self) -> bool {
        self.state.member.borrow().proposes()
    }

    /// Has this node propose no map any more: see [`Member::abstain`].
    pub fn abstain(&self) {
        self.state.member.borrow_mut().abstain();
    }

    /// Asks to be emptied, which is not tried any more from `until` on: see [`Member::drain`].
    pub fn drain(&self, until: Time) {
        self.state.member.borrow_mut().drain(time::now(), until);
        self.state.wake.raise();
    }

    /// Whether this node is emptied, or is to be.
    #[must_use]
    pub fn draining(&self) -> Draining {
        self.state.member.borrow().draining()
    }

    /// Wants the next map to be of at least this generation: see [`Member::raise_generation`].
    pub fn raise_generation(&self, generation: u64, until: Time) {
        let mut member = self.state.member.borrow_mut();
        member.raise_generation(time::now(), generation, until);
        self.state.wake.raise();
    }

    /// Wants another map than that of this epoch: see [`Member::renew_map`].
    pub fn renew_map(&self, epoch: Epoch) {
        let mut member = self.state.member.borrow_mut();
        member.renew_map(time::now(), epoch);
        self.state.wake.raise();
    }

    /// Gives the lease up; nothing may be served from here on. Ends when the coordinator knows, or
    /// the lease has run out.
    pub async fn leave(&self) {
        self.state.member.borrow_mut().leave(time::now());
        self.state.wake.raise();
        while !self.state.has_left.get() && self.refusal().is_none() {
            self.changed().await;
        }
    }
}

impl State {
    fn push(&self, event: Event) {
        self.events.borrow_mut().push_back(event);
        self.wake.raise();
    }

    fn tell(&self) {
        for signal in self.waiting.take() {
            signal.raise();
        }
    }

    fn on_quota_set(&self, ticket: QuotaTicket, set: Result<(), QuotaRefusal>) {
        let waiter = self.quota_waiters.borrow_mut().remove(&ticket);
        if let Some(waiter) = waiter {
            waiter.set.set(Some(set));
            waiter.over.raise();
        }
    }

    /// Nothing follows.
    fn end(&self) {
        for waiter in self.quota_waiters.take().into_values() {
            waiter.over.raise();
        }
        self.tell();
    }

    fn take_in(&self) {
        loop {
            let event = self.events.borrow_mut().pop_front();
            let Some(event) = event else { return };
            let now = time::now();
            let mut member = self.member.borrow_mut();
            match event {
                Event::Answer(op, answer) => member.on_answer(now, op, answer),
                Event::Changes(op, changes) => member.on_changes(now, op, &changes),
                Event::WatchEnd(op, fault) => {
                    tracing::debug!(%fault, "the watch on the cluster ended");
                    member.on_watch_end(now, op);
                }
            }
        }
    }
}

async fn run(state: Rc<State>) {
    let asks = Scope::new();
    let watch = Scope::new();
    let mut was_joined = false;
    loop {
        state.take_in();
        state.member.borrow_mut().on_timeout(time::now());
        loop {
            let action = state.member.borrow_mut().poll_action();
            let Some(action) = action else { break };
            match action {
                Action::Ask { op, ask, until } => {
                    start(
                        &asks,
                        &state,
                        ask_one(Rc::clone(&state), op, ask, until),
                        |fault| Event::Answer(op, Err(fault)),
                    );
                }
                Action::Watch { op, from } => {
                    watch.abort();
                    start(
                        &watch,
                        &state,
                        watch_one(Rc::clone(&state), op, from),
                        |fault| Event::WatchEnd(op, fault),
                    );
                }
                Action::MapChanged | Action::QuotasChanged => state.tell(),
                Action::QuotaSet(ticket) => state.on_quota_set(ticket, Ok(())),
                Action::QuotaGivenUp(ticket) => state.on_quota_set(ticket, Err(QuotaRefusal::Late)),
                Action::QuotaIgnored { name, fault } => {
                    tracing::warn!(name, %fault, "a quota that makes no sense is ignored");
                }
                Action::Refused(refusal) => {
                    *state.refusal.borrow_mut() = Some(refusal);
                    return state.end();
                }
                Action::Left => {
                    state.has_left.set(true);
                    return state.end();
                }
            }
        }
        let is_joined = state.member.borrow().is_joined();
        if is_joined != was_joined {
            was_joined = is_joined;
            state.tell();
        }
        if !state.events.borrow().is_empty() {
            continue;
        }
        wait(&state).await;
    }
}

async fn wait(state: &State) {
    let due = state.member.borrow().poll_timeout();
    match due.filter(|due| *due < Time::MAX) {
        None => state.wake.raised().await,
        Some(due) => {
            // Answers are heard in between, whatever is due.
            let left = due.since(time::now()).max(WAIT_MIN);
            let early = time::timeout(left, state.wake.raised()).await;
            tracing::trace!(?early, "member");
        }
    }
}

/// Starts a task; one for which there is no room has failed.
fn start(
    scope: &Scope,
    state: &State,
    task: impl Future<Output = ()> + 'static,
    failed: impl FnOnce(CoordinationFault) -> Event,
) {
    if let Err(error) = scope.spawn(task) {
        let reason = error.to_string();
        state.push(failed(CoordinationFault::Unreachable { reason }));
    }
}

async fn ask_one(state: Rc<State>, op: OpId, ask: Ask, until: Time) {
    let timeout = until.since(time::now());
    let answer = state.client.ask(&ask, timeout).await;
    state.push(Event::Answer(op, answer));
}

async fn watch_one(state: Rc<State>, op: OpId, from: WatchFrom) {
    let timeout: Duration = ANSWER_WAIT_MAX;
    let mut watch = match state.client.watch(&from, timeout).await {
        Ok(watch) => watch,
        Err(fault) => return state.push(Event::WatchEnd(op, fault)),
    };
    loop {
        match watch.next_changes().await {
            Ok(changes) => state.push(Event::Changes(op, changes)),
            Err(fault) => return state.push(Event::WatchEnd(op, fault)),
        }
    }
}
