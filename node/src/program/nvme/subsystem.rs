//! A subsystem and how it is reached.

use std::net::SocketAddr;
use std::process;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lunette_nvmeof::proto::host::{HedgeDelay, HedgeOptions, PATHS_MAX, PathPolicy};
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{HostConfig, NamespaceOptions, RemoteNamespace};
use lunette_runtime_core::random::mix;

use super::failure::{NvmeFailure, Outcome};
use super::secrets::{SecretArguments, TlsArguments};

/// How long one command may take.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The name of what is served, unless another one is given.
pub(in crate::program) const SUBSYSTEM: &str = "nqn.2026-01.lunette:disk";

#[derive(Args, Debug)]
pub(super) struct SubsystemArguments {
    /// Where the target listens.
    pub(super) address: SocketAddr,
    /// The subsystem.
    #[arg(default_value = SUBSYSTEM, value_parser = Nqn::new)]
    pub(super) nqn: Nqn,
    /// Digests to ask for.
    #[arg(long, value_enum, default_value_t = DigestChoice::None)]
    pub(super) digests: DigestChoice,
    /// The namespace.
    #[arg(long, default_value_t = 1)]
    pub(super) nsid: u32,
    #[command(flatten)]
    pub(super) paths: PathArguments,
    #[command(flatten)]
    pub(super) host: HostArguments,
}

/// Other ways to a namespace; the commands that only look at a controller take the first address.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct PathArguments {
    /// Another address of the subsystem: another path to the namespace.
    #[arg(long = "path", value_name = "ADDRESS:PORT")]
    pub(super) others: Vec<SocketAddr>,
    /// Which of equally good paths a command goes by.
    #[arg(long, value_enum, default_value_t = PolicyChoice::RoundRobin)]
    pub(super) path_policy: PolicyChoice,
    /// When a read is sent a second way: p99 for when it takes longer than 99 % of them, or a time.
    #[arg(long, value_name = "p99|500us|2ms", value_parser = hedge_delay)]
    pub(super) hedge: Option<HedgeDelay>,
    /// Reads that are sent a second way at most, in percent.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(super) hedge_percent: u8,
}

impl PathArguments {
    fn hedge(&self) -> Option<HedgeOptions> {
        let of = |delay| HedgeOptions {
            delay,
            budget_percent: self.hedge_percent,
            ..HedgeOptions::default()
        };
        self.hedge.map(of)
    }
}

/// A percentile with up to three digits, or a time in us or ms.
fn hedge_delay(text: &str) -> Result<HedgeDelay, String> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|&number| number > 0);
    let percentile = |digits: &str| {
        let places = u32::try_from(digits.len())
            .ok()
            .filter(|&places| places <= 3)?;
        let permille = number(digits)? * 10_u32.pow(3 - places);
        u16::try_from(permille).ok()
    };
    let fixed = |unit: &str, us: u32| {
        let count = text.strip_suffix(unit).and_then(number)?;
        Some(Duration::from_micros(u64::from(count) * u64::from(us)))
    };
    if let Some(permille) = text.strip_prefix('p').and_then(percentile) {
        let least = Duration::from_micros(50);
        return Ok(HedgeDelay::Learnt { permille, least });
    }
    let delay = fixed("us", 1).or_else(|| fixed("ms", 1000));
    let delay = delay.ok_or("p with up to three digits is wanted, or a time in us or ms")?;
    Ok(HedgeDelay::Fixed(delay))
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum PolicyChoice {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest commands in flight.
    QueueDepth,
}

#[derive(Args, Clone, Debug, Default)]
pub(in crate::program) struct HostArguments {
    /// The name of this host, where targets know hosts by name.
    #[arg(long, value_name = "NQN", value_parser = Nqn::new)]
    pub(super) host_nqn: Option<Nqn>,
    #[command(flatten)]
    pub(super) secrets: SecretArguments,
    #[command(flatten)]
    pub(super) tls: TlsArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DigestChoice {
    None,
    Header,
    Data,
    Both,
}

impl DigestChoice {
    pub(super) const fn digests(self) -> Digests {
        Digests {
            header: matches!(self, Self::Header | Self::Both),
            data: matches!(self, Self::Data | Self::Both),
        }
    }
}

/// The same for the same name: version 8, made by rules of our own.
pub(super) fn uuid_of(name: &str) -> [u8; 16] {
    let fold = |seed: u64| {
        name.bytes()
            .fold(seed, |sum, byte| mix(sum ^ u64::from(byte)))
    };
    let wide = u128::from(fold(1)) << 64 | u128::from(fold(2));
    let mut uuid = wide.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

pub(super) fn config(
    arguments: &HostArguments,
    digests: Digests,
    depth: u16,
) -> Outcome<HostConfig> {
    let host_id = uuid_of(&format!("host {}", process::id()));
    let of_process = format!("nqn.2026-01.lunette:host.{}", process::id());
    let host = match &arguments.host_nqn {
        Some(name) => name.clone(),
        None => Nqn::new(&of_process)?,
    };
    Ok(HostConfig {
        credentials: arguments.secrets.credentials()?,
        psk: arguments.tls.psk()?,
        digests,
        commands_max: depth,
        ..HostConfig::new(host, host_id)
    })
}

pub(super) async fn connect(
    arguments: &SubsystemArguments,
    depth: u16,
) -> Outcome<RemoteNamespace> {
    Ok(RemoteNamespace::connect(options(arguments, depth)?).await?)
}

fn options(arguments: &SubsystemArguments, depth: u16) -> Outcome<NamespaceOptions> {
    let mut addresses = vec![arguments.address];
    addresses.extend(&arguments.paths.others);
    if addresses.len() > PATHS_MAX {
        return Err(NvmeFailure::Paths);
    }
    let config = config(&arguments.host, arguments.digests.digests(), depth)?;
    Ok(NamespaceOptions {
        addresses,
        nsid: arguments.nsid,
        policy: match arguments.paths.path_policy {
            PolicyChoice::RoundRobin => PathPolicy::RoundRobin,
            PolicyChoice::QueueDepth => PathPolicy::QueueDepth,
        },
        hedge: arguments.paths.hedge(),
        ..NamespaceOptions::new(arguments.address, arguments.nqn.clone(), config)
    })
}

/// The namespace that is behind a segment, for a host without a name and with the secrets of the environment.
pub(in crate::program) fn namespace_at(
    address: SocketAddr,
    nqn: Nqn,
    nsid: u32,
    depth: u16,
) -> Outcome<NamespaceOptions> {
    let arguments = SubsystemArguments {
        address,
        nqn,
        digests: DigestChoice::None,
        nsid,
        paths: PathArguments::default(),
        host: HostArguments::default(),
    };
    options(&arguments, depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_percentiles_or_times() {
        let permille = |text| match hedge_delay(text) {
            Ok(HedgeDelay::Learnt { permille, .. }) => permille,
            other => unreachable!("{text}: {other:?}"),
        };
        assert_eq!(
            ["p5", "p99", "p999", "p50"].map(permille),
            [500, 990, 999, 500]
        );
        let fixed = |us| Ok(HedgeDelay::Fixed(Duration::from_micros(us)));
        assert_eq!(
            (hedge_delay("500us"), hedge_delay("2ms")),
            (fixed(500), fixed(2000))
        );
        for wrong in [
            "",
            "p",
            "p0",
            "p9999",
            "p-1",
            "99",
            "0us",
            "1s",
            "us",
            "4294967296us",
        ] {
            assert!(hedge_delay(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lasting_names_follow_from_names() {
        assert_eq!(uuid_of("nqn.a"), uuid_of("nqn.a"));
        assert_ne!(uuid_of("nqn.a"), uuid_of("nqn.b"));
        let uuid = uuid_of(SUBSYSTEM);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2), "version and variant");
    }
}
