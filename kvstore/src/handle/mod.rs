//! The store for programs that have no core: asked from any thread.
//!
//! A [`StoreHandle`] leads to clients on cores: those of the program's own node ([`Node::handle`]), cores of
//! their own ([`ClientHost`]), or the one on which a client is ([`ClusterClient::handle`]). Questions
//! travel to a core and their answers back, so a task of a core does better with a [`ClusterClient`] there. Where
//! the program's node has several cores, a question goes to the one that is the key's home, if one is. Which
//! keys there are, and short objects, threads see for themselves, of this node and of others on this host.
//!
//! Memory goes along as [`Lent`]: counted, so it stays until the last operation on it has ended, whatever
//! becomes of who asked.
//!
//! | file | subject |
//! |---|---|
//! | `objects` | puts, gets, lookups, removals |
//! | `bringing` | [`Brought`]: large objects that are copied by who asked |
//! | `placing` | [`Placing`]: the same for puts |
//! | `looking` | [`Looking`]: keys that who asks looks up at homes on other hosts |
//! | `fetching` | [`Fetching`]: objects that who asks gets from them |
//! | `lines`, `round`, `having` | the connections for both and for puts, questions on several of them, and whether they pay |
//! | `handing` | [`Handing`]: puts at other processes of this host and, by `sending`, short ones at other hosts |
//! | `reserving` | [`ReservationHandle`]: objects that are written in ranges |
//! | `lengths` | how long a value is likely to be |
//! | `lent` | [`Lent`]: memory of threads |
//! | `devices` | [`DeviceLent`]: memory of devices |
//! | `landed` | [`LandedHandle`]: memory of threads that owners' adapters write |
//! | `cores` | which core is asked, and how |
//! | `direct` | what needs no core |
//! | `hosted` | what answers on a core |
//! | `host` | [`ClientHost`]: clients on cores of their own |
//!
//! [`Node::handle`]: crate::Node::handle

mod bringing;
mod cores;
mod devices;
mod direct;
mod fetching;
mod handing;
mod having;
mod host;
mod hosted;
mod landed;
mod lengths;
mod lent;
mod lines;
mod looking;
mod objects;
mod placing;
mod reserving;
mod round;
mod sending;

use std::fmt;
use std::sync::Arc;

use lunette_kvstore_proto::message::NodeStat;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::{MeshError, Pending, StartError};
use thiserror::Error;

use crate::cluster_client::ClusterClient;
use crate::error::{ClusterError, StoreError};

pub use bringing::{Brought, ObjectBytes};
pub use cores::QUESTIONS_MAX;
pub(crate) use cores::{Cores, Seated};
pub use devices::DEVICE_STAGING_BYTES_MAX;
pub use direct::SeenBytes;
pub use fetching::{FetchedBytes, Fetching, FetchingBytes};
pub use handing::Handing;
pub use host::ClientHost;
use hosted::Until;
pub use landed::{LandFailure, LandedHandle};
pub use lent::Lent;
pub use looking::Looking;
pub use lunette_transfer::engine::DeviceLent;
pub use objects::Got;
pub use placing::{Placing, ToPut};
pub use reserving::{CommitHandleFailure, ReservationHandle, ReservedHandle};

/// Asks a store, from any thread. Clones ask the same cores; with the last one their clients end.
///
/// What it returns is a future for any executor, or waited for with [`Pending::wait`]. Dropping that ends what
/// only reads, as soon as the core comes to it; writes and removals are done all the same, but for
/// [puts](Self::giving_up). Memory is let go of
/// when the operation has ended.
#[derive(Clone)]
pub struct StoreHandle {
    cores: Arc<Cores>,
    /// How long puts are worked on.
    puts: Until,
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle")
            .field("cores", &self.cores.len())
            .finish_non_exhaustive()
    }
}

impl StoreHandle {
    pub(crate) const fn new(cores: Arc<Cores>) -> Self {
        Self {
            cores,
            puts: Until::Done,
        }
    }

    /// One of the same cores whose puts are given up when their [`Pending`] is dropped, for programs whose people
    /// do not wait. What is given up may have been done, or be done still; its memory is let go of as soon as
    /// what has been handed to a connection has been sent, or the connection has ended.
    #[must_use]
    pub fn giving_up(&self) -> Self {
        Self {
            cores: Arc::clone(&self.cores),
            puts: Until::NobodyWaits,
        }
    }

    /// Each seat's statistics. See [`ClusterClient::stat`].
    ///
    /// # Errors
    /// [`StoreError`], instead of all or of one.
    pub fn stat(&self) -> Pending<Result<Vec<SeatStat>, StoreError>> {
        self.cores.ask(0, cores::failed, |hosted| async move {
            Ok(hosted.client.stat().await)
        })
    }
}

/// What a seat holds and has counted.
pub type SeatStat = (Seat, Result<NodeStat, StoreError>);

impl ClusterClient {
    /// A handle to this client for threads, which are answered on this core.
    ///
    /// # Errors
    /// [`ClusterError::TooManyTasks`].
    pub fn handle(&self) -> Result<StoreHandle, ClusterError> {
        let (cores, mut seated) = Cores::new(1, None, self.tenant().clone(), self.glance());
        let seated = seated.pop().expect("one core");
        seated.begin(self.clone())?;
        Ok(StoreHandle::new(cores))
    }
}

/// Why there is no handle.
#[derive(Debug, Error)]
pub enum HandleError {
    /// The cores for it could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A core has ended.
    #[error(transparent)]
    Core(#[from] MeshError),
    /// A core has no client.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl HandleError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Start(_) | Self::Core(_) => false,
            Self::Cluster(error) => error.is_retryable(),
        }
    }
}
