//! The same by a thread that is no core: each question goes to the node's core, and its answer back.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_kvstore::{Got, Lent, PutOptions, StoreError, StoreHandle, Stored};
use lunette_runtime::arena::{HugePages, SharedMemory};
use lunette_runtime::topology::pin_current_thread;

use super::inside::{WORKING_SET_BYTES, Work, group_of, name};
use super::member::Lined;

/// Length of an object that is only looked up.
const SMALL: usize = 4096;
/// How long it takes at most until a member on this host is met, or there is a connection to it.
const MET_WITHIN: Duration = Duration::from_secs(20);

/// Measures on this thread, pinned.
pub(super) fn measure(
    handle: &StoreHandle,
    work: Work,
    batches: &[Vec<Vec<u8>>],
    cpu: usize,
    pace: Pace,
) -> Result<Calls, String> {
    pin_current_thread(cpu).map_err(|error| error.to_string())?;
    match work {
        Work::Exists { batch } => exists(handle, batch, batches, pace),
        Work::Put { bytes, batch } => Objects::of(bytes, batch)?.put(handle, pace),
        Work::Get { bytes, batch } => Objects::of(bytes, batch)?.get(handle, pace),
    }
}

/// Puts at a process that the clients of this one have met, on this thread, pinned: one object at a time.
pub(super) fn hand_over(
    handle: &StoreHandle,
    bytes: usize,
    cpu: usize,
    pace: Pace,
) -> Result<Calls, String> {
    pin_current_thread(cpu).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    while !handle.hands_over() {
        for present in handle.exists(vec![name(0)]).wait() {
            present.map_err(|error| error.to_string())?;
        }
        if begun.elapsed() > MET_WITHIN {
            return Err("the member is not met".to_owned());
        }
    }
    let objects = Objects::of(bytes, 1)?;
    objects.put_by(handle, pace, 1, |objects| {
        let stored = handle.put_all_waiting(objects, PutOptions::default());
        all_stored(stored)
    })
}

/// Asks a member by a connection of this thread, pinned: for one object at a time.
pub(super) fn ask(
    handle: &StoreHandle,
    lined: Lined,
    cpu: usize,
    pace: Pace,
) -> Result<Calls, String> {
    pin_current_thread(cpu).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    loop {
        let mut looking = handle.look_up(vec![name(0)]);
        looking.wait(MET_WITHIN);
        if looking.left() == 0 {
            break;
        }
        drop(looking.finish().wait());
        if begun.elapsed() > MET_WITHIN {
            return Err("there is no connection".to_owned());
        }
    }
    match lined {
        Lined::Exists => {
            let objects = Objects::of(SMALL, 1)?.lent(0..1)?;
            all_stored(handle.put_all_waiting(objects, PutOptions::default()))?;
            repeat(pace, || {
                let present = black_box(handle.exists_waiting(vec![name(0)]));
                let is_there = present == [Ok(true)];
                is_there
                    .then_some(())
                    .ok_or_else(|| "a key is gone".to_owned())
            })
        }
        Lined::Get { bytes } => {
            let objects = Objects::of(bytes, 1)?.lent(0..1)?;
            all_stored(handle.put_all_waiting(objects.clone(), PutOptions::default()))?;
            repeat(pace, || {
                let mut fetching = handle.fetch(objects.clone());
                fetching.wait(Duration::MAX);
                fetching
                    .finish()
                    .wait()
                    .finish()
                    .into_iter()
                    .try_for_each(hit)
            })
        }
        Lined::Put { bytes } => Objects::of(bytes, 1)?.put_by(handle, pace, 1, |objects| {
            all_stored(handle.put_all_waiting(objects, PutOptions::default()))
        }),
    }
}

/// The same call again and again.
fn repeat(pace: Pace, mut call: impl FnMut() -> Result<(), String>) -> Result<Calls, String> {
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            std::thread::sleep(PACED_PAUSE);
        }
        calls.begin();
        call()?;
        calls.end();
    }
    Ok(calls)
}

fn exists(
    handle: &StoreHandle,
    batch: usize,
    batches: &[Vec<Vec<u8>>],
    pace: Pace,
) -> Result<Calls, String> {
    let mut calls = Calls::new(pace);
    let mut turn = 0;
    while calls.go_on() {
        if pace == Pace::Paced {
            std::thread::sleep(PACED_PAUSE);
        }
        let keys = batches[turn % batches.len()].clone();
        turn += 1;
        calls.begin();
        let present = black_box(handle.exists(keys).wait());
        calls.end();
        let present = present.into_iter().filter(|is| matches!(is, Ok(true)));
        if present.count() != batch {
            return Err("a key is gone".to_owned());
        }
    }
    Ok(calls)
}

/// An object's key, and the memory that it comes from or goes to.
type Moved = (Vec<u8>, Vec<Lent>);

/// Objects of one length, put from and got into memory that is lent.
struct Objects {
    bytes: usize,
    batch: usize,
    memory: SharedMemory,
}

impl Objects {
    fn of(bytes: usize, batch: usize) -> Result<Self, String> {
        let memory = SharedMemory::map(WORKING_SET_BYTES, HugePages::Never, &mut Vec::new());
        let memory = memory.map_err(|error| error.to_string())?;
        // Whoever came first would wait for the system's pages.
        for start in (0..WORKING_SET_BYTES).step_by(bytes) {
            memory.copy_in(start, &vec![3; bytes]);
        }
        Ok(Self {
            bytes,
            batch,
            memory,
        })
    }

    /// Keys, each with its part of the memory.
    fn lent(&self, objects: Range<usize>) -> Result<Vec<Moved>, String> {
        let lent = objects.map(|n| {
            let start = n * self.bytes % WORKING_SET_BYTES;
            let part = Lent::part(&self.memory, start..start + self.bytes);
            Ok((name(n), vec![part.ok_or("a part of the memory")?]))
        });
        lent.collect()
    }

    fn put(&self, handle: &StoreHandle, pace: Pace) -> Result<Calls, String> {
        let group = group_of(self.bytes, self.batch);
        self.put_by(handle, pace, group, |objects| {
            self.put_group(handle, objects)
        })
    }

    /// Puts new objects, so many batches in a call, and removes them from time to time.
    fn put_by(
        &self,
        handle: &StoreHandle,
        pace: Pace,
        group: usize,
        put: impl Fn(Vec<Moved>) -> Result<(), String>,
    ) -> Result<Calls, String> {
        let mut calls = Calls::new(pace);
        let mut next = 0;
        while calls.go_on() {
            let first = next;
            while calls.go_on() && (next - first) * self.bytes < WORKING_SET_BYTES {
                let objects = self.lent(next..next + group * self.batch)?;
                next += objects.len();
                if pace == Pace::Paced {
                    std::thread::sleep(PACED_PAUSE);
                }
                calls.begin();
                put(objects)?;
                calls.end();
            }
            remove(handle, first..next)?;
        }
        Ok(calls)
    }

    fn put_group(&self, handle: &StoreHandle, objects: Vec<Moved>) -> Result<(), String> {
        let options = PutOptions::default();
        if self.batch > 1 {
            return all_stored(handle.put_all(objects, options).wait());
        }
        for (key, value) in objects {
            let stored = handle.put(key, value, options).wait();
            stored.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn get(&self, handle: &StoreHandle, pace: Pace) -> Result<Calls, String> {
        let count = WORKING_SET_BYTES / self.bytes;
        let all = self.lent(0..count)?;
        for objects in all.chunks(64) {
            for stored in handle
                .put_all(objects.to_vec(), PutOptions::default())
                .wait()
            {
                stored.map_err(|error| error.to_string())?;
            }
        }
        let mut calls = Calls::new(pace);
        let mut next = 0;
        let group = group_of(self.bytes, self.batch) * self.batch;
        while calls.go_on() {
            let from = next % count;
            let wanted = self.lent(from..(from + group).min(count))?;
            next += wanted.len();
            calls.begin();
            if self.batch == 1 {
                for (key, into) in wanted {
                    hit(handle.get(key, into).wait())?;
                }
            } else {
                for got in handle.get_all(wanted).wait() {
                    hit(got)?;
                }
            }
            calls.end();
        }
        Ok(calls)
    }
}

fn all_stored(stored: Vec<Result<Stored, StoreError>>) -> Result<(), String> {
    stored.into_iter().try_for_each(|stored| {
        stored.map_err(|error| error.to_string())?;
        Ok(())
    })
}

fn remove(handle: &StoreHandle, objects: Range<usize>) -> Result<(), String> {
    let keys: Vec<_> = objects.map(name).collect();
    for keys in keys.chunks(500) {
        for removed in handle.remove(keys.to_vec()).wait() {
            removed.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn hit(got: Result<Got, StoreError>) -> Result<(), String> {
    match got.map_err(|error| error.to_string())? {
        Got::Hit { .. } => Ok(()),
        Got::Miss { .. } => Err("it was put".to_owned()),
    }
}
