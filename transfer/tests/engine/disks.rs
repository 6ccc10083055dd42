//! A disk behind a server of NVMe/TCP, and namespaces of it.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::host::ReconnectOptions;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions, Server, ServerOptions,
};
use lunette_runtime::net::TcpListener;
use lunette_runtime::spawn_local;
use lunette_transfer::engine::NamespaceSegmentOptions;

pub(crate) const BLOCK: usize = 512;

fn name(text: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
}

pub(crate) fn export(disk: Disk, block_bytes: u32, is_read_only: bool) -> Export {
    Export {
        name: name("disk"),
        hosts: None,
        secrets: Secrets::default(),
        disks: vec![ExportedDisk {
            disk,
            block_bytes,
            uuid: [7; 16],
            is_read_only,
            ana_group: 1,
        }],
    }
}

/// Serves a disk at an address, as long as the core runs; gives where that is.
pub(crate) fn serve_at(address: SocketAddr, export: Export) -> SocketAddr {
    let server = Server::new(ServerOptions::default(), vec![export], &[]).expect("a server");
    let listener = TcpListener::bind(address).expect("a port");
    let address = listener.local_addr();
    drop(spawn_local(async move {
        server.serve_ports(vec![listener], pending()).await;
    }));
    address
}

/// Serves an empty disk of that length.
pub(crate) fn serve(len_bytes: usize) -> SocketAddr {
    let disk = MemoryDisk::new(len_bytes as u64).expect("room");
    let any = "127.0.0.1:0".parse().expect("an address");
    serve_at(any, export(Disk::Memory(disk), 512, false))
}

/// The namespace at an address.
pub(crate) fn namespace(address: SocketAddr) -> NamespaceSegmentOptions {
    let config = HostConfig {
        commands_max: 32,
        keep_alive: Duration::from_secs(20),
        ..HostConfig::new(name("host"), [1; 16])
    };
    NamespaceSegmentOptions::new(NamespaceOptions {
        reconnect: ReconnectOptions {
            longest: Duration::from_millis(10),
            ..ReconnectOptions::default()
        },
        ..NamespaceOptions::new(address, name("disk"), config)
    })
}
