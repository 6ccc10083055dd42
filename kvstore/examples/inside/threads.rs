//! The same from a thread that is no core: each question goes to the node's core and its answer back.

use std::hint::black_box;
use std::time::Instant;

use lunette_kvstore::{ClusterClientOptions, Got, Lent, Node, PutOptions};
use lunette_runtime::arena::{HugePages, SharedMemory};

use super::{Failure, LARGE_BYTES, SMALL_BYTES, WORKING_SET_BYTES, name, number, print_rates};

const BATCH: usize = 64;

/// Measures on this thread.
pub(crate) fn measure(node: &Node) -> Result<(), Failure> {
    let handle = node.handle(&ClusterClientOptions::new(Vec::new()))?;
    let key = name(0);
    let value = Lent::bytes(vec![7; SMALL_BYTES]);
    handle
        .put(key.clone(), vec![value], PutOptions::default())
        .wait()?;
    let mut times_ns: Vec<u128> = Vec::new();
    for _ in 0..100_000 {
        let begun = Instant::now();
        black_box(handle.exists(vec![key.clone()]).wait());
        times_ns.push(begun.elapsed().as_nanos());
    }
    times_ns.sort_unstable();
    let at = |share: usize| times_ns[times_ns.len() * share / 1000];
    println!(
        "{:<44} {:>14} ns p50 ({} p99)",
        "thread: exists, one key",
        at(500),
        at(990)
    );
    for (what, len) in [("4 KiB", SMALL_BYTES), ("1 MiB", LARGE_BYTES)] {
        let memory = SharedMemory::map(WORKING_SET_BYTES, HugePages::Never, &mut Vec::new())?;
        let objects = Objects {
            what,
            len,
            memory,
            next: 0,
        };
        objects.measure(&handle)?;
    }
    Ok(())
}

/// Objects of one length, put from and got into memory that is registered once.
struct Objects {
    what: &'static str,
    len: usize,
    memory: SharedMemory,
    next: usize,
}

impl Objects {
    fn measure(mut self, handle: &lunette_kvstore::StoreHandle) -> Result<(), Failure> {
        let count = WORKING_SET_BYTES / self.len;
        let options = PutOptions::default();
        self.rounds("put", |keys, lent| {
            for (key, lent) in keys.iter().zip(lent) {
                handle.put(key.clone(), vec![lent], options).wait()?;
            }
            Ok(count)
        })?;
        self.again("get", |keys, lent| {
            for (key, lent) in keys.iter().zip(lent) {
                hit(&handle.get(key.clone(), vec![lent]).wait()?)?;
            }
            Ok(count)
        })?;
        let pairs = |keys: &[Vec<u8>], lent: Vec<Lent>| -> Vec<Vec<(Vec<u8>, Vec<Lent>)>> {
            let pairs = keys
                .iter()
                .cloned()
                .zip(lent.into_iter().map(|lent| vec![lent]));
            let pairs: Vec<_> = pairs.collect();
            pairs.chunks(BATCH).map(<[_]>::to_vec).collect()
        };
        self.rounds("batches of 64: put", |keys, lent| {
            for batch in pairs(keys, lent) {
                for stored in handle.put_all(batch, options).wait() {
                    stored?;
                }
            }
            Ok(count)
        })?;
        self.again("batches of 64: get", |keys, lent| {
            for batch in pairs(keys, lent) {
                for got in handle.get_all(batch).wait() {
                    hit(&got?)?;
                }
            }
            Ok(count)
        })
    }

    fn keys(&self, from: usize) -> Vec<Vec<u8>> {
        let count = WORKING_SET_BYTES / self.len;
        let key = |n| format!("thread/{}/{n}", self.what).into_bytes();
        (from..from + count).map(key).collect()
    }

    fn lent(&self) -> Vec<Lent> {
        let starts = (0..WORKING_SET_BYTES).step_by(self.len);
        let part = |start| Lent::part(&self.memory, start..start + self.len);
        starts.map(|start| part(start).expect("inside")).collect()
    }

    /// Rounds of new keys.
    fn rounds(
        &mut self,
        verb: &str,
        mut round: impl FnMut(&[Vec<u8>], Vec<Lent>) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        let mut rates = Vec::new();
        for _ in 0..number("ROUNDS", 9) {
            let keys = self.keys(self.next);
            self.next += keys.len();
            rates.push(rate(|| round(&keys, self.lent()))?);
        }
        print_rates(&format!("thread: {verb} {}", self.what), "/s", rates);
        Ok(())
    }

    /// Rounds of the keys of the last round.
    fn again(
        &self,
        verb: &str,
        mut round: impl FnMut(&[Vec<u8>], Vec<Lent>) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        let count = WORKING_SET_BYTES / self.len;
        let keys = self.keys(self.next - count);
        let mut rates = Vec::new();
        for _ in 0..number("ROUNDS", 9) {
            rates.push(rate(|| round(&keys, self.lent()))?);
        }
        print_rates(&format!("thread: {verb} {}", self.what), "/s", rates);
        Ok(())
    }
}

fn rate(round: impl FnOnce() -> Result<usize, Failure>) -> Result<f64, Failure> {
    let begun = Instant::now();
    let done = round()?;
    let took = begun.elapsed().as_secs_f64();
    Ok(f64::from(u32::try_from(done)?) / took)
}

fn hit(got: &Got) -> Result<(), Failure> {
    match got {
        Got::Hit { .. } => Ok(()),
        Got::Miss { .. } => Err("it was put".into()),
    }
}
