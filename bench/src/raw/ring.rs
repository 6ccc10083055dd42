//! One ring, set up as the product sets up its own.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

/// A ring with at most one receive and one send in flight, each waited for before its buffer is
/// touched again.
pub(crate) struct Ring {
    ring: IoUring,
    fd: Fd,
    spin: Duration,
}

/// Bytes that a socket takes at once, whatever its peer does.
const SEND_AT_ONCE_MAX: usize = 64 * 1024;
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
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let send = opcode::Send::new(self.fd, bytes.as_ptr(), len)
            .flags(flags)
            .build();
        self.push(&send.user_data(SEND));
    }

    fn queue_receive(&mut self, buffer: &mut [u8]) {
        let len = u32::try_from(buffer.len()).expect("small");
        let receive = opcode::Recv::new(self.fd, buffer.as_mut_ptr(), len).build();
        self.push(&receive.user_data(RECEIVE));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry names a slice that the caller of `exchange` or `receive` borrows until
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
