//! Members and clients in processes of their own, in a simulated world.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, NodeOptions, SeatedNode,
};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{ProcessId, World};
use lunette_runtime::{CoreOptions, time};
use lunette_runtime_core::ids::NodeId;

const MEMORY_BYTES: u64 = 8 << 20;
pub(crate) const COORDINATOR: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 7000));
pub(crate) const MEMBER: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7000));
pub(crate) const CLIENTS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

/// Serves at `COORDINATOR`.
pub(crate) async fn coordinate() {
    let listener = TcpListener::bind(COORDINATOR).expect("a port");
    serve(listener, Hosted::in_memory(), None, pending()).await;
}

/// A member of the cluster at `COORDINATOR`, until its process ends.
pub(crate) async fn member() {
    member_at(1, MEMBER).await;
}

/// The same, with another name and address.
async fn member_at(id: u64, address: SocketAddr) {
    let mut options = NodeOptions::new(NodeId(id), address, MEMORY_BYTES);
    let mut cluster = ClusterOptions::new("world", vec![COORDINATOR]);
    cluster.lease_ttl_s = 2;
    options.cluster = Some(cluster);
    let _member = SeatedNode::start(options).await.expect("a member");
    pending::<()>().await;
}

/// A coordinator, the member at `MEMBER`, and one at this address: its process.
pub(crate) fn start_two(world: &mut World, second: SocketAddr) -> ProcessId {
    let coordinator = world.start(COORDINATOR.ip(), 1, CoreOptions::default());
    let _serves = world.spawn(coordinator, 0, coordinate);
    let first = world.start(MEMBER.ip(), 1, CoreOptions::default());
    let _lives = world.spawn(first, 0, member);
    let process = world.start(second.ip(), 1, CoreOptions::default());
    let _lives = world.spawn(process, 0, move || member_at(2, second));
    process
}

pub(crate) async fn connected() -> ClusterClient {
    loop {
        let options = ClusterClientOptions {
            // Who asks for nothing has no connections.
            idle_timeout: Duration::from_millis(100),
            ..ClusterClientOptions::new(vec![MEMBER])
        };
        match ClusterClient::connect(options).await {
            Ok(client) => return client,
            Err(_not_yet) => time::sleep(Duration::from_millis(50)).await,
        }
    }
}
