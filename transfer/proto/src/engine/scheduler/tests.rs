use std::time::Duration;

use super::*;

const MS: Duration = Duration::from_millis(1);
const KIB: u64 = 1024;

pub(super) fn at(ms: u32) -> Time {
    Time::ZERO + MS * (ms + 1)
}

pub(super) fn read(len_bytes: u64) -> Request {
    Request {
        way: Way::Read,
        len_bytes,
    }
}

pub(super) fn write(len_bytes: u64) -> Request {
    Request {
        way: Way::Write,
        len_bytes,
    }
}

pub(super) fn options(deadline: Time) -> TransferOptions {
    TransferOptions {
        priority: Priority::Foreground,
        deadline,
        has_note: false,
    }
}

/// Everything that is to be done now.
pub(super) fn drain(scheduler: &mut Scheduler, now: Time) -> Vec<Action> {
    std::iter::from_fn(|| scheduler.next_action(now)).collect()
}

pub(super) fn connected(rails: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerOptions::default(), rails);
    let warm = scheduler.submit([read(1)], options(Time::MAX), at(0));
    let warm = warm.expect("room");
    assert_eq!(
        drain(&mut scheduler, at(0)).len(),
        rails,
        "all are connected"
    );
    for rail in 0..rails {
        assert!(scheduler.on_connected(rail, 1, at(0)));
    }
    let sent = sent(&drain(&mut scheduler, at(0)));
    scheduler.on_answered(sent[0].0, at(0));
    let over = drain(&mut scheduler, at(0));
    assert_eq!(finished(&over), [(warm, vec![])]);
    scheduler
}

pub(super) fn sent(actions: &[Action]) -> Vec<(SliceId, usize)> {
    let sent = actions.iter().filter_map(|action| match action {
        Action::Send { slice, rail, .. } => Some((*slice, *rail)),
        _ => None,
    });
    sent.collect()
}

pub(super) type Failed = (Option<u32>, Cause, Effect);

pub(super) fn finished(actions: &[Action]) -> Vec<(TransferId, Vec<Failed>)> {
    let finished = actions.iter().filter_map(|action| match action {
        Action::Finished { transfer, outcome } => {
            let failures = outcome.failures.iter();
            let failures = failures.map(|found| (found.request, found.cause, found.effect));
            Some((*transfer, failures.collect()))
        }
        _ => None,
    });
    finished.collect()
}

#[test]
fn a_batch_of_nothing_finishes_at_once() {
    let mut scheduler = Scheduler::new(SchedulerOptions::default(), 1);
    let id = scheduler.submit([read(0)], options(Time::MAX), at(0));
    let actions = drain(&mut scheduler, at(0));
    assert_eq!(finished(&actions), [(id.expect("room"), vec![])]);
    assert_eq!(actions.len(), 1, "no rail is needed for it");
}

#[test]
fn a_lost_read_goes_another_way_at_once() {
    let mut scheduler = connected(2);
    let id = scheduler
        .submit([read(100)], options(at(5000)), at(1))
        .expect("room");
    let (slice, rail) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(2));
    let again = sent(&drain(&mut scheduler, at(2)));
    assert_eq!(
        again.iter().map(|sent| sent.1).collect::<Vec<_>>(),
        [1 - rail]
    );
    scheduler.on_answered(again[0].0, at(3));
    assert_eq!(finished(&drain(&mut scheduler, at(3))), [(id, vec![])]);
}

#[test]
fn a_lost_write_goes_another_way_after_its_fence() {
    let mut scheduler = connected(2);
    let id = scheduler
        .submit([write(100)], options(at(5000)), at(1))
        .expect("room");
    let (slice, rail) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(2));
    let other = 1 - rail;
    let actions = drain(&mut scheduler, at(2));
    let fence = Action::Fence {
        rail,
        connection: 1,
        via: other,
    };
    assert_eq!(
        actions,
        std::slice::from_ref(&fence),
        "nothing is sent before"
    );
    scheduler.on_fenced(rail, 1, false, at(3));
    let asked_again = |actions: Vec<Action>| actions.contains(&fence);
    assert!(!asked_again(drain(&mut scheduler, at(12))), "after a pause");
    assert!(asked_again(drain(&mut scheduler, at(13))));
    scheduler.on_fenced(rail, 1, true, at(14));
    let again = sent(&drain(&mut scheduler, at(14)));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].1, other);
    let (slice, _) = scheduler.slice(again[0].0).expect("under way");
    assert_eq!((slice.attempts, slice.len_bytes()), (1, 100));
    scheduler.on_answered(again[0].0, at(15));
    assert_eq!(finished(&drain(&mut scheduler, at(15))), [(id, vec![])]);
}

#[test]
fn the_carrier_of_a_fence_may_be_lost_too() {
    let mut scheduler = connected(2);
    let id = scheduler.submit([write(100)], options(at(5000)), at(1));
    let (slice, rail) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(2));
    assert_eq!(drain(&mut scheduler, at(2)).len(), 1);
    scheduler.on_rail_failed(1 - rail, 1, at(3));
    assert_eq!(drain(&mut scheduler, at(3)), []);
    let due = scheduler.poll_timeout(at(3)).expect("a pause ends");
    assert!(due > at(3) && due <= at(20), "{due:?}");
    let connect = drain(&mut scheduler, at(13));
    assert_eq!(connect.len(), 2, "both are tried: {connect:?}");
    assert!(scheduler.on_connected(rail, 2, at(14)));
    let fence = drain(&mut scheduler, at(14));
    assert_eq!(
        fence,
        [Action::Fence {
            rail,
            connection: 1,
            via: rail
        }],
        "over the rail's own next connection"
    );
    assert!(!scheduler.on_connected(rail, 1, at(14)), "a stale answer");
    scheduler.on_fenced(rail, 1, true, at(15));
    let (slice, _) = sent(&drain(&mut scheduler, at(15)))[0];
    scheduler.on_answered(slice, at(16));
    let over = drain(&mut scheduler, at(16));
    assert_eq!(finished(&over), [(id.expect("room"), vec![])]);
}

#[test]
fn at_its_deadline_a_transfer_stops_its_reads_and_waits_for_its_writes() {
    let mut scheduler = connected(1);
    let requests = [read(100), write(100), write(3_000 * KIB)];
    let id = scheduler
        .submit(requests, options(at(100)), at(1))
        .expect("room");
    let under_way = sent(&drain(&mut scheduler, at(1)));
    assert!(under_way.len() > 2, "the window is filled");
    assert_eq!(scheduler.poll_timeout(at(1)), Some(at(100)));
    scheduler.on_timeout(at(100));
    let slice = under_way[0].0;
    assert_eq!(drain(&mut scheduler, at(100)), [Action::Stop { slice }]);
    scheduler.on_stopped(slice);
    for &(slice, _) in &under_way[1..] {
        assert_eq!(drain(&mut scheduler, at(101)), [], "writes are waited for");
        scheduler.on_answered(slice, at(101));
    }
    let late = Cause::DeadlineExceeded;
    let failures = [0, 1, 2].map(|request| (Some(request), late, Effect::Partly));
    assert_eq!(
        finished(&drain(&mut scheduler, at(102))),
        [(id, failures.to_vec())],
        "what was answered afterwards counts as failed: it was told so"
    );
    assert_eq!(scheduler.transfers(), 0);
}

#[test]
fn what_cannot_be_settled_is_said_to_be_so() {
    let mut scheduler = connected(1);
    let requests = [write(100), write(10 * 1024 * KIB)];
    let id = scheduler
        .submit(requests, options(at(500)), at(1))
        .expect("room");
    let under_way = sent(&drain(&mut scheduler, at(1)));
    scheduler.on_timeout(at(500));
    assert_eq!(drain(&mut scheduler, at(500)), []);
    // The rail stalls, and is closed; nobody answers any more.
    scheduler.on_timeout(at(1_001));
    let close = Action::Close {
        rail: 0,
        connection: 1,
        cause: CloseCause::Stalled,
    };
    assert!(drain(&mut scheduler, at(1_001)).contains(&close));
    for (slice, _) in under_way {
        scheduler.on_lost(slice, at(1_002));
    }
    scheduler.on_timeout(at(2_499));
    assert_eq!(finished(&drain(&mut scheduler, at(2_499))), []);
    scheduler.on_timeout(at(2_500));
    let may = |request| {
        (
            Some(request),
            Cause::DeadlineExceeded,
            Effect::MayStillChange,
        )
    };
    assert_eq!(
        finished(&drain(&mut scheduler, at(2_500))),
        [(id, vec![may(0), may(1)])]
    );
    // The fence is still wanted, for whoever writes there next.
    scheduler.on_rail_failed(0, 2, at(2_501));
    scheduler.on_fenced(0, 1, true, at(2_600));
    assert_eq!(scheduler.slices.len(), 0);
}

#[test]
fn without_a_rail_a_transfer_fails_as_unreachable() {
    let mut scheduler = Scheduler::new(SchedulerOptions::default(), 1);
    let id = scheduler
        .submit([read(5)], options(at(50)), at(0))
        .expect("room");
    assert_eq!(drain(&mut scheduler, at(0)).len(), 1);
    scheduler.on_rail_failed(0, 1, at(1));
    scheduler.on_timeout(at(50));
    let failure = (Some(0), Cause::Unreachable, Effect::Untouched);
    assert_eq!(
        finished(&drain(&mut scheduler, at(50))),
        [(id, vec![failure])]
    );
    assert_eq!(
        scheduler.poll_timeout(at(50)),
        None,
        "and the rail is left alone"
    );
}

#[test]
fn a_refusal_fails_its_request_and_spares_the_others() {
    let mut scheduler = connected(1);
    let requests = [read(10), read(20), read(30)];
    let id = scheduler
        .submit(requests, options(Time::MAX), at(1))
        .expect("room");
    let (slice, _) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_refused(slice, Refusal::Stale, 1, at(2));
    let again = sent(&drain(&mut scheduler, at(2)));
    let lens: Vec<u64> = again
        .iter()
        .filter_map(|&(slice, _)| Some(scheduler.slice(slice)?.0.len_bytes()))
        .collect();
    assert_eq!(lens, [40]);
    scheduler.on_answered(again[0].0, at(3));
    let failure = (Some(1), Cause::Refused(Refusal::Stale), Effect::Partly);
    assert_eq!(
        finished(&drain(&mut scheduler, at(3))),
        [(id, vec![failure])]
    );
}

#[test]
fn a_device_that_never_copies_fails_its_request_and_spares_the_others() {
    let mut scheduler = connected(1);
    let requests = [write(10), write(20), write(30)];
    let submitted = scheduler.submit(requests, options(Time::MAX), at(1));
    let id = submitted.expect("room");
    let (mut now, mut sends, mut done) = (1, 0, Vec::new());
    let ended = loop {
        let actions = drain(&mut scheduler, at(now));
        for (slice, _) in sent(&actions) {
            sends += 1;
            let (found, _) = scheduler.slice(slice).expect("it is under way");
            let part = found.parts.iter().position(|part| part.request == 1);
            let requests: Vec<u32> = found.parts.iter().map(|part| part.request).collect();
            match part {
                Some(part) => scheduler.on_refused(slice, Refusal::Device, part, at(now)),
                None => {
                    done.extend(requests);
                    scheduler.on_answered(slice, at(now));
                }
            }
        }
        let ended = finished(&actions);
        if !ended.is_empty() {
            break ended;
        }
        now += 1;
        assert!(now < 10_000, "it ends");
    };
    let failure = (Some(1), Cause::Refused(Refusal::Device), Effect::Partly);
    assert_eq!(ended, [(id, vec![failure])]);
    assert_eq!(
        (sends, done),
        (9, vec![0, 2]),
        "asked for eight times, and the rest"
    );
}

#[test]
fn a_write_that_may_still_land_is_not_sent_again_and_a_read_is() {
    for (request, attempts) in [(write(10), 1), (read(10), 4)] {
        let is_write = request.way == Way::Write;
        let mut scheduler = connected(1);
        let submitted = scheduler.submit([request], options(Time::MAX), at(1));
        let id = submitted.expect("room");
        let (mut now, mut sends) = (1, 0);
        let ended = loop {
            let actions = drain(&mut scheduler, at(now));
            for (slice, _) in sent(&actions) {
                sends += 1;
                scheduler.on_refused(slice, Refusal::Detached, 0, at(now));
            }
            let ended = finished(&actions);
            if !ended.is_empty() {
                break ended;
            }
            now += 1;
            assert!(now < 10_000, "it ends");
        };
        let effect = if is_write {
            Effect::MayStillChange
        } else {
            Effect::Partly
        };
        let failure = (Some(0), Cause::Refused(Refusal::Detached), effect);
        assert_eq!(ended, [(id, vec![failure])]);
        assert!(
            sends >= attempts && (sends == 1) == is_write,
            "{sends} times"
        );
    }
}

#[test]
fn bytes_that_were_refused_do_not_make_a_rail_fast() {
    let mut scheduler = connected(1);
    let before = scheduler.rails()[0].bytes_per_second();
    for _ in 0..5 {
        let submitted = scheduler.submit([read(64 * KIB)], options(Time::MAX), at(1));
        submitted.expect("room");
        let (slice, _) = sent(&drain(&mut scheduler, at(1)))[0];
        scheduler.on_refused(slice, Refusal::Stale, 0, at(1) + Duration::from_micros(1));
        drain(&mut scheduler, at(1));
    }
    assert_eq!(scheduler.rails()[0].bytes_per_second(), before);
}

#[test]
fn damage_and_business_are_tried_again_after_a_pause_and_not_for_ever() {
    for (refusal, cause) in [
        (Refusal::Corrupt, Cause::Corrupt),
        (Refusal::Busy, Cause::Refused(Refusal::Busy)),
    ] {
        let mut scheduler = connected(1);
        let id = scheduler
            .submit([write(9)], options(Time::MAX), at(1))
            .expect("room");
        let attempts_max = SchedulerOptions::default().attempts_max;
        let mut now = at(1);
        for _ in 0..attempts_max {
            let (slice, _) = sent(&drain(&mut scheduler, now))[0];
            scheduler.on_refused(slice, refusal, 0, now);
            let pause = scheduler.poll_timeout(now);
            now = pause.unwrap_or(now);
        }
        assert_eq!(
            finished(&drain(&mut scheduler, now)),
            [(id, vec![(Some(0), cause, Effect::Partly)])]
        );
    }
}

#[test]
fn who_is_busy_again_and_again_is_given_more_and_more_time() {
    for (refusal, pauses_ms) in [
        (Refusal::Busy, [1, 4, 16, 64, 256, 1024, 1024]),
        (Refusal::Corrupt, [1; 7]),
    ] {
        let mut scheduler = connected(1);
        let submitted = scheduler.submit([write(9)], options(Time::MAX), at(1));
        submitted.expect("room");
        let mut now = at(1);
        for pause_ms in pauses_ms {
            let (slice, _) = sent(&drain(&mut scheduler, now))[0];
            scheduler.on_refused(slice, refusal, 0, now);
            let pause = Duration::from_millis(pause_ms);
            assert_eq!(scheduler.poll_timeout(now), Some(now + pause));
            now = now + pause;
        }
    }
}

#[test]
fn a_slice_that_is_refused_for_the_first_time_makes_no_other_come_again_sooner() {
    let mut scheduler = connected(1);
    let submitted = scheduler.submit([read(9), write(9)], options(Time::MAX), at(1));
    submitted.expect("room");
    let both = sent(&drain(&mut scheduler, at(1)));
    let [(mut slice, _), (other, _)] = both[..] else {
        panic!("two slices: {both:?}");
    };
    for (now, next) in [(1, 2), (2, 6), (6, 22)] {
        scheduler.on_refused(slice, Refusal::Busy, 0, at(now));
        assert_eq!(scheduler.poll_timeout(at(now)), Some(at(next)));
        if next < 22 {
            slice = sent(&drain(&mut scheduler, at(next)))[0].0;
        }
    }
    scheduler.on_refused(other, Refusal::Busy, 0, at(6));
    assert_eq!(scheduler.poll_timeout(at(6)), Some(at(22)));
    assert_eq!(sent(&drain(&mut scheduler, at(22))).len(), 2);
}

#[test]
fn a_notification_goes_with_the_last_write_or_after_the_last_read() {
    for requests in [vec![write(100)], vec![read(100)], vec![]] {
        let mut scheduler = connected(1);
        let asked = TransferOptions {
            has_note: true,
            ..options(Time::MAX)
        };
        let goes_along = requests.iter().any(|asked| asked.way == Way::Write);
        let separate = usize::from(!goes_along);
        let frames = requests.len() + separate;
        let id = scheduler.submit(requests, asked, at(1)).expect("room");
        let mut carried = Vec::new();
        for frame in 0..frames {
            let now = 1 + 2 * u32::try_from(frame).expect("few");
            let (slice, _) = sent(&drain(&mut scheduler, at(now)))[0];
            carried.push(scheduler.slice(slice).expect("under way").1);
            // Once more, after a refusal: the carrier carries again.
            scheduler.on_refused(slice, Refusal::Busy, 0, at(now));
            let (slice, _) = sent(&drain(&mut scheduler, at(now + 1)))[0];
            assert_eq!(
                scheduler.slice(slice).map(|found| found.1),
                carried.last().copied()
            );
            scheduler.on_answered(slice, at(now + 1));
        }
        assert_eq!(carried.iter().filter(|&&carries| carries).count(), 1);
        assert!(carried[frames - 1], "{carried:?}");
        assert_eq!(finished(&drain(&mut scheduler, at(9))), [(id, vec![])]);
    }
}

#[test]
fn a_notification_by_itself_is_not_tried_for_ever_either() {
    let mut scheduler = connected(1);
    let asked = TransferOptions {
        has_note: true,
        ..options(Time::MAX)
    };
    let id = scheduler.submit([], asked, at(1)).expect("room");
    let mut now = at(1);
    for _ in 0..SchedulerOptions::default().attempts_max {
        let (slice, _) = sent(&drain(&mut scheduler, now))[0];
        scheduler.on_refused(slice, Refusal::Busy, 0, now);
        now = scheduler.poll_timeout(now).unwrap_or(now);
    }
    let failure = (None, Cause::Refused(Refusal::Busy), Effect::Partly);
    assert_eq!(finished(&drain(&mut scheduler, now)), [(id, vec![failure])]);
}

#[test]
fn a_notification_that_was_lost_each_time_may_have_been_delivered() {
    let once = SchedulerOptions {
        attempts_max: 1,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(once, 2);
    scheduler.adopt(0, at(0));
    let asked = TransferOptions {
        has_note: true,
        ..options(Time::MAX)
    };
    let id = scheduler.submit([], asked, at(1)).expect("room");
    let (slice, _) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(2));
    scheduler.on_fenced(0, 1, true, at(2));
    assert_eq!(
        finished(&drain(&mut scheduler, at(2))),
        [(id, vec![(None, Cause::Lost, Effect::Partly)])]
    );
}

#[test]
fn a_notification_fails_once() {
    for is_refused in [true, false] {
        let once = SchedulerOptions {
            attempts_max: 1,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(once, 1);
        scheduler.adopt(0, at(0));
        let asked = TransferOptions {
            has_note: true,
            ..options(Time::MAX)
        };
        let id = scheduler.submit([], asked, at(1)).expect("room");
        let (slice, _) = sent(&drain(&mut scheduler, at(1)))[0];
        scheduler.cancel(id, at(2));
        if is_refused {
            scheduler.on_refused(slice, Refusal::Stale, 0, at(3));
        } else {
            scheduler.on_lost(slice, at(3));
            scheduler.on_fenced(0, 1, true, at(3));
        }
        let failure = (None, Cause::Cancelled, Effect::Partly);
        assert_eq!(
            finished(&drain(&mut scheduler, at(3))),
            [(id, vec![failure])]
        );
    }
}

#[test]
fn background_waits_but_does_not_starve() {
    let mut scheduler = connected(1);
    let background = TransferOptions {
        priority: Priority::Background,
        ..options(Time::MAX)
    };
    let slow = scheduler
        .submit([read(1024 * 1024 * KIB)], background, at(1))
        .expect("room");
    let fast = scheduler.submit([read(1024 * 1024 * KIB)], options(Time::MAX), at(1));
    let fast = fast.expect("room");
    let mut counts = [0, 0];
    for _ in 0..160 {
        for action in drain(&mut scheduler, at(1)) {
            let Action::Send {
                slice, transfer, ..
            } = action
            else {
                panic!("{action:?}")
            };
            counts[usize::from(transfer == slow)] += 1;
            assert!(transfer == slow || transfer == fast);
            scheduler.on_answered(slice, at(1));
        }
    }
    let [urgent, other] = counts;
    assert!(
        other * 15 <= urgent + 15 && other * 17 >= urgent,
        "{counts:?}"
    );
}

#[test]
fn rails_finish_together_and_a_slow_one_is_left_out_at_the_end() {
    let mut scheduler = connected(2);
    // Bytes per microsecond: rail 1 turns out to be ten times slower.
    let rates = [1_000, 100];
    let total = 40 * 1024 * KIB;
    let id = scheduler.submit([read(total)], options(Time::MAX), at(1));
    let mut free_ns = [0_u64; 2];
    let mut due: Vec<(u64, SliceId)> = Vec::new();
    let mut bytes = [0; 2];
    let mut now_ns = 0;
    let time = |ns: u64| at(1) + Duration::from_nanos(ns);
    let over = loop {
        let mut over = Vec::new();
        for action in drain(&mut scheduler, time(now_ns)) {
            if let Action::Send { slice, rail, .. } = action {
                let len = scheduler.slice(slice).expect("under way").0.len_bytes();
                free_ns[rail] = free_ns[rail].max(now_ns) + len * 1000 / rates[rail];
                due.push((free_ns[rail], slice));
                bytes[rail] += len;
            } else {
                over.push(action);
            }
        }
        if !over.is_empty() {
            break over;
        }
        due.sort_unstable_by_key(|&(when, _)| std::cmp::Reverse(when));
        let (when, slice) = due.pop().expect("something is under way");
        now_ns = when;
        scheduler.on_answered(slice, time(now_ns));
    };
    assert_eq!(finished(&over), [(id.expect("room"), vec![])]);
    let best_ns = total * 1000 / (rates[0] + rates[1]);
    assert!(
        now_ns < best_ns * 11 / 10,
        "{now_ns} ns where {best_ns} are possible"
    );
    let percent = bytes[1] * 100 / total;
    assert!((5..12).contains(&percent), "{percent} %");
}

#[test]
fn transfers_are_bounded() {
    let few = SchedulerOptions {
        transfers_max: 2,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(few, 1);
    let submit = |scheduler: &mut Scheduler| scheduler.submit([read(1)], options(Time::MAX), at(0));
    let first = submit(&mut scheduler).expect("room");
    submit(&mut scheduler).expect("room");
    assert_eq!(
        submit(&mut scheduler),
        Err(TransfersFull { transfers_max: 2 })
    );
    scheduler.cancel(first, at(0));
    let over = drain(&mut scheduler, at(0));
    let cancelled = (Some(0), Cause::Cancelled, Effect::Untouched);
    assert_eq!(finished(&over), [(first, vec![cancelled])]);
    assert!(submit(&mut scheduler).is_ok());
    scheduler.cancel(first, at(0));
    assert_eq!(scheduler.transfers(), 2, "a stale id names nothing");
}

#[test]
fn a_replaced_peer_ends_everything_and_nothing_is_fenced() {
    let mut scheduler = connected(1);
    let id = scheduler
        .submit([write(9)], options(Time::MAX), at(1))
        .expect("room");
    let (slice, _) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(2));
    scheduler.on_peer_replaced(at(3));
    let failure = (Some(0), Cause::PeerReplaced, Effect::Partly);
    assert_eq!(
        drain(&mut scheduler, at(100))
            .iter()
            .map(|action| finished(std::slice::from_ref(action)))
            .collect::<Vec<_>>(),
        [vec![(id, vec![failure])]]
    );
}

#[test]
fn what_the_driver_could_not_send_goes_again_and_does_not_count() {
    let mut scheduler = connected(1);
    let asked = TransferOptions {
        has_note: true,
        ..options(Time::MAX)
    };
    let id = scheduler.submit([write(9)], asked, at(1)).expect("room");
    let mut now = at(1);
    for _ in 0..3 * SchedulerOptions::default().attempts_max {
        let (slice, _) = sent(&drain(&mut scheduler, now))[0];
        assert_eq!(scheduler.slice(slice).map(|found| found.1), Some(true));
        scheduler.on_unsent(slice, now);
        assert_eq!(scheduler.rails()[0].under_way_bytes(), 0);
        assert!(
            sent(&drain(&mut scheduler, now)).is_empty(),
            "after a pause"
        );
        now = scheduler.poll_timeout(now).expect("a pause");
    }
    let (slice, _) = sent(&drain(&mut scheduler, now))[0];
    scheduler.on_answered(slice, now);
    assert_eq!(finished(&drain(&mut scheduler, now)), [(id, vec![])]);
}

#[test]
fn a_peer_that_does_not_fence_is_asked_again_after_pauses_that_grow() {
    let mut scheduler = connected(2);
    let submitted = scheduler.submit([write(9)], options(Time::MAX), at(1));
    submitted.expect("room");
    let (slice, rail) = sent(&drain(&mut scheduler, at(1)))[0];
    scheduler.on_lost(slice, at(1));
    let fences = |scheduler: &mut Scheduler, now| {
        let asked = drain(scheduler, now).into_iter();
        asked
            .filter(|action| matches!(action, Action::Fence { .. }))
            .count()
    };
    let (mut now, mut pauses) = (at(1), Vec::new());
    for _ in 0..4 {
        assert_eq!(fences(&mut scheduler, now), 1);
        scheduler.on_fenced(rail, 1, false, now);
        let before = now;
        // The lost rail is tried meanwhile, in vain.
        while fences(&mut scheduler, now) == 0 {
            let connection = scheduler.rails()[rail].connection();
            scheduler.on_rail_failed(rail, connection, now);
            now = scheduler.poll_timeout(now).expect("a pause");
            if scheduler.lost[0].not_before <= now {
                break;
            }
        }
        pauses.push(now.since(before));
    }
    assert_eq!(pauses, [MS * 10, MS * 20, MS * 40, MS * 80]);
}

/// Does all that is to be done now, with every connection made at once.
fn connect_all(scheduler: &mut Scheduler, now: Time) {
    loop {
        let actions = drain(scheduler, now);
        if actions.is_empty() {
            return;
        }
        for action in actions {
            if let Action::Connect { rail, connection } = action {
                assert!(scheduler.on_connected(rail, connection, now));
            }
        }
    }
}

#[test]
fn nothing_is_sent_while_too_many_lost_connections_wait_for_their_fence() {
    let mut scheduler = connected(2);
    let mut now = at(1);
    for lost in 0..LOST_MAX {
        let submitted = scheduler.submit([write(9)], options(Time::MAX), now);
        submitted.expect("room");
        let (slice, rail) = loop {
            connect_all(&mut scheduler, now);
            let under_way = scheduler.slices_where(|slice| slice.state == SliceState::Sent);
            if let Some(&slice) = under_way.first() {
                break (slice, scheduler.slices.at(slice.index).rail);
            }
            now = scheduler.poll_timeout(now).expect("a rail is tried again");
        };
        assert_eq!(scheduler.lost.len(), lost);
        scheduler.on_lost(slice, now);
        let connection = scheduler.rails()[rail].connection();
        assert_eq!(connection, scheduler.lost[lost].connection);
    }
    now = now + MS * 60_000;
    connect_all(&mut scheduler, now);
    assert!(scheduler.rails().iter().all(Rail::is_up));
    let submitted = scheduler.submit([read(9)], options(Time::MAX), now);
    submitted.expect("room");
    assert!(sent(&drain(&mut scheduler, now)).is_empty());
    let LostConnection {
        rail, connection, ..
    } = scheduler.lost[0];
    scheduler.on_fenced(rail, connection, true, now);
    assert!(!sent(&drain(&mut scheduler, now)).is_empty());
}

#[test]
fn a_rail_that_nobody_needs_is_closed_and_comes_back_at_once() {
    let mut scheduler = connected(2);
    let idle_max = SchedulerOptions::default().idle_max;
    let over = at(0) + idle_max;
    assert_eq!(scheduler.poll_timeout(at(1)), Some(over));
    let before = at(0) + (idle_max - MS);
    scheduler.on_timeout(before);
    assert_eq!(drain(&mut scheduler, before), []);
    scheduler.on_timeout(over);
    let close = |rail| Action::Close {
        rail,
        connection: 1,
        cause: CloseCause::Idle,
    };
    assert_eq!(drain(&mut scheduler, over), [close(0), close(1)]);
    for rail in 0..2 {
        scheduler.on_rail_failed(rail, 1, over + MS);
        assert_eq!(scheduler.rails()[rail].failures(), 0, "it did not fail");
    }
    assert_eq!(scheduler.poll_timeout(over + MS), None, "nobody wants them");
    let id = scheduler.submit([read(1)], options(Time::MAX), over + MS);
    let connects = drain(&mut scheduler, over + MS);
    assert_eq!(connects.len(), 2, "both at once: {connects:?}");
    assert!(scheduler.on_connected(1, 2, over + MS * 2));
    let again = sent(&drain(&mut scheduler, over + MS * 2));
    scheduler.on_answered(again[0].0, over + MS * 3);
    let ended = finished(&drain(&mut scheduler, over + MS * 3));
    assert_eq!(ended, [(id.expect("room"), vec![])]);
}

#[test]
fn a_rail_that_carries_something_is_not_idle() {
    let mut scheduler = connected(1);
    let idle_max = SchedulerOptions::default().idle_max;
    let (before, over) = (at(0) + (idle_max - MS * 10), at(0) + idle_max);
    let submitted = scheduler.submit([read(1)], options(Time::MAX), before);
    submitted.expect("room");
    let under_way = sent(&drain(&mut scheduler, before));
    scheduler.on_timeout(over);
    assert_eq!(drain(&mut scheduler, over), []);
    scheduler.on_answered(under_way[0].0, over);
    assert_eq!(drain(&mut scheduler, over).len(), 1, "it is done");
    assert_eq!(scheduler.poll_timeout(over), Some(over + idle_max));
}
