//! Nothing unfinished, ignored, allowed or left from debugging.

use proc_macro2::{Group, TokenTree};

use super::Finding;
use super::tokens;
use super::tree::{SourceFile, Tree};

const RULE: &str = "stubs";

/// Macros that must not stay in the tree, with what to do instead.
const MACROS: [(&str, &str); 3] = [
    ("todo", "write what is missing, or leave the item out"),
    (
        "unimplemented",
        "write what is missing, or return a typed error",
    ),
    ("dbg", "remove it, or use tracing"),
];
/// The same for attributes.
const ATTRIBUTES: [(&str, &str); 2] = [
    (
        "allow",
        "mend the cause, or use #[expect(lint, reason = \"..\")]",
    ),
    (
        "ignore",
        "run the test, or print `SKIP <test>: <reason>` where it cannot run",
    ),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().flat_map(in_file).collect()
}

fn in_file(file: &SourceFile) -> Vec<Finding> {
    let stream = match tokens::of(file) {
        Ok(stream) => stream,
        Err(finding) => return vec![finding],
    };
    let mut findings = ignored_doctests(file);
    tokens::walk(stream, &mut |trees| {
        let found = stub_macro(trees).or_else(|| attribute_of(trees));
        findings.extend(found.map(|(what, remedy)| Finding {
            path: file.path.clone(),
            line: tokens::line(trees),
            rule: RULE,
            what,
            remedy,
        }));
    });
    findings
}

fn stub_macro(trees: &[TokenTree]) -> Option<(String, &'static str)> {
    let name = tokens::ident(trees.first())?;
    let (banned, remedy) = MACROS.into_iter().find(|row| row.0 == name)?;
    let is_call =
        tokens::is_punct(trees.get(1), '!') && matches!(trees.get(2), Some(TokenTree::Group(_)));
    is_call.then(|| (format!("`{banned}!` in the tree"), remedy))
}

fn attribute_of(trees: &[TokenTree]) -> Option<(String, &'static str)> {
    let group = tokens::attribute(trees)?;
    let (banned, remedy) = ATTRIBUTES.into_iter().find(|row| applies(group, row.0))?;
    Some((format!("attribute `{banned}`"), remedy))
}

/// Whether the attribute is, or under `cfg_attr` may become, the one of this name.
fn applies(attribute: &Group, name: &str) -> bool {
    let trees: Vec<TokenTree> = attribute.stream().into_iter().collect();
    if tokens::ident(trees.first()).as_deref() != Some("cfg_attr") {
        return tokens::ident(trees.first()).as_deref() == Some(name);
    }
    let Some(TokenTree::Group(arguments)) = trees.get(1) else {
        return false;
    };
    let trees: Vec<TokenTree> = arguments.stream().into_iter().collect();
    let parts = trees.split(|tree| tokens::is_punct(Some(tree), ','));
    // The first part is the condition.
    parts
        .skip(1)
        .any(|part| tokens::ident(part.first()).as_deref() == Some(name))
}

/// A fenced example marked `ignore` is a test that never runs.
fn ignored_doctests(file: &SourceFile) -> Vec<Finding> {
    let is_ignored = |line: &str| {
        let comment = line.trim_start();
        let text = comment
            .strip_prefix("///")
            .or_else(|| comment.strip_prefix("//!"));
        let fence = text.and_then(|text| text.trim_start().strip_prefix("```"));
        fence.is_some_and(|fence| {
            fence
                .split(',')
                .any(|word| word.trim().starts_with("ignore"))
        })
    };
    let lines = file
        .text
        .lines()
        .zip(1..)
        .filter(|(line, _)| is_ignored(line));
    lines
        .map(|(_, line)| Finding {
            path: file.path.clone(),
            line,
            rule: RULE,
            what: "example marked `ignore`".into(),
            remedy: "let it run, or mark it `text` or `no_run`",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::one_file;
    use super::*;

    fn lines_found(text: &str) -> Vec<usize> {
        let findings = check(&one_file("lunette", "node", text));
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_stub_is_caught_on_its_line() {
        for stub in [
            "fn f() {\n    todo!()\n}",
            "fn f() {\n    unimplemented!(\"later\")\n}",
            "fn f() {\n    dbg!(1);\n}",
            "#[test]\n#[ignore]\nfn f() {}",
            "#[test]\n#[ignore = \"slow\"]\nfn f() {}",
            "\n#![allow(dead_code)]",
            "fn f() {\n    #[allow(unused)] let x = 1;\n}",
            "struct S;\n#[cfg_attr(test, allow(dead_code))]\nstruct T;",
            "//! Text.\n//! ```ignore\n//! ```",
        ] {
            assert_eq!(lines_found(stub), [2], "{stub}");
        }
    }

    #[test]
    fn a_stub_inside_a_macro_is_caught() {
        assert_eq!(lines_found("proptest! {\n    fn f() { todo!() }\n}"), [2]);
    }

    #[test]
    fn words_in_strings_comments_and_names_are_fine() {
        let text = "// todo!() and #[allow(x)]\nfn ignore() -> &'static str { \"dbg!(1)\" }\n\
                    #[expect(dead_code, reason = \"why\")]\nstruct S;\n\
                    #[cfg_attr(allow, derive(Debug))]\nstruct T;\n/// ```text\n/// ```\nstruct U;";
        assert!(lines_found(text).is_empty());
    }

    #[test]
    fn a_file_that_is_not_rust_is_told() {
        let findings = check(&one_file("lunette", "node", "fn f( {"));
        assert_eq!(findings[0].rule, "syntax");
    }
}
