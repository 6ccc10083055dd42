//! Several tenants in one memory: who gives when room is made.

use super::*;
use crate::credit::QUOTAS_MAX;

const A: TenantTag = TenantTag(1);
const B: TenantTag = TenantTag(2);

fn keep_of(memory: &mut Residence, tenant: TenantTag, number: u64, bytes: u32, pin: Pin) {
    let id = memory.admit(bytes, pin, tenant).expect("room");
    memory.reside(Time::ZERO, id, place(number), Arrival::default());
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

/// So many bytes, of twice as many.
fn credit(max_bytes: u64, is_last: bool) -> Credit {
    Credit {
        max_bytes,
        quota_bytes: 2 * max_bytes,
        is_last,
    }
}

#[test]
fn nobody_has_more_than_their_credit() {
    let mut memory = memory(100);
    memory.set_credit(A, Some(credit(300, false)));
    for number in 0..3 {
        keep_of(&mut memory, A, number, 100, Pin::None);
    }
    let refused = |is_last| {
        Err(NoRoom::OverCredit {
            needed_bytes: 50,
            used_bytes: 300,
            max_bytes: 300,
            is_last,
        })
    };
    assert_eq!(memory.admit(50, Pin::None, A), refused(false));
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [],
        "there may be more soon"
    );
    keep_of(&mut memory, B, 10, 100, Pin::None);
    memory.set_credit(A, Some(credit(300, true)));
    assert_eq!(memory.admit(50, Pin::None, A), refused(true));
    // It gives for itself, whatever others have.
    assert_eq!(memory.victims(Time::ZERO, true), [place(0)]);
    memory.leave(place(0));
    assert_eq!(
        memory.admit(50, Pin::None, A),
        refused(true),
        "until it is gone"
    );
    assert_eq!(
        memory.victims(Time::ZERO, true),
        [],
        "one that leaves is enough"
    );
    assert!(memory.free(place(0)).is_some());
    keep_of(&mut memory, A, 3, 50, Pin::None);
    assert_eq!(memory.charged_bytes(A), 250);
    memory.set_credit(A, None);
    keep_of(&mut memory, A, 4, 300, Pin::None);
}

#[test]
fn all_that_is_not_free_is_paid_for() {
    let mut memory = memory(100);
    memory.set_credit(A, Some(credit(300, true)));
    let arriving = memory.admit(100, Pin::None, A).expect("room");
    keep_of(&mut memory, A, 1, 100, Pin::None);
    keep_of(&mut memory, A, 2, 100, Pin::None);
    let read = memory.pin(place(1)).expect("here");
    assert_eq!(memory.free(place(1)), None, "it is read");
    assert_eq!(memory.charged_bytes(A), 300);
    assert!(memory.admit(100, Pin::None, A).is_err());
    assert!(memory.unpin(read));
    assert_eq!(memory.charged_bytes(A), 200);
    memory.discard(arriving);
    assert_eq!(memory.charged_bytes(A), 100);
}

#[test]
fn a_credit_that_is_lowered_is_evicted_down_to() {
    let mut memory = Residence::new(ShardLimits::new(100_000, 80_000, 1000).expect("limits"));
    for number in 0..5 {
        keep_of(&mut memory, A, number, 1000, Pin::None);
        keep_of(&mut memory, B, 10 + number, 1000, Pin::None);
    }
    memory.set_credit(A, Some(credit(3200, false)));
    assert_eq!(make_room(&mut memory), [0, 1]);
    assert_eq!(make_room(&mut memory), [0_u64; 0]);
    memory.set_credit(A, Some(credit(3050, true)));
    // A sixteenth is to be free, and is made as soon as less than half of it is left.
    assert_eq!(make_room(&mut memory), [2]);
    assert_eq!(make_room(&mut memory), [0_u64; 0]);
    memory.set_credit(B, Some(credit(0, true)));
    assert_eq!(make_room(&mut memory), [10, 11, 12, 13, 14]);
}

#[test]
fn what_is_pinned_for_ever_is_not_let_go_of_for_credit() {
    let mut memory = memory(100);
    memory.set_credit(A, Some(credit(200, true)));
    keep_of(&mut memory, A, 0, 100, Pin::Hard);
    keep_of(&mut memory, A, 1, 100, Pin::soft(None));
    assert!(memory.admit(100, Pin::None, A).is_err());
    assert_eq!(make_room(&mut memory), [1]);
    let refused = NoRoom::OverQuota {
        needed_bytes: 150,
        pinned_bytes: 100,
        max_bytes: 200,
    };
    assert_eq!(memory.admit(150, Pin::None, A), Err(refused));
    assert!(!refused.is_retryable());
    assert_eq!(make_room(&mut memory), [0_u64; 0]);
    assert!(memory.free(place(0)).is_some());
    assert!(memory.admit(150, Pin::None, A).is_ok());
}

#[test]
fn what_is_above_a_credit_or_a_quota_has_nothing_leave_for_it() {
    let mut memory = memory(100);
    memory.set_credit(A, Some(credit(200, true)));
    keep_of(&mut memory, A, 0, 100, Pin::None);
    let above = memory.admit(201, Pin::None, A);
    assert!(matches!(above, Err(NoRoom::OverCredit { .. })));
    assert_eq!(make_room(&mut memory), [0_u64; 0]);
    let too_large = NoRoom::TooLarge {
        needed_bytes: 401,
        max_bytes: 400,
    };
    assert_eq!(memory.admit(401, Pin::None, A), Err(too_large));
    assert!(!too_large.is_retryable());
}

#[test]
fn those_with_quotas_have_shares_of_their_own() {
    let mut memory = memory(1000);
    let count = TENANTS_MAX as u64;
    for tenant in 0..count {
        keep_of(&mut memory, TenantTag(tenant), tenant, 1, Pin::None);
    }
    for tenant in count..count + QUOTAS_MAX as u64 {
        memory.set_credit(TenantTag(tenant), Some(credit(10, true)));
        keep_of(&mut memory, TenantTag(tenant), tenant, 1, Pin::None);
        assert_eq!(memory.charged_bytes(TenantTag(tenant)), 1);
    }
    assert_eq!(memory.shares.count(), TENANTS_MAX + QUOTAS_MAX);
    // All shares are taken: it stays among others, and without credit.
    let late = TenantTag(1000);
    memory.set_credit(late, Some(credit(10, true)));
    keep_of(&mut memory, late, 1000, 20, Pin::None);
    assert_eq!(memory.shares.count(), TENANTS_MAX + QUOTAS_MAX);
    assert_eq!(memory.charged_bytes(late), 0);
    // One that has lost its quota makes room for it, as soon as it has nothing.
    memory.set_credit(TenantTag(count), None);
    let unbound = memory.admit(20, Pin::None, late).expect("it has no share");
    memory.discard(unbound);
    assert!(memory.free(place(count)).is_some());
    assert!(memory.admit(20, Pin::None, late).is_err());
    // Or as soon as it has none, if it has nothing already.
    assert!(memory.free(place(count + 1)).is_some());
    let later = TenantTag(1001);
    memory.set_credit(later, Some(credit(10, true)));
    assert!(memory.admit(20, Pin::None, later).is_ok());
    memory.set_credit(TenantTag(count + 1), None);
    assert!(memory.admit(20, Pin::None, later).is_err());
}
