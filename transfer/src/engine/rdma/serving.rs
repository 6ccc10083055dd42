//! The answering side.

use std::rc::{Rc, Weak};
use std::sync::Arc;

use futures_channel::oneshot;
use lunette_runtime::spawn_local;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::one_sided::{Pairing, Window};
use lunette_transfer_proto::engine::segment::{Access, SegmentId, Way};
use lunette_verbs::{Access as Rights, ExposedWindow};

use super::super::Inner;
use super::super::peer::asking_peer;
use super::super::registry::Content;
use super::super::siblings::{Hosted, Presences, answer_in_task};
use super::acceptor::Made;
use super::{AnyWindow, Counted, CountedWindow};
use crate::adapters::Adapter;

/// What adapters let peers do.
const fn rights(access: Access) -> Rights {
    Rights {
        remote_read: access.allows(Way::Read),
        remote_write: access.allows(Way::Write),
        remote_atomic: false,
        relaxed_ordering: false,
    }
}

/// Who asks for a queue pair, and what its machine says.
#[derive(Debug)]
pub(in crate::engine) struct Asks {
    pub(in crate::engine) session: u64,
    /// What it calls the connection.
    pub(in crate::engine) connection: u64,
    /// Which of our adapters.
    pub(in crate::engine) adapter: u16,
    pub(in crate::engine) message: Vec<u8>,
    /// Whether it is to be heard what comes over the queue pair.
    pub(in crate::engine) tells: bool,
}

impl Inner {
    /// How many adapters peers may connect to.
    pub(in crate::engine) fn served_adapters(&self) -> usize {
        let serving = self.alive.siblings().serving();
        serving.map_or(0, |(_, adapters)| adapters)
    }

    /// The core whose adapters peers connect to; `None` if it is this one.
    fn served_elsewhere(&self) -> Result<Option<usize>, Refusal> {
        let serving = self.alive.siblings().serving();
        let (core, _) = serving.ok_or(Refusal::Elsewhere)?;
        Ok((core != self.alive.core()).then_some(core))
    }

    /// A step of a handshake, at whichever core serves.
    pub(in crate::engine) async fn pair(self: Rc<Self>, asks: Asks) -> Result<Vec<u8>, Refusal> {
        let Some(core) = self.served_elsewhere()? else {
            return self.pair_here(&asks);
        };
        let step = move |hosted: &Rc<Hosted>, sender: oneshot::Sender<_>| {
            // Nobody waits any more: then nobody is told.
            drop(sender.send(hosted.inner.pair_here(&asks)));
        };
        let asked = self.alive.siblings().ask(core, step).await;
        // It has ended: another one serves when it is tried again.
        asked.answer().await.unwrap_or(Err(Refusal::Busy))
    }

    fn pair_here(&self, asks: &Asks) -> Result<Vec<u8>, Refusal> {
        let adapter = self.rdma.adapters().get(usize::from(asks.adapter));
        let adapter = adapter.ok_or(Refusal::Elsewhere)?;
        // Who has no connection any more has nothing that would end its queue pair.
        let asker = (asks.session, asking_peer(asks.connection));
        let asker = self.alive.siblings().presences.find(asker);
        let asker = asker.ok_or(Refusal::Session)?;
        let telling = self.rdma.telling(asks.adapter.into());
        let telling = telling.filter(|_| asks.tells);
        if asks.tells && telling.is_none() {
            return Err(Refusal::Elsewhere);
        }
        let options = &self.options.rdma;
        let pairing = Pairing {
            connection: asks.connection,
            adapter: asks.adapter,
            message: &asks.message,
        };
        let made = Made {
            adapter,
            messages: telling.map(|telling| telling.messages()),
            queue_pairs_max: options.queue_pairs_max,
            patience: options.patience,
        };
        let acceptor = self.rdma.acceptor();
        acceptor.step(&made, (asks.session, asker), pairing)
    }

    /// Ends the queue pairs of those who have no connection to any core any more, as long as this one runs.
    pub(in crate::engine) async fn end_queue_pairs(inner: Weak<Self>, presences: Arc<Presences>) {
        let mut gone = 0;
        loop {
            gone = presences.more_gone_than(gone).await;
            let Some(inner) = inner.upgrade() else {
                return;
            };
            inner.rdma.acceptor().sweep();
        }
    }

    /// Where adapters reach a segment, once that has been registered with them, at whichever core serves.
    ///
    /// # Errors
    /// [`Refusal::NoCapability`] of one that is reached by capability: a key would be good for whoever guesses
    /// it. [`Refusal::Elsewhere`] of a file, or where nothing can be registered.
    pub(in crate::engine) async fn windows(
        self: Rc<Self>,
        segment: SegmentId,
    ) -> Result<Vec<Window>, Refusal> {
        let Some(core) = self.served_elsewhere()? else {
            return self.windows_here(segment).await;
        };
        let find = move |hosted: &Rc<Hosted>, sender: oneshot::Sender<_>| {
            let found = Rc::clone(&hosted.inner).windows_here(segment);
            answer_in_task(
                sender,
                || Err(Refusal::Busy),
                |sender| async move { drop(sender.send(found.await)) },
            );
        };
        let asked = self.alive.siblings().ask(core, find).await;
        asked.answer().await.unwrap_or(Err(Refusal::Busy))
    }

    async fn windows_here(self: Rc<Self>, segment: SegmentId) -> Result<Vec<Window>, Refusal> {
        let adapters = self.rdma.adapters().to_vec();
        for (index, adapter) in (0..).zip(adapters) {
            // Checked again each time: meanwhile it may have been unregistered.
            if self.registry.borrow().has_window(segment, index)? {
                continue;
            }
            let registering = Rc::clone(&self).register_window(segment, index, adapter);
            // It is to end also if nobody waits for it any more.
            let registered = spawn_local(registering).await;
            registered.unwrap_or(Err(Refusal::Busy))?;
        }
        self.registry.borrow().windows(segment)
    }

    async fn register_window(
        self: Rc<Self>,
        segment: SegmentId,
        index: u16,
        adapter: Rc<Adapter>,
    ) -> Result<(), Refusal> {
        let windows_max = self.options.rdma.windows_max;
        let count = Counted::new(&self.rdma.windows, windows_max).ok_or(Refusal::Busy)?;
        let (content, access, in_use) = self.registry.borrow().exposed(segment)?;
        let (context, rights) = (adapter.context(), rights(access));
        let window = match content {
            Content::Memory(memory) => ExposedWindow::register(context, memory, rights)
                .await
                .map(AnyWindow::Memory),
            Content::Device(device) => {
                let registered = device.register(context, rights).await;
                registered.map(AnyWindow::Device)
            }
            Content::File(_) | Content::Namespace(_) => return Err(Refusal::Elsewhere),
        };
        match window {
            Ok(window) => {
                let counted = CountedWindow {
                    window,
                    _count: count,
                };
                self.registry.borrow().put_window(segment, index, counted);
            }
            Err(error) => {
                tracing::warn!(%segment, %error, "a segment is not reached by an adapter");
            }
        }
        drop(in_use);
        Ok(())
    }
}
