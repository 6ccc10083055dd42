//! Objects, and the bytes that go in and out.
//!
//! The store never has memory of Python's: what is put is copied before the call asks, and what was got is
//! copied out when it is there. So a call that ends early (a signal, a deadline) leaves nothing behind that
//! could touch an object's memory. Values come and go as `bytes`: the protocol of buffers is no part of the stable
//! interface before Python 3.11, so what else holds bytes is read and written by the Python half.

use std::fmt;
use std::net::SocketAddr;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lunette_cluster::system_entropy;
use lunette_kvstore::{
    ClientHost, ClusterClientOptions, ClusterOptions, Lent, Node, NodeOptions, PutOptions,
    StoreHandle, Stored,
};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{CoreOptions, Placement};
use lunette_runtime_core::ids::NodeId;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Closed, of_start, of_store};
use crate::waiting::wait;

/// A member of a cluster in this process, or clients of one.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeStore {
    process: u32,
    open: Mutex<Option<Open>>,
}

struct Open {
    handle: StoreHandle,
    /// What answers it. Its cores end with it.
    cores: Cores,
}

enum Cores {
    Member(Node),
    Clients(#[expect(dead_code, reason = "kept for its cores")] ClientHost),
}

impl fmt::Debug for NativeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeStore").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeStore {
    /// A member that lends `memory_bytes`, of the cluster that the coordinators keep.
    #[staticmethod]
    fn member(
        py: Python<'_>,
        cluster: &str,
        coordinators: Vec<String>,
        listen: &str,
        memory_bytes: u64,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let listen = address(listen)?;
        if !listen.ip().is_loopback() {
            let what = format!("{listen} is not loopback, and nobody would be authenticated");
            return Err(of_start(&what));
        }
        let cluster = ClusterOptions::new(cluster, addresses(&coordinators)?);
        let [.., i0, i1, i2, i3, i4, i5, i6, i7] = system_entropy();
        let id = NodeId(u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]));
        let mut options = NodeOptions::new(id, listen, memory_bytes);
        options.cluster = Some(cluster);
        let asking = client_options(Vec::new(), timeout_s)?;
        py.detach(move || {
            let node = Node::start(options).map_err(|error| of_start(&error))?;
            node.joined().map_err(|error| of_start(&error))?;
            let handle = node.handle(&asking).map_err(|error| of_start(&error))?;
            Ok(Self::of(handle, Cores::Member(node)))
        })
    }

    /// A client of the cluster that some of `nodes` are members of.
    #[staticmethod]
    fn client(py: Python<'_>, nodes: Vec<String>, timeout_s: f64) -> PyResult<Self> {
        let options = client_options(addresses(&nodes)?, timeout_s)?;
        py.detach(move || {
            let placement = Placement::Anywhere(1);
            let host = ClientHost::start(&placement, CoreOptions::default(), &options);
            let host = host.map_err(|error| of_start(&error))?;
            Ok(Self::of(host.handle(), Cores::Clients(host)))
        })
    }

    /// Where a member listens; `None` of clients.
    #[getter]
    fn address(&self) -> PyResult<Option<String>> {
        self.with_open(|open| match &open.cores {
            Cores::Member(node) => Some(node.address().to_string()),
            Cores::Clients(_) => None,
        })
    }

    /// Whether it was written: a put leaves what is there.
    fn put(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        value: &[u8],
        is_upsert: bool,
        copies: u8,
    ) -> PyResult<bool> {
        let handle = self.handle()?;
        let options = PutOptions {
            kind: if is_upsert {
                WriteKind::Upsert
            } else {
                WriteKind::Put
            },
            copies,
            ..PutOptions::default()
        };
        let stored = wait(
            py,
            handle.put(key, vec![Lent::bytes(value.to_vec())], options),
        )?;
        let stored = stored.map_err(|error| of_store(&error))?;
        Ok(matches!(stored, Stored::Written { .. }))
    }

    /// The bytes; `None` if there is no object.
    fn get<'py>(&self, py: Python<'py>, key: Vec<u8>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = wait(py, self.handle()?.get_bytes(key))?;
        let bytes = bytes.map_err(|error| of_store(&error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Lengths in bytes, in the order of `keys`; `None` where there is no object.
    fn sizes(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<Option<usize>>> {
        each(wait(py, self.handle()?.sizes(keys))?)
    }

    /// Whether there is an object, in the order of `keys`.
    fn exists(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<bool>> {
        each(wait(py, self.handle()?.exists(keys))?)
    }

    /// Whether there was an object, in the order of `keys`.
    fn remove(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<bool>> {
        each(wait(py, self.handle()?.remove(keys))?)
    }

    /// Ends it: calls under way fail. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != process::id() {
            return Err(Closed::new_err("used after fork"));
        }
        py.detach(|| drop(self.take()));
        Ok(())
    }
}

impl NativeStore {
    fn of(handle: StoreHandle, cores: Cores) -> Self {
        let open = Open { handle, cores };
        Self {
            process: process::id(),
            open: Mutex::new(Some(open)),
        }
    }

    fn handle(&self) -> PyResult<StoreHandle> {
        self.with_open(|open| open.handle.clone())
    }

    fn with_open<T>(&self, ask: impl FnOnce(&Open) -> T) -> PyResult<T> {
        if self.process != process::id() {
            return Err(Closed::new_err("used after fork"));
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.as_ref().map(ask);
        open.ok_or_else(|| Closed::new_err("closed"))
    }

    fn take(&self) -> Option<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.take()
    }
}

impl Drop for NativeStore {
    fn drop(&mut self) {
        let open = self.take();
        if self.process == process::id() {
            drop(open);
        } else {
            // A child of a fork has none of its threads, which would be waited for.
            std::mem::forget(open);
        }
    }
}

fn each<T>(answers: Vec<Result<T, lunette_kvstore::StoreError>>) -> PyResult<Vec<T>> {
    let answers = answers.into_iter();
    answers
        .map(|answer| answer.map_err(|error| of_store(&error)))
        .collect()
}

fn client_options(seeds: Vec<SocketAddr>, timeout_s: f64) -> PyResult<ClusterClientOptions> {
    let timeout = Duration::try_from_secs_f64(timeout_s);
    let timeout = timeout.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(ClusterClientOptions {
        timeout,
        ..ClusterClientOptions::new(seeds)
    })
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
