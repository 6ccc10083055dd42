//! Where a cluster's coordinators are, as every command that asks them is told.

use std::net::SocketAddr;

use clap::Args;

use super::address::NodeAddress;
use super::failure::Failure;

/// Where a cluster's coordinators answer.
#[derive(Args, Debug)]
#[group(id = "coordination", multiple = false)]
pub(crate) struct CoordinationArguments {
    /// Where the cluster's coordinators answer.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        value_parser = NodeAddress::parse,
        env = "LUNETTE_COORDINATORS"
    )]
    coordinators: Vec<NodeAddress>,
    /// Where an etcd answers, instead of coordinators. It is spoken to in plain HTTP.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        value_parser = NodeAddress::parse,
        env = "LUNETTE_ETCD"
    )]
    etcd: Vec<NodeAddress>,
}

impl CoordinationArguments {
    /// Whether they are embedded ones, which authenticate where there is a secret.
    pub(crate) const fn is_embedded(&self) -> bool {
        self.etcd.is_empty()
    }

    /// Their addresses: none, if nobody was told any.
    pub(crate) fn endpoints(&self) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = if self.is_embedded() {
            &self.coordinators
        } else {
            &self.etcd
        };
        addresses.iter().map(NodeAddress::resolve).collect()
    }
}
