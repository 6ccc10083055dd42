//! What a test binary printed, line by line: where in its output a line stands, and whether a reader of
//! the whole run wants to see it.
//!
//! Thousands of tests that pass print tens of thousands of lines. Those hide the ones that a reader looks
//! for, and what keeps logs often keeps a part of them only. So what passed is counted and not shown.

/// Lines kept of what a failed test printed, from its first panic on.
const FAILURE_LINES_MAX: usize = 12;

/// A test that failed, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) test: String,
    /// From its first panic on, so that a talkative test does not hide it.
    pub(crate) said: Vec<String>,
}

/// The part of its output in which a test binary is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    /// One line per test that ended.
    #[default]
    Progress,
    /// What passing tests printed, then their names.
    Successes,
    /// What failing tests printed, then their names.
    Failures,
}

/// Reads the output of one test binary after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    section: Section,
    /// Whether the lines of the section `Failures` belong to the last failure.
    within: bool,
    failures: Vec<Failure>,
}

impl Output {
    /// Takes in one line and answers whether to show it.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ if line.starts_with("test result: ") => self.section = Section::Progress,
            _ if is_start(line) => self.section = Section::Progress,
            _ => return self.within_section(line),
        }
        self.within = false;
        self.section == Section::Failures || line.starts_with("test result: ")
    }

    /// The tests that failed, in the order in which they were listed.
    pub(crate) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The failures of another run come after these.
    pub(crate) fn append(&mut self, other: Self) {
        self.failures.extend(other.failures);
    }

    fn within_section(&mut self, line: &str) -> bool {
        match self.section {
            Section::Progress => !line.is_empty() && !has_passed(line),
            Section::Successes => false,
            Section::Failures => {
                self.failure_line(line);
                true
            }
        }
    }

    fn failure_line(&mut self, line: &str) {
        let heading = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            self.within = true;
            self.failures.push(Failure {
                test: test.to_owned(),
                said: Vec::new(),
            });
            return;
        }
        let Some(failure) = self.failures.last_mut().filter(|_| self.within) else {
            return;
        };
        let begins = line.contains(" panicked at ") || line.starts_with("Error: ");
        let more = !failure.said.is_empty() && failure.said.len() < FAILURE_LINES_MAX;
        if begins && failure.said.is_empty() || more && !line.is_empty() {
            failure.said.push(line.to_owned());
        }
    }
}

/// `running 11 tests`.
fn is_start(line: &str) -> bool {
    line.strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")))
        .is_some_and(|number| number.parse::<usize>().is_ok())
}

/// `test rails::one_is_cut ... ok`, also where the test should panic.
fn has_passed(line: &str) -> bool {
    line.starts_with("test ") && line.ends_with(" ... ok")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test a ... ok
test b ... FAILED
something that a child printed
test c - should panic ... ok

successes:

---- a stdout ----
SKIP a: no device

successes:
    a
    c

failures:

---- b stdout ----
much that
the test prints

thread 'b' (12) panicked at src/b.rs:1:1:
left: 1

right: 2

failures:
    b

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
running 1 test
test d ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

    #[test]
    fn what_passed_is_not_shown_and_what_failed_is() {
        let mut output = Output::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| output.line(line)).collect();
        assert_eq!(shown[0], "test b ... FAILED");
        assert_eq!(shown[1], "something that a child printed");
        assert_eq!(shown[2], "failures:");
        assert!(shown.contains(&"the test prints"));
        assert!(!shown.iter().any(|line| line.starts_with("SKIP ")));
        let results = shown.iter().filter(|line| line.starts_with("test result"));
        assert_eq!(results.count(), 2);
        assert!(!shown.contains(&"test d ... ok"));
    }

    #[test]
    fn a_failure_keeps_what_it_said_from_its_panic_on() {
        let mut output = Output::default();
        OUTPUT.lines().for_each(|line| {
            output.line(line);
        });
        let [failure] = output.failures() else {
            panic!("one test failed: {output:?}");
        };
        assert_eq!(failure.test, "b");
        assert_eq!(
            failure.said,
            [
                "thread 'b' (12) panicked at src/b.rs:1:1:",
                "left: 1",
                "right: 2"
            ]
        );
    }

    #[test]
    fn what_a_failure_says_is_bounded() {
        let mut output = Output::default();
        output.line("failures:");
        output.line("---- b stdout ----");
        output.line("thread 'b' panicked at src/b.rs:1:1:");
        for _ in 0..2 * FAILURE_LINES_MAX {
            assert!(output.line("more"));
        }
        assert_eq!(output.failures()[0].said.len(), FAILURE_LINES_MAX);
    }
}
