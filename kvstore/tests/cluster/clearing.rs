//! "Remove all", of members that cannot do it.

use std::time::Duration;

use lunette_kvstore_proto::message::directory::{ChangeMessage, ClockReply, MemberMessage, Term};
use lunette_kvstore_proto::message::{FormatVersion, NodeState, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer::{Attachments, Connection};
use lunette_transfer_proto::hello::{Hello, VersionRange};

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
/// How many may wait at a node.
const CLEARING_MAX: usize = 64;

async fn clear(connection: &Connection, to: Seat, timeout: Duration) -> Option<Status> {
    let version = FormatVersion(1);
    let body = |out: &mut Vec<u8>| MemberMessage { to }.encode(version, out);
    let asked = connection.call(Op::Clock.code(), body, Attachments::default(), timeout);
    let reply = asked.await.ok()?;
    let status = Status::from_code(reply.status);
    if status != Status::Ok {
        return Some(status);
    }
    let told = ClockReply::decode(version, &reply.body).expect("its clock");
    let term = Term {
        told_ns: told.told_ns,
        wait_ms: 60_000,
    };
    let body = |out: &mut Vec<u8>| ChangeMessage { to, term }.encode(version, out);
    let asked = connection.call(Op::Clear.code(), body, Attachments::default(), timeout);
    asked
        .await
        .ok()
        .map(|reply| Status::from_code(reply.status))
}

/// A scene of one member, a connection on which much may be asked at a time, and which seat that is.
async fn scene() -> (Scene, Connection, Seat) {
    let scene = Scene::of(1, 8 * MIB).await;
    let client = scene.client().await;
    scene.put(&client, 1, 1, 1000).await;
    let map = client.map();
    let member = &map.members()[0];
    let hello = Hello {
        versions: VersionRange::OURS,
        session_epoch: 7,
        in_flight_max: 128,
        payload_bytes_max: 1 << 20,
        greeting: Vec::new(),
    };
    let connected = Connection::connect(member.address, hello, PATIENCE).await;
    let to = Seat {
        node: member.id,
        incarnation: member.incarnation,
        core: CoreIndex(0),
    };
    (scene, connected.expect("it answers"), to)
}

#[test]
fn a_member_that_is_fenced_refuses_and_removes_nothing() {
    run(WORLDS, || async {
        let (mut scene, connection, to) = scene().await;
        scene.end_coordinator();
        eventually("its lease is over", async || {
            let reports = scene.reports().await;
            reports[0].stat.state() == NodeState::Fenced
        })
        .await;
        let refused = clear(&connection, to, PATIENCE).await;
        assert_eq!(refused, Some(Status::Unavailable));
        let client = scene.client().await;
        let present = client.exists(&[key(1)]).await;
        assert_eq!(present, Ok(vec![true]), "a cache's is there still");
        let other = Seat {
            incarnation: to.incarnation + 1,
            ..to
        };
        let refused = clear(&connection, other, PATIENCE).await;
        assert_eq!(refused, Some(Status::WrongSeat));
    });
}

#[test]
fn so_many_wait_for_the_coordinator_and_others_are_told_so() {
    run(WORLDS, || async {
        let (mut scene, connection, to) = scene().await;
        scene.end_coordinator();
        // It is not fenced yet, and cannot know that nobody answers.
        let connection = std::rc::Rc::new(connection);
        let asked: Vec<_> = (0..CLEARING_MAX + 3)
            .map(|_| {
                let connection = std::rc::Rc::clone(&connection);
                spawn_local(async move { clear(&connection, to, Duration::from_millis(500)).await })
            })
            .collect();
        time::sleep(Duration::from_millis(100)).await;
        let (mut waiting, mut refused) = (0, 0);
        for asked in asked {
            match asked.await.expect("no panic") {
                None => waiting += 1,
                Some(Status::Internal) => refused += 1,
                Some(other) => assert_eq!(other, Status::Internal),
            }
        }
        assert_eq!((waiting, refused), (CLEARING_MAX, 3));
        let client = scene.client().await;
        scene.expect(&client, 1, 1000).await;
    });
}
