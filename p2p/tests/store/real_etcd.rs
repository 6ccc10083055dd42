//! The catalogue in a real etcd: what holds with the embedded coordinator holds there.

use lunette_p2p::{HoldFault, RegisterOptions, StoreOptions};

use crate::faults::{lose_the_catalogue, outlive_the_origin, see_a_name_go};
use crate::resharding::reshard;
use crate::scene::{
    Coordinator, LONG, assert_is_the_object, fetch, in_chunks, name, patterned_buffers, receive,
    resumed, run, until_alone,
};
use crate::spreading::{find_and_list, give_wrong_buffers, replace, take_a_name};

#[test]
fn etcd_keeps_names_lists_and_lengths() {
    let Some(coordinator) = Coordinator::etcd("etcd_keeps_names_lists_and_lengths") else {
        return;
    };
    run(async move || {
        find_and_list(&coordinator).await;
        coordinator.begin_anew();
        take_a_name(&coordinator).await;
        coordinator.begin_anew();
        replace(&coordinator).await;
        coordinator.begin_anew();
        give_wrong_buffers(&coordinator).await;
        coordinator.begin_anew();
        outlive_the_origin(&coordinator).await;
        coordinator.begin_anew();
        see_a_name_go(&coordinator).await;
        coordinator.begin_anew();
        reshard(&coordinator).await;
    });
}

#[test]
fn etcd_may_be_lost_and_come_back() {
    let Some(coordinator) = Coordinator::etcd("etcd_may_be_lost_and_come_back") else {
        return;
    };
    run(async move || lose_the_catalogue(&coordinator).await);
}

#[test]
fn what_came_of_an_origin_that_died_at_half_is_not_fetched_again() {
    let test = "what_came_of_an_origin_that_died_at_half_is_not_fetched_again";
    let Some(coordinator) = Coordinator::etcd(test) else {
        return;
    };
    run(async move || {
        let (origin, registered) = coordinator.origin("o").await;
        let (lost, len_bytes) = (registered.version(), registered.shape().len_bytes());
        // One chunk at a time, so that half of them is a moment that can be hit.
        let slowly = |options: &mut StoreOptions| options.swarm.downloads_max = 1;
        let receiver = coordinator.store_with(slowly).await;
        let (held, _) = receive(&receiver, "o").await;
        while held.progress().held_bytes < len_bytes / 2 {
            lunette_runtime::time::yield_now().await;
        }
        drop(registered);
        drop(origin);
        until_alone(&receiver, "o", false).await;
        let waited = held.whole(std::time::Duration::ZERO).await;
        let incomplete = waited.expect_err("nobody has the rest");
        assert!(incomplete.is_retryable() && incomplete.held > 0);
        // Whoever has the bytes registers them anew, in the place of what nobody has all of.
        let second = coordinator.store().await;
        let taken = second
            .register(&name("o"), patterned_buffers(), in_chunks())
            .await;
        let fault = taken.expect_err("its half is held").fault;
        let version = lost;
        assert_eq!(
            fault,
            HoldFault::NameTaken {
                name: name("o"),
                version
            }
        );
        let replacing = RegisterOptions {
            may_replace: true,
            ..in_chunks()
        };
        let anew = second
            .register(&name("o"), patterned_buffers(), replacing)
            .await;
        assert_ne!(anew.expect("registered").version(), lost);
        let buffers = held.unregister().await;
        let before = receiver.engine().statistics().read_bytes;
        let held = receiver
            .receive(&name("o"), buffers.clone(), resumed())
            .await;
        held.expect("received")
            .whole(LONG)
            .await
            .expect("all of it");
        assert_is_the_object(&buffers);
        let fetched = receiver.engine().statistics().read_bytes - before;
        assert!(fetched <= len_bytes / 2, "{fetched} of {len_bytes} bytes");
        let late = coordinator.store().await;
        fetch(&late, "o").await;
    });
}
