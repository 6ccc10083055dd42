//! What a target offers, and what a controller is.

use std::net::SocketAddr;

use clap::Args;
use lunette_nvmeof::proto::identify::IdentifyNamespace;
use lunette_nvmeof::proto::log_page::{ChannelSecurity, DiscoveryRecord};
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{RemoteController, discover};
use serde_json::{Value, json};

use super::core::on_core;
use super::failure::Outcome;
use super::subsystem::{HostArguments, SubsystemArguments, config};
use crate::program::failure::Failure;
use crate::program::output;

#[derive(Args, Debug)]
pub(super) struct DiscoverArguments {
    /// Where the target listens.
    address: SocketAddr,
    #[command(flatten)]
    host: HostArguments,
}

/// Shows what a target offers.
pub(super) fn show_offers(arguments: DiscoverArguments, as_json: bool) -> Result<(), Failure> {
    let records = on_core(async move || {
        let config = config(&arguments.host, Digests::NONE, 1)?;
        Ok(discover(arguments.address, config).await?)
    })?;
    say_records(&records, as_json)
}

fn say_records(records: &[DiscoveryRecord], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let records = records.iter().map(|record| {
            json!({
                "nqn": record.subsystem.as_str(),
                "address": record.address.to_string(),
                "security": security_of(record.security),
            })
        });
        return output::line(&Value::from_iter(records).to_string());
    }
    for record in records {
        let (kind, security) = (record.kind, security_of(record.security));
        let (address, subsystem) = (record.address, &record.subsystem);
        output::line(&format!("{address} {subsystem} {kind:?} {security}"))?;
    }
    Ok(())
}

/// What connections are in, as it is told.
const fn security_of(security: ChannelSecurity) -> &'static str {
    match security {
        ChannelSecurity::None => "plain",
        ChannelSecurity::Tls12 => "tls1.2",
        ChannelSecurity::Tls13 => "tls1.3",
        ChannelSecurity::Other(_) => "unknown",
    }
}

/// A controller and its namespaces.
pub(super) async fn identify(arguments: &SubsystemArguments) -> Outcome<Value> {
    let config = config(&arguments.host, arguments.digests.digests(), 1)?;
    let controller = RemoteController::connect(arguments.address, &arguments.nqn, config).await?;
    let association = controller.association();
    let identity = &association.identity;
    let mut namespaces = Vec::new();
    for nsid in controller.namespaces().await? {
        if let Some(IdentifyNamespace {
            blocks,
            block_bytes_log2,
            ..
        }) = controller.namespace(nsid).await?
        {
            let block_bytes = 1_u64 << block_bytes_log2;
            namespaces.push(json!({
                "nsid": nsid, "block_bytes": block_bytes, "bytes": blocks * block_bytes,
            }));
        }
    }
    let said = json!({
        "controller": association.controller_id,
        "serial": identity.serial,
        "model": identity.model,
        "firmware": identity.firmware,
        "in_capsule_bytes": identity.in_capsule_bytes,
        "transfer_bytes_max": identity.transfer_bytes_max(),
        "io_queues": association.io_queues,
        "entries": association.entries,
        "namespaces": namespaces,
    });
    controller.shut_down().await?;
    Ok(said)
}
