//! What a program gets done at its own node: lookups, puts and gets by a task of the node's core, beside copies
//! of as many bytes by the same core, and by a thread that is no core.

use std::hint::black_box;
use std::sync::Arc;

use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::coordinator::{self, loopback};
use lunette_bench::harness::{Failure, Plan};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, Fetched, Node, NodeCore, NodeOptions,
    Prefault, PutOptions, StoreHandle, Value,
};
use lunette_runtime::arena::{Region, RegionMut};
use lunette_runtime::{Placement, Runtime, arena, time};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_transfer::Room;

use super::thread;
use crate::peer::idle;
use crate::raw::SPIN;

/// Bytes that puts, gets and copies walk through.
pub(super) const WORKING_SET_BYTES: usize = 64 << 20;
/// Calls that are timed together where one is too short for a clock.
pub(super) const GROUP: usize = 16;
/// Keys that are there while keys are looked up.
const KEYS_PRESENT: usize = 1_000_000;
/// Memory of the node: the working set, what is copied beside it, and a million empty objects, with the
/// share of entries that eviction keeps free.
const MEMORY_BYTES: u64 = (1 << 30) + (1 << 28);
/// Batches of keys that are looked up, one after the other, so that none stays in a cache.
const BATCHES: usize = 200;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// A task of the core that owns the keys.
    Task,
    /// A thread on a CPU of its own.
    Thread,
}

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Looks that many keys up at a time.
    Exists { batch: usize },
    /// Puts new objects, that many at a time.
    Put { bytes: usize, batch: usize },
    /// Gets objects, that many at a time.
    Get { bytes: usize, batch: usize },
}

/// A node in this process, with its coordinator.
pub(super) struct Inside {
    node: Node,
    _coordinator: Runtime,
    from: From,
    work: Work,
    /// CPU of the thread that asks.
    thread_cpu: usize,
    /// What keys are looked up.
    batches: Arc<Vec<Vec<Vec<u8>>>>,
    /// Of a thread.
    handle: Option<StoreHandle>,
}

/// The name of an object.
pub(super) fn name(n: usize) -> Vec<u8> {
    format!("model/layer/block/{n:016x}").into_bytes()
}

impl Inside {
    /// Starts a node: where its own tasks are measured on the asking side's CPU, and so beside copies of that
    /// core, else on the serving side's.
    pub(super) fn open(from: From, work: Work, plan: &Plan) -> Result<Self, Failure> {
        let cpu = match from {
            From::Task => plan.client_cpu,
            From::Thread => plan.server_cpu,
        };
        let mut options = NodeOptions::new(NodeId(1), loopback(), MEMORY_BYTES);
        let (coordinator, address) = coordinator::start()?;
        options.cluster = Some(ClusterOptions::new("inside", vec![address]));
        options.placement = Placement::Pinned(vec![cpu]);
        options.idle = idle(SPIN);
        // Or puts would be about the system's pages.
        options.prefault = Prefault::All;
        let node = Node::start(options)?;
        node.joined()?;
        // Before there are keys, as programs have it.
        let handle = match from {
            From::Task => None,
            From::Thread => Some(node.handle(&ClusterClientOptions::new(Vec::new()))?),
        };
        let batches = match work {
            Work::Exists { batch } => {
                let filling = node.spawn_on(CoreIndex(0), fill)?;
                filling.wait()??;
                // Neighbours in a batch are no neighbours in the table.
                let key = |n: usize| name(n.wrapping_mul(2_654_435_761) % KEYS_PRESENT);
                let of = |at: usize| (0..batch).map(|n| key(at * batch + n)).collect();
                (0..BATCHES).map(of).collect()
            }
            Work::Put { .. } | Work::Get { .. } => Vec::new(),
        };
        Ok(Self {
            node,
            _coordinator: coordinator,
            from,
            work,
            thread_cpu: plan.client_cpu,
            batches: Arc::new(batches),
            handle,
        })
    }

    /// Our side, once.
    pub(super) fn measure(&self, pace: Pace) -> Result<Calls, Failure> {
        let (work, batches) = (self.work, Arc::clone(&self.batches));
        if self.from == From::Thread {
            let handle = self.handle.clone().ok_or("a thread has a handle")?;
            let cpu = self.thread_cpu;
            let measuring =
                std::thread::spawn(move || thread::measure(&handle, work, &batches, cpu, pace));
            return Ok(measuring.join().map_err(|_| "the thread panicked")??);
        }
        let calls = self.node.spawn_on(CoreIndex(0), move || async move {
            let client = client().await?;
            let measured = match work {
                Work::Exists { batch } => exists(&client, batch, &batches, pace).await,
                Work::Put { bytes, batch } => put(&client, bytes, batch, pace).await,
                Work::Get { bytes, batch } => get(&client, bytes, batch, pace).await,
            };
            measured.map_err(|error| error.to_string())
        })?;
        Ok(calls.wait()??)
    }

    /// Copies of as many bytes as a batch has, by the node's core, out of and into the same working set.
    pub(super) fn copies(&self, pace: Pace) -> Result<Calls, Failure> {
        let (bytes, batch, is_put) = match self.work {
            Work::Put { bytes, batch } => (bytes, batch, true),
            Work::Get { bytes, batch } => (bytes, batch, false),
            Work::Exists { .. } => return Err("a lookup copies nothing".into()),
        };
        let calls = self.node.spawn_on(CoreIndex(0), move || async move {
            copies(bytes, batch, is_put, pace).map_err(|error| error.to_string())
        })?;
        Ok(calls.wait()??)
    }
}

async fn client() -> Result<ClusterClient, String> {
    let core = NodeCore::here().pop().ok_or("a member serves here")?;
    let client = core.client(ClusterClientOptions::new(Vec::new())).await;
    client.map_err(|error| error.to_string())
}

/// A million keys, without bytes.
async fn fill() -> Result<(), String> {
    let client = client().await?;
    for first in (0..KEYS_PRESENT).step_by(10_000) {
        let objects = (first..first + 10_000).map(|n| (name(n), Value::empty()));
        let objects: Vec<_> = objects.collect();
        for stored in client.put_all(&objects, PutOptions::default()).await {
            stored.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

async fn exists(
    client: &ClusterClient,
    batch: usize,
    batches: &[Vec<Vec<u8>>],
    pace: Pace,
) -> Result<Calls, Failure> {
    let mut calls = Calls::new(pace);
    // One key at a time is the same key, again and again, as a caller has it that waits for it.
    let group = if batch == 1 { GROUP } else { 1 };
    let mut turn = 0;
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        let keys = &batches[turn % batches.len()];
        turn += 1;
        let mut found = 0;
        calls.begin();
        for _ in 0..group {
            found += black_box(client.exists(keys).await?)
                .iter()
                .filter(|is| **is)
                .count();
        }
        calls.end();
        if found != group * batch {
            return Err("a key is gone".into());
        }
    }
    Ok(calls)
}

/// A value that is put again and again: its checksum is a part of each put.
fn value(bytes: usize) -> Result<Region, Failure> {
    let mut region = arena().alloc(bytes)?;
    region.as_mut_slice().fill(7);
    Ok(region.freeze())
}

/// How many calls are timed together.
pub(super) const fn group_of(bytes: usize, batch: usize) -> usize {
    if batch * bytes < 64 << 10 { GROUP } else { 1 }
}

async fn put(
    client: &ClusterClient,
    bytes: usize,
    batch: usize,
    pace: Pace,
) -> Result<Calls, Failure> {
    let value = value(bytes)?;
    let mut calls = Calls::new(pace);
    let mut next = 0;
    let group = group_of(bytes, batch);
    while calls.go_on() {
        let first = next;
        while calls.go_on() && (next - first) * bytes < WORKING_SET_BYTES {
            let objects: Vec<_> = (next..next + group * batch)
                .map(|n| (name(n), Value::new(value.clone())))
                .collect();
            next += objects.len();
            calls.begin();
            if batch == 1 {
                for (key, value) in objects {
                    client.put(&key, value, PutOptions::default()).await?;
                }
            } else {
                for stored in client.put_all(&objects, PutOptions::default()).await {
                    stored?;
                }
            }
            calls.end();
        }
        // The next ones take the place of these, so that all of it is one working set.
        remove(client, first..next).await?;
    }
    Ok(calls)
}

async fn remove(client: &ClusterClient, objects: std::ops::Range<usize>) -> Result<(), Failure> {
    let keys: Vec<_> = objects.map(name).collect();
    for keys in keys.chunks(500) {
        for removed in client.remove(keys).await {
            removed?;
        }
    }
    Ok(())
}

async fn get(
    client: &ClusterClient,
    bytes: usize,
    batch: usize,
    pace: Pace,
) -> Result<Calls, Failure> {
    let count = WORKING_SET_BYTES / bytes;
    let value = value(bytes)?;
    for n in 0..count {
        let value = Value::new(value.clone());
        client.put(&name(n), value, PutOptions::default()).await?;
    }
    let group = group_of(bytes, batch);
    let rooms = (0..group * batch).map(|_| Ok(Room::whole(arena().alloc(bytes)?)));
    let mut rooms = rooms.collect::<Result<Vec<_>, Failure>>()?;
    let mut calls = Calls::new(pace);
    let mut next = 0;
    while calls.go_on() {
        let keys: Vec<_> = (next..next + rooms.len())
            .map(|n| name(n % count))
            .collect();
        next += keys.len();
        let wanted = keys.into_iter().zip(std::mem::take(&mut rooms));
        calls.begin();
        if batch == 1 {
            for (key, room) in wanted {
                rooms.push(hit(client.get(&key, room).await, bytes)?);
            }
        } else {
            for fetched in client.get_all(wanted).await {
                rooms.push(hit(fetched, bytes)?);
            }
        }
        calls.end();
    }
    Ok(calls)
}

/// The room of a get that has hit.
pub(super) fn hit(
    fetched: Result<Fetched, lunette_kvstore::GetFailure>,
    bytes: usize,
) -> Result<Room, Failure> {
    match fetched.map_err(|failure| failure.error)? {
        Fetched::Hit {
            room, len_bytes, ..
        } if len_bytes == bytes => Ok(room),
        other => Err(format!("the object is not what was put: {other:?}").into()),
    }
}

fn copies(bytes: usize, batch: usize, is_put: bool, pace: Pace) -> Result<Calls, Failure> {
    let filled = || -> Result<RegionMut, Failure> {
        let mut region = arena().alloc(bytes)?;
        region.as_mut_slice().fill(1);
        Ok(region)
    };
    let count = WORKING_SET_BYTES / bytes;
    let mut objects = (0..count)
        .map(|_| filled())
        .collect::<Result<Vec<_>, _>>()?;
    // As puts and gets have them: one value, and a room for each of a batch.
    let beside = if is_put { 1 } else { batch };
    let mut beside = (0..beside)
        .map(|_| filled())
        .collect::<Result<Vec<_>, _>>()?;
    let mut calls = Calls::new(pace);
    let mut next = 0;
    while calls.go_on() {
        calls.begin();
        for at in 0..batch {
            let object = &mut objects[next % count];
            next += 1;
            if is_put {
                object.as_mut_slice().copy_from_slice(beside[0].as_slice());
                black_box(object.as_slice());
            } else {
                beside[at].as_mut_slice().copy_from_slice(object.as_slice());
                black_box(beside[at].as_slice());
            }
        }
        calls.end();
    }
    Ok(calls)
}
