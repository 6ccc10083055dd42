//! Which cores carry a batch that a thread posts, and how many of its bytes each.

/// A part of a batch is no shorter than this: below, what a second core costs is more than it gains.
pub(super) const PART_BYTES_MIN: u64 = 1024 * 1024;
/// Parts are cut at multiples of this, so that they are received in whole pages.
const GRAIN_BYTES: u64 = 64 * 1024;

/// Spreads `total` bytes over cores of which each has some to move already, so that they end together as far
/// as parts of [`PART_BYTES_MIN`] allow: pairs of a core and its bytes, in the order of `loads`, which are
/// pairs of a core and what it has. At least one, unless there are no cores.
pub(super) fn spread(loads: &[(usize, u64)], total: u64) -> Vec<(usize, u64)> {
    let mut by_load = loads.to_vec();
    by_load.sort_by_key(|&(_, load)| load);
    let parts_max = usize::try_from(total / PART_BYTES_MIN).unwrap_or(usize::MAX);
    by_load.truncate(parts_max.max(1));
    // The longest queue is left out as long as the others are done before it anyway.
    while let Some(level) = level(&by_load, total)
        && let Some(&(_, most)) = by_load.last()
        && by_load.len() > 1
        && level < most + PART_BYTES_MIN
    {
        by_load.pop();
    }
    let Some(level) = level(&by_load, total) else {
        return Vec::new();
    };
    let mut left = total;
    let count = by_load.len();
    let parts = by_load.into_iter().enumerate().map(|(at, (core, load))| {
        let even = (level - load) / GRAIN_BYTES * GRAIN_BYTES;
        let bytes = if at + 1 == count {
            left
        } else {
            even.min(left)
        };
        left -= bytes;
        (core, bytes)
    });
    parts.collect()
}

/// How much each would have if all together had `total` more.
fn level(loads: &[(usize, u64)], total: u64) -> Option<u64> {
    let sum = loads
        .iter()
        .fold(total, |sum, &(_, load)| sum.saturating_add(load));
    sum.checked_div(loads.len() as u64)
}

/// A stretch of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Which.
    pub(super) request: usize,
    /// Where in it.
    pub(super) offset_bytes: u64,
    /// Its length.
    pub(super) len_bytes: u64,
}

/// Cuts requests of these lengths, in their order, into as many lists of stretches as `parts`, of so many
/// bytes each, which are as many as the requests have. Requests of no bytes go with the first.
pub(super) fn cut(requests: &[u64], parts: &[u64]) -> Vec<Vec<Stretch>> {
    let mut cut: Vec<Vec<Stretch>> = vec![Vec::new(); parts.len()];
    let mut part = 0;
    let mut room = parts.first().copied().unwrap_or(0);
    for (request, &len_bytes) in requests.iter().enumerate() {
        if len_bytes == 0 {
            cut[0].push(Stretch {
                request,
                offset_bytes: 0,
                len_bytes,
            });
        }
        let mut offset_bytes = 0;
        while offset_bytes < len_bytes {
            while room == 0 {
                part += 1;
                room = parts[part];
            }
            let taken = room.min(len_bytes - offset_bytes);
            cut[part].push(Stretch {
                request,
                offset_bytes,
                len_bytes: taken,
            });
            offset_bytes += taken;
            room -= taken;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_short_goes_to_the_core_with_least_to_do() {
        let loads = [(0, 5), (1, 3), (2, 4)];
        assert_eq!(spread(&loads, 0), [(1, 0)]);
        assert_eq!(spread(&loads, 2 * MIB - 1), [(1, 2 * MIB - 1)]);
        assert_eq!(spread(&[], 7), []);
    }

    #[test]
    fn what_is_long_goes_over_those_that_have_time_for_it() {
        let idle = [(0, 0), (1, 0)];
        assert_eq!(spread(&idle, 8 * MIB), [(0, 4 * MIB), (1, 4 * MIB)]);
        let busy = [(0, 6 * MIB), (1, 0)];
        assert_eq!(spread(&busy, 6 * MIB), [(1, 6 * MIB)]);
        assert_eq!(spread(&busy, 12 * MIB), [(1, 9 * MIB), (0, 3 * MIB)]);
        assert_eq!(spread(&busy, 7 * MIB), [(1, 7 * MIB)], "no part is short");
    }

    proptest! {
        #[test]
        fn parts_are_all_that_there_is_and_none_is_short(
            loads in prop::collection::vec(0_u64..(64 << 20), 1..9),
            requests in prop::collection::vec(0_u64..(9 << 20), 0..12),
        ) {
            let total: u64 = requests.iter().sum();
            let loads: Vec<(usize, u64)> = loads.into_iter().enumerate().collect();
            let parts = spread(&loads, total);
            let sum: u64 = parts.iter().map(|&(_, bytes)| bytes).sum();
            prop_assert_eq!(sum, total);
            for &(core, bytes) in &parts {
                prop_assert!(parts.len() == 1 || bytes + GRAIN_BYTES > PART_BYTES_MIN);
                prop_assert_eq!(parts.iter().filter(|part| part.0 == core).count(), 1);
            }
            let after = |core: usize| {
                let of = |list: &[(usize, u64)]| {
                    let found = list.iter().find(|&&(at, _)| at == core);
                    found.map_or(0, |&(_, bytes)| bytes)
                };
                (of(&parts) > 0).then(|| of(&loads) + of(&parts))
            };
            let ends: Vec<u64> = (0..loads.len()).filter_map(after).collect();
            if let (Some(&least), Some(&most)) = (ends.iter().min(), ends.iter().max()) {
                let grains = GRAIN_BYTES * (ends.len() as u64 + 1);
                prop_assert!(most - least <= grains, "{ends:?}");
            }
            let lengths: Vec<u64> = parts.iter().map(|&(_, bytes)| bytes).collect();
            let stretches = cut(&requests, &lengths);
            for (stretches, &bytes) in stretches.iter().zip(&lengths) {
                let sum: u64 = stretches.iter().map(|stretch| stretch.len_bytes).sum();
                prop_assert_eq!(sum, bytes);
            }
            let mut next = vec![0; requests.len()];
            let mut seen = vec![false; requests.len()];
            for stretch in stretches.iter().flatten() {
                prop_assert_eq!(stretch.offset_bytes, next[stretch.request]);
                next[stretch.request] += stretch.len_bytes;
                seen[stretch.request] = true;
            }
            prop_assert_eq!(next, requests);
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
