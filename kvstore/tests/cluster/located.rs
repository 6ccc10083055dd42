//! Where objects are.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lunette_kvstore::{ClusterClient, Located, Preferred, PutOptions, StoreErrorKind, Value};

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const PART: u32 = 10_000;

async fn put(client: &ClusterClient, n: usize, len: usize, options: PutOptions) {
    let value = Value::new(pattern(n, len));
    client
        .put(&key(n), value, options)
        .await
        .expect("it is put");
}

/// Where one object is.
async fn located(client: &ClusterClient, n: usize) -> Option<Located> {
    let located = client.locate(&[key(n)]).await.pop();
    located.expect("one").expect("asked")
}

fn members(client: &ClusterClient) -> Vec<SocketAddr> {
    let map = client.map();
    map.members().iter().map(|member| member.address).collect()
}

#[test]
fn objects_are_where_they_were_put() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let members = members(&client);
            for (n, &node) in members.iter().enumerate() {
                let preferred = Preferred::new(&[node]).expect("one");
                let options = PutOptions {
                    preferred,
                    ..PutOptions::default()
                };
                put(&client, n, 100 + n, options).await;
            }
            let there = |n: usize| Located {
                len_bytes: 100 + n,
                nodes: vec![members[n]],
            };
            let too_long = vec![b'k'; 100_000];
            let keys = [key(2), too_long, key(7), key(0), key(1)];
            let handle = client.handle().expect("room for a task");
            for told in [
                client.locate(&keys).await,
                handle.locate(keys.to_vec()).await,
            ] {
                assert_eq!(told[0], Ok(Some(there(2))));
                let refused = told[1].as_ref().expect_err("no key");
                assert!(matches!(refused.kind, StoreErrorKind::Key(_)), "{refused}");
                assert_eq!(told[2], Ok(None));
                assert_eq!(told[3..], [Ok(Some(there(0))), Ok(Some(there(1)))]);
            }
            client.remove(&keys).await;
        }
    });
}

#[test]
fn all_copies_are_told_while_their_members_are_there() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        for n in 0..10 {
            put(&client, n, 3000, options).await;
        }
        eventually("each is on two members", async || {
            for n in 0..10 {
                let nodes = located(&client, n).await.expect("it is there").nodes;
                if nodes.iter().collect::<BTreeSet<_>>().len() != 2 {
                    return false;
                }
            }
            true
        })
        .await;
        let left = members(&client)[0];
        scene.remove_first().await;
        eventually("nothing is where nobody is", async || {
            for n in 0..10 {
                let Some(located) = located(&client, n).await else {
                    return false;
                };
                if located.nodes.is_empty() || located.nodes.contains(&left) {
                    return false;
                }
            }
            true
        })
        .await;
    });
}

#[test]
fn objects_in_parts_are_where_most_of_their_parts_are() {
    const LEN: usize = 123_456;
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            stripe_len: Some(PART),
            ..PutOptions::default()
        };
        put(&client, 1, LEN, options).await;
        let told = located(&client, 1).await.expect("it is there");
        assert_eq!(told.len_bytes, LEN);
        // Where each part goes is drawn: a node may have none of the 13.
        let everywhere: BTreeSet<_> = members(&client).into_iter().collect();
        let nodes: BTreeSet<_> = told.nodes.iter().copied().collect();
        assert!(nodes.len() > 1 && nodes.is_subset(&everywhere), "{told:?}");
        let mut held = Vec::new();
        for node in told.nodes {
            let map = client.map();
            let mut members = map.members().iter();
            let member = members.find(|member| member.address == node);
            held.push(
                scene
                    .held_by(&client, member.expect("of the map").id.0)
                    .await,
            );
        }
        // The manifest is the fourteenth, and anywhere.
        let all = held.iter().sum::<u64>();
        assert!(all == 14 || all == 13 && nodes != everywhere, "{held:?}");
        assert!(held.windows(2).all(|two| two[0] + 1 >= two[1]), "{held:?}");
        // All on one, as it was wished for.
        let preferred = Preferred::new(&[members(&client)[1]]).expect("one");
        put(
            &client,
            2,
            LEN,
            PutOptions {
                preferred,
                ..options
            },
        )
        .await;
        let told = located(&client, 2).await.expect("it is there");
        assert_eq!(told.nodes, [members(&client)[1]]);
    });
}

#[test]
fn what_has_lost_a_part_is_nowhere() {
    const LEN: usize = 400_000;
    run(WORLDS, || async {
        let scene = Scene::of(2, 2 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            stripe_len: Some(PART),
            ..PutOptions::default()
        };
        put(&client, 1, LEN, options).await;
        assert!(located(&client, 1).await.is_some());
        // The manifest is asked for again and again, its parts are not.
        for n in 100..200 {
            put(&client, n, 40_000, options).await;
            assert_eq!(client.sizes(&[key(1)]).await, [Ok(Some(LEN))]);
        }
        assert_eq!(located(&client, 1).await, None);
    });
}
