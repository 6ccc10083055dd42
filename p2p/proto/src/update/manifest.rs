//! Which buckets an update has, as they are told of: an object of its own, under the update's name.
//!
//! ```text
//! "LUNETTEU" | format u32 | id u64 | buckets u32 | of each: version of its object u64, staging memory in bytes u64
//! ```
//!
//! The bucket `n` of it is the object `NAME/ID/n`, where the id is drawn by who offers it.

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

use super::BUCKETS_MAX;
use crate::object::{NameFault, ObjectName, Version};

const MAGIC: [u8; 8] = *b"LUNETTEU";
const FORMAT: u32 = 1;

/// One bucket, as it is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRecord {
    /// The version of its object.
    pub version: Version,
    /// How much staging memory it takes, in bytes.
    pub staging_bytes: u64,
}

/// Which buckets there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What tells the objects of this update from those of another one of its name.
    pub id: u64,
    /// In the order in which they are taken.
    pub buckets: Vec<BucketRecord>,
}

/// What is no manifest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ManifestFault {
    /// It begins otherwise.
    #[error("it is no update")]
    NoManifest,
    /// It is of a format that is not known.
    #[error("it is an update of format {0}")]
    Format(u32),
    /// It ends before its end, or goes on behind it.
    #[error("it is not as long as it says")]
    Length,
    /// It has no bucket, or more than [`BUCKETS_MAX`].
    #[error("{0} buckets: an update has 1 to {BUCKETS_MAX}")]
    Buckets(u32),
}

impl From<Truncated> for ManifestFault {
    fn from(_: Truncated) -> Self {
        Self::Length
    }
}

impl Manifest {
    /// The name of a bucket's object.
    ///
    /// # Errors
    /// [`NameFault`]: the update's name is too long for it.
    pub fn bucket_name(name: &ObjectName, id: u64, bucket: u32) -> Result<ObjectName, NameFault> {
        format!("{name}/{id:016x}/{bucket}").parse()
    }

    /// How much staging memory the longest bucket takes, in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        let each = self.buckets.iter().map(|bucket| bucket.staging_bytes);
        each.max().unwrap_or_default()
    }

    /// As it is written.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let count = u32::try_from(self.buckets.len()).expect("buckets are bounded");
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC).u32(FORMAT).u64(self.id).u32(count);
        for bucket in &self.buckets {
            writer.u64(bucket.version.0).u64(bucket.staging_bytes);
        }
        bytes
    }

    /// What was written.
    ///
    /// # Errors
    /// [`ManifestFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestFault> {
        let mut reader = Reader::new(bytes);
        if reader.array() != Ok(MAGIC) {
            return Err(ManifestFault::NoManifest);
        }
        let format = reader.u32()?;
        if format != FORMAT {
            return Err(ManifestFault::Format(format));
        }
        let id = reader.u64()?;
        let count = reader.u32()?;
        if !(1..=BUCKETS_MAX).contains(&(count as usize)) {
            return Err(ManifestFault::Buckets(count));
        }
        let mut buckets = Vec::with_capacity(count as usize);
        for _ in 0..count {
            buckets.push(BucketRecord {
                version: Version(reader.u64()?),
                staging_bytes: reader.u64()?,
            });
        }
        if !reader.is_empty() {
            return Err(ManifestFault::Length);
        }
        Ok(Self { id, buckets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(buckets: u64) -> Manifest {
        let bucket = |at| BucketRecord {
            version: Version(at + 100),
            staging_bytes: 256 * (at + 1),
        };
        Manifest {
            id: 0xABCD,
            buckets: (0..buckets).map(bucket).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for count in [1, 3, BUCKETS_MAX as u64] {
            let manifest = manifest(count);
            assert_eq!(manifest.slot_bytes(), 256 * count);
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    }

    #[test]
    fn nothing_else_is_read() {
        let bytes = manifest(2).encode();
        for end in 0..bytes.len() {
            let cut = Manifest::decode(&bytes[..end]).expect_err("it is cut");
            assert!(matches!(
                cut,
                ManifestFault::NoManifest | ManifestFault::Length
            ));
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Manifest::decode(&longer), Err(ManifestFault::Length));
        let with = |at: usize, value: u32| {
            let mut changed = bytes.clone();
            changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
            Manifest::decode(&changed)
        };
        assert_eq!(with(0, 7), Err(ManifestFault::NoManifest));
        assert_eq!(with(8, 2), Err(ManifestFault::Format(2)));
        assert_eq!(with(20, 0), Err(ManifestFault::Buckets(0)));
        assert_eq!(with(20, u32::MAX), Err(ManifestFault::Buckets(u32::MAX)));
        assert_eq!(with(20, 3), Err(ManifestFault::Length));
    }

    #[test]
    fn buckets_have_names_of_their_own() {
        let name = |length: usize| "n".repeat(length).parse::<ObjectName>().expect("a name");
        let bucket = |name: &ObjectName| Manifest::bucket_name(name, 0xAB, 12);
        let expected = format!("{}/00000000000000ab/12", name(3));
        assert_eq!(bucket(&name(3)).map(|it| it.to_string()), Ok(expected));
        assert_eq!(bucket(&name(200)), Err(NameFault));
    }
}
