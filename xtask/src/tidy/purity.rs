//! Sans-IO packages carry the whole purity lint and use few outside crates.
//!
//! Clippy reads one `clippy.toml` per package, and a package's own file replaces the root's. So a
//! package with a file must repeat the root's entries, and a pure one must have a file that lists
//! what its logic may not touch.

use std::collections::BTreeSet;

use toml_edit::{Document, Value};

use super::Finding;
use super::floors::{Floor, floor_of};
use super::tree::{Package, SourceFile, Tree};

const RULE: &str = "purity";
const ROOT: &str = "clippy.toml";

/// What every pure package denies: clocks, threads, sockets, files, state, hash order.
const METHODS: [&str; 13] = [
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::thread::sleep",
    "std::thread::current",
    "std::env::var",
    "std::thread::scope",
    "std::thread::park",
    "std::thread::yield_now",
    "std::env::args",
    "std::fs::read",
    "std::fs::read_to_string",
    "std::fs::write",
];
const TYPES: [&str; 19] = [
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::hash::RandomState",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::fs::File",
    "std::thread::JoinHandle",
    "std::sync::OnceLock",
    "std::sync::LazyLock",
    "std::thread::LocalKey",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::thread::Builder",
    "std::fs::OpenOptions",
    "std::os::unix::net::UnixStream",
    "std::os::unix::net::UnixListener",
    "std::os::unix::net::UnixDatagram",
    "std::process::Command",
];

/// Outside crates that do no I/O and keep no hidden state, so that pure packages may use them.
const OUTSIDE: [&str; 18] = [
    "base64",
    "bytes",
    "crc-fast",
    "hashbrown",
    "httparse",
    // Frames from bytes and back; what it could do over sockets is behind features that are off.
    "redis-protocol",
    // Cryptography. Handed its randomness; what could draw its own is not switched on or not called.
    "crypto-bigint",
    "hmac",
    "ring",
    "sha2",
    "snow",
    "serde",
    "serde_json",
    "slab",
    "smallvec",
    "thiserror",
    "xxhash-rust",
    "zeroize",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &tree.packages {
        let is_pure = floor_of(&package.name).is_some_and(Floor::is_pure);
        findings.extend(lint_gaps(tree, package, is_pure));
        if is_pure {
            findings.extend(outside_crates(tree, package));
        }
    }
    findings
}

fn lint_gaps(tree: &Tree, package: &Package, is_pure: bool) -> Vec<Finding> {
    let path = format!("{}/clippy.toml", package.dir);
    let finding = |what| Finding {
        path: path.clone(),
        line: 1,
        rule: RULE,
        what,
        remedy: "add it; the file of another pure package shows how",
    };
    let Some(own) = tree.file(&path) else {
        // Without a file of its own a package is under the root's.
        let what = format!("pure package `{}` has no clippy.toml", package.name);
        return is_pure.then(|| finding(what)).into_iter().collect();
    };
    let own = match entries(own) {
        Ok(own) => own,
        Err(reason) => return vec![finding(format!("not TOML: {reason}"))],
    };
    // An unreadable root file is clippy's to report: it fails on it before any lint runs.
    let root = tree.file(ROOT).and_then(|root| entries(root).ok());
    let mut required = root.unwrap_or_default();
    if is_pure {
        required.extend(METHODS.map(|path| format!("disallowed-methods has {path}")));
        required.extend(TYPES.map(|path| format!("disallowed-types has {path}")));
    }
    required
        .difference(&own)
        .map(|entry| finding(format!("the lint configuration lacks `{entry}`")))
        .collect()
}

/// Every setting of a clippy.toml as a line of text, so that files compare as sets.
fn entries(file: &SourceFile) -> Result<BTreeSet<String>, String> {
    let document = Document::parse(file.text.as_str()).map_err(|error| error.to_string())?;
    let mut entries = BTreeSet::new();
    for (key, item) in document.as_table() {
        let Some(value) = item.as_value() else {
            continue;
        };
        match value.as_array() {
            Some(array) => {
                entries.extend(
                    array
                        .iter()
                        .map(|value| format!("{key} has {}", named(value))),
                );
            }
            None => {
                entries.insert(format!("{key} = {}", named(value)));
            }
        }
    }
    Ok(entries)
}

/// The path of a table with a reason, or the plain value.
fn named(value: &Value) -> String {
    let path = value.as_inline_table().and_then(|table| table.get("path"));
    match path.unwrap_or(value) {
        Value::String(text) => text.value().clone(),
        Value::Integer(number) => number.value().to_string(),
        Value::Boolean(flag) => flag.value().to_string(),
        other => other.type_name().to_owned(),
    }
}

fn outside_crates(tree: &Tree, package: &Package) -> Vec<Finding> {
    let is_outside = |name: &str| tree.packages.iter().all(|package| package.name != name);
    let shipped = package
        .dependencies
        .iter()
        .filter(|dependency| !dependency.is_dev);
    let unknown = shipped
        .map(|dependency| dependency.name.as_str())
        .filter(|name| is_outside(name) && floor_of(name).is_none() && !OUTSIDE.contains(name));
    unknown
        .map(|name| Finding {
            path: package.manifest(),
            line: tree.manifest_line(package, name),
            rule: RULE,
            what: format!("pure package `{}` uses `{name}`", package.name),
            remedy: "do without it, or show that it does no I/O and add it to OUTSIDE in \
                     xtask/src/tidy/purity.rs",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{file, package};
    use super::*;

    const ROOT_TEXT: &str = "too-many-lines-threshold = 70\ndisallowed-methods = [\"a::b\"]\n";

    fn complete() -> String {
        let list = |paths: &[&str]| {
            let rows: Vec<String> = paths
                .iter()
                .map(|path| format!("{{ path = \"{path}\", reason = \"why\" }}"))
                .collect();
            rows.join(",\n")
        };
        format!(
            "too-many-lines-threshold = 70\ndisallowed-methods = [\"a::b\",\n{}]\n\
             disallowed-types = [\n{}]\n",
            list(&METHODS),
            list(&TYPES)
        )
    }

    fn found(own: Option<&str>) -> Vec<String> {
        let mut files = vec![file(ROOT, ROOT_TEXT)];
        files.extend(own.map(|text| file("runtime/core/clippy.toml", text)));
        let packages = vec![package("lunette-runtime-core", "runtime/core", &["slab"])];
        let tree = Tree {
            files,
            packages,
            ..Tree::default()
        };
        check(&tree)
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn a_complete_lint_is_fine() {
        assert_eq!(found(Some(&complete())), Vec::<String>::new());
    }

    #[test]
    fn each_missing_entry_is_caught() {
        for entry in ["std::thread::sleep", "std::collections::HashMap", "a::b"] {
            let own = complete().replace(&format!("\"{entry}\""), "\"other\"");
            let whats = found(Some(&own));
            assert_eq!(whats.len(), 1, "{entry}");
            assert!(whats[0].contains(entry), "{whats:?}");
        }
        assert_eq!(found(Some(&complete().replace("= 70", "= 100"))).len(), 1);
    }

    #[test]
    fn a_missing_or_broken_file_is_caught() {
        assert!(found(None)[0].contains("no clippy.toml"));
        assert!(found(Some("disallowed-types = ["))[0].starts_with("not TOML"));
    }

    #[test]
    fn any_package_with_a_file_of_its_own_repeats_the_root() {
        let tree = |text| Tree {
            files: vec![file(ROOT, ROOT_TEXT), file("node/clippy.toml", text)],
            packages: vec![package("lunette", "node", &[])],
            ..Tree::default()
        };
        assert_eq!(check(&tree(ROOT_TEXT)), []);
        assert_eq!(check(&tree("")).len(), 2);
    }

    #[test]
    fn an_unknown_outside_crate_is_caught_unless_only_tests_use_it() {
        let mut tree = Tree {
            files: vec![file(ROOT, ROOT_TEXT), file("p/clippy.toml", &complete())],
            packages: vec![package("lunette-kvstore-proto", "p", &["socket2"])],
            ..Tree::default()
        };
        assert!(check(&tree)[0].what.contains("socket2"));
        tree.packages[0].dependencies[0].is_dev = true;
        assert_eq!(check(&tree), []);
    }
}
