//! The answering side.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::ring::Ring;
use super::set_up;

/// Answers each request of `request_bytes` with `reply_bytes`, on the next connection, to its end.
pub(crate) fn serve(
    listener: &TcpListener,
    request_bytes: usize,
    reply_bytes: usize,
    spin: Duration,
) -> io::Result<()> {
    let (stream, _) = listener.accept()?;
    set_up(&stream)?;
    let mut ring = Ring::new(stream.as_raw_fd(), spin)?;
    let mut request = vec![0; request_bytes];
    let reply = vec![2; reply_bytes];
    let mut open = ring.receive(&mut request)?;
    while open {
        open = ring.answer(&reply, &mut request)?;
    }
    Ok(())
}
