//! Members of a cluster at a real etcd, which is killed and comes back.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::{Act, NamespaceKind, Standing};
use lunette_cluster::proto::map::{ClusterMap, MapMember};
use lunette_cluster::proto::member::{MemberOptions, Refusal};
use lunette_cluster::{Client, ClientOptions, Membership};
use lunette_runtime::{CoreOptions, block_on, control, time};
use lunette_runtime_core::ids::NodeId;

use super::etcd::Etcd;

const TTL_S: u32 = 5;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn options(id: u64) -> MemberOptions {
    MemberOptions {
        cluster: "native".into(),
        prefix: "native".into(),
        member: MapMember::new(NodeId(id), id + 100, ([127, 0, 0, 1], 7000).into()),
        versions: (1, 1),
        former: Vec::new(),
        lease_ttl_s: TTL_S,
        rejoin_wait: Duration::from_secs(10),
        seed: id,
    }
}

pub(crate) fn client(coordinator: SocketAddr) -> Client {
    Client::new(ClientOptions {
        endpoints: vec![coordinator],
        security: None,
        silence_max: Duration::from_secs(5),
    })
}

pub(crate) fn member_at(coordinator: SocketAddr, options: MemberOptions) -> Membership {
    Membership::start(client(coordinator), options).expect("there is room")
}

fn member(etcd: &Etcd, options: MemberOptions) -> Membership {
    member_at(etcd.address(), options)
}

/// Waits until all agree on a map that holds this.
pub(crate) async fn agreed(
    members: &[Membership],
    holds: impl Fn(&ClusterMap) -> bool,
) -> ClusterMap {
    let deadline = time::now() + PATIENCE;
    loop {
        let maps: Vec<_> = members.iter().map(Membership::map).collect();
        if let Some(Some(map)) = maps.first()
            && maps.iter().all(|other| other.as_ref() == Some(map))
            && holds(map)
        {
            return map.clone();
        }
        assert!(time::now() < deadline, "{maps:?}");
        time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    time::timeout(PATIENCE, future).await.expect("in time")
}

/// One too many, and one of another cluster.
async fn strangers_are_refused(etcd: &Etcd) {
    let twin = member(
        etcd,
        MemberOptions {
            seed: 77,
            member: MapMember {
                incarnation: 7,
                ..options(1).member
            },
            ..options(1)
        },
    );
    let id = NodeId(1);
    assert_eq!(
        within(twin.joined()).await,
        Err(Refusal::IdentityTaken { id })
    );
    let stranger = member(
        etcd,
        MemberOptions {
            cluster: "other".into(),
            ..options(9)
        },
    );
    let found = "native".to_owned();
    assert_eq!(
        within(stranger.joined()).await,
        Err(Refusal::WrongCluster { found })
    );
}

async fn run(etcd: Etcd) {
    let mut members: Vec<_> = (1..=3).map(|id| member(&etcd, options(id))).collect();
    for member in &members {
        let joined = within(member.joined()).await;
        assert!(joined.is_ok(), "{joined:?}");
    }
    let map = agreed(&members, |map| map.members().len() == 3).await;

    strangers_are_refused(&etcd).await;
    assert_eq!(agreed(&members, |_| true).await.epoch(), map.epoch());

    // etcd is killed, for longer than any lease.
    let etcd = Rc::new(RefCell::new(Some(etcd)));
    let mut killed = etcd.take().expect("it runs");
    killed.kill();
    time::sleep(Duration::from_secs(9)).await;
    for member in &members {
        let permit = |kind, act| member.permit(kind, act);
        assert_eq!(
            permit(NamespaceKind::Cache, Act::Read),
            Ok(Standing::CutOff)
        );
        assert!(permit(NamespaceKind::Cache, Act::Change).is_err());
        assert!(permit(NamespaceKind::Strict, Act::Read).is_err());
        assert_eq!(member.cut_off_acts(), 1);
    }
    // Starting blocks: not on this core.
    let restarted = control(move || {
        killed.restart();
        killed
    });
    let _etcd = restarted.await.expect("the control thread takes it");
    let all_serve = async {
        while !members.iter().all(Membership::is_serving) {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(all_serve).await;

    // An etcd that was away lets leases begin anew: at most one change, and nobody is lost.
    let back = agreed(&members, |_| true).await;
    assert_eq!(back.members(), map.members());
    assert!(back.epoch().0 <= map.epoch().0 + 1, "{:?}", back.epoch());

    members[0].drain(time::now() + Duration::from_secs(60));
    agreed(&members, |map| {
        map.member(NodeId(1))
            .is_some_and(|member| member.is_draining)
    })
    .await;
    within(members[0].leave()).await;
    assert!(members[0].permit(NamespaceKind::Strict, Act::Read).is_err());
    drop(members.remove(0));
    // The second ends without a word.
    drop(members.remove(0));
    agreed(&members, |map| map.members().len() == 1).await;
}

#[test]
fn members_live_through_the_loss_of_etcd() {
    let Some(etcd) = Etcd::start("members_live_through_the_loss_of_etcd") else {
        return;
    };
    let ran = block_on(None, CoreOptions::default(), move || run(etcd));
    ran.expect("a core");
}
