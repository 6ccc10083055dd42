//! Ages in uses of the cache, and the buckets that they are counted in.

/// How many buckets there are. The last one has no end.
pub(crate) const BUCKETS: usize = 40;
const FIRST_WIDTH: u64 = 16;

/// The first age that no longer belongs to a bucket: 16, 24, 32, 48, 64, 96 and so on.
pub(crate) const fn end_of(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS {
        return u64::MAX;
    }
    let doubled = FIRST_WIDTH << (bucket / 2);
    doubled + (bucket as u64 % 2) * (doubled / 2)
}

/// The first age of a bucket.
pub(crate) const fn start_of(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { end_of(bucket - 1) }
}

/// How many ages belong to a bucket; of the last one, as many as it begins at.
pub(crate) const fn width_of(bucket: usize) -> u64 {
    let start = start_of(bucket);
    if bucket + 1 >= BUCKETS {
        start
    } else {
        end_of(bucket) - start
    }
}

/// The bucket of an age.
pub(crate) fn bucket_of(age: u64) -> usize {
    if age < FIRST_WIDTH {
        return 0;
    }
    let doublings = age.ilog2();
    let upper_half = (age >> (doublings - 1)) & 1;
    let bucket = 2 * u64::from(doublings - FIRST_WIDTH.ilog2()) + upper_half + 1;
    usize::try_from(bucket)
        .expect("at most 122")
        .min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(start_of(bucket)), bucket);
            assert_eq!(bucket_of(end_of(bucket) - 1), bucket);
            assert!(width_of(bucket) > 0);
        }
        assert_eq!((end_of(0), end_of(1), end_of(2)), (16, 24, 32));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
