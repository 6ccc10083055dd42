//! What readers' adapters may read of this core: the chunks in which copies lie, and the board that says which memory
//! is whose. Each is registered with each adapter, once, when the first reader asks for something there.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use lunette_runtime::arena::{Extent, Region};
use lunette_runtime::{can_spawn, spawn_local};
use lunette_transfer::adapters::Adapter;
use lunette_verbs::{Lent, ReadableExtent, RemoteMemory};

use crate::member::core::MemberCore;

/// Which of our adapters, and where the extent begins.
type Name = (usize, usize);

enum State {
    UnderWay,
    Readable(ReadableExtent),
    /// It is not tried again.
    Refused,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Windows(BTreeMap<Name, State>);

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Of what a window is wanted.
pub(super) struct Wanted<'a> {
    pub(super) core: &'a Rc<MemberCore>,
    pub(super) adapter: (usize, &'a Rc<Adapter>),
    pub(super) windows_max: usize,
}

impl Windows {
    /// What a reader names this byte by. `None` if its extent is not registered: that is begun then.
    pub(super) fn remote(
        &mut self,
        wanted: &Wanted<'_>,
        extent: Extent,
        start: usize,
    ) -> Option<RemoteMemory> {
        self.readable(wanted, extent)?.remote(start)
    }

    /// Memory for a request of ours, as above.
    pub(super) fn lend(&mut self, wanted: &Wanted<'_>, region: Region) -> Option<Lent> {
        self.readable(wanted, region.extent())?.lend(region)
    }

    fn readable(&mut self, wanted: &Wanted<'_>, extent: Extent) -> Option<&ReadableExtent> {
        let (index, adapter) = wanted.adapter;
        let name = (index, extent.start().as_ptr().addr());
        let is_new = !self.0.contains_key(&name);
        if is_new && self.0.len() < wanted.windows_max && can_spawn() {
            self.0.insert(name, State::UnderWay);
            let (core, adapter) = (Rc::clone(wanted.core), Rc::clone(adapter));
            drop(spawn_local(register(core, adapter, name, extent)));
        }
        match self.0.get(&name)? {
            State::Readable(readable) => Some(readable),
            State::UnderWay | State::Refused => None,
        }
    }
}

async fn register(core: Rc<MemberCore>, adapter: Rc<Adapter>, name: Name, extent: Extent) {
    let state = match ReadableExtent::register(adapter.context(), extent).await {
        Ok(readable) => State::Readable(readable),
        Err(error) => {
            let adapter = adapter.name();
            tracing::warn!(%adapter, %error, "copies are not read, nor written, by an adapter");
            State::Refused
        }
    };
    let mut windows = core.pushing().windows.borrow_mut();
    windows.0.insert(name, state);
}
