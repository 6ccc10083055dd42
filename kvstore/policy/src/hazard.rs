//! How likely a block is used next, by its class and by how long it was not used: learnt.
//!
//! A life table counts, per class and bucket of ages, how many blocks were used again at that age,
//! and how many became older. From time to time a model is fitted to it: the chance falls with the age
//! in one curve for all, and a class raises or lowers the whole curve by a product of factors, one for
//! each of its properties (proportional hazards; Cox 1972, and Breslow's estimate of the curve), and
//! then, where there are counts enough, by one of its own. A curve of its own for each class would say
//! more, and did worse: blocks come back in whole prompts, so a thousand uses in a cell are a few events.
//!
//! The curve only falls (it is pooled where the counts rise: isotonic regression). So the block of a
//! class that was used longest ago is the first to leave, and a victim is found by one look per class.

use crate::age::{BUCKETS, bucket_of, start_of, width_of};
use crate::class::{CLASSES, Class, Factor};

/// Rounds of fitting curve and factors in turn.
const ROUNDS: usize = 3;
/// Uses that a factor is held at 1 by, for want of counts.
const FACTOR_PRIOR: f64 = 50.0;
/// Uses that a class is held at the product of its factors by. A cell's uses are few events: see the
/// [module](self).
const CLASS_PRIOR: f64 = 2_000.0;
/// Uses in a bucket of which none was seen.
const USED_MIN: f64 = 1e-4;
/// Uses of the cache after which [`KEPT`] is left of the counts: the past is forgotten over some 100 times as many.
pub(crate) const AGING_USES: u64 = 1_000;
/// See [`AGING_USES`].
const KEPT: f64 = 0.99;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Blocks used again at this age.
    used: f64,
    /// Blocks that became older.
    outlived: f64,
}

/// What was counted, and the model fitted to it.
#[derive(Debug)]
pub(crate) struct Hazard {
    cells: Box<[[Cell; BUCKETS]; CLASSES]>,
    /// Chance of a use per unit of age, of a class whose factors are 1.
    curve: [f64; BUCKETS],
    factors: [f64; CLASSES],
}

impl Hazard {
    /// Without experience: the longer a block was not used, the less likely it is used.
    pub(crate) fn new() -> Self {
        let mut hazard = Self {
            cells: Box::new([[Cell::default(); BUCKETS]; CLASSES]),
            curve: [0.0; BUCKETS],
            factors: [1.0; CLASSES],
        };
        hazard.fit(AGING_USES);
        hazard
    }

    /// So many blocks were used again at this age.
    pub(crate) fn used(&mut self, class: Class, bucket: usize, blocks: u32) {
        self.cells[class.index()][bucket].used += f64::from(blocks);
    }

    /// So many blocks became older than this.
    pub(crate) fn outlived(&mut self, class: Class, bucket: usize, blocks: u32) {
        self.cells[class.index()][bucket].outlived += f64::from(blocks);
    }

    /// Chance of a use per unit of age. It never rises with the age.
    pub(crate) fn chance(&self, class: Class, age: u64) -> f64 {
        let bucket = bucket_of(age);
        let here = self.curve[bucket];
        let next = self.curve[(bucket + 1).min(BUCKETS - 1)];
        let into = to_f64(age - start_of(bucket)) / to_f64(width_of(bucket));
        self.factors[class.index()] * (here + (next - here) * into.min(1.0))
    }

    /// Fits the model to what was counted, and forgets a little of it: of the last so many uses of the cache, which are
    /// counted in steps of [`AGING_USES`].
    pub(crate) fn fit(&mut self, uses: u64) {
        let seen = Seen::of(&self.cells);
        let mut by_factor = [[1.0; Factor::VALUES_MAX]; Factor::ALL.len()];
        self.factors = [1.0; CLASSES];
        let mut expected = [0.0; CLASSES];
        for _ in 0..ROUNDS {
            self.curve = seen.curve(&self.factors);
            expected = seen.expected(&self.curve);
            for factor in Factor::ALL {
                let values = &mut by_factor[factor as usize];
                self.fit_factor(factor, values, &seen.used, &expected);
            }
        }
        self.fit_classes(&seen.used, &expected);
        self.keep_chains(&expected);
        let kept = (0..uses / AGING_USES).fold(1.0, |kept, _| kept * KEPT);
        for cell in self.cells.iter_mut().flatten() {
            cell.used *= kept;
            cell.outlived *= kept;
        }
    }

    /// Corrects the product of factors of each class by what was seen of that class.
    fn fit_classes(&mut self, used: &[f64; CLASSES], expected: &[f64; CLASSES]) {
        for ((factor, used), expected) in self.factors.iter_mut().zip(used).zip(expected) {
            *factor *= (CLASS_PRIOR + used) / (CLASS_PRIOR + *factor * expected);
        }
    }

    /// Makes a block that was used oftener never less likely used than one of otherwise its class: the
    /// start of a chain was used as often as what builds on it, or oftener, and has to outlive it.
    fn keep_chains(&mut self, expected: &[f64; CLASSES]) {
        for first in (0..CLASSES).step_by(Factor::VALUES_MAX) {
            // From the one that was used oftenest on, they may only fall.
            let of = |reuses: usize| {
                let class = first + Factor::VALUES_MAX - 1 - reuses;
                let weight = expected[class] + 1e-9;
                (self.factors[class] * weight, weight)
            };
            let mut pooled = falling::<{ Factor::VALUES_MAX }>(core::array::from_fn(of));
            pooled.reverse();
            for (factor, pooled) in self.factors[first..].iter_mut().zip(pooled) {
                *factor = pooled;
            }
        }
    }

    /// Fits one factor, given the curve and the others, and puts it into those of the classes.
    fn fit_factor(
        &mut self,
        factor: Factor,
        values: &mut [f64; Factor::VALUES_MAX],
        used: &[f64; CLASSES],
        expected: &[f64; CLASSES],
    ) {
        let mut used_of = [FACTOR_PRIOR; Factor::VALUES_MAX];
        let mut expected_of = [FACTOR_PRIOR; Factor::VALUES_MAX];
        for class in 0..CLASSES {
            let value = factor.value(class);
            let others = self.factors[class] / values[value];
            used_of[value] += used[class];
            expected_of[value] += others * expected[class];
        }
        for class in 0..CLASSES {
            let value = factor.value(class);
            self.factors[class] *= used_of[value] / expected_of[value] / values[value];
        }
        for value in 0..Factor::VALUES_MAX {
            values[value] = used_of[value] / expected_of[value];
        }
    }
}

/// What was counted, as a fit reads it.
struct Seen {
    /// Uses of each class.
    used: [f64; CLASSES],
    /// Uses in each bucket, of all classes.
    used_in: [f64; BUCKETS],
    /// How long blocks were in each bucket.
    exposed: Box<[[f64; BUCKETS]; CLASSES]>,
}

impl Seen {
    fn of(cells: &[[Cell; BUCKETS]; CLASSES]) -> Self {
        let mut seen = Self {
            used: [0.0; CLASSES],
            used_in: [0.0; BUCKETS],
            exposed: Box::new([[0.0; BUCKETS]; CLASSES]),
        };
        for (class, cells) in cells.iter().enumerate() {
            for (bucket, &cell) in cells.iter().enumerate() {
                seen.used[class] += cell.used;
                seen.used_in[bucket] += cell.used;
                seen.exposed[class][bucket] = exposure(cell, to_f64(width_of(bucket)));
            }
        }
        seen
    }

    /// The falling curve that fits best, given the factors.
    fn curve(&self, factors: &[f64; CLASSES]) -> [f64; BUCKETS] {
        let mut exposed_in: [f64; BUCKETS] = core::array::from_fn(|at| to_f64(width_of(at)));
        for (exposed, factor) in self.exposed.iter().zip(factors) {
            for (sum, exposed) in exposed_in.iter_mut().zip(exposed) {
                *sum += factor * exposed;
            }
        }
        let rates = core::array::from_fn(|at| (USED_MIN + self.used_in[at], exposed_in[at]));
        falling(rates)
    }

    /// Uses of each class to be expected of the time that its blocks were seen, if its factor were 1.
    fn expected(&self, curve: &[f64; BUCKETS]) -> [f64; CLASSES] {
        core::array::from_fn(|class| {
            let exposed = self.exposed[class].iter().zip(curve);
            exposed.map(|(exposed, rate)| rate * exposed).sum()
        })
    }
}

/// Sums by their weights, where neighbours are pooled until none is larger than the one before it.
fn falling<const N: usize>(steps: [(f64, f64); N]) -> [f64; N] {
    let mut pools = [(0.0, 0.0, 0); N];
    let mut count = 0;
    for (mut sum, mut weight) in steps {
        let mut pooled = 1;
        while count > 0 && pools[count - 1].0 * weight < sum * pools[count - 1].1 {
            count -= 1;
            sum += pools[count].0;
            weight += pools[count].1;
            pooled += pools[count].2;
        }
        pools[count] = (sum, weight, pooled);
        count += 1;
    }
    let mut means = [0.0; N];
    let pools = pools[..count].iter();
    let pooled = pools.flat_map(|&(sum, weight, pooled): &(f64, f64, usize)| {
        core::iter::repeat_n(sum / weight, pooled)
    });
    for (mean, pooled) in means.iter_mut().zip(pooled) {
        *mean = pooled;
    }
    means
}

/// How long blocks were in a bucket, in all.
fn exposure(cell: Cell, width: f64) -> f64 {
    (cell.outlived + cell.used / 2.0) * width
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ages are rounded where they exceed 2^53"
)]
const fn to_f64(age: u64) -> f64 {
    age as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Found, Use};

    fn class(reuses: u8) -> Class {
        Class::new(reuses, Use::default())
    }

    #[test]
    fn without_experience_what_is_older_is_less_likely_used() {
        let hazard = Hazard::new();
        for age in [0, 15, 16, 100, 5_000, 1 << 20] {
            assert!(hazard.chance(class(0), age) > hazard.chance(class(0), age * 4 + 40));
        }
    }

    #[test]
    fn chances_are_those_that_were_counted() {
        let mut hazard = Hazard::new();
        for _ in 0..90_000 {
            hazard.outlived(class(0), 0, 1);
            hazard.outlived(class(1), 0, 1);
        }
        for _ in 0..10_000 {
            hazard.used(class(0), 0, 1);
            for _ in 0..4 {
                hazard.used(class(1), 0, 1);
            }
        }
        hazard.fit(AGING_USES);
        let ratio = hazard.chance(class(1), 0) / hazard.chance(class(0), 0);
        let expected = (40.0 / 110.0) / (10.0 / 95.0);
        assert!(
            (ratio / expected - 1.0).abs() < 0.1,
            "{ratio}, not {expected}"
        );
        let per_use = hazard.chance(class(0), 0) * 16.0;
        assert!((per_use / (10.0 / 95.0) - 1.0).abs() < 0.1, "{per_use}");
    }

    #[test]
    fn a_chance_never_rises_with_the_age() {
        let mut hazard = Hazard::new();
        let used = Use {
            is_last: true,
            found: Found::Most,
        };
        for bucket in 0..BUCKETS - 1 {
            for at in 0..1_000 {
                hazard.outlived(class(0), bucket, 1);
                if bucket % 7 == 3 || at % (bucket + 1) == 0 {
                    hazard.used(Class::new(2, used), bucket, 1);
                }
            }
        }
        hazard.fit(AGING_USES);
        for class in [class(0), Class::new(2, used)] {
            let ages = (0..2_000).map(|at| at * at * 3);
            let chances: Vec<f64> = ages.map(|age| hazard.chance(class, age)).collect();
            assert!(chances.is_sorted_by(|younger, older| younger >= older));
            assert!(
                chances
                    .iter()
                    .all(|chance| chance.is_finite() && *chance > 0.0)
            );
        }
    }

    #[test]
    fn the_past_is_forgotten() {
        let mut hazard = Hazard::new();
        for _ in 0..10_000 {
            hazard.used(class(0), 0, 1);
        }
        for _ in 0..2_000 {
            hazard.fit(AGING_USES);
        }
        assert!(hazard.cells[0][0].used < 1.0);
    }
}
