//! Which RDMA adapters are used.

use clap::Args;
use lunette::transfer::engine::{AdapterChoice, AdapterStatus, RdmaOptions};
use serde_json::{Value, json};

/// Flags of both sides.
#[derive(Args, Clone, Debug)]
pub(super) struct Adapters {
    /// RDMA devices over which bytes go where the peer has some too, as `ibv_devices` names them; `all` for
    /// all that are there. What cannot be used is said, and connections carry the bytes.
    #[arg(
        long,
        value_name = "DEVICE,...",
        value_delimiter = ',',
        conflicts_with = "encrypt"
    )]
    rdma: Vec<String>,
}

impl Adapters {
    /// Whether any are to be used.
    pub(super) const fn are_wanted(&self) -> bool {
        !self.rdma.is_empty()
    }

    /// As an engine takes it.
    pub(super) fn options(&self) -> RdmaOptions {
        rdma_options(&self.rdma)
    }
}

/// Those of these names.
pub(crate) fn rdma_options(names: &[String]) -> RdmaOptions {
    RdmaOptions {
        adapters: AdapterChoice::of_names(names),
        ..RdmaOptions::default()
    }
}

/// What became of the adapters that were asked for.
pub(super) fn described(adapters: &[AdapterStatus]) -> Vec<Value> {
    let described = |found: &AdapterStatus| {
        let fault = found.fault.as_ref().map(ToString::to_string);
        json!({ "name": found.name, "unused": fault })
    };
    adapters.iter().map(described).collect()
}
