//! What a controller may do about a command of a host, and when.
//!
//! ```text
//!   Free -- sent, nothing to move ------------------------------------------> Waiting
//!   Free -- sent, data to send ------> Writing (asked) -- asked for the rest -> Waiting
//!   Free -- sent, data to fetch -----> Reading (data) --- the last of them ---> Read
//!                                         \------- said to be the last -------> Short
//!   Waiting, Writing, Read -- succeeded --> Free;   all -- failed --> Free
//! ```
//!
//! A command that fails may end with a part of its data, and its controller may know that in time to say so with the
//! last of them. One that succeeds has all of its data (NVMe/TCP 1.0, "Data Transfers").

use crate::command::Direction;

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none.
    Free,
    /// There are no data to move, or no more.
    Waiting,
    /// Data are to come.
    Reading,
    /// All data have come.
    Read,
    /// The last data have come, and they are not all.
    Short,
    /// Data are to be asked for.
    Writing,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It is sent, without data or with all of them.
    Sent,
    /// It is sent, and has data to fetch.
    SentRead,
    /// It is sent, and has data to send.
    SentWrite,
    /// Data come, and more are to.
    Data,
    /// Data come up to the end, and say that they are the last.
    DataLast,
    /// Data come, and say that they are the last before the end.
    DataShort,
    /// Some of its data are asked for.
    Asked,
    /// The rest of its data are asked for.
    AskedRest,
    /// It is over, and did what it was to do.
    Succeeded,
    /// It is over, and did not.
    Failed,
}

/// All stages, in the order of the table's rows.
#[cfg(test)]
pub(super) const STAGES: [Stage; 6] = [
    Stage::Free,
    Stage::Waiting,
    Stage::Reading,
    Stage::Read,
    Stage::Short,
    Stage::Writing,
];

/// All events, in the order of the table's columns.
#[cfg(test)]
pub(super) const EVENTS: [Event; 10] = [
    Event::Sent,
    Event::SentRead,
    Event::SentWrite,
    Event::Data,
    Event::DataLast,
    Event::DataShort,
    Event::Asked,
    Event::AskedRest,
    Event::Succeeded,
    Event::Failed,
];

impl Event {
    /// The start of a command with `left_bytes` of data that do not go with it.
    pub(super) const fn sent(direction: Direction, left_bytes: u32) -> Self {
        match direction {
            Direction::ToHost if left_bytes > 0 => Self::SentRead,
            Direction::ToController if left_bytes > 0 => Self::SentWrite,
            _ => Self::Sent,
        }
    }
}

impl Stage {
    /// The stage after `event`; `None` if it may not happen.
    pub(super) const fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Free, Event::Sent) | (Self::Writing, Event::AskedRest) => Some(Self::Waiting),
            (Self::Free, Event::SentRead) | (Self::Reading, Event::Data) => Some(Self::Reading),
            (Self::Free, Event::SentWrite) | (Self::Writing, Event::Asked) => Some(Self::Writing),
            (Self::Reading, Event::DataLast) => Some(Self::Read),
            (Self::Reading, Event::DataShort) => Some(Self::Short),
            // Whether a write may succeed of whose data not all were asked for is its caller's to say.
            (Self::Waiting | Self::Read | Self::Writing, Event::Succeeded)
            | (
                Self::Waiting | Self::Reading | Self::Read | Self::Short | Self::Writing,
                Event::Failed,
            ) => Some(Self::Free),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_answers_every_event() {
        let mut table = String::new();
        for stage in STAGES {
            table += &format!("{stage:?}:");
            for event in EVENTS {
                let cell = stage.after(event);
                table += &cell.map_or(" -".to_owned(), |after| format!(" {after:?}"));
            }
            table += "\n";
        }
        assert_eq!(
            table,
            "Free: Waiting Reading Writing - - - - - - -\n\
             Waiting: - - - - - - - - Free Free\n\
             Reading: - - - Reading Read Short - - - Free\n\
             Read: - - - - - - - - Free Free\n\
             Short: - - - - - - - - - Free\n\
             Writing: - - - - - - Writing Waiting Free Free\n"
        );
    }

    #[test]
    fn what_goes_with_a_command_is_not_waited_for() {
        for (direction, left_bytes, event) in [
            (Direction::ToHost, 1, Event::SentRead),
            (Direction::ToController, 1, Event::SentWrite),
            (Direction::ToHost, 0, Event::Sent),
            (Direction::ToController, 0, Event::Sent),
            (Direction::None, 1, Event::Sent),
        ] {
            assert_eq!(Event::sent(direction, left_bytes), event);
        }
    }
}
