//! Asking a store from any thread.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use lunette_p2p_proto::layout::{Layout, Slice, Tensor};
use lunette_p2p_proto::{ObjectName, Shape, Version};
use lunette_runtime::{OpError, SendError, Sender};
use lunette_transfer::engine::DeviceFault;
use lunette_transfer::engine::DeviceLendError;
use thiserror::Error;

use super::hosted::{Hosted, Question};
use super::lending::LentBuffers;
use crate::buffers::Buffers;
use crate::error::{CatalogueError, FileFault, HoldError, HoldFault, Incomplete, SourceFault};
use crate::store::{Found, Held, Progress, ReceiveOptions, RegisterOptions, SliceOptions};
use crate::update::UpdateFault;

/// Questions that wait for the core. Further ones are refused as [`HandleError::Busy`].
pub(super) const QUESTIONS_MAX: usize = 4096;

/// Why a question to a hosted store has no answer, or a bad one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HandleError {
    /// The store has ended, or its core.
    #[error("the store has ended")]
    Ended,
    /// Too many questions wait for it.
    #[error("{QUESTIONS_MAX} questions wait for the store")]
    Busy,
    /// The core takes no more tasks. Nothing was done.
    #[error("the store's core takes no more tasks")]
    Tasks,
    /// The object is let go of.
    #[error("the object is not held any more")]
    LetGo,
    /// See there.
    #[error(transparent)]
    Hold(#[from] HoldFault),
    /// See there.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// See there.
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
    /// See there.
    #[error(transparent)]
    Update(#[from] UpdateFault),
    /// A file was not opened, or not made as long as it is to be.
    #[error(transparent)]
    File(#[from] FileFault),
    /// A chunk was not written to its file. What came stays; what was not written is fetched and tried again, as long as the
    /// object is held.
    #[error("a chunk is not written to its file: {0}")]
    Disk(OpError),
    /// Memory of a device was not taken.
    #[error(transparent)]
    Device(#[from] DeviceLendError),
    /// A chunk was not copied to its device. What came stays; what was not copied is fetched and tried again, unless the device
    /// is of no use any more.
    #[error("a chunk is not copied to its device: {0}")]
    Copy(DeviceFault),
    /// What was written to files is not on the disk, or not all of it.
    #[error("what came is not on the disk: {0}")]
    NotSynced(String),
    /// The store let go of it: a file that it was registered of, or has come into, is not as it was.
    #[error(transparent)]
    Source(#[from] SourceFault),
}

impl HandleError {
    /// Whether asking again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Ended | Self::LetGo | Self::File(_) | Self::NotSynced(_) => false,
            Self::Busy | Self::Tasks | Self::Disk(_) => true,
            Self::Device(error) => error.is_backpressure(),
            Self::Copy(fault) => fault.is_retryable(),
            Self::Source(fault) => fault.is_retryable(),
            Self::Hold(fault) => fault.is_retryable(),
            Self::Catalogue(error) => error.is_retryable(),
            Self::Incomplete(error) => error.is_retryable(),
            Self::Update(fault) => fault.is_retryable(),
        }
    }

    /// Whether a limit of the store was met.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Busy | Self::Tasks => true,
            Self::Device(error) => error.is_backpressure(),
            Self::Copy(fault) => fault.is_backpressure(),
            _ => false,
        }
    }
}

impl From<HoldError> for HandleError {
    fn from(error: HoldError) -> Self {
        Self::Hold(error.fault)
    }
}

/// What an answer is.
pub(super) type Answered<T> = Result<T, HandleError>;

/// An answer on its way: a future for any executor, or waited for. Dropping it has what was asked for given up: an object
/// that was to be held is let go of.
pub type Pending<T> = lunette_runtime::Pending<Answered<T>>;

/// Where the core is asked.
#[derive(Clone)]
pub(super) struct Questions {
    questions: Sender<Question>,
    dropped: Dropped,
}

/// Objects that no handle names any more, until the core lets go of them.
pub(super) type Dropped = Arc<Mutex<Vec<u64>>>;

impl Questions {
    pub(super) fn new(questions: Sender<Question>) -> Self {
        Self {
            questions,
            dropped: Dropped::default(),
        }
    }

    pub(super) fn dropped(&self) -> Dropped {
        Arc::clone(&self.dropped)
    }

    pub(super) fn put<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Hosted, oneshot::Sender<Answered<T>>) + Send + 'static,
    ) -> Pending<T> {
        let (sender, answer) = oneshot::channel();
        let question: Question = Box::new(move |hosted| question(hosted, sender));
        match self.questions.try_send(question) {
            Ok(()) => Pending::of_core(answer, || Err(HandleError::Ended)),
            Err(SendError::Full(_)) => Pending::ready(Err(HandleError::Busy)),
            Err(SendError::Closed(_)) => Pending::ready(Err(HandleError::Ended)),
        }
    }

    fn on_dropped(&self, number: u64) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push(number);
        drop(dropped);
        // The core looks after each question. Where many wait it has some, and where it has ended nothing is held.
        let _looks = self.questions.try_send(Box::new(|_| {}));
    }
}

/// Asks a store, from any thread and from any core.
#[derive(Clone)]
pub struct StoreHandle {
    pub(super) questions: Questions,
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").finish_non_exhaustive()
    }
}

impl StoreHandle {
    pub(super) const fn new(questions: Questions) -> Self {
        Self { questions }
    }

    /// Registers an object, and tells which tensors it has where. See
    /// [`Store::register_tensors`](crate::Store::register_tensors).
    #[must_use]
    pub fn register_tensors(
        &self,
        name: ObjectName,
        buffers: impl Into<LentBuffers>,
        tensors: Vec<Tensor>,
        options: RegisterOptions,
    ) -> Pending<HeldHandle> {
        let buffers = buffers.into();
        self.begin(move |hosted, telling| {
            let (store, devices) = (hosted.store(), hosted.devices());
            let holding = async move {
                Answered::Ok(match Box::pin(buffers.here(&devices)).await? {
                    Buffers::Host(here) => {
                        let registering = store.register_tensors(&name, here, tensors, options);
                        Box::pin(registering).await?
                    }
                    Buffers::Devices(here) => {
                        let registering = store.register_devices(&name, here, tensors, options);
                        Box::pin(registering).await?
                    }
                })
            };
            hosted.hold(holding, telling);
        })
    }

    /// Joins those who hold an object, and receives it into `buffers`. See [`Store::receive`](crate::Store::receive).
    #[must_use]
    pub fn receive(
        &self,
        name: ObjectName,
        buffers: impl Into<LentBuffers>,
        options: ReceiveOptions,
    ) -> Pending<HeldHandle> {
        let buffers = buffers.into();
        self.begin(move |hosted, telling| {
            let (store, devices) = (hosted.store(), hosted.devices());
            let holding = async move {
                Answered::Ok(match Box::pin(buffers.here(&devices)).await? {
                    Buffers::Host(here) => Box::pin(store.receive(&name, here, options)).await?,
                    Buffers::Devices(here) => {
                        Box::pin(store.receive_devices(&name, here, options)).await?
                    }
                })
            };
            hosted.hold(holding, telling);
        })
    }

    /// Joins those who hold an object, and receives parts of its tensors. See
    /// [`Store::receive_slices`](crate::Store::receive_slices).
    #[must_use]
    pub fn receive_slices(
        &self,
        name: ObjectName,
        buffers: impl Into<LentBuffers>,
        slices: Vec<Slice>,
        options: SliceOptions,
    ) -> Pending<HeldHandle> {
        let buffers = buffers.into();
        self.begin(move |hosted, telling| {
            let (store, devices) = (hosted.store(), hosted.devices());
            let holding = async move {
                Answered::Ok(match Box::pin(buffers.here(&devices)).await? {
                    Buffers::Host(here) => {
                        let receiving = store.receive_slices(&name, here, &slices, options);
                        Box::pin(receiving).await?
                    }
                    Buffers::Devices(here) => {
                        let receiving = store.receive_slices_devices(&name, here, &slices, options);
                        Box::pin(receiving).await?
                    }
                })
            };
            hosted.hold(holding, telling);
        })
    }

    /// Has the core begin something that a handle stands for.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&Hosted, Telling<T>) + Send + 'static,
    ) -> Pending<T> {
        let questions = self.questions.clone();
        self.questions
            .put(move |hosted, sender| begin(hosted, Telling { questions, sender }))
    }

    /// See [`Store::find`](crate::Store::find).
    #[must_use]
    pub fn find(&self, name: ObjectName) -> Pending<Option<Found>> {
        self.questions.put(|hosted, sender| {
            let store = hosted.store();
            hosted.answer(async move { Ok(store.find(&name).await?) }, sender);
        })
    }

    /// See [`Store::layout`](crate::Store::layout).
    #[must_use]
    pub fn layout(&self, found: Found) -> Pending<Option<Layout>> {
        self.questions.put(|hosted, sender| {
            let store = hosted.store();
            hosted.answer(async move { Ok(store.layout(&found).await?) }, sender);
        })
    }

    /// See [`Store::list`](crate::Store::list).
    #[must_use]
    pub fn list(&self, beginning: String) -> Pending<Vec<Found>> {
        self.questions.put(|hosted, sender| {
            let store = hosted.store();
            hosted.answer(async move { Ok(store.list(&beginning).await?) }, sender);
        })
    }
}

/// Who is told of an object that is held, and how that one tells when nobody has it any more.
pub(super) struct Telling<T> {
    pub(super) questions: Questions,
    pub(super) sender: oneshot::Sender<Answered<T>>,
}

/// What is told of an object that is held.
#[derive(Debug)]
struct Facts {
    name: ObjectName,
    version: Version,
    shape: Shape,
    layout: Layout,
}

/// Tells the core when nobody has an object any more, wherever its handle was lost.
pub(super) struct Claim {
    pub(super) number: u64,
    pub(super) questions: Questions,
}

impl Claim {
    pub(super) const fn new(number: u64, questions: Questions) -> Self {
        Self { number, questions }
    }

    /// Lets go of what it stands for, and waits until that is done. Dropping the answer changes nothing.
    pub(super) fn let_go(&self) -> Pending<()> {
        let number = self.number;
        self.questions
            .put(move |hosted, sender| hosted.let_go(number, sender))
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", self.number)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.questions.on_dropped(self.number);
    }
}

/// An object that is held by a hosted store, whole or in part, and served. Clones are handles to the same; when the last is
/// dropped, the store lets go of it.
#[derive(Clone, Debug)]
pub struct HeldHandle {
    facts: Arc<Facts>,
    claim: Arc<Claim>,
}

impl HeldHandle {
    pub(super) fn new(claim: Claim, held: &Held) -> Self {
        let facts = Facts {
            name: held.name().clone(),
            version: held.version(),
            shape: held.shape().clone(),
            layout: held.layout().clone(),
        };
        Self {
            facts: Arc::new(facts),
            claim: Arc::new(claim),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        &self.facts.name
    }

    /// Which registration it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.facts.version
    }

    /// What it is made of.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.facts.shape
    }

    /// The tensors that it has, as they are told of.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.facts.layout
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Pending<Progress> {
        let number = self.claim.number;
        self.claim.questions.put(move |hosted, sender| {
            // Nobody waits any more: then nobody is told.
            drop(sender.send(hosted.held(number).and_then(|held| progress(&held))));
        })
    }

    /// Waits until all of it that is wanted is here, for at most `patience`. [`HandleError::Incomplete`]: what came stays,
    /// and more comes on. [`HandleError::Disk`], [`HandleError::Copy`]: a file or a device did not take a chunk meanwhile; asked
    /// again, it is waited for whether that is written by then. [`HandleError::Source`]: a file that it lies in was changed. See
    /// [`Held::whole`](crate::Held::whole).
    #[must_use]
    pub fn whole(&self, patience: Duration) -> Pending<()> {
        let number = self.claim.number;
        self.claim.questions.put(move |hosted, sender| {
            let held = hosted.held(number);
            let waiting = async move {
                let held = held?;
                whole(&held, patience).await
            };
            hosted.answer(waiting, sender);
        })
    }

    /// Waits until what has come into files is on the disk. [`HandleError::NotSynced`] if it is not. See
    /// [`Held::sync`](crate::Held::sync).
    #[must_use]
    pub fn sync(&self) -> Pending<()> {
        let number = self.claim.number;
        self.claim.questions.put(move |hosted, sender| {
            let held = hosted.held(number);
            let syncing = async move {
                let synced = held?.sync().await;
                synced.map_err(|error| HandleError::NotSynced(error.to_string()))
            };
            hosted.answer(syncing, sender);
        })
    }

    /// Serves it no more, and lets go of its memory: no access to it is under way when the answer is there. Again, it waits
    /// for the same. Dropping the answer changes nothing. See [`Held::unregister`](crate::Held::unregister).
    #[must_use]
    pub fn unregister(&self) -> Pending<()> {
        self.claim.let_go()
    }
}

fn progress(held: &Held) -> Answered<Progress> {
    match held.source_fault() {
        Some(fault) => Err(fault.into()),
        None => Ok(held.progress()),
    }
}

/// Waits for all of it, or until something says that it does not come.
async fn whole(held: &Held, patience: Duration) -> Answered<()> {
    if let Some(fault) = held.source_fault() {
        return Err(fault.into());
    }
    let came = {
        let (coming, failing) = (pin!(held.whole(patience)), pin!(held.not_written()));
        match select(coming, failing).await {
            Either::Left((came, _)) => came,
            Either::Right(_) => {
                if let Some(fault) = held.device_fault() {
                    return Err(HandleError::Copy(fault));
                }
                let fault = held.disk_fault().expect("it has just been told");
                return Err(HandleError::Disk(fault));
            }
        }
    };
    match came {
        Err(_) if held.is_let_go() => Err(HandleError::LetGo),
        came => Ok(came?),
    }
}
