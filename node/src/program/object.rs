//! `lunette put`, `get` and `rm`: single objects. `lunette ls`: which there are.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use lunette::kvstore::PutOptions;
use lunette_kvstore_proto::retention::GroupId;
use lunette_kvstore_proto::striped::OBJECT_LEN_MAX;
use serde_json::json;

use super::arguments::{GetArguments, ListArguments, PutArguments, RemoveArguments};
use super::failure::Failure;
use super::output;
use super::store::with_store;

pub(super) fn put(arguments: &PutArguments, as_json: bool) -> Result<(), Failure> {
    let (name, bytes) = read_value(&arguments.file)?;
    let key = arguments.key.as_bytes().to_vec();
    let len_bytes = bytes.len();
    let options = PutOptions {
        copies: arguments.copies,
        pin: arguments.pin.unwrap_or_default(),
        group: arguments
            .group
            .as_ref()
            .map(|name| GroupId::of(name.as_bytes())),
        ..PutOptions::default()
    };
    let tenant = arguments.of.tenant.clone();
    let before = arguments.behind.clone();
    let put = with_store(&arguments.cluster, move |store| async move {
        let store = store.of_tenant(tenant)?;
        if len_bytes as u64 > store.value_len_max() {
            return Err(Failure::ValueTooLong {
                name,
                len_max_bytes: store.value_len_max(),
            });
        }
        let options = PutOptions {
            behind: store.parent(before)?,
            ..options
        };
        store.put(key, bytes, options).await
    })?;
    let (written, version) = (put.is_written, put.version);
    let key = shown(&arguments.key);
    if as_json {
        let object =
            json!({ "key": key, "bytes": len_bytes, "written": written, "version": version });
        return output::line(&object.to_string());
    }
    if written {
        output::line(&format!("put {key}: {len_bytes} bytes"))
    } else {
        output::line(&format!("{key} is there already and keeps its bytes"))
    }
}

/// The bytes of a file, or a few more than any value has, and its name.
fn read_value(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let failed = |error| Failure::file(&name, error);
    let source: Box<dyn Read> = if is_stdin {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    let limit = OBJECT_LEN_MAX + 1;
    let mut bytes = Vec::new();
    source.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok((name, bytes))
}

pub(super) fn get(arguments: &GetArguments, as_json: bool) -> Result<(), Failure> {
    if as_json && arguments.output.is_none() {
        return Err(Failure::Usage(
            "get --json needs --output FILE: standard output holds the object, or JSON",
        ));
    }
    let key = arguments.key.as_bytes().to_vec();
    let tenant = arguments.of.tenant.clone();
    let found = with_store(&arguments.cluster, move |store| async move {
        store.of_tenant(tenant)?.get(key).await
    })?;
    let key = shown(&arguments.key);
    let Some(bytes) = found else {
        return not_found(&[key], as_json);
    };
    let Some(path) = &arguments.output else {
        return output::raw(&bytes);
    };
    let name = path.display().to_string();
    fs::write(path, &bytes).map_err(|error| Failure::file(&name, error))?;
    if as_json {
        let object = json!({ "key": key, "bytes": bytes.len(), "output": name });
        output::line(&object.to_string())
    } else {
        output::line(&format!("got {key}: {} bytes", bytes.len()))
    }
}

pub(super) fn remove(arguments: &RemoveArguments, as_json: bool) -> Result<(), Failure> {
    let keys = bytes_of(&arguments.keys);
    let tenant = arguments.of.tenant.clone();
    let removed = with_store(&arguments.cluster, move |store| async move {
        Ok(store.of_tenant(tenant)?.remove(&keys).await?)
    })?;
    let named = |wanted: bool| -> Vec<String> {
        let pairs = arguments.keys.iter().zip(&removed);
        let chosen = pairs.filter(|&(_, &removed)| removed == wanted);
        chosen.map(|(key, _)| shown(key)).collect()
    };
    let (removed, missing) = (named(true), named(false));
    if as_json {
        let object = json!({ "removed": removed, "not_found": missing });
        output::line(&object.to_string())?;
    } else {
        for key in &removed {
            output::line(&format!("removed {key}"))?;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let keys = missing.join(", ");
    Err(Failure::NotFound { keys })
}

pub(super) fn list(arguments: &ListArguments, as_json: bool) -> Result<(), Failure> {
    let prefix = arguments.prefix.clone().unwrap_or_default().into_vec();
    let tenant = arguments.of.tenant.clone();
    with_store(&arguments.cluster, move |store| async move {
        let store = store.of_tenant(tenant)?;
        let mut after = None;
        loop {
            let listed = store.list(&prefix, after).await?;
            for key in listed.keys {
                if as_json {
                    let key = shown(&OsString::from_vec(key));
                    output::line(&json!({ "key": key }).to_string())?;
                } else {
                    output::raw(&[&key[..], b"\n"].concat())?;
                }
            }
            after = listed.next;
            if after.is_none() {
                return Ok(());
            }
        }
    })
}

/// Says in JSON which keys are missing, and fails.
pub(super) fn not_found(keys: &[String], as_json: bool) -> Result<(), Failure> {
    if as_json {
        output::line(&json!({ "not_found": keys }).to_string())?;
    }
    let keys = keys.join(", ");
    Err(Failure::NotFound { keys })
}

fn bytes_of(keys: &[OsString]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.clone().into_vec()).collect()
}

/// A key as text, for people.
pub(super) fn shown(key: &OsStr) -> String {
    key.to_string_lossy().into_owned()
}
