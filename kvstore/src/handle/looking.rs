//! Keys that threads look up themselves: by what they [see](crate::glance), and at homes on other hosts by [lines](super::lines),
//! past their own process's core, which neither carries the question nor wakes for it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::asker::RESEND;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{PEEKS_MAX, Peek, PeekMessage, PeekReply};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_runtime::{Patience, Pending, SPIN};

use super::StoreHandle;
use super::cores::Cores;
use super::direct::merged;
use super::lines::{LentLine, Taken};
use super::objects::unknown;
use crate::error::StoreError;

/// Homes that a thread asks at the same time. What concerns more of them, cores ask, who send all questions and wait for all
/// answers in a few calls of the system.
const HOMES_MAX: usize = 4;
/// Looks in between which nothing is asked of the system.
const LOOKS: u32 = 32;

/// Keys that are being looked up. See [`StoreHandle::look_up`].
#[must_use = "what is not known yet is asked for when it is finished"]
pub struct Looking {
    cores: Arc<Cores>,
    keys: Vec<Vec<u8>>,
    known: Vec<Option<Result<bool, StoreError>>>,
    /// Homes that have not answered.
    asked: Vec<Asked>,
    until: Instant,
}

/// A home that is asked.
struct Asked {
    line: LentLine,
    /// Of which of the keys.
    places: Vec<usize>,
}

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looking")
            .field("keys", &self.keys.len())
            .field("asked", &self.asked.len())
            .finish_non_exhaustive()
    }
}

impl StoreHandle {
    /// As [`exists`](Self::exists), for a thread that waits: homes on other hosts are asked by the thread, on a connection that
    /// it has for that time. A core makes these connections when threads have asked it a first time, and closes them when they
    /// are idle. There are none to homes with which adapters are shared or which want all sealed.
    ///
    /// What is dropped before the end has asked for nothing that anybody keeps.
    ///
    /// # Errors
    /// With [`finish`](Looking::finish).
    pub fn look_up(&self, keys: Vec<Vec<u8>>) -> Looking {
        let known = self.peeked(&keys);
        let mut looking = Looking {
            cores: Arc::clone(&self.cores),
            keys,
            known,
            asked: Vec::new(),
            until: Instant::now() + RESEND,
        };
        looking.ask();
        looking
    }

    /// As [`exists`](Self::exists), for a thread that waits: see [`look_up`](Self::look_up).
    ///
    /// # Errors
    /// One for each: [`StoreError`], as there.
    pub fn exists_waiting(&self, keys: Vec<Vec<u8>>) -> Vec<Result<bool, StoreError>> {
        let mut looking = self.look_up(keys);
        looking.wait(Duration::MAX);
        looking.finish().wait()
    }
}

impl Looking {
    /// Asks the homes of what is not known, if there is a line to each.
    fn ask(&mut self) {
        let Some((epoch, homes)) = self.homes() else {
            return;
        };
        let lines = self.cores.lines();
        let mut asked = Vec::with_capacity(homes.len());
        let homes_count = homes.len();
        for (seat, keys) in homes {
            match lines.take(seat) {
                Taken::Line(line) => asked.push((line, keys)),
                Taken::ToMake => self.cores.have_line_made(seat),
                Taken::None => {}
            }
        }
        if asked.len() < homes_count {
            // A core is asked in any case: it asks all.
            return;
        }
        for (mut line, keys) in asked {
            let seat = line.seat();
            let home = line.home();
            let head = (seat, epoch, home.namespace);
            let (version, fingerprints) = (home.version, keys.iter().map(|(_, key)| *key));
            let body = |out: &mut Vec<u8>| PeekMessage::encode(head, fingerprints, version, out);
            match home.line.ask(Op::Peek.code(), body) {
                Ok(()) => {
                    let places = keys.iter().map(|(place, _)| *place).collect();
                    self.asked.push(Asked { line, places });
                }
                Err(reason) => tracing::debug!(?seat, %reason, "a thread's connection has ended"),
            }
        }
    }

    /// The homes to ask, for which of the keys, if all can be asked at once, by the map of that epoch.
    #[expect(clippy::type_complexity, reason = "taken apart where it is called")]
    fn homes(&self) -> Option<(Epoch, BTreeMap<Seat, Vec<(usize, Fingerprint)>>)> {
        let map = self.cores.map();
        let map = map.as_ref()?;
        let mut homes: BTreeMap<Seat, Vec<(usize, Fingerprint)>> = BTreeMap::new();
        for (place, key) in self.keys.iter().enumerate() {
            if self.known[place].is_some() {
                continue;
            }
            let key = self.cores.tenant().key(key);
            let key = self.cores.tenant().check(&key).ok()?.fingerprint();
            let seat = home_of(map, key)?;
            homes.entry(seat).or_default().push((place, key));
            if homes.len() > HOMES_MAX {
                return None;
            }
        }
        let is_one_message = homes.values().all(|keys| keys.len() <= PEEKS_MAX);
        let is_elsewhere = homes.keys().all(|&seat| !self.cores.has_seat(seat));
        (is_one_message && is_elsewhere).then_some((map.epoch(), homes))
    }

    /// Keys of which nothing is known yet. When there is nothing to [wait](Self::step) for, cores are to be asked for so many.
    #[must_use]
    pub fn left(&self) -> usize {
        self.known.iter().filter(|known| known.is_none()).count()
    }

    /// Takes the answers that there are. Whether all have come, or what has not is left to cores; else this is to be called
    /// again, after a while, or when it has [slept](Self::sleep).
    pub fn step(&mut self) -> bool {
        let known = &mut self.known;
        self.asked.retain_mut(|asked| !asked.has_ended(known));
        if !self.asked.is_empty() && Instant::now() >= self.until {
            tracing::debug!(homes = self.asked.len(), "threads are not answered in time");
            self.asked.clear();
        }
        self.asked.is_empty()
    }

    /// Sleeps until there is an answer to take, and no longer than `timeout`; it may wake for no reason.
    pub fn sleep(&mut self, timeout: Duration) {
        let left = self.until.saturating_duration_since(Instant::now());
        if let Some(asked) = self.asked.first_mut() {
            asked.line.home().line.sleep(timeout.min(left));
        }
    }

    /// Blocks this thread until all that is asked has been answered, or is left to cores, and no longer than `timeout`; whether
    /// it has been. It looks for a while, where that has paid [lately](Patience), then sleeps.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        thread_local! {
            static PATIENCE: Patience = const { Patience::new() };
        }
        if self.step() {
            return true;
        }
        PATIENCE.with(|patience| {
            let (begun, spin) = (Instant::now(), patience.spin(SPIN));
            while !self.step() {
                let waited = begun.elapsed();
                if waited >= timeout {
                    return false;
                }
                if waited >= spin {
                    self.sleep(timeout - waited);
                    continue;
                }
                for _ in 0..LOOKS {
                    std::hint::spin_loop();
                }
            }
            patience.learn(spin, begun.elapsed());
            true
        })
    }

    /// Has cores look up what is left; for each key, in their order, whether there is an object.
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`StoreHandle::exists`].
    pub fn finish(self) -> Pending<Vec<Result<bool, StoreError>>> {
        let Self {
            cores, keys, known, ..
        } = self;
        cores.ask_whether(keys, known)
    }
}

impl Cores {
    /// What is known of keys, and in its gaps what cores find out.
    pub(super) fn ask_whether(
        &self,
        keys: Vec<Vec<u8>>,
        known: Vec<Option<Result<bool, StoreError>>>,
    ) -> Pending<Vec<Result<bool, StoreError>>> {
        let left = unknown(keys, &known);
        if left.is_empty() {
            return Pending::ready(known.into_iter().flatten().collect());
        }
        let is_all = left.len() == known.len();
        let asked = self.ask_for_presence(left);
        if is_all { asked } else { merged(known, asked) }
    }
}

impl Asked {
    /// Takes the answer, if it has come. Whether there is nothing more to wait for.
    fn has_ended(&mut self, known: &mut [Option<Result<bool, StoreError>>]) -> bool {
        let places = &self.places;
        let read = |status, body: &[u8]| match Status::from_code(status) {
            Status::Ok => {
                let mut next = places.iter();
                PeekReply::decode(body, places.len(), |peek| {
                    let place = *next.next().expect("one for each key");
                    known[place] = match peek {
                        Peek::Present => Some(Ok(true)),
                        Peek::Absent => Some(Ok(false)),
                        Peek::Unsure => None,
                    };
                })
            }
            // Its core learns why when it asks.
            _ => Ok(()),
        };
        match self.line.home().line.look(read) {
            Ok(None) => return false,
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(fault))) => tracing::warn!(%fault, "a node's answer makes no sense"),
            Err(reason) => tracing::debug!(%reason, "a thread's connection has ended"),
        }
        true
    }
}
