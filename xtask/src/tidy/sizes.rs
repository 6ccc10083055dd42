//! Functions, files, and how many files are long.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::tree::{SourceFile, Tree};

const RULE: &str = "sizes";
/// Most lines between the braces of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Most lines of a file.
const FILE_LINES_MAX: usize = 1000;
/// A file above this many lines is long, and only few may be.
const LONG_FILE_LINES: usize = 500;
/// Most long files, in percent of all.
const LONG_FILES_PERCENT_MAX: usize = 20;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tree.rust_files().flat_map(long_functions).collect();
    findings.extend(tree.rust_files().filter_map(oversized));
    findings.extend(too_many_long(tree));
    findings
}

fn long_functions(file: &SourceFile) -> Vec<Finding> {
    // A file that does not parse is reported by the check for stubs.
    let Ok(parsed) = syn::parse_file(&file.text) else {
        return Vec::new();
    };
    let mut functions = Functions {
        path: &file.path,
        findings: Vec::new(),
    };
    functions.visit_file(&parsed);
    functions.findings
}

struct Functions<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let span = body.span();
        let lines = (span.end().line - span.start().line).saturating_sub(1);
        if lines <= FUNCTION_LINES_MAX {
            return;
        }
        self.findings.push(Finding {
            path: self.path.to_owned(),
            line: signature.span().start().line,
            rule: RULE,
            what: format!(
                "function `{}` has {lines} lines (most: {FUNCTION_LINES_MAX})",
                signature.ident
            ),
            remedy: "split it where it starts to do a second thing",
        });
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

fn line_count(file: &SourceFile) -> usize {
    file.text.lines().count()
}

fn oversized(file: &SourceFile) -> Option<Finding> {
    let lines = line_count(file);
    (lines > FILE_LINES_MAX).then(|| Finding {
        path: file.path.clone(),
        line: FILE_LINES_MAX + 1,
        rule: RULE,
        what: format!("file has {lines} lines (most: {FILE_LINES_MAX})"),
        remedy: "split it by subject: one sub-machine, one file",
    })
}

/// One finding at the longest file: which ones to split is the reader's choice.
fn too_many_long(tree: &Tree) -> Option<Finding> {
    let all = tree.rust_files().count();
    let mut long: Vec<(usize, &str)> = tree
        .rust_files()
        .map(|file| (line_count(file), file.path.as_str()))
        .filter(|(lines, _)| *lines > LONG_FILE_LINES)
        .collect();
    if long.len() * 100 <= all * LONG_FILES_PERCENT_MAX {
        return None;
    }
    long.sort_unstable();
    let names: Vec<String> = long
        .iter()
        .rev()
        .map(|(lines, path)| format!("{path} ({lines})"))
        .collect();
    Some(Finding {
        path: long.last().map(|(_, path)| (*path).to_owned())?,
        line: LONG_FILE_LINES + 1,
        rule: RULE,
        what: format!(
            "{} of {all} files have more than {LONG_FILE_LINES} lines (most: \
             {LONG_FILES_PERCENT_MAX} %): {}",
            long.len(),
            names.join(", ")
        ),
        remedy: "split one of them by subject",
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{file, one_file};
    use super::*;

    fn function_of(lines: usize) -> String {
        format!(
            "struct S;\nimpl S {{\n    fn f() {{\n{}    }}\n}}\n",
            "        g();\n".repeat(lines)
        )
    }

    #[test]
    fn functions_are_measured_from_both_sides_of_the_limit() {
        let found = |lines| check(&one_file("lunette", "node", &function_of(lines)));
        assert_eq!(found(FUNCTION_LINES_MAX), []);
        let findings = found(FUNCTION_LINES_MAX + 1);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
    }

    #[test]
    fn functions_of_traits_and_inside_functions_count() {
        let body = "g();\n".repeat(FUNCTION_LINES_MAX + 1);
        for text in [
            format!("trait T {{ fn f() {{\n{body}}} }}"),
            format!("fn outer() {{ mod m {{ fn f() {{\n{body}}} }} }}"),
        ] {
            assert!(
                !check(&one_file("lunette", "node", &text)).is_empty(),
                "{text}"
            );
        }
    }

    /// One file of `lines` lines among ten, so that long files are few.
    fn tree_with(lines: usize) -> Tree {
        let mut files: Vec<SourceFile> = (0..9)
            .map(|index| file(&format!("{index}.rs"), ""))
            .collect();
        files.push(file("long.rs", &"//\n".repeat(lines)));
        Tree {
            files,
            ..Tree::default()
        }
    }

    #[test]
    fn files_are_measured_from_both_sides_of_the_limit() {
        assert_eq!(check(&tree_with(FILE_LINES_MAX)), []);
        assert_eq!(check(&tree_with(FILE_LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn only_a_fifth_of_the_files_may_be_long() {
        let mut tree = tree_with(LONG_FILE_LINES + 1);
        tree.files[0].text = "//\n".repeat(LONG_FILE_LINES + 1);
        assert_eq!(check(&tree), []);
        tree.files[1].text = "//\n".repeat(LONG_FILE_LINES + 1);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].what.starts_with("3 of 10 files"),
            "{}",
            findings[0]
        );
    }
}
