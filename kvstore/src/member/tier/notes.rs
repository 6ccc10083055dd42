//! What a record tells of its copy.
//!
//! Key, version, length and checksum are the record's own. The rest is in its notes and in its generation:
//!
//! ```text
//!   notes        bits 0-7: copies wanted   8: upsert   9: in parts   10: strict   11-31: cluster, low 21 bits
//!   generation   bits 0-31: generation                                            32-63: cluster, high 32 bits
//! ```
//!
//! Of each copy at least one is wanted: a record of which none is tells what a home knew ([`remembering`](super::remembering)).
//!
//! So a record tells of which cluster it is, whatever that is called: one that was begun anew under an old name counts
//! its epochs from the beginning. Of the cluster's 64 bits, 53 are kept.

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, WriteKind};
use lunette_kvstore_proto::{key, version};

const UPSERT: u32 = 1 << 8;
const STRIPED: u32 = 1 << 9;
const STRICT: u32 = 1 << 10;
const CLUSTER_SHIFT: u32 = 11;
const CLUSTER_LOW: u32 = u32::MAX >> CLUSTER_SHIFT;

pub(super) fn fingerprint_of(place: CopyPlace) -> Fingerprint {
    Fingerprint(place.key.0)
}

pub(super) const fn version_of(place: CopyPlace) -> Version {
    Version {
        epoch: place.version.epoch.0,
        sequence: place.version.sequence,
    }
}

pub(super) const fn place_of(record: &Record) -> CopyPlace {
    CopyPlace {
        key: key::Fingerprint(record.fingerprint.0),
        version: version::Version {
            epoch: Epoch(record.version.epoch),
            sequence: record.version.sequence,
        },
    }
}

/// Whether a record has the bytes of a copy of its key.
pub(super) fn is_of(record: &Record, info: &CopyInfo) -> bool {
    let is_same_version = place_of(record).version == info.version;
    is_same_version && (record.len_bytes, record.crc32c) == (info.len_bytes, info.crc32c)
}

/// The record of a copy of this cluster; `None` after more generations than it has room for.
pub(super) fn record_of(
    cluster: u64,
    place: CopyPlace,
    info: &CopyInfo,
    namespace: NamespaceKind,
) -> Option<Record> {
    let generation = u32::try_from(info.generation.0).ok()?;
    let (high, low) = halves(cluster);
    let flags = [
        (info.kind == WriteKind::Upsert, UPSERT),
        (info.form == Form::Striped, STRIPED),
        (namespace == NamespaceKind::Strict, STRICT),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);
    let flags = flags.fold(0, |all, (_, flag)| all | flag);
    Some(Record {
        fingerprint: fingerprint_of(place),
        version: version_of(place),
        generation: u64::from(high) << 32 | u64::from(generation),
        notes: u32::from(info.wanted) | flags | low << CLUSTER_SHIFT,
        len_bytes: info.len_bytes,
        crc32c: info.crc32c,
    })
}

/// What a record tells of its copy, if it is of this cluster.
pub(super) fn copy_of(
    cluster: u64,
    record: &Record,
) -> Option<(key::Fingerprint, CopyInfo, NamespaceKind)> {
    let (high, low) = halves(cluster);
    let is_same = (record.generation >> 32, record.notes >> CLUSTER_SHIFT) == (high.into(), low);
    if !is_same || is_memory(cluster, record) {
        return None;
    }
    let is = |flag: u32| record.notes & flag != 0;
    let place = place_of(record);
    let [wanted, ..] = record.notes.to_le_bytes();
    let info = CopyInfo {
        version: place.version,
        kind: if is(UPSERT) {
            WriteKind::Upsert
        } else {
            WriteKind::Put
        },
        form: if is(STRIPED) {
            Form::Striped
        } else {
            Form::Whole
        },
        generation: Generation(record.generation & u64::from(u32::MAX)),
        wanted,
        len_bytes: record.len_bytes,
        crc32c: record.crc32c,
    };
    let namespace = if is(STRICT) {
        NamespaceKind::Strict
    } else {
        NamespaceKind::Cache
    };
    Some((place.key, info, namespace))
}

/// What is told of a record that is no copy: it has what the home of this core knew under a map of that epoch, and is the so
/// manieth that was written.
pub(super) fn memory_record(cluster: u64, epoch: Epoch, sequence: u64) -> Record {
    let (high, low) = halves(cluster);
    Record {
        version: Version {
            epoch: epoch.0,
            sequence,
        },
        generation: u64::from(high) << 32,
        notes: low << CLUSTER_SHIFT,
        ..Record::default()
    }
}

/// Whether a record is no copy's, whatever cluster it is of.
pub(super) const fn is_no_copy(record: &Record) -> bool {
    record.notes & !(u32::MAX << CLUSTER_SHIFT) == 0
}

/// Whether it is such a one, of this cluster.
pub(super) fn is_memory(cluster: u64, record: &Record) -> bool {
    let expected = memory_record(cluster, Epoch(0), 0);
    (record.generation, record.notes) == (expected.generation, expected.notes)
}

/// The bits of a cluster's identity that are kept.
fn halves(cluster: u64) -> (u32, u32) {
    let high = u32::try_from(cluster >> 32).expect("32 bits");
    let low = u32::try_from(cluster & u64::from(CLUSTER_LOW)).expect("21 bits");
    (high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_all_of_its_copy_and_of_which_cluster_it_is() {
        let cluster = 0xfedc_ba98_7654_3210;
        let place = CopyPlace {
            key: key::Fingerprint(u128::MAX - 5),
            version: version::Version {
                epoch: Epoch(7),
                sequence: u64::MAX,
            },
        };
        for kind in [WriteKind::Put, WriteKind::Upsert] {
            for form in [Form::Whole, Form::Striped] {
                for namespace in [NamespaceKind::Cache, NamespaceKind::Strict] {
                    let info = CopyInfo {
                        version: place.version,
                        kind,
                        form,
                        generation: Generation(u32::MAX.into()),
                        wanted: 8,
                        len_bytes: u32::MAX,
                        crc32c: 0x8765_4321,
                    };
                    let record = record_of(cluster, place, &info, namespace).expect("it fits");
                    assert!(is_of(&record, &info));
                    assert_eq!(place_of(&record), place);
                    let found = copy_of(cluster, &record);
                    assert_eq!(found, Some((place.key, info, namespace)));
                    for bit in (0..21).chain(32..64) {
                        assert_eq!(copy_of(cluster ^ 1 << bit, &record), None, "{bit}");
                    }
                    let later = CopyInfo {
                        generation: Generation(1 << 32),
                        ..info
                    };
                    assert_eq!(record_of(cluster, place, &later, namespace), None);
                    assert!(!is_memory(cluster, &record));
                    let memory = memory_record(cluster, Epoch(7), 9);
                    assert!(is_memory(cluster, &memory));
                    assert_eq!(copy_of(cluster, &memory), None);
                    assert!(!is_memory(cluster ^ 1, &memory));
                }
            }
        }
    }
}
