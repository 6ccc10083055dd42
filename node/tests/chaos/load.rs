//! What clients do while members are killed, and what they count.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunette::kvstore::{ClusterClient, ClusterClientOptions, Fetched, PutOptions, Stored, Value};
use lunette::runtime::arena::Region;
use lunette::runtime::{CoreOptions, Idle, arena, block_on, entropy, spawn_local, time};
use lunette::transfer::Room;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

const TASKS: u64 = 8;
const KEYS: u32 = 300;
const VALUE_BYTES_MIN: usize = 16;
const VALUE_BYTES_MAX: usize = 32 * 1024;
const COPIES: u8 = 2;

/// What happened in one second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Second {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Gets that were told that nobody knows yet.
    pub(crate) unknown: u64,
    pub(crate) written: u64,
    pub(crate) exist: u64,
    pub(crate) removed: u64,
    pub(crate) failed: u64,
    /// Bytes that nobody put under that key.
    pub(crate) wrong: u64,
}

impl AddAssign for Second {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.unknown += other.unknown;
        self.written += other.written;
        self.exist += other.exist;
        self.removed += other.removed;
        self.failed += other.failed;
        self.wrong += other.wrong;
    }
}

#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) seeds: Vec<SocketAddr>,
    pub(crate) is_over: Arc<AtomicBool>,
}

type Told = Rc<RefCell<Vec<Second>>>;

fn name(key: u32) -> Vec<u8> {
    format!("chaos/{key}").into_bytes()
}

/// Bytes that tell which key and which write they are of, all of them.
fn bytes_of(key: u32, write: u64) -> Region {
    let spread = u64::try_from(VALUE_BYTES_MAX - VALUE_BYTES_MIN).expect("small");
    let len = VALUE_BYTES_MIN + usize::try_from(write % spread).expect("small");
    let mut region = arena().alloc(len).expect("room");
    let bytes = region.as_mut_slice();
    bytes[..8].copy_from_slice(&write.to_le_bytes());
    let mut pattern = SplitMix64::new(write ^ u64::from(key) << 32);
    for piece in bytes[8..].chunks_mut(8) {
        let drawn = pattern.next().to_le_bytes();
        piece.copy_from_slice(&drawn[..piece.len()]);
    }
    region.freeze()
}

fn is_right(key: u32, bytes: &[u8]) -> bool {
    let Some((first, _)) = bytes.split_first_chunk() else {
        return false;
    };
    bytes_of(key, u64::from_le_bytes(*first)).as_slice() == bytes
}

impl Load {
    /// Runs until it is over: what happened in each second.
    pub(crate) fn run(self) -> Vec<Second> {
        let options = CoreOptions {
            idle: Idle::Efficient,
            ..CoreOptions::default()
        };
        block_on(None, options, move || async move {
            let told: Told = Rc::default();
            let begun = time::now();
            let client = self.connect().await;
            let tasks = (0..TASKS).map(|_| {
                let random = SplitMix64::new(entropy());
                let (load, told) = (self.clone(), Rc::clone(&told));
                spawn_local(load.work(client.clone(), random, (begun, told)))
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.expect("it ends well");
            }
            told.take()
        })
        .expect("a core")
    }

    async fn connect(&self) -> ClusterClient {
        loop {
            let options = ClusterClientOptions {
                timeout: Duration::from_secs(2),
                ..ClusterClientOptions::new(self.seeds.clone())
            };
            match ClusterClient::connect(options).await {
                Ok(client) => return client,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn work(
        self,
        client: ClusterClient,
        mut random: SplitMix64,
        (begun, told): (Time, Told),
    ) {
        while !self.is_over.load(Ordering::Relaxed) {
            time::sleep(Duration::from_micros(random.below(4000).into())).await;
            let key = random.below(KEYS);
            let mut now = Second::default();
            match random.below(20) {
                0..11 => get(&client, key, &mut now).await,
                11..19 => put(&client, key, random.next(), &mut now).await,
                _ => match client.remove(&[name(key)]).await.remove(0) {
                    Ok(_) => now.removed += 1,
                    Err(_) => now.failed += 1,
                },
            }
            let second = time::now().since(begun).as_secs();
            let second = usize::try_from(second).expect("few");
            let mut told = told.borrow_mut();
            let seconds = told.len().max(second + 1);
            told.resize(seconds, Second::default());
            told[second] += now;
        }
    }
}

async fn get(client: &ClusterClient, key: u32, now: &mut Second) {
    let room = Room::whole(arena().alloc(VALUE_BYTES_MAX).expect("room"));
    match client.get(&name(key), room).await {
        Ok(Fetched::Hit {
            room, len_bytes, ..
        }) => {
            now.hits += 1;
            now.wrong += u64::from(!is_right(key, &room.as_slice()[..len_bytes]));
        }
        Ok(Fetched::Miss { is_known: true, .. }) => now.misses += 1,
        Ok(Fetched::Miss { .. }) => now.unknown += 1,
        Err(_) => now.failed += 1,
    }
}

async fn put(client: &ClusterClient, key: u32, write: u64, now: &mut Second) {
    let options = PutOptions {
        copies: COPIES,
        ..PutOptions::default()
    };
    let value = Value::new(bytes_of(key, write));
    match client.put(&name(key), value, options).await {
        Ok(Stored::Written { .. }) => now.written += 1,
        Ok(Stored::Exists { .. }) => now.exist += 1,
        Err(_) => now.failed += 1,
    }
}
