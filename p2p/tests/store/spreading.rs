//! Objects that are registered, found, received, listed and let go.

use std::time::Duration;

use lunette_p2p::{HoldFault, ReceiveOptions, RegisterOptions, ShapeFault, Store};

use crate::scene::{
    Coordinator, LENS, LONG, assert_is_the_object, empty_buffers, fetch, in_chunks, memory, name,
    patterned, patterned_buffers, receive, resumed, run,
};

#[test]
fn an_object_of_many_buffers_comes_whole() {
    run(async || {
        let coordinator = Coordinator::start();
        let origin = coordinator.store().await;
        let object = name("model/a");
        let registered = origin
            .register(&object, patterned_buffers(), in_chunks())
            .await;
        let registered = registered.expect("registered");
        let receiver = coordinator.store().await;
        let found = receiver.find(&object).await.unwrap().expect("found");
        assert_eq!(found.version, registered.version());
        assert_eq!(found.shape.buffers(), LENS.map(|len| len as u64));
        let (held, buffers) = fetch(&receiver, "model/a").await;
        let progress = held.progress();
        assert_eq!(progress.held_bytes, progress.len_bytes);
        let given_back = held.unregister().await;
        assert_is_the_object(&given_back);
        assert_is_the_object(&buffers);
    });
}

#[test]
fn receivers_feed_each_other() {
    run(async || {
        let coordinator = Coordinator::start();
        let start = async || coordinator.store_over_connections().await;
        let origin = start().await;
        let registered = origin
            .register(&name("o"), patterned_buffers(), in_chunks())
            .await;
        let registered = registered.expect("registered");
        let mut receivers = Vec::new();
        for _ in 0..6 {
            let store = start().await;
            let (held, buffers) = receive(&store, "o").await;
            receivers.push((store, held, buffers));
        }
        for (_, held, buffers) in &receivers {
            held.whole(LONG).await.expect("all of it");
            assert_is_the_object(buffers);
        }
        let len_bytes = registered.shape().len_bytes();
        let served = |store: &Store| store.engine().statistics().served_read_bytes;
        let by_receivers: u64 = receivers.iter().map(|(store, ..)| served(store)).sum();
        assert!(served(&origin) >= len_bytes, "it sends all of it once");
        assert!(
            by_receivers > len_bytes,
            "{by_receivers} bytes of {len_bytes}"
        );
    });
}

#[test]
fn the_catalogue_says_what_there_is_and_who_has_it() {
    run(async || find_and_list(&Coordinator::start()).await);
}

/// What is registered is listed, with its holders.
pub(crate) async fn find_and_list(coordinator: &Coordinator) {
    let origin = coordinator.store().await;
    for object in ["a/1", "a/2", "b"] {
        let buffers = vec![patterned(100, 1)];
        let registered = origin.register(&name(object), buffers, in_chunks()).await;
        registered.expect("registered");
    }
    let list = |beginning: &'static str| {
        let origin = origin.clone();
        async move {
            let found = origin.list(beginning).await.expect("listed");
            let named = found.iter().map(|found| {
                assert_eq!((found.whole, found.holders), (1, 1));
                found.name.to_string()
            });
            named.collect::<Vec<_>>()
        }
    };
    assert_eq!(list("a/").await, ["a/1", "a/2"]);
    assert_eq!(list("").await, ["a/1", "a/2", "b"]);
    assert!(list("c").await.is_empty());
    assert_eq!(origin.find(&name("c")).await, Ok(None));
}

#[test]
fn a_name_is_taken_until_its_last_holder_lets_go() {
    run(async || take_a_name(&Coordinator::start()).await);
}

/// One of two objects of a name is refused, until the other is let go.
pub(crate) async fn take_a_name(coordinator: &Coordinator) {
    let (one, two) = (coordinator.store().await, coordinator.store().await);
    let object = name("o");
    let first = one
        .register(&object, patterned_buffers(), in_chunks())
        .await;
    let first = first.expect("registered");
    let version = first.version();
    let taken = two.register(&object, vec![memory(10)], in_chunks()).await;
    let error = taken.expect_err("it is taken");
    let expected = HoldFault::NameTaken {
        name: object.clone(),
        version,
    };
    assert_eq!((&error.fault, error.is_retryable()), (&expected, false));
    assert_eq!(error.buffers[0].len(), 10, "given back");
    assert_eq!(two.engine().segments(), 0, "and not registered any more");
    first.unregister().await;
    assert_eq!(one.find(&object).await, Ok(None));
    let second = two.register(&object, vec![memory(10)], in_chunks()).await;
    assert_ne!(second.expect("it is free").version(), version);
}

#[test]
fn what_replaces_an_object_is_what_is_found() {
    run(async || replace(&Coordinator::start()).await);
}

/// A name leads to what replaced what had it.
pub(crate) async fn replace(coordinator: &Coordinator) {
    let (one, two) = (coordinator.store().await, coordinator.store().await);
    let object = name("o");
    let first = one.register(&object, vec![memory(10)], in_chunks()).await;
    let first = first.expect("registered");
    let replacing = RegisterOptions {
        may_replace: true,
        ..in_chunks()
    };
    let second = two.register(&object, patterned_buffers(), replacing).await;
    let second = second.expect("replaced");
    let found = one.find(&object).await.expect("asked").expect("found");
    assert_eq!(found.version, second.version());
    let receiver = coordinator.store().await;
    fetch(&receiver, "o").await;
    let options = ReceiveOptions {
        version: Some(first.version()),
        ..ReceiveOptions::default()
    };
    let old = receiver.receive(&object, vec![memory(10)], options).await;
    let fault = old.expect_err("it is not that one").fault;
    assert_eq!(fault, HoldFault::NotFound { name: object });
}

#[test]
fn wrong_buffers_are_refused_and_given_back() {
    run(async || give_wrong_buffers(&Coordinator::start()).await);
}

/// Buffers that make no object, or are not as the object's.
pub(crate) async fn give_wrong_buffers(coordinator: &Coordinator) {
    let store = coordinator.store().await;
    let object = name("o");
    let shapes = [
        (vec![], ShapeFault::Empty),
        (vec![memory(1).slice(0, 0)], ShapeFault::Empty),
    ];
    for (buffers, fault) in shapes {
        let registered = store.register(&object, buffers, in_chunks()).await;
        assert_eq!(registered.expect_err("no object").fault, fault.into());
    }
    let odd = RegisterOptions {
        chunk_bytes: 5000,
        ..in_chunks()
    };
    let registered = store.register(&object, vec![memory(9)], odd).await;
    assert!(registered.is_err());
    let registered = store
        .register(&object, patterned_buffers(), in_chunks())
        .await;
    registered.expect("registered");
    let other = coordinator.store().await;
    let short = vec![memory(LENS[0]), memory(7), memory(LENS[2] - 1)];
    let few = vec![memory(LENS[0])];
    let many = [empty_buffers(), vec![memory(1)]].concat();
    let wrong_len = HoldFault::WrongLength {
        buffer: 2,
        given_bytes: LENS[2] as u64 - 1,
        wanted_bytes: LENS[2] as u64,
    };
    let wrong_count = |given| HoldFault::WrongCount { given, wanted: 3 };
    let cases = [
        (short, wrong_len),
        (few, wrong_count(1)),
        (many, wrong_count(4)),
    ];
    for (buffers, fault) in cases {
        let count = buffers.len();
        let options = ReceiveOptions::default();
        let received = other.receive(&object, buffers, options).await;
        let error = received.expect_err("they do not fit");
        assert_eq!((&error.fault, error.is_retryable()), (&fault, false));
        assert_eq!(error.buffers.len(), count);
    }
    assert_eq!(other.engine().segments(), 0);
}

#[test]
fn what_is_held_already_is_not_received_again() {
    run(async || {
        let coordinator = Coordinator::start();
        let store = coordinator.store().await;
        let registered = store
            .register(&name("o"), patterned_buffers(), in_chunks())
            .await;
        let version = registered.expect("registered").version();
        let options = ReceiveOptions::default();
        let again = store.receive(&name("o"), empty_buffers(), options).await;
        assert_eq!(again.expect_err("held").fault, HoldFault::Held { version });
    });
}

#[test]
fn nothing_is_fetched_that_is_there() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _registered) = coordinator.origin("o").await;
        let receiver = coordinator.store().await;
        let buffers = patterned_buffers();
        // One chunk of the first buffer is something else.
        buffers[0].copy_in(70_000, b"damage");
        let held = receiver
            .receive(&name("o"), buffers.clone(), resumed())
            .await;
        let held = held.expect("received");
        held.whole(LONG).await.expect("all of it");
        assert_is_the_object(&buffers);
        let read = receiver.engine().statistics().read_bytes;
        assert_eq!(read, 64 << 10, "a chunk");
    });
}

#[test]
fn patience_ends_and_what_came_stays() {
    run(async || {
        let coordinator = Coordinator::start();
        let (_origin, _registered) = coordinator.origin("o").await;
        let receiver = coordinator.store().await;
        let (held, buffers) = receive(&receiver, "o").await;
        let early = held.whole(Duration::ZERO).await.expect_err("not yet");
        assert!(early.is_retryable() && early.held < early.chunks);
        held.whole(LONG).await.expect("all of it");
        assert_is_the_object(&buffers);
    });
}
