//! One ring, set up as the product sets up its own.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use std::ptr;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use lunette_runtime_core::random::SplitMix64;

use super::pump::RECEIVE_BYTES_MAX;

/// A ring with at most one receive and one send in flight, each waited for before its buffer is
/// touched again.
pub(crate) struct Ring {
    ring: IoUring,
    fd: Fd,
    spin: Duration,
}

/// What a side sends for what comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Bytes of each thing that comes, and of what goes for it.
    pub(super) comes_bytes: usize,
    pub(super) goes_bytes: usize,
    /// Things that go at first. 0 at the side that answers.
    pub(super) first: usize,
    /// What memory it goes through.
    pub(super) path: Path,
}

/// How a side goes through the memory that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// It stays at one place.
    Stays,
    /// From its beginning to its end.
    InOrder,
    /// What goes has this many bytes from one place and the others from another one, at random, at a multiple of their
    /// number. What comes goes in order.
    Gathers { header_bytes: usize },
}

/// Bytes that a socket takes at once, whatever its peer does.
const SEND_AT_ONCE_MAX: usize = 64 * 1024;
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
/// Which operation a completion belongs to.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

impl Ring {
    pub(crate) fn new(fd: RawFd, spin: Duration) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(8)?;
        Ok(Self {
            ring,
            fd: Fd(fd),
            spin,
        })
    }

    /// Sends all of `request`, then receives exactly `reply.len()` bytes.
    pub(crate) fn exchange(&mut self, request: &[u8], reply: &mut [u8]) -> io::Result<()> {
        self.queue_send(request);
        self.queue_receive(reply);
        let mut got = 0;
        let mut sent = false;
        // A send that does not fit the socket's buffers goes on in steps, each of which must be able
        // to wake the ring: a ring that waits for two completions is not woken by one step.
        let mut wanted = if request.len() <= SEND_AT_ONCE_MAX {
            2
        } else {
            1
        };
        while !sent || got < reply.len() {
            self.wait(wanted)?;
            wanted = 1;
            while let Some((which, count)) = self.next()? {
                if which == SEND {
                    assert_eq!(count, request.len(), "the kernel sends all of it");
                    sent = true;
                } else {
                    got += count;
                    if got < reply.len() {
                        self.queue_receive(&mut reply[got..]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives exactly `buffer.len()` bytes; false if the peer has finished.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < buffer.len() {
            self.queue_receive(&mut buffer[got..]);
            match self.complete() {
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Sends all of `reply` and receives the whole next request; false if the peer has finished.
    pub(crate) fn answer(&mut self, reply: &[u8], request: &mut [u8]) -> io::Result<bool> {
        match self.exchange(reply, request) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends one thing from `stock` for each that has come whole into `room`, as many at once as have come, until `on_come`, told
    /// how many, says no. All that is under way has come then.
    pub(super) fn pump(
        &mut self,
        flow: Flow,
        room: &mut [u8],
        stock: &[u8],
        on_come: &mut dyn FnMut(usize) -> bool,
    ) -> io::Result<()> {
        let stays = flow.path == Path::Stays;
        let (mut room_at, mut sends) = (0, Sends::new(flow, stock));
        let (mut owed, mut awaited, mut came_bytes) = (flow.first, 0, 0);
        let (mut sent_bytes, mut receives, mut goes_on) = (0, false, true);
        loop {
            if sent_bytes == 0 && owed > 0 {
                sent_bytes = owed * flow.goes_bytes;
                self.queue_sends(&mut sends, owed);
                awaited += owed;
                owed = 0;
            }
            // Who answers does not know whether more comes.
            let more_comes = flow.first == 0 || awaited > 0;
            if !receives && more_comes {
                if stays || room_at == room.len() {
                    room_at = 0;
                }
                let end = room.len().min(room_at + RECEIVE_BYTES_MAX);
                self.queue_receive(&mut room[room_at..end]);
                receives = true;
            }
            if sent_bytes == 0 && !receives {
                return Ok(());
            }
            self.wait(1)?;
            while let Some((which, count)) = self.next()? {
                if which == SEND {
                    assert_eq!(count, sent_bytes, "the kernel sends all of it");
                    sent_bytes = 0;
                    continue;
                }
                receives = false;
                room_at += count;
                came_bytes += count;
                let came = came_bytes / flow.comes_bytes;
                came_bytes %= flow.comes_bytes;
                awaited = awaited.saturating_sub(came);
                goes_on = goes_on && (came == 0 || on_come(came));
                owed += if goes_on { came } else { 0 };
            }
        }
    }

    /// Queues a send of that many things.
    fn queue_sends(&mut self, sends: &mut Sends<'_>, count: usize) {
        let Path::Gathers { header_bytes } = sends.flow.path else {
            let part = sends.next_part(count);
            self.queue_send(part);
            return;
        };
        sends.gather(count, header_bytes);
        let send = opcode::SendMsg::new(self.fd, &raw const sends.message)
            .flags(SEND_FLAGS.cast_unsigned())
            .build();
        self.push(&send.user_data(SEND));
    }

    fn complete(&mut self) -> io::Result<usize> {
        loop {
            if let Some((_, count)) = self.next()? {
                return Ok(count);
            }
            self.wait(1)?;
        }
    }

    fn queue_send(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("small");
        let send = opcode::Send::new(self.fd, bytes.as_ptr(), len)
            .flags(SEND_FLAGS)
            .build();
        self.push(&send.user_data(SEND));
    }

    fn queue_receive(&mut self, buffer: &mut [u8]) {
        let len = u32::try_from(buffer.len()).expect("small");
        let receive = opcode::Recv::new(self.fd, buffer.as_mut_ptr(), len).build();
        self.push(&receive.user_data(RECEIVE));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry names a slice that the caller of `exchange`, `receive` or `pump` borrows until
        // that call returns, and the call returns after the entry's completion (or with an error
        // that ends the process's use of the connection).
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("at most two entries are queued");
    }

    /// Hands submissions over, then polls for a while, then sleeps until `wanted` completions.
    fn wait(&mut self, wanted: usize) -> io::Result<()> {
        if !self.spin.is_zero() {
            self.ring.submit()?;
            let start = Instant::now();
            while start.elapsed() < self.spin {
                if !self.ring.completion().is_empty() {
                    return Ok(());
                }
                if self.ring.submission().taskrun() {
                    self.ring.submit()?;
                }
                std::hint::spin_loop();
            }
        }
        self.ring.submit_and_wait(wanted).map(drop)
    }

    /// The next completion: which operation, how many bytes.
    fn next(&mut self) -> io::Result<Option<(u64, usize)>> {
        let Some(entry) = self.ring.completion().next() else {
            return Ok(None);
        };
        match entry.result() {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            result => match usize::try_from(result) {
                Ok(count) => Ok(Some((entry.user_data(), count))),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            },
        }
    }
}

/// What a side sends next, of one send at a time.
struct Sends<'a> {
    flow: Flow,
    stock: &'a [u8],
    at: usize,
    random: SplitMix64,
    /// The parts of the send under way, which `message` names.
    parts: Vec<libc::iovec>,
    message: libc::msghdr,
}

impl<'a> Sends<'a> {
    fn new(flow: Flow, stock: &'a [u8]) -> Self {
        Self {
            flow,
            stock,
            at: 0,
            random: SplitMix64::new(1),
            parts: Vec::new(),
            message: libc::msghdr {
                msg_name: ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: ptr::null_mut(),
                msg_iovlen: 0,
                msg_control: ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
        }
    }

    /// So many things that lie together.
    fn next_part(&mut self, count: usize) -> &'a [u8] {
        let len = count * self.flow.goes_bytes;
        if self.flow.path == Path::Stays || self.at + len > self.stock.len() {
            self.at = 0;
        }
        let part = &self.stock[self.at..self.at + len];
        self.at += len;
        part
    }

    /// So many things, of two parts each.
    fn gather(&mut self, count: usize, header_bytes: usize) {
        let body_bytes = self.flow.goes_bytes - header_bytes;
        let places = u32::try_from(self.stock.len() / body_bytes).expect("not that many");
        self.parts.clear();
        for _ in 0..count {
            let at = self.random.below(places) as usize * body_bytes;
            for part in [
                &self.stock[..header_bytes],
                &self.stock[at..at + body_bytes],
            ] {
                self.parts.push(libc::iovec {
                    iov_base: part.as_ptr().cast_mut().cast(),
                    iov_len: part.len(),
                });
            }
        }
        self.message.msg_iov = self.parts.as_mut_ptr();
        self.message.msg_iovlen = self.parts.len();
    }
}
