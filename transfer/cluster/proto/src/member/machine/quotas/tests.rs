//! A member that changes quotas at a coordinator, step by step.

use core::time::Duration;

use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::*;
use crate::coordination::{Answer, CoordinationFault, WatchFrom};
use crate::coordinator::{Coordinator, WatchId};
use crate::map::{ClusterMap, MapMember};
use crate::member::{MemberOptions, OpId, QUOTA_CHANGES_MAX, RETRY_MAX, Refusal};
use crate::quota::{QUOTA_NAME_BYTES_MAX, QuotaFault};

const STEP: Duration = Duration::from_millis(5);

/// What comes of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Answered,
    /// It is not done.
    Lost,
    /// It is done, and nobody is told.
    AnswerLost,
    /// It is not done, and never will be.
    Refused,
    /// Nobody answers for now.
    Silent,
}

struct Bench {
    now: Time,
    coordinator: Coordinator,
    member: Member,
    watch: Option<(OpId, WatchId)>,
    /// Whether the watch tells nothing for now.
    is_watch_held: bool,
    /// What comes of asks that change quotas.
    way: Way,
    /// Which ask nobody has answered.
    silent: Option<OpId>,
    asks: Vec<Ask>,
    told: Vec<Action>,
}

fn options() -> MemberOptions {
    MemberOptions {
        cluster: "kv".into(),
        prefix: "p".into(),
        member: MapMember::new(NodeId(1), 9, ([192, 0, 2, 1], 7000).into()),
        versions: (1, 1),
        former: Vec::new(),
        lease_ttl_s: 5,
        rejoin_wait: Duration::from_secs(10),
        seed: 1,
    }
}

fn key(name: &str) -> Vec<u8> {
    format!("p/quota/{name}").into_bytes()
}

/// The key that an ask changes.
fn changed_key(ask: &Ask) -> Option<&[u8]> {
    let Ask::Txn(txn) = ask else { return None };
    match txn.success.first()? {
        Op::Put { key, .. } => Some(key),
        Op::Delete(range) => Some(&range.start),
        Op::Range(_) => None,
    }
}

fn is_of_quotas(ask: &Ask) -> bool {
    changed_key(ask).is_some_and(|key| key.starts_with(b"p/quota/"))
}

impl Bench {
    fn new() -> Self {
        let now = Time::from_ns(1_000_000_000);
        Self {
            now,
            coordinator: Coordinator::default(),
            member: Member::new(options(), now),
            watch: None,
            is_watch_held: false,
            way: Way::Answered,
            silent: None,
            asks: Vec::new(),
            told: Vec::new(),
        }
    }

    /// One that is a member, and alone in the map.
    fn joined() -> Self {
        let mut bench = Self::new();
        bench.run(Duration::from_secs(2));
        assert!(bench.member.is_serving(bench.now));
        bench.asks.clear();
        bench.told.clear();
        bench
    }

    fn run(&mut self, delay: Duration) {
        let end = self.now + delay;
        while self.now < end {
            self.now = self.now + STEP;
            self.coordinator.on_timeout(self.now);
            self.tell_watch();
            if self
                .member
                .poll_timeout()
                .is_some_and(|due| due <= self.now)
            {
                self.member.on_timeout(self.now);
            }
            while let Some(action) = self.member.poll_action() {
                self.act(action);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ask { op, ask, .. } if self.way == Way::Silent && is_of_quotas(&ask) => {
                self.asks.push(ask);
                self.silent = Some(op);
            }
            Action::Ask { op, ask, .. } => {
                let answer = self.answer(&ask);
                self.asks.push(ask);
                self.member.on_answer(self.now, op, answer);
            }
            Action::Watch { op, from } => self.begin_watch(op, from),
            told => self.told.push(told),
        }
    }

    fn answer(&mut self, ask: &Ask) -> Result<Answer, CoordinationFault> {
        let way = if is_of_quotas(ask) {
            self.way
        } else {
            Way::Answered
        };
        match way {
            Way::Answered => self.coordinator.handle(self.now, ask),
            Way::Lost | Way::Silent => Err(CoordinationFault::TimedOut),
            Way::AnswerLost => {
                let done = self.coordinator.handle(self.now, ask);
                assert!(done.is_ok(), "{done:?}");
                Err(CoordinationFault::TimedOut)
            }
            Way::Refused => Err(CoordinationFault::TooLarge {
                what: "the number of keys",
            }),
        }
    }

    fn begin_watch(&mut self, op: OpId, from: WatchFrom) {
        self.end_watch();
        let watch = self.coordinator.watch(from).expect("it is kept");
        self.watch = Some((op, watch));
    }

    fn end_watch(&mut self) -> Option<OpId> {
        let (op, watch) = self.watch.take()?;
        self.coordinator.end_watch(watch);
        Some(op)
    }

    fn tell_watch(&mut self) {
        let Some((op, watch)) = self.watch.filter(|_| !self.is_watch_held) else {
            return;
        };
        while let Ok(Some(changes)) = self.coordinator.poll_watch(watch) {
            self.member.on_changes(self.now, op, &changes);
        }
    }

    fn soon(&mut self) {
        self.run(Duration::from_millis(50));
    }

    fn set(&mut self, name: &str, bytes: Option<u64>) -> Result<QuotaTicket, QuotaRefusal> {
        self.set_for(name, bytes, Duration::from_secs(600))
    }

    /// It is waited for so long.
    fn set_for(
        &mut self,
        name: &str,
        bytes: Option<u64>,
        wait: Duration,
    ) -> Result<QuotaTicket, QuotaRefusal> {
        (self.member).set_quota(self.now, name, bytes, self.now + wait)
    }

    /// Another one writes at the coordinator.
    fn write(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let op = match value {
            Some(value) => Op::Put {
                key,
                value,
                lease: None,
            },
            None => Op::Delete(KeyRange::one(key)),
        };
        let written = self.coordinator.handle(self.now, &Ask::Op(op));
        assert!(written.is_ok(), "{written:?}");
    }

    fn write_quota(&mut self, name: &str, bytes: Option<u64>) {
        self.write(key(name), bytes.map(encode_quota));
    }

    /// The quotas at the coordinator.
    fn kept(&mut self) -> Vec<(String, u64)> {
        let range = Ask::Op(Op::Range(KeyRange::prefix("p/quota/")));
        let answer = self.coordinator.handle(self.now, &range).unwrap();
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("a range was asked");
        };
        let quota = |pair: crate::coordination::KeyValue| {
            let name = String::from_utf8(pair.key[b"p/quota/".len()..].to_vec()).unwrap();
            (name, crate::quota::decode_quota(&pair.value).unwrap())
        };
        pairs.into_iter().map(quota).collect()
    }

    /// Whether an ask that comes now changes a quota.
    fn is_made(&mut self, ask: &Ask) -> bool {
        let answer = self.coordinator.handle(self.now, ask).unwrap();
        matches!(
            answer.outcome,
            Outcome::Txn {
                succeeded: true,
                ..
            }
        )
    }

    fn known(&self) -> Vec<(&str, u64)> {
        self.member.quotas().iter().collect()
    }

    fn take_told(&mut self) -> Vec<Action> {
        core::mem::take(&mut self.told)
    }

    fn loads(&self) -> usize {
        let is_load = |ask: &&Ask| matches!(ask, Ask::Op(Op::Range(_)));
        self.asks.iter().filter(is_load).count()
    }

    fn tries(&self) -> usize {
        self.asks.iter().filter(|ask| is_of_quotas(ask)).count()
    }
}

fn set(ticket: u64) -> Action {
    Action::QuotaSet(QuotaTicket(ticket))
}

#[test]
fn a_quota_is_set_and_removed() {
    let mut bench = Bench::joined();
    let map = bench.member.map().cloned();
    assert_eq!(bench.set("default", Some(7)), Ok(QuotaTicket(1)));
    bench.soon();
    assert_eq!(bench.take_told(), [Action::QuotasChanged, set(1)]);
    assert_eq!(bench.known(), [("default", 7)]);
    assert_eq!(bench.kept(), [("default".to_owned(), 7)]);
    assert_eq!(bench.set("default", None), Ok(QuotaTicket(2)));
    assert_eq!(bench.set("none", None), Ok(QuotaTicket(3)));
    bench.soon();
    assert_eq!(bench.take_told(), [Action::QuotasChanged, set(2), set(3)]);
    assert!(bench.known().is_empty() && bench.kept().is_empty());
    assert_eq!(bench.tries(), 3, "each is asked once");
    // Nothing of this is a change of the map, or has everything read again.
    bench.run(Duration::from_secs(10));
    assert_eq!((bench.member.map().cloned(), bench.loads()), (map, 0));
    assert!(bench.told.is_empty());
}

#[test]
fn changes_are_made_in_order() {
    let mut bench = Bench::joined();
    for (name, bytes) in [
        ("a", Some(1)),
        ("b", Some(2)),
        ("a", None),
        ("a", Some(3)),
        ("b", None),
    ] {
        bench.set(name, bytes).unwrap();
    }
    bench.soon();
    let told = bench.take_told();
    let tickets: Vec<_> = (1..=5).map(set).collect();
    let set: Vec<_> = told
        .into_iter()
        .filter(|action| matches!(action, Action::QuotaSet(_)))
        .collect();
    assert_eq!(set, tickets);
    let names: Vec<_> = bench.asks.iter().filter_map(changed_key).collect();
    assert_eq!(names, ["a", "b", "a", "a", "b"].map(key));
    assert_eq!(bench.kept(), [("a".to_owned(), 3)]);
    assert_eq!(bench.known(), [("a", 3)]);
}

#[test]
fn a_change_waits_while_the_member_joins_and_is_made_before_the_map() {
    let mut bench = Bench::new();
    bench.set("a", Some(1)).unwrap();
    bench.run(Duration::from_secs(2));
    assert_eq!(bench.known(), [("a", 1)]);
    assert!(bench.told.contains(&set(1)));
    let changed: Vec<_> = bench.asks.iter().filter_map(changed_key).collect();
    let place = |key: &[u8]| changed.iter().position(|changed| *changed == key).unwrap();
    assert!(place(b"p/members/0000000000000001") < place(&key("a")));
    assert!(place(&key("a")) < place(b"p/map"));
}

#[test]
fn own_changes_are_known_before_the_watch_tells_them() {
    let mut bench = Bench::joined();
    bench.is_watch_held = true;
    bench.set("a", Some(1)).unwrap();
    bench.set("a", Some(2)).unwrap();
    bench.soon();
    assert_eq!(bench.known(), [("a", 2)]);
    bench.take_told();
    bench.is_watch_held = false;
    bench.soon();
    assert!(bench.told.is_empty(), "{:?}", bench.told);
    assert_eq!((bench.known(), bench.tries()), (vec![("a", 2)], 2));
}

#[test]
fn what_fails_is_asked_again_with_pauses() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    bench.set("a", Some(1)).unwrap();
    bench.run(Duration::from_secs(20));
    let tries = bench.tries();
    assert!((8..40).contains(&tries), "{tries}");
    assert!(bench.told.is_empty());
    bench.way = Way::Answered;
    bench.run(RETRY_MAX);
    assert_eq!(bench.take_told(), [Action::QuotasChanged, set(1)]);
    assert_eq!(bench.tries(), tries + 1);
}

#[test]
fn what_was_made_although_its_answer_is_lost_is_made_once() {
    let mut bench = Bench::joined();
    for (bytes, ticket) in [(Some(1), 1), (None, 2)] {
        bench.is_watch_held = true;
        bench.way = Way::AnswerLost;
        bench.set("a", bytes).unwrap();
        bench.soon();
        let made = bench.coordinator.revision();
        bench.way = Way::Answered;
        bench.run(RETRY_MAX);
        assert_eq!(bench.coordinator.revision(), made);
        assert_eq!(bench.take_told(), [Action::QuotasChanged, set(ticket)]);
        assert_eq!(bench.tries() as u64, 2 * ticket);
        bench.is_watch_held = false;
        bench.soon();
        assert!(bench.told.is_empty());
    }
}

#[test]
fn what_another_has_set_meanwhile_is_set_again() {
    let mut bench = Bench::joined();
    bench.is_watch_held = true;
    bench.write_quota("a", Some(5));
    bench.set("a", Some(1)).unwrap();
    bench.set("b", Some(2)).unwrap();
    bench.run(Duration::from_secs(1));
    let kept = [("a".to_owned(), 1), ("b".to_owned(), 2)];
    assert_eq!(bench.kept(), kept);
    assert_eq!(bench.tries(), 3);
}

#[test]
fn an_ask_that_comes_late_changes_nothing() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    bench.set("a", Some(1)).unwrap();
    bench.soon();
    let late = bench.asks.iter().find(|ask| is_of_quotas(ask)).cloned();
    bench.way = Way::Answered;
    bench.set("a", Some(2)).unwrap();
    bench.run(Duration::from_secs(1));
    assert!(!bench.is_made(&late.unwrap()));
    assert_eq!(bench.kept(), [("a".to_owned(), 2)]);
}

/// Whoever asked for it may have had it set by others since, and removed again.
#[test]
fn an_ask_that_comes_when_its_lease_is_over_changes_nothing() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    bench
        .set_for("a", Some(1), Duration::from_millis(20))
        .unwrap();
    bench.soon();
    let late = bench.asks.iter().find(|ask| is_of_quotas(ask)).cloned();
    bench.write(bench.member.keys.member(NodeId(1)), None);
    assert!(!bench.is_made(&late.unwrap()));
    assert_eq!(bench.kept(), []);
}

#[test]
fn a_change_that_is_refused_for_ever_does_not_keep_the_map_from_being_changed() {
    let mut bench = Bench::joined();
    bench.way = Way::Refused;
    bench.set("a", Some(1)).unwrap();
    bench.run(Duration::from_secs(5));
    bench.member.raise_generation(bench.now, 7, Time::MAX);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.member.map().map(ClusterMap::generation), Some(7));
    assert!(bench.tries() > 3);
    bench.way = Way::Answered;
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.known(), [("a", 1)]);
}

#[test]
fn what_cannot_be_a_quota_is_refused() {
    let mut bench = Bench::joined();
    let longest = "n".repeat(QUOTA_NAME_BYTES_MAX);
    for name in ["", &format!("{longest}n")] {
        assert_eq!(bench.set(name, Some(1)), Err(QuotaRefusal::BadName));
        assert_eq!(bench.set(name, None), Err(QuotaRefusal::BadName));
    }
    assert_eq!(bench.set("a", Some(0)), Err(QuotaRefusal::NoBytes));
    bench.set(&longest, Some(u64::MAX)).unwrap();
    bench.soon();
    assert_eq!(bench.known(), [(longest.as_str(), u64::MAX)]);
}

/// Who asked for it knows no more than that it may have been made, and others may have set another one since.
#[test]
fn what_was_not_made_in_time_is_not_made_later() {
    for way in [Way::Lost, Way::Refused] {
        let mut bench = Bench::joined();
        bench.way = way;
        let ticket = bench.set_for("a", Some(1), Duration::from_secs(2)).unwrap();
        bench.set("b", Some(2)).unwrap();
        bench.run(Duration::from_secs(1));
        bench.write_quota("a", Some(5));
        bench.run(Duration::from_secs(1));
        let given_up = Action::QuotaGivenUp(ticket);
        assert!(bench.take_told().contains(&given_up), "{way:?}");
        bench.way = Way::Answered;
        bench.run(RETRY_MAX);
        let kept = [("a".to_owned(), 5), ("b".to_owned(), 2)];
        assert_eq!(bench.kept(), kept, "{way:?}");
        assert_eq!(bench.take_told(), [Action::QuotasChanged, set(2)]);
    }
}

#[test]
fn what_is_being_made_has_an_answer_first() {
    let mut bench = Bench::joined();
    bench.way = Way::Silent;
    let wait = Duration::from_secs(1);
    let made = bench.set_for("a", Some(1), wait).unwrap();
    let late = bench.set_for("b", Some(2), wait).unwrap();
    bench.run(wait);
    bench.set("c", Some(3)).unwrap();
    bench.soon();
    assert_eq!(bench.take_told(), [Action::QuotaGivenUp(late)]);
    let (op, ask) = (bench.silent.unwrap(), bench.asks.last().cloned().unwrap());
    bench.way = Way::Answered;
    let answer = bench.coordinator.handle(bench.now, &ask);
    bench.member.on_answer(bench.now, op, answer);
    bench.soon();
    assert_eq!(bench.known(), [("a", 1), ("c", 3)]);
    assert!(bench.take_told().contains(&Action::QuotaSet(made)));
}

/// Whoever waits no longer keeps nobody out.
#[test]
fn what_is_given_up_makes_room() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    for _ in 0..QUOTA_CHANGES_MAX {
        let wait = Duration::from_secs(1);
        bench.set_for("a", Some(1), wait).unwrap();
    }
    assert_eq!(bench.set("a", Some(2)), Err(QuotaRefusal::Busy));
    bench.soon();
    bench.now = bench.now + Duration::from_secs(1);
    assert!(bench.set("a", Some(2)).is_ok());
    bench.soon();
    assert_eq!(bench.take_told().len(), QUOTA_CHANGES_MAX);
}

#[test]
fn changes_that_wait_are_bounded() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    for _ in 0..QUOTA_CHANGES_MAX {
        bench.set("a", Some(1)).unwrap();
    }
    assert_eq!(bench.set("a", Some(1)), Err(QuotaRefusal::Busy));
    assert_eq!(bench.set("a", None), Err(QuotaRefusal::Busy));
    assert!(QuotaRefusal::Busy.is_backpressure());
    bench.way = Way::Answered;
    bench.run(RETRY_MAX);
    assert!(bench.set("a", None).is_ok());
}

#[test]
fn quotas_are_bounded() {
    let mut bench = Bench::joined();
    let name = |n: usize| format!("t{n:02}");
    for n in 0..QUOTAS_MAX - 1 {
        bench.write_quota(&name(n), Some(1));
    }
    bench.soon();
    // One that waits counts, and one whose removal waits does not.
    let last = name(QUOTAS_MAX - 1);
    bench.set(&last, Some(1)).unwrap();
    let more = name(QUOTAS_MAX);
    assert_eq!(bench.set(&more, Some(1)), Err(QuotaRefusal::TooMany));
    bench.soon();
    assert_eq!(bench.set(&more, Some(1)), Err(QuotaRefusal::TooMany));
    assert!(!QuotaRefusal::TooMany.is_backpressure());
    bench.set(&more, None).unwrap();
    bench.set(&last, Some(2)).unwrap();
    bench.set(&last, None).unwrap();
    bench.set(&more, Some(3)).unwrap();
    bench.soon();
    assert_eq!(bench.known().len(), QUOTAS_MAX);
    assert_eq!(bench.known().last(), Some(&(more.as_str(), 3)));
}

#[test]
fn of_more_keys_the_first_count_whatever_happens_to_them() {
    let mut bench = Bench::joined();
    let name = |n: usize| format!("t{n:02}");
    for n in (0..QUOTAS_MAX + 2).rev() {
        bench.write_quota(&name(n), Some(n as u64 + 1));
    }
    bench.soon();
    let first = |from: usize| (from..from + QUOTAS_MAX).map(|n| (name(n), n as u64 + 1));
    assert_eq!(*bench.member.quotas(), first(0).collect());
    for gone in 0..2 {
        bench.write_quota(&name(gone), None);
        bench.soon();
        assert_eq!(*bench.member.quotas(), first(gone + 1).collect());
        assert_eq!(bench.loads(), gone + 1, "the next one was not known");
    }
    bench.write_quota(&name(5), None);
    bench.soon();
    assert_eq!(bench.member.quotas().len(), QUOTAS_MAX - 1);
    assert_eq!(bench.loads(), 2);
}

#[test]
fn the_watch_tells_what_others_set_once_for_each_change() {
    let mut bench = Bench::joined();
    bench.write_quota("a", Some(1));
    bench.write_quota("b", Some(2));
    bench.soon();
    assert_eq!(bench.known(), [("a", 1), ("b", 2)]);
    assert_eq!(
        bench.take_told(),
        [Action::QuotasChanged, Action::QuotasChanged]
    );
    bench.write_quota("b", Some(2));
    bench.soon();
    assert!(bench.take_told().is_empty(), "it is the same");
    bench.write_quota("a", None);
    bench.soon();
    assert_eq!(bench.take_told(), [Action::QuotasChanged]);
    assert_eq!(bench.known(), [("b", 2)]);
}

#[test]
fn what_happened_while_nobody_watched_is_read() {
    let mut bench = Bench::joined();
    bench.write_quota("a", Some(1));
    bench.soon();
    bench.take_told();
    let op = bench.end_watch().unwrap();
    bench.write_quota("a", None);
    bench.write_quota("b", Some(2));
    bench.member.on_watch_end(bench.now, op);
    bench.run(Duration::from_secs(1));
    assert_eq!(bench.known(), [("b", 2)]);
    assert_eq!(bench.take_told(), [Action::QuotasChanged]);
    let op = bench.end_watch().unwrap();
    bench.member.on_watch_end(bench.now, op);
    bench.run(Duration::from_secs(1));
    assert!(bench.take_told().is_empty(), "all is the same");
}

#[test]
fn a_damaged_quota_is_read_once_and_ignored() {
    let mut bench = Bench::joined();
    bench.write_quota("a", Some(1));
    bench.write_quota("b", Some(2));
    bench.soon();
    bench.take_told();
    let mut record = encode_quota(3);
    record[8] ^= 1;
    bench.write(key("a"), Some(record));
    bench.run(Duration::from_secs(60));
    let (name, fault) = ("a".to_owned(), QuotaFault::Damaged);
    let ignored = Action::QuotaIgnored { name, fault };
    assert_eq!(bench.take_told(), [ignored, Action::QuotasChanged]);
    assert_eq!((bench.known(), bench.loads()), (vec![("b", 2)], 1));
    assert!(bench.member.is_serving(bench.now));
    bench.set("a", Some(4)).unwrap();
    bench.soon();
    assert_eq!(bench.known(), [("a", 4), ("b", 2)]);
}

#[test]
fn a_damaged_quota_keeps_nobody_from_joining() {
    let mut bench = Bench::new();
    bench.write(key("a"), Some(b"?".to_vec()));
    bench.write_quota("b", Some(2));
    bench.run(Duration::from_secs(3));
    assert!(bench.member.is_serving(bench.now));
    assert_eq!(bench.known(), [("b", 2)]);
}

/// What is wrong with other records has them read again and again; quotas are followed all the same.
#[test]
fn quotas_are_known_whatever_else_is_damaged() {
    let mut bench = Bench::joined();
    bench.write_quota("a", Some(1));
    bench.write(b"p/members/00000000000000ff".to_vec(), Some(b"?".to_vec()));
    bench.run(Duration::from_secs(5));
    bench.write_quota("b", Some(2));
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.known(), [("a", 1), ("b", 2)]);
    let changes = (bench.told.iter()).filter(|told| **told == Action::QuotasChanged);
    assert_eq!(changes.count(), 2);
}

#[test]
fn who_leaves_or_is_refused_sets_nothing_any_more() {
    let mut bench = Bench::joined();
    bench.way = Way::Lost;
    bench.set("a", Some(1)).unwrap();
    bench.soon();
    bench.member.leave(bench.now);
    assert_eq!(bench.set("a", Some(1)), Err(QuotaRefusal::Left));
    bench.way = Way::Answered;
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.take_told(), [Action::Left]);
    assert_eq!(bench.set("a", Some(1)), Err(QuotaRefusal::Left));
    assert!(bench.kept().is_empty());

    let mut bench = Bench::joined();
    let cluster = "other".to_owned();
    bench.member = Member::new(
        MemberOptions {
            cluster,
            ..options()
        },
        bench.now,
    );
    bench.set("a", Some(1)).unwrap();
    bench.run(Duration::from_secs(1));
    let found = "kv".to_owned();
    assert_eq!(
        bench.take_told().last(),
        Some(&Action::Refused(Refusal::WrongCluster { found }))
    );
    assert_eq!(bench.set("a", Some(1)), Err(QuotaRefusal::Left));
    assert!(bench.kept().is_empty());
}
