//! The asking side of lookups and gets at a member of a cluster; every value's checksum is verified on the way.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lunette_kvstore::{
    ClientHost, ClusterClient, ClusterClientOptions, PutOptions, StoreHandle, Value,
};
use lunette_runtime::{CoreOptions, Placement, arena, block_on, time};
use lunette_transfer::Room;

use super::inside::hit;
use crate::peer::idle;
use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::Failure;

/// What is asked again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Whether that many objects are there, which the member says.
    Exists { batch: usize },
    /// The same, as the member shows it to processes of its host.
    Seen { batch: usize },
    /// That many objects of this length, which the member sends.
    Get { bytes: usize, batch: usize },
    /// As many, copied out of the member's memory, which is on this host.
    Near { bytes: usize, batch: usize },
    /// A thread puts an object of this length there, by memory that both share.
    Handed { bytes: usize },
    /// A thread asks there by a connection of its own.
    Lined(Lined),
}

/// What a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lined {
    /// Whether an object is there.
    Exists,
    /// An object of this length.
    Get { bytes: usize },
    /// That one be put.
    Put { bytes: usize },
}

pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    pace: Pace,
    spin: Duration,
    wish: Wish,
) -> Result<Calls, Failure> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    match wish {
        Wish::Handed { bytes } => {
            let clients = ClusterClientOptions::new(vec![server]);
            return by_thread(clients, cpu, options, move |handle| {
                super::thread::hand_over(handle, bytes, cpu, pace)
            });
        }
        Wish::Lined(lined) => {
            let clients = ClusterClientOptions {
                one_sided_from_bytes: None,
                ..ClusterClientOptions::new(vec![server])
            };
            return by_thread(clients, cpu, options, move |handle| {
                super::thread::ask(handle, lined, cpu, pace)
            });
        }
        _ => {}
    }
    block_on(Some(cpu), options, move || async move {
        let mut options = ClusterClientOptions::new(vec![server]);
        if matches!(wish, Wish::Exists { .. } | Wish::Get { .. }) {
            options.one_sided_from_bytes = None;
        }
        let client = ClusterClient::connect(options).await?;
        match wish {
            Wish::Exists { batch } | Wish::Seen { batch } => exists(&client, pace, batch).await,
            Wish::Get { bytes, batch } | Wish::Near { bytes, batch } => {
                get(&client, pace, bytes, batch).await
            }
            Wish::Handed { .. } | Wish::Lined(_) => Err("a thread does".into()),
        }
    })?
}

/// What a thread does on this CPU, whose clients' core has nothing to do meanwhile.
fn by_thread(
    options: ClusterClientOptions,
    cpu: usize,
    core: CoreOptions,
    does: impl FnOnce(&StoreHandle) -> Result<Calls, String> + Send + 'static,
) -> Result<Calls, Failure> {
    let core = CoreOptions {
        idle: idle(Duration::ZERO),
        ..core
    };
    let host = ClientHost::start(&Placement::Pinned(vec![cpu]), core, &options)?;
    let handle = host.handle();
    let doing = thread::spawn(move || does(&handle));
    Ok(doing.join().map_err(|_| "the thread panicked")??)
}

/// Objects that all rounds of a row share.
async fn put(client: &ClusterClient, bytes: usize, count: usize) -> Result<Vec<Vec<u8>>, Failure> {
    let key = |n: usize| format!("bench/object/{bytes}/{n:06}").into_bytes();
    let keys: Vec<_> = (0..count).map(key).collect();
    let mut value = arena().alloc(bytes.max(1))?;
    value.as_mut_slice().fill(3);
    let value = value.freeze().slice(0, bytes);
    for key in &keys {
        let value = Value::new(value.clone());
        client.put(key, value, PutOptions::default()).await?;
    }
    Ok(keys)
}

async fn exists(client: &ClusterClient, pace: Pace, batch: usize) -> Result<Calls, Failure> {
    let keys = put(client, 0, batch).await?;
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        calls.begin();
        let present = client.exists(&keys).await?;
        calls.end();
        if !present.into_iter().all(|is| is) {
            return Err("a key is gone".into());
        }
    }
    Ok(calls)
}

async fn get(
    client: &ClusterClient,
    pace: Pace,
    bytes: usize,
    batch: usize,
) -> Result<Calls, Failure> {
    let keys = put(client, bytes, batch).await?;
    let rooms = keys.iter().map(|_| Ok(Room::whole(arena().alloc(bytes)?)));
    let mut rooms = rooms.collect::<Result<Vec<_>, Failure>>()?;
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        if let [key] = &keys[..] {
            let room = rooms.pop().ok_or("there is a room for each")?;
            calls.begin();
            let fetched = client.get(key, room).await;
            calls.end();
            rooms.push(hit(fetched, bytes)?);
            continue;
        }
        let wanted = keys.iter().cloned().zip(std::mem::take(&mut rooms));
        calls.begin();
        let fetched = client.get_all(wanted).await;
        calls.end();
        for fetched in fetched {
            rooms.push(hit(fetched, bytes)?);
        }
    }
    Ok(calls)
}
