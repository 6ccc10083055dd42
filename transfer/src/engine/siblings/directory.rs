//! What is registered at all cores of an engine of several: once here, which gives the id, and then at each.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_channel::oneshot;
use lunette_runtime::arena::SharedMemory;
use lunette_transfer_proto::engine::segment::{RegisterRefusal, Registration, SegmentId, Segments};

use super::super::registry::{RegisterOptions, first_epoch};
use super::jobs::Hosted;
use super::{Member, Siblings};

#[derive(Debug, Default)]
struct State {
    segments: Segments<()>,
    /// Those that are being taken away: their names and addresses are free when every core has done so.
    leaving: BTreeSet<SegmentId>,
}

/// What all cores have registered, or are about to.
#[derive(Debug, Default)]
pub(in crate::engine) struct Directory(Mutex<State>);

impl Directory {
    fn state(&self) -> MutexGuard<'_, State> {
        // A core that fails does not fail in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a segment its id.
    pub(super) fn register(
        &self,
        options: &RegisterOptions,
        start: Option<u64>,
        len_bytes: u64,
    ) -> Result<SegmentId, RegisterRefusal> {
        let registration = Registration {
            name: options.name.as_deref().map(str::as_bytes),
            start: start.filter(|_| options.by_address),
            len_bytes,
            access: options.access,
        };
        let registered = self.state().segments.register(&registration, ());
        registered.map_err(|(refusal, ())| refusal)
    }

    /// False if there is no such segment, or if it is leaving already.
    fn begin_to_leave(&self, id: SegmentId) -> bool {
        let mut state = self.state();
        state.segments.get(id).is_some() && state.leaving.insert(id)
    }
}

/// A segment that is being taken away, until no core has it any more.
struct Leaving {
    siblings: Arc<Siblings>,
    id: SegmentId,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.siblings.directory.state();
        state.leaving.remove(&self.id);
        state.segments.unregister(self.id);
    }
}

impl Siblings {
    /// Registers memory at every core. Returns when it is reached from each of them.
    pub(in crate::engine) async fn register(
        &self,
        memory: &SharedMemory,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterRefusal> {
        let (start, len_bytes) = (memory.start() as u64, memory.len() as u64);
        let id = self.directory.register(options, Some(start), len_bytes)?;
        let epoch = first_epoch(options);
        let mut asked = Vec::new();
        for core in 0..self.members.len() {
            let (memory, options, epoch) = (memory.clone(), options.clone(), epoch.clone());
            let adopt = move |hosted: &Rc<Hosted>, sender: oneshot::Sender<()>| {
                let inner = &hosted.inner;
                let exposed = memory.here(inner.alive.kept());
                let mut registry = inner.registry.borrow_mut();
                registry.adopt(id, exposed, &options, epoch);
                // Nobody waits any more: then nobody is told.
                let _told = sender.send(());
            };
            asked.push(self.ask(core, adopt).await);
        }
        for asked in asked {
            // A core that has ended reaches nothing.
            asked.answer().await;
        }
        Ok(id)
    }

    /// Takes a segment away from every core. Returns when no access to it is under way at any of them; false
    /// if there is none.
    pub(in crate::engine) async fn unregister(self: &Arc<Self>, id: SegmentId) -> bool {
        if !self.directory.begin_to_leave(id) {
            return false;
        }
        let leaving = Arc::new(Leaving {
            siblings: Arc::clone(self),
            id,
        });
        let mut asked: Vec<(&Member, _)> = Vec::new();
        for (core, member) in self.members.iter().enumerate() {
            let leaving = Arc::clone(&leaving);
            let take_away = move |hosted: &Rc<Hosted>, sender| {
                let unregistered = hosted.inner.take_out(id);
                drop(leaving);
                let unregistered = unregistered.expect("what is in the directory is at every core");
                unregistered.tell_unused(sender);
            };
            asked.push((member, self.ask(core, take_away).await));
        }
        drop(leaving);
        for (member, asked) in asked {
            if asked.answer().await.is_none() {
                member.ended.raised().await;
            }
        }
        true
    }
}
