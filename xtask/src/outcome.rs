//! How lanes ended: the table, each skip with its reason, each failure, the totals.

use std::iter;
use std::time::Duration;

use crate::tally::Tally;

/// How a lane ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its name.
    pub(crate) lane: &'static str,
    pub(crate) elapsed: Duration,
    pub(crate) failure: Option<String>,
    /// What was counted, for the lane that runs tests.
    pub(crate) tally: Option<Tally>,
}

/// Everything that is printed after the last lane.
pub(crate) fn report(outcomes: &[Outcome]) -> String {
    let mut lines = vec![format!(
        "{:<8} {:<8} {:>7} {:>8}",
        "lane", "result", "minutes", "skipped"
    )];
    for outcome in outcomes {
        let skipped = outcome
            .tally
            .as_ref()
            .map_or("-".to_owned(), |t| t.skipped().to_string());
        lines.push(format!(
            "{:<8} {:<8} {:>7.1} {skipped:>8}",
            outcome.lane,
            if outcome.failure.is_some() {
                "FAILED"
            } else {
                "ok"
            },
            outcome.elapsed.as_secs_f64() / 60.0,
        ));
    }
    let tallies = outcomes.iter().filter_map(|outcome| outcome.tally.as_ref());
    for skip in tallies.clone().flat_map(Tally::skips) {
        lines.push(format!("skipped: {}: {}", skip.test, skip.reason));
    }
    lines.extend(outcomes.iter().flat_map(failed_tests));
    for outcome in outcomes {
        let failure = outcome.failure.iter();
        lines.extend(failure.map(|failure| format!("failed: {}: {failure}", outcome.lane)));
    }
    let total = tallies.cloned().reduce(Tally::and);
    lines.extend(total.map(|total| total.summary()));
    lines.push(String::new());
    lines.join("\n")
}

/// Each test of a lane that failed, with the beginning of what it said.
fn failed_tests(outcome: &Outcome) -> Vec<String> {
    let failures = outcome.tally.iter().flat_map(Tally::failures);
    let lines = failures.flat_map(|failure| {
        let name = format!("failed test: {}: {}", outcome.lane, failure.test);
        let said = failure.said.iter().map(|line| format!("    {line}"));
        iter::once(name).chain(said)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::tally_of;

    const TWO_PASSED: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";

    #[test]
    fn the_report_names_each_test_that_failed() {
        let tally = tally_of(&[
            "failures:",
            "---- a::b stdout ----",
            "thread 'a::b' panicked at src/a.rs:1:1:",
            "one is not two",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured",
        ]);
        let text = report(&[Outcome {
            lane: "epoll",
            elapsed: Duration::from_secs(90),
            failure: Some("`cargo test` failed".to_owned()),
            tally: Some(tally),
        }]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let said = [
            "failed test: epoll: a::b",
            "    thread 'a::b' panicked at src/a.rs:1:1:",
            "    one is not two",
            "failed: epoll: `cargo test` failed",
            "test result: 0 passed, 1 failed, 0 skipped",
        ];
        assert_eq!(lines, said);
    }

    #[test]
    fn the_report_ends_with_the_totals() {
        let outcome = |lane, failure: Option<&str>, tally| Outcome {
            lane,
            elapsed: Duration::from_secs(90),
            failure: failure.map(str::to_owned),
            tally,
        };
        let tally = tally_of(&[TWO_PASSED, "SKIP a: no device"]);
        let text = report(&[
            outcome("fmt", Some("`cargo fmt` failed"), None),
            outcome("test", None, Some(tally)),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "fmt      FAILED       1.5        -");
        assert_eq!(lines[2], "test     ok           1.5        1");
        assert_eq!(lines[3], "skipped: a: no device");
        assert_eq!(lines[4], "failed: fmt: `cargo fmt` failed");
        assert_eq!(lines[5], "test result: 1 passed, 0 failed, 1 skipped");
        assert_eq!(lines.len(), 6);
    }
}
