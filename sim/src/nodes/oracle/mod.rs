//! The oracle: it knows every operation and every answer, and judges each answer as it comes.
//!
//! Objects are immutable while they are resident, and a node may evict them at any time; so an
//! answer is right if some moment between its question and it allows it:
//!
//! - A hit brings every byte of one put of that key, which has begun, with the version that this
//!   put was told, and which was not freed, removed or lost with its node before the question.
//! - A miss has a cause: the key was never put; no put of it has been acknowledged; it was removed;
//!   it was evicted; its holder is gone. If an acknowledged object was surely resident all the time,
//!   the miss has none, and is a failure.
//! - A put that writes, while an acknowledged object was surely resident, means that the object was
//!   dropped.
//! - Memory that an answer is being sent from is not freed.
//! - No operation takes longer than its deadline, and none fails when the faults are long over.
//! - What the coordinator has answered it never takes back, and each epoch has one map, unless its drive
//!   has lied (`ledger`).
//! - Nothing is damaged on the way, and no peer speaks nonsense: the network does neither.

mod history;
mod ledger;

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_kvstore::{StoreError, StoreErrorKind};
use lunette_kvstore_proto::message::Status;
use lunette_runtime_core::time::Time;
use lunette_transfer::{CallError, CloseReason};

use history::{KeyHistory, Put, PutEnd};
use ledger::Ledger;

/// Why a key was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Nobody has put it.
    NeverPut,
    /// No put of it has been acknowledged.
    Unacknowledged,
    /// It was removed, or may have been.
    Removed,
    /// Its node needed the room.
    Evicted,
    /// Its node is gone, and so are its objects.
    HolderGone,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NeverPut,
        Self::Unacknowledged,
        Self::Removed,
        Self::Evicted,
        Self::HolderGone,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverPut => "never_put",
            Self::Unacknowledged => "unacknowledged",
            Self::Removed => "removed",
            Self::Evicted => "evicted",
            Self::HolderGone => "holder_gone",
        }
    }
}

/// A time span of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When the operation began.
    pub start: Time,
    /// When its answer came.
    pub end: Time,
}

/// What was answered to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value: the put that its bytes are of, if they are right, and its version.
    Hit {
        /// The put.
        put: Option<u64>,
        /// The version.
        version: u64,
    },
    /// Nothing.
    Miss,
}

/// How many answers there were, of each kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Puts that wrote.
    pub written: u64,
    /// Puts of what was there.
    pub touched: u64,
    /// Gets that found.
    pub hits: u64,
    /// Puts that the coordinator has acknowledged.
    pub kept: u64,
    /// Epochs that members have seen.
    pub epochs: u64,
    /// Gets and look-ups that found nothing, by cause.
    pub misses: BTreeMap<&'static str, u64>,
    /// Operations that failed, by the kind of error.
    pub errors: BTreeMap<String, u64>,
}

/// The judge of one world.
#[derive(Debug)]
pub struct Oracle {
    keys: BTreeMap<u32, KeyHistory>,
    by_fingerprint: BTreeMap<u64, u32>,
    put_count: u64,
    /// When each node was killed.
    kills: BTreeMap<usize, Vec<Time>>,
    /// From when on nothing fails.
    calm_from: Time,
    /// The network damages bytes, which the product is to notice, and may complain about.
    is_damaging: bool,
    /// Operations under way, by number: whose, and when they are to have ended.
    open: BTreeMap<u64, (usize, Time)>,
    open_count: u64,
    /// What the coordinator has answered.
    pub(crate) ledger: Ledger,
    tally: Tally,
    failures: Vec<String>,
}

impl Oracle {
    /// Of a world whose faults are over, and recovered from, at `calm_from`, and whose network
    /// damages bytes before or not.
    #[must_use]
    pub fn new(calm_from: Time, is_damaging: bool) -> Self {
        Self {
            keys: BTreeMap::new(),
            by_fingerprint: BTreeMap::new(),
            put_count: 0,
            kills: BTreeMap::new(),
            calm_from,
            is_damaging,
            open: BTreeMap::new(),
            open_count: 0,
            ledger: Ledger::default(),
            tally: Tally::default(),
            failures: Vec::new(),
        }
    }

    /// Makes a key known: the high half of its fingerprint, and the node that is its home.
    pub fn add_key(&mut self, key: u32, fingerprint_high: u64, node: usize) {
        let earlier = self.by_fingerprint.insert(fingerprint_high, key);
        assert_eq!(earlier, None, "keys are told apart by their fingerprints");
        self.keys.insert(key, KeyHistory::new(node));
    }

    /// What went wrong.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// What was answered.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    fn fail(&mut self, at: Time, text: &str) {
        let seconds = at.since(Time::ZERO).as_secs_f64();
        self.failures.push(format!("{seconds:.6}: {text}"));
    }

    fn history(&mut self, key: u32) -> &mut KeyHistory {
        self.keys.get_mut(&key).expect("a known key")
    }

    /// A node is killed, with all that it holds.
    pub fn on_kill(&mut self, node: usize, now: Time) {
        self.kills.entry(node).or_default().push(now);
    }

    /// A node has freed an object.
    pub fn on_release(&mut self, fingerprint_high: u64, version: u64, now: Time) {
        let Some(key) = self.by_fingerprint.get(&fingerprint_high).copied() else {
            return;
        };
        let history = self.history(key);
        history.releases.push((now, version));
        let answers = history.being_sent.get(&version).copied().unwrap_or(0);
        if answers > 0 {
            let text = format!(
                "version {version} of key {key} was freed while {answers} answers with it were sent"
            );
            self.fail(now, &text);
        }
    }

    /// A node begins to send an answer with an object.
    pub fn on_answer_begun(&mut self, fingerprint_high: u64, version: u64) {
        if let Some(key) = self.by_fingerprint.get(&fingerprint_high).copied() {
            *self.history(key).being_sent.entry(version).or_default() += 1;
        }
    }

    /// The answer has been sent, or nobody wants it any more.
    pub fn on_answer_sent(&mut self, fingerprint_high: u64, version: u64, now: Time) {
        let Some(key) = self.by_fingerprint.get(&fingerprint_high).copied() else {
            return;
        };
        let answers = self.history(key).being_sent.get_mut(&version);
        match answers.filter(|answers| **answers > 0) {
            Some(answers) => *answers -= 1,
            None => self.fail(now, &format!("an answer with key {key} was sent twice")),
        }
    }

    /// A put begins. Its number, which its value carries.
    pub fn on_put(&mut self, key: u32, now: Time) -> u64 {
        self.put_count += 1;
        let number = self.put_count;
        self.history(key).puts.push(Put {
            number,
            start: now,
            end: None,
        });
        number
    }

    /// A put was answered.
    pub fn on_put_end(&mut self, key: u32, number: u64, end: PutEnd, span: Span) {
        let kills = self.kills_of(key);
        let history = self.history(key);
        let surely = history.surely_resident(span, &kills);
        if let (PutEnd::Written(version), Some(earlier)) = (end, surely) {
            let text = format!(
                "put {number} of key {key} wrote version {version}, although put {earlier} of it was \
                 acknowledged and surely resident"
            );
            self.fail(span.end, &text);
        }
        let history = self.history(key);
        if let PutEnd::Touched(version) = end
            && !history.may_have_version(version, number)
        {
            let text =
                format!("put {number} of key {key} touched version {version}, which nobody put");
            self.fail(span.end, &text);
        }
        match end {
            PutEnd::Written(_) => self.tally.written += 1,
            PutEnd::Touched(_) => self.tally.touched += 1,
            PutEnd::Failed => {}
        }
        let put = self.history(key).put_mut(number).expect("it has begun");
        assert!(put.end.is_none(), "a put ends once");
        put.end = Some((span.end, end));
    }

    fn kills_of(&mut self, key: u32) -> Vec<Time> {
        let node = self.history(key).node;
        self.kills.get(&node).cloned().unwrap_or_default()
    }

    /// A get was answered.
    pub fn on_get(&mut self, key: u32, answer: Answer, span: Span) {
        let kills = self.kills_of(key);
        match answer {
            Answer::Hit { put: None, .. } => {
                let text = format!("a get of key {key} brought bytes that nobody put");
                self.fail(span.end, &text);
            }
            Answer::Hit {
                put: Some(number),
                version,
            } => {
                self.tally.hits += 1;
                if let Err(why) = self.history(key).may_hit(number, version, span, &kills) {
                    let text = format!("a get of key {key} brought put {number}: {why}");
                    self.fail(span.end, &text);
                }
            }
            Answer::Miss => self.on_miss(key, "a get", span),
        }
    }

    /// A look-up was answered.
    pub fn on_exists(&mut self, key: u32, is_there: bool, span: Span) {
        if !is_there {
            return self.on_miss(key, "a look-up", span);
        }
        if self
            .history(key)
            .puts
            .iter()
            .all(|put| put.start > span.end)
        {
            let text = format!("a look-up found key {key}, which nobody has put");
            self.fail(span.end, &text);
        }
    }

    fn on_miss(&mut self, key: u32, what: &str, span: Span) {
        let kills = self.kills_of(key);
        let history = self.history(key);
        if let Some(number) = history.surely_resident(span, &kills) {
            let text = format!(
                "{what} missed key {key} without a cause: put {number} of it was acknowledged, and \
                 nothing has happened to it since"
            );
            return self.fail(span.end, &text);
        }
        let cause = history.cause_of_miss(span, &kills);
        *self.tally.misses.entry(cause.name()).or_default() += 1;
    }

    /// A node has removed an object because it was asked to.
    pub fn on_removed(&mut self, fingerprint_high: u64, now: Time) {
        if let Some(key) = self.by_fingerprint.get(&fingerprint_high).copied() {
            self.history(key).removals += 1;
            if let Err(text) = self.history(key).judge_removals() {
                self.fail(now, &format!("key {key}: {text}"));
            }
        }
    }

    /// A removal begins; it may have happened from now on. Its number.
    pub fn on_remove(&mut self, key: u32, now: Time) -> usize {
        let removes = &mut self.history(key).removes;
        removes.push(history::Remove {
            start: now,
            end: None,
            is_done: false,
            found: None,
        });
        removes.len() - 1
    }

    /// A removal was answered, or has failed: it may then still happen while there are faults.
    ///
    /// `found` is the answer, if there was one.
    pub fn on_remove_end(&mut self, key: u32, number: usize, found: Option<bool>, now: Time) {
        let is_done = found.is_some();
        let latest = if is_done {
            now
        } else {
            now.max(self.calm_from)
        };
        let remove = &mut self.history(key).removes[number];
        remove.end = Some(latest);
        remove.is_done = is_done;
        remove.found = found;
        if let Err(text) = self.history(key).judge_removals() {
            self.fail(now, &format!("key {key}: {text}"));
        }
    }

    /// An operation failed.
    pub fn on_error(&mut self, error: &StoreError, span: Span) {
        let name = name_of(error);
        *self.tally.errors.entry(name).or_default() += 1;
        if is_nonsense(error) && !self.is_damaging {
            self.fail(span.end, &format!("no network does this: {error}"));
        } else if span.start >= self.calm_from && !error.is_backpressure() && !is_busy(error) {
            let text = format!("failed although all faults were over: {error}");
            self.fail(span.end, &text);
        }
    }

    /// An operation of a client begins, which is to have ended by then. Its number.
    pub fn on_begin(&mut self, client: usize, ends_by: Time) -> u64 {
        self.open_count += 1;
        self.open.insert(self.open_count, (client, ends_by));
        self.open_count
    }

    /// A client process is gone, and what it asked with it.
    pub fn on_client_gone(&mut self, client: usize) {
        self.open.retain(|_, (whose, _)| *whose != client);
    }

    /// The world ends. What should have ended has ended.
    pub fn on_world_end(&mut self, now: Time) {
        self.tally.kept = self.ledger.kept;
        self.tally.epochs = self.ledger.epochs();
        let late = self.open.values().filter(|(_, by)| *by < now).count();
        if late > 0 {
            self.fail(now, &format!("{late} operations are past their deadlines"));
        }
    }

    /// An operation has ended, in whatever way. Its deadline was `limit` from its start; where that
    /// says nothing, because its process was disturbed, there is none.
    pub fn on_end(&mut self, number: u64, what: &str, limit: Option<Duration>, span: Span) {
        self.open.remove(&number);
        let Some(limit) = limit else { return };
        let took = span.end.since(span.start);
        if took > limit {
            let text = format!("{what} took {took:?}, longer than its deadline of {limit:?}");
            self.fail(span.end, &text);
        }
    }

    /// Something is wrong with the coordinator or a member.
    pub fn on_fault(&mut self, text: &str, now: Time) {
        self.fail(now, text);
    }

    /// Something that was to be done after all faults was not done.
    pub fn on_stuck(&mut self, what: &str, now: Time) {
        self.fail(now, &format!("{what} never ended"));
    }
}

pub use history::PutEnd as PutOutcome;

/// The kind of an error, without its numbers.
fn name_of(error: &StoreError) -> String {
    let text = format!("{:?}", error.kind);
    let end = text.find(['{', '[']).unwrap_or(text.len());
    text[..end].trim().to_owned()
}

fn is_busy(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Refused(Status::Busy))
}

/// What only a bug can bring about, since the network neither damages nor invents bytes.
fn is_nonsense(error: &StoreError) -> bool {
    let is_wire_fault =
        |reason: &CloseReason| !reason.is_retryable() && *reason != CloseReason::Local;
    error.is_corruption()
        || match &error.kind {
            StoreErrorKind::BadReply(_) | StoreErrorKind::Key(_) => true,
            StoreErrorKind::Call(CallError::Disconnected(reason)) => is_wire_fault(reason),
            StoreErrorKind::Refused(status) => matches!(
                status,
                Status::BadRequest | Status::Internal | Status::WrongHome | Status::Unsupported
            ),
            _ => false,
        }
}

#[cfg(test)]
mod tests;
