//! Which adapters are near which memory: as a table, and as Mooncake's JSON.

use std::path::Path;

use lunette::transfer::topology::{Adapter, Machine, Matrix, load_matrix, load_override};
use serde_json::{Map, Value, json};

use crate::program::failure::Failure;

/// What is between two columns.
const GAP: &str = "  ";

/// A machine's matrix, and what a peer's makes of it.
pub(super) struct Nearness {
    machine: Machine,
    matrix: Matrix,
    peer: Option<Matrix>,
}

impl Nearness {
    /// That of a machine, changed by an override file, beside a peer's.
    pub(super) fn new(
        machine: Machine,
        said: Option<&Path>,
        peer: Option<&Path>,
    ) -> Result<Self, Failure> {
        let found = machine.matrix()?;
        let matrix = match said {
            Some(path) => load_override(path)?.apply(&found)?,
            None => found,
        };
        let peer = peer.map(load_matrix).transpose()?;
        Ok(Self {
            machine,
            matrix,
            peer,
        })
    }

    /// Lines for people: a row for each place of memory.
    pub(super) fn table(&self) -> String {
        let mut rows = vec![["memory", "nearest adapters", "then", "then"].map(str::to_owned)];
        for location in self.matrix.locations() {
            let tiers = self.matrix.row(location).expect("it has a row");
            let tier = |at: usize| tiers.get(at).map(|names| names.join(" "));
            let cell = |at| tier(at).filter(|t| !t.is_empty()).unwrap_or("-".to_owned());
            rows.push([location.to_string(), cell(0), cell(1), cell(2)]);
        }
        let mut text = aligned(&rows);
        if self.peer.is_some() {
            text.push('\n');
            text.push_str(&self.pairs_table());
        }
        text
    }

    fn pairs_table(&self) -> String {
        let mut rows = vec![["memory", "adapter", "the peer's"].map(str::to_owned)];
        for (location, pairs) in self.pairs() {
            for (ours, theirs) in pairs {
                rows.push([location.clone(), ours, theirs]);
            }
        }
        aligned(&rows)
    }

    /// For memory at the same place on both sides: which of the peer's adapters each of ours talks to.
    fn pairs(&self) -> Vec<(String, Vec<(String, String)>)> {
        let Some(peer) = &self.peer else {
            return Vec::new();
        };
        let of_place = |location| {
            let walk = self.matrix.walk(location, 0, |_| true);
            let pairs = walk.into_iter().filter_map(|ours| {
                let theirs = self
                    .matrix
                    .pair(location, ours, peer, location, 0, |_| true);
                theirs.map(|theirs| (ours.to_owned(), theirs.to_owned()))
            });
            (location.to_string(), pairs.collect())
        };
        self.matrix.locations().map(of_place).collect()
    }

    /// Adds what it knows to the object of a machine.
    pub(super) fn add_to(&self, object: &mut Value) {
        let matrix = serde_json::from_str(&self.matrix.to_json());
        object["priority_matrix"] = matrix.expect("it is written as JSON");
        let adapters = self.machine.adapters.iter().map(adapter);
        object["adapters"] = adapters.collect();
        if self.peer.is_some() {
            let pairs = self.pairs().into_iter().map(|(location, pairs)| {
                let pairs: Map<String, Value> = pairs
                    .into_iter()
                    .map(|(ours, theirs)| (ours, theirs.into()))
                    .collect();
                (location, Value::Object(pairs))
            });
            object["pairs"] = Value::Object(pairs.collect());
        }
    }
}

fn adapter(adapter: &Adapter) -> Value {
    let addresses = adapter.addresses.iter();
    let addresses: Vec<String> = addresses
        .map(|address| format!("{}/{}", address.ip, address.prefix_bits))
        .collect();
    json!({
        "name": adapter.name,
        "interfaces": adapter.interfaces,
        "rdma": adapter.is_rdma,
        "pci": adapter.pci.as_ref().map(|path| path.device().to_string()),
        "numa": adapter.numa,
        "addresses": addresses,
    })
}

/// Columns as wide as their widest cell; the last ones are left out where all say nothing.
fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let is_used = |column: &usize| rows.iter().skip(1).any(|row| row[*column] != "-");
    let used = (0..COLUMNS).rev().find(is_used).map_or(1, |last| last + 1);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths: Vec<usize> = (0..used).filter_map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        text.push_str(line.join(GAP).trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_say_nothing_at_the_end_are_left_out() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [
            row(["memory", "nearest", "then"]),
            row(["*", "a b", "-"]),
            row(["cpu:10", "-", "-"]),
        ];
        assert_eq!(aligned(&rows), "memory  nearest\n*       a b\ncpu:10  -\n");
        assert_eq!(aligned(&rows[..1]), "memory\n");
    }
}
