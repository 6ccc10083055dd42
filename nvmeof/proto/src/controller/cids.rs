//! Which ids of commands are in use on one connection.

const IDS: usize = 1 << u16::BITS;
const WORD_BITS: usize = u64::BITS as usize;

/// A set of ids of commands: any id may be looked up and changed in the same short time, however many
/// there are, and the host chooses them.
#[derive(Clone, Debug)]
pub(super) struct Cids {
    words: Box<[u64]>,
}

impl Cids {
    /// None.
    pub(super) fn new() -> Self {
        Self {
            words: vec![0; IDS / WORD_BITS].into(),
        }
    }

    pub(super) fn has(&self, cid: u16) -> bool {
        let (word, bit) = place(cid);
        self.words[word] & bit != 0
    }

    /// Takes an id out if it is there, and in if it is not.
    pub(super) fn flip(&mut self, cid: u16) {
        let (word, bit) = place(cid);
        self.words[word] ^= bit;
    }
}

fn place(cid: u16) -> (usize, u64) {
    let cid = usize::from(cid);
    (cid / WORD_BITS, 1 << (cid % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_stand_for_one_another() {
        let mut cids = Cids::new();
        let some = [0, 1, 63, 64, 0x1040, u16::MAX];
        for cid in some {
            assert!(!cids.has(cid));
            cids.flip(cid);
        }
        let found: Vec<u16> = (0..=u16::MAX).filter(|&cid| cids.has(cid)).collect();
        assert_eq!(found, some);
        cids.flip(64);
        assert!(!cids.has(64) && cids.has(63));
    }
}
