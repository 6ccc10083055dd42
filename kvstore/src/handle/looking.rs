//! Keys that threads look up themselves: by what they [see](crate::glance), and at homes on other hosts by
//! [lines](super::lines), past their own process's core, which neither carries the question nor wakes for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{PEEKS_MAX, Peek, PeekMessage, PeekReply};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_runtime::Pending;
use lunette_transfer::LineSink;

use super::StoreHandle;
use super::cores::Cores;
use super::direct::merged;
use super::objects::unknown;
use super::round::{Round, went};
use crate::error::StoreError;

/// Keys that are being looked up. See [`StoreHandle::look_up`].
#[must_use = "what is not known yet is asked for when it is finished"]
pub struct Looking<K = Vec<u8>> {
    cores: Arc<Cores>,
    keys: Vec<K>,
    known: Known,
    round: Round<Peeked>,
}

/// For each key whether there is an object, where that is known.
type Known = Vec<Option<Result<bool, StoreError>>>;

/// What a home answers.
struct Peeked {
    /// Of which of the keys.
    places: Vec<usize>,
    /// In their order; none if it does not say.
    peeks: Vec<Peek>,
}

impl<K> fmt::Debug for Looking<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looking")
            .field("keys", &self.keys.len())
            .field("homes", &self.round.len())
            .finish_non_exhaustive()
    }
}

impl StoreHandle {
    /// As [`exists`](Self::exists), for a thread that waits: a few homes on other hosts are asked by the thread, each on a
    /// connection that it has for that time. A core makes these connections when threads have asked it first, and closes them
    /// when they are idle. There are none where adapters carry questions, or where all is sealed.
    ///
    /// What is dropped before the end has asked for nothing that anybody keeps.
    ///
    /// # Errors
    /// With [`finish`](Looking::finish).
    pub fn look_up<K: AsRef<[u8]>>(&self, keys: Vec<K>) -> Looking<K> {
        let known = self.peeked(&keys);
        let round = ask(&self.cores, &keys, &known);
        Looking {
            cores: Arc::clone(&self.cores),
            keys,
            known,
            round: round.unwrap_or_else(Round::none),
        }
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

/// Asks the homes of what is not known, if threads may.
fn ask(cores: &Cores, keys: &[impl AsRef<[u8]>], known: &Known) -> Option<Round<Peeked>> {
    let mut left = Vec::with_capacity(keys.len());
    for (place, key) in keys.iter().enumerate() {
        if known[place].is_none() {
            let key = cores.tenant().key(key.as_ref());
            let key = cores.tenant().check(&key).ok()?.fingerprint();
            left.push((key, (place, key)));
        }
    }
    let (epoch, homes) = cores.far_homes(left.into_iter())?;
    if homes.values().any(|keys| keys.len() > PEEKS_MAX) {
        return None;
    }
    let round = Round::begin(cores, (homes, 1), |seat, home, keys| {
        let head = (seat, epoch, home.namespace);
        let (version, fingerprints) = (home.version, keys.iter().map(|(_, key)| *key));
        let body = |out: &mut Vec<u8>| PeekMessage::encode(head, fingerprints, version, out);
        let asked = home.line.ask(Op::Peek.code(), body, 0);
        let peeked = Peeked {
            places: keys.iter().map(|(place, _)| *place).collect(),
            peeks: Vec::new(),
        };
        (peeked, went(&home.line, asked))
    });
    round.ok()
}

impl<K: AsRef<[u8]>> Looking<K> {
    /// Keys of which nothing is known yet. When there is nothing to [wait](Self::step) for, cores are to be asked for so many.
    #[must_use]
    pub fn left(&self) -> usize {
        self.known.iter().filter(|known| known.is_none()).count()
    }

    /// Whether nothing more is to come.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.round.is_over()
    }

    /// Takes the answers that there are. Whether nothing more is to come: what is not known then is left to cores. Else this is
    /// to be called again, after a while, or when it has [slept](Self::sleep).
    pub fn step(&mut self) -> bool {
        let known = &mut self.known;
        self.round.step(|peeked, _| peeked.note(known))
    }

    /// Sleeps until there is an answer to take, and no longer than `timeout`; it may wake for no reason.
    pub fn sleep(&mut self, timeout: Duration) {
        self.round.sleep(timeout);
    }

    /// Blocks this thread until nothing more is to come, and no longer than `timeout`; whether that is so. It looks for a
    /// while, where that has paid [lately](lunette_runtime::Patience), then sleeps.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let known = &mut self.known;
        self.round.wait(timeout, |peeked, _| peeked.note(known))
    }

    /// Has cores look up what is left; for each key, in their order, whether there is an object.
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`StoreHandle::exists`].
    pub fn finish(self) -> Pending<Vec<Result<bool, StoreError>>> {
        let Self {
            cores, keys, known, ..
        } = self;
        let left = unknown(keys, &known).into_iter();
        let left = left.map(|key| key.as_ref().to_vec()).collect();
        cores.ask_whether(left, known)
    }
}

impl Cores {
    /// What is known of keys, and in its gaps what cores find out, who are asked for those.
    pub(super) fn ask_whether(
        &self,
        left: Vec<Vec<u8>>,
        known: Known,
    ) -> Pending<Vec<Result<bool, StoreError>>> {
        if left.is_empty() {
            return Pending::ready(known.into_iter().flatten().collect());
        }
        let is_all = left.len() == known.len();
        let asked = self.ask_for_presence(left);
        if is_all { asked } else { merged(known, asked) }
    }
}

impl Peeked {
    fn note(self, known: &mut Known) {
        for (place, peek) in self.places.into_iter().zip(self.peeks) {
            known[place] = match peek {
                Peek::Present => Some(Ok(true)),
                Peek::Absent => Some(Ok(false)),
                Peek::Unsure => None,
            };
        }
    }
}

impl LineSink for Peeked {
    fn on_answer(&mut self, status: u16, body: &[u8], _payload_len_bytes: usize) {
        if Status::from_code(status) != Status::Ok {
            // A core learns why when it asks.
            return;
        }
        let peeks = &mut self.peeks;
        let decoded = PeekReply::decode(body, self.places.len(), |peek| peeks.push(peek));
        if let Err(fault) = decoded {
            tracing::warn!(%fault, "a node's answer makes no sense");
        }
    }

    fn on_payload(&mut self, _bytes: &[u8]) {}
}
