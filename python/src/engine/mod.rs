//! A transfer engine: bytes go between memory here and memory of peers, both named by their addresses.
//!
//! Memory that is registered stays the engine's to read and to write until it is unregistered: that waits until
//! nobody uses it any more.
//!
//! | module | subject |
//! |---|---|
//! | `local` | memory of this process that is registered |
//! | `peers` | peers that are open, and their memory by its addresses |

mod local;
mod peers;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_auth::Policy;
use lunette_runtime::{CoreOptions, Placement};
use lunette_transfer::engine::{
    Done, EngineHandle, EngineHost, EngineOptions, HandleError, HandleRequest, Pending,
    PostOptions, Way,
};
use pyo3::prelude::*;

use crate::failure::{Invalid, Unavailable, of_engine, of_start};
use crate::memory::streams;
use crate::opening::{IDLE, address, insecure, rdma, secrets};
use crate::owned::Owned;
use crate::waiting::wait;
use local::{Local, Place};
use peers::{Peers, Range};

/// Most transfers that are under way and have not been asked after.
const TRANSFERS_MAX: usize = 1 << 16;
/// How often a transfer is begun again whose peer is another one than before, or has other memory.
const TRIES_MAX: usize = 2;

/// What is moved: whether to the peer, addresses here, addresses there, lengths in bytes.
type Moves = (bool, Vec<usize>, Vec<u64>, Vec<u64>);

/// An engine on a core of its own.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeEngine {
    open: Owned<Open>,
}

struct Open {
    /// There until it is dropped.
    host: Option<EngineHost>,
    engine: EngineHandle,
    address: String,
    local: Arc<Local>,
    peers: Arc<Peers>,
    transfers: Arc<Posted>,
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.transfers.lock().moving));
        if let Some(host) = self.host.take() {
            host.close();
        }
        // No core is left that has any of it.
        self.local.ended();
    }
}

/// Transfers that have been posted and not asked after to their end.
#[derive(Default)]
struct Posted(Mutex<Transfers>);

impl Posted {
    fn lock(&self) -> MutexGuard<'_, Transfers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same, by the number that was given for each.
#[derive(Default)]
struct Transfers {
    last: u64,
    moving: BTreeMap<u64, Pending<Done>>,
}

impl fmt::Debug for NativeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeEngine").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeEngine {
    /// An engine that listens there: beyond loopback only with a secret, or if `LUNETTE_INSECURE=1`. Bytes go over RDMA
    /// adapters of these names where both ends have some.
    #[new]
    fn start(
        py: Python<'_>,
        listen: &str,
        secret_file: Option<PathBuf>,
        adapters: Vec<String>,
    ) -> PyResult<Self> {
        let secrets = secrets(secret_file.as_deref())?;
        let policy = Policy::of_settings(secrets, insecure().as_deref());
        let options = EngineOptions {
            listen: vec![address(listen)?],
            policy: policy.map_err(|error| of_start(&error))?,
            rdma: rdma(&adapters),
            ..EngineOptions::default()
        };
        let core = CoreOptions {
            idle: IDLE,
            ..CoreOptions::default()
        };
        let host = py.detach(|| EngineHost::start(&Placement::Anywhere(1), core, &options));
        let host = host.map_err(|error| of_start(&error))?;
        let engine = host.handle();
        let open = Open {
            address: host.addresses()[0].to_string(),
            local: Arc::new(Local::new(engine.clone())),
            peers: Arc::new(Peers::new(engine.clone())),
            transfers: Arc::default(),
            host: Some(host),
            engine,
        };
        let open = Owned::new(open);
        Ok(Self { open })
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.open.with(|open| open.address.clone())
    }

    /// Lets peers read and write memory by its addresses, until it is unregistered. Of a device's, copies come after what
    /// these streams have to do now.
    #[pyo3(signature = (address, len, after = Vec::new()))]
    fn register(
        &self,
        py: Python<'_>,
        address: usize,
        len: usize,
        after: Vec<usize>,
    ) -> PyResult<()> {
        self.local()?.register(py, (address, len), &streams(&after))
    }

    /// Takes that back, for the range that begins there, and waits until nobody uses it any more. Whether it was
    /// registered.
    fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        self.local()?.unregister(py, address)
    }

    /// Whether all of the range is registered.
    fn has(&self, address: usize, len: u64) -> PyResult<bool> {
        Ok(self.local()?.find(address, len).is_ok())
    }

    /// Moves bytes, and waits until they are there; then the peer is notified, if it is to be. Where the peer is
    /// another one than before, or has other memory, once more.
    fn transfer(
        &self,
        py: Python<'_>,
        peer: &str,
        moves: Moves,
        note: Option<Vec<u8>>,
        timeout_s: f64,
    ) -> PyResult<()> {
        let (moving, options) = self.moving(peer, moves, note, timeout_s)?;
        let moved = wait(py, async {
            for _ in 1..TRIES_MAX {
                match moving.post(options.clone()).await {
                    Ok(pending) => match pending.await {
                        Err(error) if peers::is_changed(&error) => moving.forget(),
                        done => return done,
                    },
                    Err(error) if peers::is_changed(&error) => moving.forget(),
                    Err(error) => return Err(error),
                }
            }
            moving.post(options).await?.await
        })?;
        moved.map(drop).map_err(|error| of_engine(&error))
    }

    /// As `transfer`, without waiting for the bytes: a number by which it is asked after. It is not done once more.
    fn post(
        &self,
        py: Python<'_>,
        peer: &str,
        moves: Moves,
        note: Option<Vec<u8>>,
        timeout_s: f64,
    ) -> PyResult<u64> {
        let (moving, options) = self.moving(peer, moves, note, timeout_s)?;
        let posted = self.transfers()?;
        if posted.lock().moving.len() >= TRANSFERS_MAX {
            let said = format!("{TRANSFERS_MAX} transfers have not been asked after");
            return Err(Unavailable::new_err(said));
        }
        let pending = wait(py, moving.post(options))?;
        let pending = pending.map_err(|error| of_engine(&error))?;
        let mut transfers = posted.lock();
        transfers.last += 1;
        let number = transfers.last;
        transfers.moving.insert(number, pending);
        Ok(number)
    }

    /// Whether the transfer of that number is done; an exception if it failed, or there is none. After either it
    /// is forgotten.
    fn is_done(&self, number: u64) -> PyResult<bool> {
        let posted = self.transfers()?;
        let mut transfers = posted.lock();
        let Some(moving) = transfers.moving.get_mut(&number) else {
            return Err(Invalid::new_err(format!("there is no transfer {number}")));
        };
        let polled = Pin::new(moving).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(done) = polled else {
            return Ok(false);
        };
        transfers.moving.remove(&number);
        done.map(|_| true).map_err(|error| of_engine(&error))
    }

    /// Waits for the transfer of that number, and forgets it.
    fn finish(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        let moving = self.transfers()?.lock().moving.remove(&number);
        let Some(moving) = moving else {
            return Err(Invalid::new_err(format!("there is no transfer {number}")));
        };
        let done = wait(py, moving)?;
        done.map(drop).map_err(|error| of_engine(&error))
    }

    /// Whether the peer answers. An exception if not.
    fn probe(&self, py: Python<'_>, peer: &str) -> PyResult<()> {
        let peers = self.open.with(|open| Arc::clone(&open.peers))?;
        let name = peers::name(peer)?;
        let found = wait(py, async move { peers.again(&name).await })?;
        found.map_err(|error| of_engine(&error))
    }

    /// What peers have told since, and the session of each that told it.
    fn notifications(&self, py: Python<'_>) -> PyResult<Vec<(u64, Vec<u8>)>> {
        let handle = self.open.with(|open| open.engine.clone())?;
        let mut told = Vec::new();
        while let Some(next) =
            wait(py, handle.take_notification())?.map_err(|error| of_engine(&error))?
        {
            told.push((next.from, next.bytes));
        }
        Ok(told)
    }

    /// Ends it: transfers under way fail. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.close()?;
        py.detach(|| drop(open));
        Ok(())
    }
}

impl NativeEngine {
    fn moving(
        &self,
        peer: &str,
        (is_write, here, there, lens): Moves,
        note: Option<Vec<u8>>,
        timeout_s: f64,
    ) -> PyResult<(Moving, PostOptions)> {
        let is_even = here.len() == there.len() && here.len() == lens.len();
        if !is_even {
            return Err(Invalid::new_err("the lists are not of the same length"));
        }
        let timeout = Duration::try_from_secs_f64(timeout_s);
        let options = PostOptions {
            timeout: timeout.map_err(|error| Invalid::new_err(error.to_string()))?,
            notification: note,
            ..PostOptions::default()
        };
        let (local, peers) = self
            .open
            .with(|open| (Arc::clone(&open.local), Arc::clone(&open.peers)))?;
        let ranges = here.iter().zip(&lens);
        let ranges = ranges.map(|(address, len)| local.find(*address, *len));
        let found: PyResult<Vec<_>> = ranges.collect();
        let mut wanted = Vec::new();
        for (places, mut start) in found?.into_iter().zip(there) {
            for local in places {
                let len_bytes = local.len_bytes;
                wanted.push((local, Range { start, len_bytes }));
                start = start.saturating_add(len_bytes);
            }
        }
        let moving = Moving {
            peers,
            name: peers::name(peer)?,
            way: if is_write { Way::Write } else { Way::Read },
            wanted,
        };
        Ok((moving, options))
    }

    fn local(&self) -> PyResult<Arc<Local>> {
        self.open.with(|open| Arc::clone(&open.local))
    }

    fn transfers(&self) -> PyResult<Arc<Posted>> {
        self.open.with(|open| Arc::clone(&open.transfers))
    }
}

/// What is to be moved between here and a peer.
struct Moving {
    peers: Arc<Peers>,
    name: peers::Name,
    way: Way,
    wanted: Vec<(Place, Range)>,
}

impl Moving {
    /// Posts it, to the peer and its memory as they are known.
    async fn post(&self, options: PostOptions) -> Result<Pending<Done>, HandleError> {
        let peer = self.peers.open(&self.name).await?;
        let mut requests = Vec::with_capacity(self.wanted.len());
        for (local, range) in &self.wanted {
            let mut done_bytes = 0;
            while done_bytes < range.len_bytes {
                let rest = range.after(done_bytes);
                let there = self.peers.find(&self.name, &peer, rest).await?;
                requests.push(HandleRequest {
                    way: self.way,
                    local: local.segment,
                    local_offset_bytes: local.offset_bytes + done_bytes,
                    len_bytes: there.len_bytes,
                    remote: there.segment,
                    remote_offset_bytes: there.offset_bytes,
                });
                done_bytes += there.len_bytes;
            }
        }
        Ok(peer.post(requests, options))
    }

    /// The peer is to be opened anew.
    fn forget(&self) {
        self.peers.forget(&self.name);
    }
}
