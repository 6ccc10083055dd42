//! A busy loop over epoll, by hand: it never sleeps, and has no tasks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::{Timespec, epoll};

use crate::role::announce;

/// Events taken at a time.
const EVENTS_MAX: usize = 256;
/// What the listener's events carry; connections carry their index.
const LISTENER: u64 = u64::MAX;

/// A connection and how much of its message is there.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    got: usize,
}

/// Says where it listens, then answers each message on each connection with itself.
pub(super) fn echo(message_bytes: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    announce(listener.local_addr()?)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&poll, &listener, data, epoll::EventFlags::IN)?;
    // Connections that have ended leave their place empty: a run makes few.
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        events.clear();
        epoll::wait(
            &poll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&at_once),
        )?;
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let index = u64::try_from(connections.len()).map_err(io::Error::other)?;
                let data = epoll::EventData::new_u64(index);
                epoll::add(&poll, &stream, data, epoll::EventFlags::IN)?;
                connections.push(Some(Connection {
                    stream,
                    buffer: vec![0; message_bytes],
                    got: 0,
                }));
                continue;
            }
            let index = usize::try_from(data).map_err(io::Error::other)?;
            let slot = &mut connections[index];
            if let Some(connection) = slot
                && connection.go_on().is_err()
            {
                // Closing it takes it out of the epoll.
                *slot = None;
            }
        }
    }
}

impl Connection {
    /// Takes what is there, and answers if that completes the message.
    fn go_on(&mut self) -> io::Result<()> {
        while self.got < self.buffer.len() {
            match self.stream.read(&mut self.buffer[self.got..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.got = 0;
        let mut sent = 0;
        while sent < self.buffer.len() {
            match self.stream.write(&self.buffer[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
