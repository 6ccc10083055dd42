//! Asking an engine from any thread.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use lunette_auth::Rights;
use lunette_runtime::arena::{Exposed, ForeignMemory, HugePages, SharedMemory};
use lunette_transfer_proto::engine::segment::SegmentId;

use super::super::devices::DeviceLent;
use super::super::endpoint::Endpoint;
use super::super::files::FileSegmentOptions;
use super::super::grants::Token;
use super::super::namespaces::NamespaceSegmentOptions;
use super::super::registry::{Content, RegisterOptions};
use super::super::siblings::{Hosted, NotAnswered, Opening, Siblings, answer_in_task};
use super::super::statistics::Statistics;
use super::super::{Notification, peer::Peer};
use super::answer::{Answered, HandleError, Pending};
use super::peer::PeerHandle;

/// Asks an engine, from any thread and from any core.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    pub(super) siblings: Arc<Siblings>,
}

impl EngineHandle {
    pub(in crate::engine) const fn new(siblings: Arc<Siblings>) -> Self {
        Self { siblings }
    }

    /// All cores, in the order in which they are asked what any of them can answer.
    fn anyone(&self) -> Range<usize> {
        0..self.siblings.members().len()
    }

    /// Asks a core, and answers at once.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Rc<Hosted>) -> Answered<T> + Send + 'static,
    ) -> Pending<T> {
        self.put(self.anyone(), move |hosted, sender| {
            // Nobody waits any more: then nobody is told.
            drop(sender.send(question(hosted)));
        })
    }

    /// Asks a core for what takes its time.
    pub(super) fn ask_for<T: Send + 'static, F: Future<Output = Answered<T>> + 'static>(
        &self,
        question: impl FnOnce(Rc<Hosted>) -> F + Send + 'static,
    ) -> Pending<T> {
        self.put(self.anyone(), move |hosted, sender| {
            let hosted = Rc::clone(hosted);
            answer_in_task(sender, full, |sender| async move {
                drop(sender.send(question(hosted).await));
            });
        })
    }

    /// Puts a question to the first of these cores that takes it.
    pub(super) fn put<T: Send + 'static>(
        &self,
        cores: impl IntoIterator<Item = usize>,
        question: impl FnOnce(&Rc<Hosted>, oneshot::Sender<Answered<T>>) + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(move |hosted: &Rc<Hosted>| question(hosted, sender));
        match self.siblings.ask_any(cores, job) {
            Ok(_) => Pending::of_core(receiver, || Err(HandleError::Ended)),
            Err(not_asked) => Pending::ready(Err(not_asked.into())),
        }
    }

    /// Registers memory of the program.
    #[must_use]
    pub fn register(&self, memory: ForeignMemory, options: RegisterOptions) -> Pending<SegmentId> {
        self.register_shared(SharedMemory::foreign(memory), options)
    }

    /// Maps memory, zeroed, and registers it.
    #[must_use]
    pub fn allocate(&self, len_bytes: usize, options: RegisterOptions) -> Pending<SegmentId> {
        match SharedMemory::map(len_bytes, HugePages::Prefer, &mut Vec::new()) {
            Ok(memory) => self.register_shared(memory, options),
            Err(errno) => Pending::ready(Err(HandleError::Map(errno.into()))),
        }
    }

    /// Registers memory that the program, or its cores, reach too. The answer comes when every core of the
    /// engine has it.
    #[must_use]
    pub fn register_shared(
        &self,
        memory: SharedMemory,
        options: RegisterOptions,
    ) -> Pending<SegmentId> {
        self.ask_for(move |hosted| async move {
            let alive = Arc::clone(&hosted.inner.alive);
            if alive.siblings().are_several() {
                return Ok(alive.siblings().register(&memory, &options).await?);
            }
            let exposed = memory.here(alive.kept());
            let registered = hosted
                .inner
                .registry
                .borrow_mut()
                .register(exposed, &options);
            registered.map_err(|error| error.refusal.into())
        })
    }

    /// Opens a range of a file at every core of the engine, and registers it as one segment: whichever core is
    /// asked for it carries that out. The answer comes when every core has it; if one cannot open it, none has.
    #[must_use]
    pub fn register_file(
        &self,
        path: impl Into<PathBuf>,
        file: FileSegmentOptions,
        options: RegisterOptions,
    ) -> Pending<SegmentId> {
        self.open_and_register(Opening::File(path.into(), file), options)
    }

    /// Connects a namespace from every core of the engine, each over connections of its own, and registers it as
    /// one segment, as [`register_file`](Self::register_file).
    #[must_use]
    pub fn register_namespace(
        &self,
        namespace: NamespaceSegmentOptions,
        options: RegisterOptions,
    ) -> Pending<SegmentId> {
        self.open_and_register(Opening::Namespace(Box::new(namespace)), options)
    }

    /// Takes memory of a device, which lies in one allocation, at every core of the engine, and registers it as one segment:
    /// peers reach it as [`register_device`](super::super::Engine::register_device) says, and it is this side of what
    /// handles post. Copies come after what the streams that are lent with it have to do now. It is the program's again when
    /// its keeper has been dropped: after it has been unregistered, and nothing that was posted here uses it any more.
    #[must_use]
    pub fn register_device(
        &self,
        lent: DeviceLent,
        options: RegisterOptions,
    ) -> Pending<SegmentId> {
        self.open_and_register(Opening::Device(lent), options)
    }

    fn open_and_register(&self, opening: Opening, options: RegisterOptions) -> Pending<SegmentId> {
        self.ask_for(move |hosted| async move {
            let inner = &hosted.inner;
            let siblings = inner.alive.siblings();
            if siblings.are_several() {
                return Ok(siblings.open_and_register(&opening, &options).await?);
            }
            let content = opening.open(&hosted).await?;
            let mut registry = inner.registry.borrow_mut();
            Ok(registry.register_content(content, &options)?)
        })
    }

    /// Length of a segment of this engine in bytes, whatever it is made of. [`HandleError::NoMemory`] if there is
    /// none.
    #[must_use]
    pub fn len_bytes(&self, id: SegmentId) -> Pending<u64> {
        self.ask(move |hosted| {
            let found = hosted.inner.registry.borrow().descriptor(id);
            found
                .map(|descriptor| descriptor.len_bytes)
                .ok_or(HandleError::NoMemory)
        })
    }

    /// Waits until what has been written to a file or a namespace of this engine, at any core, is on its medium.
    /// [`HandleError::NoMemory`] if there is no such segment, or if it is neither.
    #[must_use]
    pub fn sync(&self, id: SegmentId) -> Pending<()> {
        self.ask_for(move |hosted| async move {
            let content = hosted.inner.registry.borrow().content(id);
            match content {
                Some(Content::File(file)) => {
                    let synced = file.sync().await;
                    synced.map_err(|error| HandleError::File(error.into()))
                }
                Some(Content::Namespace(namespace)) => {
                    namespace.sync().await.map_err(HandleError::Sync)
                }
                _ => Err(HandleError::NoMemory),
            }
        })
    }

    /// Takes a segment away; the answer comes when nobody uses its memory any more. False if there is
    /// no such segment.
    #[must_use]
    pub fn unregister(&self, id: SegmentId) -> Pending<bool> {
        self.ask_for(move |hosted| async move { Ok(hosted.inner.unregister(id).await.is_some()) })
    }

    /// Grants part of a segment to another engine. See [`Engine::grant`](super::super::Engine::grant).
    #[must_use]
    pub fn grant(
        &self,
        segment: SegmentId,
        holder: u64,
        rights: Rights,
        range: Range<u64>,
    ) -> Pending<Token> {
        self.ask(move |hosted| Ok(hosted.inner.grant(segment, holder, rights, range)?))
    }

    /// Revokes all that was granted for a segment, at every core. See
    /// [`Engine::revoke`](super::super::Engine::revoke).
    #[must_use]
    pub fn revoke(&self, segment: SegmentId) -> Pending<bool> {
        self.ask(move |hosted| Ok(hosted.inner.registry.borrow().revoke(segment)))
    }

    /// Copies bytes into a segment of this engine.
    #[must_use]
    pub fn fill(&self, id: SegmentId, offset_bytes: u64, bytes: Vec<u8>) -> Pending<()> {
        self.ask(move |hosted| {
            let len_bytes = bytes.len() as u64;
            memory(hosted, id, offset_bytes, len_bytes)?.copy_in(0, &bytes);
            Ok(())
        })
    }

    /// Bytes of a segment of this engine, copied.
    #[must_use]
    pub fn bytes(&self, id: SegmentId, offset_bytes: u64, len_bytes: u64) -> Pending<Vec<u8>> {
        self.ask(move |hosted| Ok(memory(hosted, id, offset_bytes, len_bytes)?.to_vec()))
    }

    /// Opens a peer. See [`Engine::open`](super::super::Engine::open).
    #[must_use]
    pub fn open(&self, addresses: Vec<SocketAddr>) -> Pending<PeerHandle> {
        self.open_by_name(addresses.into_iter().map(Endpoint::from).collect())
    }

    /// Opens a peer, also by names, from every core of this engine. See
    /// [`Engine::open_by_name`](super::super::Engine::open_by_name).
    #[must_use]
    pub fn open_by_name(&self, endpoints: Vec<Endpoint>) -> Pending<PeerHandle> {
        let engine = self.clone();
        self.ask_for(move |_| async move {
            let siblings = Arc::clone(&engine.siblings);
            let opened = siblings.ask_each(|_| {
                let endpoints = endpoints.clone();
                move |hosted: Rc<Hosted>| open_here(hosted, endpoints)
            });
            PeerHandle::of(engine, opened.await)
        })
    }

    /// The next notification of a peer, to whichever core.
    #[must_use]
    pub fn notified(&self) -> Pending<Notification> {
        let siblings = Arc::clone(&self.siblings);
        Pending::here(async move {
            let next = siblings.notices.next().await;
            next.ok_or(HandleError::Gone)
        })
    }

    /// A notification, if one waits.
    #[must_use]
    pub fn take_notification(&self) -> Pending<Option<Notification>> {
        Pending::ready(Ok(self.siblings.notices.take()))
    }

    /// What the engine has done so far, on all of its cores. What a core has done that has ended is not
    /// among it.
    #[must_use]
    pub fn statistics(&self) -> Pending<Statistics> {
        let siblings = Arc::clone(&self.siblings);
        self.ask_for(|_| async move {
            let of_core = |hosted: Rc<Hosted>| async move { hosted.inner.counts.read() };
            let all = siblings.ask_each(|_| of_core).await;
            let sum = all.into_iter().flatten().reduce(Statistics::and);
            sum.ok_or(HandleError::Ended)
        })
    }
}

/// What is answered by a core that takes no more tasks.
pub(super) fn full<T>() -> Answered<T> {
    Err(NotAnswered::Full.into())
}

/// A core's peer: where it is kept, and its session epoch.
pub(super) type Opened = Answered<(usize, u64)>;

async fn open_here(hosted: Rc<Hosted>, endpoints: Vec<Endpoint>) -> Opened {
    let peer = Peer::open(&hosted.inner, endpoints).await?;
    let epoch = peer.epoch();
    let index = hosted.peers.borrow_mut().insert(peer);
    Ok((index, epoch))
}

/// Memory of this machine that the engine has registered.
pub(super) fn memory(hosted: &Hosted, id: SegmentId, offset: u64, len: u64) -> Answered<Exposed> {
    let registry = hosted.inner.registry.borrow();
    registry
        .memory(id, offset, len)
        .ok_or(HandleError::NoMemory)
}
