//! Where objects are passed on: a coordinator, and a folder for files, some of which are safetensors files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{Finished, Node, lunette, run};

/// A coordinator, and a folder for files.
pub(crate) struct Place {
    pub(crate) coordinator: Node,
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let arguments = [
            "cluster",
            "coordinator",
            "--json",
            "--listen",
            "127.0.0.1:0",
        ];
        Self {
            coordinator: Node::spawn(&mut lunette(&arguments)),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn arguments<'a>(&'a self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let at = self.coordinator.address();
        let always = ["p2p", command, "--json", "--coordinators", at];
        [&always, more].concat()
    }

    pub(crate) fn run(&self, command: &str, more: &[&str]) -> Finished {
        run(&self.arguments(command, more))
    }

    pub(crate) fn start(&self, command: &str, more: &[&str]) -> Node {
        let short_lease = [more, &["--lease-ttl", "1"]].concat();
        Node::spawn(&mut lunette(&self.arguments(command, &short_lease)))
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// What a safetensors file says of a tensor, and its bytes.
pub(crate) fn tensor_of(file: &[u8], name: &str) -> (Value, Vec<u8>) {
    let (len, rest) = file.split_first_chunk::<8>().expect("a length");
    let len = usize::try_from(u64::from_le_bytes(*len)).expect("small");
    let header: Value = serde_json::from_slice(&rest[..len]).expect("a header");
    let offset = |at: usize| {
        header[name]["data_offsets"][at]
            .as_u64()
            .expect("an offset")
    };
    let at = |at: usize| len + usize::try_from(offset(at)).expect("small");
    (header[name]["shape"].clone(), rest[at(0)..at(1)].to_vec())
}
