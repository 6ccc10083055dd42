//! The terminal: a screen of its own while it is looked at, and afterwards what was there before.

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

    /// Shows these lines and nothing else.
    pub(super) fn show(&mut self, text: &str) -> Result<(), Failure> {
        output::raw(&frame(text))
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
fn frame(text: &str) -> Vec<u8> {
    let mut frame = String::from("\x1b[H");
    for line in text.lines() {
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
        assert_eq!(frame("ab\nc"), expected);
    }
}
