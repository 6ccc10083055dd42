//! What one core holds, and who drives it.
//!
//! | module | subject |
//! |---|---|
//! | `options` | [`StoreOptions`] and the like |
//! | `registering` | an object that this store has first |
//! | `receiving` | one that others have |
//! | `books` | [`Books`]: the catalogue, asked and written |
//! | `lease` | keeping the lease, and writing again what is gone |
//! | `ways` | the way to each other holder: what is said to it |
//! | `begun` | an object that is held before the program knows |
//! | `local` | an object that is held here: its machine, driven |
//! | `slicing` | parts of tensors, taken out of chunks as they come |
//! | `backing` | buffers in files, or in memory of devices |
//! | `filing` | [`BufferFile`] |
//! | `paths` | [`ObjectFiles`]: the files of what is received, by their paths |
//! | `watching` | files that objects are registered of: whether they are as they were |
//! | `fetching` | one chunk, from being granted to being verified |
//! | `held` | [`Held`]: what the program has of it |

mod backing;
mod begun;
mod books;
mod fetching;
mod filing;
mod held;
mod lease;
mod local;
mod options;
mod paths;
mod receiving;
mod registering;
mod slicing;
mod watching;
mod ways;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_util::future::join;
use lunette_cluster::Client;
use lunette_cluster::proto::coordination::LeaseId;
use lunette_cluster::proto::rack::Rack;
use lunette_p2p_proto::catalogue::{HolderRecord, ObjectRecord};
use lunette_p2p_proto::layout::Layout;
use lunette_p2p_proto::message::Message;
use lunette_p2p_proto::swarm::Options;
use lunette_p2p_proto::{ObjectName, PeerId, Shape, Version};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{Scope, entropy, time};
use lunette_transfer::engine::Engine;

use self::begun::Begun;
use self::books::{Books, Claimed};
pub use self::filing::BufferFile;
pub use self::held::{Held, Progress};
use self::local::{Content, Holding, Local};
pub use self::options::{
    LEASE_TTL_S_DEFAULT, ReceiveOptions, RegisterOptions, SliceOptions, StoreOptions,
};
pub use self::paths::ObjectFiles;
use self::ways::Ways;
use crate::error::{CatalogueError, HoldError, HoldFault, StartError};
use crate::gate::Gate;

/// An object in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: ObjectName,
    /// Which registration has the name now.
    pub version: Version,
    /// What it is made of.
    pub shape: Shape,
    /// Who has all of it.
    pub whole: usize,
    /// Who has it or some of it.
    pub holders: usize,
}

/// One core's store. Clones are handles to the same one; with the last it ends, and is found no more within a lease.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Rc<Inner>,
    /// They end with it.
    _tasks: Rc<Scope>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    books: Books,
    rack: Rack,
    addresses: Vec<SocketAddr>,
    swarm: Options,
    lease_ttl_s: u32,
    lease: Cell<LeaseId>,
    locals: RefCell<BTreeMap<Version, Rc<Local>>>,
    /// Open from when something is held.
    has_held: Gate,
    /// Objects whose keys are ours, and which others hold: theirs to go with the last of them.
    left: RefCell<Vec<(ObjectName, Version)>>,
    ways: Ways,
    tasks: Weak<Scope>,
}

impl Store {
    /// Starts a store on this core.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(options: StoreOptions) -> Result<Self, StartError> {
        if options.engine.listen.is_empty() {
            return Err(StartError::NoAddress);
        }
        let books = Books::new(Client::new(options.coordinator), &options.prefix)?;
        let engine = Engine::start(options.engine)?;
        let lease = LeaseId::new(entropy());
        let granted = books.grant(lease, options.lease_ttl_s).await;
        granted.map_err(StartError::Lease)?;
        let addresses = if options.advertised.is_empty() {
            engine.addresses().to_vec()
        } else {
            options.advertised
        };
        let tasks = Rc::new(Scope::new());
        let inner = Rc::new(Inner {
            engine,
            books,
            rack: options.rack,
            addresses,
            swarm: options.swarm,
            lease_ttl_s: options.lease_ttl_s,
            lease: Cell::new(lease),
            locals: RefCell::default(),
            has_held: Gate::default(),
            left: RefCell::default(),
            ways: Ways::default(),
            tasks: Rc::downgrade(&tasks),
        });
        tasks.spawn(Rc::clone(&inner).listen())?;
        tasks.spawn(Rc::clone(&inner).keep_lease())?;
        tasks.spawn(Rc::clone(&inner).watch_names())?;
        Ok(Self {
            inner,
            _tasks: tasks,
        })
    }

    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Lets all go that is held here, as [`Held::unregister`] does, and ends: the catalogue knows nothing of this store
    /// any more. Other handles hold nothing from then on.
    pub async fn close(self) {
        let locals: Vec<_> = self.inner.locals.borrow().values().cloned().collect();
        for local in locals {
            drop(self.inner.let_go(&local).await);
        }
        if let Err(error) = self.inner.books.revoke(self.inner.lease.get()).await {
            tracing::debug!(%error, "the lease ends by itself");
        }
        self.inner.engine.clone().close().await;
    }

    /// What the catalogue says of an object; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub async fn find(&self, name: &ObjectName) -> Result<Option<Found>, CatalogueError> {
        let books = &self.inner.books;
        match books.object(name).await? {
            None => Ok(None),
            Some((record, _)) => books.found(name.clone(), record).await.map(Some),
        }
    }

    /// The tensors of an object that was found, as whoever registered it told of them; `None` if the object is gone by
    /// now.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub async fn layout(&self, found: &Found) -> Result<Option<Layout>, CatalogueError> {
        self.layout_of(&found.name, found.version).await
    }

    pub(crate) async fn layout_of(
        &self,
        name: &ObjectName,
        version: Version,
    ) -> Result<Option<Layout>, CatalogueError> {
        let books = &self.inner.books;
        let read = async |record: &ObjectRecord| books.layout(record).await;
        let found = books.object_with(name, Some(version), read).await?;
        Ok(found.map(|(_, layout)| layout))
    }

    /// The objects whose names begin so, in the order of their names.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub async fn list(&self, beginning: &str) -> Result<Vec<Found>, CatalogueError> {
        let mut found = Vec::new();
        for (name, record) in self.inner.books.objects(beginning).await? {
            found.push(self.inner.books.found(name, record).await?);
        }
        Ok(found)
    }
}

const fn failed(fault: HoldFault, buffers: Vec<Exposed>) -> HoldError {
    HoldError { fault, buffers }
}

impl Inner {
    fn me(&self) -> PeerId {
        PeerId(self.engine.epoch())
    }

    fn local(&self, version: Version) -> Option<Rc<Local>> {
        self.locals.borrow().get(&version).cloned()
    }

    /// Runs a task until the store ends. Whether it was started.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) -> bool {
        let tasks = self.tasks.upgrade();
        tasks.is_some_and(|tasks| tasks.spawn(task).is_ok())
    }

    /// What is received is what the catalogue has.
    async fn look_up(
        &self,
        name: &ObjectName,
        version: Option<Version>,
    ) -> Result<Content, HoldFault> {
        let read = async |record: &ObjectRecord| {
            let sums = self.books.sums(record).await?;
            let layout = self.books.layout(record).await?;
            Ok(sums.zip(layout))
        };
        let found = self.books.object_with(name, version, read).await?;
        let name = name.clone();
        let (record, (sums, layout)) = found.ok_or(HoldFault::NotFound { name })?;
        Content::new(record, sums, layout)
    }

    /// Registers the chunks' memory, and begins to answer for it.
    async fn hold(
        self: &Rc<Self>,
        name: &ObjectName,
        content: Content,
        holding: Holding,
    ) -> Result<Begun, HoldError> {
        let version = content.record.version;
        if self.local(version).is_some() {
            return Err(failed(HoldFault::Held { version }, holding.into_lent()));
        }
        let registered = match &holding.backing {
            Some(backing) => backing.register(&self.engine, version),
            None => local::register(&self.engine, version, &holding.buffers),
        };
        let segments = match registered {
            Ok(segments) => segments,
            Err((segments, refusal)) => {
                local::unregister(&self.engine, &segments).await;
                return Err(failed(refusal.into(), holding.into_lent()));
            }
        };
        let local = Local::new(self, name.clone(), content, holding, segments);
        let local = Rc::new(local);
        let before = self.locals.borrow_mut().insert(version, Rc::clone(&local));
        assert!(before.is_none(), "a version is held once");
        self.has_held.open();
        let driving = Rc::clone(&local).drive(Rc::clone(self));
        let following = Rc::clone(&local).follow(Rc::clone(self));
        if !(self.spawn(driving) && self.spawn(following)) {
            return Err(failed(HoldFault::Task, self.let_go(&local).await));
        }
        Ok(Begun::new(Rc::clone(self), local))
    }

    /// Writes what is held into the catalogue.
    async fn announce(&self, local: &Local, may_replace: bool) -> Result<(), HoldFault> {
        self.put_holder(local).await?;
        let lease = self.lease.get();
        let claimed = self
            .books
            .claim(local, self.me(), lease, may_replace)
            .await?;
        match claimed {
            Claimed::Ours => Ok(()),
            Claimed::Taken(version) => Err(HoldFault::NameTaken {
                name: local.name.clone(),
                version,
            }),
        }
    }

    async fn put_holder(&self, local: &Local) -> Result<(), CatalogueError> {
        let record = HolderRecord {
            rack: self.rack,
            chunks: local.held_chunks(),
            keeps: local.keeps(),
            addresses: self.addresses.clone(),
        };
        let version = local.content.record.version;
        let put = self
            .books
            .put_holder(version, self.me(), &record, self.lease.get());
        put.await
    }

    async fn forget_object(&self, local: &Local) -> Result<(), CatalogueError> {
        if !local.is_serving() {
            return Ok(());
        }
        let (name, version) = (&local.name, local.content.record.version);
        let lease = self.lease.get();
        let is_gone = self.books.remove_if_last(name, version, lease).await?;
        let mut left = self.left.borrow_mut();
        // Beyond that keys end with the lease.
        if !is_gone && left.len() < LEFT_MAX {
            left.push((name.clone(), version));
        }
        Ok(())
    }

    /// Takes what is held out of everything, when no reader is left, and gives the buffers back. Goes on to its end if
    /// the future is dropped. Whoever comes later waits for the same end.
    async fn let_go(self: &Rc<Self>, local: &Rc<Local>) -> Vec<Exposed> {
        if !local.is_closing() {
            local.begin_closing();
            let (inner, closing) = (Rc::clone(self), Rc::clone(local));
            if !self.spawn(async move { inner.withdraw(&closing).await }) {
                self.withdraw(local).await;
            }
        }
        local.let_go.opened().await;
        local.lent()
    }

    async fn withdraw(self: &Rc<Self>, local: &Rc<Local>) {
        let version = local.content.record.version;
        // Both at once: a coordinator that does not answer keeps nobody's memory.
        let forgetting = async {
            local.unwritten().await;
            self.books.remove_holder(version, self.me()).await
        };
        let (forgotten, ()) = join(forgetting, self.free(local)).await;
        if let Err(error) = forgotten {
            tracing::debug!(%version, %error, "the catalogue forgets it with the lease");
        }
        self.locals.borrow_mut().remove(&version);
        if let Err(error) = self.forget_object(local).await {
            tracing::debug!(%version, %error, "the catalogue forgets it with the lease");
        }
        local.let_go.open();
    }

    /// Ends all access to an object's memory.
    async fn free(self: &Rc<Self>, local: &Rc<Local>) {
        local.close(self).await;
        local::unregister(&self.engine, &local.segments).await;
        local.set_free();
    }

    /// Hears what others say.
    async fn listen(self: Rc<Self>) {
        loop {
            let note = self.engine.notified().await;
            let from = PeerId(note.from);
            let (version, message) = match Message::decode(&note.bytes) {
                Ok(said) => said,
                Err(error) => {
                    tracing::debug!(from = note.from, %error, "a message");
                    continue;
                }
            };
            match self.local(version) {
                Some(local) => local.on(&self, |swarm| {
                    swarm.on_message(time::now(), from, message);
                }),
                // Who still takes us for a holder is told; nothing else is answered.
                None if matches!(message, Message::Hello | Message::Want { .. }) => {
                    self.say(from, version, &Message::Bye);
                }
                None => {}
            }
        }
    }
}

/// Most objects that are looked at again when they were let go of and others held them.
const LEFT_MAX: usize = 1 << 14;

/// How long the coordinator is waited for, each time.
const ASK_MAX: Duration = Duration::from_secs(3);
