//! A coordinator in this process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use futures_channel::oneshot;
use lunette_auth::Secrets;
use lunette_cluster::{Hosted, Security, serve, system_entropy};
use lunette_runtime::net::{REBIND_WAIT, TcpListener};
use lunette_runtime::{CoreOptions, Idle, block_on};
use pyo3::prelude::*;

use crate::failure::of_start;
use crate::opening;
use crate::owned::Owned;

/// A coordinator on a thread of its own, which forgets everything when it ends.
#[pyclass(frozen, module = "lunette._native")]
#[derive(Debug)]
pub(crate) struct NativeCoordinator {
    address: SocketAddr,
    running: Owned<Running>,
}

#[derive(Debug)]
struct Running {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A thread that has ended before hears nothing, and a panic of it is no panic of ours.
        let _ended_before = self.end.take().map(|end| end.send(()));
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[pymethods]
impl NativeCoordinator {
    #[new]
    fn start(py: Python<'_>, listen: &str, secret_file: Option<PathBuf>) -> PyResult<Self> {
        let listen = opening::address(listen)?;
        let secrets = opening::secrets(secret_file.as_deref())?;
        opening::check_listen(listen, secrets.is_some())?;
        let (end, ended) = oneshot::channel();
        let (ready, bound) = mpsc::channel();
        let thread = thread::Builder::new().name("lunette-coord".to_owned());
        let thread = thread.spawn(move || run((listen, secrets), ended, &ready));
        let thread = thread.map_err(|error| of_start(&error))?;
        let running = Owned::new(Running {
            end: Some(end),
            thread: Some(thread),
        });
        let bound = py.detach(move || bound.recv());
        let address = bound
            .unwrap_or_else(|_| Err("the coordinator's core did not start".to_owned()))
            .map_err(|said| of_start(&said))?;
        Ok(Self { address, running })
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Ends it. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.close()?;
        py.detach(|| drop(running));
        Ok(())
    }
}

type Ready = mpsc::Sender<Result<SocketAddr, String>>;

fn run(
    (listen, secrets): (SocketAddr, Option<Secrets>),
    ended: oneshot::Receiver<()>,
    ready: &Ready,
) {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    let told = ready.clone();
    let ran = block_on(None, options, move || async move {
        let listener = match TcpListener::bind_within(listen, REBIND_WAIT).await {
            Ok(listener) => listener,
            Err(error) => {
                drop(told.send(Err(format!("{listen}: {error}"))));
                return;
            }
        };
        drop(told.send(Ok(listener.local_addr())));
        drop(told);
        let stop = async {
            // Whoever was to send it may be gone: an end too.
            let _why = ended.await;
        };
        let security = secrets.map(|secrets| Security {
            secrets,
            entropy: Rc::new(system_entropy),
        });
        serve(listener, Hosted::in_memory(), security, stop).await;
    });
    if let Err(error) = ran {
        drop(ready.send(Err(error.to_string())));
    }
}
