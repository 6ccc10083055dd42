//! Transfers from any thread.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_channel::oneshot;
use lunette_runtime::{can_spawn, spawn_local};
use lunette_transfer_proto::engine::segment::{SegmentId, Way};

use super::super::batch::{Batch, PostOptions};
use super::super::grants::Token;
use super::super::peer::{Peer, RemoteSegment};
use super::super::posted::{Done, Transfer};
use super::super::registry::Own;
use super::super::siblings::{Hosted, Load, NotAnswered};
use super::super::statistics::RailStatistics;
use super::answer::{Answered, HandleError, Pending};
use super::handle::{EngineHandle, Opened, full};
use super::parts;
use super::spread::spread;

/// A peer that a hosted engine has opened. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct PeerHandle {
    pub(super) engine: EngineHandle,
    pub(super) slots: Arc<Slots>,
}

/// Where each core keeps its connections to the peer.
#[derive(Debug)]
pub(super) struct Slots {
    engine: EngineHandle,
    /// By core.
    at: Vec<Option<usize>>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (core, index) in self.at.iter().enumerate() {
            let Some(index) = *index else {
                continue;
            };
            let forget = move |hosted: &Rc<Hosted>| {
                let peer = hosted.peers.borrow_mut().try_remove(index);
                drop(peer);
            };
            // If the core is gone, so is the peer; if it is busy, the peer stays until it ends.
            let _asked = self.engine.siblings.ask_any([core], Box::new(forget));
        }
    }
}

/// One request of a thread's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleRequest {
    /// Which way its bytes go.
    pub way: Way,
    /// The segment of this engine in which they lie, or are to lie.
    pub local: SegmentId,
    /// Where in it.
    pub local_offset_bytes: u64,
    /// How many.
    pub len_bytes: u64,
    /// The peer's segment.
    pub remote: RemoteSegment,
    /// Where in that.
    pub remote_offset_bytes: u64,
}

impl PeerHandle {
    /// The peer as each core has opened it; those that could not are left out, unless none could.
    pub(super) fn of(
        engine: EngineHandle,
        opened: Vec<Result<Opened, NotAnswered>>,
    ) -> Answered<Self> {
        let mut at = vec![None; opened.len()];
        let mut others = vec![None; opened.len()];
        let mut first = None;
        let mut failure = HandleError::Ended;
        for (core, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(Ok((index, epoch))) if *first.get_or_insert(epoch) == epoch => {
                    at[core] = Some(index);
                }
                // Another engine has come in its place in between.
                Ok(Ok((index, _))) => others[core] = Some(index),
                Ok(Err(error)) => {
                    tracing::debug!(%error, core, "a core has not reached the peer");
                    failure = error;
                }
                Err(NotAnswered::Ended) => {}
                Err(full) => failure = full.into(),
            }
        }
        drop(Slots {
            engine: engine.clone(),
            at: others,
        });
        if first.is_none() {
            return Err(failure);
        }
        let slots = Slots {
            engine: engine.clone(),
            at,
        };
        Ok(Self {
            engine,
            slots: Arc::new(slots),
        })
    }

    /// The cores from which it is reached, and what each has to move already.
    fn loads(&self) -> Vec<(usize, u64)> {
        let members = self.engine.siblings.members().iter().enumerate();
        let there = members.filter(|(core, member)| {
            let is_alone = !self.engine.siblings.are_several();
            self.slots.at[*core].is_some() && (is_alone || !member.ended.is_raised())
        });
        there
            .map(|(core, member)| (core, member.load_bytes.load(Ordering::Relaxed)))
            .collect()
    }

    /// Asks the peer from every core that reaches it, and answers as the first of them. All of them know then.
    fn ask_each<T: Send + 'static, F: Future<Output = Answered<T>> + 'static>(
        &self,
        question: impl Fn(Peer) -> F + Clone + Send + 'static,
    ) -> Pending<T> {
        let (siblings, slots) = (Arc::clone(&self.engine.siblings), Arc::clone(&self.slots));
        self.engine.ask_for(move |_| async move {
            let answers = siblings.ask_each(|core| {
                let (question, index) = (question.clone(), slots.at[core]);
                move |hosted: Rc<Hosted>| async move {
                    let peer = peer_at(&hosted, index)?;
                    question(peer).await
                }
            });
            let answers = answers.await.into_iter();
            let answers = answers.filter_map(|answer| match answer {
                Ok(answer) => Some(answer),
                Err(NotAnswered::Ended) => None,
                Err(full) => Some(Err(full.into())),
            });
            let missing = |answer: &Answered<T>| matches!(answer, Err(HandleError::Gone));
            let (missing, mut answers): (Vec<_>, Vec<_>) = answers.partition(missing);
            match answers.iter().position(Result::is_ok) {
                Some(at) => answers.swap_remove(at),
                None => {
                    let mut failures = answers.into_iter().chain(missing);
                    failures.next().unwrap_or(Err(HandleError::Ended))
                }
            }
        })
    }

    /// Opens the segment of a name. See [`Peer::segment`].
    #[must_use]
    pub fn segment(&self, name: &str) -> Pending<RemoteSegment> {
        let name: Arc<str> = name.into();
        self.ask_each(move |peer| {
            let name = Arc::clone(&name);
            async move { Ok(peer.segment(&name).await?) }
        })
    }

    /// Opens the segment in which a range of the peer's addresses lies, and says where in it. See
    /// [`Peer::segment_at`].
    #[must_use]
    pub fn segment_at(&self, start: u64, len_bytes: u64) -> Pending<(RemoteSegment, u64)> {
        self.ask_each(move |peer| async move { Ok(peer.segment_at(start, len_bytes).await?) })
    }

    /// Opens what a capability is for. See [`Peer::redeem`].
    #[must_use]
    pub fn redeem(&self, token: Token) -> Pending<RemoteSegment> {
        self.ask_each(move |peer| async move { Ok(peer.redeem(&token).await?) })
    }

    /// What is known of its rails: those of the engine's first core, then those of the next.
    #[must_use]
    pub fn rails(&self) -> Pending<Vec<RailStatistics>> {
        let (siblings, slots) = (Arc::clone(&self.engine.siblings), Arc::clone(&self.slots));
        self.engine.ask_for(move |_| async move {
            let rails = siblings.ask_each(|core| {
                let index = slots.at[core];
                move |hosted: Rc<Hosted>| async move {
                    peer_at(&hosted, index).map_or_else(|_| Vec::new(), |peer| peer.rails())
                }
            });
            Ok(rails.await.into_iter().flatten().flatten().collect())
        })
    }

    /// Posts a batch. See [`Peer::post`]. It goes over the core that has least to move, or, if it is long, over
    /// several, a part each; its notification follows when all of them are done.
    #[must_use]
    pub fn post(&self, requests: Vec<HandleRequest>, options: PostOptions) -> Pending<Done> {
        let loads = self.loads();
        let total = requests.iter().map(|request| request.len_bytes);
        let total = total.fold(0, u64::saturating_add);
        let shares = spread(&loads, total);
        match *shares {
            [] => Pending::ready(Err(HandleError::Gone)),
            [(core, bytes)] => self.post_on(core, bytes, requests, options),
            _ => parts::post(self, &shares, requests, options),
        }
    }

    /// Posts a batch over one core.
    pub(super) fn post_on(
        &self,
        core: usize,
        bytes: u64,
        requests: Vec<HandleRequest>,
        options: PostOptions,
    ) -> Pending<Done> {
        let load = Load::new(&self.engine.siblings, core, bytes);
        let index = self.slots.at[core];
        self.engine.put([core], move |hosted, sender| {
            // Whoever is told so relies on nothing having been posted.
            if !can_spawn() {
                drop(sender.send(full()));
                return;
            }
            match post_here(hosted, index, &requests, options) {
                Ok(transfer) => drop(spawn_local(answer(transfer, sender, load))),
                // Nobody waits any more: then nobody is told.
                Err(error) => drop(sender.send(Err(error))),
            }
        })
    }

    /// Where a core keeps its connections to the peer.
    pub(super) fn at(&self, core: usize) -> Option<usize> {
        self.slots.at[core]
    }
}

/// Waits for a transfer, and cancels it when nobody waits for the answer any more.
async fn answer(transfer: Transfer, mut sender: oneshot::Sender<Answered<Done>>, load: Load) {
    let mut transfer = pin!(transfer);
    let result = std::future::poll_fn(|cx| {
        if sender.poll_canceled(cx).is_ready() {
            transfer.cancel();
        }
        transfer.as_mut().poll(cx)
    })
    .await;
    drop(load);
    drop(sender.send(result.map_err(HandleError::Transfer)));
}

pub(super) fn peer_at(hosted: &Hosted, index: Option<usize>) -> Answered<Peer> {
    let index = index.ok_or(HandleError::Gone)?;
    let peers = hosted.peers.borrow();
    peers.get(index).cloned().ok_or(HandleError::Gone)
}

/// The batch that a thread has described.
pub(super) fn batch(hosted: &Hosted, requests: &[HandleRequest]) -> Answered<Batch> {
    let mut batch = Batch::new();
    let registry = hosted.inner.registry.borrow();
    for asked in requests {
        let (local, at) = (asked.local, asked.local_offset_bytes);
        let (remote, offset_bytes) = (&asked.remote, asked.remote_offset_bytes);
        let own = registry.own(local, at, asked.len_bytes);
        match (asked.way, own.ok_or(HandleError::NoMemory)?) {
            (Way::Read, Own::Memory(local)) => batch.read(local, remote, offset_bytes)?,
            (Way::Write, Own::Memory(local)) => batch.write(local, remote, offset_bytes)?,
            (Way::Read, Own::Device(local)) => batch.read_device(&local, remote, offset_bytes)?,
            (Way::Write, Own::Device(local)) => batch.write_device(&local, remote, offset_bytes)?,
        }
    }
    Ok(batch)
}

pub(super) fn post_here(
    hosted: &Hosted,
    index: Option<usize>,
    requests: &[HandleRequest],
    options: PostOptions,
) -> Answered<Transfer> {
    let batch = batch(hosted, requests)?;
    Ok(peer_at(hosted, index)?.post(&batch, options)?)
}
