//! The asking side.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::ring::Ring;
use super::set_up;

/// A connection to a raw server.
pub(crate) struct RawClient {
    /// Dropped before the stream, whose descriptor it uses.
    ring: Ring,
    _stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl RawClient {
    pub(crate) fn connect(
        server: SocketAddr,
        request_bytes: usize,
        reply_bytes: usize,
        spin: Duration,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        set_up(&stream)?;
        let ring = Ring::new(stream.as_raw_fd(), spin)?;
        let (request, reply) = (vec![1; request_bytes], vec![0; reply_bytes]);
        Ok(Self {
            ring,
            _stream: stream,
            request,
            reply,
        })
    }

    /// One request and its whole reply.
    pub(crate) fn exchange(&mut self) -> io::Result<()> {
        self.ring.exchange(&self.request, &mut self.reply)
    }
}
