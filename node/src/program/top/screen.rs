//! The terminal: a screen of its own while it is looked at, and afterwards what was there before.

use console::Term;

use crate::program::failure::Failure;
use crate::program::output;

/// Another screen, no cursor, lines that are cut at the edge.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
/// All of that back.
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal of standard output, until the value is dropped.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> Result<Self, Failure> {
        output::raw(ENTER)?;
        Ok(Self(()))
    }

    /// Shows these lines and nothing else, as many as there is room for.
    pub(super) fn show(&mut self, text: &str) -> Result<(), Failure> {
        let (rows, _columns) = Term::stdout().size();
        output::raw(&frame(text, rows.into()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Err(error) = output::raw(LEAVE) {
            tracing::debug!(%error, "the terminal is gone");
        }
    }
}

/// What draws the lines over what is there, in one piece, so that nothing flickers.
fn frame(text: &str, rows: usize) -> Vec<u8> {
    // The last row is where the cursor is.
    let room = rows.saturating_sub(1).max(1);
    let lines: Vec<&str> = text.lines().collect();
    let more = match lines.len().checked_sub(room) {
        None | Some(0) => None,
        Some(hidden) => Some(format!("... {} more lines", hidden + 1)),
    };
    let shown = lines.len().min(room) - usize::from(more.is_some());
    let mut frame = String::from("\x1b[H");
    for line in lines[..shown].iter().copied().chain(more.as_deref()) {
        frame.push_str(line);
        frame.push_str("\x1b[K\r\n");
    }
    frame.push_str("\x1b[J");
    frame.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_leaves_nothing_of_the_one_before() {
        let expected = b"\x1b[Hab\x1b[K\r\nc\x1b[K\r\n\x1b[J";
        assert_eq!(frame("ab\nc", 3), expected);
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let text = "a\nb\nc\nd";
        for (rows, expected) in [
            (9, "abcd"),
            (5, "abcd"),
            (4, "ab... 2 more lines"),
            (2, "... 4 more lines"),
            (0, "... 4 more lines"),
        ] {
            let frame = String::from_utf8(frame(text, rows)).expect("text");
            let lines = frame.replace("\x1b[K\r\n", "");
            let lines = lines.strip_prefix("\x1b[H").expect("from the top");
            assert_eq!(lines.strip_suffix("\x1b[J"), Some(expected), "{rows}");
        }
    }
}
