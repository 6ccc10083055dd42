//! What outlasts a node of a world: its copies, as a drive has them, and what its homes knew when it left in order, or had kept
//! before it was killed.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::home::{Home, HomeMemory};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::CopyInfo;

use super::{Event, World};

/// Of one core.
#[derive(Default)]
pub(crate) struct Saved {
    copies: BTreeMap<CopyPlace, (CopyInfo, u64)>,
    memory: Option<HomeMemory>,
}

/// The same core in each life.
const fn any_life(seat: Seat) -> Seat {
    Seat {
        incarnation: 0,
        ..seat
    }
}

impl World {
    /// What each core of a node has, and serves.
    pub(super) fn copies_of(&self, node: usize) -> Vec<BTreeMap<CopyPlace, (CopyInfo, u64)>> {
        let cores = self.nodes[node].cores.iter();
        let copies = cores.map(|core| {
            let served = core.owner.served();
            let served = served.map(|(place, info)| (place, (info, core.stored[&place])));
            served.collect()
        });
        copies.collect()
    }

    /// The node ends, which had these copies.
    pub(super) fn save(
        &mut self,
        node: usize,
        had: Vec<BTreeMap<CopyPlace, (CopyInfo, u64)>>,
        has_left: bool,
    ) {
        if !self.has_drives {
            return;
        }
        for (core, copies) in had.into_iter().enumerate() {
            let seat = self.nodes[node].seat(core);
            let core = &mut self.nodes[node].cores[core];
            let memory = if has_left {
                core.home.memory()
            } else {
                // It counts if it is of the last map, which is compared.
                core.kept.take()
            };
            // It goes through the drive.
            let memory = memory.map(|memory| {
                let pieces = memory.encode(seat.node).expect("it is short");
                let pieces: Vec<_> = pieces.collect();
                let read = HomeMemory::decode(seat.node, &pieces);
                read.expect("what was written")
            });
            self.saved.insert(any_life(seat), Saved { copies, memory });
        }
    }

    /// The node begins a new life with what the former one left.
    pub(super) fn restore(&mut self, node: usize) {
        for core in 0..self.nodes[node].cores.len() {
            let seat = self.nodes[node].seat(core);
            let Some(saved) = self.saved.remove(&any_life(seat)) else {
                continue;
            };
            if let Some(memory) = saved.memory {
                let local = self.nodes[node].local(self.now);
                self.nodes[node].cores[core].home.recall(local, memory);
                self.oracle.add("recalled", 1);
            }
            let since = saved.copies.keys().map(|place| place.version.epoch).max();
            let namespace = self.namespace;
            let copies = saved.copies.iter();
            let copies = copies.map(|(place, (info, _))| (place.key, *info, namespace));
            let its = &mut self.nodes[node].cores[core];
            its.owner.restore(since.unwrap_or(Epoch(0)), copies);
            for (place, (info, value)) in saved.copies {
                its.stored.insert(place, value);
                // Its home does not know of it yet.
                let is_replica = true;
                let value = (value, info.generation.0);
                self.oracle
                    .on_copy(self.now, seat, place, value, is_replica);
                self.returned.insert((seat, place));
            }
        }
    }

    /// The drive of a core keeps what its home knows, or forgets it, which takes a while.
    pub(super) fn keep(&mut self, node: usize, core: usize) {
        if !self.has_drives {
            return;
        }
        let local = self.nodes[node].local(self.now);
        let seat = self.nodes[node].seat(core);
        let its = &mut self.nodes[node].cores[core];
        let kept = its.home.keep(local);
        let is_kept = kept.is_some();
        if is_kept || (its.home.is_outdated() && !its.is_forgetting) {
            its.is_forgetting = !is_kept;
            let us = 10 + u64::from(self.random.below(60_000));
            self.after(us, Event::Kept { seat, kept });
        }
    }

    /// The drive has done that. What was forgotten meanwhile is not kept.
    pub(super) fn on_kept(&mut self, seat: Seat, kept: Option<HomeMemory>) {
        let Some(node) = self.index_of(seat) else {
            return;
        };
        let its = &mut self.nodes[node].cores[usize::from(seat.core.0)];
        if kept.is_some() {
            if !its.is_forgetting {
                its.kept = kept;
                self.oracle.add("kept", 1);
            }
            return;
        }
        (its.kept, its.is_forgetting) = (None, false);
        self.at_home(seat, Home::has_forgotten);
    }

    /// How many copies are served that a former life had.
    pub(super) fn count_returned(&mut self) {
        let returned = self.returned.iter().filter(|(seat, place)| {
            let node = self.index_of(*seat);
            node.is_some_and(|node| {
                let owner = &self.nodes[node].cores[usize::from(seat.core.0)].owner;
                owner.copy(*place).is_some()
            })
        });
        let count = returned.count() as u64;
        self.oracle.add("returned", count);
        if self.ends_all {
            self.oracle.add("returned of all", count);
        } else if self.ends_some {
            self.oracle.add("returned of some", count);
        }
    }
}
