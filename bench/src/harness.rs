//! Pairs of runs, and what they prove: the rules of every verdict.

use std::fmt;

use serde::Serialize;

use crate::host::{self, Ticks};

/// Fewest clean pairs for a verdict.
pub const PAIRS_MIN: usize = 9;
/// A pair during which the host stole more than this share of the cores' time is thrown away.
pub const STEAL_MAX: f64 = 0.05;
/// Pairs taken at most, clean or not, per clean pair asked for.
const ATTEMPTS_PER_PAIR: usize = 3;

/// Any failure of a side; the row is pending then.
pub type Failure = Box<dyn std::error::Error>;

/// What a ratio (ours over rival) is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Not above this.
    AtMost(f64),
    /// Not below this.
    AtLeast(f64),
    /// Below the rival: ahead, level or behind.
    Below,
}

impl Goal {
    /// Whether a ratio is as it must be.
    #[must_use]
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => ratio >= bound,
            Self::Below => ratio < 1.0,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound:.2}"),
            Self::AtLeast(bound) => write!(f, ">= {bound:.2}"),
            Self::Below => write!(f, "< 1.00"),
        }
    }
}

/// One run of one side.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What is judged, in the row's unit.
    pub value: f64,
    /// 99th percentile of a call, in microseconds.
    pub p99: f64,
}

/// How rows are run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clean pairs to take.
    pub pairs: usize,
    /// CPU of the serving side.
    pub server_cpu: usize,
    /// CPU of the asking side.
    pub client_cpu: usize,
}

/// One clean pair.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Our run.
    pub ours: Sample,
    /// The rival's.
    pub rival: Sample,
}

/// What a row came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The median ratio meets the goal, and so do 7 of 9 pairs.
    Met,
    /// Ours is ahead in 8 of 9 pairs.
    Ahead,
    /// Neither side is ahead in 8 of 9 pairs.
    Level,
    /// The goal is missed, or the rival is ahead in 8 of 9 pairs.
    Missed,
    /// Not judged; the outcome says why.
    Pending,
}

/// A row and what it came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The row's name.
    pub name: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Median over the clean pairs.
    pub ours: Option<f64>,
    /// Median over the clean pairs.
    pub rival: Option<f64>,
    /// What ours was measured beside.
    pub rival_name: &'static str,
    /// The physical limit, where the rival is not one itself.
    pub limit: Option<f64>,
    /// Median of the pairs' ratios, ours over rival.
    pub ratio: Option<f64>,
    /// What the ratio must come to.
    pub goal: String,
    /// Whether it does.
    pub verdict: Verdict,
    /// Why a verdict is pending.
    pub reason: Option<String>,
    /// Clean pairs taken.
    pub pairs: usize,
    /// Pairs thrown away for host steal.
    pub pairs_discarded: usize,
    /// Pairs that meet the goal, or in which ours is ahead where there is none.
    pub pairs_won: usize,
    /// Largest share of time that the host stole in a clean pair.
    pub steal: f64,
    /// Load average of the last minute at the end.
    pub load: f64,
    /// Reported, not judged.
    pub ours_p99: Option<f64>,
    /// Reported, not judged.
    pub rival_p99: Option<f64>,
}

/// What a row is called, and what it is judged by.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The row's name.
    pub name: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// What ours is measured beside.
    pub rival_name: &'static str,
    /// What the ratio, ours over rival, must come to.
    pub goal: Goal,
}

/// The two sides of a row, ready to be measured.
pub trait Sides {
    /// Runs ours once.
    ///
    /// # Errors
    /// The row is pending then.
    fn ours(&mut self) -> Result<Sample, Failure>;

    /// Runs the rival once.
    ///
    /// # Errors
    /// The row is pending then.
    fn rival(&mut self) -> Result<Sample, Failure>;
}

/// Runs one row.
pub fn run<S: Sides>(subject: &Subject, opened: Result<S, Failure>, plan: &Plan) -> Outcome {
    let mut pairs = Vec::new();
    let mut discarded = 0;
    let mut steal: f64 = 0.0;
    let mut failure = None;
    match opened {
        Err(error) => failure = Some(error.to_string()),
        Ok(mut sides) => {
            while pairs.len() < plan.pairs && discarded < plan.pairs * (ATTEMPTS_PER_PAIR - 1) {
                let before = Ticks::now();
                // The side that goes first alternates, so that drift favours neither.
                let ours_first = (pairs.len() + discarded).is_multiple_of(2);
                let pair = match measure(&mut sides, ours_first) {
                    Ok(pair) => pair,
                    Err(error) => {
                        failure = Some(error.to_string());
                        break;
                    }
                };
                let stolen = Ticks::now().stolen_since(before);
                if stolen > STEAL_MAX {
                    discarded += 1;
                } else {
                    steal = steal.max(stolen);
                    pairs.push(pair);
                }
            }
        }
    }
    let (verdict, reason, pairs_won) = match failure {
        Some(failure) => (Verdict::Pending, Some(failure), 0),
        None => judge(&pairs, subject.goal, discarded),
    };
    let median_of = |value: fn(&Pair) -> f64| median(pairs.iter().map(value).collect());
    Outcome {
        name: subject.name.clone(),
        unit: subject.unit,
        ours: median_of(|pair| pair.ours.value),
        rival: median_of(|pair| pair.rival.value),
        rival_name: subject.rival_name,
        limit: None,
        ratio: median_of(Pair::ratio),
        goal: subject.goal.to_string(),
        verdict,
        reason,
        pairs: pairs.len(),
        pairs_discarded: discarded,
        pairs_won,
        steal,
        load: host::load(),
        ours_p99: median_of(|pair| pair.ours.p99),
        rival_p99: median_of(|pair| pair.rival.p99),
    }
}

/// The middle of so many runs of our side alone, which prove nothing.
///
/// # Errors
/// That of the first run that fails.
pub fn ours<S: Sides>(mut sides: S, plan: &Plan) -> Result<f64, Failure> {
    let values = (0..plan.pairs).map(|_| Ok(sides.ours()?.value));
    let middle = median(values.collect::<Result<_, Failure>>()?);
    middle.ok_or_else(|| "no run was asked for".into())
}

/// Runs each side once.
fn measure(sides: &mut impl Sides, ours_first: bool) -> Result<Pair, Failure> {
    if ours_first {
        let ours = sides.ours()?;
        let rival = sides.rival()?;
        Ok(Pair { ours, rival })
    } else {
        let rival = sides.rival()?;
        let ours = sides.ours()?;
        Ok(Pair { ours, rival })
    }
}

impl Pair {
    /// Ours over rival.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.ours.value / self.rival.value
    }
}

/// The verdict over clean pairs, why it is pending if it is, and the pairs won.
fn judge(pairs: &[Pair], goal: Goal, discarded: usize) -> (Verdict, Option<String>, usize) {
    let won = pairs
        .iter()
        .filter(|pair| goal.is_met(pair.ratio()))
        .count();
    if pairs.len() < PAIRS_MIN {
        let reason = format!(
            "{} clean pairs of {PAIRS_MIN} needed; {discarded} thrown away for host steal",
            pairs.len()
        );
        return (Verdict::Pending, Some(reason), won);
    }
    let share = |of_nine: usize| (pairs.len() * of_nine).div_ceil(9);
    let verdict = match goal {
        Goal::AtMost(_) | Goal::AtLeast(_) => {
            let median = median(pairs.iter().map(Pair::ratio).collect());
            let met = median.is_some_and(|ratio| goal.is_met(ratio)) && won >= share(7);
            if met { Verdict::Met } else { Verdict::Missed }
        }
        Goal::Below => {
            let lost = pairs.iter().filter(|pair| pair.ratio() > 1.0).count();
            if won >= share(8) {
                Verdict::Ahead
            } else if lost >= share(8) {
                Verdict::Missed
            } else {
                Verdict::Level
            }
        }
    };
    (verdict, None, won)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Vec<Pair> {
        let sample = |value| Sample { value, p99: value };
        let pair = |&ratio| Pair {
            ours: sample(ratio),
            rival: sample(1.0),
        };
        ratios.iter().map(pair).collect()
    }

    fn verdict(ratios: &[f64], goal: Goal) -> Verdict {
        judge(&pairs(ratios), goal, 0).0
    }

    #[test]
    fn a_goal_needs_its_median_and_seven_pairs_of_nine() {
        let goal = Goal::AtMost(1.1);
        let seven = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.2, 9.0];
        let six = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.2];
        assert_eq!(verdict(&seven, goal), Verdict::Met);
        assert_eq!(verdict(&six, goal), Verdict::Missed);
        let goal = Goal::AtLeast(0.9);
        assert_eq!(verdict(&[0.9; 9], goal), Verdict::Met);
        assert_eq!(verdict(&[0.89; 9], goal), Verdict::Missed);
    }

    #[test]
    fn being_ahead_needs_eight_pairs_of_nine() {
        let with_wins = |wins: usize| {
            let ratios: Vec<f64> = (0..9).map(|n| if n < wins { 0.5 } else { 1.5 }).collect();
            verdict(&ratios, Goal::Below)
        };
        assert_eq!(with_wins(9), Verdict::Ahead);
        assert_eq!(with_wins(8), Verdict::Ahead);
        assert_eq!(with_wins(7), Verdict::Level);
        assert_eq!(with_wins(2), Verdict::Level);
        assert_eq!(with_wins(1), Verdict::Missed);
    }

    #[test]
    fn fewer_than_nine_clean_pairs_prove_nothing() {
        let (verdict, reason, _) = judge(&pairs(&[0.5; 8]), Goal::AtMost(1.0), 4);
        assert_eq!(verdict, Verdict::Pending);
        assert!(reason.expect("a reason").contains("8 clean pairs"));
    }

    #[test]
    fn more_pairs_keep_the_shares() {
        // 14 of 18 are seven of nine.
        let ratios = |won: usize| (0..18).map(|n| if n < won { 1.0 } else { 2.0 }).collect();
        let of = |won: usize| {
            let ratios: Vec<f64> = ratios(won);
            verdict(&ratios, Goal::AtMost(1.1))
        };
        assert_eq!(of(14), Verdict::Met);
        assert_eq!(of(13), Verdict::Missed);
    }

    /// Values that it gives one after the other; then it fails.
    struct Scripted(Vec<f64>);

    impl Sides for Scripted {
        fn ours(&mut self) -> Result<Sample, Failure> {
            let value = self.0.pop().ok_or("nothing is left")?;
            Ok(Sample { value, p99: value })
        }

        fn rival(&mut self) -> Result<Sample, Failure> {
            Err("there is none".into())
        }
    }

    #[test]
    fn our_side_alone_is_measured_without_the_other() {
        let plan = |pairs| Plan {
            pairs,
            server_cpu: 0,
            client_cpu: 1,
        };
        let sides = || Scripted(vec![9.0, 2.0, 3.0]);
        assert!(ours(sides(), &plan(3)).is_ok_and(|value| value.total_cmp(&3.0).is_eq()));
        assert!(ours(sides(), &plan(4)).is_err(), "a run has failed");
        assert!(ours(sides(), &plan(0)).is_err());
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
