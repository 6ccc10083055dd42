//! Requests and answers that follow each other without end: as many answers at once as requests have come, and the other way
//! round.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::ring::{Flow, Path, Ring};
use super::set_up;

/// What is received at once at most.
pub(super) const RECEIVE_BYTES_MAX: usize = 256 * 1024;
/// Numbers that a connection begins with, of 8 bytes each.
const NUMBERS: usize = 5;

/// What goes over a connection, and through which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) request_bytes: usize,
    pub(crate) answer_bytes: usize,
    /// Requests under way at a time.
    pub(crate) depth: usize,
    /// Memory that the answering side goes through; 0: the same place again and again, at either side.
    pub(crate) walk_bytes: usize,
    /// Of answers whose other bytes are anywhere in that memory, each; 0: they lie in order.
    pub(crate) header_bytes: usize,
}

impl Exchange {
    fn numbers(self) -> [u8; 8 * NUMBERS] {
        let numbers: [usize; NUMBERS] = [
            self.request_bytes,
            self.answer_bytes,
            self.depth,
            self.walk_bytes,
            self.header_bytes,
        ];
        let mut bytes = [0; 8 * NUMBERS];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&(number as u64).to_le_bytes());
        }
        bytes
    }

    fn of_numbers(bytes: [u8; 8 * NUMBERS]) -> io::Result<Self> {
        let mut numbers = bytes.chunks_exact(8).map(|number| {
            let number = u64::from_le_bytes(number.try_into().expect("eight bytes"));
            usize::try_from(number).map_err(io::Error::other)
        });
        let mut next = || numbers.next().expect("as many as were sent");
        Ok(Self {
            request_bytes: next()?,
            answer_bytes: next()?,
            depth: next()?,
            walk_bytes: next()?,
            header_bytes: next()?,
        })
    }
}

/// Memory that is received into and sent from.
struct Memory {
    room: Vec<u8>,
    stock: Vec<u8>,
}

impl Memory {
    /// Receives into at least `receives_bytes`, sends from at least `sends_bytes`.
    fn new(receives_bytes: usize, sends_bytes: usize) -> Self {
        Self {
            // Not of zeroes, which would be one page for all.
            room: vec![1; receives_bytes.max(RECEIVE_BYTES_MAX)],
            stock: vec![2; sends_bytes],
        }
    }
}

/// The asking side: calls `on_answers` with how many answers came, until that says no.
pub(crate) fn ask(
    server: SocketAddr,
    exchange: Exchange,
    spin: Duration,
    mut on_answers: impl FnMut(usize) -> bool,
) -> io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    set_up(&stream)?;
    stream.write_all(&exchange.numbers())?;
    let Exchange {
        request_bytes,
        answer_bytes,
        depth,
        walk_bytes,
        ..
    } = exchange;
    // What commands have of memory is theirs alone, each its own.
    let received_bytes = if walk_bytes > 0 {
        answer_bytes * depth
    } else {
        0
    };
    let mut memory = Memory::new(received_bytes, request_bytes * depth);
    let mut ring = Ring::new(stream.as_raw_fd(), spin)?;
    let flow = Flow {
        comes_bytes: answer_bytes,
        goes_bytes: request_bytes,
        first: depth,
        path: if walk_bytes > 0 {
            Path::InOrder
        } else {
            Path::Stays
        },
    };
    ring.pump(flow, &mut memory.room, &memory.stock, &mut on_answers)
}

/// The answering side, on the next connection, to its end.
pub(crate) fn answer(listener: &TcpListener, spin: Duration) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    set_up(&stream)?;
    let mut numbers = [0; 8 * NUMBERS];
    stream.read_exact(&mut numbers)?;
    let exchange = Exchange::of_numbers(numbers)?;
    let walk_bytes = exchange.walk_bytes;
    let at_once_bytes = exchange.answer_bytes * exchange.depth;
    let mut memory = Memory::new(walk_bytes, walk_bytes.max(at_once_bytes));
    let mut ring = Ring::new(stream.as_raw_fd(), spin)?;
    let flow = Flow {
        comes_bytes: exchange.request_bytes,
        goes_bytes: exchange.answer_bytes,
        first: 0,
        path: match (walk_bytes, exchange.header_bytes) {
            (0, _) => Path::Stays,
            (_, 0) => Path::InOrder,
            (_, header_bytes) => Path::Gathers { header_bytes },
        },
    };
    match ring.pump(flow, &mut memory.room, &memory.stock, &mut |_| true) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        pumped => pumped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_answers_come_as_were_asked_for() {
        for (request_bytes, answer_bytes, depth, walk_bytes, header_bytes) in [
            (72, 4120, 32, 1 << 20, 24),
            (72, 4120, 32, 1 << 20, 0),
            (72, 4120, 1, 0, 0),
            (131_144, 24, 8, 1 << 20, 0),
        ] {
            let exchange = Exchange {
                request_bytes,
                answer_bytes,
                depth,
                walk_bytes,
                header_bytes,
            };
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let server = listener.local_addr().expect("an address");
            let answering = std::thread::spawn(move || answer(&listener, Duration::ZERO));
            let mut came = 0;
            let asked = ask(server, exchange, Duration::ZERO, |count| {
                came += count;
                came < 10_000
            });
            asked.expect("asked");
            answering.join().expect("no panic").expect("answered");
            let most = 10_000 + 2 * depth;
            assert!((10_000..most).contains(&came), "{came} of {exchange:?}");
        }
    }
}
