//! `cargo xtask tidy`: the house rules that no compiler checks.
//!
//! A check is a function from the [`tree::Tree`] (tracked files, packages, dependency graph) to
//! findings; it reads nothing else, so its tests plant a violation in a tree made by hand.
//!
//! | module | rule |
//! |---|---|
//! | [`floors`] | dependencies between our packages only go down |
//! | [`event_loops`] | no foreign event loop below the product |
//! | [`purity`] | sans-IO packages carry the whole purity lint and use few outside crates |
//! | [`sizes`] | functions, files, and how many files are long |
//! | [`stubs`] | nothing unfinished, ignored, allowed or left from debugging |
//! | [`unsafe_code`] | unsafe code in one package, within its budget |
//! | [`prose`] | ASCII, paths of a machine, names of files |
//! | [`roots`] | crate roots open with their story and stay short |

mod event_loops;
mod floors;
mod listing;
mod prose;
mod purity;
mod roots;
mod sizes;
mod stubs;
mod tokens;
mod tree;
mod unsafe_code;

use std::fmt;

use crate::task_error::TaskError;
use crate::workspace::Workspace;
use tree::Tree;

/// One broken rule at one place, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            what,
            remedy,
        } = self;
        write!(f, "{path}:{line}: [{rule}] {what}; {remedy}")
    }
}

/// Every check, in the order of the table above.
const CHECKS: [fn(&Tree) -> Vec<Finding>; 8] = [
    floors::check,
    event_loops::check,
    purity::check,
    sizes::check,
    stubs::check,
    unsafe_code::check,
    prose::check,
    roots::check,
];

/// Checks the working tree and prints each finding on a line of its own.
///
/// # Errors
/// [`TaskError::Untidy`] when a rule is broken; those of reading the tree otherwise.
pub(crate) fn run(workspace: &Workspace) -> Result<(), TaskError> {
    let tree = Tree::load(workspace)?;
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        return Err(TaskError::Untidy(findings.len()));
    }
    println!(
        "tidy: {} files, {} packages, no finding",
        tree.files.len(),
        tree.packages.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_place_rule_and_remedy() {
        let finding = Finding {
            path: "a/src/lib.rs".into(),
            line: 3,
            rule: "sizes",
            what: "function of 71 lines".into(),
            remedy: "split it",
        };
        let text = finding.to_string();
        assert_eq!(
            text,
            "a/src/lib.rs:3: [sizes] function of 71 lines; split it"
        );
    }
}
