//! Who may connect, from the environment.

use std::env;
use std::path::Path;

use lunette_auth::policy::{INSECURE_SETTING, SECRET_FILE_SETTING};
use lunette_auth::{Encryption, Policy};
use lunette_cluster::read_secrets;

use super::failure::TransferFailure;

/// The policy of the settings.
pub(crate) fn policy() -> Result<Policy, TransferFailure> {
    let secrets = match env::var_os(SECRET_FILE_SETTING) {
        Some(path) => Some(read_secrets(Path::new(&path))?),
        None => None,
    };
    let insecure = env::var_os(INSECURE_SETTING);
    let insecure = insecure.as_ref().map(|value| value.to_string_lossy());
    Ok(Policy::of_settings(secrets, insecure.as_deref())?)
}

/// What the flag asks for.
pub(super) const fn encryption(encrypt: bool) -> Encryption {
    if encrypt {
        Encryption::Required
    } else {
        Encryption::Optional
    }
}
