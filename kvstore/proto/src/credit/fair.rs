//! Max-min fairness: who wants little has it, and the others have as much as each other.

/// What somebody may have at most where all who want something share `quota_bytes`; what they want is in `wants`, in any
/// order. [`u64::MAX`] where there is enough for all.
pub(super) fn level_bytes(quota_bytes: u64, mut wants: Vec<u64>) -> u64 {
    wants.sort_unstable();
    let mut left_bytes = quota_bytes;
    let mut count = wants.len() as u64;
    for want_bytes in wants {
        let share = left_bytes / count;
        if want_bytes > share {
            return share;
        }
        left_bytes -= want_bytes;
        count -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_little_has_it_and_others_as_much_as_each_other() {
        for (quota, wants, level) in [
            (10, vec![], u64::MAX),
            (10, vec![10], u64::MAX),
            (10, vec![11], 10),
            (10, vec![0, 4, 6], u64::MAX),
            (10, vec![7, 1, 7], 4),
            (10, vec![9, 9, 9], 3),
            (0, vec![1], 0),
        ] {
            assert_eq!(level_bytes(quota, wants.clone()), level, "{wants:?}");
            let lent: u64 = wants.iter().map(|&want| want.min(level)).sum();
            assert!(lent <= quota);
        }
    }
}
