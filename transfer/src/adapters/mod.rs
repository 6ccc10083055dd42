//! The RDMA adapters of one core: opened, and what is registered with them for its own requests.
//!
//! An [`Adapter`] belongs to its core, with a completion queue that the core's loop polls. Memory is registered
//! with it by whole extents (a chunk of an arena, a mapping, memory of somebody else), when it is first wanted,
//! on the control thread, once and in bounded number. Who is at the other end of a queue pair, and what goes over
//! it, is the business of those who make it: the [`engine`](crate::engine), for which queue pairs are rails
//! between memories, and the store, whose owners push objects over them.
//!
//! | module | subject |
//! |---|---|
//! | `options` | [`RdmaOptions`], [`AdapterChoice`] |
//! | `adapter` | [`Adapter`]: queue pairs, and what is registered |
//! | `messages` | [`Messages`]: receives that queue pairs share, and memory to send from |
//! | `asked` | [`Asked`]: requests by messages, over a queue pair |
//! | `waiting` | tasks that wait until something has changed |

mod adapter;
mod asked;
mod messages;
mod options;
mod waiting;

use std::rc::Rc;

use lunette_transfer_proto::engine::one_sided::ADAPTERS_MAX;
pub use lunette_verbs::devices;
use lunette_verbs::{Context, OpenError};

pub use adapter::Adapter;
pub use asked::{ASKED_MAX, Answered, Asked, AskedFault, Asking, Lost};
pub use messages::{Heard, Messages};
pub use options::{AdapterChoice, AdapterFault, AdapterStatus, RdmaOptions};
pub(crate) use waiting::Waiting;

/// The adapters of a core, by number, and what became of those that were asked for.
#[derive(Debug, Default)]
pub struct Adapters {
    adapters: Vec<Rc<Adapter>>,
    status: Vec<AdapterStatus>,
}

impl Adapters {
    /// Opens what is to be used, as far as that is there, besides those that the program has opened on this core.
    /// What is not there is told ([`status`](Self::status)), and does without. None is used where bytes are to be
    /// sealed: adapters seal nothing.
    #[must_use]
    pub fn open(options: &RdmaOptions, is_sealed: bool, given: Vec<Context>) -> Self {
        let mut adapters = Self::default();
        let given = given.into_iter().map(|context| (None, Ok(context)));
        let named = options::open(&options.adapters);
        for (name, opened) in given.chain(named) {
            adapters.add(name, opened, options, is_sealed);
        }
        adapters
    }

    fn add(
        &mut self,
        name: Option<String>,
        opened: Result<Context, OpenError>,
        options: &RdmaOptions,
        is_sealed: bool,
    ) {
        let adapter = match opened {
            Err(error) => Err(AdapterFault::from(error)),
            Ok(_) if is_sealed => Err(AdapterFault::Sealed),
            Ok(_) if self.adapters.len() >= ADAPTERS_MAX => Err(AdapterFault::TooMany),
            Ok(context) => Adapter::new(context, options),
        };
        let name = match &adapter {
            Ok(adapter) => adapter.name().to_owned(),
            Err(_) => name.unwrap_or_else(|| "-".to_owned()),
        };
        if let Err(fault) = &adapter {
            tracing::warn!(%name, %fault, "an adapter is not used");
        }
        let fault = match adapter {
            Ok(adapter) => {
                self.adapters.push(Rc::new(adapter));
                None
            }
            Err(fault) => Some(fault),
        };
        self.status.push(AdapterStatus { name, fault });
    }

    /// Those that are used: at most [`ADAPTERS_MAX`].
    #[must_use]
    pub fn all(&self) -> &[Rc<Adapter>] {
        &self.adapters
    }

    /// Those that were asked for, in their order, and which of them is not used, and why.
    #[must_use]
    pub fn status(&self) -> &[AdapterStatus] {
        &self.status
    }
}
