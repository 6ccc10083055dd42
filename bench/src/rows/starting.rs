//! How soon a node serves, and what it, or an engine, costs while nobody asks.

use std::net::SocketAddr;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use lunette_bench::harness::{Failure, Plan, Sample};
use lunette_kvstore::{ClusterClient, ClusterClientOptions, PutOptions, Value};
use lunette_runtime::{CoreOptions, arena, block_on};

use crate::peer::{Peer, Serve};

/// Starts of one run, the middle of which counts.
const STARTS: usize = 5;
/// How long a node is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(1);

/// What is asked of a node that was just started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// Milliseconds from the start of its process until it listens.
    Listening,
    /// Its threads while nobody asks.
    Threads(Idler),
    /// MB that it has in memory then.
    Memory(Idler),
    /// Percent of a core that it takes then.
    Cpu(Idler),
    /// Bytes that it needs for an object beside the memory that objects are in.
    PerObject,
}

/// Whom nobody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idler {
    Node,
    /// Alone in its process, with no memory of the program's.
    Engine,
}

impl Idler {
    const fn serve(self) -> Serve {
        match self {
            Self::Node => Serve::Store,
            Self::Engine => Serve::EngineIdle,
        }
    }

    /// One that has been left alone for a while.
    fn left_alone(self, plan: &Plan) -> Result<Peer, Failure> {
        let peer = Peer::start(self.serve(), plan, Duration::ZERO)?;
        thread::sleep(IDLE);
        Ok(peer)
    }
}

/// Objects that are put to see what each needs.
const OBJECTS: usize = 150_000;
/// Some that make all that is there but once.
const FIRST: usize = 2_000;
const TOGETHER: usize = 1_000;

/// Puts small objects, on a thread of its own: where that is pinned, what is started next must not be.
fn put(server: SocketAddr, cpu: usize, numbers: Range<usize>) -> Result<(), Failure> {
    let putting = thread::spawn(move || {
        let put = put_here(server, cpu, numbers);
        put.map_err(|failure| failure.to_string())
    });
    let put = putting.join().map_err(|_panic| "putting has panicked")?;
    Ok(put?)
}

fn put_here(server: SocketAddr, cpu: usize, numbers: Range<usize>) -> Result<(), Failure> {
    block_on(Some(cpu), CoreOptions::default(), move || async move {
        let client = ClusterClient::connect(ClusterClientOptions::new(vec![server])).await?;
        let mut value = arena().alloc(64)?;
        value.as_mut_slice().fill(3);
        let value = Value::new(value.freeze());
        let all: Vec<_> = numbers
            .map(|n| (format!("bench/small/{n:012}").into_bytes(), value.clone()))
            .collect();
        for objects in all.chunks(TOGETHER) {
            for put in client.put_all(objects, PutOptions::default()).await {
                put?;
            }
        }
        Ok(())
    })?
}

/// Memory of arenas is shared with readers, so all that is anonymous is what is known of objects.
fn per_object(plan: &Plan) -> Result<f64, Failure> {
    let node = Peer::start(Serve::Member, plan, Duration::ZERO)?;
    let cpu = plan.client_cpu;
    put(node.address, cpu, 0..FIRST)?;
    let before = node.told_by_system("RssAnon")?;
    put(node.address, cpu, FIRST..FIRST + OBJECTS)?;
    let after = node.told_by_system("RssAnon")?;
    Ok(f64::from(after.saturating_sub(before)) * 1024.0 / OBJECTS as f64)
}

pub(super) fn measure(fact: Fact, plan: &Plan) -> Result<Sample, Failure> {
    let value = match fact {
        Fact::Listening => {
            let mut times = Vec::with_capacity(STARTS);
            for _ in 0..STARTS {
                let begun = Instant::now();
                let _node = Peer::start(Serve::Store, plan, Duration::ZERO)?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            times[STARTS / 2]
        }
        Fact::PerObject => per_object(plan)?,
        Fact::Threads(idler) => f64::from(idler.left_alone(plan)?.told_by_system("Threads")?),
        Fact::Memory(idler) => {
            let kib = idler.left_alone(plan)?.told_by_system("VmRSS")?;
            f64::from(kib) * 1024.0 / 1e6
        }
        Fact::Cpu(idler) => {
            let idler = idler.left_alone(plan)?;
            let (before, begun) = (idler.run_time()?, Instant::now());
            thread::sleep(IDLE);
            let ran = idler.run_time()?.saturating_sub(before);
            100.0 * ran.as_secs_f64() / begun.elapsed().as_secs_f64()
        }
    };
    Ok(Sample { value, p99: value })
}
