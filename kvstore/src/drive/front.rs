//! What is where a log would begin.

use lunette_kvstore_log::format::claim::{CLAIM_OFFSET_BYTES, ClaimRecord};
use lunette_kvstore_log::format::superblock::{Identity, Superblock};
use lunette_kvstore_log::format::{BLOCK_BYTES, FormatFault, SUPERBLOCK_OFFSETS_BYTES};
use lunette_kvstore_log::recovery::OpenFault;

/// What is looked at before anything is written: also where file systems say that they are there.
pub(super) const FRONT_BYTES: u32 = 128 * 1024;

/// What is at the front of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// Nothing, or a claim alone.
    Blank,
    /// This very log.
    Ours,
    /// Nothing where a log would begin, and something behind that.
    SomethingBehind,
    /// Something else.
    Other,
}

impl Front {
    pub(super) fn of(bytes: &[u8], identity: Identity) -> Self {
        let block = |offset_bytes: u64| {
            let at = usize::try_from(offset_bytes).expect("it is in front");
            &bytes[at..at + BLOCK_BYTES as usize]
        };
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        let copies = SUPERBLOCK_OFFSETS_BYTES.map(block);
        let is_ours = |copy: &[u8]| {
            Superblock::decode(copy).is_ok_and(|superblock| superblock.identity == identity)
        };
        if copies.iter().any(|copy| is_ours(copy)) {
            return Self::Ours;
        }
        if !copies.iter().all(|copy| is_zero(copy)) {
            return Self::Other;
        }
        let claim = block(CLAIM_OFFSET_BYTES);
        let at = usize::try_from(CLAIM_OFFSET_BYTES).expect("it is in front");
        let is_claim_fine = is_zero(claim) || ClaimRecord::decode(claim).is_ok();
        let is_rest_zero = is_zero(&bytes[..at]) && is_zero(&bytes[at + claim.len()..]);
        if is_claim_fine && is_rest_zero {
            Self::Blank
        } else {
            Self::SomethingBehind
        }
    }
}

/// What a file with these bytes and no more is: nothing, or no log; `None` if it is to be read as a log.
pub(super) fn short_of(bytes: &[u8]) -> Option<OpenFault> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Some(OpenFault::Blank);
    }
    match Superblock::decode(bytes) {
        Err(fault @ (FormatFault::Absent { .. } | FormatFault::Truncated { .. })) => {
            Some(OpenFault::NoLog(fault))
        }
        // Whether the other copy is there, or says more.
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use lunette_kvstore_log::format::Geometry;
    use lunette_kvstore_log::format::claim::HolderName;

    use super::*;

    const IDENTITY: Identity = Identity {
        cluster: 1,
        device: 2,
    };

    fn superblock(identity: Identity) -> Vec<u8> {
        let superblock = Superblock {
            mount: 1,
            identity,
            log_id: 3,
            generation: 0,
            geometry: Geometry {
                capacity_bytes: 1 << 20,
                segment_bytes: 1 << 16,
            },
        };
        superblock.encode().to_vec()
    }

    #[test]
    fn nothing_is_claimed_that_is_neither_blank_nor_this_log() {
        let claim = ClaimRecord {
            holder: 1,
            taken: 1,
            beat: 1,
            lapse_ms: 1,
            is_held: true,
            name: HolderName::new("somebody"),
        };
        let other = Identity {
            cluster: 9,
            ..IDENTITY
        };
        let at = |offset_bytes: usize, block: &[u8]| {
            let mut front = vec![0; FRONT_BYTES as usize];
            front[offset_bytes..offset_bytes + block.len()].copy_from_slice(block);
            Front::of(&front, IDENTITY)
        };
        assert_eq!(at(0, &[0; 1]), Front::Blank);
        assert_eq!(at(48 << 10, &claim.encode()), Front::Blank);
        assert_eq!(at(0, &superblock(IDENTITY)), Front::Ours);
        assert_eq!(at(32 << 10, &superblock(IDENTITY)), Front::Ours);
        assert_eq!(at(0, &superblock(other)), Front::Other);
        // The superblocks of ext4 and of btrfs, and a claim's place with something else.
        assert_eq!(at(1024, b"ext4"), Front::Other);
        assert_eq!(at(64 << 10, b"btrfs"), Front::SomethingBehind);
        assert_eq!(at(48 << 10, b"LNCL"), Front::SomethingBehind);
        assert_eq!(at((128 << 10) - 1, &[1]), Front::SomethingBehind);
    }

    #[test]
    fn a_short_file_is_blank_something_else_or_to_be_read() {
        let mut ours = superblock(IDENTITY);
        assert_eq!(short_of(&[]), Some(OpenFault::Blank));
        assert_eq!(short_of(&[0; 5000]), Some(OpenFault::Blank));
        assert!(matches!(short_of(b"notes"), Some(OpenFault::NoLog(_))));
        assert!(matches!(short_of(&[b'x'; 9000]), Some(OpenFault::NoLog(_))));
        assert!(matches!(short_of(&ours[..100]), Some(OpenFault::NoLog(_))));
        assert_eq!(short_of(&ours), None);
        ours[60] ^= 1;
        assert_eq!(short_of(&ours), None);
    }
}
