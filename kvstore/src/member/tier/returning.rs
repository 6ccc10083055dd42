//! What a former life of the core left on its drive.

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_log::record::Record;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::time;

use super::Tier;
use super::notes::copy_of;
use crate::drive::Drive;
use crate::member::core::MemberCore;

/// Copies that are taken in at one time: others want something of the core meanwhile.
const PER_TURN: usize = 1024;

/// Records that were found, until it is known of which cluster this core is.
#[derive(Debug, Default)]
pub(super) struct Former {
    records: Vec<Record>,
}

impl Former {
    /// Those of a drive that was opened.
    pub(super) fn of(drive: &Drive) -> Self {
        Self {
            records: drive.records(),
        }
    }
}

impl Tier {
    /// Whether it is known of which cluster this core is, and with that whose the records are.
    fn is_settled(&self) -> bool {
        self.cluster.get().is_some()
    }
}

impl MemberCore {
    fn restore(&self, since: Epoch, copies: &[(Fingerprint, CopyInfo, NamespaceKind)]) {
        let owner = &mut self.machines().borrow_mut().owner;
        owner.restore(since, copies.iter().copied());
    }

    /// It is of this cluster: what its drive has of it is told to the homes with the first map, which waits for this.
    pub(crate) async fn on_cluster(&self, id: u64) {
        let Some(tier) = self.tier().filter(|tier| !tier.is_settled()) else {
            return;
        };
        tier.cluster.set(Some(id));
        let Former { mut records } = tier.former.take();
        let memory = tier.recall((id, self.seat().node), &records).await;
        if let Some(memory) = memory {
            let (epoch, removals) = (memory.known.epoch.0, memory.tombstones.len());
            tracing::info!(epoch, removals, "what a former life knew of removals");
            let now = time::now();
            self.machines().borrow_mut().home.recall(now, memory);
        }
        // The order of the drive is nobody's.
        records.sort_unstable_by_key(|record| record.fingerprint);
        let copies = records.iter().filter_map(|record| copy_of(id, record));
        let copies: Vec<_> = copies.collect();
        // When the latest of them was written it had heard of all that had been removed by then.
        let since = copies.iter().map(|(_, info, _)| info.version.epoch).max();
        let since = since.unwrap_or(Epoch(0));
        let (found, count) = (records.len(), copies.len());
        tracing::info!(found, count, since = since.0, "copies of a former life");
        for some in copies.chunks(PER_TURN) {
            for &(key, info, _) in some {
                let version = info.version;
                self.tell_copy(CopyPlace { key, version }, "returned");
            }
            self.restore(since, some);
            time::yield_now().await;
        }
        tier.keeping.settle();
    }
}
