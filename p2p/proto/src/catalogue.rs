//! What is written of objects at the cluster's coordinator, in small keys.
//!
//! ```text
//!  <prefix>/p2p/objects/<name>                | LNPO | 1 | version (8) | chunk bytes (4) | n (4) | n lengths (8) | layout's writer (8), groups (4) | CRC |
//!  <prefix>/p2p/sums/<version>/<group>        | LNPS | 1 | n (4) | n CRC32C (4) | CRC |
//!  <prefix>/p2p/layouts/<version>/<epoch>/<group> | LNPL | 1 | n (4) | n tensors | CRC |
//!  <prefix>/p2p/holders/<version>/<epoch>     | LNPH | 1 | chunks (4) | keeps (1) | rack | n (1) | n addresses | CRC |
//! ```
//!
//! Each key is bound to the lease of a holder. An object's own keys are bound to whoever wrote them last: when that
//! one is gone, any other holder writes them again, so that an object is there as long as somebody has it. A layout may be
//! too long for one transaction, so each who writes it has keys of its own, which are there before the object says whose
//! they are, and end with the same lease. Sums are of
//! at most [`GROUP_CHUNKS`] chunks, 16 KiB; nobody writes a key that another holder writes as it goes along. Which chunks
//! a holder has is not written here, for it changes with each: holders tell each other
//! ([`message`](crate::message)).

use core::net::SocketAddr;

use lunette_cluster_proto::coordination::{
    Compare, Expected, KEY_BYTES_MAX, KeyRange, LeaseId, Op, Revision, TXN_OPS_MAX, Txn,
    VALUE_BYTES_MAX,
};
use lunette_cluster_proto::framing::{Frame, FrameFault};
use lunette_cluster_proto::rack::{RACK_BYTES_MAX, Rack};
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

use crate::layout::{GROUP_BYTES_MAX, GROUPS_MAX};
use crate::object::{
    BUFFERS_MAX, CHUNKS_MAX, GROUP_CHUNKS, NAME_BYTES_MAX, ObjectName, Shape, Version,
};
use crate::swarm::PeerId;

/// Most addresses of a holder.
pub const ADDRESSES_MAX: usize = 16;
/// Longest prefix of a cluster's keys, in bytes.
pub const PREFIX_BYTES_MAX: usize = 128;

const OBJECT: Frame = frame(*b"LNPO");
const SUMS: Frame = frame(*b"LNPS");
const HOLDER: Frame = frame(*b"LNPH");
const RECORD_VERSION: u16 = 1;

const _: () = assert!(PREFIX_BYTES_MAX + "/p2p/objects/".len() + NAME_BYTES_MAX <= KEY_BYTES_MAX);
const _: () = assert!(64 + BUFFERS_MAX * 8 <= VALUE_BYTES_MAX);
/// How many records of a layout go in one transaction: half a MiB.
const LAYOUT_TXN_GROUPS: usize = 8;
const _: () = assert!(LAYOUT_TXN_GROUPS <= TXN_OPS_MAX);
const _: () = assert!(LAYOUT_TXN_GROUPS * GROUP_BYTES_MAX / 3 * 4 < 1024 * 1024);
// An object and its checksums are one transaction, of less than etcd's 1.5 MiB in base64.
const _: () = assert!((CHUNKS_MAX / GROUP_CHUNKS) as usize + 2 <= TXN_OPS_MAX);
const _: () = assert!((CHUNKS_MAX as usize * 4 + BUFFERS_MAX * 8) / 3 * 4 < 1024 * 1024);

/// A value that is not what its key is for: something else writes under the prefix, or a later version does.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecordFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is something else, or of a later version.
    #[error("not a record of version {RECORD_VERSION}")]
    Unknown,
    /// Its bytes are damaged.
    #[error("the record is damaged")]
    Damaged,
    /// A field is out of its bounds, or there is something behind the last.
    #[error("the record makes no sense: {what}")]
    Nonsense {
        /// Which field.
        what: &'static str,
    },
}

/// What is written of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Which registration it is.
    pub version: Version,
    /// What it is made of.
    pub shape: Shape,
    /// Where its tensors are told of, if they are.
    pub layout: Option<LayoutPlace>,
}

/// Where an object's layout is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutPlace {
    /// By whom.
    pub writer: PeerId,
    /// In how many records: 1 to [`GROUPS_MAX`].
    pub groups: u32,
}

impl ObjectRecord {
    /// Its value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let buffers = self.shape.buffers();
        OBJECT.seal(|out| {
            let count = u32::try_from(buffers.len()).expect("buffers are bounded");
            let mut out = Writer::new(out);
            out.u64(self.version.0).u32(self.shape.chunk_bytes());
            out.u32(count);
            for &len_bytes in buffers {
                out.u64(len_bytes);
            }
            let layout = self.layout.map(|it| (it.writer.0, it.groups));
            let (writer, groups) = layout.unwrap_or_default();
            out.u64(writer).u32(groups);
        })
    }

    /// What a value says.
    ///
    /// # Errors
    /// [`RecordFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordFault> {
        let mut reader = OBJECT.open(bytes)?;
        let version = Version(reader.u64()?);
        let chunk_bytes = reader.u32()?;
        let count = reader.u32()? as usize;
        if count > BUFFERS_MAX {
            return Err(RecordFault::Nonsense { what: "buffers" });
        }
        let lens = (0..count).map(|_| reader.u64());
        let buffers = lens.collect::<Result<_, _>>()?;
        let shape = Shape::new(chunk_bytes, buffers);
        let shape = shape.map_err(|_| RecordFault::Nonsense { what: "shape" })?;
        let (writer, groups) = (PeerId(reader.u64()?), reader.u32()?);
        if groups > GROUPS_MAX || (groups == 0 && writer.0 != 0) {
            return Err(RecordFault::Nonsense { what: "groups" });
        }
        end(&reader)?;
        Ok(Self {
            version,
            shape,
            layout: (groups > 0).then_some(LayoutPlace { writer, groups }),
        })
    }
}

/// The checksums (CRC32C) of one group of chunks.
#[must_use]
pub fn encode_sums(sums: &[u32]) -> Vec<u8> {
    let count = u32::try_from(sums.len()).expect("a group is bounded");
    assert!(count <= GROUP_CHUNKS, "a group is bounded");
    SUMS.seal(|out| {
        Writer::new(out).u32(count);
        for &sum in sums {
            Writer::new(out).u32(sum);
        }
    })
}

/// The checksums of a group that has `expected` chunks.
///
/// # Errors
/// [`RecordFault`]; also if there are more or fewer.
pub fn decode_sums(bytes: &[u8], expected: u32) -> Result<Vec<u32>, RecordFault> {
    let mut reader = SUMS.open(bytes)?;
    let count = reader.u32()?;
    if count != expected || count > GROUP_CHUNKS {
        return Err(RecordFault::Nonsense { what: "sums" });
    }
    let sums = (0..count).map(|_| reader.u32());
    let sums = sums.collect::<Result<_, _>>()?;
    end(&reader)?;
    Ok(sums)
}

/// Which chunks of an object somebody is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All of them.
    All,
    /// Those with parts of tensors that it wants.
    Some,
    /// It takes parts of tensors and keeps no chunk. It is in the catalogue so that it can be answered.
    Nothing,
}

impl Keeps {
    const fn to_wire(self) -> u8 {
        match self {
            Self::All => 1,
            Self::Some => 2,
            Self::Nothing => 3,
        }
    }

    const fn from_wire(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::All),
            2 => Some(Self::Some),
            3 => Some(Self::Nothing),
            _ => None,
        }
    }

    /// Whether others may have something from there.
    #[must_use]
    pub const fn is_serving(self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

/// What is written of one who has an object, or some of its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderRecord {
    /// What fails together with it.
    pub rack: Rack,
    /// How many chunks it had when it wrote this.
    pub chunks: u32,
    /// What it will have of them.
    pub keeps: Keeps,
    /// Where its engine listens.
    pub addresses: Vec<SocketAddr>,
}

impl HolderRecord {
    /// Its value. Only the first [`ADDRESSES_MAX`] addresses are told.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = self.addresses.len().min(ADDRESSES_MAX);
        HOLDER.seal(|out| {
            let mut out = Writer::new(out);
            out.u32(self.chunks).u8(self.keeps.to_wire());
            out.short_bytes(self.rack.label().as_bytes());
            out.u8(u8::try_from(count).expect("it is at most 16"));
            for address in self.addresses.iter().take(count) {
                out.short_bytes(address.to_string().as_bytes());
            }
        })
    }

    /// What a value says.
    ///
    /// # Errors
    /// [`RecordFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordFault> {
        let mut reader = HOLDER.open(bytes)?;
        let chunks = reader.u32()?;
        let keeps = Keeps::from_wire(reader.u8()?);
        let keeps = keeps.ok_or(RecordFault::Nonsense { what: "keeps" })?;
        let rack = read_rack(&mut reader)?;
        let count = usize::from(reader.u8()?);
        if !(1..=ADDRESSES_MAX).contains(&count) {
            return Err(RecordFault::Nonsense { what: "addresses" });
        }
        let addresses = (0..count).map(|_| read_address(&mut reader));
        let addresses = addresses.collect::<Result<_, _>>()?;
        end(&reader)?;
        Ok(Self {
            rack,
            chunks,
            keeps,
            addresses,
        })
    }
}

fn read_rack(reader: &mut Reader<'_>) -> Result<Rack, RecordFault> {
    let label = reader.short_bytes()?;
    if label.is_empty() {
        return Ok(Rack::NONE);
    }
    let label = label
        .get(..RACK_BYTES_MAX.min(label.len()))
        .filter(|some| some.len() == label.len());
    let label = label.and_then(|label| core::str::from_utf8(label).ok());
    let rack = label.and_then(|label| label.parse().ok());
    rack.ok_or(RecordFault::Nonsense { what: "rack" })
}

fn read_address(reader: &mut Reader<'_>) -> Result<SocketAddr, RecordFault> {
    let text = core::str::from_utf8(reader.short_bytes()?);
    let address = text.ok().and_then(|text| text.parse().ok());
    address.ok_or(RecordFault::Nonsense { what: "address" })
}

impl From<FrameFault> for RecordFault {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::Truncated(fault) => Self::Truncated(fault),
            FrameFault::Unknown => Self::Unknown,
            FrameFault::Damaged => Self::Damaged,
        }
    }
}

/// Records of one kind.
pub(crate) const fn frame(magic: [u8; 4]) -> Frame {
    Frame {
        magic,
        version: RECORD_VERSION,
    }
}

pub(crate) const fn end(reader: &Reader<'_>) -> Result<(), RecordFault> {
    if reader.is_empty() {
        Ok(())
    } else {
        Err(RecordFault::Nonsense { what: "length" })
    }
}

/// Where a cluster's objects are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    prefix: String,
}

/// No prefix for keys: it has at most [`PREFIX_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a prefix of keys has 1 to {PREFIX_BYTES_MAX} bytes")]
pub struct PrefixFault;

impl Catalogue {
    /// Below the prefix of a cluster.
    ///
    /// # Errors
    /// [`PrefixFault`].
    pub fn new(prefix: &str) -> Result<Self, PrefixFault> {
        if !(1..=PREFIX_BYTES_MAX).contains(&prefix.len()) {
            return Err(PrefixFault);
        }
        let prefix = prefix.to_owned();
        Ok(Self { prefix })
    }

    /// The key of an object.
    #[must_use]
    pub fn object_key(&self, name: &ObjectName) -> Vec<u8> {
        format!("{}/p2p/objects/{name}", self.prefix).into_bytes()
    }

    /// The keys of objects whose names begin so.
    #[must_use]
    pub fn objects(&self, beginning: &str) -> KeyRange {
        KeyRange::prefix(format!("{}/p2p/objects/{beginning}", self.prefix))
    }

    /// The name in an object's key.
    #[must_use]
    pub fn name_of(&self, key: &[u8]) -> Option<ObjectName> {
        let all = format!("{}/p2p/objects/", self.prefix);
        let name = key.strip_prefix(all.as_bytes())?;
        core::str::from_utf8(name).ok()?.parse().ok()
    }

    /// The key of a group's checksums.
    #[must_use]
    pub fn sums_key(&self, version: Version, group: u32) -> Vec<u8> {
        format!("{}/p2p/sums/{version}/{group:08x}", self.prefix).into_bytes()
    }

    /// The key of a group of a layout, as somebody has written it.
    #[must_use]
    pub fn layout_key(&self, version: Version, writer: PeerId, group: u32) -> Vec<u8> {
        let epoch = writer.0;
        let all = format!("{}/p2p/layouts/{version}", self.prefix);
        format!("{all}/{epoch:016x}/{group:08x}").into_bytes()
    }

    /// Writes a layout's records, in a few transactions. It goes before [`claim`](Self::claim).
    #[must_use]
    pub fn put_layout(
        &self,
        version: Version,
        writer: PeerId,
        groups: &[Vec<u8>],
        lease: LeaseId,
    ) -> Vec<Txn> {
        let puts = groups.iter().zip(0..).map(|(group, index)| Op::Put {
            key: self.layout_key(version, writer, index),
            value: group.clone(),
            lease: Some(lease),
        });
        let puts: Vec<_> = puts.collect();
        let txns = puts.chunks(LAYOUT_TXN_GROUPS).map(|puts| Txn {
            compare: Vec::new(),
            success: puts.to_vec(),
            failure: Vec::new(),
        });
        txns.collect()
    }

    /// Removes a layout as somebody has written it.
    #[must_use]
    pub fn remove_layout(&self, version: Version, writer: PeerId) -> Op {
        let epoch = writer.0;
        let all = format!("{}/p2p/layouts/{version}/{epoch:016x}/", self.prefix);
        Op::Delete(KeyRange::prefix(all))
    }

    /// The key of a holder.
    #[must_use]
    pub fn holder_key(&self, version: Version, holder: PeerId) -> Vec<u8> {
        let epoch = holder.0;
        format!("{}/p2p/holders/{version}/{epoch:016x}", self.prefix).into_bytes()
    }

    /// The keys of a version's holders.
    #[must_use]
    pub fn holders(&self, version: Version) -> KeyRange {
        KeyRange::prefix(format!("{}/p2p/holders/{version}/", self.prefix))
    }

    /// The holder in a key.
    #[must_use]
    pub fn holder_of(&self, version: Version, key: &[u8]) -> Option<PeerId> {
        let all = format!("{}/p2p/holders/{version}/", self.prefix);
        let epoch = key.strip_prefix(all.as_bytes())?;
        let epoch = core::str::from_utf8(epoch).ok()?;
        if epoch.len() != 16 {
            return None;
        }
        u64::from_str_radix(epoch, 16).ok().map(PeerId)
    }

    /// Writes what is said of a holder.
    #[must_use]
    pub fn put_holder(
        &self,
        version: Version,
        holder: PeerId,
        record: &HolderRecord,
        lease: LeaseId,
    ) -> Op {
        Op::Put {
            key: self.holder_key(version, holder),
            value: record.encode(),
            lease: Some(lease),
        }
    }

    /// Writes an object with its checksums, all together: unless the name is taken, or in the place of whatever has
    /// it. Where it is taken the answer is who has it.
    ///
    /// # Panics
    /// If there are more or fewer checksums than chunks.
    #[must_use]
    pub fn claim(
        &self,
        name: &ObjectName,
        record: &ObjectRecord,
        sums: &[u32],
        lease: LeaseId,
        may_replace: bool,
    ) -> Txn {
        assert_eq!(sums.len(), record.shape.chunks() as usize);
        let key = self.object_key(name);
        let groups = sums.chunks(GROUP_CHUNKS as usize).zip(0..);
        let puts = groups.map(|(sums, group)| Op::Put {
            key: self.sums_key(record.version, group),
            value: encode_sums(sums),
            lease: Some(lease),
        });
        let object = Op::Put {
            key: key.clone(),
            value: record.encode(),
            lease: Some(lease),
        };
        let is_free = (!may_replace).then(|| Compare::absent(key.clone()));
        Txn {
            compare: is_free.into_iter().collect(),
            success: puts.chain([object]).collect(),
            failure: vec![Op::Range(KeyRange::one(key))],
        }
    }

    /// Removes an object with its checksums, if its key was last changed at `modified`.
    #[must_use]
    pub fn remove(&self, name: &ObjectName, version: Version, modified: Revision) -> Txn {
        let key = self.object_key(name);
        let sums = format!("{}/p2p/sums/{version}/", self.prefix);
        let layouts = format!("{}/p2p/layouts/{version}/", self.prefix);
        Txn {
            compare: vec![Compare {
                key: key.clone(),
                expected: Expected::Modified(modified),
            }],
            success: vec![
                Op::Delete(KeyRange::one(key)),
                Op::Delete(KeyRange::prefix(sums)),
                Op::Delete(KeyRange::prefix(layouts)),
            ],
            failure: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::coordination::{Answer, Ask, Outcome};
    use lunette_cluster_proto::coordinator::Coordinator;
    use lunette_runtime_core::time::Time;

    use super::*;

    fn shape() -> Shape {
        Shape::new(4096, vec![5000, 0, 1]).unwrap()
    }

    fn object(version: u64) -> ObjectRecord {
        ObjectRecord {
            version: Version(version),
            shape: shape(),
            layout: None,
        }
    }

    fn holder(addresses: usize) -> HolderRecord {
        HolderRecord {
            rack: "r1".parse().unwrap(),
            chunks: 7,
            keeps: Keeps::All,
            addresses: vec!["[::1]:7600".parse().unwrap(); addresses],
        }
    }

    #[test]
    fn records_come_back() {
        let (writer, groups) = (PeerId(u64::MAX), GROUPS_MAX);
        for layout in [None, Some(LayoutPlace { writer, groups })] {
            let object = ObjectRecord {
                layout,
                ..object(9)
            };
            assert_eq!(ObjectRecord::decode(&object.encode()), Ok(object));
        }
        let sums = vec![1, 2, u32::MAX];
        assert_eq!(decode_sums(&encode_sums(&sums), 3), Ok(sums));
        for rack in [Rack::NONE, "a-rack".parse().unwrap()] {
            for keeps in [Keeps::All, Keeps::Some, Keeps::Nothing] {
                let record = HolderRecord {
                    rack,
                    keeps,
                    ..holder(2)
                };
                assert_eq!(HolderRecord::decode(&record.encode()), Ok(record));
            }
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let nonsense = |what| RecordFault::Nonsense { what };
        let sums = encode_sums(&[1, 2]);
        assert_eq!(decode_sums(&sums, 3), Err(nonsense("sums")));
        let full = vec![0; GROUP_CHUNKS as usize];
        assert_eq!(decode_sums(&encode_sums(&full), GROUP_CHUNKS), Ok(full));
        let none = HolderRecord::decode(&holder(0).encode());
        assert_eq!(none, Err(nonsense("addresses")));
        let many = HolderRecord::decode(&holder(ADDRESSES_MAX + 1).encode()).unwrap();
        assert_eq!(many.addresses.len(), ADDRESSES_MAX, "the first ones");
        let buffers = OBJECT.seal(|out| {
            Writer::new(out).u64(1).u32(4096).u32(u32::MAX);
        });
        let decoded = ObjectRecord::decode(&buffers);
        assert_eq!(decoded, Err(nonsense("buffers")));
        let layout = Some(LayoutPlace {
            writer: PeerId(1),
            groups: GROUPS_MAX + 1,
        });
        let many = ObjectRecord {
            layout,
            ..object(1)
        };
        let decoded = ObjectRecord::decode(&many.encode());
        assert_eq!(decoded, Err(nonsense("groups")));
        let long = HOLDER.seal(|out| {
            Writer::new(out).u32(1).u8(1).short_bytes(&[b'r'; 17]);
        });
        assert_eq!(HolderRecord::decode(&long), Err(nonsense("rack")));
        let odd = HOLDER.seal(|out| {
            Writer::new(out).u32(1).u8(4);
        });
        assert_eq!(HolderRecord::decode(&odd), Err(nonsense("keeps")));
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let object = object(9);
        let records = [object.encode(), encode_sums(&[1, 2, 3]), holder(2).encode()];
        for bytes in &records {
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                for damaged in [&damaged[..], &bytes[..at]] {
                    assert!(ObjectRecord::decode(damaged).is_err());
                    assert!(decode_sums(damaged, 3).is_err());
                    assert!(HolderRecord::decode(damaged).is_err());
                }
            }
        }
    }

    #[test]
    fn an_object_is_written_with_its_checksums_if_its_name_is_free() {
        let mut coordinator = Coordinator::default();
        let mut ask = |txn: Txn| {
            let answer = coordinator.handle(Time::from_ns(0), &Ask::Txn(txn));
            let Ok(Answer {
                revision,
                outcome: Outcome::Txn { succeeded, .. },
            }) = answer
            else {
                panic!("a transaction's: {answer:?}");
            };
            (succeeded, revision)
        };
        let catalogue = Catalogue::new("c").unwrap();
        let name = "a".parse().unwrap();
        let record = object;
        let lease = LeaseId::new(1);
        let claim = |version, may_replace| {
            catalogue.claim(&name, &record(version), &[1, 2, 3], lease, may_replace)
        };
        assert!(!ask(catalogue.remove(&name, Version(1), Revision(9))).0);
        let mut free = claim(1, false);
        for op in &mut free.success {
            if let Op::Put { lease, .. } = op {
                *lease = None;
            }
        }
        assert!(ask(free.clone()).0);
        assert!(!ask(free.clone()).0, "it is taken");
        free.compare.clear();
        let (replaced, revision) = ask(free);
        assert!(replaced);
        assert!(!ask(catalogue.remove(&name, Version(1), Revision(1))).0);
        assert!(ask(catalogue.remove(&name, Version(1), revision)).0);
        assert!(claim(1, true).compare.is_empty());
        assert_eq!(claim(1, false).success.len(), 2);
    }

    #[test]
    fn layouts_are_written_in_short_transactions() {
        let catalogue = Catalogue::new("c").unwrap();
        let (version, writer, lease) = (Version(1), PeerId(2), LeaseId::new(3));
        let groups = vec![vec![0; 9]; 2 * LAYOUT_TXN_GROUPS + 1];
        let txns = catalogue.put_layout(version, writer, &groups, lease);
        let lens: Vec<_> = txns.iter().map(|txn| txn.success.len()).collect();
        assert_eq!(lens, [LAYOUT_TXN_GROUPS, LAYOUT_TXN_GROUPS, 1]);
        let Op::Delete(all) = catalogue.remove_layout(version, writer) else {
            panic!("it deletes");
        };
        for group in [0, 16] {
            assert!(all.contains(&catalogue.layout_key(version, writer, group)));
        }
        assert!(!all.contains(&catalogue.layout_key(version, PeerId(3), 0)));
    }

    #[test]
    fn keys_say_what_they_are_of() {
        let catalogue = Catalogue::new("cluster/a").unwrap();
        let name: ObjectName = "llama/70b".parse().unwrap();
        let key = catalogue.object_key(&name);
        assert_eq!(catalogue.name_of(&key), Some(name));
        assert!(catalogue.objects("llama/").contains(&key));
        assert!(!catalogue.objects("qwen").contains(&key));
        let (version, holder) = (Version(1), PeerId(u64::MAX));
        let key = catalogue.holder_key(version, holder);
        assert!(catalogue.holders(version).contains(&key));
        assert_eq!(catalogue.holder_of(version, &key), Some(holder));
        assert_eq!(catalogue.holder_of(Version(2), &key), None);
        assert_eq!(catalogue.name_of(&key), None);
        assert_eq!(Catalogue::new(""), Err(PrefixFault));
        assert!(Catalogue::new(&"p".repeat(PREFIX_BYTES_MAX)).is_ok());
        let long = "p".repeat(PREFIX_BYTES_MAX + 1);
        assert_eq!(Catalogue::new(&long), Err(PrefixFault));
    }
}
