//! Memory of threads that owners' adapters write.

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use lunette_runtime::Pending;
use thiserror::Error;

use super::StoreHandle;
use super::cores::Cores;
use super::hosted::Hosted;
use super::lent::Lent;
use crate::cluster_client::TooManyLandings;
use crate::error::{StoreError, StoreErrorKind};

/// Why memory is not landed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LandFailure {
    /// There is as much of it as there may be, or some that begins there.
    #[error(transparent)]
    TooMany(#[from] TooManyLandings),
    /// A core was not asked, or has ended.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Memory into which owners' adapters write what is got, as [`Landing`](crate::Landing), at each core of a handle. When
/// it is dropped, no get begins to be written there any more, as soon as the cores come to it; those that are under way
/// end first, and keep the memory until then.
pub struct LandedHandle {
    cores: Weak<Cores>,
    /// Cores keep what they have registered for as long as this is somebody's.
    wanted: Option<Arc<()>>,
    adapters: usize,
}

impl LandedHandle {
    /// With how many adapters it is registered, those of all cores together. What others would bring is sent.
    #[must_use]
    pub const fn adapters(&self) -> usize {
        self.adapters
    }
}

impl fmt::Debug for LandedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LandedHandle({} adapters)", self.adapters)
    }
}

impl Drop for LandedHandle {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(cores) = self.cores.upgrade() {
            cores.look_again();
        }
    }
}

impl StoreHandle {
    /// Lets owners' adapters write what is got into this memory, or parts of it. See
    /// [`ClusterClient::land`](crate::ClusterClient::land). Where no core has adapters, and if it
    /// is a device's, it is registered with none.
    ///
    /// # Errors
    /// [`LandFailure`]: of one core; the others have let go of it then.
    pub fn land(&self, memory: &Lent) -> Pending<Result<LandedHandle, LandFailure>> {
        let wanted = Arc::new(());
        let refused = |kind: StoreErrorKind| Err(StoreError::local(kind).into());
        let ask = |core| {
            let (memory, wanted) = (memory.clone(), Arc::downgrade(&wanted));
            let land = |hosted: Rc<Hosted>| async move { hosted.land(&memory, wanted).await };
            self.cores.ask(core, refused, land)
        };
        let asked: Vec<Pending<Result<usize, LandFailure>>> =
            (0..self.cores.len()).map(ask).collect();
        let mut landed = LandedHandle {
            cores: Arc::downgrade(&self.cores),
            wanted: Some(wanted),
            adapters: 0,
        };
        Pending::here(async move {
            for pending in asked {
                landed.adapters += pending.await?;
            }
            Ok(landed)
        })
    }
}
