//! What an engine has done.

use std::cell::{Cell, RefCell};

use lunette_transfer_proto::engine::rail::Carrier;
use lunette_transfer_proto::engine::scheduler::Outcome;
use lunette_transfer_proto::engine::segment::Way;

use super::batch::Intent;

/// What an engine has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that this engine's transfers have read.
    pub read_bytes: u64,
    /// Bytes that this engine's transfers have written.
    pub written_bytes: u64,
    /// Bytes that transfers have moved, by [`Intent::ALL`].
    pub intent_bytes: [u64; Intent::ALL.len()],
    /// Of those that were read and written, the bytes that were copied between two engines of this host
    /// and not sent.
    pub same_host_bytes: u64,
    /// Of those that were read and written, the bytes that adapters have moved from memory to memory.
    pub one_sided_bytes: u64,
    /// Notifications that adapters have brought, by messages.
    pub one_sided_notes: u64,
    /// Of the ones that were copied, the bytes that went through the session's window: copied twice.
    pub window_bytes: u64,
    /// Of those that were read and written, the bytes that went between this engine's memory and its own
    /// namespaces ([`NamespaceSegment`](super::NamespaceSegment)), straight over their connections.
    pub namespace_bytes: u64,
    /// Transfers that were done.
    pub transfers_done: u64,
    /// Transfers of which something failed.
    pub transfers_failed: u64,
    /// Slices that were sent, those sent again included.
    pub slices: u64,
    /// Slices that were sent again.
    pub slices_resent: u64,
    /// Slices that were taken back from a slow rail and sent over another one.
    pub slices_stolen: u64,
    /// Bytes that peers have read here. What peers of this host copy from memory that they have mapped is
    /// not seen.
    pub served_read_bytes: u64,
    /// Bytes that peers have written here.
    pub served_written_bytes: u64,
    /// Requests of peers that were refused.
    pub refused: u64,
    /// Writes of peers whose bytes arrived damaged.
    pub corrupted: u64,
    /// Writes of peers whose connection ended in their middle.
    pub torn: u64,
    /// Connections that peers have asked to be ended.
    pub fenced: u64,
}

impl Statistics {
    /// What this and `other` have done together.
    pub(super) fn and(self, other: Self) -> Self {
        let mut intent_bytes = self.intent_bytes;
        for (sum, more) in intent_bytes.iter_mut().zip(other.intent_bytes) {
            *sum += more;
        }
        Self {
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            intent_bytes,
            same_host_bytes: self.same_host_bytes + other.same_host_bytes,
            one_sided_bytes: self.one_sided_bytes + other.one_sided_bytes,
            one_sided_notes: self.one_sided_notes + other.one_sided_notes,
            window_bytes: self.window_bytes + other.window_bytes,
            namespace_bytes: self.namespace_bytes + other.namespace_bytes,
            transfers_done: self.transfers_done + other.transfers_done,
            transfers_failed: self.transfers_failed + other.transfers_failed,
            slices: self.slices + other.slices,
            slices_resent: self.slices_resent + other.slices_resent,
            slices_stolen: self.slices_stolen + other.slices_stolen,
            served_read_bytes: self.served_read_bytes + other.served_read_bytes,
            served_written_bytes: self.served_written_bytes + other.served_written_bytes,
            refused: self.refused + other.refused,
            corrupted: self.corrupted + other.corrupted,
            torn: self.torn + other.torn,
            fenced: self.fenced + other.fenced,
        }
    }
}

/// What is known of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailStatistics {
    /// How it carries bytes.
    pub carrier: Carrier,
    /// Which of our adapters it uses, by its place among those that are in use; of a stream none.
    pub adapter: Option<usize>,
    /// The peer's address; of a rail of adapters that of the first stream.
    pub address: std::net::SocketAddr,
    /// The address of this host that it was connected from, if it was chosen
    /// ([`EngineOptions::sources`](super::EngineOptions::sources)).
    pub source: Option<std::net::IpAddr>,
    /// Whether it carries slices.
    pub is_up: bool,
    /// Bytes per second, as far as is known.
    pub bytes_per_second: u64,
    /// Bytes that are under way on it.
    pub under_way_bytes: u64,
    /// How often it was connected.
    pub connections: u32,
    /// Failures since bytes last came through.
    pub failures: u32,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    sums: RefCell<Statistics>,
    fenced: Cell<u64>,
}

impl Counts {
    pub(super) fn read(&self) -> Statistics {
        Statistics {
            fenced: self.fenced.get(),
            ..*self.sums.borrow()
        }
    }

    pub(super) fn fenced(&self) {
        self.fenced.set(self.fenced.get() + 1);
    }

    pub(super) fn served(&self, way: Way, len_bytes: u64) {
        let mut sums = self.sums.borrow_mut();
        match way {
            Way::Read => sums.served_read_bytes += len_bytes,
            Way::Write => sums.served_written_bytes += len_bytes,
        }
    }

    pub(super) fn refused(&self) {
        self.sums.borrow_mut().refused += 1;
    }

    pub(super) fn corrupted(&self) {
        self.sums.borrow_mut().corrupted += 1;
    }

    pub(super) fn torn(&self) {
        self.sums.borrow_mut().torn += 1;
    }

    /// Bytes of one slice have been moved.
    pub(super) fn moved(&self, way: Way, intent: Intent, len_bytes: u64) {
        let mut sums = self.sums.borrow_mut();
        match way {
            Way::Read => sums.read_bytes += len_bytes,
            Way::Write => sums.written_bytes += len_bytes,
        }
        sums.intent_bytes[intent.index()] += len_bytes;
    }

    /// Of what has been moved, bytes that were copied between two engines of this host.
    pub(super) fn moved_here(&self, len_bytes: u64) {
        self.sums.borrow_mut().same_host_bytes += len_bytes;
    }

    /// Of what has been moved, bytes that adapters moved.
    pub(super) fn moved_one_sided(&self, len_bytes: u64) {
        self.sums.borrow_mut().one_sided_bytes += len_bytes;
    }

    /// A notification went by adapters.
    pub(super) fn told_one_sided(&self) {
        self.sums.borrow_mut().one_sided_notes += 1;
    }

    /// Of what has been moved, bytes of this engine's namespaces.
    pub(super) fn moved_by_namespace(&self, len_bytes: u64) {
        self.sums.borrow_mut().namespace_bytes += len_bytes;
    }

    /// Of those, bytes that went through the window.
    pub(super) fn moved_by_window(&self, len_bytes: u64) {
        self.sums.borrow_mut().window_bytes += len_bytes;
    }

    /// A transfer is over.
    pub(super) fn finished(&self, is_done: bool, outcome: &Outcome) {
        let mut sums = self.sums.borrow_mut();
        if is_done {
            sums.transfers_done += 1;
        } else {
            sums.transfers_failed += 1;
        }
        sums.slices += outcome.slices;
        sums.slices_resent += outcome.resent;
        sums.slices_stolen += outcome.stolen;
    }
}
