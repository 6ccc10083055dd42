//! A coordinator in this process, for members that are measured.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;

use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Idle, Placement, Runtime};
use lunette_runtime_core::ids::CoreIndex;

/// A port of this host that is free.
#[must_use]
pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A coordinator, for as long as its runtime lives. It sleeps but when it renews a lease, on a thread that is not
/// pinned.
///
/// # Errors
/// The core's that does not start, and the listener's.
pub fn start() -> io::Result<(Runtime, SocketAddr)> {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    let runtime = Runtime::start(&Placement::Anywhere(1), options).map_err(io::Error::other)?;
    let (tell, told) = mpsc::channel();
    let serving = runtime.spawn_on(CoreIndex(0), move || async move {
        let listener = match TcpListener::bind(loopback()) {
            Ok(listener) => listener,
            Err(error) => return drop(tell.send(Err(error))),
        };
        if tell.send(Ok(listener.local_addr())).is_ok() {
            let hosted = lunette_cluster::Hosted::in_memory();
            lunette_cluster::serve(listener, hosted, None, std::future::pending()).await;
        }
    });
    // It goes on until the runtime ends.
    drop(serving.map_err(io::Error::other)?);
    let address = told.recv().map_err(io::Error::other)??;
    Ok((runtime, address))
}
