//! Rust source as tokens, so that strings and comments never look like code.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Finding;
use super::tree::SourceFile;

/// The tokens of a file.
///
/// # Errors
/// A finding, when the file is not Rust.
pub(super) fn of(file: &SourceFile) -> Result<TokenStream, Finding> {
    file.text
        .parse()
        .map_err(|error: proc_macro2::LexError| Finding {
            path: file.path.clone(),
            line: error.span().start().line,
            rule: "syntax",
            what: format!("this is not Rust: {error}"),
            remedy: "mend it, or give the file another extension",
        })
}

/// Calls `visit` with every place of the stream, groups opened: the tokens from there on.
pub(super) fn walk(stream: TokenStream, visit: &mut impl FnMut(&[TokenTree])) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for at in 0..trees.len() {
        visit(&trees[at..]);
        if let TokenTree::Group(group) = &trees[at] {
            walk(group.stream(), visit);
        }
    }
}

/// The identifier that stands here.
pub(super) fn ident(tree: Option<&TokenTree>) -> Option<String> {
    match tree {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

/// Whether this punctuation character stands here.
pub(super) fn is_punct(tree: Option<&TokenTree>, expected: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

/// The attribute that starts here: the content of `#[..]` or `#![..]`.
pub(super) fn attribute(trees: &[TokenTree]) -> Option<&Group> {
    if !is_punct(trees.first(), '#') {
        return None;
    }
    let at = if is_punct(trees.get(1), '!') { 2 } else { 1 };
    match trees.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => Some(group),
        _ => None,
    }
}

/// The line on which the first of these tokens starts.
pub(super) fn line(trees: &[TokenTree]) -> usize {
    trees.first().map_or(1, |tree| tree.span().start().line)
}
