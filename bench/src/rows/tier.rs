//! A member whose drive takes what leaves its memory, and a client of it over TCP, each on a CPU of its own. What is
//! counted is what the drive took, or what came from there.

use std::cell::Cell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_bench::coordinator::{self, loopback};
use lunette_bench::harness::{Failure, Plan, Sample};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, DriveReport, Fetched, Node, NodeOptions,
    Prefault, PutOptions, TierOptions, Value,
};
use lunette_runtime::arena::Region;
use lunette_runtime::{CoreOptions, Placement, Runtime, arena, block_on, spawn_local, time};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::Room;

use super::drive::{AT_A_TIME, Gets, LATENCY_NS_MAX, RECORD_BYTES, at_a_time};
use super::inside::name;
use crate::peer::idle;
use crate::raw::SPIN;

/// Memory of the member.
const MEMORY_BYTES: u64 = 256 << 20;
/// Objects that fill the memory, and those that are put where the drive's writes are measured: once and a half what it
/// has room for.
const FILL: u64 = 256;
const PUT: u64 = 3 << 10;
/// Objects that are put before some are read, and those: the earliest, which are not in memory any more.
const PUT_BEFORE: u64 = 1_536;
const READ: u64 = 1 << 10;
/// How much longer the pause is behind each that is long.
const LONG_PAUSE: u32 = 40;
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// The object that is got while others leave, and the pause before each get.
const SHORT: &[u8] = b"short";
const SHORT_BYTES: usize = 4096;
const GET_PAUSE: Duration = Duration::from_micros(200);

/// A member in this process, with its coordinator.
struct Member {
    node: Node,
    _coordinator: Runtime,
}

impl Member {
    fn start(tier: Option<TierOptions>, plan: &Plan) -> Result<Self, Failure> {
        let mut options = NodeOptions::new(NodeId(1), loopback(), MEMORY_BYTES);
        let (coordinator, address) = coordinator::start()?;
        options.cluster = Some(ClusterOptions::new("tier", vec![address]));
        options.placement = Placement::Pinned(vec![plan.server_cpu]);
        options.idle = idle(SPIN);
        options.prefault = Prefault::All;
        options.tier = tier;
        let node = Node::start(options)?;
        node.joined()?;
        Ok(Self {
            node,
            _coordinator: coordinator,
        })
    }

    fn drive(&self) -> Result<DriveReport, Failure> {
        let reports = pollster::block_on(self.node.watch().report())?;
        let mut members = reports.iter().filter_map(|report| report.member);
        let drive = members.next().and_then(|member| member.drive);
        drive.ok_or_else(|| "it has no drive".into())
    }

    /// Has a client do something.
    fn with_client<F>(
        &self,
        plan: &Plan,
        work: impl FnOnce(Rc<ClusterClient>) -> F + Send + 'static,
    ) -> Result<Sample, Failure>
    where
        F: Future<Output = Result<Sample, String>> + 'static,
    {
        let (cpu, server) = (plan.client_cpu, self.node.address());
        let options = CoreOptions {
            idle: idle(SPIN),
            ..CoreOptions::default()
        };
        let worked = std::thread::spawn(move || {
            let worked = block_on(Some(cpu), options, move || async move {
                let options = ClusterClientOptions::new(vec![server]);
                let client = ClusterClient::connect(options).await;
                work(Rc::new(client.map_err(|error| error.to_string())?)).await
            });
            worked.map_err(|error| error.to_string())?
        });
        Ok(worked.join().map_err(|_| "the client panicked")??)
    }
}

/// How fast what is put leaves for the drive.
pub(super) fn demoted(
    folder: PathBuf,
    capacity_bytes: u64,
    plan: &Plan,
) -> Result<Sample, Failure> {
    let tier = TierOptions::in_folders(vec![folder], capacity_bytes);
    let member = Member::start(Some(tier), plan)?;
    member.with_client(plan, |client| put_all(client, 0..FILL))?;
    let before = member.drive()?;
    let begun = Instant::now();
    let sample = member.with_client(plan, |client| put_all(client, FILL..FILL + PUT))?;
    let seconds = begun.elapsed().as_secs_f64();
    let demoted = member.drive()?.demoted - before.demoted;
    let demoted_bytes = demoted * RECORD_BYTES as u64;
    Ok(Sample {
        value: demoted_bytes as f64 / seconds / 1e9,
        ..sample
    })
}

/// How fast what has left comes back.
pub(super) fn cold(
    (folder, capacity_bytes): (PathBuf, u64),
    Gets { depth, bytes }: Gets,
    plan: &Plan,
) -> Result<Sample, Failure> {
    let times = bytes / RECORD_BYTES;
    // Of long ones fewer fit a segment than its length would have.
    let count = |of: u64| {
        if times > 1 {
            of * 3 / 4 / times as u64
        } else {
            of
        }
    };
    let (put_before, reads) = (count(PUT_BEFORE), count(READ));
    let pause = TRY_AGAIN * if times > 1 { LONG_PAUSE } else { 1 };
    let tier = TierOptions::in_folders(vec![folder], capacity_bytes);
    let member = Member::start(Some(tier), plan)?;
    // Nothing is lost on the way if the drive is not hurried.
    member.with_client(plan, move |client| async move {
        let value = value(bytes)?;
        for number in 0..put_before {
            put(&client, number, &value).await?;
            time::sleep(pause).await;
        }
        Ok(Sample {
            value: 0.0,
            p99: 0.0,
        })
    })?;
    let before = member.drive()?;
    let sample = member.with_client(plan, move |client| async move {
        // An odd factor: each once.
        let get = |nth: u64| {
            get(
                Rc::clone(&client),
                nth.wrapping_mul(0x9e37_79b9) % reads,
                bytes,
            )
        };
        at_a_time(depth, reads, get).await
    })?;
    let read = member.drive()?.read - before.read;
    // The last of them may still have been in memory.
    if read < reads * 9 / 10 {
        return Err(format!("{read} of {reads} were read from the drive").into());
    }
    Ok(Sample {
        value: sample.value * times as f64,
        ..sample
    })
}

/// How long a short get takes, of a hundred the second longest, while objects are put into full memory: so fast as a drive
/// takes what leaves it, or, without a drive, `puts_per_s`. Beside it how many were put in a second.
pub(super) fn got_beside(
    drive: Option<(PathBuf, u64)>,
    puts_per_s: Option<f64>,
    plan: &Plan,
) -> Result<(Sample, f64), Failure> {
    let tier = drive.map(|(folder, bytes)| TierOptions::in_folders(vec![folder], bytes));
    let member = Member::start(tier, plan)?;
    member.with_client(plan, |client| put_all(client, 0..FILL))?;
    let begun = Instant::now();
    let sample = member.with_client(plan, move |client| async move {
        let is_over = Rc::new(Cell::new(false));
        let gets = spawn_local(get_again(Rc::clone(&client), Rc::clone(&is_over)));
        put_paced(client, FILL..FILL + PUT, puts_per_s).await?;
        is_over.set(true);
        let p99 = gets.await.map_err(|error| error.to_string())??;
        Ok(Sample { value: p99, p99 })
    })?;
    Ok((sample, PUT as f64 / begun.elapsed().as_secs_f64()))
}

/// Gets one short object until it is over: what is the second longest of a hundred takes, in microseconds.
async fn get_again(client: Rc<ClusterClient>, is_over: Rc<Cell<bool>>) -> Result<f64, String> {
    let value = arena().alloc(SHORT_BYTES);
    let value = value.map_err(|error| error.to_string())?.freeze();
    put_at(&client, SHORT, &value).await?;
    let took = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3);
    let mut took = took.map_err(|error| error.to_string())?;
    let room = arena().alloc(SHORT_BYTES);
    let mut room = Room::whole(room.map_err(|error| error.to_string())?);
    while !is_over.get() {
        time::sleep(GET_PAUSE).await;
        let begun = Instant::now();
        room = match client.get(SHORT, room).await {
            Ok(Fetched::Hit { room, .. }) => room,
            Ok(Fetched::Miss { .. }) => return Err("the object that is got is gone".to_owned()),
            Err(failure) => return Err(failure.error.to_string()),
        };
        let ns = begun.elapsed().as_nanos();
        took.saturating_record(u64::try_from(ns).unwrap_or(u64::MAX));
    }
    Ok(took.value_at_quantile(0.99) as f64 / 1e3)
}

/// Puts objects, not more of them in a second than this.
async fn put_paced(
    client: Rc<ClusterClient>,
    numbers: Range<u64>,
    puts_per_s: Option<f64>,
) -> Result<(), String> {
    let Some(puts_per_s) = puts_per_s else {
        return put_all(client, numbers).await.map(drop);
    };
    let begun = Instant::now();
    for first in numbers.clone().step_by(AT_A_TIME) {
        let due = Duration::from_secs_f64((first - numbers.start) as f64 / puts_per_s);
        time::sleep(due.saturating_sub(begun.elapsed())).await;
        let next = (first + AT_A_TIME as u64).min(numbers.end);
        put_all(Rc::clone(&client), first..next).await?;
    }
    Ok(())
}

async fn put_all(client: Rc<ClusterClient>, numbers: Range<u64>) -> Result<Sample, String> {
    let value = value(RECORD_BYTES)?;
    let put_one = |nth| {
        let number = numbers.start + nth;
        let (client, value) = (Rc::clone(&client), value.clone());
        async move { put(&client, number, &value).await }
    };
    at_a_time(AT_A_TIME, numbers.end - numbers.start, put_one).await
}

fn value(bytes: usize) -> Result<Region, String> {
    let region = arena().alloc(bytes);
    let mut region = region.map_err(|error| error.to_string())?;
    region.as_mut_slice().fill(0x5a);
    Ok(region.freeze())
}

fn key(number: u64) -> Result<Vec<u8>, String> {
    let number = usize::try_from(number);
    Ok(name(number.map_err(|error| error.to_string())?))
}

/// Where there is no room it comes again.
async fn put(client: &ClusterClient, number: u64, value: &Region) -> Result<(), String> {
    put_at(client, &key(number)?, value).await
}

async fn put_at(client: &ClusterClient, key: &[u8], value: &Region) -> Result<(), String> {
    loop {
        let value = Value::new(value.clone());
        match client.put(key, value, PutOptions::default()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_backpressure() || error.is_retryable() => {
                time::sleep(TRY_AGAIN).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn get(client: Rc<ClusterClient>, number: u64, bytes: usize) -> Result<(), String> {
    let room = arena().alloc(bytes);
    let room = Room::whole(room.map_err(|error| error.to_string())?);
    match client.get(&key(number)?, room).await {
        Ok(Fetched::Hit { .. }) => Ok(()),
        Ok(Fetched::Miss { .. }) => Err(format!("object {number} is gone")),
        Err(failure) => Err(failure.error.to_string()),
    }
}
