//! A request/response loop written by hand on one ring: what the product is compared with.
//!
//! It does nothing but the exchange: no tasks, no framing, no checksum, one connection. It waits as
//! the product does: it polls for as long as it is told, then sleeps in the ring.

mod client;
mod pump;
mod ring;
mod server;

pub(crate) use client::RawClient;
pub(crate) use pump::{Exchange, answer, ask};
pub(crate) use server::serve;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// How long a side polls before it sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// As the product's sockets are within a host: with no delay, and not paced, whatever the system's default is. A loop
/// that is paced is no limit of anything.
fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    Ok(sockopt::set_tcp_congestion(stream, "reno")?)
}
