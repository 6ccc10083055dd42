//! ASCII, paths of a machine, names of files.

use super::Finding;
use super::tree::{SourceFile, Tree};

const RULE: &str = "prose";
/// Sources that are ASCII but for drawings.
const ASCII_EXTENSIONS: [&str; 3] = ["rs", "toml", "md"];
/// First folders of paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 3] = ["root", "home", "work"];
/// Names that say nothing about what a file holds, and so collect everything.
const BANNED_NAMES: [&str; 5] = ["utils.rs", "util.rs", "common.rs", "helpers.rs", "misc.rs"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let per_file = |file| {
        foreign_characters(file)
            .into_iter()
            .chain(machine_paths(file))
            .chain(banned_name(file))
    };
    tree.files.iter().flat_map(per_file).collect()
}

fn foreign_characters(file: &SourceFile) -> Vec<Finding> {
    let extension = file.path.rsplit('.').next().unwrap_or_default();
    if !ASCII_EXTENSIONS.contains(&extension) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        let foreign = line.char_indices().find(|&(at, character)| {
            let is_drawing = draws(character) && in_prose(extension, &line[..at]);
            !character.is_ascii() && !is_drawing
        });
        findings.extend(foreign.map(|(_, character)| Finding {
            path: file.path.clone(),
            line: number,
            rule: RULE,
            what: format!("character U+{:04X} is not ASCII", u32::from(character)),
            remedy: "write it in ASCII (only comments may draw, with lines and arrows), or as an \
                     escape in a string",
        }));
    }
    findings
}

/// Box-drawing lines, arrows, and the four filled arrowheads.
fn draws(character: char) -> bool {
    matches!(
        character,
        '\u{2500}'..='\u{257f}' | '\u{2190}'..='\u{21ff}' | '\u{25b2}' | '\u{25b6}' | '\u{25bc}' | '\u{25c0}'
    )
}

/// Whether what follows `before` on its line is read by people alone.
fn in_prose(extension: &str, before: &str) -> bool {
    match extension {
        "rs" => before.contains("//"),
        "toml" => before.contains('#'),
        _ => true,
    }
}

fn machine_paths(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        let found = MACHINE_FOLDERS
            .iter()
            .find(|folder| names_folder(line, folder));
        findings.extend(found.map(|folder| Finding {
            path: file.path.clone(),
            line: number,
            rule: RULE,
            what: format!("a path below /{folder} exists on one machine only"),
            remedy: "name it relative to the repository, or take it as an argument",
        }));
    }
    findings
}

/// Whether the line holds an absolute path into this top folder; `docs/home/x` holds none.
fn names_folder(line: &str, folder: &str) -> bool {
    let needle = format!("/{folder}/");
    line.match_indices(&needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || "._-~})".contains(character))
    })
}

fn banned_name(file: &SourceFile) -> Option<Finding> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    BANNED_NAMES.contains(&name).then(|| Finding {
        path: file.path.clone(),
        line: 1,
        rule: RULE,
        what: format!("`{name}` names no subject"),
        remedy: "name the file after what it holds; split it if that is several things",
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::file;
    use super::*;

    fn lines_found(path: &str, text: &str) -> Vec<usize> {
        let tree = Tree {
            files: vec![file(path, text)],
            ..Tree::default()
        };
        check(&tree)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn foreign_characters_are_caught_in_sources() {
        for path in ["a.rs", "a.toml", "a.md"] {
            assert_eq!(
                lines_found(path, "fine\n# // caf\u{e9} \u{2014}\n"),
                [2],
                "{path}"
            );
        }
        assert!(lines_found("a.json", "caf\u{e9}").is_empty());
    }

    #[test]
    fn only_comments_draw() {
        assert!(lines_found("a.rs", "// \u{250c}\u{2500}\u{2192}\n").is_empty());
        assert_eq!(lines_found("a.rs", "let x = \"\u{2500}\";\n"), [1]);
        assert_eq!(
            lines_found("a.toml", "# \u{2192}\nname = \"\u{2192}\"\n"),
            [2]
        );
        assert!(lines_found("a.md", "\u{2514}\u{2500}\u{25b6}\n").is_empty());
    }

    #[test]
    fn paths_of_a_machine_are_caught_in_every_text_file() {
        for folder in MACHINE_FOLDERS {
            let text = format!("x\nsee \"/{folder}/someone/file\"\n");
            assert_eq!(lines_found(".ci/run", &text), [2], "{folder}");
            assert!(lines_found("a.md", &format!("docs/{folder}/x ../{folder}/y")).is_empty());
        }
    }

    #[test]
    fn names_without_a_subject_are_caught() {
        for name in BANNED_NAMES {
            assert_eq!(lines_found(&format!("node/src/{name}"), ""), [1], "{name}");
        }
        assert!(lines_found("node/src/uncommon.rs", "").is_empty());
    }
}
