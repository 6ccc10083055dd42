//! What goes wrong: origins that are gone, catalogues that are away, damage, memory that is given back.

use std::time::Duration;

use lunette_p2p::StoreOptions;

use crate::scene::{
    Coordinator, LONG, assert_is_the_object, empty_buffers, fetch, in_chunks, name,
    patterned_buffers, receive, resumed, run, until, until_alone,
};

#[test]
fn survivors_serve_when_the_origin_is_gone() {
    run(async || outlive_the_origin(&Coordinator::start()).await);
}

/// Who has received serves on.
pub(crate) async fn outlive_the_origin(coordinator: &Coordinator) {
    let (origin, registered) = coordinator.origin("o").await;
    let survivor = coordinator.store().await;
    let (_held, _) = fetch(&survivor, "o").await;
    // Without a word: its lease ends, and with it what it has written.
    drop(registered);
    drop(origin);
    let late = coordinator.store().await;
    until_alone(&late, "o", true).await;
    fetch(&late, "o").await;
}

/// Those whose own renewal is far away.
pub(crate) async fn see_a_name_go(coordinator: &Coordinator) {
    let (origin, registered) = coordinator.origin("o").await;
    let mut survivors = Vec::new();
    for _ in 0..3 {
        let patient = |options: &mut StoreOptions| options.lease_ttl_s = 3600;
        let survivor = coordinator.store_with(patient).await;
        let (held, _) = fetch(&survivor, "o").await;
        survivors.push((survivor, held));
    }
    drop(registered);
    drop(origin);
    let late = coordinator.store().await;
    let object = name("o");
    until("the origin's lease has ended", async || {
        let found = late.find(&object).await.expect("asked");
        found.is_some_and(|found| found.holders == 3)
    })
    .await;
    until("it is found again", async || {
        late.find(&object).await.expect("asked").is_some()
    })
    .await;
    fetch(&late, "o").await;
}

#[test]
fn who_holds_an_object_sees_its_name_go_and_writes_it_again() {
    run(async || see_a_name_go(&Coordinator::start()).await);
}

#[test]
fn an_origin_may_let_go_while_others_receive() {
    run(async || {
        let coordinator = Coordinator::start();
        let (origin, registered) = coordinator.origin("o").await;
        let survivor = coordinator.store().await;
        fetch(&survivor, "o").await;
        let late = coordinator.store().await;
        let (held, buffers) = receive(&late, "o").await;
        let given_back = registered.unregister().await;
        assert_eq!(origin.engine().segments(), 0);
        // Nobody reads it any more: what is written there reaches nobody.
        for buffer in &given_back {
            buffer.copy_in(0, &vec![0; buffer.len()]);
        }
        held.whole(LONG).await.expect("all of it");
        assert_is_the_object(&buffers);
    });
}

#[test]
fn a_catalogue_that_is_away_costs_nothing_to_those_who_know_each_other() {
    run(async || lose_the_catalogue(&Coordinator::start()).await);
}

/// It is lost while an object is received, and comes back.
pub(crate) async fn lose_the_catalogue(coordinator: &Coordinator) {
    let object = name("o");
    let (_origin, _registered) = coordinator.origin("o").await;
    let receiver = coordinator.store().await;
    let (held, buffers) = receive(&receiver, "o").await;
    until("they know each other", async || {
        held.progress().neighbours > 0
    })
    .await;
    coordinator.lose();
    held.whole(LONG).await.expect("all of it");
    assert_is_the_object(&buffers);
    let lost = receiver.find(&object).await.expect_err("nobody answers");
    assert!(lost.is_retryable());
    coordinator.come_back().await;
    // If it knows nothing those who hold the object write it again, under new leases.
    let late = coordinator.store().await;
    until("it is there again, and its holders", async || {
        let found = late.find(&object).await;
        found.is_ok_and(|found| found.is_some_and(|found| found.whole == 2))
    })
    .await;
    fetch(&late, "o").await;
}

#[test]
fn damage_at_a_source_is_found_and_not_served_on() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let buffers = patterned_buffers();
        let registered = origin
            .register(&name("o"), buffers.clone(), in_chunks())
            .await;
        registered.expect("registered");
        // Against the rules: it changes after it was registered.
        buffers[0].copy_in(100, b"changed");
        let receiver = coordinator.store().await;
        let (held, got) = receive(&receiver, "o").await;
        let chunks = held.shape().chunks();
        until("all but one are here", async || {
            let early = held.whole(Duration::ZERO).await;
            early.is_err_and(|early| early.held == chunks - 1)
        })
        .await;
        let incomplete = held.whole(Duration::from_millis(300)).await;
        assert_eq!(incomplete.expect_err("one is damaged").held, chunks - 1);
        // It is what it was again, and the receiver has kept asking.
        let original = patterned_buffers();
        buffers[0].copy_from(0, &original[0]);
        held.whole(LONG).await.expect("all of it");
        assert_is_the_object(&got);
    });
}

#[test]
fn what_is_let_go_in_part_is_received_on() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _registered) = coordinator.origin("o").await;
        let receiver = coordinator.store().await;
        let (held, _) = receive(&receiver, "o").await;
        until("something is here", async || held.progress().held_bytes > 0).await;
        let buffers = held.unregister().await;
        let before = receiver.engine().statistics().read_bytes;
        let held = receiver
            .receive(&name("o"), buffers.clone(), resumed())
            .await;
        let held = held.expect("received");
        assert!(
            held.progress().held_bytes > 0,
            "what had come is not fetched again"
        );
        held.whole(LONG).await.expect("all of it");
        assert_is_the_object(&buffers);
        let after = receiver.engine().statistics().read_bytes;
        assert!(after - before <= held.shape().len_bytes());
    });
}

#[test]
fn a_store_that_is_closed_has_let_all_go() {
    run(async || {
        let coordinator = Coordinator::start();
        let object = name("o");
        let (origin, registered) = coordinator.origin("o").await;
        let receiver = coordinator.store().await;
        let (held, buffers) = fetch(&receiver, "o").await;
        origin.clone().close().await;
        assert_eq!(origin.engine().segments(), 0);
        assert_is_the_object(&registered.unregister().await);
        let found = receiver.find(&object).await.expect("asked");
        // Its lease has ended, and the survivor has not looked yet, or has.
        assert!(found.is_none_or(|found| found.holders == 1));
        receiver.close().await;
        drop(held);
        assert_is_the_object(&buffers);
    });
}

#[test]
fn without_a_source_a_receiver_waits_and_says_so() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, registered) = coordinator.origin("o").await;
        let receiver = coordinator.store().await;
        let (held, _) = receive(&receiver, "o").await;
        registered.unregister().await;
        let waited = held.whole(Duration::from_millis(200)).await;
        // It may have been quick enough to get all of it before.
        if let Err(incomplete) = waited {
            assert!(incomplete.held < incomplete.chunks);
        }
        let buffers = held.unregister().await;
        assert_eq!(buffers.len(), empty_buffers().len());
        assert_eq!(receiver.engine().segments(), 0);
    });
}
