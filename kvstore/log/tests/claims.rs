//! Claims of one drive by several, with operations that take any time, fail, and are carried out long after they were
//! said to have failed: at no time two of them may write.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::time::Duration;

use lunette_kvstore_log::claim::{Claim, ClaimEffect, ClaimRefused, ClaimState, ClaimTerms};
use lunette_kvstore_log::effect::DeviceFault;
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::format::claim::{ClaimRecord, HolderName};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

const TERMS: ClaimTerms = ClaimTerms {
    beat: Duration::from_millis(100),
    lapse: Duration::from_millis(800),
    settle: Duration::from_millis(100),
};
/// With signs of life that are rarer than the time in which a drive is taken: what is done too late is not noticed soon.
const RARE: ClaimTerms = ClaimTerms {
    beat: ms(300),
    lapse: ms(800),
    settle: ms(50),
};
const BLOCK: usize = BLOCK_BYTES as usize;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(time_ms: u64) -> Time {
    Time::ZERO + ms(time_ms)
}

/// An operation on its way: when the drive does it, when that is told, and whether it is said to have failed.
struct Underway {
    effect: ClaimEffect,
    done_at: Time,
    told_at: Time,
    fails: bool,
    read: Option<Vec<u8>>,
}

struct Claimant {
    claim: Claim,
    underway: Option<Underway>,
}

impl Claimant {
    fn new(terms: ClaimTerms, holder: u128, now: Time) -> Self {
        let name = HolderName::new(&format!("host{holder}"));
        Self {
            claim: Claim::new(terms, holder, name, now),
            underway: None,
        }
    }
}

/// A drive's block, and what will still be written to it.
struct Scene {
    seed: u64,
    block: Vec<u8>,
    late: Vec<(Time, Vec<u8>)>,
    claimants: Vec<Claimant>,
    now: Time,
    draw: SplitMix64,
    terms: ClaimTerms,
    /// Longest that each half of an operation takes that is not slow, in milliseconds.
    quick_ms: u32,
    /// And of one that is.
    slow_ms: u32,
    /// Of a thousand operations, so many are slow, and so many fail.
    slow: u32,
    failing: u32,
    held: u64,
}

impl Scene {
    fn new(seed: u64, slow: u32, failing: u32) -> Self {
        Self {
            seed,
            block: vec![0; BLOCK],
            late: Vec::new(),
            claimants: Vec::new(),
            now: at(1),
            draw: SplitMix64::new(seed),
            terms: TERMS,
            quick_ms: 20,
            slow_ms: 3000,
            slow,
            failing,
            held: 0,
        }
    }

    fn start(&mut self, holder: u128) {
        let claimant = Claimant::new(self.terms, holder, self.now);
        self.claimants.push(claimant);
    }

    fn latency(&mut self) -> Duration {
        let longest = if self.draw.below(1000) < self.slow {
            self.slow_ms
        } else {
            self.quick_ms
        };
        ms(self.draw.below(longest).into())
    }

    fn begin(&mut self, effect: ClaimEffect) -> Underway {
        let done_at = self.now + self.latency();
        let told_at = done_at + self.latency();
        let fails = self.draw.below(1000) < self.failing;
        Underway {
            effect,
            done_at,
            // What is said to have failed may be carried out later.
            told_at: if fails {
                self.now + self.latency()
            } else {
                told_at
            },
            fails,
            read: None,
        }
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now = self.now + ms(1);
        let now = self.now;
        let due: Vec<_> = self.late.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, block) in due {
            self.block = block;
        }
        for index in 0..self.claimants.len() {
            self.advance(index);
        }
        let writers = self.claimants.iter().filter(|one| one.claim.may_write(now));
        let writers: Vec<_> = writers.map(|one| one.claim.state()).collect();
        assert!(
            writers.len() <= 1,
            "seed {}, {:?}: {writers:?}",
            self.seed,
            self.now
        );
        self.held += writers.len() as u64;
    }

    fn advance(&mut self, index: usize) {
        let now = self.now;
        if let Some(underway) = &mut self.claimants[index].underway {
            if let ClaimEffect::Read = underway.effect
                && underway.done_at <= now
                && underway.read.is_none()
            {
                underway.read = Some(self.block.clone());
            }
            if let ClaimEffect::Write(block) = &underway.effect
                && underway.done_at <= now
                && underway.read.is_none()
            {
                self.block = block.to_vec();
                underway.read = Some(Vec::new());
            }
            if underway.told_at > now {
                return;
            }
        }
        let claimant = &mut self.claimants[index];
        if let Some(underway) = claimant.underway.take() {
            let is_done = underway.read.is_some();
            match underway.effect {
                ClaimEffect::Read if underway.fails => {
                    claimant.claim.read_done(now, Err(DeviceFault));
                }
                ClaimEffect::Read => {
                    let bytes = underway.read.expect("it was read before that is told");
                    claimant.claim.read_done(now, Ok(&bytes));
                }
                ClaimEffect::Write(block) => {
                    if !is_done {
                        self.late.push((underway.done_at, block.to_vec()));
                    }
                    let result = if underway.fails {
                        Err(DeviceFault)
                    } else {
                        Ok(())
                    };
                    claimant.claim.written(now, result);
                }
            }
        }
        if let Some(effect) = self.claimants[index].claim.poll_effect(now) {
            let underway = self.begin(effect);
            self.claimants[index].underway = Some(underway);
        }
    }

    fn run(&mut self, for_ms: u64) {
        for _ in 0..for_ms {
            self.step();
        }
    }

    fn state(&self, index: usize) -> ClaimState {
        self.claimants[index].claim.state()
    }
}

#[test]
fn at_no_time_two_claims_may_write() {
    let mut held = 0;
    for seed in 0..300 {
        let (slow, failing) = [(0, 0), (50, 20), (200, 100), (30, 300)][seed % 4];
        let mut scene = Scene::new(seed as u64, slow, failing);
        if seed % 8 >= 4 {
            (scene.terms, scene.quick_ms) = (RARE, 8);
            scene.slow_ms = [3000, 500][seed / 8 % 2];
        }
        for holder in 1..=60 {
            // Some give up, some are killed, others come.
            let count = scene.claimants.len();
            if count >= 3 {
                let index = scene.draw.below(3) as usize;
                let now = scene.now;
                if scene.draw.below(2) == 0 && scene.claimants[index].underway.is_none() {
                    scene.claimants[index].claim.release(now);
                    scene.run(200);
                }
                let gone = scene.claimants.swap_remove(index);
                if let Some(underway) = gone.underway
                    && let ClaimEffect::Write(block) = underway.effect
                    && underway.read.is_none()
                {
                    scene.late.push((underway.done_at, block.to_vec()));
                }
            }
            scene.start(holder);
            let for_ms = scene.draw.below(600).into();
            scene.run(for_ms);
        }
        held += scene.held;
    }
    assert!(held > 300 * 2000, "it is held for most of the time: {held}");
}

#[test]
fn at_no_time_two_of_those_who_come_together_may_write() {
    let mut held = 0;
    for seed in 0..600 {
        let mut scene = Scene::new(seed.into(), 400, 100 * (seed % 2));
        (scene.terms, scene.quick_ms, scene.slow_ms) = (RARE, 8, 500);
        for holder in 1..=4 {
            scene.start(holder);
            let for_ms = scene.draw.below(150).into();
            scene.run(for_ms);
        }
        scene.run(3000);
        held += scene.held;
    }
    assert!(held > 600 * 200, "{held}");
}

#[test]
fn a_free_drive_is_taken_and_one_that_is_held_refused() {
    let mut scene = Scene::new(1, 0, 0);
    scene.start(1);
    scene.run(400);
    assert_eq!(scene.state(0), ClaimState::Held);
    scene.start(2);
    scene.run(400);
    let by = HolderName::new("host1");
    let refused = ClaimState::Refused(ClaimRefused::Taken { by });
    assert_eq!(scene.state(1), refused);
    scene.run(10_000);
    assert_eq!(scene.state(0), ClaimState::Held, "it stays held");
}

#[test]
fn who_is_gone_is_followed_after_a_lapse_and_who_gives_up_at_once() {
    let mut scene = Scene::new(2, 0, 0);
    scene.start(1);
    scene.run(400);
    drop(scene.claimants.remove(0));
    scene.start(2);
    scene.run(500);
    assert_eq!(scene.state(0), ClaimState::Claiming, "it watches");
    scene.run(1000);
    assert_eq!(scene.state(0), ClaimState::Held);
    while scene.claimants[0].underway.is_some() {
        scene.run(1);
    }
    let now = scene.now;
    scene.claimants[0].claim.release(now);
    scene.run(200);
    assert_eq!(scene.state(0), ClaimState::Released);
    scene.start(3);
    scene.run(300);
    assert_eq!(scene.state(1), ClaimState::Held);
    let record = ClaimRecord::decode(&scene.block).expect("a claim");
    assert_eq!((record.holder, record.taken), (3, 3));
}

#[test]
fn who_is_known_to_have_ended_is_not_watched() {
    let mut scene = Scene::new(9, 0, 0);
    scene.start(1);
    scene.run(400);
    drop(scene.claimants.remove(0));
    scene.start(2);
    scene.run(150);
    let claim = &mut scene.claimants[0].claim;
    assert_eq!(claim.watched(), Some(1));
    claim.has_ended(scene.now, 3);
    assert_eq!(claim.watched(), Some(1));
    claim.has_ended(scene.now, 1);
    scene.run(250);
    assert_eq!(scene.state(0), ClaimState::Held);
}

#[test]
fn two_who_come_at_the_same_time_are_told_apart() {
    let (mut one, mut none) = (0, 0);
    for seed in 0..100 {
        let mut scene = Scene::new(seed, 0, 0);
        scene.start(1);
        scene.start(2);
        scene.run(2000);
        let states = [scene.state(0), scene.state(1)];
        match states
            .iter()
            .filter(|state| **state == ClaimState::Held)
            .count()
        {
            1 => one += 1,
            _ => none += 1,
        }
    }
    assert!(one > 90, "{one} and {none}");
}

#[test]
fn a_drive_that_is_away_is_not_written_and_held_again_when_it_is_back() {
    let mut scene = Scene::new(3, 0, 0);
    scene.start(1);
    scene.run(400);
    scene.failing = 1000;
    scene.run(3000);
    assert!(!scene.claimants[0].claim.may_write(scene.now));
    scene.failing = 0;
    scene.run(1500);
    assert_eq!(scene.state(0), ClaimState::Held);
    assert!(scene.claimants[0].claim.may_write(scene.now));
    // Somebody else has come meanwhile.
    scene.failing = 1000;
    scene.run(3000);
    scene.failing = 0;
    let record = ClaimRecord {
        holder: 9,
        taken: 8,
        beat: 7,
        lapse_ms: 800,
        is_held: true,
        name: HolderName::new("another"),
    };
    for beat in 0..20 {
        scene.block = ClaimRecord { beat, ..record }.encode().to_vec();
        scene.run(100);
    }
    let by = HolderName::new("another");
    let refused = ClaimState::Refused(ClaimRefused::Taken { by });
    assert_eq!(scene.state(0), refused);
    let left = ClaimRecord::decode(&scene.block).expect("a claim");
    assert_eq!(left.holder, 9, "it was left alone");
}

#[test]
fn a_claim_that_is_gone_or_newer_or_cannot_be_written_is_refused() {
    let held = |seed| {
        let mut scene = Scene::new(seed, 0, 0);
        scene.start(1);
        scene.run(400);
        scene
    };
    let mut scene = held(4);
    scene.block = vec![0; BLOCK];
    scene.run(300);
    assert_eq!(scene.state(0), ClaimState::Refused(ClaimRefused::Gone));
    let mut scene = held(5);
    scene.block = vec![7; BLOCK];
    scene.run(300);
    assert_eq!(scene.state(0), ClaimState::Refused(ClaimRefused::Gone));
    // Damage, and nobody who keeps it alive.
    let mut scene = Scene::new(6, 0, 0);
    scene.block = vec![7; BLOCK];
    scene.start(1);
    scene.run(1500);
    assert_eq!(scene.state(0), ClaimState::Held);
    let mut scene = Scene::new(7, 0, 1000);
    scene.start(1);
    scene.run(5000);
    let refused = ClaimState::Refused(ClaimRefused::Device(DeviceFault));
    assert_eq!(scene.state(0), refused);
    // It can be read.
    let mut scene = Scene::new(8, 0, 0);
    let mut claimant = Claimant::new(TERMS, 1, scene.now);
    for _ in 0..100 {
        scene.now = scene.now + ms(100);
        match claimant.claim.poll_effect(scene.now) {
            Some(ClaimEffect::Read) => claimant.claim.read_done(scene.now, Ok(&scene.block)),
            Some(ClaimEffect::Write(_)) => claimant.claim.written(scene.now, Err(DeviceFault)),
            None => {}
        }
    }
    assert_eq!(claimant.claim.state(), refused);
}

/// One claim, whose operations end when the test says so.
struct Alone {
    claim: Claim,
    block: Vec<u8>,
}

impl Alone {
    fn new() -> Self {
        let name = HolderName::new("host1");
        Self {
            claim: Claim::new(TERMS, 1, name, at(0)),
            block: vec![0; BLOCK],
        }
    }

    /// Does what is to be done at `began`, and tells of it at `told`.
    fn go(&mut self, began: u64, told: u64) -> Option<ClaimEffect> {
        let effect = self.claim.poll_effect(at(began))?;
        match &effect {
            ClaimEffect::Read => self.claim.read_done(at(told), Ok(&self.block)),
            ClaimEffect::Write(block) => {
                self.block = block.to_vec();
                self.claim.written(at(told), Ok(()));
            }
        }
        Some(effect)
    }

    /// Claims a free drive at once; held until then.
    fn hold(&mut self) -> u64 {
        for _look_take_settle in 0..3 {
            let due = self.claim.poll_timeout().unwrap_or(Time::ZERO);
            let now = due.since(Time::ZERO).as_millis();
            let now = u64::try_from(now).expect("milliseconds");
            assert!(self.go(now, now).is_some());
        }
        assert_eq!(self.claim.state(), ClaimState::Held);
        let until = TERMS.lapse - TERMS.settle;
        u64::try_from(until.as_millis()).expect("milliseconds")
    }
}

#[test]
fn a_renewal_that_ends_late_renews_nothing() {
    for (late, is_renewed) in [(100, true), (101, false)] {
        let mut alone = Alone::new();
        let until = alone.hold();
        assert!(alone.claim.may_write(at(until - 1)));
        assert!(!alone.claim.may_write(at(until)));
        // The look begins at 300, and the write that follows from it ends so much later.
        assert_eq!(alone.go(300, 310), Some(ClaimEffect::Read));
        let write = alone.go(320, 300 + late);
        assert!(matches!(write, Some(ClaimEffect::Write(_))));
        assert_eq!(alone.claim.may_write(at(until)), is_renewed, "{late}");
        assert!(alone.claim.may_write(at(until - 1)), "{late}");
        // Renewed, it holds from the write on, and not from its end.
        assert_eq!(alone.claim.may_write(at(until + 319)), is_renewed);
        assert!(!alone.claim.may_write(at(until + 320)));
        if !is_renewed {
            assert_eq!(alone.claim.poll_timeout(), Some(at(300 + late)), "at once");
        }
    }
}

#[test]
fn who_let_a_claim_lapse_watches_it_as_others_do() {
    let mut alone = Alone::new();
    let until = alone.hold();
    let block = alone.block.clone();
    assert_eq!(alone.go(until, until), Some(ClaimEffect::Read));
    assert_eq!(alone.claim.state(), ClaimState::Claiming);
    assert_eq!(alone.claim.watched(), Some(1));
    let lapse = u64::try_from(TERMS.lapse.as_millis()).expect("milliseconds");
    for now in until + 1..until + lapse {
        let done = alone.go(now, now);
        assert!(matches!(done, None | Some(ClaimEffect::Read)), "at {now}");
        assert!(!alone.claim.may_write(at(now)));
    }
    assert_eq!(alone.block, block, "nothing was written");
    let taken = until + lapse;
    assert_eq!(alone.go(taken, taken), Some(ClaimEffect::Read));
    let write = alone.go(taken, taken);
    assert!(matches!(write, Some(ClaimEffect::Write(_))));
    assert!(!alone.claim.may_write(at(taken)), "it settles first");
    let record = ClaimRecord::decode(&alone.block).expect("a claim");
    assert_eq!((record.holder, record.taken), (1, 2));
}
