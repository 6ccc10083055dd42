//! Which adapters are used, and how much of them.

use lunette_verbs::{Context, OpenError, Patience, SetupError, devices};
use rustix::io::Errno;
use thiserror::Error;

/// Which adapters of this machine a core uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// None.
    #[default]
    None,
    /// All that are found when it starts and whose link is up.
    All,
    /// Those of these names.
    Named(Vec<String>),
}

/// Stands for all adapters where people name them.
const ALL: &str = "all";

impl AdapterChoice {
    /// What people mean by names: `all` is all that are there, and no name is none.
    #[must_use]
    pub fn of_names(names: &[String]) -> Self {
        if names.is_empty() {
            Self::None
        } else if names.iter().any(|name| name == ALL) {
            Self::All
        } else {
            Self::Named(names.to_vec())
        }
    }
}

/// What an engine, or a core of the store, may do with RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// With which adapters. One that cannot be used is told ([`Engine::adapters`](crate::engine::Engine::adapters)),
    /// and bytes take the next best way.
    pub adapters: AdapterChoice,
    /// Queue pairs of one adapter to one peer, those that it asked for and those that were asked for alike;
    /// beyond, the peer is told that we are busy, and tries again later. A peer of several cores asks for one per
    /// core and rail.
    pub queue_pairs_max: usize,
    /// Requests that are under way on one queue pair, a power of two.
    pub requests_max: u32,
    /// Extents of memory (chunks of arenas, mappings, memory of others) that are registered with one adapter
    /// for own transfers; the one that was not used for longest makes room.
    pub registrations_max: usize,
    /// Windows in which peers reach segments, one per segment and adapter; what has none is reached over
    /// connections.
    pub windows_max: usize,
    /// Whether notifications, and requests of the store that bring no bytes, go by messages, over queue pairs that are
    /// there anyway, where both sides let them; else they go over connections, as all do where there is no queue pair.
    /// Their memory is 2 MiB of each adapter and core of an engine.
    pub messages: bool,
    /// How stubborn queue pairs are. A rail on which nothing comes through is given up sooner
    /// ([`SchedulerOptions::stall`](crate::engine::SchedulerOptions::stall)).
    pub patience: Patience,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            adapters: AdapterChoice::None,
            queue_pairs_max: 4,
            requests_max: 128,
            registrations_max: 256,
            windows_max: 4096,
            messages: true,
            patience: Patience::default(),
        }
    }
}

/// Why an adapter is not used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdapterFault {
    /// It was not opened; [`OpenError::Unavailable`] where there is no RDMA at all.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It was opened, and does not do what is needed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Its link is down.
    #[error("its link is down")]
    LinkDown,
    /// It is iWARP, where a write that is done need not have arrived.
    #[error("iWARP: a write that is done need not have arrived")]
    Iwarp,
    /// What goes over connections is to be sealed, and adapters do not.
    #[error("bytes are to be sealed, and adapters do not")]
    Sealed,
    /// There are more than can be used.
    #[error("too many adapters")]
    TooMany,
}

impl From<Errno> for AdapterFault {
    fn from(error: Errno) -> Self {
        Self::Setup(SetupError::Refused(error))
    }
}

/// An adapter that was asked for, and whether it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStatus {
    /// Its name; `-` where none could be had.
    pub name: String,
    /// Why it is not used; `None` if it is.
    pub fault: Option<AdapterFault>,
}

type Opened = (Option<String>, Result<Context, OpenError>);

/// Opens what was chosen.
pub(super) fn open(choice: &AdapterChoice) -> Vec<Opened> {
    let names = match choice {
        AdapterChoice::None => return Vec::new(),
        AdapterChoice::Named(names) => names.clone(),
        AdapterChoice::All => match devices() {
            Ok(names) => names,
            Err(unavailable) => return vec![(None, Err(OpenError::Unavailable(unavailable)))],
        },
    };
    let opened = |name: String| {
        let opened = Context::open(&name);
        (Some(name), opened)
    };
    names.into_iter().map(opened).collect()
}
