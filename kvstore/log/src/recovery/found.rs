//! What was found: the latest record of each key, and the removals.

use lunette_runtime_core::mutant::{self, Mutant};

use super::RecoveryReport;
use crate::format::batch::Entry;
use crate::index::{ByFingerprint, Located, Location};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The record of each key that is in the latest batch, and that batch.
    records: ByFingerprint<(Located, u64)>,
    /// The last batch that removals of each key cover.
    removed: ByFingerprint<u64>,
}

impl Found {
    /// Takes what is in a batch, which begins at this block of this segment.
    pub(super) fn take(
        &mut self,
        (segment_index, at_block): (u32, u32),
        sequence: u64,
        entries: &[Entry],
        generation: u64,
        report: &mut RecoveryReport,
    ) {
        for entry in entries {
            match entry {
                Entry::Removal(removal) => {
                    report.removals += 1;
                    let covers = self.removed.entry(removal.fingerprint).or_default();
                    *covers = removal.covers.max(*covers);
                }
                Entry::Object(object)
                    if object.record.generation < generation && !is_generation_ignored() =>
                {
                    report.dead_records += 1;
                }
                Entry::Object(object) => {
                    let location = Location::of(segment_index, at_block, object);
                    let mut located = Located::new(object, location, false);
                    let fingerprint = object.record.fingerprint;
                    let Some((known, known_in)) = self.records.get_mut(&fingerprint) else {
                        self.records.insert(fingerprint, (located, sequence));
                        continue;
                    };
                    report.dead_records += 1;
                    known.has_history = true;
                    if sequence >= *known_in {
                        located.has_history = true;
                        (*known, *known_in) = (located, sequence);
                    }
                }
            }
        }
    }

    /// The records that are alive.
    pub(super) fn merged(&mut self, report: &mut RecoveryReport) -> ByFingerprint<Located> {
        let removed = core::mem::take(&mut self.removed);
        let records = core::mem::take(&mut self.records);
        let before = records.len();
        let alive = records.into_iter().filter(|(fingerprint, (_, sequence))| {
            let covers = removed.get(fingerprint);
            covers.is_none_or(|covers| sequence > covers)
                || mutant::is_on(Mutant::LogTombstoneIgnored)
        });
        let index: ByFingerprint<Located> = alive
            .map(|(fingerprint, (located, _))| (fingerprint, located))
            .collect();
        report.dead_records += (before - index.len()) as u64;
        report.records = index.len() as u64;
        index
    }
}

fn is_generation_ignored() -> bool {
    mutant::is_on(Mutant::LogGenerationIgnored)
}
