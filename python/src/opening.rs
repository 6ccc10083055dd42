//! A store comes into being: a member of a cluster in this process, or clients of one.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lunette_auth::Secrets;
use lunette_auth::policy::INSECURE_SETTING;
use lunette_cluster::{read_secrets, system_entropy};
use lunette_kvstore::{
    ClientHost, ClusterClientOptions, ClusterOptions, HandleError, Node, NodeOptions, StoreHandle,
    TierOptions,
};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::{CoreOptions, Idle, Placement};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::limits::CORES_MAX;
use lunette_transfer::adapters::{AdapterChoice, RdmaOptions, devices};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::failure::{Invalid, Unavailable, of_start};
use crate::waiting::wait_until;

/// A program that calls has as much to do between its calls as it takes a sleeping core to wake up: a core that is to
/// be awake for the next one waits somewhat longer than by default.
pub(crate) const IDLE: Idle = Idle::Adaptive(Duration::from_micros(100));

/// Which cluster, and how to be one of it.
#[pyclass(frozen, skip_from_py_object, module = "lunette._native")]
#[derive(Clone, Debug)]
pub(crate) struct NativeCluster {
    pub(crate) cluster: ClusterOptions,
    timeout: Duration,
    rdma: RdmaOptions,
    tenant: Tenant,
    /// Of a member, or of clients.
    cores: usize,
}

#[pymethods]
impl NativeCluster {
    /// The cluster of this name at its coordinators, which are etcds or embedded ones. What members, clients and
    /// embedded coordinators prove to each other is in the file of the secret. Objects go over RDMA adapters of these
    /// names ([`AdapterChoice::of_names`]) where both ends have some.
    #[new]
    fn new(
        name: &str,
        coordinators: Vec<String>,
        is_etcd: bool,
        secret_file: Option<PathBuf>,
        timeout_s: f64,
        adapters: Vec<String>,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_s);
        let timeout = timeout.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let cluster = ClusterOptions {
            secrets: secrets(secret_file.as_deref())?,
            is_coordinator_sealed: !is_etcd,
            ..ClusterOptions::new(name, addresses(&coordinators)?)
        };
        Ok(Self {
            cluster,
            timeout,
            rdma: rdma(&adapters),
            tenant: Tenant::default(),
            cores: 1,
        })
    }

    /// The same, for the keys of the tenant of that name.
    fn of_tenant(&self, name: &str) -> PyResult<Self> {
        let tenant = Tenant::named(name);
        let tenant = tenant.map_err(|fault| Invalid::new_err(fault.to_string()))?;
        Ok(Self {
            tenant,
            ..self.clone()
        })
    }

    /// The same, asked, or lent memory to, by so many cores.
    fn of_cores(&self, cores: usize) -> PyResult<Self> {
        if !(1..=CORES_MAX).contains(&cores) {
            let said = format!("{cores} cores: 1 to {CORES_MAX} are possible");
            return Err(PyValueError::new_err(said));
        }
        Ok(Self {
            cores,
            ..self.clone()
        })
    }

    /// Where the members listen, as the coordinators tell. Waits until there is one.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let members = py.detach(move || {
            ClientHost::members(self.cluster.clone(), CoreOptions::default(), self.timeout)
        });
        let members = members.map_err(|error| of_handle(&error))?;
        Ok(members.iter().map(SocketAddr::to_string).collect())
    }
}

/// What answers.
pub(crate) enum Cores {
    Member(Node),
    Clients(#[expect(dead_code, reason = "kept for its cores")] ClientHost),
}

/// What a store asks, and what answers it.
pub(crate) struct Open {
    pub(crate) handle: StoreHandle,
    /// Its cores end with it.
    pub(crate) cores: Cores,
}

impl NativeCluster {
    fn client_options(&self, seeds: Vec<SocketAddr>) -> ClusterClientOptions {
        let options = ClusterClientOptions::new(seeds);
        let one_sided_from_bytes = options.one_sided_from_bytes.filter(|_| is_one_sided());
        ClusterClientOptions {
            timeout: self.timeout,
            secrets: self.cluster.secrets.clone(),
            one_sided_from_bytes,
            rdma: self.rdma.clone(),
            tenant: self.tenant.clone(),
            ..options
        }
    }

    /// A member, once it is one.
    pub(crate) fn member(
        &self,
        py: Python<'_>,
        listen: SocketAddr,
        memory_bytes: u64,
        tier: Option<TierOptions>,
    ) -> PyResult<Open> {
        check_listen(listen, self.cluster.secrets.is_some())?;
        let [.., i0, i1, i2, i3, i4, i5, i6, i7] = system_entropy();
        let id = NodeId(u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]));
        let mut options = NodeOptions::new(id, listen, memory_bytes);
        options.cluster = Some(self.cluster.clone());
        options.placement = Placement::Anywhere(self.cores);
        options.idle = IDLE;
        options.tier = tier;
        options.one_sided = is_one_sided();
        options.rdma = self.rdma.clone();
        let asking = self.client_options(Vec::new());
        let node = py.detach(move || Node::start(options));
        let node = node.map_err(|error| of_start(&error))?;
        let until = Instant::now() + self.timeout;
        let joined = wait_until(py, node.joining(), Some(until))?;
        let Some(joined) = joined else {
            let coordinators = &self.cluster.coordinators;
            py.detach(move || drop(node));
            let said =
                format!("no member of the cluster yet: is a coordinator at {coordinators:?}?");
            return Err(Unavailable::new_err(said));
        };
        joined.map_err(|error| of_start(&error))?;
        let handle = node.handle(&asking).map_err(|error| of_start(&error))?;
        let cores = Cores::Member(node);
        Ok(Open { handle, cores })
    }

    /// Whether there are to be adapters.
    pub(crate) fn has_adapters(&self) -> bool {
        self.rdma.adapters != AdapterChoice::None
    }

    /// Clients. The coordinators are asked who the members are, or `nodes` are some of them.
    pub(crate) fn clients(&self, py: Python<'_>, nodes: &[String]) -> PyResult<Open> {
        let placement = Placement::Anywhere(self.cores);
        let core = CoreOptions {
            idle: IDLE,
            ..CoreOptions::default()
        };
        let nodes = (!nodes.is_empty()).then(|| addresses(nodes)).transpose()?;
        let host = py.detach(move || match nodes {
            Some(nodes) => ClientHost::start(&placement, core, &self.client_options(nodes)),
            None => {
                let options = self.client_options(Vec::new());
                ClientHost::start_in(self.cluster.clone(), &placement, core, options)
            }
        });
        let host = host.map_err(|error| of_handle(&error))?;
        let handle = host.handle();
        let cores = Cores::Clients(host);
        Ok(Open { handle, cores })
    }
}

fn of_handle(error: &HandleError) -> PyErr {
    if error.is_retryable() {
        Unavailable::new_err(error.to_string())
    } else {
        of_start(error)
    }
}

/// The secrets of that file; none without.
pub(crate) fn secrets(file: Option<&Path>) -> PyResult<Option<Secrets>> {
    let secrets = file.map(read_secrets).transpose();
    secrets.map_err(|error| of_start(&error))
}

/// With adapters of these names.
pub(crate) fn rdma(names: &[String]) -> RdmaOptions {
    RdmaOptions {
        adapters: AdapterChoice::of_names(names),
        ..RdmaOptions::default()
    }
}

/// The RDMA devices of this host; none where there is no RDMA.
#[pyfunction]
pub(crate) fn rdma_devices() -> Vec<String> {
    devices().unwrap_or_default()
}

/// What the environment says of doing without secrets.
pub(crate) fn insecure() -> Option<String> {
    env::var(INSECURE_SETTING).ok()
}

/// Whether programs of a host may share memory: not if this is 0.
const ONE_SIDED_SETTING: &str = "LUNETTE_ONE_SIDED";

pub(crate) fn is_one_sided() -> bool {
    env::var(ONE_SIDED_SETTING)
        .ok()
        .is_none_or(|value| value != "0")
}

/// Who listens beyond loopback proves who it is, or was told that it need not.
pub(crate) fn check_listen(listen: SocketAddr, is_guarded: bool) -> PyResult<()> {
    let insecure = insecure().is_some_and(|value| value == "1");
    if listen.ip().is_loopback() || is_guarded || insecure {
        return Ok(());
    }
    Err(of_start(&format!(
        "{listen} is not loopback, and nobody would be authenticated: give a secret, or set {INSECURE_SETTING}=1"
    )))
}

fn addresses(texts: &[String]) -> PyResult<Vec<SocketAddr>> {
    if texts.is_empty() {
        return Err(PyValueError::new_err("no address"));
    }
    texts.iter().map(|text| address(text)).collect()
}

/// An address and a port.
pub(crate) fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse()
        .map_err(|_| PyValueError::new_err(format!("{text:?} is no ADDRESS:PORT")))
}
