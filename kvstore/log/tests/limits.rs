//! Each refusal, at its limit.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::iter;
use std::time::Duration;

use lunette_kvstore_log::effect::{
    AppendFailure, AppendRefused, DeviceFault, Effect, Event, KeepRefused, MemoryId, OpId,
    PinRefused, ReadOutcome, Removing, Write, WritePiece,
};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::format::{
    BLOCK_BYTES, Geometry, SEGMENT_BYTES_MIN, SEGMENTS_OFFSET_BYTES,
};
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::options::{DROPPED_MAX, LogOptions, OptionsFault};
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_log::recovery::{OpenFault, Recovery};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;

const IDENTITY: Identity = Identity {
    cluster: 1,
    device: 2,
};

fn options() -> LogOptions {
    let capacity_bytes = SEGMENTS_OFFSET_BYTES + 8 * u64::from(SEGMENT_BYTES_MIN);
    let mut options = LogOptions::new(IDENTITY, capacity_bytes);
    options.geometry.segment_bytes = SEGMENT_BYTES_MIN;
    options.queued_records_max = 8;
    options.has_volatile_cache = false;
    options.records_max = 20;
    options.pins_max = 2;
    options
}

fn at_ms(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn record(key: u128, sequence: u64, len_bytes: u32) -> Record {
    Record {
        fingerprint: Fingerprint(key),
        version: Version { epoch: 1, sequence },
        generation: 1,
        len_bytes,
        ..Record::default()
    }
}

fn writes(log: &mut Log) -> Vec<Write> {
    let mut writes = Vec::new();
    while let Some(effect) = log.poll_effect() {
        match effect {
            Effect::Write(write) => writes.push(write),
            other => unreachable!("it only writes: {other:?}"),
        }
    }
    writes
}

fn end_all(log: &mut Log, now: Time, result: Result<(), DeviceFault>) {
    loop {
        let writes = writes(log);
        if writes.is_empty() {
            return;
        }
        for write in writes {
            log.written(now, write.op, result);
        }
    }
}

fn events(log: &mut Log) -> Vec<Event> {
    iter::from_fn(|| log.poll_event()).collect()
}

/// A log that is mounted.
fn mounted(options: LogOptions) -> Log {
    let mut log = Log::format(options, 7, 1, Time::ZERO).expect("they fit together");
    assert!(!log.is_mounted());
    end_all(&mut log, Time::ZERO, Ok(()));
    assert!(log.is_mounted());
    log
}

fn append(log: &mut Log, now: Time, record: Record) -> Result<(), AppendRefused> {
    let memory = MemoryId(record.version.sequence);
    log.append(now, b"key", record, memory).map(|_| ())
}

#[test]
fn nothing_is_written_before_both_superblocks() {
    let mut log = Log::format(options(), 7, 1, Time::ZERO).expect("they fit together");
    append(&mut log, Time::ZERO, record(1, 1, 100)).expect("it waits");
    log.advance(at_ms(10));
    for offset_bytes in [0, 32 * 1024] {
        let [write] = &writes(&mut log)[..] else {
            panic!("one copy after the other");
        };
        assert_eq!(
            (write.offset_bytes, write.own.len()),
            (offset_bytes, BLOCK_BYTES as usize)
        );
        log.written(at_ms(10), write.op, Ok(()));
    }
    let [write] = &writes(&mut log)[..] else {
        panic!("then the record");
    };
    let payload = write
        .pieces
        .iter()
        .filter(|piece| matches!(piece, WritePiece::Payload { .. }));
    assert_eq!(
        (write.offset_bytes, payload.count()),
        (SEGMENTS_OFFSET_BYTES, 1)
    );
    assert_eq!(log.get(Fingerprint(1)), None, "it is not there yet");
    log.written(at_ms(11), write.op, Ok(()));
    assert_eq!(log.get(Fingerprint(1)), Some(record(1, 1, 100)));
}

#[test]
fn a_batch_is_announced_behind_those_before_it() {
    let mut log = mounted(options());
    let mut ops = Vec::new();
    for (key, ms) in [(1, 1), (2, 3), (3, 5)] {
        append(&mut log, at_ms(ms), record(key, ms, 100)).expect("there is room");
        log.advance(at_ms(ms + 1));
        ops.extend(writes(&mut log).iter().map(|write| write.op));
    }
    let [first, second, third] = ops[..] else {
        panic!("a batch each");
    };
    log.written(at_ms(7), third, Ok(()));
    log.written(at_ms(7), second, Ok(()));
    assert_eq!(events(&mut log), []);
    log.written(at_ms(7), first, Ok(()));
    assert_eq!(events(&mut log).len(), 3);
}

/// The writes and flushes that are to be done now.
fn begun(log: &mut Log) -> (Vec<OpId>, Vec<OpId>) {
    let (mut writes, mut flushes) = (Vec::new(), Vec::new());
    while let Some(effect) = log.poll_effect() {
        match effect {
            Effect::Write(write) => writes.push(write.op),
            Effect::Flush { op } => flushes.push(op),
            other => unreachable!("it only writes: {other:?}"),
        }
    }
    (writes, flushes)
}

#[test]
fn writes_go_on_while_a_flush_is_under_way_so_far_as_may_be_lost() {
    let options = LogOptions {
        has_volatile_cache: true,
        writes_in_flight_max: 2,
        unflushed_max: 3,
        ..options()
    };
    let mut log = Log::format(options, 7, 1, Time::ZERO).expect("they fit together");
    while !log.is_mounted() {
        let (writes, flushes) = begun(&mut log);
        assert!(!(writes.is_empty() && flushes.is_empty()));
        for op in writes {
            log.written(Time::ZERO, op, Ok(()));
        }
        for op in flushes {
            log.flushed(Time::ZERO, op, Ok(()));
        }
    }
    let mut writes = Vec::new();
    for key in 1..=3 {
        let ms = u64::try_from(key).expect("few");
        append(&mut log, at_ms(ms), record(key, ms, 100)).expect("there is room");
        log.advance(at_ms(ms + 1));
        writes.extend(begun(&mut log).0);
    }
    let [first, second] = writes[..] else {
        panic!("as many as may be in flight: {writes:?}");
    };
    assert_eq!(log.poll_timeout(), None, "it waits for the drive");
    log.written(at_ms(5), first, Ok(()));
    let (third, flushes) = begun(&mut log);
    assert_eq!((third.len(), flushes.len()), (1, 1));
    append(&mut log, at_ms(6), record(4, 6, 100)).expect("there is room");
    let now = at_ms(7);
    for op in [second, third[0]] {
        log.written(now, op, Ok(()));
        log.check();
        let begun = begun(&mut log);
        assert_eq!(begun, (vec![], vec![]), "neither beyond what may be lost");
    }
    assert_eq!(events(&mut log), []);
    log.flushed(now, flushes[0], Ok(()));
    assert_eq!(
        events(&mut log).len(),
        1,
        "what was written before the flush"
    );
    let (rest, flushes) = begun(&mut log);
    assert_eq!((rest.len(), flushes.len()), (1, 1));
    log.flushed(now, flushes[0], Ok(()));
    assert_eq!(events(&mut log).len(), 2);
}

#[test]
fn a_failed_write_fails_what_is_behind_it_in_its_segment() {
    let mut log = mounted(options());
    let mut ops = Vec::new();
    for (key, ms) in [(1, 1), (2, 3), (3, 5)] {
        append(&mut log, at_ms(ms), record(key, ms, 100)).expect("there is room");
        log.advance(at_ms(ms + 1));
        ops.extend(writes(&mut log).iter().map(|write| write.op));
    }
    log.written(at_ms(7), ops[1], Err(DeviceFault));
    log.written(at_ms(7), ops[2], Ok(()));
    log.written(at_ms(7), ops[0], Ok(()));
    let events = events(&mut log);
    let is_failed = |event: &Event| {
        matches!(
            event,
            Event::Failed {
                cause: AppendFailure::Device(_),
                ..
            }
        )
    };
    assert!(matches!(events[0], Event::Durable { .. }), "{events:?}");
    assert!(is_failed(&events[1]) && is_failed(&events[2]), "{events:?}");
    // The drive may have it, so that removing it is written down.
    let removing = log.remove(at_ms(8), Fingerprint(3), record(3, 5, 100).version);
    assert!(matches!(removing, Ok(Removing::Written(_))), "{removing:?}");
    let removing = log.remove(at_ms(8), Fingerprint(4), Version::default());
    assert_eq!(removing, Ok(Removing::Done));
}

#[test]
fn appends_are_refused_with_what_to_do() {
    let mut log = mounted(options());
    let now = at_ms(1);
    let refused = log.append(now, b"", record(1, 1, 1), MemoryId(1));
    assert_eq!(refused, Err(AppendRefused::KeyLength { len_bytes: 0 }));
    let refused =
        append(&mut log, now, record(1, 1, SEGMENT_BYTES_MIN)).expect_err("it never fits");
    let AppendRefused::TooLong { max_bytes, .. } = refused else {
        panic!("{refused}");
    };
    assert!(!refused.is_retryable());
    append(&mut log, now, record(1, 1, max_bytes)).expect("the longest fits");
    assert_eq!(
        append(&mut log, now, record(1, 2, 1)),
        Err(AppendRefused::Busy)
    );
    let old = Record {
        generation: 0,
        ..record(2, 1, 1)
    };
    let refused = append(&mut log, now, old);
    assert_eq!(
        refused,
        Err(AppendRefused::GenerationEnded {
            generation: 0,
            earliest: 1
        })
    );
    for key in 2..9 {
        append(&mut log, now, record(key, 1, 1)).expect("there is room");
    }
    let refused = append(&mut log, now, record(9, 1, 1)).expect_err("eight wait");
    assert!(
        matches!(
            refused,
            AppendRefused::QueueFull {
                queued_records: 8,
                ..
            }
        ),
        "{refused}"
    );
    assert!(refused.is_backpressure() && refused.is_retryable());
    log.advance(at_ms(2));
    end_all(&mut log, at_ms(2), Ok(()));
    assert_eq!(
        append(&mut log, at_ms(3), record(2, 1, 1)),
        Err(AppendRefused::Here)
    );
}

#[test]
fn a_slow_drive_and_a_failed_one_refuse_at_once() {
    let mut log = mounted(options());
    append(&mut log, at_ms(1), record(1, 1, 1)).expect("there is room");
    log.advance(at_ms(2));
    let [write] = &writes(&mut log)[..] else {
        panic!("a batch");
    };
    let refused = append(&mut log, at_ms(1500), record(2, 1, 1));
    assert_eq!(refused, Err(AppendRefused::Slow { waited_ms: 1498 }));
    log.written(at_ms(1600), write.op, Ok(()));
    assert_eq!(append(&mut log, at_ms(1600), record(2, 1, 1)), Ok(()));
    log.advance(at_ms(1601));
    // What is tried again fails as well, until it is enough.
    end_all(&mut log, at_ms(1602), Err(DeviceFault));
    append(&mut log, at_ms(1603), record(3, 1, 1)).ok();
    log.advance(at_ms(1604));
    end_all(&mut log, at_ms(1605), Err(DeviceFault));
    assert!(log.stats().has_failed && events(&mut log).contains(&Event::DeviceFailed));
    let refused = append(&mut log, at_ms(1700), record(4, 1, 1));
    assert_eq!(refused, Err(AppendRefused::Device(DeviceFault)));
    // What is there is still read.
    let plan = log.pin(Fingerprint(1)).expect("it is there");
    log.end_read(at_ms(1700), plan.pin, ReadOutcome::Right);
}

#[test]
fn reads_and_judgements_are_bounded() {
    let mut log = mounted(options());
    assert_eq!(log.pin(Fingerprint(1)), Err(PinRefused::NotHere));
    append(&mut log, at_ms(1), record(1, 1, 5000)).expect("there is room");
    log.advance(at_ms(2));
    end_all(&mut log, at_ms(2), Ok(()));
    let plan = log.pin(Fingerprint(1)).expect("it is there");
    assert_eq!(
        (plan.len_bytes, plan.key_at + 64),
        (2 * BLOCK_BYTES, plan.payload_at)
    );
    log.pin(Fingerprint(1)).expect("two may read");
    assert_eq!(
        log.pin(Fingerprint(1)),
        Err(PinRefused::TooMany { pins: 2 })
    );
    let version = record(1, 1, 5000).version;
    assert_eq!(
        log.keep(at_ms(3), Fingerprint(1), version),
        Err(KeepRefused::NotJudged)
    );
    assert!(!log.release(at_ms(3), Fingerprint(1), version));
    log.end_read(at_ms(3), plan.pin, ReadOutcome::Damaged);
    assert_eq!(log.get(Fingerprint(1)), None);
    assert_eq!(log.stats().lost_records, 1);
}

/// Carries out all that a log wants of a drive whose bytes are these, and judges as it is told to, until nothing is
/// left to be done. What is appended has payloads of zeros.
fn serve(log: &mut Log, now: Time, image: &mut [u8], wants_to_keep: bool) {
    loop {
        let effects: Vec<Effect> = iter::from_fn(|| log.poll_effect()).collect();
        let events = events(log);
        if effects.is_empty() && events.is_empty() {
            return;
        }
        for effect in effects {
            match effect {
                Effect::Write(write) => {
                    put(&write, image);
                    log.written(now, write.op, Ok(()));
                }
                Effect::Read {
                    op,
                    offset_bytes,
                    len_bytes,
                    ..
                } => {
                    let begin = usize::try_from(offset_bytes).expect("small");
                    let bytes = &image[begin..begin + len_bytes as usize];
                    log.read_done(now, op, Ok(bytes));
                }
                Effect::Release { .. } => {}
                other => unreachable!("the drive has no cache: {other:?}"),
            }
        }
        for event in events {
            let Event::Judge {
                fingerprint,
                version,
                may_stay,
            } = event
            else {
                continue;
            };
            let kept = if wants_to_keep && may_stay {
                log.keep(now, fingerprint, version)
            } else {
                Err(KeepRefused::NoRoom)
            };
            // Others that were judged with it may have taken the room.
            if kept == Err(KeepRefused::NoRoom) {
                assert!(log.release(now, fingerprint, version), "it is judged");
            } else {
                kept.expect("it is judged");
            }
        }
        log.check();
    }
}

fn put(write: &Write, image: &mut [u8]) {
    let mut at = usize::try_from(write.offset_bytes).expect("small");
    for piece in &write.pieces {
        let len = match piece {
            WritePiece::Own(range) => {
                image[at..at + range.len()].copy_from_slice(&write.own[range.clone()]);
                range.len()
            }
            WritePiece::Payload { len_bytes, .. } => {
                image[at..at + *len_bytes as usize].fill(0);
                *len_bytes as usize
            }
        };
        at += len;
    }
}

/// Appends records of these lengths one after the other, of which none is refused. The log, and the keys that are there in
/// the end: the first has 1.
fn kept_of(
    options: LogOptions,
    lens: impl Iterator<Item = u32>,
    wants_to_keep: bool,
) -> (Log, Vec<u128>) {
    let mut log = mounted(options);
    let mut image = vec![0; usize::try_from(log.options().geometry.capacity_bytes).expect("small")];
    for (key, len_bytes) in (1..).zip(lens) {
        let ms = u64::try_from(key).expect("few") * 2;
        let record = Record {
            crc32c: crc32c(&vec![0; len_bytes as usize]),
            ..record(key, ms, len_bytes)
        };
        append(&mut log, at_ms(ms), record).expect("room is made");
        log.advance(at_ms(ms + 1));
        serve(&mut log, at_ms(ms + 1), &mut image, wants_to_keep);
        assert_eq!(log.get(Fingerprint(key)), Some(record));
    }
    let mut keys: Vec<u128> = log.records().map(|record| record.fingerprint.0).collect();
    keys.sort_unstable();
    (log, keys)
}

#[test]
fn what_is_found_beyond_the_index_is_dropped_up_to_a_limit() {
    const RECORDS: usize = DROPPED_MAX + 2000;
    let segment_bytes = 2 * SEGMENT_BYTES_MIN;
    let capacity_bytes = SEGMENTS_OFFSET_BYTES + 100 * u64::from(segment_bytes);
    let options = LogOptions {
        geometry: Geometry {
            capacity_bytes,
            segment_bytes,
        },
        queued_records_max: 256,
        records_max: 2 * RECORDS,
        ..options()
    };
    let mut log = Log::format(options, 7, 1, Time::ZERO).expect("they fit together");
    let mut image = vec![0; usize::try_from(capacity_bytes).expect("small")];
    serve(&mut log, Time::ZERO, &mut image, false);
    assert!(log.is_mounted());
    for key in 1..=RECORDS as u64 {
        append(&mut log, at_ms(key), record(key.into(), key, 0)).expect("there is room");
        if key % 250 == 0 || key == RECORDS as u64 {
            log.advance(at_ms(key + 1));
            serve(&mut log, at_ms(key + 1), &mut image, false);
        }
    }
    assert_eq!(log.stats().records, RECORDS as u64);
    let with = |records_max| LogOptions {
        records_max,
        ..options
    };
    let fault = opened(with(1999), &image).expect_err("one too many");
    let (records, records_max) = (RECORDS, 1999);
    assert_eq!(
        fault,
        OpenFault::TooManyRecords {
            records,
            records_max
        }
    );
    let log = opened(with(2000), &image).expect("as many as may be");
    log.check();
    let mut keys: Vec<u128> = log.records().map(|record| record.fingerprint.0).collect();
    keys.sort_unstable();
    assert!(
        keys.into_iter()
            .eq(DROPPED_MAX as u128 + 1..=RECORDS as u128)
    );
}

/// What [`kept_of`] 200 short ones is, of which the index is full long before the segments are.
fn kept_of_short(wants_to_keep: bool) -> Vec<u128> {
    let (log, keys) = kept_of(options(), iter::repeat_n(100, 200), wants_to_keep);
    let stats = log.stats();
    assert!(
        stats.free_segments >= 4,
        "room was short of nothing but records: {stats:?}"
    );
    assert_eq!(stats.moved_records > 0, wants_to_keep);
    keys
}

#[test]
fn the_oldest_leave_first_however_full_segments_are() {
    let options = LogOptions {
        records_max: 1000,
        ..options()
    };
    // Fourteen of the former fill a segment, and one of the latter leaves six blocks that nothing fits into.
    let lens = (0..200).map(|n| if n % 31 < 28 { 3900 } else { 30_000 });
    let (log, keys) = kept_of(options, lens, false);
    assert!(log.stats().reclaimed_segments > 10);
    let first = 201 - keys.len() as u128;
    assert!(keys.iter().copied().eq(first..=200), "{keys:?}");
}

#[test]
fn short_records_that_fill_the_index_push_the_oldest_out() {
    let keys = kept_of_short(false);
    // The index has room for 20, three of them are kept free, and a segment has ten at most.
    assert!((8..=18).contains(&keys.len()), "{keys:?}");
    let first = 201 - keys.len() as u128;
    assert!(keys.iter().copied().eq(first..=200), "{keys:?}");
}

#[test]
fn an_owner_that_keeps_all_it_may_cannot_stop_a_full_index_from_taking_more() {
    let keys = kept_of_short(true);
    assert!((10..=18).contains(&keys.len()), "{keys:?}");
    assert_eq!(keys.last(), Some(&200));
}

/// Writes to memory what a mounted log writes.
fn formatted() -> Vec<u8> {
    let options = options();
    let mut image = vec![0; usize::try_from(options.geometry.capacity_bytes).expect("small")];
    let mut log = Log::format(options, 7, 3, Time::ZERO).expect("they fit together");
    while !log.is_mounted() {
        for write in writes(&mut log) {
            let begin = usize::try_from(write.offset_bytes).expect("small");
            image[begin..begin + write.own.len()].copy_from_slice(&write.own);
            log.written(Time::ZERO, write.op, Ok(()));
        }
    }
    image
}

fn opened(options: LogOptions, image: &[u8]) -> Result<Log, OpenFault> {
    let mut recovery = Recovery::new(options, 0).expect("they fit together");
    while !recovery.is_done() {
        let Some(Effect::Read {
            op,
            offset_bytes,
            len_bytes,
            ..
        }) = recovery.poll_effect()
        else {
            unreachable!("it reads");
        };
        let begin = usize::try_from(offset_bytes).expect("small");
        let bytes = image.get(begin..begin + len_bytes as usize);
        recovery.read_done(op, bytes.ok_or(DeviceFault));
    }
    recovery.finish(Time::ZERO).map(|(log, _)| log)
}

#[test]
fn drives_that_are_not_ours_are_refused() {
    let image = formatted();
    let options = options();
    let log = opened(options, &image).expect("it is ours");
    assert_eq!(
        (log.superblock().mount, log.superblock().generation),
        (2, 3)
    );
    let mut other = options;
    other.identity.cluster = 5;
    let refused = opened(other, &image).err();
    assert_eq!(
        refused,
        Some(OpenFault::OtherCluster {
            found: 1,
            expected: 5
        })
    );
    let mut other = options;
    other.identity.device = 5;
    let refused = opened(other, &image).err();
    assert_eq!(
        refused,
        Some(OpenFault::OtherDevice {
            found: 2,
            expected: 5
        })
    );
    let mut shorter = options;
    shorter.geometry.capacity_bytes -= u64::from(BLOCK_BYTES);
    let refused = opened(shorter, &image).err();
    assert!(
        matches!(refused, Some(OpenFault::Shortened { .. })),
        "{refused:?}"
    );
    assert_eq!(
        opened(options, &vec![0; image.len()]).err(),
        Some(OpenFault::Blank)
    );
    let refused = opened(options, &vec![1; image.len()]).err();
    assert!(matches!(refused, Some(OpenFault::NoLog(_))), "{refused:?}");
    assert_eq!(
        opened(options, &[]).err(),
        Some(OpenFault::Device(DeviceFault))
    );
    // One copy is enough; none is not.
    let mut damaged = image;
    damaged[40] ^= 1;
    assert!(opened(options, &damaged).is_ok());
    damaged[32 * 1024 + 40] ^= 1;
    let refused = opened(options, &damaged).expect_err("both are damaged");
    assert!(matches!(refused, OpenFault::Damaged(_)) && refused.is_corruption());
}

#[test]
fn options_that_contradict_each_other_are_named() {
    let broken = LogOptions {
        reserve_segments: 1,
        ..options()
    };
    assert_eq!(broken.check(), Err(OptionsFault("reserve_segments")));
    let broken = LogOptions {
        free_segments_low: 2,
        ..options()
    };
    assert_eq!(broken.check(), Err(OptionsFault("free_segments_low")));
    let broken = LogOptions {
        queued_records_max: 1000,
        ..options()
    };
    assert_eq!(broken.check(), Err(OptionsFault("queued_records_max")));
    let broken = LogOptions {
        unflushed_max: 7,
        ..options()
    };
    assert_eq!(broken.check(), Err(OptionsFault("unflushed_max")));
}
