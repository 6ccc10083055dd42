//! Unsafe code in few packages, each within its budget; every other crate forbids it.
//!
//! The budget is a ratchet: `xtask/unsafe-budget.toml` holds the number of places that take a
//! proof upon themselves (blocks, impls, attributes), and differs from the tree never. So a change
//! of the number is visible in the diff that makes it.

use std::collections::BTreeMap;

use proc_macro2::TokenTree;
use toml_edit::Document;

use super::Finding;
use super::tokens;
use super::tree::{SourceFile, Tree};

const RULE: &str = "unsafe";
/// The packages that may hold unsafe code: the runtime, what talks to devices, what Python calls, and the raw loop that
/// rows of the bench are compared with, which must not go through the runtime.
const HOLDERS: [&str; 6] = [
    "lunette-bench",
    "lunette-gpu",
    "lunette-python",
    "lunette-runtime",
    "lunette-verbs",
    "rdma-core-sys",
];
const BUDGET: &str = "xtask/unsafe-budget.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = roots_without_forbid(tree);
    let in_tree = |name: &&str| tree.packages.iter().any(|package| package.name == *name);
    let mut counts: BTreeMap<&str, usize> = HOLDERS
        .into_iter()
        .filter(in_tree)
        .map(|name| (name, 0))
        .collect();
    for file in tree.rust_files() {
        let holder = tree
            .package_of(&file.path)
            .and_then(|package| counts.keys().copied().find(|name| *name == package.name));
        let lines = places(file);
        match holder {
            Some(name) => *counts.entry(name).or_default() += lines.len(),
            None => findings.extend(lines.into_iter().map(|line| outside(file, line))),
        }
    }
    findings.extend(against_budget(tree, &counts));
    findings
}

fn roots_without_forbid(tree: &Tree) -> Vec<Finding> {
    let others = tree
        .packages
        .iter()
        .filter(|package| !HOLDERS.contains(&package.name.as_str()));
    let roots = others.flat_map(|package| &package.roots);
    let lacking = roots.filter(|root| tree.file(root).is_some_and(|file| !forbids(file)));
    lacking
        .map(|root| Finding {
            path: root.clone(),
            line: 1,
            rule: RULE,
            what: "crate root does not forbid unsafe code".into(),
            remedy: "add #![forbid(unsafe_code)] below its //! text",
        })
        .collect()
}

fn forbids(file: &SourceFile) -> bool {
    let Ok(stream) = tokens::of(file) else {
        return true;
    };
    let mut found = false;
    tokens::walk(stream, &mut |trees| {
        let attribute = tokens::attribute(trees).map(|group| group.stream().to_string());
        found |= attribute
            .is_some_and(|text| text.starts_with("forbid") && text.contains("unsafe_code"));
    });
    found
}

/// The lines of blocks, impls and attributes that are unsafe. Unsafe functions and traits only
/// pass the duty on, so they do not count.
fn places(file: &SourceFile) -> Vec<usize> {
    // A file that does not parse is reported by the check for stubs.
    let Ok(stream) = tokens::of(file) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    tokens::walk(stream, &mut |trees| {
        if tokens::ident(trees.first()).as_deref() != Some("unsafe") {
            return;
        }
        if !passes_duty_on(&trees[1..]) {
            lines.push(tokens::line(trees));
        }
    });
    lines
}

/// Whether these tokens, behind `unsafe`, declare a function or a trait.
fn passes_duty_on(trees: &[TokenTree]) -> bool {
    let behind = match tokens::ident(trees.first()).as_deref() {
        // An ABI may stand in between: `unsafe extern "C" fn`.
        Some("extern") if matches!(trees.get(1), Some(TokenTree::Literal(_))) => trees.get(2),
        Some("extern") => trees.get(1),
        _ => trees.first(),
    };
    matches!(tokens::ident(behind).as_deref(), Some("fn" | "trait"))
}

fn outside(file: &SourceFile, line: usize) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        rule: RULE,
        what: "unsafe code outside lunette-runtime".into(),
        remedy: "put a safe interface into lunette-runtime and use that",
    }
}

fn against_budget(tree: &Tree, counts: &BTreeMap<&str, usize>) -> Vec<Finding> {
    let finding = |line, what, remedy| Finding {
        path: BUDGET.into(),
        line,
        rule: RULE,
        what,
        remedy,
    };
    let file = tree.file(BUDGET);
    let document = file.and_then(|file| Document::parse(file.text.as_str()).ok());
    let mut findings = Vec::new();
    for (name, count) in counts {
        let allowed = document
            .as_ref()
            .and_then(|document| document.as_table().get(name));
        let allowed = allowed.and_then(toml_edit::Item::as_integer);
        let Some(allowed) = allowed.and_then(|number| usize::try_from(number).ok()) else {
            let what = format!("no budget for `{name}`, which has {count}");
            findings.push(finding(1, what, "add the line, in this change"));
            continue;
        };
        let remedy = match count.cmp(&allowed) {
            std::cmp::Ordering::Equal => continue,
            std::cmp::Ordering::Greater => {
                "do without, or argue for it and raise the number in this same change"
            }
            std::cmp::Ordering::Less => "lower the number in this same change, so that it holds",
        };
        let line = file.map_or(1, |file| file.line_that_starts_with(name));
        findings.push(finding(
            line,
            format!("`{name}` has {count} unsafe places, its budget says {allowed}"),
            remedy,
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{file, one_file};
    use super::*;

    const FOUR: &str = "unsafe impl Send for S {}\nfn f() { unsafe { g() } }\n\
                        #[unsafe(no_mangle)]\nextern \"C\" fn h() {}\nunsafe extern \"C\" {}\n\
                        unsafe fn i() {}\nunsafe extern \"C\" fn j() {}\nunsafe trait T {}\n// unsafe {}\n";

    fn runtime_with_budget(budget: &str) -> Vec<Finding> {
        let mut tree = one_file("lunette-runtime", "runtime", FOUR);
        tree.files.push(file(BUDGET, budget));
        check(&tree)
    }

    #[test]
    fn the_budget_is_a_ratchet() {
        assert_eq!(runtime_with_budget("lunette-runtime = 4"), []);
        let grown = runtime_with_budget("# Why.\nlunette-runtime = 3");
        assert_eq!((grown.len(), grown[0].line), (1, 2));
        assert!(grown[0].remedy.contains("same change"), "{}", grown[0]);
        let shrunk = runtime_with_budget("lunette-runtime = 5");
        assert!(
            shrunk[0].remedy.starts_with("lower the number"),
            "{}",
            shrunk[0]
        );
        assert!(
            runtime_with_budget("other = 4")[0]
                .what
                .starts_with("no budget")
        );
    }

    fn elsewhere(text: &str) -> Vec<Finding> {
        let mut tree = one_file("lunette-kvstore", "kvstore", text);
        tree.files.push(file(BUDGET, "lunette-runtime = 0"));
        check(&tree)
    }

    #[test]
    fn unsafe_code_elsewhere_is_caught_on_its_line() {
        let findings = elsewhere("#![forbid(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}");
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
        assert_eq!(elsewhere("#![forbid(unsafe_code)]\n// unsafe\n"), []);
    }

    #[test]
    fn a_root_that_forbids_nothing_is_caught() {
        for text in [
            "//! Text.\n",
            "// #![forbid(unsafe_code)]",
            "#![deny(unsafe_code)]",
        ] {
            let findings = elsewhere(text);
            assert_eq!(findings.len(), 1, "{text}");
            assert!(findings[0].what.contains("does not forbid"));
        }
    }
}
