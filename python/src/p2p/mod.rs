//! Objects (checkpoints, weights) that receivers pass on to each other while they receive.
//!
//! What is asked is answered to the caller, or, where a queue is given, to an event loop: then the queue's number is the
//! answer. Memory of an object is lent until it is held no more, and kept until then.
//!
//! | module | subject |
//! |---|---|
//! | `held` | `NativeHeld`: an object that is held here |
//! | `lending` | the memory of objects, until nobody has it |
//! | `updating` | `NativeOffer`, `NativeUpdate`: weights in buckets |
//! | `told` | tensors as tuples, safetensors headers |
//! | `asking` | an answer is waited for, or left to a queue |

mod asking;
mod held;
mod lending;
mod told;
mod updating;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_auth::Policy;
use lunette_cluster::proto::rack::Rack;
use lunette_cluster::{ClientOptions, Security, system_entropy};
use lunette_p2p::{
    Found, HeldHandle, Layout, LentBuffers, ObjectName, Pending, ReceiveOptions, RegisterOptions,
    SliceOptions, StoreHandle, StoreHost, StoreOptions, Version,
};
use lunette_runtime::CoreOptions;
use lunette_transfer::engine::EngineOptions;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyModule;

use self::asking::answer;
use self::held::{NativeHeld, admit};
use self::lending::{Lending, Lent};
use self::told::{ToldTensor, told_found, told_layout};
use crate::failure::{Invalid, Unavailable, of_start};
use crate::opening::{IDLE, NativeCluster, address, check_listen, insecure, is_one_sided};
use crate::owned::Owned;
use crate::queue::NativeQueue;
use crate::waiting::wait;

/// How long a coordinator may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Addresses and lengths of an object's buffers, and streams of a device that have still to do with them.
type Lend = (Vec<(usize, usize)>, Vec<usize>);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeObjects>()?;
    module.add_class::<NativeHeld>()?;
    module.add_class::<updating::NativeOffer>()?;
    module.add_class::<updating::NativeUpdate>()?;
    module.add_function(wrap_pyfunction!(told::safetensors_head_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(told::safetensors_tensors, module)?)
}

/// A store of objects, on a core of its own.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeObjects {
    open: Owned<Open>,
    lending: Arc<Lending>,
}

struct Open {
    /// There until it is dropped.
    host: Option<StoreHost>,
    store: StoreHandle,
    address: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            host.close();
        }
    }
}

impl fmt::Debug for NativeObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeObjects").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeObjects {
    /// One of the cluster, which listens there: beyond loopback only with a secret, or if `LUNETTE_INSECURE=1`.
    #[new]
    fn start(
        py: Python<'_>,
        cluster: &NativeCluster,
        listen: &str,
        advertised: Option<&str>,
        rack: Option<&str>,
        lease_ttl_s: u32,
    ) -> PyResult<Self> {
        let listen = address(listen)?;
        check_listen(listen, cluster.cluster.secrets.is_some())?;
        let advertised = advertised.map(address).transpose()?;
        let rack = rack.map(str::parse::<Rack>).transpose();
        let rack = rack.map_err(|fault| Invalid::new_err(fault.to_string()))?;
        let options = options(cluster, listen, advertised, rack, lease_ttl_s)?;
        let core = CoreOptions {
            idle: IDLE,
            ..CoreOptions::default()
        };
        let starting = StoreHost::starting(core, options).map_err(|error| of_start(&error))?;
        let host = wait(py, starting)?.map_err(|error| of_host(&error))?;
        let open = Open {
            store: host.handle(),
            address: host.addresses()[0].to_string(),
            host: Some(host),
        };
        Ok(Self {
            open: Owned::new(open),
            lending: Arc::default(),
        })
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.open.with(|open| open.address.clone())
    }

    /// An object of the catalogue; `None` if there is none.
    fn find(&self, py: Python<'_>, queue: Option<&NativeQueue>, name: &str) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = self.store()?.find(object(name)?);
        answer(py, queue, asked, |py, found: Option<Found>| {
            found.map(told_found).into_py_any(py)
        })
    }

    /// The objects whose names begin so.
    fn list(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        beginning: String,
    ) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = self.store()?.list(beginning);
        answer(py, queue, asked, |py, found: Vec<Found>| {
            let found: Vec<_> = found.into_iter().map(told_found).collect();
            found.into_py_any(py)
        })
    }

    /// An object with its tensors; `None` if there is none.
    fn layout(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
    ) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let store = self.store()?;
        let name = object(name)?;
        let asked = Pending::here(async move {
            let Some(found) = store.find(name).await? else {
                return Ok(None);
            };
            let layout = store.layout(found.clone()).await?;
            Ok(layout.map(|layout| (found, layout)))
        });
        answer(py, queue, asked, |py, found: Option<(Found, Layout)>| {
            let told = found.map(|(found, layout)| (told_found(found), told_layout(&layout)));
            told.into_py_any(py)
        })
    }

    /// Registers an object of these buffers, which `keeps` has.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    fn register(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
        buffers: Lend,
        keeps: Py<PyAny>,
        tensors: Vec<ToldTensor>,
        chunk_bytes: u32,
        may_replace: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let tensors = told::tensors(tensors)?;
        let options = RegisterOptions {
            chunk_bytes,
            may_replace,
        };
        self.hold(py, queue, (&buffers, keeps), |store, buffers| {
            store.register_tensors(name, buffers, tensors, options)
        })
    }

    /// Receives an object into these buffers, which `keeps` has.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    fn receive(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
        buffers: Lend,
        keeps: Py<PyAny>,
        version: Option<u64>,
        resume: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let version = version.map(Version);
        let options = ReceiveOptions { resume, version };
        self.hold(py, queue, (&buffers, keeps), |store, buffers| {
            store.receive(name, buffers, options)
        })
    }

    /// Registers an object of files, each a buffer of it.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    fn register_files(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
        paths: Vec<PathBuf>,
        tensors: Vec<ToldTensor>,
        chunk_bytes: u32,
        may_replace: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let tensors = told::tensors(tensors)?;
        let options = RegisterOptions {
            chunk_bytes,
            may_replace,
        };
        self.hold(py, queue, (&Lend::default(), py.None()), |store, _| {
            store.register_files(name, paths, tensors, options)
        })
    }

    /// Receives an object into files, one for each of its buffers.
    fn receive_files(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
        paths: Vec<PathBuf>,
        version: Option<u64>,
        resume: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let version = version.map(Version);
        let options = ReceiveOptions { resume, version };
        self.hold(py, queue, (&Lend::default(), py.None()), |store, _| {
            store.receive_files(name, paths, options)
        })
    }

    /// Receives parts of an object's tensors into these buffers, which `keeps` has.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    fn receive_slices(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        name: &str,
        buffers: Lend,
        keeps: Py<PyAny>,
        slices: Vec<ToldTensor>,
        version: Option<u64>,
        keep_chunks: bool,
        resume: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let slices = told::slices(slices)?;
        let version = version.map(Version);
        let options = SliceOptions {
            keep_chunks,
            resume,
            version,
        };
        self.hold(py, queue, (&buffers, keeps), |store, buffers| {
            store.receive_slices(name, buffers, slices, options)
        })
    }

    /// Lets all go that is held, and ends it. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.close()?;
        py.detach(|| drop(open));
        self.lending.sweep();
        Ok(())
    }
}

impl NativeObjects {
    fn store(&self) -> PyResult<StoreHandle> {
        self.open.with(|open| open.store.clone())
    }

    fn hold(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        buffers: (&Lend, Py<PyAny>),
        ask: impl FnOnce(&StoreHandle, LentBuffers) -> Pending<HeldHandle>,
    ) -> PyResult<Py<PyAny>> {
        self.lent_to(py, queue, buffers, ask, NativeHeld::new)
    }

    /// What has memory of the program. Where there is none, nobody has the memory any more when that is told to a caller who
    /// waits; otherwise it is kept until then.
    fn lent_to<T: Send + 'static, U>(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        ((ranges, after), keeps): (&Lend, Py<PyAny>),
        ask: impl FnOnce(&StoreHandle, LentBuffers) -> Pending<T>,
        make: impl FnOnce(T, Arc<Lent>, Arc<Lending>) -> U + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        U: for<'py> IntoPyObject<'py>,
    {
        admit(queue)?;
        let store = self.store()?;
        let (memory, lent) = self.lending.lend(ranges, keeps, after)?;
        let asked = ask(&store, memory);
        let (of_answer, lending) = (Arc::clone(&lent), Arc::clone(&self.lending));
        let has = answer(py, queue, asked, |py, answer| {
            make(answer, of_answer, lending).into_py_any(py)
        });
        if has.is_err() {
            let ended = lent.loans.ended(py);
            // What has the memory may be changed again when the caller is told.
            drop(lent);
            self.lending.sweep();
            ended?;
        }
        has
    }
}

/// What makes a store's options on its core.
fn options(
    cluster: &NativeCluster,
    listen: SocketAddr,
    advertised: Option<SocketAddr>,
    rack: Option<Rack>,
    lease_ttl_s: u32,
) -> PyResult<impl FnOnce() -> StoreOptions + Send + use<>> {
    let cluster = &cluster.cluster;
    let policy = Policy::of_settings(cluster.secrets.clone(), insecure().as_deref());
    let engine = EngineOptions {
        listen: vec![listen],
        policy: policy.map_err(|error| of_start(&error))?,
        same_host: is_one_sided(),
        ..EngineOptions::default()
    };
    let secrets = cluster.secrets.clone();
    let secrets = secrets.filter(|_| cluster.is_coordinator_sealed);
    let (endpoints, prefix) = (cluster.coordinators.clone(), cluster.name.clone());
    Ok(move || {
        let coordinator = ClientOptions {
            endpoints,
            security: secrets.map(|secrets| Security {
                secrets,
                entropy: Rc::new(system_entropy),
            }),
            silence_max: SILENCE_MAX,
        };
        StoreOptions {
            prefix,
            advertised: advertised.into_iter().collect(),
            rack: rack.unwrap_or_default(),
            lease_ttl_s,
            ..StoreOptions::new(engine, coordinator)
        }
    })
}

fn of_host(error: &lunette_p2p::HostError) -> PyErr {
    if error.is_retryable() {
        Unavailable::new_err(error.to_string())
    } else {
        of_start(error)
    }
}

fn object(name: &str) -> PyResult<ObjectName> {
    let name = name.parse();
    name.map_err(|fault: lunette_p2p::NameFault| Invalid::new_err(fault.to_string()))
}
