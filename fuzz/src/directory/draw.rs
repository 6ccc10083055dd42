//! What a member may say, however wrong: few keys, seats, epochs and versions, so that what is said
//! meets what is there.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_generate::Source;
use lunette_kvstore_proto::credit::CreditNews;
use lunette_kvstore_proto::groups::GroupNews;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    AskerId, Away, CopyPage, CopyPlace, Gone, HoldWish, Losses, Only, OpId, Recalled, Refusal,
    ToHome, ToOwner, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::GroupId;
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Tombstone, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};

const KEYS: u8 = 6;
const NODES: u8 = 4;

/// Mixes a number's bits, as a fingerprint's are.
const fn fingerprint(number: u8) -> Fingerprint {
    let number = number as u128 + 1;
    Fingerprint(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn key(source: &mut impl Source) -> Fingerprint {
    fingerprint(source.below(KEYS))
}

/// Which of the keys that are drawn this is, if any.
pub(crate) fn number_of(key: Fingerprint) -> Option<u8> {
    (0..KEYS).find(|&number| fingerprint(number) == key)
}

/// Of one of the groups that requests are in.
pub(crate) fn group_news(source: &mut impl Source) -> GroupNews {
    let group = GroupId::of(&[source.below(2)]);
    match source.below(4) {
        0 => GroupNews::Joined { group },
        1 => GroupNews::Left { group },
        2 => GroupNews::Broken { group },
        _ => GroupNews::Part { group },
    }
}

/// Of one of two tenants, in amounts that meet their quotas, and others.
pub(crate) fn credit_news(source: &mut impl Source) -> CreditNews {
    let tenant = TenantTag(u64::from(source.below(2)));
    let number = u64::from(source.u8());
    let mut bytes = || match source.below(4) {
        0 => u64::MAX,
        _ => u64::from(source.u8()) << 12,
    };
    let (one, other, third) = (bytes(), bytes(), bytes());
    match source.below(3) {
        0 => CreditNews::Use {
            tenant,
            number,
            have_bytes: one,
            want_bytes: other,
            need_bytes: third,
        },
        1 => CreditNews::Lent {
            tenant,
            number,
            max_bytes: one,
            is_last: source.below(2) == 0,
        },
        _ => CreditNews::Wanted { tenant },
    }
}

pub(crate) fn seat(source: &mut impl Source) -> Seat {
    let number = source.u8();
    Seat {
        node: NodeId(u64::from(number % NODES) + 1),
        incarnation: 1 + u64::from(number >> 7),
        core: CoreIndex(u16::from(number >> 4 & 1)),
    }
}

/// A map of some nodes; mostly node 1 is one of them.
pub(crate) fn map(source: &mut impl Source, epoch: Epoch, generation: u64) -> ClusterMap {
    let chosen = source.u8();
    let members = (0..NODES).filter(|node| chosen >> node & 1 == u8::from(*node != 0));
    let members = members.map(|node| MapMember {
        home_weight: u32::from(chosen >> 5) + 1,
        cores: 1 + u16::from(node % 2),
        is_draining: node != 0 && chosen & 0xc0 == 0xc0,
        ..MapMember::new(
            NodeId(u64::from(node) + 1),
            1 + u64::from(node != 0 && chosen & 0x10 != 0),
            ([127, 0, 0, 1], 7000 + u16::from(node)).into(),
        )
    });
    ClusterMap::new(epoch, generation, members.collect()).expect("ids differ, and cores are few")
}

pub(crate) fn namespace(source: &mut impl Source) -> NamespaceKind {
    if source.flag() {
        NamespaceKind::Strict
    } else {
        NamespaceKind::Cache
    }
}

pub(crate) fn kind(source: &mut impl Source) -> WriteKind {
    if source.flag() {
        WriteKind::Upsert
    } else {
        WriteKind::Put
    }
}

/// Around what the machines know; now and then far beyond.
pub(crate) fn epoch(source: &mut impl Source, known: Epoch) -> Epoch {
    match source.below(16) {
        0 => Epoch(known.0.saturating_sub(1)),
        1 => Epoch(known.0 + 1),
        2 => Epoch(u64::MAX),
        3 => Epoch(0),
        _ => known,
    }
}

fn version(source: &mut impl Source, known: Epoch) -> Version {
    let epoch = epoch(source, known);
    let sequence = match source.below(16) {
        0 => u64::MAX,
        sequence => sequence.into(),
    };
    Version { epoch, sequence }
}

pub(crate) fn place(source: &mut impl Source, known: Epoch) -> CopyPlace {
    CopyPlace {
        key: key(source),
        version: version(source, known),
    }
}

pub(crate) fn info(source: &mut impl Source, known: Epoch) -> CopyInfo {
    let mut info = CopyInfo {
        version: version(source, known),
        kind: kind(source),
        form: Form::Whole,
        generation: Generation(source.below(3).into()),
        wanted: 1 + source.below(3),
        len_bytes: u32::from(source.u8()) << 20,
        crc32c: 7,
    };
    if info.len_bytes.trailing_zeros() == 20 {
        info.form = Form::Striped;
    }
    info
}

/// What a write says that its bytes are, rightly or not.
pub(crate) fn form(number: u8) -> Form {
    if number.is_multiple_of(16) {
        Form::Striped
    } else {
        Form::Whole
    }
}

/// What a removal is of, by how long it waits.
pub(crate) fn only(wait_ms: u32, known: Epoch) -> Only {
    match (wait_ms >> 4) % 8 {
        0 => Only::Whole,
        sequence @ 1..=2 => Only::Version {
            version: Version {
                epoch: known,
                sequence: sequence.into(),
            },
        },
        _ => Only::Any,
    }
}

pub(crate) fn hold(source: &mut impl Source) -> Option<HoldWish> {
    let number = source.u8();
    (number & 1 == 1).then(|| HoldWish {
        holder: u64::from(number >> 6),
        ttl_ms: if number & 2 == 0 { u32::MAX } else { 500 },
    })
}

fn op(source: &mut impl Source) -> OpId {
    OpId(source.below(24).into())
}

/// Somebody else's: those of the script have higher numbers.
fn stranger(source: &mut impl Source) -> (AskerId, RequestId) {
    let number = u64::from(source.u8());
    (AskerId(number >> 6), RequestId(number & 7))
}

pub(crate) fn to_home(source: &mut impl Source, known: Epoch) -> ToHome {
    match source.below(8) {
        0 => ToHome::Claim {
            op: op(source),
            key: key(source),
            kind: kind(source),
            namespace: namespace(source),
            wait_ms: u32::from(source.u8()) << 8,
        },
        1 => ToHome::Abandon {
            op: op(source),
            key: key(source),
        },
        2 => ToHome::Publish {
            op: op(source),
            key: key(source),
            info: info(source, known),
            namespace: namespace(source),
        },
        3 => {
            let CopyPlace { key, version } = place(source, known);
            ToHome::Retract {
                key,
                version,
                reuses: 0,
            }
        }
        4 => {
            let CopyPlace { key, version } = place(source, known);
            let order = u64::from(source.below(16));
            ToHome::Dropped {
                key,
                version,
                order,
            }
        }
        5 => {
            let CopyPlace { key, version } = place(source, known);
            let (asker, request) = stranger(source);
            ToHome::Gone {
                asker,
                request,
                key,
                version,
                namespace: namespace(source),
                hold: hold(source).unwrap_or(HoldWish {
                    holder: 0,
                    ttl_ms: 0,
                }),
            }
        }
        6 => ToHome::Settle,
        _ => {
            let CopyPlace { key, version } = place(source, known);
            let op = op(source);
            ToHome::Kept { op, key, version }
        }
    }
}

pub(crate) fn to_owner(source: &mut impl Source, known: Epoch) -> ToOwner {
    let which = source.below(10);
    let (op, CopyPlace { key, version }) = (op(source), place(source, known));
    match which {
        0 => ToOwner::Granted {
            op,
            key,
            version,
            generation: Generation(source.below(3).into()),
        },
        1 => ToOwner::Exists { op, key, version },
        2 => ToOwner::Refused {
            op,
            key,
            refusal: if source.flag() {
                Refusal::Busy
            } else {
                Refusal::Fenced
            },
        },
        3 => ToOwner::Recorded {
            op,
            key,
            version,
            is_cut_off: source.flag(),
            order: source.below(16).into(),
        },
        4 if op.0 % 4 == 3 => ToOwner::Replacing { op, key, version },
        4 => ToOwner::Lost { op, key, version },
        5 => ToOwner::Drop {
            key,
            version,
            order: source.below(16).into(),
            was_recorded: source.flag(),
        },
        // By what has been drawn already, so that inputs keep their meaning.
        6 => match op.0 % 3 {
            0 => ToOwner::Settled,
            1 => ToOwner::CameBack { key },
            _ => ToOwner::WasUsed {
                key,
                reuses: op.0.to_le_bytes()[0],
            },
        },
        7 => ToOwner::CopiesWanted {
            is_full: source.flag(),
            after: source.flag().then(|| place(source, known)),
        },
        8 => ToOwner::Replicate {
            key,
            version,
            missing: source.u8(),
            holders: (0..source.below(4))
                .map(|node| NodeId(node.into()))
                .collect(),
        },
        _ => {
            let (asker, request) = stranger(source);
            ToOwner::Serve {
                asker,
                request,
                key,
                version,
                namespace: namespace(source),
                hold: hold(source).unwrap_or(HoldWish {
                    holder: 0,
                    ttl_ms: 0,
                }),
            }
        }
    }
}

pub(crate) fn page(source: &mut impl Source, known: Epoch) -> CopyPage {
    let flags = source.u8();
    CopyPage {
        after: (flags & 1 != 0).then(|| place(source, known)),
        is_full: flags & 2 == 0,
        away: (flags & 4 != 0).then(|| Away {
            since: epoch(source, known),
            back: known,
        }),
        copies: (0..flags >> 6)
            .map(|_| (key(source), info(source, known)))
            .collect(),
        is_last: flags & 8 == 0,
    }
}

pub(crate) fn to_peer(source: &mut impl Source, known: Epoch) -> ToPeer {
    let CopyPlace { key, version } = place(source, known);
    let tombstone = Tombstone {
        version,
        generation: Generation(source.below(3).into()),
    };
    // Some numbers stand for what came later.
    let is_new = version.sequence % 8 == 7;
    match source.below(4) {
        0 if is_new => ToPeer::Left,
        0 => ToPeer::Bury { key, tombstone },
        1 if is_new => ToPeer::Complete,
        1 => ToPeer::Buried { key, version },
        2 if is_new => ToPeer::CompleteWanted,
        2 => ToPeer::TombstonesWanted {
            after: source.flag().then_some(key),
        },
        _ => {
            let after = source.flag().then_some(key);
            let horizon = source.flag().then(|| epoch(source, known));
            ToPeer::Tombstones(TombstonePage {
                after,
                horizon: horizon.unwrap_or(Epoch(0)),
                is_informed: horizon.is_some(),
                is_quiet: horizon.is_some_and(|horizon| horizon.0 % 2 == 1),
                tombstones: vec![(key, tombstone)],
                next: source.flag().then(|| self::key(source)),
                losses: losses(version),
                recalled: (version.sequence % 2 == 1).then(|| recalled(key, version, tombstone)),
            })
        }
    }
}

/// Two lives that have ended, one of them that of the node that speaks or recalls.
fn losses(version: Version) -> Losses {
    let gone = |node: u64, last| Gone {
        life: Some((NodeId(node), node)),
        last: Epoch(last),
    };
    let epoch = version.epoch.0;
    let group = vec![gone(version.sequence % 3, epoch), gone(7, epoch)];
    let past = if version.sequence % 5 == 4 {
        vec![group.clone()]
    } else {
        vec![]
    };
    let open = if version.sequence % 5 >= 3 {
        group
    } else {
        vec![]
    };
    Losses { open, past }
}

fn recalled(key: Fingerprint, version: Version, tombstone: Tombstone) -> Recalled {
    Recalled {
        incarnation: version.sequence % 3,
        epoch: version.epoch,
        homes: u32::from(key.0 % 2 == 1) + 1,
        cores: 1,
        horizon: Epoch(tombstone.generation.0),
        is_whole: version.sequence % 4 != 3,
        is_final: version.sequence % 8 < 4,
        losses: losses(version),
    }
}
