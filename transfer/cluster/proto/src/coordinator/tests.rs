//! The coordinator: leases, transactions, watches, snapshots.

use super::*;
use crate::coordination::WatchFrom;

const fn at(seconds: u64) -> Time {
    Time::from_ns(seconds * 1_000_000_000)
}

const LEASE: LeaseId = LeaseId::new(7);

fn put(key: &str, value: &str, lease: Option<LeaseId>) -> Op {
    Op::Put {
        key: key.into(),
        value: value.into(),
        lease,
    }
}

fn ask(coordinator: &mut Coordinator, now: Time, op: Op) -> OpOutcome {
    match coordinator.handle(now, &Ask::Op(op)).unwrap().outcome {
        Outcome::Op(outcome) => outcome,
        other => panic!("an operation has no {other:?}"),
    }
}

fn keys(coordinator: &mut Coordinator, now: Time) -> Vec<String> {
    let range = KeyRange {
        start: vec![0],
        end: Some(vec![0xff]),
    };
    let OpOutcome::Range(pairs) = ask(coordinator, now, Op::Range(range)) else {
        panic!("a range was asked");
    };
    let key = |pair: KeyValue| String::from_utf8(pair.key).unwrap();
    pairs.into_iter().map(key).collect()
}

fn grant(coordinator: &mut Coordinator, now: Time) {
    let granted = coordinator.handle(
        now,
        &Ask::Grant {
            lease: LEASE,
            ttl_s: 5,
        },
    );
    assert_eq!(granted.unwrap().outcome, Outcome::Leased { ttl_s: 5 });
}

fn watch(coordinator: &mut Coordinator, revision: u64) -> WatchId {
    let range = KeyRange::prefix("w");
    let revision = Revision(revision);
    coordinator.watch(WatchFrom { range, revision }).unwrap()
}

fn told(coordinator: &mut Coordinator, id: WatchId) -> Vec<String> {
    let changes = coordinator.poll_watch(id).unwrap().unwrap_or_default();
    changes
        .iter()
        .map(|change| {
            let key = String::from_utf8_lossy(change.key()).into_owned();
            let sign = if matches!(change, Change::Put(_)) {
                '+'
            } else {
                '-'
            };
            format!("{sign}{key}@{}", change.revision().0)
        })
        .collect()
}

#[test]
fn a_lease_takes_its_keys_with_it() {
    let mut coordinator = Coordinator::default();
    grant(&mut coordinator, at(0));
    ask(&mut coordinator, at(0), put("w1", "", Some(LEASE)));
    ask(&mut coordinator, at(0), put("w2", "", None));
    assert_eq!(coordinator.poll_timeout(), Some(at(5)));
    let kept = coordinator.handle(at(4), &Ask::KeepAlive(LEASE)).unwrap();
    assert_eq!(kept.outcome, Outcome::Leased { ttl_s: 5 });
    let early = Time::from_ns(at(9).as_ns() - 1);
    assert_eq!(keys(&mut coordinator, early), ["w1", "w2"]);
    let id = watch(&mut coordinator, 0);
    assert_eq!(keys(&mut coordinator, at(9)), ["w2"]);
    assert_eq!(told(&mut coordinator, id), ["-w1@4"]);
    let gone = coordinator.handle(at(9), &Ask::KeepAlive(LEASE));
    assert_eq!(gone, Err(CoordinationFault::LeaseNotFound));
    assert_eq!(coordinator.handle(at(9), &Ask::Revoke(LEASE)), gone);
    assert_eq!(coordinator.poll_timeout(), None);
}

#[test]
fn a_lease_is_granted_once_and_may_be_revoked() {
    let mut coordinator = Coordinator::default();
    grant(&mut coordinator, at(0));
    let again = coordinator.handle(
        at(0),
        &Ask::Grant {
            lease: LEASE,
            ttl_s: 5,
        },
    );
    assert_eq!(again, Err(CoordinationFault::LeaseExists));
    ask(&mut coordinator, at(0), put("w", "", Some(LEASE)));
    let revoked = coordinator.handle(at(0), &Ask::Revoke(LEASE)).unwrap();
    assert_eq!(revoked.outcome, Outcome::Revoked);
    assert!(keys(&mut coordinator, at(0)).is_empty());
    let unknown = coordinator.handle(at(0), &Ask::Op(put("w", "", Some(LEASE))));
    assert_eq!(unknown, Err(CoordinationFault::LeaseNotFound));
}

#[test]
fn a_transaction_is_one_change_or_none() {
    let mut coordinator = Coordinator::default();
    let txn = |compare: Vec<Compare>, success: Vec<Op>| {
        Ask::Txn(Txn {
            compare,
            success,
            failure: vec![Op::Range(KeyRange::prefix("w"))],
        })
    };
    let create = txn(
        vec![Compare::absent("w1")],
        vec![put("w1", "a", None), put("w2", "b", None)],
    );
    let created = coordinator.handle(at(0), &create).unwrap();
    assert_eq!(created.revision, Revision(2));
    let id = watch(&mut coordinator, 2);
    assert_eq!(told(&mut coordinator, id), ["+w1@2", "+w2@2"]);
    let again = coordinator.handle(at(0), &create).unwrap();
    assert_eq!(again.revision, Revision(2));
    let Outcome::Txn {
        succeeded: false,
        outcomes,
    } = again.outcome
    else {
        panic!("it is there already");
    };
    assert!(matches!(&outcomes[..], [OpOutcome::Range(pairs)] if pairs.len() == 2));
    let expected = Expected::Modified(Revision(2));
    let swap = txn(
        vec![Compare {
            key: b"w1".to_vec(),
            expected,
        }],
        vec![put("w1", "c", None)],
    );
    assert!(matches!(
        coordinator.handle(at(0), &swap).unwrap().outcome,
        Outcome::Txn {
            succeeded: true,
            ..
        }
    ));
    assert!(matches!(
        coordinator.handle(at(0), &swap).unwrap().outcome,
        Outcome::Txn {
            succeeded: false,
            ..
        }
    ));
    // A part that cannot be done keeps the rest from being done.
    let half = txn(
        vec![],
        vec![put("w8", "", None), put("w9", "", Some(LEASE))],
    );
    assert_eq!(
        coordinator.handle(at(0), &half),
        Err(CoordinationFault::LeaseNotFound)
    );
    let twice = txn(vec![], vec![put("w8", "", None), put("w8", "", None)]);
    assert!(coordinator.handle(at(0), &twice).is_err());
    assert_eq!(keys(&mut coordinator, at(0)), ["w1", "w2"]);
}

#[test]
fn watches_are_told_of_their_range_once_and_in_order() {
    let mut coordinator = Coordinator::default();
    for key in ["w1", "x", "w2"] {
        ask(&mut coordinator, at(0), put(key, "", None));
    }
    let (past, future) = (watch(&mut coordinator, 3), watch(&mut coordinator, 6));
    assert_eq!(told(&mut coordinator, past), ["+w2@4"]);
    assert!(told(&mut coordinator, future).is_empty());
    ask(&mut coordinator, at(0), put("x", "", None));
    assert!(coordinator.marked_watches().is_empty(), "nothing of theirs");
    ask(&mut coordinator, at(0), Op::Delete(KeyRange::prefix("w")));
    ask(&mut coordinator, at(0), Op::Delete(KeyRange::prefix("w")));
    assert_eq!(told(&mut coordinator, past), ["-w1@6", "-w2@6"]);
    assert_eq!(told(&mut coordinator, future), ["-w1@6", "-w2@6"]);
    assert!(told(&mut coordinator, past).is_empty());
    coordinator.end_watch(past);
    ask(&mut coordinator, at(0), put("w", "", None));
    assert_eq!(coordinator.marked_watches(), [future]);
}

#[test]
fn what_is_forgotten_cannot_be_watched() {
    let mut coordinator = Coordinator::default();
    let behind = watch(&mut coordinator, 2);
    for _ in 0..3 {
        ask(&mut coordinator, at(0), put("w", "", None));
    }
    coordinator.compact(Revision(3));
    let oldest = Revision(4);
    let refused = Err(CoordinationFault::Compacted { oldest });
    assert_eq!(coordinator.poll_watch(behind), refused);
    let (range, revision) = (KeyRange::prefix("w"), Revision(3));
    let from = WatchFrom { range, revision };
    assert_eq!(coordinator.watch(from).map(|_| None), refused);
    let id = watch(&mut coordinator, 4);
    assert_eq!(told(&mut coordinator, id), ["+w@4"]);
}

#[test]
fn a_burst_is_told_in_parts_and_whole() {
    let mut coordinator = Coordinator::default();
    let id = watch(&mut coordinator, 0);
    for _ in 0..700 {
        ask(&mut coordinator, at(0), put("w", "", None));
    }
    let mut count = 0;
    while !coordinator.marked_watches().is_empty() {
        let part = told(&mut coordinator, id).len();
        assert!(part <= 256, "{part}");
        count += part;
    }
    assert_eq!(count, 700);
}

#[test]
fn limits_hold_from_both_sides() {
    let mut coordinator = Coordinator::default();
    for index in 0..LEASES_MAX as u64 {
        let lease = LeaseId::new(index + 1);
        assert!(
            coordinator
                .handle(at(0), &Ask::Grant { lease, ttl_s: 9 })
                .is_ok()
        );
    }
    let lease = LeaseId::new(1 << 40);
    let refused = coordinator.handle(at(0), &Ask::Grant { lease, ttl_s: 9 });
    assert!(refused.unwrap_err().is_backpressure());
    let value = "v".repeat(1024 * 1024);
    for index in 0..7 {
        ask(
            &mut coordinator,
            at(0),
            put(&format!("k{index}"), &value, None),
        );
    }
    let rest = STORE_BYTES_MAX - coordinator.bytes - 2;
    let full = coordinator.handle(at(0), &Ask::Op(put("kx", &"v".repeat(rest + 1), None)));
    assert!(full.unwrap_err().is_backpressure());
    ask(&mut coordinator, at(0), put("kx", &"v".repeat(rest), None));
    assert_eq!(coordinator.bytes, STORE_BYTES_MAX);
    assert!(coordinator.history_bytes <= HISTORY_BYTES_MAX);
}

#[test]
fn a_restart_keeps_what_was_acknowledged_and_begins_leases_anew() {
    let mut before = Coordinator::default();
    let writes = before.writes();
    grant(&mut before, at(0));
    ask(&mut before, at(0), put("w", "v", Some(LEASE)));
    assert_eq!(before.writes(), writes + 2);
    ask(&mut before, at(0), Op::Range(KeyRange::one("w")));
    assert_eq!(before.writes(), writes + 2, "reading changes nothing");
    let bytes = before.snapshot();
    #[rustfmt::skip]
    let golden = [
        b'L', b'N', b'C', b'O', 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,
        7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0,
        2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        1, 0, b'w', 1, 0, 0, 0, b'v',
    ];
    assert_eq!(bytes[..bytes.len() - 4], golden);
    let mut after = Coordinator::restore(at(100), &bytes).unwrap();
    assert_eq!(after.snapshot(), bytes);
    assert_eq!(keys(&mut after, at(104)), ["w"]);
    assert!(keys(&mut after, at(105)).is_empty());
    let (range, revision) = (KeyRange::prefix("w"), Revision(2));
    let from = WatchFrom { range, revision };
    let fault = Coordinator::restore(at(0), &bytes)
        .unwrap()
        .watch(from)
        .unwrap_err();
    assert_eq!(
        fault,
        CoordinationFault::Compacted {
            oldest: Revision(3)
        }
    );
}

#[test]
fn damaged_snapshots_are_refused() {
    let mut coordinator = Coordinator::default();
    ask(&mut coordinator, at(0), put("w", "v", None));
    let bytes = coordinator.snapshot();
    for len in 0..bytes.len() {
        assert!(Coordinator::restore(at(0), &bytes[..len]).is_err(), "{len}");
    }
    for at_byte in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at_byte] ^= 1;
        assert!(Coordinator::restore(at(0), &changed).is_err(), "{at_byte}");
    }
}
