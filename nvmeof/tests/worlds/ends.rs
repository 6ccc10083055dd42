//! A host and a server as most worlds have them.

use std::env;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::host::ReconnectOptions;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions, RemoteNamespace, Server,
    ServerOptions,
};
use lunette_runtime::net::TcpListener;

use crate::middle::Loss;
use crate::model::{BLOCK_BYTES, BLOCKS};

/// Asks for every byte where a few of each PDU will do otherwise.
const EVERY_BYTE: &str = "LUNETTE_EVERY_BYTE";
/// Longest time that a world may take; its own, not ours.
pub(crate) const WORLD_MAX: Duration = Duration::from_secs(100_000);

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn name(text: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
}

pub(crate) fn ip(text: &str) -> IpAddr {
    address(text).ip()
}

/// A server of one disk.
pub(crate) fn server(secrets: Secrets) -> Rc<Server> {
    server_of([7; 16], secrets)
}

/// A server of one disk of this name.
pub(crate) fn server_of(uuid: [u8; 16], secrets: Secrets) -> Rc<Server> {
    let disk = MemoryDisk::new((BLOCKS * BLOCK_BYTES) as u64).expect("room");
    let export = export(Disk::Memory(disk), uuid, secrets);
    let mut options = ServerOptions::default();
    // Data of writes are asked for.
    options.target.in_capsule_bytes = 0;
    options.r2t_bytes_max = 512;
    Server::new(options, vec![export], &[]).expect("a server")
}

/// A disk as the only one of its subsystem.
pub(crate) fn export(disk: Disk, uuid: [u8; 16], secrets: Secrets) -> Export {
    Export {
        name: name("disk"),
        hosts: None,
        secrets,
        disks: vec![ExportedDisk {
            disk,
            block_bytes: 512,
            uuid,
            is_read_only: false,
            ana_group: 1,
        }],
    }
}

/// Serves by a port of its own for each address.
pub(crate) async fn serve(server: Rc<Server>, addresses: &[&str]) {
    let listeners = addresses.iter();
    let listeners = listeners.map(|at| TcpListener::bind(address(at)).expect("a port"));
    server.serve_ports(listeners.collect(), pending()).await;
}

/// A host of the disk by these addresses.
pub(crate) fn options(digests: Digests, addresses: &[&str]) -> NamespaceOptions {
    let config = HostConfig {
        digests,
        commands_max: 8,
        keep_alive: Duration::from_secs(20),
        ..HostConfig::new(name("host"), [1; 16])
    };
    NamespaceOptions {
        addresses: addresses.iter().map(|at| address(at)).collect(),
        reconnect: ReconnectOptions {
            longest: Duration::from_millis(10),
            ..ReconnectOptions::default()
        },
        seed: 1,
        ..NamespaceOptions::new(address(addresses[0]), name("disk"), config)
    }
}

/// Connects, however often the first session is lost.
pub(crate) async fn connected(options: NamespaceOptions) -> RemoteNamespace {
    loop {
        match RemoteNamespace::connect(options.clone()).await {
            Ok(namespace) => return namespace,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

pub(crate) fn losses(is_admin: bool, bytes: impl Iterator<Item = usize>) -> Vec<Loss> {
    let loss = |bytes| Loss {
        is_admin,
        bytes,
        is_silent: false,
    };
    bytes.map(loss).collect()
}

/// Every place, where somebody asks for that and waits a minute, else every `step`th.
pub(crate) fn every(step: usize, places: Range<usize>) -> impl Iterator<Item = usize> {
    let is_thorough = env::var_os(EVERY_BYTE).is_some();
    places.step_by(if is_thorough { 1 } else { step })
}
