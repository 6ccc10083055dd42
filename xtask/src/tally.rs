//! What `cargo test` printed: passed, failed, skipped and why.
//!
//! libtest knows no skipped tests: one that cannot run here prints `SKIP <test name>: <reason>` on
//! standard output and returns, and counts as passed. The tally takes it off again.

use crate::libtest::{Failure, Output};

/// Totals over every test binary of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// As libtest says, skipped tests included.
    reported_passed: usize,
    failed: usize,
    /// Marked `#[ignore]`; the house rules leave none.
    ignored: usize,
    skips: Vec<Skip>,
    output: Output,
}

/// A test that said that it cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

impl Tally {
    /// Takes in one line of output and answers whether to show it; lines that say nothing about tests
    /// change nothing.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.result(rest);
        } else if let Some(rest) = line.strip_prefix("SKIP ") {
            // Malformed or not, a skip counts.
            let (test, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            self.skips.push(Skip {
                test: test.to_owned(),
                reason: reason.trim().to_owned(),
            });
        }
        self.output.line(line)
    }

    fn result(&mut self, rest: &str) {
        // `ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`
        let counts = rest.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<usize>() else {
                continue;
            };
            match what {
                "passed" => self.reported_passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// A lane that cannot run here counts as one test that said so.
    pub(crate) fn of_skipped_lane(lane: &str, reason: &str) -> Self {
        let mut tally = Self {
            reported_passed: 1,
            ..Self::default()
        };
        tally.line(&format!("SKIP {lane}: {reason}"));
        tally
    }

    /// The totals of two runs.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.reported_passed += other.reported_passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
        self.output.append(other.output);
        self
    }

    /// Tests that ran to their end and held.
    pub(crate) fn passed(&self) -> usize {
        self.reported_passed.saturating_sub(self.skips.len())
    }

    /// Tests that were started, whether or not they skipped.
    pub(crate) fn executed(&self) -> usize {
        self.reported_passed + self.failed
    }

    /// Tests that did not check what they are for.
    pub(crate) fn skipped(&self) -> usize {
        self.skips.len() + self.ignored
    }

    /// Who skipped, and why.
    pub(crate) fn skips(&self) -> &[Skip] {
        &self.skips
    }

    /// Who failed, and what they said.
    pub(crate) fn failures(&self) -> &[Failure] {
        self.output.failures()
    }

    /// The totals, in libtest's own form.
    pub(crate) fn summary(&self) -> String {
        format!(
            "test result: {} passed, {} failed, {} skipped",
            self.passed(),
            self.failed,
            self.skipped()
        )
    }
}

/// The tally of a run that printed these lines, for tests.
#[cfg(test)]
pub(crate) fn tally_of(lines: &[&str]) -> Tally {
    let mut tally = Tally::default();
    for line in lines {
        tally.line(line);
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_binaries_add_up() {
        let tally = tally_of(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 0.01s",
            "test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; \
             finished in 1.00s",
        ]);
        assert_eq!(
            tally.summary(),
            "test result: 7 passed, 2 failed, 1 skipped"
        );
        assert_eq!(tally.executed(), 9);
    }

    #[test]
    fn a_skip_is_no_pass_and_keeps_its_reason() {
        let tally = tally_of(&[
            "SKIP driver::tests::zero_copy: no kernel support: EINVAL",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(
            tally.summary(),
            "test result: 2 passed, 0 failed, 1 skipped"
        );
        let skip = &tally.skips()[0];
        assert_eq!(skip.test, "driver::tests::zero_copy");
        assert_eq!(skip.reason, "no kernel support: EINVAL");
    }

    #[test]
    fn a_skip_without_a_reason_counts() {
        assert_eq!(tally_of(&["SKIP lonely"]).skipped(), 1);
    }

    #[test]
    fn other_lines_count_for_nothing() {
        let tally = tally_of(&["", "test result", "  SKIP indented: no", "SKIPPED x: no"]);
        assert_eq!(
            tally.skipped() + tally.executed() + tally.failures().len(),
            0
        );
    }
}
