//! What the settings allow: a pure function of `LUNETTE_SECRET_FILE` and `LUNETTE_INSECURE`.

use core::net::IpAddr;

use thiserror::Error;

use crate::secret::Secrets;

/// The setting that names the file of secrets.
pub const SECRET_FILE_SETTING: &str = "LUNETTE_SECRET_FILE";
/// The setting that switches authentication off, if it is `1`.
pub const INSECURE_SETTING: &str = "LUNETTE_INSECURE";

/// How connections of this process are authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Every connection, both ways, before any other byte is read.
    Authenticated(Secrets),
    /// None is, and only loopback addresses are listened on: the default.
    LoopbackOnly,
    /// None is, wherever it comes from. Whoever starts a process under it says so loudly.
    Insecure,
}

/// Why the settings are refused. Nothing is guessed about security: the process does not start.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsFault {
    /// A secret, and the wish not to use it.
    #[error("{SECRET_FILE_SETTING} and {INSECURE_SETTING}=1 contradict each other: unset one")]
    Contradiction,
    /// A value that means neither yes nor no.
    #[error("{INSECURE_SETTING} is `{value}`: it may be 1, 0 or unset")]
    UnknownValue {
        /// The value, shortened.
        value: String,
    },
}

/// An address that must not be listened on without a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "{address} can be reached from other hosts: set {SECRET_FILE_SETTING}, or {INSECURE_SETTING}=1 \
     to serve whoever connects"
)]
pub struct ListenRefusal {
    /// The address.
    pub address: IpAddr,
}

impl Policy {
    /// The policy of these settings: the secrets, if a file of them is named and was loaded, and the
    /// value of `LUNETTE_INSECURE`, if it is set.
    ///
    /// # Errors
    /// [`SettingsFault`], with what to change.
    pub fn of_settings(
        secrets: Option<Secrets>,
        insecure: Option<&str>,
    ) -> Result<Self, SettingsFault> {
        let is_insecure = match insecure.map(str::trim) {
            None | Some("" | "0") => false,
            Some("1") => true,
            Some(other) => {
                let value = other.chars().take(16).collect();
                return Err(SettingsFault::UnknownValue { value });
            }
        };
        match (secrets, is_insecure) {
            (Some(_), true) => Err(SettingsFault::Contradiction),
            (Some(secrets), false) => Ok(Self::Authenticated(secrets)),
            (None, true) => Ok(Self::Insecure),
            (None, false) => Ok(Self::LoopbackOnly),
        }
    }

    /// Whether a listener may be opened on `address`.
    ///
    /// # Errors
    /// [`ListenRefusal`] for an address beyond loopback without a secret.
    pub fn permits_listening(&self, address: IpAddr) -> Result<(), ListenRefusal> {
        let is_local = address.to_canonical().is_loopback();
        match self {
            Self::Authenticated(_) | Self::Insecure => Ok(()),
            Self::LoopbackOnly if is_local => Ok(()),
            Self::LoopbackOnly => Err(ListenRefusal { address }),
        }
    }

    /// The secrets, if connections are authenticated.
    #[must_use]
    pub const fn secrets(&self) -> Option<&Secrets> {
        match self {
            Self::Authenticated(secrets) => Some(secrets),
            Self::LoopbackOnly | Self::Insecure => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets::parse(&[b's'; 32]).unwrap()
    }

    #[test]
    fn settings_make_one_policy_or_are_refused() {
        let unknown = |value: &str| SettingsFault::UnknownValue {
            value: value.into(),
        };
        for (with_secret, insecure, expected) in [
            (false, None, Ok(Policy::LoopbackOnly)),
            (false, Some(""), Ok(Policy::LoopbackOnly)),
            (false, Some("0"), Ok(Policy::LoopbackOnly)),
            (false, Some(" 1 "), Ok(Policy::Insecure)),
            (true, None, Ok(Policy::Authenticated(secrets()))),
            (true, Some("0"), Ok(Policy::Authenticated(secrets()))),
            (true, Some("1"), Err(SettingsFault::Contradiction)),
            (false, Some("yes"), Err(unknown("yes"))),
            (true, Some("true"), Err(unknown("true"))),
        ] {
            let given = with_secret.then(secrets);
            assert_eq!(Policy::of_settings(given, insecure), expected);
        }
    }

    #[test]
    fn without_a_secret_only_loopback_is_listened_on() {
        for (address, is_local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(
                Policy::LoopbackOnly.permits_listening(address).is_ok(),
                is_local
            );
            assert_eq!(Policy::Insecure.permits_listening(address), Ok(()));
            let authenticated = Policy::Authenticated(secrets());
            assert_eq!(authenticated.permits_listening(address), Ok(()));
        }
    }
}
