//! Clients on cores of their own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunette_runtime::{CoreOptions, Placement, Runtime};
use lunette_runtime_core::ids::CoreIndex;

use super::cores::{Cores, Seated};
use super::{HandleError, StoreHandle};
use crate::cluster_client::{ClusterClient, ClusterClientOptions};
use crate::member::ClusterOptions;

/// Clients of a cluster on cores of their own, for programs that have none. They end with this value; handles
/// then say so.
pub struct ClientHost {
    handle: StoreHandle,
    /// Ends its cores when dropped.
    _runtime: Runtime,
}

impl fmt::Debug for ClientHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHost")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl ClientHost {
    /// Starts a client on each core that is placed, and waits until each knows the cluster's map.
    ///
    /// # Errors
    /// [`HandleError`]: nothing is left running.
    pub fn start(
        placement: &Placement,
        core: CoreOptions,
        options: &ClusterClientOptions,
    ) -> Result<Self, HandleError> {
        let runtime = Runtime::start(placement, core)?;
        let (tenant, glance) = (options.tenant.clone(), Arc::default());
        let (cores, seated) = Cores::new(runtime.cores(), None, tenant, glance);
        let mut starting = Vec::new();
        for (core, seated) in (0..).map(CoreIndex).zip(seated) {
            let options = options.clone();
            starting.push(runtime.spawn_on(core, move || start_on(seated, options))?);
        }
        for started in starting {
            started.wait()??;
        }
        Ok(Self {
            handle: StoreHandle::new(cores),
            _runtime: runtime,
        })
    }

    /// As [`start`](Self::start), of the cluster of that name at its coordinators, which tell who the members
    /// are: those are the seeds, in place of what `options` have. Waits for a first member as long as an
    /// operation may take.
    ///
    /// # Errors
    /// [`HandleError`]: nothing is left running.
    pub fn start_in(
        cluster: ClusterOptions,
        placement: &Placement,
        core: CoreOptions,
        mut options: ClusterClientOptions,
    ) -> Result<Self, HandleError> {
        options.seeds = Self::members(cluster, core, options.timeout)?;
        Self::start(placement, core, &options)
    }

    /// Where the members of the cluster of that name listen, as its coordinators tell. Waits for a first one for
    /// at most `timeout`.
    ///
    /// # Errors
    /// [`HandleError`]: of the coordinators, or there is no member.
    pub fn members(
        cluster: ClusterOptions,
        core: CoreOptions,
        timeout: Duration,
    ) -> Result<Vec<SocketAddr>, HandleError> {
        let runtime = Runtime::start(&Placement::Anywhere(1), core)?;
        let asked =
            runtime.spawn_on(
                CoreIndex(0),
                move || async move { cluster.seeds(timeout).await },
            )?;
        Ok(asked.wait()??)
    }

    /// A handle to them.
    #[must_use]
    pub fn handle(&self) -> StoreHandle {
        self.handle.clone()
    }
}

async fn start_on(seated: Seated, options: ClusterClientOptions) -> Result<(), HandleError> {
    let client = ClusterClient::connect(options).await?;
    Ok(seated.begin(client)?)
}
