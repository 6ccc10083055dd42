//! Matrices against a small model: each place has an answer while one of its adapters is up, a walk
//! visits each once and nearest first, turns are fair, JSON goes there and back, and no bytes from
//! outside break the reader.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use lunette_runtime_core::pci::PciAddress;
use lunette_transfer_proto::topology::{
    Adapter, Location, Machine, Matrix, Memory, Override, PciPath,
};
use proptest::prelude::*;

/// A machine of the model: adapters and memories, each with a node and a place on the bus.
type Place = (Option<u32>, Option<(u8, u8)>);

fn place() -> impl Strategy<Value = Place> {
    (
        prop::option::weighted(0.8, 0..4_u32),
        prop::option::weighted(0.8, (0..3_u8, 0..3_u8)),
    )
}

/// A device below one of three switches of one of three roots; each device has a place of its own.
fn path((root, switch): (u8, u8), number: usize) -> PciPath {
    let at = |bus, device| PciAddress {
        domain: 0,
        bus,
        device,
        function: 0,
    };
    let bridge = at(root * 0x40, switch);
    let number = u8::try_from(number).expect("few");
    PciPath::new(&[bridge], at(root * 0x40 + 1 + switch, number))
}

fn machine() -> impl Strategy<Value = Machine> {
    let adapters = prop::collection::vec(place(), 0..9);
    let devices = prop::collection::vec(place(), 0..5);
    (adapters, devices, 0..4_u32).prop_map(|(adapters, devices, nodes)| {
        let adapters = adapters.into_iter().enumerate();
        let adapters = adapters.map(|(number, (numa, pci))| Adapter {
            name: format!("mlx5_{number}"),
            interfaces: Vec::new(),
            is_rdma: true,
            pci: pci.map(|pci| path(pci, number)),
            numa,
            addresses: Vec::new(),
        });
        let host = (0..nodes).map(|node| Memory {
            location: Location::Cpu(node),
            numa: Some(node),
            pci: None,
        });
        let devices = devices.into_iter().zip(0..);
        let devices = devices.map(|((numa, pci), index)| Memory {
            location: Location::cuda(index),
            numa,
            pci: pci.map(|pci| path(pci, 16 + index as usize)),
        });
        Machine {
            adapters: adapters.collect(),
            memories: host.chain(devices).collect(),
        }
    })
}

fn location() -> impl Strategy<Value = Location> {
    prop_oneof![
        Just(Location::Any),
        (0..5_u32).prop_map(Location::Cpu),
        (0..6_u32).prop_map(Location::cuda),
    ]
}

/// How far an adapter is, by the model: another node counts more than any number of hops.
fn distance(adapter: &Adapter, memory: &Memory, is_node_used: bool) -> (bool, usize) {
    let is_elsewhere = is_node_used && adapter.numa != memory.numa;
    let hops = match (&memory.pci, &adapter.pci) {
        (Some(here), Some(there)) => here.hops(there),
        (Some(_), None) => usize::MAX,
        (None, _) => 0,
    };
    (is_elsewhere, hops)
}

proptest! {
    #[test]
    fn who_is_first_is_nearest_and_everybody_is_there_once(machine in machine()) {
        let matrix = machine.matrix().expect("a matrix");
        let all: BTreeSet<&str> = machine.adapters.iter().map(|a| &*a.name).collect();
        for memory in &machine.memories {
            let row = matrix.row(&memory.location).expect("each has a row");
            let named: Vec<&str> = row.iter().flatten().copied().collect();
            prop_assert_eq!(named.len(), all.len());
            prop_assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), all.clone());
            let is_beside = |a: &&Adapter| memory.numa.is_some() && a.numa == memory.numa;
            let is_node_used = memory.numa.is_some()
                && (memory.pci.is_none() || machine.adapters.iter().any(|a| is_beside(&a)));
            let of = |name: &str| {
                distance(machine.adapter(name).expect("it is there"), memory, is_node_used)
            };
            let nearest = machine.adapters.iter().map(|a| of(&a.name)).min();
            if let Some(nearest) = nearest {
                let found: BTreeSet<&str> = row[0].iter().copied().collect();
                // Memory of the host whose node has no adapter has an empty first tier.
                let expected: BTreeSet<&str> = all
                    .iter()
                    .copied()
                    .filter(|name| of(name) == nearest && !(memory.pci.is_none() && nearest.0))
                    .filter(|_| memory.numa.is_some() || memory.pci.is_some())
                    .collect();
                prop_assert_eq!(found, expected);
            }
            for (nearer, farther) in row.iter().zip(row.iter().skip(1)) {
                for pair in nearer.iter().flat_map(|a| farther.iter().map(move |b| (a, b))) {
                    prop_assert!(of(pair.0).0 <= of(pair.1).0, "a node before another");
                }
            }
        }
    }

    #[test]
    fn a_walk_visits_each_that_is_up_once_and_attempts_follow_it(
        machine in machine(),
        at in location(),
        turn in any::<u64>(),
        down in any::<u16>(),
        attempts in prop::collection::vec(any::<u32>(), 1..5),
    ) {
        let matrix = machine.matrix().expect("a matrix");
        let is_up = |name: &str| {
            let number: u32 = name.trim_start_matches("mlx5_").parse().expect("a number");
            down & (1 << number) == 0
        };
        let walk = matrix.walk(&at, turn, is_up);
        let visited: BTreeSet<&str> = walk.iter().copied().collect();
        let up: BTreeSet<&str> = machine
            .adapters
            .iter()
            .map(|a| &*a.name)
            .filter(|name| is_up(name))
            .collect();
        prop_assert_eq!(walk.len(), visited.len());
        prop_assert_eq!(visited, up);
        // Nearer tiers first.
        let row = matrix.row(&at).or_else(|| matrix.row(&Location::Any)).expect("a row for any");
        let tier_of = |name: &str| row.iter().position(|tier| tier.contains(&name));
        prop_assert!(walk.windows(2).all(|pair| tier_of(pair[0]) <= tier_of(pair[1])));
        for attempt in attempts {
            let expected = (attempt as usize).checked_rem(walk.len()).map(|at| walk[at]);
            prop_assert_eq!(matrix.choose(&at, turn, attempt, is_up), expected);
        }
    }

    #[test]
    fn turns_are_fair_within_the_nearest_tier(
        machine in machine(),
        at in location(),
        start in 0..u64::MAX / 2,
    ) {
        let matrix = machine.matrix().expect("a matrix");
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let tier = matrix.walk(&at, 0, |_| true);
        let row = matrix.row(&at).or_else(|| matrix.row(&Location::Any)).expect("a row");
        let nearest = row.into_iter().find(|tier| !tier.is_empty()).unwrap_or_default();
        let rounds = 3 * nearest.len() as u64;
        for turn in start..start + rounds {
            let chosen = matrix.choose(&at, turn, 0, |_| true).expect("all are up");
            *counts.entry(chosen).or_default() += 1;
        }
        prop_assert_eq!(counts.len(), nearest.len());
        prop_assert!(counts.values().all(|&count| count == 3));
        prop_assert!(tier.len() >= nearest.len());
    }

    #[test]
    fn a_pair_is_found_while_one_of_the_peer_is_up_and_attempts_reach_all(
        ours in machine(),
        theirs in machine(),
        here in location(),
        there in location(),
        down in any::<u16>(),
    ) {
        let (ours, theirs) = (ours.matrix().expect("ours"), theirs.matrix().expect("theirs"));
        let is_up = |name: &str| {
            let number: u32 = name.trim_start_matches("mlx5_").parse().expect("a number");
            down & (1 << number) == 0
        };
        let up: BTreeSet<&str> =
            theirs.adapters().iter().map(String::as_str).filter(|name| is_up(name)).collect();
        for adapter in ours.walk(&here, 0, |_| true) {
            let pair = |attempt| ours.pair(&here, adapter, &theirs, &there, attempt, is_up);
            let count = u32::try_from(up.len()).expect("few");
            let reached: BTreeSet<&str> = (0..count).filter_map(pair).collect();
            prop_assert_eq!(&reached, &up);
            prop_assert_eq!(pair(0), pair(count), "round and round");
            prop_assert_eq!(pair(0).is_some(), !up.is_empty());
        }
    }

    #[test]
    fn json_goes_there_and_back(machine in machine()) {
        let matrix = machine.matrix().expect("a matrix");
        let text = matrix.to_json();
        let read = Matrix::from_json(text.as_bytes()).expect("its own form");
        prop_assert_eq!(read.to_json(), text.clone());
        prop_assert_eq!(read.adapters(), matrix.adapters());
        for location in matrix.locations() {
            let (was, is) = (matrix.row(location), read.row(location));
            let (was, is) = (was.expect("a row"), is.expect("the same row"));
            prop_assert_eq!(is.len(), 2);
            prop_assert_eq!(was.first().cloned().unwrap_or_default(), is[0].clone());
            prop_assert_eq!(was.concat(), is.concat());
        }
        // As an override of the same machine it says what was found.
        let said = Override::from_json(text.as_bytes()).expect("the same form");
        prop_assert_eq!(said.apply(&matrix).expect("all are known").to_json(), text);
    }

    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Matrix::from_json(&bytes));
        drop(Override::from_json(&bytes));
    }

    #[test]
    fn no_damage_to_a_good_file_breaks_the_reader(
        machine in machine(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..6),
    ) {
        let found = machine.matrix().expect("a matrix");
        let mut text = found.to_json().into_bytes();
        for (at, byte) in damage {
            let at = at.index(text.len());
            match byte {
                Some(byte) => text[at] = byte,
                None => drop(text.remove(at)),
            }
            if text.is_empty() {
                break;
            }
        }
        // Whatever is read, is as bounded as what was written, and can be written again.
        if let Ok(matrix) = Matrix::from_json(&text) {
            let again = matrix.to_json();
            prop_assert!(Matrix::from_json(again.as_bytes()).is_ok());
        }
        if let Ok(said) = Override::from_json(&text)
            && let Ok(matrix) = said.apply(&found)
        {
            let is_known = |name: &String| found.adapters().contains(name);
            prop_assert!(matrix.adapters().iter().all(is_known));
        }
    }
}

/// Another byte, more often one that means something; or none.
fn damage() -> impl Strategy<Value = Option<u8>> {
    let meaning = prop::sample::select(br#"{}[],:"\09-e. "#.to_vec());
    prop_oneof![
        3 => meaning.prop_map(Some),
        1 => any::<u8>().prop_map(Some),
        1 => Just(None),
    ]
}
