//! The answering side.

use std::rc::Rc;

use lunette_runtime::spawn_local;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::one_sided::{Pairing, Window};
use lunette_transfer_proto::engine::segment::{Access, SegmentId, Way};
use lunette_verbs::{Access as Rights, ExposedWindow};

use super::super::Inner;
use super::{Adapter, Counted, CountedWindow};

/// What adapters let peers do.
const fn rights(access: Access) -> Rights {
    Rights {
        remote_read: access.allows(Way::Read),
        remote_write: access.allows(Way::Write),
        remote_atomic: false,
        relaxed_ordering: false,
    }
}

impl Inner {
    /// The adapters that peers may connect to. Queue pairs and windows are of one core, and who asks cannot
    /// choose which one answers, so an engine of several has none for them.
    pub(in crate::engine) fn served_adapters(&self) -> &[Rc<Adapter>] {
        if self.alive.siblings().are_several() {
            &[]
        } else {
            self.rdma.adapters()
        }
    }

    /// A step of a handshake, for a peer of that session.
    pub(in crate::engine) fn pair(
        &self,
        session: u64,
        pairing: Pairing<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let adapters = self.served_adapters();
        let adapter = adapters.get(usize::from(pairing.adapter));
        let adapter = adapter.ok_or(Refusal::Elsewhere)?;
        let options = &self.options.rdma;
        let acceptor = self.rdma.acceptor();
        let (most, patience) = (options.queue_pairs_max, options.patience);
        acceptor.step(adapter, session, pairing, most, patience)
    }

    /// Where adapters reach a segment, once that has been registered with them.
    ///
    /// # Errors
    /// [`Refusal::NoCapability`] of one that is reached by capability: a key would be good for whoever guesses
    /// it. [`Refusal::Elsewhere`] of a file, or where nothing can be registered.
    pub(in crate::engine) async fn windows(
        self: Rc<Self>,
        segment: SegmentId,
    ) -> Result<Vec<Window>, Refusal> {
        let adapters = self.served_adapters().to_vec();
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
        let (memory, access, in_use) = self.registry.borrow().exposed(segment)?;
        let window = ExposedWindow::register(adapter.context(), memory, rights(access)).await;
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
