//! Memory that owners may write and read, since the program said so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{PLACES_MAX, PushPlace};
use lunette_runtime::arena::{Exposed, Extent};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;
use lunette_transfer::adapters::Adapter;
use lunette_verbs::{Access, ExposedWindow};
use thiserror::Error;

use super::direct::Place;

/// What peers may do.
const REACHED: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: false,
    relaxed_ordering: false,
};

/// Values that could not be read one after the other, until their memory rests.
const FAILURES_MAX: u32 = 3;
/// For how long.
const REST: Duration = Duration::from_secs(10);

/// There is as much memory as there may be that owners reach
/// ([`RdmaOptions::windows_max`](lunette_transfer::adapters::RdmaOptions::windows_max)), or it begins where other
/// such memory does.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("there are {landings_max} pieces of memory that owners reach, or one that begins there")]
pub struct TooManyLandings {
    /// How many there may be.
    pub landings_max: usize,
}

/// Memory into which owners' adapters write what is got, and where they read what is put: see
/// [`ClusterClient::land`](super::super::ClusterClient::land). When it is dropped, no get begins to be written there any more; those that are under way end first, and keep the
/// memory until then.
pub struct Landing {
    landings: Rc<Landings>,
    start: usize,
    adapters: usize,
}

impl Landing {
    /// With how many adapters it is registered. What others would bring is sent.
    #[must_use]
    pub const fn adapters(&self) -> usize {
        self.adapters
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({:#x}, {} adapters)", self.start, self.adapters)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let gone = self.landings.all.borrow_mut().remove(&self.start);
        drop(gone);
    }
}

/// What makes a place so that owners write it, for as long as they may.
pub(super) enum Window {
    Host(#[expect(dead_code, reason = "it is there to be dropped")] Rc<ExposedWindow>),
    Device(#[expect(dead_code, reason = "it is there to be dropped")] Rc<Place>),
}

/// One piece of such memory.
struct Landed {
    memory: Exposed,
    /// By our adapters.
    windows: Vec<Option<Rc<ExposedWindow>>>,
    /// Values in it that could not be read, one after the other.
    failures: Cell<u32>,
    /// Until then nothing of it is read.
    rests_until: Cell<Time>,
}

impl Landed {
    /// Where in it a piece lies; `None` if it does not.
    fn offset_of(&self, piece: &Exposed) -> Option<u64> {
        let offset = piece.start().checked_sub(self.memory.start())?;
        (offset + piece.len() <= self.memory.len()).then_some(offset as u64)
    }
}

/// All of it, by where it begins.
pub(super) struct Landings {
    all: RefCell<BTreeMap<usize, Landed>>,
    landings_max: usize,
}

impl Landings {
    pub(super) fn new(landings_max: usize) -> Self {
        Self {
            all: RefCell::default(),
            landings_max,
        }
    }

    /// Registers memory with these adapters. What one of them refuses, it does without.
    pub(super) async fn land(
        self: &Rc<Self>,
        memory: Exposed,
        adapters: impl Iterator<Item = Rc<Adapter>>,
    ) -> Result<Landing, TooManyLandings> {
        let landings_max = self.landings_max;
        let mut windows = Vec::new();
        for adapter in adapters {
            let window = ExposedWindow::register(adapter.context(), memory.clone(), REACHED).await;
            let name = adapter.name();
            let refused =
                |error: &_| tracing::warn!(%name, %error, "memory is not written by adapters");
            windows.push(window.inspect_err(refused).ok().map(Rc::new));
        }
        let start = memory.start();
        let count = windows.iter().flatten().count();
        let mut all = self.all.borrow_mut();
        if all.len() >= landings_max || all.contains_key(&start) {
            return Err(TooManyLandings { landings_max });
        }
        let landed = Landed {
            memory,
            windows,
            failures: Cell::new(0),
            rests_until: Cell::new(Time::ZERO),
        };
        all.insert(start, landed);
        Ok(Landing {
            landings: Rc::clone(self),
            start,
            adapters: count,
        })
    }

    /// The extent of landed memory in which these bytes lie: it stays for as long as that does, also where each get comes
    /// with a handle of its own, as those of threads do.
    pub(super) fn extent_of(&self, start: usize, len: usize) -> Option<Extent> {
        let all = self.all.borrow();
        let (_, landed) = all.range(..=start).next_back()?;
        let extent = landed.memory.extent();
        extent.covers(start, len).then_some(extent)
    }

    /// How an owner names a room to reach it by this adapter, and what makes it so; `None` if not all of it is.
    pub(super) fn places(
        &self,
        room: &Room,
        adapter: usize,
    ) -> Option<(Vec<PushPlace>, Vec<Window>)> {
        let pieces: Vec<&Exposed> = room.pieces()?.iter().collect();
        self.named(&pieces, adapter, |_landed| true)
    }

    /// How an owner names a value that lies in these pieces to read it by this adapter, and what makes it so; `None` if
    /// not all of it is, or some rests.
    pub(super) fn values(
        &self,
        pieces: &[&Exposed],
        adapter: usize,
    ) -> Option<(Vec<PushPlace>, Vec<Window>)> {
        let now = time::now();
        let is_read = |landed: &Landed| landed.rests_until.get() <= now;
        self.named(pieces, adapter, is_read)
    }

    /// A value at these places has been read, or could not be: after some that could not be, nothing there is for a while.
    pub(super) fn has_been_read(&self, places: &[PushPlace], is_read: bool) {
        let all = self.all.borrow();
        for place in places {
            let start = usize::try_from(place.address).unwrap_or(usize::MAX);
            let Some((_, landed)) = all.range(..=start).next_back() else {
                continue;
            };
            let failures = if is_read {
                0
            } else {
                landed.failures.get() + 1
            };
            landed.failures.set(failures % FAILURES_MAX);
            if failures == FAILURES_MAX {
                landed.rests_until.set(time::now() + REST);
            }
        }
    }

    fn named(
        &self,
        pieces: &[&Exposed],
        adapter: usize,
        may_be: impl Fn(&Landed) -> bool,
    ) -> Option<(Vec<PushPlace>, Vec<Window>)> {
        if pieces.len() > PLACES_MAX {
            return None;
        }
        let all = self.all.borrow();
        let mut places = Vec::with_capacity(pieces.len());
        let mut windows = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (landed, offset) = find(&all, piece)?;
            if !may_be(landed) {
                return None;
            }
            let window = landed.windows.get(adapter)?.as_ref()?;
            let remote = window.remote().at(offset);
            places.push(PushPlace {
                address: remote.address,
                key: remote.rkey,
                len_bytes: u32::try_from(piece.len()).ok()?,
            });
            windows.push(Window::Host(Rc::clone(window)));
        }
        Some((places, windows))
    }

    /// How an owner names a place on a device to reach it by this adapter; `None` if that does not reach it.
    pub(super) fn place_on(
        &self,
        place: &Rc<Place>,
        adapter: usize,
    ) -> Option<(Vec<PushPlace>, Vec<Window>)> {
        let remote = place.remote(adapter)?;
        let named = PushPlace {
            address: remote.address,
            key: remote.rkey,
            len_bytes: u32::try_from(place.len()).ok()?,
        };
        Some((vec![named], vec![Window::Device(Rc::clone(place))]))
    }
}

/// The memory in which a piece lies, and where.
fn find<'a>(all: &'a BTreeMap<usize, Landed>, piece: &Exposed) -> Option<(&'a Landed, u64)> {
    let (_, landed) = all.range(..=piece.start()).next_back()?;
    Some((landed, landed.offset_of(piece)?))
}
