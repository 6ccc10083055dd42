//! The asking side: one thread that spins on plain sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_bench::calls::{Calls, Measure, Pace};
use lunette_bench::harness::{Failure, Sample};
use rustix::event::{Timespec, epoll};

use crate::batches::as_f64;

/// An answer that has not come by then never comes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at a socket between two looks at the clock.
const LOOKS: u32 = 1 << 20;
const WARM_UP: Duration = Duration::from_millis(50);
const RUN: Duration = Duration::from_millis(400);
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// Median time of sending `message_bytes` and having all of them back, one after the other.
pub(crate) fn ping(server: SocketAddr, message_bytes: usize) -> Result<Sample, Failure> {
    let mut stream = connect(server)?;
    let message = vec![7; message_bytes];
    let mut back = vec![0; message_bytes];
    let mut calls = Calls::new(Pace::Hot);
    while calls.go_on() {
        calls.begin();
        spin(message_bytes, |done| stream.write(&message[done..]))?;
        spin(message_bytes, |done| stream.read(&mut back[done..]))?;
        calls.end();
    }
    if back != message {
        return Err("the echo differs".into());
    }
    Ok(calls.sample(Measure::P50))
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Repeats `step`, which is told how many bytes are done, until all are.
fn spin(bytes: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let (mut done, mut looks, mut since) = (0, 0, None);
    while done < bytes {
        match step(done) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                looks += 1;
                if looks % LOOKS == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
                {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One connection that always has one message under way.
#[derive(Debug)]
struct Busy {
    stream: TcpStream,
    got: usize,
    sent_at: Instant,
}

/// Microseconds per message, over `active` connections that each have one message under way, while
/// `idle` others have none.
pub(crate) fn many(
    server: SocketAddr,
    message_bytes: usize,
    active: usize,
    idle: usize,
) -> Result<Sample, Failure> {
    let idle: Vec<TcpStream> = (0..idle)
        .map(|_| connect(server))
        .collect::<Result<_, _>>()?;
    let message = vec![7; message_bytes];
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut busy = Vec::new();
    for index in 0..active {
        let mut stream = connect(server)?;
        let data = epoll::EventData::new_u64(u64::try_from(index)?);
        epoll::add(&poll, &stream, data, epoll::EventFlags::IN)?;
        spin(message_bytes, |done| stream.write(&message[done..]))?;
        busy.push(Busy {
            stream,
            got: 0,
            sent_at: Instant::now(),
        });
    }
    let mut asking = Asking {
        message,
        back: vec![0; message_bytes],
        latencies_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?,
        warm: false,
    };
    let opened = Instant::now();
    let mut measured_from = opened;
    let mut events = Vec::with_capacity(active);
    loop {
        let now = Instant::now();
        if !asking.warm && now - opened >= WARM_UP {
            (asking.warm, measured_from) = (true, now);
        }
        if asking.warm && now - measured_from >= RUN {
            break;
        }
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        events.clear();
        epoll::wait(
            &poll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&at_once),
        )?;
        for event in &events {
            let index = usize::try_from(event.data.u64())?;
            asking.go_on(&mut busy[index])?;
        }
    }
    let took = measured_from.elapsed();
    drop(idle);
    asking.sample(took)
}

/// What all connections share.
struct Asking {
    message: Vec<u8>,
    back: Vec<u8>,
    latencies_ns: Histogram<u64>,
    warm: bool,
}

impl Asking {
    /// Takes what has come; sends the next message if that was the rest of an answer.
    fn go_on(&mut self, busy: &mut Busy) -> io::Result<()> {
        match busy.stream.read(&mut self.back[busy.got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => busy.got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        if busy.got < self.message.len() {
            return Ok(());
        }
        if self.warm {
            let took = busy.sent_at.elapsed().as_nanos();
            self.latencies_ns
                .saturating_record(u64::try_from(took).unwrap_or(u64::MAX));
        }
        (busy.got, busy.sent_at) = (0, Instant::now());
        let (stream, message) = (&mut busy.stream, &self.message);
        spin(message.len(), |done| stream.write(&message[done..]))
    }

    fn sample(&self, took: Duration) -> Result<Sample, Failure> {
        let count = self.latencies_ns.len();
        if count == 0 {
            return Err("no message came back".into());
        }
        Ok(Sample {
            value: took.as_secs_f64() * 1e6 / as_f64(count),
            p99: as_f64(self.latencies_ns.value_at_quantile(0.99)) / 1e3,
        })
    }
}
