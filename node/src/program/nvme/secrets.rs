//! Secrets of hosts and controllers: where they are kept, and new ones.

use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use lunette::runtime::entropy;
use lunette_nvmeof::proto::auth::{Credentials, Group, Hash, Secret, TlsPsk};

use super::failure::{NvmeFailure, Outcome};

/// The secrets themselves, where no file is given.
const HOST_SECRET: &str = "LUNETTE_DHCHAP_SECRET";
const CONTROLLER_SECRET: &str = "LUNETTE_DHCHAP_CTRL_SECRET";
const TLS_KEY: &str = "LUNETTE_TLS_KEY";
/// A secret has less than a hundred characters.
const SECRET_FILE_BYTES_MAX: u64 = 4096;
/// Permissions of others than a file's owner.
const OTHERS_MODE: u32 = 0o077;

/// A hash to prove secrets with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HashChoice {
    Sha256,
    Sha384,
    Sha512,
}

impl HashChoice {
    const fn hash(self) -> Hash {
        match self {
            Self::Sha256 => Hash::Sha256,
            Self::Sha384 => Hash::Sha384,
            Self::Sha512 => Hash::Sha512,
        }
    }
}

/// A Diffie-Hellman group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum GroupChoice {
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl GroupChoice {
    const fn group(self) -> Group {
        match self {
            Self::Null => Group::Null,
            Self::Ffdhe2048 => Group::Ffdhe2048,
            Self::Ffdhe3072 => Group::Ffdhe3072,
            Self::Ffdhe4096 => Group::Ffdhe4096,
            Self::Ffdhe6144 => Group::Ffdhe6144,
            Self::Ffdhe8192 => Group::Ffdhe8192,
        }
    }
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Authentication of NVMe/TCP (DH-HMAC-CHAP)")]
pub(in crate::program) struct SecretArguments {
    /// File with the secret that hosts prove to know, readable by its owner alone. Without it, the
    /// secret in LUNETTE_DHCHAP_SECRET.
    #[arg(long, value_name = "FILE")]
    dhchap_secret_file: Option<PathBuf>,
    /// File with the secret that the controller proves to know. Without it, the secret in
    /// LUNETTE_DHCHAP_CTRL_SECRET.
    #[arg(long, value_name = "FILE")]
    dhchap_ctrl_secret_file: Option<PathBuf>,
    /// Hashes to allow, the best one first; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    dhchap_hash: Vec<HashChoice>,
    /// Groups to allow, the best one first; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    dhchap_group: Vec<GroupChoice>,
}

impl SecretArguments {
    /// What is to be proved, if there is a secret.
    pub(super) fn credentials(&self) -> Outcome<Option<Arc<Credentials>>> {
        let host = secret(self.dhchap_secret_file.as_deref(), HOST_SECRET)?;
        let controller = secret(self.dhchap_ctrl_secret_file.as_deref(), CONTROLLER_SECRET)?;
        let Some(host) = host else {
            return if controller.is_some() {
                Err(NvmeFailure::NoHostSecret)
            } else {
                Ok(None)
            };
        };
        let mut credentials = Credentials::new(host, controller);
        if !self.dhchap_hash.is_empty() {
            credentials.hashes = self.dhchap_hash.iter().map(|hash| hash.hash()).collect();
        }
        if !self.dhchap_group.is_empty() {
            credentials.groups = self
                .dhchap_group
                .iter()
                .map(|group| group.group())
                .collect();
        }
        Ok(Some(Arc::new(credentials)))
    }
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Encryption of NVMe/TCP (TLS 1.3)")]
pub(in crate::program) struct TlsArguments {
    /// File with the key that hosts and controllers share (NVMeTLSkey-1:...), readable by its owner
    /// alone: every connection over NVMe/TCP is in TLS then. Without it, the key in LUNETTE_TLS_KEY.
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
}

impl TlsArguments {
    /// The key, if there is one.
    pub(super) fn psk(&self) -> Outcome<Option<Arc<TlsPsk>>> {
        let Some((name, text)) = kept(self.tls_key_file.as_deref(), TLS_KEY)? else {
            return Ok(None);
        };
        if cfg!(not(feature = "tls")) {
            return Err(NvmeFailure::NoTls { name });
        }
        let psk = TlsPsk::parse(&text);
        let psk = psk.map_err(|fault| NvmeFailure::TlsKey { name, fault })?;
        Ok(Some(Arc::new(psk)))
    }
}

fn secret(file: Option<&Path>, variable: &str) -> Outcome<Option<Secret>> {
    let Some((name, text)) = kept(file, variable)? else {
        return Ok(None);
    };
    let secret = Secret::parse(&text).map_err(|fault| NvmeFailure::Secret { name, fault });
    secret.map(Some)
}

/// What is kept in a file, or else in a variable, and how that is called.
fn kept(file: Option<&Path>, variable: &str) -> Outcome<Option<(String, String)>> {
    match (file, env::var(variable)) {
        (Some(path), _) => {
            let name = path.display().to_string();
            let text = read(path).map_err(|error| NvmeFailure::file(&name, error))?;
            Ok(Some((name, text)))
        }
        (None, Ok(text)) => Ok(Some((variable.to_owned(), text))),
        (None, Err(_)) => Ok(None),
    }
}

/// A file that nobody else can read.
fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    if mode & OTHERS_MODE != 0 {
        let told = format!("others may read it: chmod {:o}", mode & 0o700);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, told));
    }
    let mut text = String::new();
    file.take(SECRET_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct NewSecretArguments {
    /// Bind keys to names by this hash; its length is the secret's.
    #[arg(long, value_enum, default_value = "sha256")]
    hash: HashChoice,
    /// A key for TLS instead, of 32 bytes, bound to hosts.
    #[arg(long, conflicts_with = "hash")]
    tls: bool,
}

/// Length of a key whose cipher suite is to be had, in bytes.
const TLS_KEY_BYTES: usize = 32;

/// A new secret, as a line.
pub(super) fn new_secret(arguments: NewSecretArguments) -> Outcome<String> {
    let drawn = |len_bytes: usize| -> Vec<u8> {
        let words = (0..len_bytes / 8).flat_map(|_| entropy().to_le_bytes());
        words.collect()
    };
    let name = "the new secret".to_owned();
    if arguments.tls {
        let psk = TlsPsk::new(&drawn(TLS_KEY_BYTES), true);
        let psk = psk.map_err(|fault| NvmeFailure::TlsKey { name, fault })?;
        return Ok(psk.reveal().to_string());
    }
    let hash = arguments.hash.hash();
    let bytes = drawn(hash.len_bytes());
    let secret = Secret::new(&bytes, Some(hash));
    let secret = secret.map_err(|fault| NvmeFailure::Secret { name, fault })?;
    Ok(secret.reveal().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::program::nvme::core::on_core;

    fn fresh(hash: HashChoice) -> String {
        on_core(async move || new_secret(NewSecretArguments { hash, tls: false }))
            .expect("a secret")
    }

    #[test]
    fn keys_of_tls_are_read_where_tls_is_built_in() {
        let arguments = NewSecretArguments {
            hash: HashChoice::Sha256,
            tls: true,
        };
        let made = on_core(async move || new_secret(arguments)).expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        fs::write(&path, &made).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
        let arguments = TlsArguments {
            tls_key_file: Some(path),
        };
        match arguments.psk() {
            Ok(psk) => {
                let psk = psk.expect("a key");
                assert!(cfg!(feature = "tls") && *psk.reveal() == made);
            }
            Err(failure) => {
                assert!(
                    cfg!(not(feature = "tls")) && failure.exit_code() == 2,
                    "{failure}"
                );
            }
        }
        let none = TlsArguments::default().psk();
        assert!(none.expect("nothing to share").is_none());
    }

    #[test]
    fn new_secrets_differ_and_are_read_from_files_of_their_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let text = fresh(HashChoice::Sha384);
        assert_ne!(text, fresh(HashChoice::Sha384));
        fs::write(&path, format!("{text}\n")).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("permissions");
        let arguments = SecretArguments {
            dhchap_secret_file: Some(path.clone()),
            dhchap_hash: vec![HashChoice::Sha512],
            dhchap_group: vec![GroupChoice::Null, GroupChoice::Ffdhe2048],
            ..SecretArguments::default()
        };
        let refused = arguments.credentials().expect_err("others may read it");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
        let credentials = arguments.credentials().expect("a secret").expect("one");
        assert_eq!(Ok(credentials.host.clone()), Secret::parse(&text));
        assert_eq!(credentials.hashes, [Hash::Sha512]);
        assert_eq!(credentials.groups, [Group::Null, Group::Ffdhe2048]);
        fs::write(&path, "DHHC-1:01:AAAA:").expect("written");
        let refused = arguments.credentials().expect_err("no secret");
        assert_eq!(refused.exit_code(), 2);
    }

    #[test]
    fn a_controller_alone_proves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        fs::write(&path, fresh(HashChoice::Sha256)).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("permissions");
        let arguments = SecretArguments {
            dhchap_ctrl_secret_file: Some(path),
            ..SecretArguments::default()
        };
        let refused = arguments.credentials();
        assert!(matches!(refused, Err(NvmeFailure::NoHostSecret)));
        let none = SecretArguments::default().credentials();
        assert!(none.expect("nothing to prove").is_none());
    }
}
