//! Quotas of tenants, as members set and know them at each coordinator.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_cluster::proto::coordination::{Ask, Op};
use lunette_cluster::proto::member::{MemberOptions, QUOTA_CHANGES_MAX, QuotaRefusal};
use lunette_cluster::proto::quota::{QUOTAS_MAX, Quotas};
use lunette_cluster::{Hosted, Membership, serve};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Signal, block_on, spawn_local, time};
use lunette_runtime_core::time::Time;

use super::etcd::Etcd;
use super::members::{PATIENCE, agreed, client, member_at, options, within};
use super::on_each_driver::run;

const WORLDS: u64 = 8;

/// Waits, without looking in between, until a member knows of quotas for which this holds.
async fn quotas(member: &Membership, holds: impl Fn(&Quotas) -> bool) -> Quotas {
    let told = async {
        loop {
            let quotas = member.quotas();
            if holds(&quotas) {
                return quotas;
            }
            member.changed().await;
        }
    };
    within(told).await
}

fn named<const N: usize>(quotas: [(&str, u64); N]) -> Quotas {
    quotas
        .into_iter()
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect()
}

/// A member of the cluster of this prefix.
fn start(coordinator: SocketAddr, prefix: &str, id: u64) -> Membership {
    let prefix = prefix.to_owned();
    let options = MemberOptions {
        prefix,
        ..options(id)
    };
    member_at(coordinator, options)
}

/// Two members of it, each with connections of its own.
async fn two(coordinator: SocketAddr, prefix: &str) -> [Membership; 2] {
    let members = [1, 2].map(|id| start(coordinator, prefix, id));
    for member in &members {
        let joined = within(member.joined()).await;
        assert!(joined.is_ok(), "{joined:?}");
    }
    members
}

/// What one sets, the other is told; and whatever lies there, both go on.
async fn quotas_are_set_and_told(coordinator: SocketAddr, prefix: &str) {
    let members = two(coordinator, prefix).await;
    let map = agreed(&members, |map| map.members().len() == 2).await;
    let [one, other] = members;
    for (by, name, bytes) in [
        (&one, "default", 1 << 30),
        (&other, "team/\u{fc}", u64::MAX),
        (&one, "team/\u{fc}", 5),
    ] {
        assert_eq!(by.set_quota(name, Some(bytes), Time::MAX).await, Ok(()));
        assert_eq!(by.quotas().get(name), Some(bytes));
    }
    let both = named([("default", 1 << 30), ("team/\u{fc}", 5)]);
    for member in [&one, &other] {
        assert_eq!(quotas(member, |quotas| *quotas == both).await, both);
    }
    assert_eq!(other.set_quota("default", None, Time::MAX).await, Ok(()));
    quotas(&one, |quotas| quotas.get("default").is_none()).await;
    assert_eq!(
        one.set_quota("", None, Time::MAX).await,
        Err(QuotaRefusal::BadName)
    );
    assert_eq!(
        one.set_quota("a", Some(0), Time::MAX).await,
        Err(QuotaRefusal::NoBytes)
    );

    // A quota that makes no sense is none, for who watches and for who comes.
    let put = Ask::Op(Op::Put {
        key: format!("{prefix}/quota/team/\u{fc}").into_bytes(),
        value: b"?".to_vec(),
        lease: None,
    });
    let put = client(coordinator).ask(&put, PATIENCE).await;
    assert!(put.is_ok(), "{put:?}");
    for member in [&one, &other] {
        quotas(member, Quotas::is_empty).await;
        assert!(member.is_serving());
    }
    let late = start(coordinator, prefix, 3);
    assert_eq!(
        late.set_quota("a", Some(3), Time::MAX).await,
        Ok(()),
        "it joins first"
    );
    assert_eq!(late.quotas(), named([("a", 3)]));
    // It came; nothing else was a change of the map.
    let after = agreed(&[one, other, late], |map| map.members().len() == 3).await;
    assert_eq!(after.epoch().0, map.epoch().0 + 1);
}

/// As many as can be, and changes that nobody waits for.
async fn quotas_are_bounded(coordinator: SocketAddr, prefix: &str) {
    let [one, other] = two(coordinator, prefix).await;
    let started = time::now();
    for number in 0..QUOTAS_MAX {
        let set = one
            .set_quota(&format!("t{number:02}"), Some(1), Time::MAX)
            .await;
        assert_eq!(set, Ok(()));
    }
    // None waits until the member has something else to do, a third of its lease later.
    assert!(time::now().since(started) < Duration::from_secs(20));
    let more = one.set_quota("z", Some(1), Time::MAX).await;
    assert_eq!(more, Err(QuotaRefusal::TooMany));
    assert_eq!(one.set_quota("t30", Some(2), Time::MAX).await, Ok(()));
    quotas(&other, |quotas| quotas.get("t30") == Some(2)).await;
    let more = other.set_quota("z", Some(1), Time::MAX).await;
    assert_eq!(more, Err(QuotaRefusal::TooMany));
    let mut last = 0;
    for bytes in 1..=QUOTA_CHANGES_MAX as u64 + 3 {
        let set = pin!(one.set_quota("t00", Some(bytes), Time::MAX));
        // It is asked for, and dropped before it is answered.
        let mut context = Context::from_waker(Waker::noop());
        match set.poll(&mut context) {
            Poll::Ready(refused) => assert_eq!(refused, Err(QuotaRefusal::Busy)),
            Poll::Pending => last = bytes,
        }
    }
    assert_eq!(last, QUOTA_CHANGES_MAX as u64);
    quotas(&other, |quotas| quotas.get("t00") == Some(last)).await;
    assert_eq!(one.quotas().len(), QUOTAS_MAX);
}

/// Who waits for a change that is not made any more is told.
async fn who_leaves_sets_nothing(coordinator: SocketAddr, prefix: &str) {
    let [one, _other] = two(coordinator, prefix).await;
    within(one.leave()).await;
    assert_eq!(
        one.set_quota("a", Some(1), Time::MAX).await,
        Err(QuotaRefusal::Left)
    );
    // One that is refused has waited until then.
    let stranger = MemberOptions {
        cluster: "other".into(),
        prefix: prefix.into(),
        ..options(9)
    };
    let stranger = member_at(coordinator, stranger);
    let set = within(stranger.set_quota("a", Some(1), Time::MAX)).await;
    assert_eq!(set, Err(QuotaRefusal::Left));
}

fn host(listener: TcpListener, hosted: Rc<Hosted>) -> SocketAddr {
    let address = listener.local_addr();
    drop(spawn_local(serve(listener, hosted, None, pending())));
    address
}

fn any_port() -> TcpListener {
    let any_port = "127.0.0.1:0".parse().expect("an address");
    TcpListener::bind(any_port).expect("a port")
}

#[test]
fn quotas_are_kept_by_the_embedded_coordinator() {
    run(WORLDS, || async {
        let address = host(any_port(), Hosted::in_memory());
        quotas_are_set_and_told(address, "told").await;
        quotas_are_bounded(address, "bounded").await;
        who_leaves_sets_nothing(address, "left").await;
    });
}

#[test]
fn quotas_are_kept_by_etcd() {
    let Some(etcd) = Etcd::start("quotas_are_kept_by_etcd") else {
        return;
    };
    let address = etcd.address();
    let ran = block_on(None, CoreOptions::default(), move || async move {
        quotas_are_set_and_told(address, "told").await;
        quotas_are_bounded(address, "bounded").await;
        who_leaves_sets_nothing(address, "left").await;
    });
    ran.expect("a core");
}

/// The coordinator's process ends and another goes on from its file: members have their quotas all the
/// while, and who comes afterwards reads them.
#[test]
fn quotas_outlive_the_embedded_coordinator() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator");
        let stop = Rc::new(Signal::default());
        let stopped = Rc::clone(&stop);
        let listener = any_port();
        let address = listener.local_addr();
        let hosted = open(&path).await;
        let serving = spawn_local(async move {
            serve(listener, hosted, None, stopped.raised()).await;
        });
        let [one, _other] = two(address, "restart").await;
        assert_eq!(one.set_quota("a", Some(7), Time::MAX).await, Ok(()));
        assert_eq!(one.set_quota("b", Some(8), Time::MAX).await, Ok(()));
        assert_eq!(one.set_quota("a", None, Time::MAX).await, Ok(()));
        stop.raise();
        serving.await.expect("it ends");
        let wait = Duration::from_millis(300);
        let late = one.set_quota("d", Some(1), time::now() + wait);
        assert_eq!(within(late).await, Err(QuotaRefusal::Late));
        // It is asked for while nobody answers.
        let waits = one.set_quota("c", Some(9), Time::MAX);
        let early = time::timeout(wait, waits).await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(one.quotas(), named([("b", 8)]));
        let listener = TcpListener::bind(address).expect("the port is free again");
        let address = host(listener, open(&path).await);
        let expected = named([("b", 8), ("c", 9)]);
        quotas(&one, |quotas| *quotas == expected).await;
        let late = start(address, "restart", 3);
        quotas(&late, |quotas| *quotas == expected).await;
    });
}

async fn open(path: &Path) -> Rc<Hosted> {
    Hosted::open(path).await.expect("a file")
}
