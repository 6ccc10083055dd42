//! Two ends that the connection manager connects, over any device.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::{spawn_local, time};
use lunette_verbs::connection_manager::{Listener, ManagerError, Terms, connect};
use lunette_verbs::{Context, Patience, QueueSizes, RequestError};

use crate::rig::{End, Parts, soon};

/// The port of the first device, and of the second.
pub(crate) const PORTS: [&str; 2] = ["10.1.0.1:0", "10.1.0.2:0"];

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn terms(data: &[u8]) -> Terms<'_> {
    Terms {
        data,
        patience: Patience::default(),
        deadline: soon(),
    }
}

/// A listener at the second port, and its address.
pub(crate) fn listener() -> (Listener, SocketAddr) {
    let mut at = address(PORTS[1]);
    let listener = Listener::bind(at).expect("a listener");
    at.set_port(listener.port());
    (listener, at)
}

/// Connects the first device with the second.
pub(crate) async fn connect_managed(a: &Context, b: &Context) -> (End, End) {
    let (listener, at) = listener();
    let parts = Parts::new(b, QueueSizes::default());
    let accepting = spawn_local(async move {
        let incoming = listener.next().await.expect("a peer asks");
        assert!(incoming.data().starts_with(b"who is there"));
        let accept = async |pair| {
            incoming
                .accept(pair, terms(b"it is me"))
                .await
                .expect("yes")
        };
        parts.connect(accept).await
    });
    let parts = Parts::new(a, QueueSizes::default());
    let connecting = parts.connect(async |pair| {
        let from = Some(address(PORTS[0]));
        let connected = connect(pair, from, at, terms(b"who is there")).await;
        let (pair, data) = connected.expect("a connection");
        assert!(data.starts_with(b"it is me"), "{data:?}");
        pair
    });
    let first = connecting.await;
    (first, accepting.await.expect("it connects"))
}

/// A peer that says no is heard, and one that is not there is found out.
pub(crate) async fn refusals_are_told(a: &Context, b: &Context) {
    let pair_of = |context| Parts::new(context, QueueSizes::default()).pair;
    let from = Some(address(PORTS[0]));
    let (listener, at) = listener();
    let rejecting = spawn_local(async move {
        let incoming = listener.next().await.expect("a peer asks");
        incoming.reject(b"not you").expect("told");
        // Its successor is not listened to, and so told no as well.
        drop(listener.next().await.expect("a peer asks"));
        drop(listener);
    });
    let refused = connect(pair_of(a), from, at, terms(b"")).await.err();
    let rejected = |data: &Vec<u8>| data.starts_with(b"not you");
    let heard = matches!(&refused, Some(ManagerError::Rejected(data)) if rejected(data));
    assert!(heard, "{refused:?}");
    let refused = connect(pair_of(a), from, at, terms(b"")).await.err();
    assert!(refused.is_some(), "no is told by going away, too");
    rejecting.await.expect("it ends");
    let gone = connect(pair_of(a), from, at, terms(b"")).await.err();
    assert!(gone.is_some_and(|error| !matches!(error, ManagerError::TimedOut)));
    let other = connect(pair_of(b), from, at, terms(b"")).await.err();
    assert!(
        matches!(other, Some(ManagerError::OtherDevice(_))),
        "{other:?}"
    );
    let long = connect(pair_of(a), from, at, terms(&[0; 57])).await.err();
    assert_eq!(long, Some(ManagerError::TooLong(57)));
}

/// The end of one side ends the other, without a request and its deadline.
pub(crate) async fn an_end_is_told(one: &End, other: End) {
    let remote = other.window.remote();
    drop(other);
    let waiting = one.pair.arrival();
    let told = time::timeout(Duration::from_secs(10), waiting).await;
    assert_eq!(
        told.expect("told in time").err(),
        Some(RequestError::Broken)
    );
    let late = one.pair.write_inline(b"x", remote, soon()).await;
    assert_eq!(late.0, Err(RequestError::Broken));
}
