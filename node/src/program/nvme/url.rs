//! `nvme://HOST:PORT/NQN?nsid=1`: a namespace by one text.

use std::time::Duration;

use lunette_nvmeof::NamespaceOptions;
use lunette_nvmeof::proto::host::{PATHS_MAX, PathPolicy, ReconnectOptions};
use lunette_nvmeof::proto::nqn::Nqn;
use thiserror::Error;

use super::subsystem::{DigestChoice, HostArguments, config};
use crate::program::address::{AddressFault, NodeAddress};
use crate::program::failure::Failure;

const SCHEME: &str = "nvme://";
/// Commands of a drive that are under way at once.
const DRIVE_DEPTH: u16 = 64;
/// How long a path of a drive may leave a command unanswered: gets wait for it meanwhile.
const DRIVE_PATH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before a lost connection of a drive is made again.
const DRIVE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A namespace of a target.
#[derive(Clone, Debug)]
pub(in crate::program) struct NamespaceUrl {
    addresses: Vec<NodeAddress>,
    subsystem: Nqn,
    nsid: u32,
    digests: DigestChoice,
}

/// Why a text is no namespace.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(in crate::program) enum UrlFault {
    #[error("a namespace is nvme://HOST:PORT/NQN?nsid=1")]
    Shape,
    #[error(transparent)]
    Address(#[from] AddressFault),
    #[error("at most {PATHS_MAX} addresses, with commas between them")]
    Paths,
    #[error("`{0}` is no name of a subsystem")]
    Name(String),
    #[error("`{0}`: nsid=1 and digests=none|header|data|both may follow the name")]
    Parameter(String),
}

impl NamespaceUrl {
    /// Whether a text is meant to be one.
    pub(in crate::program) fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    pub(in crate::program) fn parse(text: &str) -> Result<Self, UrlFault> {
        let rest = text.strip_prefix(SCHEME).ok_or(UrlFault::Shape)?;
        let (addresses, rest) = rest.split_once('/').ok_or(UrlFault::Shape)?;
        let addresses: Result<Vec<_>, _> = addresses.split(',').map(NodeAddress::parse).collect();
        let addresses = addresses?;
        if addresses.len() > PATHS_MAX {
            return Err(UrlFault::Paths);
        }
        let (name, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let subsystem = Nqn::new(name).map_err(|_| UrlFault::Name(name.to_owned()))?;
        let mut url = Self {
            addresses,
            subsystem,
            nsid: 1,
            digests: DigestChoice::None,
        };
        for parameter in parameters.split('&').filter(|text| !text.is_empty()) {
            let is_known = url.set(parameter).is_some();
            if !is_known {
                return Err(UrlFault::Parameter(parameter.to_owned()));
            }
        }
        Ok(url)
    }

    fn set(&mut self, parameter: &str) -> Option<()> {
        match parameter.split_once('=')? {
            ("nsid", number) => self.nsid = number.parse().ok().filter(|&nsid| nsid > 0)?,
            ("digests", "none") => self.digests = DigestChoice::None,
            ("digests", "header") => self.digests = DigestChoice::Header,
            ("digests", "data") => self.digests = DigestChoice::Data,
            ("digests", "both") => self.digests = DigestChoice::Both,
            _ => return None,
        }
        Some(())
    }

    /// Where it is, for a drive of the store.
    pub(in crate::program) fn drive(
        &self,
        host: &HostArguments,
    ) -> Result<NamespaceOptions, Failure> {
        let addresses: Result<Vec<_>, _> =
            self.addresses.iter().map(NodeAddress::resolve).collect();
        Ok(NamespaceOptions {
            addresses: addresses?,
            subsystem: self.subsystem.clone(),
            nsid: self.nsid,
            config: config(host, self.digests.digests(), DRIVE_DEPTH)?,
            policy: PathPolicy::default(),
            path_timeout: DRIVE_PATH_TIMEOUT,
            hedge: None,
            reconnect: ReconnectOptions {
                longest: DRIVE_PAUSE_MAX,
                ..ReconnectOptions::default()
            },
            seed: u64::from(std::process::id()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_read_and_faults_are_named() {
        let url = NamespaceUrl::parse("nvme://127.0.0.1:4420,[::1]:4421/nqn.2026-01.lunette:disk");
        let url = url.expect("a namespace");
        assert_eq!((url.addresses.len(), url.nsid), (2, 1));
        let options = url.drive(&HostArguments::default()).expect("options");
        let addresses = options.addresses.iter().map(ToString::to_string);
        assert_eq!(
            addresses.collect::<Vec<_>>(),
            ["127.0.0.1:4420", "[::1]:4421"]
        );
        let url = NamespaceUrl::parse("nvme://localhost:1/nqn.2026-01.a:b?nsid=7&digests=both");
        let url = url.expect("a namespace");
        let options = url.drive(&HostArguments::default()).expect("options");
        assert_eq!(options.nsid, 7);
        assert!(options.config.digests.header && options.config.digests.data);
        let fault = |text: &str| NamespaceUrl::parse(text).expect_err(text);
        assert_eq!(fault("nvme://127.0.0.1:1"), UrlFault::Shape);
        assert_eq!(fault("nvme:127.0.0.1:1/nqn.2026-01.a:b"), UrlFault::Shape);
        assert!(matches!(
            fault("nvme://127.0.0.1/nqn.2026-01.a:b"),
            UrlFault::Address(_)
        ));
        assert!(matches!(
            fault("nvme://127.0.0.1:1/disk"),
            UrlFault::Name(_)
        ));
        for wrong in ["nsid=0", "nsid=x", "nsid", "digests=some", "size=1"] {
            let text = format!("nvme://127.0.0.1:1/nqn.2026-01.a:b?{wrong}");
            assert_eq!(fault(&text), UrlFault::Parameter(wrong.to_owned()));
        }
        let many = vec!["127.0.0.1:1"; PATHS_MAX + 1].join(",");
        assert_eq!(
            fault(&format!("nvme://{many}/nqn.2026-01.a:b")),
            UrlFault::Paths
        );
    }
}
