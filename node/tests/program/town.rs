//! A coordinator and members of its cluster, as processes, without a secret.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lunette::kvstore::{ClusterClient, ClusterClientOptions, Fetched, PutOptions, Stored, Value};
use lunette::runtime::{CoreOptions, Idle, arena, block_on};
use lunette::transfer::Room;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::process::{Node, await_that, lunette, run};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Town {
    pub(crate) coordinator: Node,
    folder: TempDir,
}

impl Town {
    pub(crate) fn new() -> Self {
        let listen = ["--json", "--listen", "127.0.0.1:0"];
        let arguments = [&["cluster", "coordinator"][..], &listen].concat();
        Self {
            coordinator: Node::spawn(&mut lunette(&arguments)),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// What starts a member.
    pub(crate) fn member(&self, id: u64, more: &[&str]) -> Command {
        let mut command = lunette(&self.arguments(id).each_ref().map(String::as_str));
        command.args(more);
        command
    }

    /// What starts a member that others wait so long for.
    pub(crate) fn patient_member(&self, id: u64, lease_ttl_s: u32) -> Command {
        let mut arguments = self.arguments(id);
        let mut names = arguments.iter();
        let name = names
            .position(|name| name == "--lease-ttl")
            .expect("it is there");
        arguments[name + 1] = lease_ttl_s.to_string();
        lunette(&arguments.each_ref().map(String::as_str))
    }

    fn arguments(&self, id: u64) -> [String; 18] {
        let life = self.folder.path().join(format!("life-{id}"));
        member_arguments(&id.to_string(), &life, &self.coordinator)
    }
}

/// Those of a member of 8 MiB of the cluster `town`.
pub(crate) fn member_arguments(id: &str, life: &Path, coordinator: &Node) -> [String; 18] {
    [
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "8MiB",
        "--idle",
        "efficient",
        "--node-id",
        id,
        "--cluster",
        "town",
        "--lease-ttl",
        "2",
        "--life-file",
        life.to_str().expect("text"),
        "--coordinators",
        coordinator.address(),
    ]
    .map(str::to_owned)
}

/// Waits until the cluster has that many members.
pub(crate) fn await_members(node: &Node, count: usize) {
    let what = format!("{count} members");
    await_that(&what, || {
        let status = run(&["cluster", "status", "--json", "--nodes", node.address()]);
        let status: Json = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["members"].as_array().map(Vec::len) == Some(count)
    });
}

/// Runs `work` with a client of the cluster, on a core of this thread.
pub(crate) fn with_client<T, F>(
    node: &Node,
    timeout: Duration,
    work: impl FnOnce(ClusterClient) -> F + 'static,
) -> T
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    with_client_of(node.address(), timeout, work)
}

/// As [`with_client`], of the cluster that has a member at this address.
pub(crate) fn with_client_of<T, F>(
    member: &str,
    timeout: Duration,
    work: impl FnOnce(ClusterClient) -> F + 'static,
) -> T
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let seed: SocketAddr = member.parse().expect("an address");
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    let ran = block_on(None, options, move || async move {
        let options = ClusterClientOptions {
            timeout,
            ..ClusterClientOptions::new(vec![seed])
        };
        let client = ClusterClient::connect(options).await;
        work(client.expect("a member answers")).await
    });
    ran.expect("a core")
}

/// Puts an object of that many bytes. Whether it is written by that.
pub(crate) async fn put(client: &ClusterClient, key: &str, len_bytes: usize, copies: u8) -> bool {
    let region = arena().alloc(len_bytes).expect("room").freeze();
    let options = PutOptions {
        copies,
        ..PutOptions::default()
    };
    let put = client
        .put(key.as_bytes(), Value::new(region), options)
        .await;
    matches!(put.expect("it is put"), Stored::Written { .. })
}

/// Whether there is such an object; `None` if nobody knows.
pub(crate) async fn is_there(client: &ClusterClient, key: &str) -> Option<bool> {
    let room = Room::whole(arena().alloc(1024 * 1024).expect("room"));
    match client.get(key.as_bytes(), room).await {
        Ok(Fetched::Hit { .. }) => Some(true),
        Ok(Fetched::Miss { .. }) => Some(false),
        Err(_failure) => None,
    }
}
