//! The head of a submission queue, as completions tell it (NVMe Base 2.0, "Completion Queue Entry" and "Connect
//! Command").
//!
//! ```text
//!            Connect sent                 Connect succeeded, head 0xffff where that was asked for
//!   Unknown --------------> Connecting ---------------------------------------------------------> Off
//!      ^                     |      \
//!      +---(Connect failed)--+       \---(Connect succeeded, any other head)--> On
//! ```
//!
//! A head that is told counts the entries that the controller has consumed when it completed a command, modulo the
//! size of the queue. Controllers consume an entry when they take the command or when they complete it, and
//! completions may pass each other on their way. So at least the commands are counted that had completed before this
//! one was sent, and this one; and no more than have been sent.

use crate::command::{Command, fabrics};
use crate::completion::{Completion, HEAD_WITHOUT_FLOW_CONTROL};
use crate::fabrics::Connect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No Connect has succeeded: the size of the queue is not known.
    Unknown,
    /// A Connect is in flight.
    Connecting {
        cid: u16,
        entries: u32,
        may_be_off: bool,
    },
    /// Heads are told.
    On { entries: u32 },
    /// Heads mean nothing.
    Off,
}

/// What the heads of a queue may be.
#[derive(Debug)]
pub(super) struct Heads {
    state: State,
    sent: u64,
    completed: u64,
}

/// What is known of the head when a command is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Heads {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Unknown,
            sent: 0,
            completed: 0,
        }
    }

    /// A command is sent.
    pub(super) fn on_sent(&mut self, command: &Command) -> Mark {
        let is_connect = command.fabrics_type() == Some(fabrics::CONNECT);
        // It is the first entry of its queue.
        if is_connect && self.state == State::Unknown && self.sent == self.completed {
            let connect = Connect::of(command);
            self.state = State::Connecting {
                cid: command.cid,
                entries: u32::from(connect.entries_less_one) + 1,
                may_be_off: connect.without_flow_control,
            };
            (self.sent, self.completed) = (0, 0);
        }
        self.sent += 1;
        Mark(self.completed)
    }

    /// A command has completed without saying where the head is.
    pub(super) const fn on_completed_silently(&mut self) {
        self.completed += 1;
    }

    /// A command that was sent at `mark` has completed. Whether the head that it tells may be.
    pub(super) fn on_completed(&mut self, mark: Mark, completion: &Completion) -> bool {
        self.completed += 1;
        if let State::Connecting {
            cid,
            entries,
            may_be_off,
        } = self.state
            && cid == completion.cid
        {
            self.state = if !completion.status.is_success() {
                State::Unknown
            } else if may_be_off && completion.head == HEAD_WITHOUT_FLOW_CONTROL {
                State::Off
            } else {
                State::On { entries }
            };
        }
        match self.state {
            State::On { entries } => self.may_be(mark, completion.head, entries),
            State::Unknown | State::Connecting { .. } | State::Off => true,
        }
    }

    fn may_be(&self, mark: Mark, head: u16, entries: u32) -> bool {
        let (head, entries) = (u64::from(head), u64::from(entries));
        let least = mark.0 + 1;
        let beyond_least = (head + entries - least % entries) % entries;
        head < entries && beyond_least <= self.sent - least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::io;
    use crate::completion::Status;

    const ENTRIES: u16 = 4;

    fn connect(without_flow_control: bool) -> Command {
        let connect = Connect {
            format: 0,
            queue_id: 1,
            entries_less_one: ENTRIES - 1,
            without_flow_control,
            keep_alive_ms: 0,
        };
        connect.command()
    }

    fn completion(head: u16, status: Status) -> Completion {
        Completion {
            result: 0,
            head,
            queue_id: 0,
            cid: 0,
            status,
        }
    }

    /// Heads that a command may tell that was sent when `completed` had completed, and completes after `sent`.
    fn allowed(completed: u64, sent: u64) -> Vec<u16> {
        let heads = (0..8).chain([HEAD_WITHOUT_FLOW_CONTROL]);
        let allowed = heads.filter(|&head| {
            let mut heads = Heads {
                state: State::On {
                    entries: u32::from(ENTRIES),
                },
                sent,
                completed,
            };
            heads.on_completed(Mark(completed), &completion(head, Status::SUCCESS))
        });
        allowed.collect()
    }

    #[test]
    fn every_state_answers_every_event() {
        let told = [
            ("sent", None),
            ("refused", Some((1, Status::CONNECT_HOST))),
            ("head 1", Some((1, Status::SUCCESS))),
            (
                "no head",
                Some((HEAD_WITHOUT_FLOW_CONTROL, Status::SUCCESS)),
            ),
        ];
        let mut table = String::new();
        for way in ["new", "may be off", "must be on", "on", "off"] {
            table += &format!("{way}:");
            for (_, event) in told {
                let mut heads = Heads::new();
                let mark = match way {
                    "new" => Mark(0),
                    other => heads.on_sent(&connect(other != "must be on")),
                };
                if let "on" | "off" = way {
                    let head = if way == "on" {
                        1
                    } else {
                        HEAD_WITHOUT_FLOW_CONTROL
                    };
                    assert!(heads.on_completed(mark, &completion(head, Status::SUCCESS)));
                }
                let allows = match event {
                    None => heads.on_sent(&connect(true)).0 == heads.completed,
                    Some((head, status)) => {
                        if way == "on" {
                            heads.on_sent(&Command::new(io::FLUSH, 1, [0; 6]));
                        }
                        heads.on_completed(mark, &completion(head, status))
                    }
                };
                let state = format!("{:?}", heads.state);
                let state = state.split(' ').next().unwrap_or_default();
                table += &format!(" {}{state}", if allows { "" } else { "!" });
            }
            table += "\n";
        }
        assert_eq!(
            table,
            "new: Connecting Unknown Unknown Unknown\n\
             may be off: Connecting Unknown On Off\n\
             must be on: Connecting Unknown On !On\n\
             on: On On On !On\n\
             off: Off Off Off Off\n"
        );
    }

    #[test]
    fn a_head_lies_between_what_had_completed_and_what_was_sent() {
        for (completed, sent, heads) in [
            // The Connect.
            (0, 1, &[1][..]),
            (1, 2, &[2]),
            (1, 3, &[2, 3]),
            // It goes round.
            (2, 4, &[0, 3]),
            (3, 5, &[0, 1]),
            (7, 8, &[0]),
            // A command that took so long that nothing is known.
            (1, 5, &[0, 1, 2, 3]),
            (1, 900, &[0, 1, 2, 3]),
        ] {
            assert_eq!(allowed(completed, sent), heads, "{completed} {sent}");
        }
    }

    #[test]
    fn commands_that_complete_without_a_head_are_counted() {
        let mut heads = Heads::new();
        let mark = heads.on_sent(&connect(false));
        assert!(heads.on_completed(mark, &completion(1, Status::SUCCESS)));
        heads.on_sent(&Command::new(io::READ, 1, [0; 6]));
        heads.on_completed_silently();
        let mark = heads.on_sent(&Command::new(io::READ, 1, [0; 6]));
        assert!(!heads.on_completed(mark, &completion(2, Status::SUCCESS)));
        heads.completed -= 1;
        assert!(heads.on_completed(mark, &completion(3, Status::SUCCESS)));
    }
}
