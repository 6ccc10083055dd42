//! A cluster whose coordinator does not answer for longer than any lease, and then does.

use std::time::Duration;

use lunette::kvstore::{ClusterClient, PutOptions, Stored, Value};
use lunette::runtime::arena;
use lunette_kvstore_proto::version::WriteKind;
use rustix::process::Signal;

use crate::process::{Node, await_that, send};
use crate::scrape::health;
use crate::town::{Town, await_members, is_there, with_client};

const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];
const PATIENT: Duration = Duration::from_secs(20);
/// Of what nobody can do for so long.
const BRIEF: Duration = Duration::from_millis(500);
const TRIES: usize = 4;
const OBJECTS: usize = 40;
const LEN: usize = 10_000;

fn key(life: &str, n: usize) -> String {
    format!("{life}-{n}")
}

/// Puts objects, and tells which of them were written by members that had no lease.
async fn put_all(client: &ClusterClient, life: &str) -> Vec<bool> {
    let mut cut_off = Vec::new();
    for n in 0..OBJECTS {
        let region = arena().alloc(LEN).expect("room").freeze();
        let key = key(life, n);
        let put = client.put(key.as_bytes(), Value::new(region), PutOptions::default());
        let stored = put.await.expect("it is put");
        let Stored::Written { is_cut_off, .. } = stored else {
            unreachable!("{key} is new: {stored:?}");
        };
        cut_off.push(is_cut_off);
    }
    cut_off
}

async fn expect_all(client: &ClusterClient, life: &str) {
    for n in 0..OBJECTS {
        let key = key(life, n);
        assert_eq!(is_there(client, &key).await, Some(true), "{key}");
    }
}

/// What has to be agreed on is never done, and may be tried again; but for now and then one that was under way when its time
/// was over, of which nobody knows.
async fn expect_refusals(client: &ClusterClient, life: &str) {
    let mut retryable = [0; 2];
    for _ in 0..TRIES {
        let removed = client.remove(&[key(life, 0).into_bytes()]).await.remove(0);
        let error = removed.expect_err("nobody may say that it is gone");
        retryable[0] += u32::from(error.is_retryable());
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let value = Value::new(arena().alloc(LEN).expect("room").freeze());
        let written = client.put(key(life, 1).as_bytes(), value, upsert).await;
        let error = written.expect_err("nobody may replace it");
        retryable[1] += u32::from(error.is_retryable());
    }
    assert!(retryable.iter().all(|tries| *tries > 0), "{retryable:?}");
}

fn await_state(nodes: [&Node; 2], state: &str) {
    await_that(state, || {
        nodes.iter().all(|node| health(node).1["state"] == state)
    });
}

#[test]
fn caches_go_on_without_a_coordinator_and_lose_nothing() {
    let town = Town::new();
    let [one, other] = [1, 2].map(|id| Node::spawn(&mut town.member(id, &METRICS)));
    await_members(&other, 2);
    await_state([&one, &other], "serving");
    let cut_off = with_client(&one, PATIENT, |client| async move {
        put_all(&client, "before").await
    });
    assert!(cut_off.iter().all(|is_cut_off| !is_cut_off));
    send(&town.coordinator.child, Signal::STOP);
    await_state([&one, &other], "fenced");
    let cut_off = with_client(&one, PATIENT, |client| async move {
        expect_all(&client, "before").await;
        let cut_off = put_all(&client, "meanwhile").await;
        expect_all(&client, "meanwhile").await;
        cut_off
    });
    assert!(cut_off.iter().all(|is_cut_off| *is_cut_off), "{cut_off:?}");
    with_client(&one, BRIEF, |client| async move {
        expect_refusals(&client, "before").await;
        expect_refusals(&client, "meanwhile").await;
        expect_all(&client, "before").await;
    });
    send(&town.coordinator.child, Signal::CONT);
    await_state([&one, &other], "serving");
    await_members(&other, 2);
    with_client(&one, PATIENT, |client| async move {
        expect_all(&client, "before").await;
        expect_all(&client, "meanwhile").await;
        let removed = client.remove(&[key("before", 0).into_bytes()]).await;
        assert_eq!(removed[0], Ok(true));
        assert_eq!(is_there(&client, &key("before", 0)).await, Some(false));
    });
}
