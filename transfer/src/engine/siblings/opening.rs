//! What is opened at every core of an engine, each for itself, and is one segment then: files, namespaces, memory of
//! devices.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_channel::oneshot;
use lunette_runtime::JoinError;
use lunette_transfer_proto::engine::segment::{RegisterRefusal, SegmentId};
use thiserror::Error;

use super::super::devices::{DeviceLendError, DeviceLent};
use super::super::files::{FileSegment, FileSegmentError, FileSegmentOptions};
use super::super::namespaces::{NamespaceSegment, NamespaceSegmentError, NamespaceSegmentOptions};
use super::super::registry::{Content, RegisterOptions, first_epoch};
use super::Siblings;
use super::jobs::{Hosted, answer_in_task};

/// Why something was not opened and registered at every core.
#[derive(Debug, Error)]
pub(in crate::engine) enum OpeningError {
    #[error(transparent)]
    File(#[from] FileSegmentError),
    #[error(transparent)]
    Namespace(#[from] NamespaceSegmentError),
    #[error(transparent)]
    Device(#[from] DeviceLendError),
    #[error(transparent)]
    Register(#[from] RegisterRefusal),
    /// A core takes no more tasks.
    #[error(transparent)]
    Task(JoinError),
    /// No core is left.
    #[error("no core of the engine is left")]
    Ended,
}

/// What every core opens for itself.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Opening {
    File(PathBuf, FileSegmentOptions),
    Namespace(Box<NamespaceSegmentOptions>),
    Device(DeviceLent),
}

impl Opening {
    pub(in crate::engine) async fn open(self, hosted: &Hosted) -> Result<Content, OpeningError> {
        Ok(match self {
            Self::Device(lent) => Content::Device(hosted.devices.import_one(&lent).await?),
            Self::File(path, options) => Content::File(FileSegment::open(path, options).await?),
            Self::Namespace(options) => {
                Content::Namespace(NamespaceSegment::connect(*options).await?)
            }
        })
    }

    /// Where it begins, of what has addresses.
    const fn start(&self) -> Option<u64> {
        match self {
            Self::Device(lent) => Some(lent.address),
            Self::File(..) | Self::Namespace(_) => None,
        }
    }
}

/// Under what a core takes in what it has opened.
struct Adopting {
    id: SegmentId,
    len_bytes: u64,
    options: RegisterOptions,
    capability_epoch: Option<Arc<AtomicU64>>,
    adopted: oneshot::Sender<()>,
}

/// What a core has opened, and waits to take in: it is closed there if this is dropped.
struct Opened {
    len_bytes: u64,
    adopt: oneshot::Sender<Adopting>,
}

type Answer = Result<Opened, OpeningError>;

impl Siblings {
    /// Opens something at every core, and registers it as one segment. Returns when it is reached from each of
    /// them; if a core that has not ended cannot open it, none has it.
    pub(in crate::engine) async fn open_and_register(
        &self,
        opening: &Opening,
        options: &RegisterOptions,
    ) -> Result<SegmentId, OpeningError> {
        let mut asked = Vec::new();
        for core in 0..self.members.len() {
            let opening = opening.clone();
            let open = move |hosted: &Rc<Hosted>, sender: oneshot::Sender<Answer>| {
                let hosted = Rc::clone(hosted);
                let full = || Err(OpeningError::Task(JoinError::TooManyTasks));
                answer_in_task(sender, full, |sender| open_here(hosted, opening, sender));
            };
            asked.push(self.ask(core, open).await);
        }
        let mut opened = Vec::new();
        for asked in asked {
            // A core that has ended reaches nothing.
            if let Some(answer) = asked.answer().await {
                opened.push(answer?);
            }
        }
        // A file may have grown in between.
        let lengths = opened.iter().map(|opened| opened.len_bytes);
        let len_bytes = lengths.min().ok_or(OpeningError::Ended)?;
        let id = self
            .directory
            .register(options, opening.start(), len_bytes)?;
        let epoch = first_epoch(options);
        let mut adopting = Vec::new();
        for opened in opened {
            let (adopted, told) = oneshot::channel();
            let adopt = Adopting {
                id,
                len_bytes,
                options: options.clone(),
                capability_epoch: epoch.clone(),
                adopted,
            };
            // Unless the core has ended meanwhile.
            if opened.adopt.send(adopt).is_ok() {
                adopting.push(told);
            }
        }
        for told in adopting {
            let _has_ended = told.await.is_err();
        }
        Ok(id)
    }
}

async fn open_here(hosted: Rc<Hosted>, opening: Opening, sender: oneshot::Sender<Answer>) {
    let content = match opening.open(&hosted).await {
        Ok(content) => content,
        Err(error) => {
            // Nobody waits any more: then nobody is told.
            drop(sender.send(Err(error)));
            return;
        }
    };
    let (adopt, adopting) = oneshot::channel();
    let len_bytes = content.len_bytes();
    if sender.send(Ok(Opened { len_bytes, adopt })).is_err() {
        return;
    }
    // It is closed if it is not to be taken in.
    let Ok(adopting) = adopting.await else {
        return;
    };
    let Adopting {
        id,
        len_bytes,
        options,
        capability_epoch,
        adopted,
    } = adopting;
    let mut registry = hosted.inner.registry.borrow_mut();
    registry.adopt_content(id, content, len_bytes, &options, capability_epoch);
    drop(registry);
    // As above.
    let _told = adopted.send(());
}
