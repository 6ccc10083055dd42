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
/// What is left of the counts after a fit: the past is forgotten over some 100 fits.
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
        hazard.fit();
        hazard
    }

    pub(crate) fn used(&mut self, class: Class, bucket: usize) {
        self.cells[class.index()][bucket].used += 1.0;
    }

    pub(crate) fn outlived(&mut self, class: Class, bucket: usize) {
        self.cells[class.index()][bucket].outlived += 1.0;
    }

    /// Chance of a use per unit of age. It never rises with the age.
    pub(crate) fn chance(&self, class: Class, age: u64) -> f64 {
        let bucket = bucket_of(age);
        let here = self.curve[bucket];
        let next = self.curve[(bucket + 1).min(BUCKETS - 1)];
        let into = to_f64(age - start_of(bucket)) / to_f64(width_of(bucket));
        self.factors[class.index()] * (here + (next - here) * into.min(1.0))
    }

    /// Fits the model to what was counted, and forgets a little of it.
    pub(crate) fn fit(&mut self) {
        let mut by_factor = [[1.0; Factor::VALUES_MAX]; Factor::ALL.len()];
        self.factors = [1.0; CLASSES];
        for _ in 0..ROUNDS {
            self.curve = self.fit_curve();
            for factor in Factor::ALL {
                self.fit_factor(factor, &mut by_factor[factor as usize]);
            }
        }
        self.fit_classes();
        self.keep_chains();
        for cell in self.cells.iter_mut().flatten() {
            cell.used *= KEPT;
            cell.outlived *= KEPT;
        }
    }

    /// The falling curve that fits best, given the factors.
    fn fit_curve(&self) -> [f64; BUCKETS] {
        let mut pooled: [(f64, f64, usize); BUCKETS] = [(0.0, 0.0, 0); BUCKETS];
        let mut pools = 0;
        for bucket in 0..BUCKETS {
            let width = to_f64(width_of(bucket));
            let (mut used, mut exposed, mut buckets) = (1e-4, width, 1);
            for (cells, factor) in self.cells.iter().zip(self.factors) {
                used += cells[bucket].used;
                exposed += factor * exposure(cells[bucket], width);
            }
            while pools > 0 {
                let (before_used, before_exposed, before_buckets) = pooled[pools - 1];
                if before_used * exposed >= used * before_exposed {
                    break;
                }
                used += before_used;
                exposed += before_exposed;
                buckets += before_buckets;
                pools -= 1;
            }
            pooled[pools] = (used, exposed, buckets);
            pools += 1;
        }
        let mut curve = [0.0; BUCKETS];
        let rates = pooled[..pools]
            .iter()
            .flat_map(|&(used, exposed, buckets)| core::iter::repeat_n(used / exposed, buckets));
        for (at, rate) in curve.iter_mut().zip(rates) {
            *at = rate;
        }
        curve
    }

    /// Corrects the product of factors of each class by what was seen of that class.
    fn fit_classes(&mut self) {
        for class in 0..CLASSES {
            let factor = self.factors[class];
            let used = self.cells[class].iter().map(|cell| cell.used).sum::<f64>();
            let expected = self.expected(class, factor);
            self.factors[class] = factor * (CLASS_PRIOR + used) / (CLASS_PRIOR + expected);
        }
    }

    /// Makes a block that was used oftener never less likely used than one of otherwise its class: the
    /// start of a chain was used as often as what builds on it, or oftener, and has to outlive it.
    fn keep_chains(&mut self) {
        for first in (0..CLASSES).step_by(Factor::VALUES_MAX) {
            let mut pools: [(f64, f64, usize); Factor::VALUES_MAX] = Default::default();
            let mut count = 0;
            for class in first..first + Factor::VALUES_MAX {
                let mut weight = self.expected(class, 1.0) + 1e-9;
                let (mut sum, mut classes) = (self.factors[class] * weight, 1);
                while count > 0 && pools[count - 1].0 * weight > sum * pools[count - 1].1 {
                    count -= 1;
                    sum += pools[count].0;
                    weight += pools[count].1;
                    classes += pools[count].2;
                }
                pools[count] = (sum, weight, classes);
                count += 1;
            }
            let pooled = pools[..count]
                .iter()
                .flat_map(|&(sum, weight, classes)| core::iter::repeat_n(sum / weight, classes));
            for (factor, pooled) in self.factors[first..].iter_mut().zip(pooled) {
                *factor = pooled;
            }
        }
    }

    /// Uses of a class to be expected of the time that its blocks were seen, at this factor.
    fn expected(&self, class: usize, factor: f64) -> f64 {
        let cells = self.cells[class].iter().enumerate();
        let exposed = cells
            .map(|(bucket, &cell)| self.curve[bucket] * exposure(cell, to_f64(width_of(bucket))));
        factor * exposed.sum::<f64>()
    }

    /// Fits one factor, given the curve and the others, and puts it into those of the classes.
    fn fit_factor(&mut self, factor: Factor, values: &mut [f64; Factor::VALUES_MAX]) {
        let mut used = [FACTOR_PRIOR; Factor::VALUES_MAX];
        let mut expected = [FACTOR_PRIOR; Factor::VALUES_MAX];
        for class in 0..CLASSES {
            let value = factor.value(class);
            let others = self.factors[class] / values[value];
            used[value] += self.cells[class].iter().map(|cell| cell.used).sum::<f64>();
            expected[value] += self.expected(class, others);
        }
        for class in 0..CLASSES {
            let value = factor.value(class);
            self.factors[class] *= used[value] / expected[value] / values[value];
        }
        for value in 0..Factor::VALUES_MAX {
            values[value] = used[value] / expected[value];
        }
    }
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
            hazard.outlived(class(0), 0);
            hazard.outlived(class(1), 0);
        }
        for _ in 0..10_000 {
            hazard.used(class(0), 0);
            for _ in 0..4 {
                hazard.used(class(1), 0);
            }
        }
        hazard.fit();
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
                hazard.outlived(class(0), bucket);
                if bucket % 7 == 3 || at % (bucket + 1) == 0 {
                    hazard.used(Class::new(2, used), bucket);
                }
            }
        }
        hazard.fit();
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
            hazard.used(class(0), 0);
        }
        for _ in 0..2_000 {
            hazard.fit();
        }
        assert!(hazard.cells[0][0].used < 1.0);
    }
}
