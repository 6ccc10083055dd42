//! Our rules beside Algorithm 1 over a grid of loads, and the verdict.
//!
//! Algorithm 1 stands with the rejection with which it carries most. What is asked for:
//!
//! 1. Under the proportional objective, the load at which 95 % of the requests are good is at least
//!    [`GAIN_MIN`] higher.
//! 2. At each point, good tokens are not below Algorithm 1's by more than the interval of the
//!    difference over the seeds.
//! 3. At each point, each length class keeps at least the lesser of [`CLASS_MIN`] and Algorithm 1's.
//! 4. Under the fixed objective, good requests and good tokens are level at each point: not below
//!    by more than [`LEVEL`] or the interval, whichever is more.
//! 5. Under the fixed objective, at 0.9 and 1.0 of Algorithm 1's load at 95 %, the mean time to
//!    first token is at least [`TTFT_GAIN_MIN`] lower.

use lunette_conductor_policy::admission::Admission;
use lunette_conductor_policy::conductor::Options;
use lunette_conductor_policy::ids::LengthClass;
use lunette_conductor_policy::routing::Routing;
use lunette_conductor_policy::slo::Slo;

use crate::capacity::{self, Measure};
use crate::interval::mean_and_interval;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::simulation::simulate;
use crate::workload::{Timing, Workload};

/// How much more load ours is to carry, as a share.
pub const GAIN_MIN: f64 = 0.30;
/// What each length class is to keep, where Algorithm 1 keeps as much.
pub const CLASS_MIN: f64 = 0.85;
/// What counts as level, as a share of all.
pub const LEVEL: f64 = 0.005;
/// How much lower the mean time to first token is to be, as a share.
pub const TTFT_GAIN_MIN: f64 = 0.30;
/// The share of requests that are good at the load looked for.
const SHARE: f64 = 0.95;
const SEARCHED: (f64, f64, f64) = (0.25, 16.0, 0.01);
const REJECTIONS: [Admission; 3] = [Admission::Baseline, Admission::Early, Admission::Prediction];

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Prefill and decode instances.
    pub splits: Vec<(usize, usize)>,
    /// How many times faster than recorded requests arrive.
    pub speed_ups: Vec<f64>,
    /// Seeds of the workload and of arrivals.
    pub seeds: Vec<u64>,
    /// Our rules.
    pub ours: Options,
}

/// Means over the seeds of one value, of ours and of Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Ours.
    pub ours: f64,
    /// Algorithm 1's.
    pub theirs: f64,
    /// Half the width of the 95 % interval of the difference.
    pub interval: f64,
}

impl Pair {
    fn of(ours: &[Report], theirs: &[Report], value: impl Fn(&Report) -> f64) -> Self {
        let values = |reports: &[Report]| reports.iter().map(&value).collect::<Vec<_>>();
        Self::of_values(&values(ours), &values(theirs))
    }

    fn of_values(ours: &[f64], theirs: &[f64]) -> Self {
        let pairs = ours.iter().zip(theirs);
        let differences: Vec<f64> = pairs.map(|(ours, theirs)| ours - theirs).collect();
        Self {
            ours: mean_and_interval(ours).0,
            theirs: mean_and_interval(theirs).0,
            interval: mean_and_interval(&differences).1.unwrap_or(0.0),
        }
    }

    /// Ours beside Algorithm 1's: .1 for a tenth more.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.ours / self.theirs - 1.0
    }
}

/// One load under one objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How many times faster than recorded requests arrive.
    pub speed_up: f64,
    /// Share of good requests.
    pub requests: Pair,
    /// Share of good tokens.
    pub tokens: Pair,
    /// Share of good requests of each of [`LengthClass::ALL`].
    pub classes: [Pair; 3],
    /// Mean time to first token, in seconds.
    pub ttft_s: Pair,
}

/// One split.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitReport {
    /// Prefill and decode instances.
    pub split: (usize, usize),
    /// The rejection of Algorithm 1.
    pub rejection: Admission,
    /// Load at 95 % under the proportional objective.
    pub load: Pair,
    /// The grid under the proportional objective.
    pub proportional: Vec<Point>,
    /// The rejection of Algorithm 1 under the fixed objective.
    pub fixed_rejection: Admission,
    /// Algorithm 1's load at 95 % under the fixed objective.
    pub fixed_load: f64,
    /// The grid under the fixed objective.
    pub fixed: Vec<Point>,
    /// At 0.9 and 1.0 of that load.
    pub near_load: [Point; 2],
}

/// A line of the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What is asked for.
    pub what: &'static str,
    /// Whether it holds.
    pub is_met: bool,
    /// The value that decides, or the points at which it does not hold.
    pub evidence: String,
}

/// Runs the plan. `load` makes the workload of a seed, at its recorded speed; `progress` is called
/// before each step with what it is.
pub fn run(
    plan: &Plan,
    load: impl Fn(u64) -> Workload,
    mut progress: impl FnMut(String),
) -> Vec<SplitReport> {
    let loads: Vec<(u64, Workload)> = plan.seeds.iter().map(|&seed| (seed, load(seed))).collect();
    let runner = Runner { plan, loads };
    let splits = plan.splits.iter();
    splits
        .map(|&split| runner.split(split, &mut progress))
        .collect()
}

#[derive(Debug)]
struct Runner<'a> {
    plan: &'a Plan,
    loads: Vec<(u64, Workload)>,
}

impl Runner<'_> {
    fn split(&self, split: (usize, usize), progress: &mut impl FnMut(String)) -> SplitReport {
        let (prefill, decode) = split;
        let mut step = |what: &str| progress(format!("{prefill}P{decode}D {what}"));
        step("load at 95 %");
        let ours = self.attained(split, Slo::PROPORTIONAL, self.plan.ours);
        let (rejection, theirs) = self.best_rejection(split, Slo::PROPORTIONAL);
        step("load at 95 %, fixed objective");
        let (fixed_rejection, fixed) = self.best_rejection(split, Slo::FIXED);
        let fixed_load = mean_and_interval(&fixed).0;
        let mut grid = |slo, rejection, what: &str| -> Vec<Point> {
            let points = self.plan.speed_ups.iter();
            points
                .map(|&speed_up| {
                    step(&format!("{what}, x {speed_up}"));
                    self.point(split, slo, rejection, speed_up)
                })
                .collect()
        };
        SplitReport {
            split,
            rejection,
            load: Pair::of_values(&ours, &theirs),
            proportional: grid(Slo::PROPORTIONAL, rejection, "proportional"),
            fixed_rejection,
            fixed_load,
            fixed: grid(Slo::FIXED, fixed_rejection, "fixed"),
            near_load: [0.9, 1.0]
                .map(|share| self.point(split, Slo::FIXED, fixed_rejection, share * fixed_load)),
        }
    }

    fn scenario(&self, split: (usize, usize), slo: Slo, options: Options, seed: u64) -> Scenario {
        let options = Options { seed, ..options };
        Scenario::new(split.0, split.1, slo, options)
    }

    /// The load at 95 % of each seed.
    fn attained(&self, split: (usize, usize), slo: Slo, options: Options) -> Vec<f64> {
        let loads = self.loads.iter();
        loads
            .map(|(seed, workload)| {
                let scenario = self.scenario(split, slo, options, *seed);
                let asked = (Measure::Requests, SHARE);
                let run = |load: &Workload| simulate(load, &scenario);
                capacity::speed_up(workload, Timing::Recorded, run, asked, SEARCHED)
            })
            .collect()
    }

    fn best_rejection(&self, split: (usize, usize), slo: Slo) -> (Admission, Vec<f64>) {
        let attained = REJECTIONS.map(|rejection| {
            let options = Options::new(Routing::Algorithm1, rejection);
            (rejection, self.attained(split, slo, options))
        });
        let mean = |loads: &[f64]| mean_and_interval(loads).0;
        let best = attained
            .into_iter()
            .max_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
        best.expect("there is a rejection")
    }

    fn point(&self, split: (usize, usize), slo: Slo, rejection: Admission, speed_up: f64) -> Point {
        let reports = |options: Options| -> Vec<Report> {
            let loads = self.loads.iter();
            loads
                .map(|(seed, workload)| {
                    let workload = workload.timed(Timing::Recorded, speed_up);
                    simulate(&workload, &self.scenario(split, slo, options, *seed))
                })
                .collect()
        };
        let ours = reports(self.plan.ours);
        let theirs = reports(Options::new(Routing::Algorithm1, rejection));
        Point {
            speed_up,
            requests: Pair::of(&ours, &theirs, |report| report.all.good),
            tokens: Pair::of(&ours, &theirs, |report| report.all.good_tokens),
            classes: LengthClass::ALL
                .map(|class| Pair::of(&ours, &theirs, |report| report.classes[class.index()].good)),
            ttft_s: Pair::of(&ours, &theirs, |report| report.ttft_s.mean),
        }
    }
}

/// The points at which something does not hold, as a line.
fn failing(points: &[Point], holds: impl Fn(&Point) -> Option<String>) -> (bool, String) {
    let failing: Vec<String> = points
        .iter()
        .filter_map(|point| holds(point).map(|why| format!("x {}: {why}", point.speed_up)))
        .collect();
    if failing.is_empty() {
        (true, format!("at all {} points", points.len()))
    } else {
        (false, failing.join("; "))
    }
}

fn compared(pair: Pair) -> String {
    format!("{:.3} against {:.3}", pair.ours, pair.theirs)
}

impl SplitReport {
    /// What holds and what does not, in the order of the module's list.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let load = self.load;
        let tokens = failing(&self.proportional, |point| {
            let Pair {
                ours,
                theirs,
                interval,
            } = point.tokens;
            (ours < theirs - interval).then(|| compared(point.tokens))
        });
        let classes = failing(&self.proportional, |point| {
            let mut pairs = point.classes.iter().zip(["short", "medium", "long"]);
            let behind = pairs.find(|(pair, _)| pair.ours < pair.theirs.min(CLASS_MIN));
            behind.map(|(pair, class)| format!("{class} {}", compared(*pair)))
        });
        let level = failing(&self.fixed, |point| {
            let mut pairs = [(point.requests, "requests"), (point.tokens, "tokens")].into_iter();
            let behind = pairs.find(|(pair, _)| pair.ours < pair.theirs - pair.interval.max(LEVEL));
            behind.map(|(pair, what)| format!("{what} {}", compared(pair)))
        });
        let ttft_gains = self.near_load.map(|point| -point.ttft_s.gain());
        let verdict = |what, (is_met, evidence)| Verdict {
            what,
            is_met,
            evidence,
        };
        vec![
            Verdict {
                what: "load at 95 % at least 30 % higher",
                is_met: load.gain() >= GAIN_MIN,
                evidence: format!(
                    "{:.3} against {:.3}, {:+.1} % (difference +- {:.3})",
                    load.ours,
                    load.theirs,
                    100.0 * load.gain(),
                    load.interval
                ),
            },
            verdict("tokens not below by more than the interval", tokens),
            verdict("classes keep the lesser of 85 % and Algorithm 1's", classes),
            verdict("fixed objective: level in requests and tokens", level),
            Verdict {
                what: "fixed objective: mean TTFT 30 % lower at 0.9 and 1.0 of the load at 95 %",
                is_met: ttft_gains.iter().all(|gain| *gain >= TTFT_GAIN_MIN),
                evidence: format!(
                    "{:.1} % and {:.1} % lower (x {:.3}, x {:.3})",
                    100.0 * ttft_gains[0],
                    100.0 * ttft_gains[1],
                    self.near_load[0].speed_up,
                    self.near_load[1].speed_up
                ),
            },
        ]
    }
}
