//! Crate roots open with their story and stay short.

use super::Finding;
use super::tree::{SourceFile, Tree};

const RULE: &str = "roots";
/// Most lines of a library's root.
const LIBRARY_ROOT_LINES_MAX: usize = 150;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let roots = tree.packages.iter().flat_map(|package| &package.roots);
    let files = roots.filter_map(|root| tree.file(root));
    files
        .flat_map(|file| untold(file).into_iter().chain(long(file)))
        .collect()
}

fn untold(file: &SourceFile) -> Option<Finding> {
    (!file.text.starts_with("//!")).then(|| Finding {
        path: file.path.clone(),
        line: 1,
        rule: RULE,
        what: "crate root does not open with //!".into(),
        remedy: "say what the crate is, what it leaves out, and list its modules",
    })
}

fn long(file: &SourceFile) -> Option<Finding> {
    let lines = file.text.lines().count();
    let is_library = file.path.ends_with("/lib.rs");
    (is_library && lines > LIBRARY_ROOT_LINES_MAX).then(|| Finding {
        path: file.path.clone(),
        line: LIBRARY_ROOT_LINES_MAX + 1,
        rule: RULE,
        what: format!("crate root has {lines} lines (most: {LIBRARY_ROOT_LINES_MAX})"),
        remedy: "move code into modules; the root is a map",
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::one_file;
    use super::*;

    #[test]
    fn a_root_without_a_story_is_caught() {
        assert_eq!(
            check(&one_file("lunette", "node", "//! The program.\n")),
            []
        );
        for text in [
            "",
            "// Comment.\n",
            "#![forbid(unsafe_code)]\n//! Too late.\n",
        ] {
            assert_eq!(check(&one_file("lunette", "node", text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_root_is_measured_from_both_sides_of_the_limit() {
        let found = |lines: usize| check(&one_file("lunette", "node", &"//! x\n".repeat(lines)));
        assert_eq!(found(LIBRARY_ROOT_LINES_MAX), []);
        assert_eq!(found(LIBRARY_ROOT_LINES_MAX + 1).len(), 1);
    }
}
