//! What may happen to a command, and when.
//!
//! ```text
//!            capsule without data                      completed
//!   Free ------------------------------> Executing ----------------> Free
//!     |                                   |  ^  |
//!     | capsule with data     data asked  |  |  | data sent
//!     v                            for    v  |  v
//!   Capsule --- data complete ---------> Transfer --- data complete --> Executing
//! ```

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none.
    Free,
    /// Its data are coming behind it.
    Capsule,
    /// It is being carried out.
    Executing,
    /// Its data have been asked for.
    Transfer,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It came, alone.
    Bare,
    /// It came, and its data are to follow.
    WithData,
    /// The last of its data is there.
    DataComplete,
    /// Its data are asked for.
    DataAsked,
    /// Data are sent to the host.
    DataSent,
    /// It is over.
    Completed,
}

/// All stages, in the order of the table's rows.
#[cfg(test)]
pub(super) const STAGES: [Stage; 4] = [
    Stage::Free,
    Stage::Capsule,
    Stage::Executing,
    Stage::Transfer,
];

/// All events, in the order of the table's columns.
#[cfg(test)]
pub(super) const EVENTS: [Event; 6] = [
    Event::Bare,
    Event::WithData,
    Event::DataComplete,
    Event::DataAsked,
    Event::DataSent,
    Event::Completed,
];

impl Stage {
    /// The stage after `event`; `None` if it cannot happen.
    pub(super) const fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Free, Event::WithData) => Some(Self::Capsule),
            (Self::Free, Event::Bare)
            | (Self::Capsule | Self::Transfer, Event::DataComplete)
            | (Self::Executing, Event::DataSent) => Some(Self::Executing),
            (Self::Executing, Event::DataAsked) => Some(Self::Transfer),
            (Self::Executing, Event::Completed) => Some(Self::Free),
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
                let cell = stage
                    .after(event)
                    .map_or("-".to_owned(), |s| format!("{s:?}"));
                table += &format!(" {cell}");
            }
            table += "\n";
        }
        assert_eq!(
            table,
            "Free: Executing Capsule - - - -\n\
             Capsule: - - Executing - - -\n\
             Executing: - - - Transfer Executing Free\n\
             Transfer: - - Executing - - -\n"
        );
    }
}
