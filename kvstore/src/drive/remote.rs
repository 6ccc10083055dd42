//! A namespace over NVMe/TCP as a device of blocks: what is longer than a command is cut, and what has ended with its
//! connection is asked again.
//!
//! The log writes the same bytes to the same place until that has succeeded, and no other ones there meanwhile, so a
//! write whose fate is not known is sent again, unlike what other users of a namespace may do. Who holds the namespace
//! no more sends nothing.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use lunette_kvstore_log::effect::DeviceFault;
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_nvmeof::{CommandError, ConnectError, NamespaceOptions, RemoteNamespace};
use lunette_runtime::arena::{Region, RegionMut};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::device::ReadFault;
use super::holding::Holding;

/// How long after a namespace has gone away it is waited for by who reads an object.
const GRACE: Duration = Duration::from_secs(1);
/// How often that is looked at.
const GRACE_POLL: Duration = Duration::from_millis(5);
/// Longest that a read of an object may take.
const BRISK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest that one command may take before it is sent again.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a command is sent again.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Commands of one read or write that are under way at once.
const PIECES_MAX: usize = 8;
/// How often memory is looked for that a message still holds.
const HELD_POLL: Duration = Duration::from_micros(200);

/// How long somebody waits for a namespace that is away.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// Hardly: somebody waits for an object.
    Brisk,
    /// Until then.
    Until(Time),
    /// Until the host has given it up.
    Lasting,
}

#[derive(Debug)]
pub(super) struct Remote {
    namespace: RemoteNamespace,
    block_bytes_log2: u8,
    piece_bytes: usize,
    /// Since when it has been seen to be away.
    away_since: Cell<Option<Time>>,
}

/// Why a namespace is no device of a drive.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemoteFault {
    Connect(ConnectError),
    Blocks(u64),
}

impl Remote {
    pub(super) async fn connect(options: NamespaceOptions) -> Result<Self, RemoteFault> {
        let namespace = RemoteNamespace::connect(options).await;
        let namespace = namespace.map_err(RemoteFault::Connect)?;
        let block_bytes_log2 = namespace.identity().block_bytes_log2;
        let block_bytes = 1_u64 << block_bytes_log2;
        if block_bytes > BLOCK_BYTES.into() {
            return Err(RemoteFault::Blocks(block_bytes));
        }
        let block = BLOCK_BYTES as usize;
        let piece_bytes = namespace.transfer_bytes_max() as usize / block * block;
        if piece_bytes == 0 {
            return Err(RemoteFault::Blocks(block_bytes));
        }
        Ok(Self {
            namespace,
            block_bytes_log2,
            piece_bytes,
            away_since: Cell::new(None),
        })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        let blocks = self.namespace.identity().blocks;
        blocks.saturating_mul(1 << self.block_bytes_log2)
    }

    pub(super) fn is_reachable(&self) -> bool {
        let is_reachable = self.namespace.is_reachable();
        if is_reachable {
            self.away_since.set(None);
        } else if self.away_since.get().is_none() {
            self.away_since.set(Some(time::now()));
        }
        is_reachable
    }

    /// Waits for a namespace that has only just gone away. Whether it is back.
    async fn is_back(&self) -> bool {
        while !self.is_reachable() {
            let since = self.away_since.get().unwrap_or(Time::ZERO);
            if time::now() >= since + GRACE || self.namespace.is_given_up() {
                return false;
            }
            time::sleep(GRACE_POLL).await;
        }
        true
    }

    pub(super) async fn read(
        &self,
        room: RegionMut,
        len: usize,
        offset_bytes: u64,
        patience: Patience,
    ) -> (Result<(), ReadFault>, RegionMut) {
        if matches!(patience, Patience::Brisk) && !self.is_back().await {
            return (Err(ReadFault::Away), room);
        }
        let mut memory = room.expose();
        let pieces = self.pieces(len).map(|piece| {
            let first = self.block_at(offset_bytes, &piece);
            let to = memory.slice(piece.start, piece.len());
            self.until_done(patience, None, move |timeout| {
                self.namespace.read_exposed(first, to.clone(), timeout)
            })
        });
        let result = all(pieces).await;
        let result = result.map_err(|error| self.fault_of(&error, offset_bytes, len));
        loop {
            // A receive that has ended is let go of in this turn, or the next.
            match memory.try_reclaim() {
                Ok(room) => return (result, room),
                Err(held) => memory = held,
            }
            time::sleep(HELD_POLL).await;
        }
    }

    fn fault_of(&self, error: &Stopped, offset_bytes: u64, len_bytes: usize) -> ReadFault {
        match error {
            Stopped::Error(error) if error.is_of_the_way() && !self.namespace.is_given_up() => {
                tracing::debug!(offset_bytes, len_bytes, %error, "a namespace is away");
                ReadFault::Away
            }
            Stopped::Error(error) => {
                tracing::warn!(offset_bytes, len_bytes, %error, "a namespace cannot read");
                ReadFault::Failed
            }
            Stopped::Lost => ReadFault::Failed,
        }
    }

    pub(super) async fn write(
        &self,
        stage: RegionMut,
        len: usize,
        offset_bytes: u64,
        holding: Option<&Holding>,
    ) -> (Result<(), DeviceFault>, RegionMut) {
        let mut memory = stage.freeze();
        let pieces = self.pieces(len).map(|piece| {
            let first = self.block_at(offset_bytes, &piece);
            let from = memory.slice(piece.start, piece.len());
            self.write_piece(first, from, holding)
        });
        let result = all(pieces).await;
        let result = result.map_err(|error| {
            tracing::warn!(offset_bytes, len_bytes = len, %error, "a namespace has not taken a write");
            DeviceFault
        });
        loop {
            // What was sent without a copy is let go of when the peer has it.
            match memory.try_unfreeze() {
                Ok(stage) => return (result, stage),
                Err(held) => memory = held,
            }
            time::sleep(HELD_POLL).await;
        }
    }

    async fn write_piece(
        &self,
        first: u64,
        from: Region,
        holding: Option<&Holding>,
    ) -> Result<(), Stopped> {
        // A claim says by itself how long its writes may take.
        let patience = match holding {
            Some(_) => Patience::Lasting,
            None => Patience::Brisk,
        };
        self.until_done(patience, holding, move |timeout| {
            (self.namespace).write(first, from.clone(), false, timeout)
        })
        .await
    }

    pub(super) async fn flush(&self, patience: Patience) -> Result<(), DeviceFault> {
        let flushed = self.until_done(patience, None, |timeout| self.namespace.flush(timeout));
        flushed.await.map_err(|error| {
            tracing::warn!(%error, "a namespace has not made durable what was written");
            DeviceFault
        })
    }

    /// Has a command carried out, again and again if what fails is the way.
    async fn until_done<F>(
        &self,
        patience: Patience,
        holding: Option<&Holding>,
        mut ask: impl FnMut(Duration) -> F,
    ) -> Result<(), Stopped>
    where
        F: Future<Output = Result<(), lunette_nvmeof::CommandFailure>>,
    {
        loop {
            let timeout = match patience {
                Patience::Brisk => BRISK_TIMEOUT,
                Patience::Until(_) | Patience::Lasting => COMMAND_TIMEOUT,
            };
            let Err(failure) = ask(timeout).await else {
                return Ok(());
            };
            let error = failure.error;
            let goes_on = match patience {
                Patience::Brisk => false,
                Patience::Until(at) => time::now() < at,
                Patience::Lasting => true,
            };
            if !goes_on || !error.is_of_the_way() || self.namespace.is_given_up() {
                return Err(Stopped::Error(error));
            }
            tracing::debug!(%error, "a command to a namespace is sent again");
            time::sleep(TRY_AGAIN).await;
            if let Some(holding) = holding {
                holding.ready().await.map_err(|DeviceFault| Stopped::Lost)?;
            }
        }
    }

    fn pieces(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = self.piece_bytes;
        (0..len)
            .step_by(step)
            .map(move |start| start..len.min(start + step))
    }

    fn block_at(&self, offset_bytes: u64, piece: &Range<usize>) -> u64 {
        (offset_bytes + piece.start as u64) >> self.block_bytes_log2
    }
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Stopped {
    #[error(transparent)]
    Error(#[from] CommandError),
    /// The namespace is somebody else's by now.
    #[error("the namespace is somebody else's")]
    Lost,
}

/// Runs all of them, some at a time. After the first failure none is begun, and those that were are waited for.
async fn all<F>(mut pieces: impl Iterator<Item = F>) -> Result<(), Stopped>
where
    F: Future<Output = Result<(), Stopped>>,
{
    let mut result = Ok(());
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    let mut driven = pin!(poll_fn(move |cx| {
        loop {
            while result.is_ok()
                && running.len() < PIECES_MAX
                && let Some(piece) = pieces.next()
            {
                running.push(Box::pin(piece));
            }
            let before = running.len();
            running.retain_mut(|piece| match piece.as_mut().poll(cx) {
                Poll::Ready(ended) => {
                    result = result.and(ended);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() && (result.is_err() || before == 0) {
                return Poll::Ready(result);
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    }));
    driven.as_mut().await
}
