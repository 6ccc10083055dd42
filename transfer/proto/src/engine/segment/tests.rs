//! The table of segments.

use super::*;

fn at(start: u64, len_bytes: u64) -> Registration<'static> {
    Registration {
        name: None,
        start: Some(start),
        len_bytes,
        access: Access::ReadWrite,
    }
}

fn named(name: &[u8]) -> Registration<'_> {
    Registration {
        name: Some(name),
        start: None,
        len_bytes: 10,
        access: Access::Read,
    }
}

#[test]
fn an_id_dies_with_its_segment_and_its_slot_lives_on() {
    let mut segments = Segments::default();
    let first = segments.register(&at(0x1000, 100), 'a').expect("room");
    assert_eq!(segments.get(first).map(|found| found.memory), Some('a'));
    let gone = segments.unregister(first).expect("it was there");
    assert_eq!((gone.memory, segments.len()), ('a', 0));
    assert!(segments.unregister(first).is_none(), "once");
    let second = segments.register(&at(0x1000, 100), 'b').expect("room");
    assert_eq!(
        (first.index, second.index, second.generation),
        (0, 0, first.generation + 1)
    );
    let old = segments.reach(first, Way::Read, 0, 1);
    assert_eq!(old.err(), Some(AccessRefusal::Stale));
    for wire in [0, u64::MAX, second.to_wire() + 1] {
        assert!(segments.get(SegmentId::from_wire(wire)).is_none());
    }
    let back = SegmentId::from_wire(second.to_wire());
    assert_eq!(segments.get(back).map(|found| found.memory), Some('b'));
}

#[test]
fn a_table_that_takes_ids_from_another_finds_the_same() {
    let mut gives = Segments::default();
    let mut takes = Segments::default();
    let first = gives.register(&at(0x1000, 100), ()).expect("room");
    let second = gives.register(&named(b"kv"), ()).expect("room");
    // In whatever order it hears of them.
    takes.adopt(second, &named(b"kv"), 'b');
    takes.adopt(first, &at(0x1000, 100), 'a');
    assert_eq!(takes.len(), 2);
    assert_eq!(takes.by_address(0x1010, 1), Some((first, 0x10)));
    assert_eq!(takes.by_name(b"kv").map(|(id, _)| id), Some(second));
    for table in [first, second] {
        gives.unregister(table);
        assert!(takes.unregister(table).is_some() && takes.unregister(table).is_none());
    }
    let again = gives.register(&named(b"kv"), ()).expect("room");
    assert_ne!(again, second);
    takes.adopt(again, &named(b"kv"), 'c');
    assert!(takes.get(second).is_none() || takes.get(first).is_none());
    assert_eq!(takes.get(again).map(|found| found.memory), Some('c'));
    assert_eq!(takes.len(), 1);
}

#[test]
fn rights_and_bounds_are_checked_and_overflow_is_out_of_range() {
    let mut segments = Segments::default();
    let what = Registration {
        access: Access::Read,
        ..at(0, 100)
    };
    let id = segments.register(&what, ()).expect("room");
    let reach = |way, offset, len| {
        segments
            .reach(id, way, offset, len)
            .map(|found| found.len_bytes)
    };
    assert_eq!(reach(Way::Read, 0, 100), Ok(100));
    assert_eq!(reach(Way::Read, 100, 0), Ok(100));
    assert_eq!(reach(Way::Read, 1, 100), Err(AccessRefusal::OutOfRange));
    assert_eq!(
        reach(Way::Read, u64::MAX, 2),
        Err(AccessRefusal::OutOfRange)
    );
    assert_eq!(reach(Way::Write, 0, 1), Err(AccessRefusal::Forbidden));
    for (access, reads, writes) in [
        (Access::Read, true, false),
        (Access::Write, false, true),
        (Access::ReadWrite, true, true),
    ] {
        assert_eq!(
            (access.allows(Way::Read), access.allows(Way::Write)),
            (reads, writes)
        );
        assert_eq!(Access::from_wire(access.to_wire()), Some(access));
        assert_eq!(access.and(Access::ReadWrite), Some(access));
        assert_eq!(access.and(access), Some(access));
    }
    assert_eq!(Access::Read.and(Access::Write), None);
    assert_eq!((Access::from_wire(0), Access::from_wire(4)), (None, None));
}

#[test]
fn addresses_find_the_segment_that_holds_them_whole() {
    let mut segments = Segments::default();
    let low = segments.register(&at(1000, 100), ()).expect("room");
    let high = segments.register(&at(1100, 50), ()).expect("adjacent");
    assert_eq!(segments.by_address(1000, 100), Some((low, 0)));
    assert_eq!(segments.by_address(1120, 30), Some((high, 20)));
    for (start, len) in [
        (999, 1),
        (1090, 20),
        (1150, 1),
        (1120, 31),
        (1120, u64::MAX),
    ] {
        assert_eq!(segments.by_address(start, len), None, "{start}+{len}");
    }
    for (start, len) in [(950, 51), (1050, 1), (1149, 10), (0, 5000)] {
        let refused = segments.register(&at(start, len), ());
        let (refusal, ()) = refused.expect_err("it overlaps");
        assert!(
            matches!(refusal, RegisterRefusal::Overlaps { .. }),
            "{refusal}"
        );
    }
    segments.unregister(low);
    assert!(segments.register(&at(950, 51), ()).is_ok());
}

#[test]
fn names_are_unique_bounded_and_free_again_afterwards() {
    let mut segments = Segments::default();
    let id = segments.register(&named(b"kv"), ()).expect("room");
    assert_eq!(segments.by_name(b"kv").map(|(id, _)| id), Some(id));
    let taken = segments.register(&named(b"kv"), ()).expect_err("taken");
    assert_eq!(taken.0, RegisterRefusal::NameTaken { holder: id });
    let longest = vec![b'n'; SEGMENT_NAME_BYTES_MAX];
    assert!(segments.register(&named(&longest), ()).is_ok());
    for bad in [&b""[..], &[b'n'; SEGMENT_NAME_BYTES_MAX + 1]] {
        let (refusal, ()) = segments.register(&named(bad), ()).expect_err("refused");
        assert!(matches!(refusal, RegisterRefusal::BadName { .. }));
    }
    segments.unregister(id);
    assert!(segments.by_name(b"kv").is_none());
    assert!(segments.register(&named(b"kv"), ()).is_ok());
}

#[test]
fn no_more_than_the_bound_and_no_range_that_is_none() {
    let mut segments = Segments::default();
    for bad in [at(5, 0), at(u64::MAX, 2)] {
        let (refusal, ()) = segments.register(&bad, ()).expect_err("refused");
        assert!(matches!(refusal, RegisterRefusal::BadRange { .. }));
    }
    let plain = Registration {
        start: None,
        ..at(0, 1)
    };
    let mut last = None;
    for _ in 0..SEGMENTS_MAX {
        last = segments.register(&plain, ()).ok();
    }
    let (refusal, ()) = segments.register(&plain, ()).expect_err("full");
    assert!(refusal.is_backpressure());
    segments.unregister(last.expect("registered"));
    assert!(segments.register(&plain, ()).is_ok());
}
