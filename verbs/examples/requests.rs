//! What requests cost: instructions against the null device, and a table of bandwidth and latency
//! for owners of adapters, ready to be pasted into a report.
//!
//! ```text
//! requests null COUNT                      COUNT requests to a device that does nothing
//! requests flood DEVICE DEVICE OPERATION BYTES COUNT DEPTH [extended]
//!                                          one process, one core, both devices
//! requests serve DEVICE ADDRESS            the passive side of a table
//! requests table DEVICE ADDRESS [extended] the active side: prints it
//! ```
//!
//! `OPERATION` is `write` or `read`. Instructions are counted from outside, by running twice with
//! counts that differ and dividing what they differ by: what is done once cancels out. `flood`
//! sleeps when it has nothing to do, so that waiting is not counted; the others never sleep.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::arena::ArenaOptions;
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{CoreOptions, DriverChoice, Idle, arena, block_on, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_verbs::connect::{accept, initiate};
use lunette_verbs::{
    Access, Calls, CompletionQueue, Context, Patience, Piece, QueuePair, QueueSizes, Ready,
    RemoteMemory, Request, RequestError, Slab, Window,
};

type Failure = Box<dyn Error>;
/// How a request ended, and its memory.
type Ended = (Result<(), RequestError>, Option<Piece>);

const MEMORY_BYTES: usize = 32 * 1024 * 1024;
const DEPTH: usize = 128;
/// How long a row of the table runs.
const ROW: Duration = Duration::from_secs(3);
const SIZES: [usize; 6] = [64, 4096, 16_384, 65_536, 262_144, 1_048_576];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
}

#[derive(Debug)]
struct End {
    pair: QueuePair<Ready>,
    queue: CompletionQueue,
    slab: Slab,
    window: Window,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["null", count] => {
            let count = count.parse()?;
            on_core(Idle::Latency, move || async move { null(count).await })
        }
        [
            "flood",
            a,
            b,
            operation,
            bytes,
            count,
            depth,
            ref calls @ ..,
        ] => {
            let calls = calls_of(calls)?;
            let (a, b) = (a.to_owned(), b.to_owned());
            let (operation, bytes) = (operation_of(operation)?, bytes.parse()?);
            let (count, depth) = (count.parse()?, depth.parse()?);
            on_core(Idle::Efficient, move || async move {
                let devices = (
                    Context::open_with(&a, calls)?,
                    Context::open_with(&b, calls)?,
                );
                both(devices, operation, bytes, count, depth).await
            })
        }
        ["serve", device, address] => {
            let (device, address) = (device.to_owned(), address.parse()?);
            on_core(Idle::Latency, move || async move {
                serve(&device, address).await
            })
        }
        ["table", device, address, ref calls @ ..] => {
            let calls = calls_of(calls)?;
            let (device, address) = (device.to_owned(), address.parse()?);
            on_core(Idle::Latency, move || async move {
                table(&device, address, calls).await
            })
        }
        _ => Err("see the first lines of this program's source for its arguments".into()),
    }
}

fn on_core<F>(idle: Idle, run: impl FnOnce() -> F + Send) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + 'static,
{
    // Valgrind holds its lock while a thread waits in io_uring, so that nobody can wake it.
    let sleeps = idle == Idle::Efficient;
    let driver = if sleeps {
        DriverChoice::Epoll
    } else {
        DriverChoice::Best
    };
    let options = CoreOptions {
        driver,
        idle,
        arena: ArenaOptions {
            bytes_max: 8 * MEMORY_BYTES,
            chunk_bytes: 2 * MEMORY_BYTES,
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    };
    let ended = block_on(None, options, || {
        let running = run();
        // Errors of other threads cannot be handed over as they are.
        async move { running.await.map_err(|error| error.to_string()) }
    });
    ended?.map_err(Failure::from)
}

fn operation_of(word: &str) -> Result<Operation, Failure> {
    match word {
        "write" => Ok(Operation::Write),
        "read" => Ok(Operation::Read),
        _ => Err("an operation is write or read".into()),
    }
}

fn calls_of(words: &[&str]) -> Result<Calls, Failure> {
    match words {
        [] => Ok(Calls::Lists),
        ["extended"] => Ok(Calls::Extended),
        _ => Err("the last word is extended, or is left out".into()),
    }
}

/// Not secret, and different each time.
fn random() -> SplitMix64 {
    let process = u64::from(std::process::id()) << 32;
    SplitMix64::new(process ^ time::now().as_ns())
}

fn far() -> Time {
    time::now() + Duration::from_secs(60)
}

async fn one_end(
    context: &Context,
    stream: &TcpStream,
    is_initiator: bool,
    memory_bytes: usize,
) -> Result<End, Failure> {
    let sizes = QueueSizes::default();
    let queue = CompletionQueue::new(context, sizes.sends + sizes.receives)?;
    let slab = Slab::register(context, arena().alloc(memory_bytes)?)?;
    let access = Access {
        remote_read: true,
        remote_write: true,
        ..Access::default()
    };
    let window = Window::register(context, arena().alloc(memory_bytes)?, access)?;
    let mut random = random();
    let pair = QueuePair::new(context, &queue, sizes, access, &mut random)?;
    let (patience, epoch) = (Patience::default(), random.next());
    let pair = if is_initiator {
        initiate(stream, pair, patience, epoch).await?
    } else {
        accept(stream, pair, patience, epoch).await?
    };
    Ok(End {
        pair,
        queue,
        slab,
        window,
    })
}

/// Both ends in this task's core.
async fn connected(a: Context, b: Context, memory_bytes: usize) -> Result<(End, End), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0".parse()?)?;
    let address = listener.local_addr();
    let accepting = spawn_local(async move {
        let stream = listener.accept().await?;
        one_end(&b, &stream, false, memory_bytes).await
    });
    let stream = TcpStream::connect(address).await?;
    let first = one_end(&a, &stream, true, memory_bytes).await?;
    Ok((first, accepting.await??))
}

impl End {
    fn post(
        &self,
        operation: Operation,
        piece: Piece,
        to: RemoteMemory,
        deadline: Time,
    ) -> Request {
        let len = piece.len();
        match operation {
            Operation::Write => self.pair.write(piece, len, to, deadline),
            Operation::Read => self.pair.read(piece, len, to, deadline),
        }
    }

    /// Requests until `enough` says so, `depth` in flight: how many.
    async fn flood(
        &self,
        operation: Operation,
        bytes: usize,
        depth: usize,
        to: RemoteMemory,
        mut enough: impl FnMut(u64) -> bool,
    ) -> Result<u64, Failure> {
        let deadline = far();
        let mut flying: VecDeque<Request> = VecDeque::with_capacity(depth);
        let mut count = 0;
        while !enough(count) {
            let oldest = if flying.len() < depth {
                None
            } else {
                flying.pop_front()
            };
            let piece = match oldest {
                None => self.slab.alloc(bytes)?,
                Some(request) => taken(request.await)?,
            };
            flying.push_back(self.post(operation, piece, to, deadline));
            count += 1;
        }
        for request in flying {
            taken(request.await)?;
        }
        Ok(count)
    }

    /// One request at a time: its median and 99th percentile, in microseconds.
    async fn latency(
        &self,
        operation: Operation,
        bytes: usize,
        to: RemoteMemory,
    ) -> Result<(f64, f64), Failure> {
        let (ends, deadline) = (time::now() + ROW / 3, far());
        let mut piece = self.slab.alloc(bytes)?;
        let mut spans_us = Vec::new();
        while time::now() < ends {
            let started = time::now();
            piece = taken(self.post(operation, piece, to, deadline).await)?;
            spans_us.push(time::now().since(started).as_secs_f64() * 1e6);
        }
        spans_us.sort_by(f64::total_cmp);
        let at = |percent: usize| spans_us[(spans_us.len() - 1) * percent / 100];
        Ok((at(50), at(99)))
    }
}

/// The piece of a request that was done.
#[inline]
fn taken((outcome, piece): Ended) -> Result<Piece, Failure> {
    outcome?;
    Ok(piece.ok_or("the piece comes back")?)
}

async fn null(count: u64) -> Result<(), Failure> {
    let (one, other) = connected(Context::null(), Context::null(), 1 << 20).await?;
    let to = other.window.remote();
    one.flood(Operation::Write, 64, DEPTH, to, |done| done >= count)
        .await?;
    report(&one);
    Ok(())
}

async fn both(
    (a, b): (Context, Context),
    operation: Operation,
    bytes: usize,
    count: u64,
    depth: usize,
) -> Result<(), Failure> {
    let (one, other) = connected(a, b, 2 * bytes * depth).await?;
    let (to, started) = (other.window.remote(), time::now());
    let flooded = one
        .flood(operation, bytes, depth, to, |done| done >= count)
        .await;
    flooded.inspect_err(|_| eprintln!("{:?}, {:?}", one.pair, one.queue))?;
    let elapsed = time::now().since(started).as_secs_f64();
    let moved = megabytes(bytes, count);
    println!(
        "{count} x {bytes} bytes in {elapsed:.3} s: {:.1} MB/s",
        moved / elapsed
    );
    report(&one);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn megabytes(bytes: usize, count: u64) -> f64 {
    bytes as f64 * count as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn report(end: &End) {
    let (pair, queue) = (end.pair.counts(), end.queue.counts());
    println!(
        "requests per doorbell {:.1}, signalled {:.1} %, polls per completion {:.2}, parks {}",
        ratio(pair.posted, pair.doorbells),
        100.0 * ratio(pair.signalled, pair.posted),
        ratio(queue.polls, queue.completions),
        queue.parks
    );
}

async fn serve(device: &str, address: SocketAddr) -> Result<(), Failure> {
    let context = Context::open(device)?;
    let listener = TcpListener::bind(address)?;
    println!("{device}: serving at {}", listener.local_addr());
    loop {
        let stream = listener.accept().await?;
        let end = one_end(&context, &stream, false, MEMORY_BYTES).await?;
        let remote = end.window.remote();
        let mut bytes = remote.address.to_le_bytes().to_vec();
        bytes.extend(remote.rkey.to_le_bytes());
        stream.send_all(bytes, 0, 12).await.0?;
        // Until the peer is done.
        let (ended, _) = stream.recv(vec![0; 1], 0, 1).await;
        ended?;
    }
}

async fn table(device: &str, address: SocketAddr, calls: Calls) -> Result<(), Failure> {
    let context = Context::open_with(device, calls)?;
    let stream = TcpStream::connect(address).await?;
    let end = one_end(&context, &stream, true, MEMORY_BYTES).await?;
    let mut bytes = vec![0; 12];
    let mut filled = 0;
    while filled < 12 {
        let (count, back) = stream.recv(bytes, filled, 12 - filled).await;
        bytes = back;
        filled += count?;
    }
    let to = RemoteMemory {
        address: u64::from_le_bytes(bytes[..8].try_into()?),
        rkey: u32::from_le_bytes(bytes[8..].try_into()?),
    };
    let info = context.info()?;
    println!(
        "{device}: MTU {} bytes, {:?} addresses, requests built in place: {}, completions read in \
         place: {}",
        end.pair.agreement().mtu_bytes,
        info.gids.len(),
        end.pair.is_built(),
        end.queue.is_extended()
    );
    println!("| operation | bytes | in flight | GB/s | requests/s | p50 us (one) | p99 us (one) |");
    println!("|---|---|---|---|---|---|---|");
    for operation in [Operation::Write, Operation::Read] {
        for bytes in SIZES {
            row(&end, operation, bytes, to).await?;
        }
    }
    report(&end);
    Ok(())
}

async fn row(
    end: &End,
    operation: Operation,
    bytes: usize,
    to: RemoteMemory,
) -> Result<(), Failure> {
    let depth = DEPTH.min(MEMORY_BYTES / 2 / bytes);
    let (p50_us, p99_us) = end.latency(operation, bytes, to).await?;
    let started = time::now();
    // The clock is read now and then only.
    let enough = |done: u64| done.is_multiple_of(64) && time::now().since(started) >= ROW;
    let count = end.flood(operation, bytes, depth, to, enough).await?;
    let elapsed = time::now().since(started).as_secs_f64();
    println!(
        "| {operation:?} | {bytes} | {depth} | {:.3} | {:.0} | {p50_us:.1} | {p99_us:.1} |",
        megabytes(bytes, count) / elapsed / 1e3,
        megabytes(1_000_000, count) / elapsed,
    );
    Ok(())
}
