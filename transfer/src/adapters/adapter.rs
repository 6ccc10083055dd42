//! An opened adapter, its queue pairs, and what is registered with it for own requests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use lunette_runtime::arena::Extent;
use lunette_runtime::{can_spawn, entropy, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_verbs::{
    Access, CompletionQueue, Context, Lender, Lent, QueuePair, QueueSizes, RegisteredExtent,
    SetupError, SharedReceives, Unconnected,
};

use super::Waiting;
use super::options::{AdapterFault, RdmaOptions};

/// Entries of an adapter's completion queue: room for all requests of so many queue pairs.
const COMPLETIONS: u32 = 16 * 1024;
/// Of a queue pair over which peers reach our memory: what they may there says each window.
const READ_AND_WRITTEN: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: false,
    relaxed_ordering: false,
};
/// How often memory that is gone is looked for, while any is registered.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// An adapter that this core uses. See the [module](super).
#[derive(Debug)]
pub struct Adapter {
    name: String,
    context: Context,
    queue: CompletionQueue,
    random: RefCell<SplitMix64>,
    requests_max: u32,
    registrations_max: usize,
    /// By first address. Of extents that are there, none lies in another.
    registrations: RefCell<BTreeMap<usize, Registration>>,
    uses: Cell<u64>,
    /// The registration that was lent from last. Whatever changes the registrations forgets it.
    last: RefCell<Option<RegisteredExtent>>,
    waiting: Waiting,
    is_swept: Cell<bool>,
}

#[derive(Debug)]
struct Registration {
    state: State,
    used: Cell<u64>,
}

#[derive(Debug)]
enum State {
    UnderWay,
    Registered(RegisteredExtent),
    /// It is not tried again while the memory is there.
    Refused(Extent),
}

impl State {
    fn is_gone(&self) -> bool {
        match self {
            Self::UnderWay => false,
            Self::Registered(registered) => !registered.extent().is_alive(),
            Self::Refused(extent) => !extent.is_alive(),
        }
    }
}

impl Adapter {
    pub(crate) fn new(context: Context, options: &RdmaOptions) -> Result<Self, AdapterFault> {
        let info = context.info()?;
        if info.is_iwarp {
            return Err(AdapterFault::Iwarp);
        }
        if !info.is_active {
            return Err(AdapterFault::LinkDown);
        }
        let queue = CompletionQueue::new(&context, COMPLETIONS.min(info.completions_max))?;
        Ok(Self {
            name: info.name,
            context,
            queue,
            random: RefCell::new(SplitMix64::new(entropy())),
            requests_max: options.requests_max,
            registrations_max: options.registrations_max,
            registrations: RefCell::default(),
            uses: Cell::new(0),
            last: RefCell::default(),
            waiting: Waiting::default(),
            is_swept: Cell::new(false),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The opened device.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// An epoch that no handshake here had before, but for one chance in 2^64.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.random.borrow_mut().next()
    }

    /// A queue pair over which we ask, and of which the peer reaches nothing.
    ///
    /// # Errors
    /// [`SetupError`]: the adapter's, or that its completion queue has no room for another one.
    pub fn asking(&self) -> Result<QueuePair<Unconnected>, SetupError> {
        self.pair(self.requests_max, Access::default())
    }

    /// The same, and messages come at `receives`.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn telling(&self, receives: &SharedReceives) -> Result<QueuePair<Unconnected>, SetupError> {
        self.sharing(receives, self.requests_max, Access::default())
    }

    /// A queue pair over which a peer asks, and we do not.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn asked(&self) -> Result<QueuePair<Unconnected>, SetupError> {
        self.pair(2, READ_AND_WRITTEN)
    }

    /// The same, and what the peer asks by messages at `receives` we answer, so many at a time.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn answering(
        &self,
        receives: &SharedReceives,
        answers: u32,
    ) -> Result<QueuePair<Unconnected>, SetupError> {
        self.sharing(receives, answers, READ_AND_WRITTEN)
    }

    /// A queue pair over which both sides ask: we read memory of the peer's, and it reads and writes ours, of which its
    /// immediates tell at `receives`, where its messages come as well.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn written(&self, receives: &SharedReceives) -> Result<QueuePair<Unconnected>, SetupError> {
        self.sharing(receives, self.requests_max, READ_AND_WRITTEN)
    }

    /// A queue pair over which we read and write memory of the peer's, and it reads ours. Its messages, if it sends any, come
    /// at `receives`.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn writing(
        &self,
        receives: Option<&SharedReceives>,
    ) -> Result<QueuePair<Unconnected>, SetupError> {
        let access = Access {
            remote_read: true,
            ..Access::default()
        };
        match receives {
            None => self.pair(self.requests_max, access),
            Some(receives) => self.sharing(receives, self.requests_max, access),
        }
    }

    /// A pool of receives that complete to this core.
    ///
    /// # Errors
    /// As [`asking`](Self::asking).
    pub fn receives(&self, depth: u32) -> Result<SharedReceives, SetupError> {
        SharedReceives::new(&self.context, &self.queue, depth)
    }

    fn sharing(
        &self,
        receives: &SharedReceives,
        sends: u32,
        access: Access,
    ) -> Result<QueuePair<Unconnected>, SetupError> {
        let (mut random, sizes) = (self.random.borrow_mut(), sizes(sends));
        QueuePair::sharing(&self.context, receives, sizes, access, &mut random)
    }

    fn pair(&self, sends: u32, access: Access) -> Result<QueuePair<Unconnected>, SetupError> {
        let mut random = self.random.borrow_mut();
        let sizes = sizes(sends);
        QueuePair::new(&self.context, &self.queue, sizes, access, &mut random)
    }

    /// Memory for a request, if it is registered.
    #[must_use]
    pub fn lend(&self, mut memory: Lender) -> Option<Lent> {
        if let Some(last) = &*self.last.borrow() {
            match last.try_lend(memory) {
                Ok(lent) => return Some(lent),
                Err(elsewhere) => memory = elsewhere,
            }
        }
        let (start, _) = memory.range();
        let found = self.find(start)?;
        let lent = found.lend(memory);
        drop(self.last.replace(Some(found)));
        lent
    }

    fn find(&self, start: usize) -> Option<RegisteredExtent> {
        let registrations = self.registrations.borrow();
        let (_, found) = registrations.range(..=start).next_back()?;
        let State::Registered(registered) = &found.state else {
            return None;
        };
        self.uses.set(self.uses.get() + 1);
        found.used.set(self.uses.get());
        Some(registered.clone())
    }

    /// Whether requests can be made of this memory now.
    #[must_use]
    pub fn is_registered(&self, start: usize, len: usize) -> bool {
        let registrations = self.registrations.borrow();
        let found = registrations.range(..=start).next_back();
        found.is_some_and(|(_, found)| match &found.state {
            State::Registered(registered) => {
                let extent = registered.extent();
                extent.is_alive() && extent.covers(start, len)
            }
            State::UnderWay | State::Refused(_) => false,
        })
    }

    /// Whether memory is registered, or was refused: there is nothing to be done for it.
    #[must_use]
    pub fn is_settled(&self, start: usize, len: usize) -> bool {
        self.settled(start, len).is_some()
    }

    /// The addresses around some of which the same is so.
    pub(crate) fn settled(&self, start: usize, len: usize) -> Option<Range<usize>> {
        let registrations = self.registrations.borrow();
        let (_, found) = registrations.range(..=start).next_back()?;
        let extent = match &found.state {
            State::UnderWay => return None,
            State::Registered(registered) => registered.extent(),
            State::Refused(extent) => extent,
        };
        (extent.is_alive() && extent.covers(start, len)).then(|| {
            let first = extent.start().as_ptr().addr();
            first..first + extent.len_bytes()
        })
    }

    /// Begins to register memory, unless that is so already, or refused, or under way. Where there is no task for
    /// it, it is tried again when it is wanted next.
    pub fn begin_register(self: &Rc<Self>, extent: Extent) {
        let (start, len) = (extent.start().as_ptr().addr(), extent.len_bytes());
        let is_begun = self.is_settled(start, len) || self.is_under_way(start);
        if is_begun || !extent.is_alive() || !can_spawn() || !self.make_room() {
            return;
        }
        self.put(start, State::UnderWay);
        drop(spawn_local(Rc::clone(self).registering(start, extent)));
    }

    /// Registers memory, unless that is so already, or refused. Goes on when nobody waits for it any more.
    pub async fn register(self: &Rc<Self>, extent: Extent) {
        let start = extent.start().as_ptr().addr();
        self.begin_register(extent);
        poll_fn(|cx| {
            if !self.is_under_way(start) {
                return Poll::Ready(());
            }
            self.waiting.wait(cx.waker());
            Poll::Pending
        })
        .await;
    }

    fn is_under_way(&self, start: usize) -> bool {
        let registrations = self.registrations.borrow();
        let found = registrations.get(&start);
        found.is_some_and(|found| matches!(found.state, State::UnderWay))
    }

    async fn registering(self: Rc<Self>, start: usize, extent: Extent) {
        let again = extent.part(start, extent.len_bytes());
        let again = again.expect("all of it is a part");
        let state = match RegisteredExtent::register(&self.context, extent).await {
            Ok(registered) => State::Registered(registered),
            Err(error) => {
                let adapter = &self.name;
                tracing::warn!(%adapter, %error, extent = ?again, "memory is not registered");
                State::Refused(again)
            }
        };
        self.put(start, state);
        self.waiting.wake();
        if can_spawn() && !self.is_swept.replace(true) {
            drop(spawn_local(sweep(Rc::downgrade(&self))));
        }
    }

    fn put(&self, start: usize, state: State) {
        drop(self.last.take());
        self.uses.set(self.uses.get() + 1);
        let used = Cell::new(self.uses.get());
        let before = self
            .registrations
            .borrow_mut()
            .insert(start, Registration { state, used });
        // What ends here may be memory of somebody who looks at the registrations.
        drop(before);
    }

    /// Whether another one may be registered. The one that was not used for longest goes; requests that are
    /// under way keep it until they are over.
    fn make_room(&self) -> bool {
        self.forget_gone();
        let mut registrations = self.registrations.borrow_mut();
        if registrations.len() < self.registrations_max {
            return true;
        }
        let settled = registrations.iter();
        let settled = settled.filter(|(_, found)| !matches!(found.state, State::UnderWay));
        let oldest = settled.min_by_key(|(_, found)| found.used.get());
        let oldest = oldest.map(|(start, _)| *start);
        let gone = oldest.and_then(|start| registrations.remove(&start));
        gone.is_some()
    }

    fn forget_gone(&self) {
        drop(self.last.take());
        let mut registrations = self.registrations.borrow_mut();
        registrations.retain(|_, found| !found.state.is_gone());
    }

    /// How many are registered, refused or about to be.
    #[cfg(test)]
    pub(super) fn registrations(&self) -> usize {
        self.registrations.borrow().len()
    }
}

fn sizes(sends: u32) -> QueueSizes {
    QueueSizes {
        sends,
        receives: 1,
        ..QueueSizes::default()
    }
}

/// Gives up what is registered of memory that is gone, as long as there is any registered.
async fn sweep(adapter: Weak<Adapter>) {
    loop {
        time::sleep(SWEEP_EVERY).await;
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        adapter.forget_gone();
        if adapter.registrations.borrow().is_empty() {
            adapter.is_swept.set(false);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use lunette_runtime::arena::{Exposed, HugePages};
    use lunette_runtime::{CoreOptions, Scope, block_on};

    use super::*;

    fn memory() -> Exposed {
        Exposed::map(8192, HugePages::Never, &mut Vec::new()).expect("memory")
    }

    #[test]
    fn memory_is_registered_once_and_makes_room_for_what_is_used_later() {
        let done = block_on(None, CoreOptions::default(), || async {
            let options = RdmaOptions {
                registrations_max: 2,
                ..RdmaOptions::default()
            };
            let adapter = Rc::new(Adapter::new(Context::null(), &options).expect("an adapter"));
            let all: Vec<Exposed> = (0..3).map(|_| memory()).collect();
            let has = |memory: &Exposed| {
                let part = memory.slice(100, 10);
                adapter.lend(part.into()).is_some()
            };
            for memory in &all[..2] {
                assert!(!has(memory) && !adapter.is_settled(memory.start(), 1));
                adapter.register(memory.slice(5, 5).extent()).await;
                adapter.register(memory.extent()).await;
                assert!(has(memory) && adapter.is_settled(memory.start(), 8192));
            }
            assert_eq!(adapter.registrations(), 2);
            assert!(has(&all[0]), "used last");
            adapter.register(all[2].extent()).await;
            assert_eq!(adapter.registrations(), 2);
            assert_eq!(
                [has(&all[0]), has(&all[1]), has(&all[2])],
                [true, false, true]
            );
            drop(all);
            time::sleep(SWEEP_EVERY + SWEEP_EVERY / 10).await;
            assert_eq!(adapter.registrations(), 0, "what is gone is given up");
        });
        done.expect("a core");
    }

    #[test]
    fn what_made_room_is_lent_no_more_and_what_is_gone_is_not_kept() {
        let done = block_on(None, CoreOptions::default(), || async {
            let options = RdmaOptions {
                registrations_max: 1,
                ..RdmaOptions::default()
            };
            let adapter = Rc::new(Adapter::new(Context::null(), &options).expect("an adapter"));
            let (first, second) = (memory(), memory());
            let has = |memory: &Exposed| adapter.lend(memory.clone().into()).is_some();
            adapter.register(first.extent()).await;
            assert!(has(&first) && has(&first));
            adapter.register(second.extent()).await;
            assert!(!has(&first) && has(&second));
            drop(second);
            time::sleep(SWEEP_EVERY + SWEEP_EVERY / 10).await;
            assert!(adapter.last.borrow().is_none());
        });
        done.expect("a core");
    }

    #[test]
    fn a_core_that_takes_no_more_tasks_registers_later() {
        let done = block_on(None, CoreOptions::default(), || async {
            let options = RdmaOptions::default();
            let adapter = Rc::new(Adapter::new(Context::null(), &options).expect("an adapter"));
            let memory = memory();
            let others = Scope::new();
            while can_spawn() {
                others.spawn(pending()).expect("there is room");
            }
            adapter.register(memory.extent()).await;
            assert!(!adapter.is_settled(memory.start(), 1), "it is to be tried");
            assert_eq!(adapter.registrations(), 0);
            drop(others);
            time::yield_now().await;
            adapter.register(memory.extent()).await;
            assert!(adapter.is_settled(memory.start(), 8192));
        });
        done.expect("a core");
    }
}
