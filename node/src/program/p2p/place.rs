//! Where the catalogue is, and who we are there.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use lunette::transfer::engine::EngineOptions;
use lunette_cluster::proto::rack::Rack;
use lunette_cluster::{ClientOptions, Security, system_entropy};
use lunette_p2p::{Store, StoreOptions};

use super::failure::Outcome;
use crate::program::address::NodeAddress;
use crate::program::coordination::CoordinationArguments;
use crate::program::failure::Failure;
use crate::program::membership::secrets;
use crate::program::transfer::policy;

/// How long a coordinator may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Where the catalogue is.
#[derive(Args, Debug)]
pub(super) struct Place {
    #[command(flatten)]
    coordination: CoordinationArguments,
    /// The cluster's name: those of one see each other's objects.
    #[arg(long, value_name = "NAME", default_value = "lunette")]
    cluster: String,
}

/// Who we are among those who hold objects.
#[derive(Args, Debug)]
pub(super) struct Presence {
    /// Where to listen for other holders; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where others reach us, if that is not where we listen.
    #[arg(long, value_name = "HOST:PORT", value_parser = NodeAddress::parse)]
    advertise: Option<NodeAddress>,
    /// What is near us, by a name of your own: what another rack has comes from there about once. At most 16
    /// characters.
    #[arg(long, value_name = "NAME")]
    rack: Option<Rack>,
    /// How long others find us once we are silent, in seconds.
    #[arg(long, value_name = "S", default_value_t = lunette_p2p::LEASE_TTL_S_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=60))]
    lease_ttl: u32,
}

impl Default for Presence {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            rack: None,
            lease_ttl: lunette_p2p::LEASE_TTL_S_DEFAULT,
        }
    }
}

/// Who holds objects, and where: of every command that does.
#[derive(Args, Debug)]
pub(super) struct Membership {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    presence: Presence,
}

impl Membership {
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        self.place.plan(&self.presence)
    }
}

/// What a store is started with, found out before there is a core.
#[derive(Debug)]
pub(super) struct Plan {
    engine: EngineOptions,
    endpoints: Vec<SocketAddr>,
    /// Whether the coordinator is an embedded one, which authenticates where there is a secret.
    is_embedded: bool,
    secrets: Option<lunette_auth::Secrets>,
    cluster: String,
    advertised: Vec<SocketAddr>,
    rack: Rack,
    lease_ttl_s: u32,
}

impl Place {
    pub(super) fn plan(&self, presence: &Presence) -> Result<Plan, Failure> {
        let endpoints = self.coordination.endpoints()?;
        if endpoints.is_empty() {
            return Err(Failure::Usage(
                "where the catalogue is: --coordinators or --etcd, LUNETTE_COORDINATORS or LUNETTE_ETCD",
            ));
        }
        let advertised = presence.advertise.as_ref().map(NodeAddress::resolve);
        let engine = EngineOptions {
            listen: vec![presence.listen],
            policy: policy()?,
            ..EngineOptions::default()
        };
        Ok(Plan {
            engine,
            endpoints,
            is_embedded: self.coordination.is_embedded(),
            secrets: secrets()?,
            cluster: self.cluster.clone(),
            advertised: advertised.transpose()?.into_iter().collect(),
            rack: presence.rack.unwrap_or_default(),
            lease_ttl_s: presence.lease_ttl,
        })
    }
}

impl Plan {
    /// Starts the store on this core.
    pub(super) async fn start(self) -> Outcome<Store> {
        let secrets = self.secrets.filter(|_| self.is_embedded);
        let coordinator = ClientOptions {
            endpoints: self.endpoints,
            security: secrets.map(|secrets| Security {
                secrets,
                entropy: Rc::new(system_entropy),
            }),
            silence_max: SILENCE_MAX,
        };
        let options = StoreOptions {
            prefix: self.cluster,
            advertised: self.advertised,
            rack: self.rack,
            lease_ttl_s: self.lease_ttl_s,
            ..StoreOptions::new(self.engine, coordinator)
        };
        Ok(Store::start(options).await?)
    }
}
