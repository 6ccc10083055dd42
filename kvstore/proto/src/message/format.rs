//! Versions of these formats: which a side speaks, and which two sides speak with each other.
//!
//! A node tells in its [`NodeCard`](super::NodeCard) which versions it speaks. Who connects to it speaks the
//! newest that both know, and is answered in the version of its question. So nodes and clients of
//! neighbouring versions work together, and a cluster is renewed node by node:
//!
//! | what | how a later version adds to it |
//! |---|---|
//! | messages of the [`directory`](super::directory) | a field goes into messages of that version only |
//! | [`NodeCard`](super::NodeCard), [`NodeStat`](super::NodeStat), members of maps and their registrations | a field goes behind the others: who does not know it skips it |
//!
//! What nodes of an earlier version write of others, a map for instance, lacks the fields that they do not
//! know. So each field of the second kind has a value that means "not told".

use core::fmt;

use lunette_runtime_core::codec::Reader;

use super::MessageFault;

/// A version of the formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FormatVersion(pub u8);

impl FormatVersion {
    /// The newest that this package speaks.
    #[cfg(not(feature = "next-version"))]
    pub const NEWEST: Self = Self(1);
    /// The newest that this package speaks.
    #[cfg(feature = "next-version")]
    pub const NEWEST: Self = Self(2);

    /// The version of a message that begins with it, as those of the [`directory`](super::directory) do.
    ///
    /// # Errors
    /// [`MessageFault::Version`]: this package does not speak it.
    pub fn of(body: &[u8]) -> Result<Self, MessageFault> {
        Self::take(&mut Reader::new(body))
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let found = Self(reader.u8()?);
        if FormatVersions::OURS.contains(found) {
            Ok(found)
        } else {
            let ours = FormatVersions::OURS;
            Err(MessageFault::Version { found, ours })
        }
    }
}

impl fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a side speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatVersions {
    /// The oldest, at least 1.
    pub min: FormatVersion,
    /// The newest, at least `min`.
    pub max: FormatVersion,
}

impl FormatVersions {
    /// Those that this package speaks.
    pub const OURS: Self = Self {
        min: FormatVersion(1),
        max: FormatVersion::NEWEST,
    };

    /// Whether this is one of them.
    #[must_use]
    pub fn contains(self, version: FormatVersion) -> bool {
        self.min <= version && version <= self.max
    }

    /// The newest version that both speak.
    #[must_use]
    pub fn newest_common(self, other: Self) -> Option<FormatVersion> {
        let newest = self.max.min(other.max);
        (self.contains(newest) && other.contains(newest)).then_some(newest)
    }

    pub(super) const fn is_valid(self) -> bool {
        1 <= self.min.0 && self.min.0 <= self.max.0
    }
}

impl fmt::Display for FormatVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// What only messages of the next version have. Who reads anything else there has read another version.
#[cfg(feature = "next-version")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next;

#[cfg(feature = "next-version")]
impl Next {
    /// What it is on the wire, and in the maps of the next version.
    pub const MARK: u32 = 0x6e65_7874;
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(min: u8, max: u8) -> FormatVersions {
        FormatVersions {
            min: FormatVersion(min),
            max: FormatVersion(max),
        }
    }

    #[test]
    fn two_sides_speak_the_newest_that_both_know() {
        for (ours, theirs, common) in [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 1), range(1, 2), Some(1)),
            (range(1, 3), range(2, 9), Some(3)),
            (range(2, 2), range(1, 9), Some(2)),
            (range(1, 1), range(2, 3), None),
            (range(4, 9), range(2, 3), None),
        ] {
            let common = common.map(FormatVersion);
            assert_eq!(ours.newest_common(theirs), common, "{ours} and {theirs}");
            assert_eq!(theirs.newest_common(ours), common, "{theirs} and {ours}");
        }
    }

    #[test]
    fn a_version_that_is_not_spoken_is_named_beside_those_that_are() {
        let ours = FormatVersions::OURS;
        for version in 0..=u8::MAX {
            let found = FormatVersion(version);
            let expected = if (ours.min..=ours.max).contains(&found) {
                Ok(found)
            } else {
                Err(MessageFault::Version { found, ours })
            };
            assert_eq!(FormatVersion::of(&[version, 7]), expected);
        }
        let fault = FormatVersion::of(&[9]).expect_err("not ours");
        let newest = FormatVersion::NEWEST;
        let text = format!("version 9 of the formats is not spoken here, but 1 to {newest}");
        assert_eq!(fault.to_string(), text);
        assert!(matches!(
            FormatVersion::of(&[]),
            Err(MessageFault::Truncated(_))
        ));
    }
}
