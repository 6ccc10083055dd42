//! What a slice of a transfer by adapters costs, beside a plain loop over the verbs, against adapters that do
//! nothing: instructions, counted from outside.
//!
//! ```text
//! slices verbs BYTES COUNT            COUNT writes of BYTES each, 16 under way, by the verbs alone
//! slices verbs BYTES COUNT RAILS      the same, by turns over so many queue pairs, 16 under way on each
//! slices engine BYTES COUNT           the same bytes as one transfer, in slices of BYTES each
//! slices engine BYTES COUNT RAILS     the same, over so many adapters
//! slices adaptive BYTES COUNT         the same, in slices as long as the engine makes them
//! slices requests BYTES COUNT         as many requests of BYTES each, posted as batches, as engines of models ask
//! ```
//!
//! Run twice with counts that differ (`valgrind --tool=callgrind`), and divide what they differ by: what is
//! done once cancels out.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{CoreOptions, DriverChoice, Idle, block_on, entropy};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_transfer::engine::{
    Batch, Engine, EngineOptions, PostOptions, RailOptions, RegisterOptions, SchedulerOptions,
};
use lunette_verbs::connect::Exchange;
use lunette_verbs::{
    Access, CompletionQueue, Context, ExposedWindow, Patience, QueuePair, QueueSizes, Ready,
    RegisteredExtent,
};

type Failure = Box<dyn Error>;

/// Memory at each end; it is walked again and again.
const MEMORY_BYTES: usize = 16 << 20;
const UNDER_WAY: usize = 16;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [
        "verbs" | "engine" | "adaptive" | "requests",
        bytes,
        count,
        ref rails @ ..,
    ] = words[..]
    else {
        return Err("slices verbs|engine|adaptive|requests BYTES COUNT [RAILS]".into());
    };
    let (how, bytes, count) = (words[0].to_owned(), bytes.parse()?, count.parse()?);
    let rails: usize = rails.first().map_or(Ok(1), |rails| rails.parse())?;
    let core = CoreOptions {
        idle: Idle::Latency,
        // Valgrind holds its lock while a thread waits in `io_uring_enter`.
        driver: DriverChoice::Epoll,
        ..CoreOptions::default()
    };
    let done = block_on(None, core, move || async move {
        let done = match &*how {
            "verbs" => verbs(bytes, count, rails).await,
            how => engine(bytes, count, rails, how).await,
        };
        done.map_err(|error| error.to_string())
    });
    Ok(done??)
}

fn memory() -> Result<Exposed, Failure> {
    Ok(Exposed::map(
        MEMORY_BYTES,
        HugePages::Never,
        &mut Vec::new(),
    )?)
}

/// Two queue pairs of adapters that do nothing, of which one is used.
fn connect(context: &Context, queue: &CompletionQueue) -> Result<[QueuePair<Ready>; 2], Failure> {
    let mut random = SplitMix64::new(entropy());
    let sizes = QueueSizes::default();
    let mut pair = || QueuePair::new(context, queue, sizes, Access::default(), &mut random);
    let patience = Patience::default();
    let mut one = Exchange::initiator(pair()?, patience, 1, Time::MAX);
    let mut other = Exchange::acceptor(pair()?, patience, 2, Time::MAX);
    let now = Time::ZERO;
    let offer = one.step(now, None).message;
    let accept = other.step(now, offer.as_deref()).message;
    let last = one.step(now, accept.as_deref());
    let ready = last.outcome?.ok_or("it connects")?;
    let other = other.step(now, last.message.as_deref()).outcome?;
    Ok([ready, other.ok_or("it connects")?])
}

async fn verbs(bytes: usize, count: usize, rails: usize) -> Result<(), Failure> {
    let context = Context::null();
    let queue = CompletionQueue::new(&context, 8192)?;
    let pairs = (0..rails).map(|_| connect(&context, &queue));
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let (here, there) = (memory()?, memory()?);
    let access = Access {
        remote_write: true,
        ..Access::default()
    };
    let window = ExposedWindow::register(&context, there, access).await?;
    let extent = RegisteredExtent::register(&context, here.extent()).await?;
    let places = MEMORY_BYTES / bytes;
    let mut turns = pairs.iter().cycle();
    let under_way_max = UNDER_WAY * rails;
    let mut under_way = VecDeque::with_capacity(under_way_max);
    for at in 0..count + under_way_max {
        if under_way.len() == under_way_max || at >= count {
            let Some(request) = under_way.pop_front() else {
                break;
            };
            let (result, _): (Result<(), lunette_verbs::RequestError>, _) = request.await;
            result?;
        }
        if at < count {
            let [pair, _other] = turns.next().ok_or("at least one rail")?;
            let offset = at % places * bytes;
            let lent = extent
                .lend(here.slice(offset, bytes))
                .ok_or("it lies there")?;
            let to = window.remote().at(offset as u64);
            under_way.push_back(pair.write_lent(lent, to, Time::MAX));
        }
    }
    Ok(())
}

async fn engine(bytes: usize, count: usize, rails: usize, how: &str) -> Result<(), Failure> {
    let adapters = || (0..rails).map(|_| Context::null()).collect::<Vec<_>>();
    let serving = EngineOptions {
        listen: vec!["127.0.0.1:0".parse()?],
        same_host: false,
        ..EngineOptions::default()
    };
    let server = Engine::start_with(serving, adapters())?;
    server.register(memory()?, &RegisterOptions::named("memory"))?;
    let slice = u32::try_from(bytes)?;
    let mut rail = RailOptions::ONE_SIDED;
    if how == "engine" {
        rail.slice_bytes_max = slice;
        rail.slice_bytes_min = slice;
        rail.window_bytes_max = u64::from(slice) * UNDER_WAY as u64;
    }
    let asking = EngineOptions {
        scheduler: SchedulerOptions {
            one_sided_rail: rail,
            ..SchedulerOptions::default()
        },
        same_host: false,
        ..EngineOptions::default()
    };
    let client = Engine::start_with(asking, adapters())?;
    let peer = client.open(server.addresses()).await?;
    let remote = peer.segment("memory").await?;
    let here = memory()?;
    let len_bytes = if how == "requests" {
        bytes
    } else {
        MEMORY_BYTES
    };
    let post = async |requests: usize| {
        let mut batch = Batch::new();
        for request in 0..requests {
            let offset = request * len_bytes % MEMORY_BYTES;
            batch.write(here.slice(offset, len_bytes), &remote, offset as u64)?;
        }
        let options = PostOptions {
            timeout: Duration::from_secs(3600),
            ..PostOptions::default()
        };
        Ok::<_, Failure>(peer.post(&batch, options)?.await?)
    };
    // Rails and windows are there then.
    post(1).await?;
    let requests = (bytes * count).div_ceil(len_bytes);
    let done = post(requests).await?;
    let moved = client.statistics().one_sided_bytes;
    let len = done.len_bytes;
    if moved < len {
        return Err(format!("{moved} of {len} bytes by adapters").into());
    }
    eprintln!(
        "{} slices of {} bytes each",
        done.slices,
        len / done.slices.max(1)
    );
    Ok(())
}
