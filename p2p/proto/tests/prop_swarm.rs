//! Swarms in a small network that delays, loses, damages and kills, beside what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_cluster_proto::rack::Rack;
use lunette_p2p_proto::message::{Ending, Message, Refusal};
use lunette_p2p_proto::swarm::{Action, FetchId, Fetched, Member, Options};
use lunette_p2p_proto::{ChunkSet, PeerId, Swarm, Version};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use proptest::prelude::*;

/// What goes wrong, in thousandths.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u32,
    failed: u32,
    corrupt: u32,
    /// A fetch of which nothing more is heard until it is cancelled.
    stuck: u32,
}

#[derive(Debug)]
enum Event {
    Message(PeerId, PeerId, Message),
    Unreachable(PeerId, PeerId),
    Fetched(PeerId, FetchId, Fetched),
    Timer(PeerId),
    Members,
    Dies(PeerId),
}

struct Town {
    now: Time,
    made: u64,
    events: BTreeMap<(Time, u64), Event>,
    swarms: BTreeMap<PeerId, Swarm>,
    /// Fetches under way at each, and which are stuck.
    fetches: BTreeSet<(PeerId, FetchId)>,
    racks: BTreeMap<PeerId, Rack>,
    random: SplitMix64,
    faults: Faults,
    downloads_max: usize,
    whole: BTreeSet<PeerId>,
    /// The next timer of each, which is set once.
    timers: BTreeMap<PeerId, Time>,
    /// What each wants.
    wanted: BTreeMap<PeerId, ChunkSet>,
    /// Those who serve nothing, and are not in the catalogue.
    mute: BTreeSet<PeerId>,
}

impl Town {
    fn push(&mut self, after_us: u64, event: Event) {
        let at = self.now + Duration::from_micros(after_us);
        self.made += 1;
        self.events.insert((at, self.made), event);
    }

    fn draw(&mut self, thousandths: u32) -> bool {
        self.random.below(1000) < thousandths
    }

    fn delay(&mut self) -> u64 {
        u64::from(self.random.below(2000)) + 1
    }

    fn act(&mut self, me: PeerId) {
        loop {
            let Some(swarm) = self.swarms.get_mut(&me) else {
                return;
            };
            let Some(action) = swarm.poll_action() else {
                break;
            };
            match action {
                Action::Send { to, message } => {
                    let bytes = message.encode(Version(1));
                    assert_eq!(Message::decode(&bytes), Ok((Version(1), message.clone())));
                    let after = self.delay();
                    let is_lost = self.draw(self.faults.lost) || !self.swarms.contains_key(&to);
                    let event = if is_lost {
                        Event::Unreachable(me, to)
                    } else {
                        Event::Message(me, to, message)
                    };
                    self.push(after, event);
                }
                Action::Fetch {
                    fetch,
                    source,
                    chunk,
                    ..
                } => self.fetch(me, fetch, source, chunk),
                Action::Cancel(fetch) => {
                    if self.fetches.remove(&(me, fetch)) {
                        self.push(5, Event::Fetched(me, fetch, Fetched::Cancelled));
                    }
                }
                Action::Whole => assert!(self.whole.insert(me), "it is whole once"),
                Action::Closed => unreachable!("nobody was closed"),
            }
        }
        if let Some(at) = self.swarms[&me].deadline() {
            assert!(at > self.now, "what was due has been done");
            let before = self.timers.insert(me, at);
            if before != Some(at) {
                self.made += 1;
                self.events.insert((at, self.made), Event::Timer(me));
            }
        }
    }

    fn fetch(&mut self, me: PeerId, fetch: FetchId, source: PeerId, chunk: u32) {
        assert!(!self.swarms[&me].held().contains(chunk), "it has it");
        assert!(self.wanted[&me].contains(chunk), "it wants it");
        assert!(!self.mute.contains(&source), "it serves nothing");
        assert!(self.fetches.insert((me, fetch)), "numbers differ");
        let mine = self.fetches.iter().filter(|(whose, _)| *whose == me);
        assert!(mine.count() <= self.downloads_max, "downloads are bounded");
        let Some(swarm) = self.swarms.get(&source) else {
            return;
        };
        assert!(swarm.held().contains(chunk), "what was granted is there");
        if self.draw(self.faults.stuck) {
            return;
        }
        let fetched = if self.draw(self.faults.failed) {
            Fetched::Failed
        } else if self.draw(self.faults.corrupt) {
            Fetched::Corrupt
        } else {
            Fetched::Held
        };
        let after = self.delay() * 4;
        self.push(after, Event::Fetched(me, fetch, fetched));
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        let me = match event {
            Event::Message(from, to, message) => {
                if let Some(swarm) = self.swarms.get_mut(&to) {
                    swarm.on_message(now, from, message);
                }
                to
            }
            Event::Unreachable(me, peer) => {
                if let Some(swarm) = self.swarms.get_mut(&me) {
                    swarm.on_unreachable(now, peer);
                }
                me
            }
            Event::Fetched(me, fetch, fetched) => {
                let is_open = self.fetches.remove(&(me, fetch)) || fetched == Fetched::Cancelled;
                if !is_open {
                    // It was cancelled before it came.
                    return;
                }
                if let Some(swarm) = self.swarms.get_mut(&me) {
                    swarm.on_fetched(now, fetch, fetched);
                }
                me
            }
            Event::Timer(me) => {
                if self.timers.get(&me) != Some(&now) {
                    return;
                }
                self.timers.remove(&me);
                let is_due = |swarm: &&mut Swarm| swarm.deadline() == Some(now);
                if let Some(swarm) = self.swarms.get_mut(&me).filter(is_due) {
                    swarm.on_time(now);
                }
                me
            }
            Event::Dies(me) => {
                self.swarms.remove(&me);
                me
            }
            Event::Members => {
                self.members();
                return;
            }
        };
        self.act(me);
    }

    fn members(&mut self) {
        self.push(100_000, Event::Members);
        let members: Vec<_> = self
            .swarms
            .iter()
            .filter(|(id, _)| !self.mute.contains(id))
            .map(|(&id, swarm)| Member {
                id,
                rack: self.racks[&id],
                is_whole: swarm.held().is_full(),
                keeps_all: self.wanted[&id].is_full(),
            })
            .collect();
        let all: Vec<_> = self.swarms.keys().copied().collect();
        for id in all {
            let now = self.now;
            let swarm = self.swarms.get_mut(&id).expect("it lives");
            swarm.on_members(now, &members);
            self.act(id);
        }
    }

    fn is_over(&self) -> bool {
        self.swarms.values().all(Swarm::is_complete)
    }
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    receivers: u64,
    chunks: u32,
    racks: u64,
    dying: u64,
    resumed: u32,
    /// How many receivers want a part of the chunks, and of how many one.
    partial: u64,
    part: u32,
    /// Whether those of odd numbers among them serve nothing.
    is_mute: bool,
    faults: Faults,
    options: Options,
}

fn case() -> impl Strategy<Value = Case> {
    let faults = (0..20_u32, 0..50_u32, 0..50_u32, 0..20_u32);
    let faults = faults.prop_map(|(lost, failed, corrupt, stuck)| Faults {
        lost,
        failed,
        corrupt,
        stuck,
    });
    let options = (1..8_usize, 1..4_usize, 0..8_usize, 1..6_usize, 3..8_usize);
    let options = options.prop_map(
        |(downloads, uploads, queued, greeted, neighbours)| Options {
            downloads_max: downloads,
            downloads_per_source_max: 2,
            downloads_far_max: 1,
            uploads_max: uploads,
            uploads_queued_max: queued,
            greeted_max: greeted,
            neighbours_max: neighbours,
            ..Options::default()
        },
    );
    let sizes = (1..8_u64, 1..130_u32, 1..3_u64, 0..3_u64, 0..100_u32);
    let parts = (0..6_u64, 1..6_u32, any::<bool>());
    (any::<u64>(), sizes, parts, faults, options).prop_map(
        |(seed, sizes, (partial, part, is_mute), faults, options)| {
            let (receivers, chunks, racks, dying, resumed) = sizes;
            Case {
                seed,
                receivers,
                chunks,
                racks,
                dying,
                resumed,
                partial,
                part,
                is_mute,
                faults,
                options,
            }
        },
    )
}

/// Most events of a run.
const EVENTS_MAX: u64 = 1_000_000;

fn town(case: &Case) -> Town {
    let mut town = Town {
        now: Time::from_ns(0),
        made: 0,
        events: BTreeMap::new(),
        swarms: BTreeMap::new(),
        fetches: BTreeSet::new(),
        racks: BTreeMap::new(),
        random: SplitMix64::new(case.seed),
        faults: case.faults,
        downloads_max: case.options.downloads_max,
        whole: BTreeSet::new(),
        timers: BTreeMap::new(),
        wanted: BTreeMap::new(),
        mute: BTreeSet::new(),
    };
    for id in 0..=case.receivers {
        let mut held = ChunkSet::empty(case.chunks);
        for chunk in 0..case.chunks {
            if id == 0 || (id == 1 && chunk < case.resumed) {
                held.insert(chunk);
            }
        }
        let peer = PeerId(id);
        let rack: Rack = format!("r{}", id % case.racks)
            .parse()
            .expect("it is a label");
        town.racks.insert(peer, rack);
        let is_partial = id > 0 && id <= case.partial;
        let mut wanted = ChunkSet::empty(case.chunks);
        for chunk in 0..case.chunks {
            if !is_partial || u64::from(chunk % case.part) == id % u64::from(case.part) {
                wanted.insert(chunk);
            }
        }
        let mut options = case.options;
        if is_partial && case.is_mute && id % 2 == 1 {
            options.is_serving = false;
            town.mute.insert(peer);
        }
        let swarm = Swarm::new(town.now, peer, rack, held, options, case.seed ^ id);
        let swarm = swarm.wanting(wanted.clone());
        town.wanted.insert(peer, wanted);
        town.swarms.insert(peer, swarm);
    }
    for id in 0..case.dying.min(case.receivers.saturating_sub(1)) {
        let after = u64::from(town.random.below(100_000));
        town.push(after, Event::Dies(PeerId(case.receivers - id)));
    }
    town.push(0, Event::Members);
    town
}

/// Runs a swarm until all have what they want.
fn run(case: &Case) -> Result<(), TestCaseError> {
    let mut town = town(case);
    while !town.is_over() {
        let ((at, _), event) = town.events.pop_first().expect("time goes on");
        town.now = at;
        prop_assert!(
            at < Time::from_ns(120_000_000_000),
            "two minutes were not enough"
        );
        prop_assert!(town.made < EVENTS_MAX, "too much is done for nothing");
        town.step(event);
    }
    for (id, swarm) in &town.swarms {
        prop_assert!(swarm.load() < 256);
        prop_assert!(swarm.neighbours() <= case.options.neighbours_max);
        let is_resumed = |chunk| *id == PeerId(1) && chunk < case.resumed;
        let had_all = *id == PeerId(0) || town.wanted[id].iter().all(is_resumed);
        prop_assert_eq!(town.whole.contains(id), !had_all);
        let is_lean = swarm
            .held()
            .iter()
            .all(|chunk| town.wanted[id].contains(chunk) || is_resumed(chunk));
        prop_assert!(is_lean, "nothing is fetched that is not wanted");
    }
    Ok(())
}

/// Those who had all that they wanted kept the few places of those who had more.
#[test]
fn who_wants_no_more_makes_room_for_who_does() {
    let case = Case {
        seed: 376_309_572_529_368_842,
        receivers: 7,
        chunks: 90,
        racks: 1,
        dying: 0,
        resumed: 0,
        partial: 4,
        part: 3,
        is_mute: false,
        faults: Faults {
            lost: 5,
            failed: 13,
            corrupt: 37,
            stuck: 6,
        },
        options: Options {
            downloads_max: 2,
            downloads_far_max: 1,
            uploads_max: 1,
            uploads_queued_max: 4,
            greeted_max: 3,
            neighbours_max: 3,
            ..Options::default()
        },
    };
    run(&case).expect("all get everything that they want");
}

/// Each of a rack waited for others of it to fetch from the other rack what those did not want.
#[test]
fn who_wants_some_is_relied_on_for_none() {
    let faults = Faults {
        lost: 0,
        failed: 0,
        corrupt: 0,
        stuck: 0,
    };
    let case = Case {
        seed: 4_064_392_077_242_366_332,
        receivers: 6,
        chunks: 91,
        racks: 2,
        dying: 0,
        resumed: 0,
        partial: 5,
        part: 3,
        is_mute: false,
        faults,
        options: Options {
            downloads_max: 1,
            downloads_far_max: 1,
            uploads_max: 3,
            uploads_queued_max: 6,
            greeted_max: 2,
            neighbours_max: 6,
            ..Options::default()
        },
    };
    run(&case).expect("all get everything that they want");
}

/// One whose only neighbour was in the other rack waited ten seconds for each chunk that fell to others of its own.
#[test]
fn who_knows_nobody_of_its_rack_waits_for_none_of_it() {
    let case = Case {
        seed: 2_021_692_242_396_146_768,
        receivers: 6,
        chunks: 28,
        racks: 2,
        dying: 2,
        resumed: 15,
        partial: 0,
        part: 1,
        is_mute: false,
        faults: Faults {
            lost: 0,
            failed: 0,
            corrupt: 0,
            stuck: 0,
        },
        options: Options {
            downloads_max: 1,
            downloads_per_source_max: 2,
            downloads_far_max: 1,
            uploads_max: 1,
            uploads_queued_max: 0,
            greeted_max: 1,
            neighbours_max: 7,
            ..Options::default()
        },
    };
    run(&case).expect("all get everything that they want");
}

/// One damaged chunk, and it left the only one that had the others too for ten seconds.
#[test]
fn who_damages_one_chunk_is_asked_for_the_others() {
    let case = Case {
        seed: 5_641_103_871_812_357_018,
        receivers: 6,
        chunks: 109,
        racks: 2,
        dying: 2,
        resumed: 22,
        partial: 4,
        part: 2,
        is_mute: true,
        faults: Faults {
            lost: 9,
            failed: 13,
            corrupt: 48,
            stuck: 6,
        },
        options: Options {
            downloads_max: 5,
            downloads_per_source_max: 2,
            downloads_far_max: 1,
            uploads_max: 1,
            uploads_queued_max: 6,
            greeted_max: 1,
            neighbours_max: 4,
            ..Options::default()
        },
    };
    run(&case).expect("all get everything that they want");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// As long as an origin lives, all who live get everything that they want, whatever is lost.
    #[test]
    fn everybody_gets_everything(case in case()) {
        run(&case)?;
    }

    /// Whatever a peer says, in whatever order, nothing is fetched that was not asked for, and nothing breaks.
    #[test]
    fn hostile_peers_break_nothing(
        seed: u64,
        steps in prop::collection::vec((0..4_u64, message(), 0..3_000_u64), 0..200),
    ) {
        let mut held = ChunkSet::empty(100);
        for chunk in 0..40 {
            held.insert(chunk);
        }
        let options = Options { neighbours_max: 2, uploads_max: 2, uploads_queued_max: 2, ..Options::default() };
        let mut swarm = Swarm::new(Time::from_ns(0), PeerId(9), Rack::NONE, held, options, seed);
        let mut now = Time::from_ns(0);
        let mut asked = BTreeSet::new();
        for (from, message, after_ms) in steps {
            now = now + Duration::from_millis(after_ms);
            swarm.on_message(now, PeerId(from), message);
            while let Some(action) = swarm.poll_action() {
                match action {
                    Action::Send { to, message: Message::Want { want, candidates } } => {
                        asked.extend(candidates.into_iter().map(|chunk| (to, want, chunk)));
                    }
                    Action::Fetch { fetch, source, chunk, .. } => {
                        prop_assert!(asked.contains(&(source, fetch.0, chunk)));
                        swarm.on_fetched(now, fetch, Fetched::Corrupt);
                    }
                    _ => {}
                }
            }
            prop_assert!(swarm.neighbours() <= 2);
            prop_assert!(swarm.load() <= 4);
            prop_assert!(swarm.deadline().is_none_or(|at| at > now));
        }
        prop_assert_eq!(swarm.held().count(), 40);
    }
}

fn message() -> impl Strategy<Value = Message> {
    let chunk = || 0..110_u32;
    let load = any::<u16>;
    prop_oneof![
        Just(Message::Hello),
        Just(Message::Welcome),
        Just(Message::Bye),
        Just(Message::Refuse(Refusal::Full)),
        Just(Message::Refuse(Refusal::Gone)),
        load().prop_map(|load| Message::All { load }),
        (load(), prop::collection::vec(chunk(), 0..20))
            .prop_map(|(load, chunks)| Message::Have { load, chunks }),
        (load(), 0..4_u32, prop::collection::vec(any::<u64>(), 0..4))
            .prop_map(|(load, first, words)| Message::Map { load, first, words }),
        (0..40_u32, prop::collection::vec(chunk(), 1..16))
            .prop_map(|(want, candidates)| Message::Want { want, candidates }),
        (0..40_u32, chunk(), load()).prop_map(|(want, chunk, load)| Message::Grant {
            want,
            chunk,
            load
        }),
        (0..40_u32, load()).prop_map(|(want, load)| Message::Busy { want, load }),
        (0..40_u32, 0..3_u8).prop_map(|(want, ending)| Message::Done {
            want,
            ending: match ending {
                0 => Ending::Held,
                1 => Ending::Failed,
                _ => Ending::Unwanted,
            }
        }),
    ]
}
