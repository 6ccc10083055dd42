//! The machine of one core's memory, call by call.

use core::time::Duration;

use lunette_cluster_proto::map::Epoch;

use lunette_kvstore_policy::{GHOST_BYTES, GHOSTS_FEW, GHOSTS_PER_BLOCK_MAX};

use super::*;
use crate::leaving::{REMEMBERED_MIN, REMEMBERING_SHARE};
use crate::version::Version;

mod groups;
mod pins;
mod tenants;

fn place(number: u64) -> CopyPlace {
    CopyPlace {
        key: Fingerprint(number.into()),
        version: Version {
            epoch: Epoch(1),
            sequence: number,
        },
    }
}

/// 1000 bytes, evicted down to 800.
fn memory(entries_max: usize) -> Residence {
    Residence::new(ShardLimits::new(1000, 800, entries_max).expect("limits"))
}

fn keep(memory: &mut Residence, number: u64, bytes: u32) -> EntryId {
    let id = memory
        .admit(bytes, Pin::None, TenantTag::DEFAULT)
        .expect("room");
    memory.reside(Time::ZERO, id, place(number), Arrival::default());
    id
}

#[test]
fn the_least_recently_used_leaves_first_and_before_memory_is_full() {
    let mut memory = memory(100);
    for number in 0..8 {
        keep(&mut memory, number, 100);
    }
    assert_eq!(memory.victims(Time::ZERO, true), [], "at the low watermark");
    keep(&mut memory, 8, 100);
    let pinned = memory.pin(place(0)).expect("here");
    assert_eq!(memory.victims(Time::ZERO, true), [place(1)]);
    memory.leave(place(1));
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [],
        "one that leaves is enough"
    );
    assert!(memory.pin(place(1)).is_some(), "it is read until it left");
    memory.spare(place(2));
    keep(&mut memory, 9, 100);
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [place(3)],
        "2 was spared, 0 was read"
    );
    assert!(!memory.unpin(pinned));
}

#[test]
fn who_finds_no_room_is_refused_until_enough_has_left() {
    let mut memory = memory(100);
    for number in 0..10 {
        keep(&mut memory, number, 100);
    }
    let needed_bytes = 450;
    assert_eq!(
        memory.admit(450, Pin::None, TenantTag::DEFAULT),
        Err(NoRoom::Full { needed_bytes })
    );
    let victims = memory.victims(Time::ZERO, true);
    assert_eq!(victims, [0, 1, 2, 3, 4].map(place));
    for &victim in &victims {
        memory.leave(victim);
    }
    assert_eq!(memory.victims(Time::ZERO, true), []);
    assert_eq!(
        memory.admit(450, Pin::None, TenantTag::DEFAULT),
        Err(NoRoom::Full { needed_bytes })
    );
    for victim in victims {
        assert!(memory.free(victim).is_some());
    }
    assert!(memory.admit(450, Pin::None, TenantTag::DEFAULT).is_ok());
    let too_large = NoRoom::TooLarge {
        needed_bytes: 1001,
        max_bytes: 1000,
    };
    assert_eq!(
        memory.admit(1001, Pin::None, TenantTag::DEFAULT),
        Err(too_large)
    );
    assert!(!too_large.is_retryable());
}

#[test]
fn room_is_made_by_and_by_however_far_the_watermarks_are_apart() {
    const MIB: u32 = 1 << 20;
    let high = 256 * u64::from(MIB);
    for (low, many) in [(high - high / 4, 4), (high - 4 * u64::from(MIB), 2)] {
        let limits = ShardLimits::new(high, low, 1000).expect("limits");
        let mut memory = Residence::new(limits);
        let full = low / u64::from(MIB);
        for number in 0..full + many {
            keep(&mut memory, number, MIB);
            assert!(!memory.is_tight());
        }
        keep(&mut memory, full + many, MIB);
        assert!(memory.is_tight());
    }
}

#[test]
fn entries_are_bounded_like_bytes() {
    let mut memory = memory(2);
    keep(&mut memory, 0, 10);
    keep(&mut memory, 1, 10);
    assert_eq!(
        memory.admit(10, Pin::None, TenantTag::DEFAULT),
        Err(NoRoom::Full { needed_bytes: 10 })
    );
    assert_eq!(memory.victims(Time::ZERO, true), [place(0)]);
    memory.leave(place(0));
    memory.free(place(0));
    assert!(memory.admit(10, Pin::None, TenantTag::DEFAULT).is_ok());
}

#[test]
fn entries_have_watermarks_like_bytes() {
    let mut memory = memory(64);
    for number in 0..60 {
        keep(&mut memory, number, 1);
    }
    assert_eq!(memory.victims(Time::ZERO, true), [], "four are free");
    for number in 60..62 {
        keep(&mut memory, number, 1);
    }
    assert!(!memory.is_tight(), "half of them are left");
    keep(&mut memory, 62, 1);
    assert!(memory.is_tight());
    assert_eq!(memory.victims(Time::ZERO, true), [0, 1, 2].map(place));
    memory.leave(place(0));
    memory.spare(place(1));
    memory.spare(place(2));
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [3, 4].map(place),
        "one leaves already"
    );
    memory.spare(place(3));
    memory.spare(place(4));
    let mut others = 4;
    loop {
        let told = memory.victims(Time::ZERO, true);
        if told.contains(&place(1)) {
            break;
        }
        assert_eq!(told.len(), 2);
        others += told.len();
        told.into_iter().for_each(|place| memory.spare(place));
    }
    assert_eq!(others, 62, "all others have been told by then");
    assert!(memory.free(place(0)).is_some());
    assert_eq!(memory.stats().leaving_entries, 0);
}

#[test]
fn fragmented_memory_makes_more_leave_than_bytes_alone() {
    let mut memory = memory(100);
    for number in 0..3 {
        keep(&mut memory, number, 100);
    }
    let id = memory
        .admit(150, Pin::None, TenantTag::DEFAULT)
        .expect("room");
    memory.discard(id);
    memory.want(150);
    assert_eq!(memory.victims(Time::ZERO, true), [place(0), place(1)]);
}

#[test]
fn what_is_read_is_released_when_it_is_read() {
    let mut memory = memory(100);
    let id = keep(&mut memory, 0, 600);
    assert_eq!(memory.at_rest(id.slot_index), Some(place(0)));
    assert_eq!(memory.pin(place(0)), Some(id));
    assert_eq!(memory.pin(place(0)), Some(id));
    assert_eq!(memory.at_rest(id.slot_index), None, "it is read");
    assert_eq!(memory.free(place(0)), None);
    assert_eq!(memory.free(place(0)), None, "it is freed once");
    assert_eq!(memory.find(place(0)), None);
    assert!(
        memory.admit(600, Pin::None, TenantTag::DEFAULT).is_err(),
        "its bytes count"
    );
    assert!(!memory.unpin(id));
    assert!(memory.unpin(id), "released");
    assert!(memory.admit(600, Pin::None, TenantTag::DEFAULT).is_ok());
}

#[test]
fn what_was_to_leave_may_stay() {
    let mut memory = memory(100);
    for number in 0..9 {
        keep(&mut memory, number, 100);
    }
    memory.leave(place(0));
    assert_eq!(memory.victims(Time::ZERO, true), []);
    let entry = memory.find(place(0)).expect("a copy").slot_index;
    assert_eq!(memory.at_rest(entry), None, "it leaves");
    memory.stay(place(0));
    assert_eq!(memory.at_rest(entry), Some(place(0)));
    assert_eq!(memory.stats().leaving_bytes, 0);
    assert_eq!(memory.stats().leaving_entries, 0);
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [place(1)],
        "0 is the latest one"
    );
    memory.stay(place(1));
    memory.stay(place(99));
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [place(2)],
        "1 was told, and was not leaving"
    );
    memory.spare(place(1));
    memory.leave(place(2));
    assert!(memory.free(place(0)).is_some());
}

/// Puts what is not there, after making room as an owner does; whether it was.
fn get_or_put(memory: &mut Residence, number: u64) -> bool {
    if let Some(id) = memory.pin(place(number)) {
        memory.unpin(id);
        return true;
    }
    keep(memory, number, 1 << 17);
    for victim in memory.victims(Time::ZERO, true) {
        memory.leave(victim);
        assert!(memory.free(victim).is_some());
    }
    false
}

#[test]
fn what_comes_back_stays_while_what_does_not_passes_by() {
    let limits = ShardLimits::new(9 << 17, 8 << 17, 100).expect("limits");
    let mut memory = Residence::new(limits);
    let mut hits = 0;
    for round in 0..4000 {
        // Each of these is back after 20 uses, by when eight others would have pushed it out.
        for often in 0..4 {
            let hit = get_or_put(&mut memory, often);
            hits += u64::from(hit && round >= 2000);
        }
        for once in 0..16 {
            get_or_put(&mut memory, 1000 + round * 16 + once);
        }
    }
    assert!(hits > 7000, "{hits} of 8000; the least recently used: none");
}

#[test]
fn what_cannot_leave_is_asked_again_after_others() {
    let limits = ShardLimits::new(100_000, 99_000, 1000).expect("limits");
    let mut memory = Residence::new(limits);
    for number in 0..199 {
        keep(&mut memory, number, 500);
    }
    let told = memory.victims(Time::ZERO, true);
    assert_eq!(told, [place(0)]);
    memory.spare(place(0));
    let mut others = 0;
    loop {
        let told = memory.victims(Time::ZERO, true);
        if told == [place(0)] {
            break;
        }
        memory.leave(told[0]);
        memory.free(told[0]);
        keep(&mut memory, 1000 + others, 500);
        others += 1;
    }
    let most = SPARED_FOR + 199;
    assert!((SPARED_FOR..=most).contains(&others), "{others} of {most}");
    assert_eq!(memory.shares.first().spared(), 0);
}

#[test]
fn what_is_removed_is_forgotten_and_what_left_is_not() {
    let mut memory = memory(100);
    keep(&mut memory, 0, 100);
    assert!(memory.free(place(0)).is_some());
    assert!(!memory.shares.first().remembers(0), "it does not come back");
    let room = 1 << 28;
    let of_large = room / REMEMBERING_SHARE / GHOST_BYTES as u64;
    assert!(of_large > REMEMBERED_MIN);
    let beside = |ghosts: u64| ghosts / GHOSTS_PER_BLOCK_MAX as u64;
    for (room, copies, remembered_max) in [
        (1 << 20, 0, GHOSTS_FEW as u64),
        (1 << 20, beside(REMEMBERED_MIN), REMEMBERED_MIN),
        (room, beside(of_large) + 1, of_large),
    ] {
        let limits = ShardLimits::new(room, room / 2, 10_000).expect("limits");
        let mut memory = Residence::new(limits);
        for number in 0..copies {
            keep(&mut memory, 1_000_000 + number, 100);
        }
        for number in 0..2 * remembered_max {
            keep(&mut memory, number, 100);
            memory.leave(place(number));
            assert!(memory.free(place(number)).is_some());
        }
        assert_eq!(memory.shares.first().remembered() as u64, remembered_max);
        assert!(memory.shares.first().remembers(2 * remembered_max - 1));
        assert!(!memory.shares.first().remembers(remembered_max - 1));
    }
}

fn keep_part(memory: &mut Residence, now: Time, number: u64) {
    let id = memory
        .admit(100, Pin::None, TenantTag::DEFAULT)
        .expect("room");
    let arrival = Arrival {
        stands_by: true,
        ..Arrival::default()
    };
    memory.reside(now, id, place(number), arrival);
}

#[test]
fn the_last_of_many_batches_leave_first_if_they_are_not_used_again() {
    let mut memory = memory(100);
    let keep_batch = |memory: &mut Residence, first: u64| {
        for number in first..first + 4 {
            let id = memory
                .admit(100, Pin::None, TenantTag::DEFAULT)
                .expect("room");
            let arrival = Arrival {
                retention: Retention {
                    is_last: number == first + 3,
                    ..Retention::default()
                },
                ..Arrival::default()
            };
            memory.reside(Time::ZERO, id, place(number), arrival);
        }
    };
    for batch in 0..1000 {
        keep_batch(&mut memory, 10 * batch);
        for number in 10 * batch..10 * batch + 4 {
            if number % 10 < 3 {
                let read = memory.pin(place(number)).expect("here");
                memory.unpin(read);
            }
            memory.leave(place(number));
            assert!(memory.free(place(number)).is_some());
        }
    }
    keep_batch(&mut memory, 100_000);
    keep_batch(&mut memory, 200_000);
    assert!(
        memory.admit(600, Pin::None, TenantTag::DEFAULT).is_err(),
        "four are wanted"
    );
    let told = memory.victims(Time::ZERO, true);
    assert_eq!(told, [100_003, 200_003, 100_000, 100_001].map(place));
}

#[test]
fn parts_leave_after_all_others_until_their_object_must_have_come() {
    let mut memory = memory(100);
    keep_part(&mut memory, Time::ZERO, 0);
    keep_part(&mut memory, Time::ZERO, 1);
    for number in 2..10 {
        keep(&mut memory, number, 100);
    }
    let read = memory.pin(place(0)).expect("here");
    assert!(!memory.unpin(read));
    assert!(
        memory.admit(950, Pin::None, TenantTag::DEFAULT).is_err(),
        "all but 50 bytes are wanted"
    );
    let told = memory.victims(Time::ZERO, true);
    let others: Vec<CopyPlace> = (2..10).map(place).collect();
    assert_eq!(told[..8], others, "in order, as nothing is learnt");
    assert_eq!(
        told[8..],
        [1, 0].map(place),
        "the least recently used first"
    );
    assert_eq!(memory.shares.first().standing_by(), 0, "they were told");
}

#[test]
fn parts_of_an_object_that_must_have_come_leave_as_others() {
    let (early, late) = (Time::ZERO, Time::ZERO + STANDS_BY);
    let mut memory = memory(100);
    for number in 10..16 {
        keep_part(&mut memory, early, number);
    }
    keep_part(&mut memory, early + Duration::from_nanos(1), 16);
    keep(&mut memory, 17, 100);
    keep(&mut memory, 18, 100);
    let told = memory.victims(late, true);
    assert_eq!(told, [place(17)], "the parts are offered after it");
    assert_eq!(memory.shares.first().standing_by(), 1);
    memory.leave(told[0]);
    assert!(memory.free(told[0]).is_some());
    keep(&mut memory, 19, 100);
    assert_eq!(memory.victims(late, true), [place(18)]);
    memory.spare(place(18));
    let told = memory.victims(late, true);
    assert_eq!(told, [place(10)], "used before 19");
}

#[test]
fn what_could_not_leave_is_asked_once_more_before_a_part_is() {
    let mut memory = memory(100);
    keep(&mut memory, 0, 100);
    for number in 1..9 {
        keep_part(&mut memory, Time::ZERO, number);
    }
    let told = memory.victims(Time::ZERO, true);
    assert_eq!(told, [place(0)]);
    memory.spare(place(0));
    let told = memory.victims(Time::ZERO, true);
    assert_eq!(told, [place(0)], "it may be able to by now");
    memory.spare(place(0));
    let told = memory.victims(Time::ZERO, false);
    assert_eq!(told, [place(1)], "it was asked a moment ago");
}

#[test]
fn what_is_no_more_does_not_stand_by() {
    let mut memory = memory(100);
    for number in 0..4 {
        keep_part(&mut memory, Time::ZERO, number);
    }
    assert!(memory.free(place(0)).is_some());
    memory.leave(place(1));
    assert!(memory.free(place(1)).is_some());
    memory.leave(place(2));
    assert_eq!(memory.shares.first().standing_by(), 1);
    memory.stay(place(2));
    assert_eq!(
        memory.shares.first().standing_by(),
        1,
        "it is like others from now on"
    );
}

#[test]
fn a_write_that_is_given_up_leaves_nothing() {
    let mut memory = memory(100);
    let id = memory
        .admit(1000, Pin::None, TenantTag::DEFAULT)
        .expect("room");
    memory.discard(id);
    assert_eq!(memory.stats().used_bytes, 0);
    assert_eq!(memory.victims(Time::ZERO, true), []);
    let other = memory
        .admit(1000, Pin::None, TenantTag::DEFAULT)
        .expect("room");
    assert_ne!(id, other, "an id goes stale");
}

#[test]
fn how_often_a_copy_was_used_is_known_here_and_told_from_elsewhere() {
    let mut memory = memory(100);
    keep(&mut memory, 0, 100);
    for _ in 0..2 {
        let read = memory.pin(place(0)).expect("here");
        memory.unpin(read);
    }
    assert_eq!(memory.reuses(place(0)), 2);
    memory.leave(place(0));
    assert!(memory.free(place(0)).is_some());
    assert_eq!(memory.reuses(place(0)), 2, "it is remembered");
    // It is written elsewhere.
    memory.came_back(place(0).key);
    assert_eq!(memory.reuses(place(0)), 0);
    assert!(!memory.shares.first().remembers(place(0).key.low()));
    // Another one comes from there.
    keep(&mut memory, 1, 100);
    memory.was_used(place(1), 4);
    assert_eq!(memory.reuses(place(1)), 5);
    memory.was_used(place(2), 4);
    assert_eq!(memory.reuses(place(2)), 0, "it is not here");
}

#[test]
fn what_a_tenant_had_is_known_as_well() {
    let mut memory = memory(100);
    let tenant = TenantTag(7);
    let id = memory.admit(100, Pin::None, tenant).expect("room");
    memory.reside(Time::ZERO, id, place(0), Arrival::default());
    memory.was_used(place(0), 1);
    memory.leave(place(0));
    assert!(memory.free(place(0)).is_some());
    assert_eq!(memory.reuses(place(0)), 2);
    memory.came_back(place(0).key);
    assert_eq!(memory.reuses(place(0)), 0);
}
