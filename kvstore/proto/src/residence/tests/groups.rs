//! Copies that are of no use any more, since others of their group have left.

use super::*;
use crate::retention::GroupId;

/// Makes all but `bytes` of these 1000 wanted.
fn told(memory: &mut Residence, bytes: u32) -> Vec<CopyPlace> {
    assert!(
        memory
            .admit(1000 - bytes, Pin::None, TenantTag::DEFAULT)
            .is_err()
    );
    memory.victims(Time::ZERO, true)
}

#[test]
fn what_is_abandoned_leaves_before_all_others_in_that_order() {
    let mut memory = memory(100);
    for number in 0..8 {
        keep(&mut memory, number, 100);
    }
    assert!(memory.abandon(Time::ZERO, place(6)));
    assert!(memory.abandon(Time::ZERO, place(4)));
    assert!(!memory.abandon(Time::ZERO, place(6)), "it is so already");
    assert!(!memory.abandon(Time::ZERO, place(99)), "it is not here");
    assert_eq!(told(&mut memory, 400), [6, 4, 0, 1].map(place));
}

#[test]
fn a_use_takes_back_what_was_abandoned() {
    let mut memory = memory(100);
    for number in 0..8 {
        keep(&mut memory, number, 100);
    }
    memory.abandon(Time::ZERO, place(6));
    memory.abandon(Time::ZERO, place(7));
    let read = memory.pin(place(6)).expect("here");
    memory.unpin(read);
    assert_eq!(told(&mut memory, 600), [7, 0].map(place), "6 is the latest");
}

#[test]
fn who_abandons_does_not_ask_for_room() {
    let mut memory = memory(100);
    keep(&mut memory, 0, 100);
    memory.abandon(Time::ZERO, place(0));
    assert_eq!(memory.victims(Time::ZERO, true), [], "there is room");
    assert!(memory.pin(place(0)).is_some());
}

#[test]
fn what_cannot_leave_now_is_not_abandoned() {
    let mut memory = memory(100);
    let id = memory
        .admit(100, Pin::Hard, TenantTag::DEFAULT)
        .expect("room");
    memory.reside(Time::ZERO, id, place(0), Arrival::default());
    keep_part(&mut memory, Time::ZERO, 1);
    for number in 2..8 {
        keep(&mut memory, number, 100);
    }
    for number in [0, 1] {
        assert!(
            !memory.abandon(Time::ZERO, place(number)),
            "{number} outlasts others"
        );
    }
    assert_eq!(told(&mut memory, 700), [place(2)]);
    memory.leave(place(2));
    assert!(!memory.abandon(Time::ZERO, place(2)), "it leaves already");
    assert!(memory.free(place(2)).is_some());
    assert!(!memory.abandon(Time::ZERO, place(2)), "it has left");
}

#[test]
fn what_has_stood_by_or_was_pinned_is_abandoned_like_others() {
    let mut memory = memory(100);
    let late = Time::ZERO + STANDS_BY;
    let id = memory
        .admit(100, Pin::soft(Some(STANDS_BY)), TenantTag::DEFAULT)
        .expect("room");
    memory.reside(Time::ZERO, id, place(0), Arrival::default());
    keep_part(&mut memory, Time::ZERO, 1);
    for number in 2..9 {
        keep(&mut memory, number, 100);
    }
    assert!(memory.abandon(late, place(1)));
    assert!(memory.abandon(late, place(0)));
    assert_eq!(memory.victims(late, true), [place(1)]);
}

#[test]
fn what_was_abandoned_and_cannot_leave_is_spared_like_others() {
    let mut memory = memory(100);
    for number in 0..9 {
        keep(&mut memory, number, 100);
    }
    memory.abandon(Time::ZERO, place(5));
    assert_eq!(memory.victims(Time::ZERO, true), [place(5)]);
    memory.spare(place(5));
    assert!(
        !memory.abandon(Time::ZERO, place(5)),
        "it is asked again later"
    );
    assert_eq!(memory.victims(Time::ZERO, true), [place(0)]);
}

#[test]
fn the_slot_of_what_was_abandoned_is_another_copys_later() {
    let mut memory = memory(100);
    for number in 0..8 {
        keep(&mut memory, number, 100);
    }
    memory.abandon(Time::ZERO, place(7));
    assert!(memory.free(place(7)).is_some(), "it is removed");
    keep(&mut memory, 8, 100);
    assert_eq!(told(&mut memory, 700), [place(0)], "8 has its slot");
}

#[test]
fn names_of_groups_are_told_apart() {
    assert_eq!(GroupId::of(b"a"), GroupId::of(b"a"));
    assert_ne!(GroupId::of(b"a"), GroupId::of(b""));
}
