//! Several tenants in one memory: who gives when room is made.

use super::*;

const A: TenantTag = TenantTag(1);
const B: TenantTag = TenantTag(2);

fn keep_of(memory: &mut Residence, tenant: TenantTag, number: u64, bytes: u32, pin: Pin) {
    let id = memory.admit(bytes, pin).expect("room");
    let arrival = Arrival {
        tenant,
        ..Arrival::default()
    };
    memory.reside(Time::ZERO, id, place(number), arrival);
}

/// All that is told to leave leaves at once.
fn make_room(memory: &mut Residence) -> Vec<u64> {
    let victims = memory.victims(Time::ZERO, true);
    for &victim in &victims {
        memory.leave(victim);
        assert!(memory.free(victim).is_some());
    }
    victims
        .iter()
        .map(|victim| victim.version.sequence)
        .collect()
}

#[test]
fn who_has_most_gives_first() {
    let mut memory = memory(100);
    for number in 0..3 {
        keep_of(&mut memory, A, number, 100, Pin::None);
    }
    for number in 10..17 {
        keep_of(&mut memory, B, number, 100, Pin::None);
    }
    // What A has is older, and less than half.
    assert_eq!(make_room(&mut memory), [10, 11]);
    for number in 20..22 {
        keep_of(&mut memory, A, number, 100, Pin::None);
    }
    // Both have five: of two that have as much, the one gives that came first.
    assert_eq!(make_room(&mut memory), [0, 12]);
    // The default tenant is one of them.
    for number in 30..32 {
        keep_of(&mut memory, TenantTag::DEFAULT, number, 100, Pin::None);
    }
    assert_eq!(make_room(&mut memory), [1, 13]);
}

#[test]
fn one_that_is_alone_has_all() {
    let mut memory = memory(100);
    keep_of(&mut memory, A, 0, 100, Pin::None);
    assert!(memory.free(place(0)).is_some());
    for number in 1..11 {
        keep_of(&mut memory, B, number, 100, Pin::None);
    }
    assert_eq!(make_room(&mut memory), [1, 2]);
}

#[test]
fn shares_are_of_entries_where_these_are_scarce() {
    let mut memory = Residence::new(ShardLimits::new(1_000_000, 800_000, 10).expect("limits"));
    for number in 0..3 {
        keep_of(&mut memory, A, number, 1000, Pin::None);
    }
    for number in 10..17 {
        keep_of(&mut memory, B, number, 10, Pin::None);
    }
    let told = make_room(&mut memory);
    assert!(!told.is_empty() && told.iter().all(|number| *number >= 10));
}

#[test]
fn pins_hold_within_a_share() {
    let mut memory = memory(100);
    for number in 0..7 {
        keep_of(&mut memory, A, number, 100, Pin::soft(None));
    }
    for number in 10..13 {
        keep_of(&mut memory, B, number, 100, Pin::None);
    }
    // A has pinned more than half: that is no reason for B to have less.
    assert_eq!(make_room(&mut memory), [0, 1]);
    let mut memory = self::memory(100);
    for number in 0..7 {
        let pin = if number < 3 {
            Pin::soft(None)
        } else {
            Pin::None
        };
        keep_of(&mut memory, A, number, 100, pin);
    }
    for number in 10..13 {
        keep_of(&mut memory, B, number, 100, Pin::None);
    }
    // Among A's own they hold.
    assert_eq!(make_room(&mut memory), [3, 4]);
}

#[test]
fn what_never_leaves_does_not_whoever_has_it() {
    let mut memory = memory(100);
    for number in 0..4 {
        keep_of(&mut memory, A, number, 100, Pin::Hard);
    }
    keep_of(&mut memory, A, 4, 250, Pin::None);
    keep_of(&mut memory, B, 10, 300, Pin::None);
    // More than A's share is gone with the one that may leave; then it is B's turn.
    assert_eq!(make_room(&mut memory), [4]);
    keep_of(&mut memory, B, 11, 300, Pin::None);
    assert_eq!(make_room(&mut memory), [10]);
}

#[test]
fn what_stays_after_all_counts_again() {
    let mut memory = memory(100);
    for number in 0..4 {
        keep_of(&mut memory, A, number, 100, Pin::None);
    }
    for number in 10..16 {
        keep_of(&mut memory, B, number, 100, Pin::None);
    }
    assert_eq!(memory.victims(Time::ZERO, true), [place(10), place(11)]);
    memory.leave(place(10));
    memory.spare(place(11));
    assert_eq!(memory.victims(Time::ZERO, true), [place(12)]);
    memory.leave(place(12));
    memory.stay(place(10));
    // B has five of nine again.
    assert_eq!(memory.victims(Time::ZERO, true), [place(13)]);
}

#[test]
fn so_many_tenants_have_shares_and_others_that_of_the_default_one() {
    let mut memory = memory(1000);
    let count = TENANTS_MAX as u64;
    for tenant in 0..count + 3 {
        keep_of(&mut memory, TenantTag(tenant), tenant, 1, Pin::None);
    }
    assert_eq!(memory.shares.count(), TENANTS_MAX);
    // The last three came too late for one of their own, so theirs and the default tenant's is the largest.
    memory.want(1000 - 800 + u32::try_from(count).expect("small"));
    let told = memory.victims(Time::ZERO, true);
    assert_eq!(told[..3], [place(0), place(count), place(count + 1)]);
    // Who has nothing makes room for another.
    assert!(memory.free(place(5)).is_some());
    keep_of(&mut memory, TenantTag(count), 100, 1, Pin::None);
    assert_eq!(memory.shares.count(), TENANTS_MAX);
    let id = memory.find(place(100)).expect("here");
    let share = memory.slots[id.slot_index as usize].share;
    assert!(share != ShareId::default());
}
