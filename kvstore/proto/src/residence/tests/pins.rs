//! What outlasts others, call by call.

use super::*;

const LATE: Time = Time::from_ns(60_000_000_000);

fn soft(ttl: Duration) -> Pin {
    Pin::soft(Some(ttl))
}

fn keep_pinned(memory: &mut Residence, number: u64, pin: Pin) {
    let id = memory.admit(100, pin, TenantTag::DEFAULT).expect("room");
    memory.reside(Time::ZERO, id, place(number), Arrival::default());
}

/// What is told when all memory is wanted, in order.
fn told(memory: &mut Residence, now: Time) -> Vec<u64> {
    assert!(
        memory.admit(1000, Pin::None, TenantTag::DEFAULT).is_err(),
        "all is wanted"
    );
    let told = memory.victims(now, true);
    told.iter().map(|place| place.version.sequence).collect()
}

#[test]
fn pinned_copies_leave_after_all_others_or_never() {
    let mut memory = memory(100);
    keep_pinned(&mut memory, 0, Pin::Hard);
    keep_pinned(&mut memory, 1, soft(Duration::from_secs(60)));
    keep_pinned(&mut memory, 2, soft(Duration::from_secs(50)));
    keep_part(&mut memory, Time::ZERO, 3);
    keep(&mut memory, 4, 100);
    keep(&mut memory, 5, 100);
    let read = memory.pin(place(1)).expect("here");
    assert!(!memory.unpin(read));
    let told = told(&mut memory, Time::ZERO);
    assert_eq!(
        told,
        [4, 5, 3, 2, 1],
        "the one that was used last goes last"
    );
}

#[test]
fn a_pin_ends_with_its_time_however_often_it_was_read() {
    let mut memory = memory(100);
    keep_pinned(&mut memory, 1, soft(Duration::from_secs(60)));
    keep_pinned(&mut memory, 2, soft(Duration::from_secs(61)));
    assert_eq!(
        memory.pin_of(Time::ZERO, place(1)),
        soft(Duration::from_secs(60))
    );
    assert_eq!(memory.pin_of(LATE, place(1)), Pin::None);
    assert_eq!(memory.pin_of(LATE, place(2)), soft(Duration::from_secs(1)));
    let read = memory.pin(place(1)).expect("here");
    assert!(!memory.unpin(read));
    keep(&mut memory, 3, 100);
    let told = told(&mut memory, LATE);
    assert_eq!(told, [1, 3, 2], "the first one is as others");
}

#[test]
fn what_cannot_leave_or_stays_is_pinned_as_before() {
    let mut memory = memory(100);
    keep_pinned(&mut memory, 1, soft(Duration::from_secs(60)));
    keep_pinned(&mut memory, 2, soft(Duration::from_secs(120)));
    assert_eq!(told(&mut memory, Time::ZERO), [1, 2]);
    memory.spare(place(1));
    memory.leave(place(2));
    memory.stay(place(2));
    keep(&mut memory, 3, 100);
    keep(&mut memory, 4, 100);
    let first = told(&mut memory, Time::ZERO);
    assert_eq!(first[..2], [3, 4], "neither is as others");
    assert_eq!(first[2..], [2], "the other one was spared");
    memory.spare(place(2));
    let again = told(&mut memory, LATE);
    assert_eq!(again, [1, 2], "told again, as there is nothing else");
}

#[test]
fn what_is_pinned_for_ever_is_bounded_until_it_is_removed() {
    let mut memory = memory(100);
    for number in 0..4 {
        keep_pinned(&mut memory, number, Pin::Hard);
    }
    let refused = Err(NoRoom::Pinned {
        needed_bytes: 100,
        pinned_bytes: 400,
        max_bytes: 400,
    });
    assert_eq!(memory.admit(100, Pin::Hard, TenantTag::DEFAULT), refused);
    assert_eq!(memory.stats().refused, 1);
    assert!(told(&mut memory, Time::ZERO).is_empty(), "none leaves");
    assert!(memory.free(place(1)).is_some());
    let given_up = memory
        .admit(100, Pin::Hard, TenantTag::DEFAULT)
        .expect("room");
    memory.discard(given_up);
    keep_pinned(&mut memory, 5, Pin::Hard);
    assert_eq!(memory.stats().hard_pinned_bytes, 400);
}
