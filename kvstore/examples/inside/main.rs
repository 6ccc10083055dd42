//! What a program gets done at its own node: lookups, puts and gets a second, by a task of the node's core, beside
//! copies of as many bytes, and by a thread that is no core.
//!
//! `cargo run --release -p lunette-kvstore --example inside`, on a machine that does nothing else. It starts a
//! coordinator and a node of one core, and prints one line for each row. `KEYS`, `MEMORY_MIB` and `ROUNDS` change
//! how much there is of it; `CPUS=2,3` pins core and thread (0 and 1 otherwise, where there are two).
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

mod threads;

use std::env;
use std::error::Error;
use std::future::pending;
use std::hint::black_box;
use std::time::{Duration, Instant};

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, Fetched, Node, NodeCore, NodeOptions,
    PutOptions, Value,
};
use lunette_runtime::arena::Region;
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Placement, Runtime, arena, topology};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_transfer::Room;

type Failure = Box<dyn Error + Send + Sync>;

const BATCH: usize = 500;
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 1 << 20;
/// Bytes that puts, gets and copies walk through.
const WORKING_SET_BYTES: usize = 64 << 20;

fn main() -> Result<(), Failure> {
    let coordinator = Runtime::start(&Placement::Anywhere(1), CoreOptions::default())?;
    let (told, address) = std::sync::mpsc::channel();
    let _serving = coordinator.spawn_on(CoreIndex(0), move || async move {
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a port");
        told.send(listener.local_addr()).expect("it is waited for");
        serve(listener, Hosted::in_memory(), None, pending()).await;
    })?;
    let mut options = NodeOptions::new(
        NodeId(1),
        "127.0.0.1:0".parse()?,
        number("MEMORY_MIB", 1024) << 20,
    );
    options.cluster = Some(ClusterOptions::new("inside", vec![address.recv()?]));
    // Or puts would be about the system's pages.
    options.prefault = true;
    let cpus = env::var("CPUS").unwrap_or_else(|_| "0,1".to_owned());
    let cpus: Vec<usize> = cpus.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let &[of_core, of_thread] = cpus.as_slice() else {
        return Err("CPUS names two".into());
    };
    options.placement = Placement::Pinned(vec![of_core]);
    let node = Node::start(options)?;
    node.joined()?;
    let measured = node.spawn_on(CoreIndex(0), measure)?;
    measured.wait()??;
    topology::pin_current_thread(of_thread)?;
    threads::measure(&node)
}

fn number(name: &str, default: u64) -> u64 {
    let set = env::var(name).ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(default)
}

fn name(n: usize) -> Vec<u8> {
    format!("model/layer/block/{n:016x}").into_bytes()
}

fn bytes_of(n: usize, len: usize) -> Result<Region, Failure> {
    let mut region = arena().alloc(len)?;
    let byte = u8::try_from(n % 251).expect("small");
    region.as_mut_slice().fill(byte);
    Ok(region.freeze())
}

/// The middle of so many rounds, in operations a second.
async fn rounds(
    what: &str,
    unit: &str,
    mut round: impl AsyncFnMut() -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let mut rates = Vec::new();
    for _ in 0..number("ROUNDS", 9) {
        let begun = Instant::now();
        let done = round().await?;
        let took = begun.elapsed().as_secs_f64();
        rates.push(f64::from(u32::try_from(done)?) / took);
    }
    print_rates(what, unit, rates);
    Ok(())
}

fn print_rates(what: &str, unit: &str, mut rates: Vec<f64>) {
    rates.sort_by(f64::total_cmp);
    let (least, middle, most) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
    println!("{what:<44} {middle:>14.0} {unit} ({least:.0} to {most:.0})");
}

async fn measure() -> Result<(), Failure> {
    let core = NodeCore::here().pop().ok_or("a member serves here")?;
    let options = ClusterClientOptions {
        timeout: Duration::from_secs(20),
        ..ClusterClientOptions::new(Vec::new())
    };
    let client = core.client(options).await?;
    copies(LARGE_BYTES).await?;
    objects(&client, "4 KiB", SMALL_BYTES).await?;
    objects(&client, "1 MiB", LARGE_BYTES).await?;
    lookups(&client).await
}

/// What copies out of and into the same working set take: the bounds of gets and of puts.
async fn copies(len: usize) -> Result<(), Failure> {
    let count = WORKING_SET_BYTES / len;
    let mut regions = Vec::new();
    for _ in 0..count {
        let mut region = arena().alloc(len)?;
        region.as_mut_slice().fill(1);
        regions.push(region);
    }
    let mut one = arena().alloc(len)?;
    rounds("copy 1 MiB out", "/s", async || {
        for region in &regions {
            one.as_mut_slice().copy_from_slice(region.as_slice());
            black_box(one.as_slice());
        }
        Ok(count)
    })
    .await?;
    rounds("copy 1 MiB in", "/s", async || {
        for region in &mut regions {
            region.as_mut_slice().copy_from_slice(one.as_slice());
            black_box(region.as_slice());
        }
        Ok(count)
    })
    .await
}

async fn objects(client: &ClusterClient, what: &str, len: usize) -> Result<(), Failure> {
    let count = WORKING_SET_BYTES / len;
    let value = bytes_of(7, len)?;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut next = 0;
    rounds(&format!("put {what}"), "/s", async || {
        keys = (next..next + count)
            .map(|n| format!("{what}/{n}").into_bytes())
            .collect();
        next += count;
        for key in &keys {
            // A value of its own each time: its checksum is a part of the put.
            let value = Value::new(value.clone());
            client.put(key, value, PutOptions::default()).await?;
        }
        Ok(count)
    })
    .await?;
    let mut room = Some(Room::whole(arena().alloc(len)?));
    rounds(&format!("get {what}"), "/s", async || {
        for key in &keys {
            let lent = room.take().ok_or("it came back")?;
            let got = client.get(key, lent).await;
            match got.map_err(|failure| failure.error)? {
                Fetched::Hit { room: back, .. } => room = Some(back),
                Fetched::Miss { .. } => return Err("it was put".into()),
            }
        }
        Ok(count)
    })
    .await
}

async fn lookups(client: &ClusterClient) -> Result<(), Failure> {
    let count = usize::try_from(number("KEYS", 1_000_000))?;
    let keys: Vec<Vec<u8>> = (0..count).map(name).collect();
    for keys in keys.chunks(10_000) {
        let objects: Vec<_> = keys
            .iter()
            .map(|key| (key.clone(), Value::empty()))
            .collect();
        for stored in client.put_all(&objects, PutOptions::default()).await {
            stored?;
        }
    }
    // Neighbours in a batch are no neighbours in the table.
    let batches: Vec<Vec<Vec<u8>>> = (0..200)
        .map(|batch| {
            let of =
                |n: usize| keys[(batch * BATCH + n).wrapping_mul(2_654_435_761) % count].clone();
            (0..BATCH).map(of).collect()
        })
        .collect();
    rounds("exists, batches of 500, all there", "keys/s", async || {
        for batch in &batches {
            let present = client.exists(batch).await?;
            if present.iter().any(|is| !is) {
                return Err("a key is gone".into());
            }
        }
        Ok(batches.len() * BATCH)
    })
    .await?;
    let one = [keys[count / 2].clone()];
    rounds("exists, one key again and again", "/s", async || {
        for _ in 0..100_000 {
            black_box(client.exists(&one).await?);
        }
        Ok(100_000)
    })
    .await
}
