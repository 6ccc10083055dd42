//! What peers read from files, and write to them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lunette_nvmeof::CommandError;
use lunette_runtime::arena::Exposed;
use lunette_runtime::net::Pin;
use lunette_runtime::{OpError, Scope};
use thiserror::Error;

use super::super::Refusal;
use super::super::devices::{DeviceFault, DevicePart};
use super::super::namespaces::{NamespacePart, may_still_land, refusal_of};
use super::super::registry::InUse;
use super::FilePart;
use crate::frames::Payload;
use crate::room::Room;
use crate::source::WriteSource;
use crate::staging::{Staged, Staging};

/// Why bytes were not moved.
#[derive(Debug, Error)]
pub(super) enum Unmoved {
    /// The file's system.
    #[error(transparent)]
    File(#[from] OpError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The namespace's controller, or the way there.
    #[error(transparent)]
    Namespace(#[from] CommandError),
}

impl Unmoved {
    /// What whoever asked is told.
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            Self::Namespace(error) => refusal_of(error),
            Self::Device(fault) => fault.refusal(),
            Self::File(_) => Refusal::Storage,
        }
    }

    /// Whether a write that failed so may still be carried out.
    pub(super) fn may_still_land(&self) -> bool {
        matches!(self, Self::Namespace(error) if may_still_land(error))
    }
}

/// Where a place of a request lies.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Piece {
    Memory(Exposed),
    File(FilePart),
    Device(DevicePart),
    Namespace(NamespacePart),
}

impl Piece {
    pub(in crate::engine) const fn len(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.len(),
            Self::File(part) => part.len(),
            Self::Device(part) => part.len(),
            Self::Namespace(part) => part.len(),
        }
    }

    /// The memory, if all pieces are some; else the pieces.
    pub(in crate::engine) fn into_memory(pieces: Vec<Self>) -> Result<Vec<Exposed>, Vec<Self>> {
        let is_memory = |piece: &Self| matches!(piece, Self::Memory(_));
        if !pieces.iter().all(is_memory) {
            return Err(pieces);
        }
        let memory = pieces.into_iter().map(|piece| match piece {
            Self::Memory(memory) => memory,
            Self::File(_) | Self::Device(_) | Self::Namespace(_) => unreachable!("there is none"),
        });
        Ok(memory.collect())
    }

    /// Reads it over `to`; a namespace is not asked for longer than `limit`.
    pub(super) async fn read(&self, to: Exposed, limit: Duration) -> Result<(), Unmoved> {
        match self {
            Self::Memory(memory) => {
                to.copy_from(0, memory);
                Ok(())
            }
            Self::File(part) => Ok(part.read(to).await?),
            Self::Device(part) => Ok(part.read(to).await?),
            Self::Namespace(part) => Ok(part.read(to, limit).await?),
        }
    }

    /// Writes `from` over it; a namespace is not asked for longer than `limit`.
    pub(super) async fn write(
        &self,
        from: impl Into<WriteSource>,
        limit: Duration,
    ) -> Result<(), Unmoved> {
        let from = from.into();
        match self {
            Self::Memory(memory) => {
                from.copy_to(memory);
                Ok(())
            }
            Self::File(part) => Ok(part.write(from).await?),
            Self::Device(part) => Ok(part.write(from).await?),
            Self::Namespace(part) => Ok(part.write(from, limit).await?),
        }
    }
}

/// Reads the pieces of a request, and keeps their segments until that has been sent.
///
/// # Errors
/// Why not, and which piece it was.
pub(in crate::engine) async fn read(
    staging: Rc<Staging>,
    pieces: Vec<Piece>,
    in_use: Vec<InUse>,
) -> Result<Payload, (Refusal, usize)> {
    let len = pieces.iter().map(Piece::len).sum();
    let staged = staging.take(len).await.ok_or((Refusal::Busy, 0))?;
    let memory = staged.memory().clone();
    each(&pieces, &memory, async |piece, to| {
        piece.read(to, Duration::MAX).await
    })
    .await?;
    let payload = Payload::exposed(vec![memory]);
    Ok(payload.pinned(Pin::new((staged, in_use))))
}

/// A write to pieces of which some are a file's: its bytes are staged first.
#[derive(Debug)]
pub(in crate::engine) struct FileWrite {
    pieces: Vec<Piece>,
    staged: Staged,
}

impl FileWrite {
    /// `None` if too much is on its way to files.
    pub(in crate::engine) fn begin(staging: &Rc<Staging>, pieces: Vec<Piece>) -> Option<Self> {
        let len = pieces.iter().map(Piece::len).sum();
        let staged = staging.try_take(len)?;
        Some(Self { pieces, staged })
    }

    /// Where its bytes are received.
    pub(in crate::engine) fn room(&self) -> Room {
        Room::exposed(vec![self.staged.memory().clone()])
    }

    /// Puts what was received where it belongs.
    ///
    /// # Errors
    /// Why not, and which piece it was; others may have been written.
    pub(in crate::engine) async fn land(self) -> Result<(), (Refusal, usize)> {
        let memory = self.staged.memory();
        each(&self.pieces, memory, async |piece, from| {
            piece.write(from, Duration::MAX).await
        })
        .await
    }
}

/// Does the same with every piece and the memory that belongs to it, all at the same time. Says which was
/// the first that failed; the others have ended too.
async fn each(
    pieces: &[Piece],
    memory: &Exposed,
    work: impl AsyncFn(Piece, Exposed) -> Result<(), Unmoved> + Copy + 'static,
) -> Result<(), (Refusal, usize)> {
    let failed: Rc<Cell<Option<(usize, Refusal)>>> = Rc::default();
    let scope = Scope::new();
    let mut start = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let part = memory.slice(start, piece.len());
        start += piece.len();
        let (piece, failed) = (piece.clone(), Rc::clone(&failed));
        let spawned = scope.spawn(async move {
            if let Err(error) = work(piece, part).await {
                tracing::warn!(%error, "a file, a device or a namespace");
                if failed.get().is_none_or(|(first, _)| index < first) {
                    failed.set(Some((index, error.refusal())));
                }
            }
        });
        if spawned.is_err() {
            scope.join().await;
            return Err((Refusal::Busy, index));
        }
    }
    scope.join().await;
    failed
        .get()
        .map_or(Ok(()), |(index, refusal)| Err((refusal, index)))
}
