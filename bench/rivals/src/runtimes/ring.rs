//! A loop over one ring, by hand: no tasks, no timers, nothing but the program. It waits as the product does by default:
//! it looks for a while, then sleeps in the ring.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use lunette_bench::harness::{Failure, Sample};

use super::reads::{self, READ_BYTES, Reads};
use crate::role::announce;

/// Operations that may be queued: one per connection.
const ENTRIES: u32 = 2048;
/// How long it looks for completions before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// What the listener's completions carry; connections carry their index.
const LISTENER: u64 = u64::MAX;

struct Ring {
    ring: IoUring,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(ENTRIES)?;
        Ok(Self { ring })
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// The memory that it names is not touched, moved or freed before its completion is taken, or the process ends.
    unsafe fn push(&mut self, entry: squeue::Entry, number: u64) {
        let entry = entry.user_data(number);
        // SAFETY: as the caller promises.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("as many entries as there are connections");
    }

    /// Hands over what is queued, and waits for a completion.
    fn wait(&mut self) -> io::Result<()> {
        self.ring.submit()?;
        let begun = Instant::now();
        while self.ring.completion().is_empty() {
            // Work that is due is done by a call that waits.
            if self.ring.submission().taskrun() || begun.elapsed() >= SPIN {
                self.ring.submit_and_wait(1)?;
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// The next completion: whose, and how many bytes or which descriptor.
    fn next(&mut self) -> Option<(u64, io::Result<i32>)> {
        let entry = self.ring.completion().next()?;
        let result = match entry.result() {
            error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
            result => Ok(result),
        };
        Some((entry.user_data(), result))
    }
}

/// A connection, whose message is coming or going.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    got: usize,
    is_sending: bool,
}

impl Connection {
    /// Its next operation.
    fn operation(&mut self) -> io::Result<squeue::Entry> {
        let fd = Fd(self.stream.as_raw_fd());
        let rest = if self.is_sending {
            &mut self.buffer[..]
        } else {
            &mut self.buffer[self.got..]
        };
        let len = u32::try_from(rest.len()).map_err(io::Error::other)?;
        let at = rest.as_mut_ptr();
        Ok(if self.is_sending {
            let all = rustix::net::SendFlags::NOSIGNAL.bits() | WAIT_ALL;
            let flags = i32::try_from(all).map_err(io::Error::other)?;
            opcode::Send::new(fd, at, len).flags(flags).build()
        } else {
            opcode::Recv::new(fd, at, len).build()
        })
    }

    /// An operation has ended.
    fn ended(&mut self, count: usize) {
        if self.is_sending {
            assert_eq!(count, self.buffer.len(), "the kernel sends all of it");
            (self.is_sending, self.got) = (false, 0);
        } else {
            self.got += count;
            self.is_sending = self.got == self.buffer.len();
        }
    }
}

/// A send goes on until all of it is sent: `MSG_WAITALL`.
const WAIT_ALL: u32 = 0x100;

/// Says where it listens, then answers each message on each connection with itself.
pub(super) fn echo(message_bytes: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    announce(listener.local_addr()?)?;
    let mut ring = Ring::new()?;
    let accept = || {
        let fd = Fd(listener.as_raw_fd());
        opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).build()
    };
    // SAFETY: it names no memory.
    unsafe { ring.push(accept(), LISTENER) };
    // Connections that have ended leave their place empty: a run makes few.
    let mut connections: Vec<Option<Connection>> = Vec::new();
    loop {
        ring.wait()?;
        while let Some((number, result)) = ring.next() {
            let index = if number == LISTENER {
                // SAFETY: the descriptor came from this accept just now, and nobody else has it.
                let stream = unsafe { TcpStream::from_raw_fd(result?) };
                stream.set_nodelay(true)?;
                connections.push(Some(Connection {
                    stream,
                    buffer: vec![0; message_bytes],
                    got: 0,
                    is_sending: false,
                }));
                // SAFETY: it names no memory.
                unsafe { ring.push(accept(), LISTENER) };
                connections.len() - 1
            } else {
                let index = usize::try_from(number).map_err(io::Error::other)?;
                let count = result.and_then(|count| match usize::try_from(count) {
                    Ok(count @ 1..) => Ok(count),
                    _ => Err(ErrorKind::UnexpectedEof.into()),
                });
                match (count, &mut connections[index]) {
                    (Ok(count), Some(connection)) => connection.ended(count),
                    (_, gone) => {
                        *gone = None;
                        continue;
                    }
                }
                index
            };
            let number = u64::try_from(index).map_err(io::Error::other)?;
            if let Some(connection) = &mut connections[index] {
                let operation = connection.operation()?;
                // SAFETY: it names the connection's buffer, which is touched next when its one operation has ended, and
                // is dropped then at the earliest. A buffer's bytes do not move with it.
                unsafe { ring.push(operation, number) };
            }
        }
    }
}

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(depth: usize) -> Result<Sample, Failure> {
    let (reads, file) = (Reads::new()?, reads::open()?);
    let mut ring = Ring::new()?;
    let mut buffers: Vec<_> = (0..depth).map(|_| reads::aligned()).collect();
    let mut begun = vec![Instant::now(); depth];
    let mut running = 0;
    let mut idle: Vec<usize> = (0..depth).collect();
    loop {
        while let Some(at) = idle.pop() {
            let Some((offset, now)) = reads.next() else {
                continue;
            };
            let (buffer, start) = &mut buffers[at];
            let place = buffer[*start..].as_mut_ptr();
            let read = opcode::Read::new(Fd(file.as_raw_fd()), place, u32::try_from(READ_BYTES)?);
            // SAFETY: it names the buffer of this place, which has one operation at a time and lives until all have ended.
            unsafe { ring.push(read.offset(offset).build(), u64::try_from(at)?) };
            (begun[at], running) = (now, running + 1);
        }
        if running == 0 {
            return reads.sample();
        }
        ring.wait()?;
        while let Some((number, count)) = ring.next() {
            let at = usize::try_from(number)?;
            reads.end(begun[at], usize::try_from(count?)?);
            running -= 1;
            idle.push(at);
        }
    }
}
