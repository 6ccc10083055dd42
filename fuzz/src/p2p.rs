//! The machine of a holder of an object, under anything that others say, and the records and messages of objects.
//!
//! ```text
//!   first byte: which chunks are here at first; then for each step a byte that says which, and its choices
//! ```
//!
//! Four others say what they like to a holder of 70 chunks, in structures that are drawn or in bytes that are nothing;
//! what it fetches ends as the script wants. Records are bytes behind a magic and before a checksum that fits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_generate::{Bytes, Source};
use lunette_p2p_proto::catalogue::{HolderRecord, ObjectRecord, decode_sums, encode_sums};
use lunette_p2p_proto::message::{Ending, Message, Refusal};
use lunette_p2p_proto::swarm::{Action, FetchId, Fetched, Member, Options};
use lunette_p2p_proto::{ChunkSet, PeerId, Swarm, Version};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;

const CHUNKS: u32 = 70;
const ME: PeerId = PeerId(9);
/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 400;
/// Few of everything, so that bounds are met.
const OPTIONS: Options = Options {
    downloads_max: 4,
    downloads_per_source_max: 2,
    downloads_far_max: 1,
    uploads_max: 2,
    uploads_queued_max: 3,
    greeted_max: 2,
    neighbours_max: 3,
    patience: lunette_p2p_proto::pace::Patience {
        min: Duration::from_millis(50),
        max: Duration::from_secs(10),
    },
    silence_max: Duration::from_secs(6),
    is_serving: true,
};

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Records that were read.
    pub records: u32,
    /// Bytes that were none.
    pub malformed: u32,
    /// Messages that were taken in.
    pub messages: u32,
    /// Chunks that were granted to others.
    pub granted: u32,
    /// Others that were told that it is busy.
    pub busy: u32,
    /// Others that were refused as neighbours.
    pub refused: u32,
    /// Chunks that were fetched.
    pub held: u32,
    /// Fetches that were cancelled.
    pub cancelled: u32,
    /// Fetches of what was being fetched already.
    pub copies: u32,
    /// Objects that became whole.
    pub whole: u32,
    /// Machines that were closed to the end.
    pub closed: u32,
}

/// Drives a holder with a script.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn p2p(data: &[u8]) -> Reached {
    let mut source = Bytes::new(data);
    let first = source.u8();
    let mut holder = Holder::new(first);
    let mut steps = 0;
    while !source.is_spent() && steps < STEPS_MAX {
        holder.step(&mut source);
        steps += 1;
    }
    holder.reached
}

struct Holder {
    swarm: Swarm,
    now: Time,
    /// What was asked of whom.
    asked: BTreeSet<(PeerId, u32, u32)>,
    fetches: BTreeMap<FetchId, u32>,
    is_closing: bool,
    reached: Reached,
}

impl Holder {
    /// With all chunks, with none, or with as many as the byte says.
    fn new(first: u8) -> Self {
        let mut held = ChunkSet::empty(CHUNKS);
        for chunk in 0..u32::from(first).min(CHUNKS) {
            held.insert(chunk);
        }
        let now = Time::from_ns(0);
        let rack = "a".parse().expect("a label");
        Self {
            swarm: Swarm::new(now, ME, rack, held, OPTIONS, u64::from(first)),
            now,
            asked: BTreeSet::new(),
            fetches: BTreeMap::new(),
            is_closing: false,
            reached: Reached::default(),
        }
    }

    fn step(&mut self, source: &mut Bytes<'_>) {
        let peer = PeerId(u64::from(source.below(4)));
        match source.below(12) {
            0 => self.members(source),
            1 => {
                self.now = self.now + Duration::from_millis(u64::from(source.u8()) * 40);
                self.swarm.on_time(self.now);
            }
            2 => self.swarm.on_unreachable(self.now, peer),
            3 if source.below(8) == 0 => {
                self.is_closing = true;
                self.swarm.close(self.now);
            }
            4 => self.record(source),
            5 => {
                let len_max = usize::from(source.u8());
                match Message::decode(source.take(len_max)) {
                    Ok((version, message)) => self.say(peer, version, &message),
                    Err(_) => self.reached.malformed += 1,
                }
            }
            6 | 7 => self.end_a_fetch(source),
            _ => {
                let message = self.message(source);
                self.say(peer, Version(1), &message);
            }
        }
        self.act();
    }

    fn say(&mut self, from: PeerId, version: Version, message: &Message) {
        let bytes = message.encode(version);
        let decoded = Message::decode(&bytes);
        assert_eq!(decoded, Ok((version, message.clone())), "it has one form");
        self.reached.messages += 1;
        self.swarm.on_message(self.now, from, message.clone());
    }

    fn members(&mut self, source: &mut Bytes<'_>) {
        let count = source.below(5);
        let members: Vec<_> = (0..u64::from(count))
            .map(|id| Member {
                id: PeerId(id),
                rack: if source.flag() { "a" } else { "b" }
                    .parse()
                    .expect("a label"),
                is_whole: source.flag(),
                keeps_all: true,
            })
            .collect();
        self.swarm.on_members(self.now, &members);
    }

    fn message(&self, source: &mut Bytes<'_>) -> Message {
        let load = u16::from(source.u8());
        // Rather a want that there is.
        let open = self.asked.iter().nth(usize::from(source.below(8)));
        let (want, chunk) = match open {
            Some(&(_, want, chunk)) if source.below(8) != 0 => (want, chunk),
            _ => (u32::from(source.u8()), u32::from(source.u8())),
        };
        match source.below(14) {
            0 | 1 => Message::Hello,
            2 | 3 => Message::Welcome,
            4 => Message::All { load },
            5 => Message::Have {
                load,
                chunks: (0..source.below(9))
                    .map(|_| u32::from(source.u8()))
                    .collect(),
            },
            6 => Message::Map {
                load,
                first: u32::from(source.below(3)),
                words: (0..source.below(3))
                    .map(|_| u64::from_le_bytes(source.array()))
                    .collect(),
            },
            7 | 8 => Message::Want {
                want: u32::from(source.u8()),
                candidates: (0..=source.below(15))
                    .map(|_| u32::from(source.u8()))
                    .collect(),
            },
            9 | 10 => Message::Grant { want, chunk, load },
            11 => Message::Busy { want, load },
            12 => Message::Done {
                want: u32::from(source.u8()),
                ending: [Ending::Held, Ending::Failed, Ending::Unwanted]
                    [usize::from(source.below(3))],
            },
            _ => match source.below(3) {
                0 => Message::Bye,
                1 => Message::Refuse(Refusal::Full),
                _ => Message::Refuse(Refusal::Gone),
            },
        }
    }

    fn end_a_fetch(&mut self, source: &mut Bytes<'_>) {
        let at = usize::from(source.below(4));
        let fetched = match source.below(8) {
            0 => Fetched::Corrupt,
            1 => Fetched::Failed,
            _ => Fetched::Held,
        };
        let Some((&fetch, &chunk)) = self.fetches.iter().nth(at) else {
            return;
        };
        self.fetches.remove(&fetch);
        self.swarm.on_fetched(self.now, fetch, fetched);
        if fetched == Fetched::Held {
            self.reached.held += 1;
            assert!(self.swarm.held().contains(chunk));
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.swarm.poll_action() {
            match action {
                Action::Send { to, message } => self.sent(to, &message),
                Action::Fetch {
                    fetch,
                    source,
                    chunk,
                    is_copy,
                } => {
                    assert!(
                        self.asked.contains(&(source, fetch.0, chunk)),
                        "it was asked for"
                    );
                    assert!(!self.swarm.held().contains(chunk), "it is lacking");
                    let under_way = self.fetches.values().filter(|&&other| other == chunk);
                    assert_eq!(under_way.count() > 0, is_copy);
                    self.reached.copies += u32::from(is_copy);
                    assert!(self.fetches.insert(fetch, chunk).is_none());
                    assert!(self.fetches.len() <= OPTIONS.downloads_max);
                }
                Action::Cancel(fetch) => {
                    if self.fetches.remove(&fetch).is_some() {
                        self.reached.cancelled += 1;
                        self.swarm.on_fetched(self.now, fetch, Fetched::Cancelled);
                    }
                }
                Action::Whole => self.reached.whole += 1,
                Action::Closed => {
                    assert!(self.is_closing && self.fetches.is_empty());
                    self.reached.closed += 1;
                }
            }
        }
        assert!(self.reached.whole <= 1 && self.reached.closed <= 1);
        assert!(self.swarm.neighbours() <= OPTIONS.neighbours_max);
        let load_max = OPTIONS.uploads_max + OPTIONS.uploads_queued_max;
        assert!(usize::from(self.swarm.load()) <= load_max);
        assert!(self.swarm.deadline().is_none_or(|at| at > self.now));
    }

    fn sent(&mut self, to: PeerId, message: &Message) {
        // Whatever it is, it fits.
        drop(message.encode(Version(1)));
        match message {
            Message::Want { want, candidates } => {
                assert!(!self.is_closing);
                self.asked
                    .extend(candidates.iter().map(|&chunk| (to, *want, chunk)));
            }
            Message::Grant { chunk, .. } => {
                assert!(!self.is_closing && self.swarm.held().contains(*chunk));
                self.reached.granted += 1;
            }
            Message::Busy { .. } => self.reached.busy += 1,
            Message::Refuse(_) => self.reached.refused += 1,
            _ => {}
        }
    }

    /// What is read of a record has one form.
    fn record(&mut self, source: &mut Bytes<'_>) {
        let kind = source.below(4);
        let len_max = usize::from(source.u8());
        let mut bytes = [&b"LNPO"[..], b"LNPS", b"LNPH", b""][usize::from(kind)].to_vec();
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend(source.take(len_max));
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        let written = match kind {
            0 => ObjectRecord::decode(&bytes).map(|record| record.encode()),
            1 => {
                let expected = u32::from(source.below(4));
                decode_sums(&bytes, expected).map(|sums| encode_sums(&sums))
            }
            // An address may be spelt in several ways, and is written in one.
            2 => HolderRecord::decode(&bytes).map(|record| {
                let again = HolderRecord::decode(&record.encode());
                assert_eq!(again, Ok(record));
                bytes.clone()
            }),
            _ => HolderRecord::decode(&bytes).map(|record| record.encode()),
        };
        match written {
            Ok(written) => {
                assert_eq!(written, bytes);
                self.reached.records += 1;
            }
            Err(_) => self.reached.malformed += 1,
        }
    }
}
