//! The states of a controller (NVMe Base 2.0, "Controller Configuration" and "Controller Status").

use crate::fabrics::{Configuration, ControllerStatus};

/// Where a controller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It answers properties alone.
    Disabled,
    /// It works.
    Ready,
    /// It has been shut down.
    ShutDown,
}

/// What a write to its configuration means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Enabled,
    Disabled,
    ShutDown,
}

impl Event {
    pub(super) const fn of(configuration: Configuration) -> Self {
        if configuration.shuts_down() {
            Self::ShutDown
        } else if configuration.is_enabled() {
            Self::Enabled
        } else {
            Self::Disabled
        }
    }
}

impl Life {
    /// The state after `event`. A controller that was shut down works again only after it was
    /// disabled.
    pub(super) const fn after(self, event: Event) -> Self {
        match (self, event) {
            (Self::ShutDown, Event::Enabled) | (_, Event::ShutDown) => Self::ShutDown,
            (_, Event::Enabled) => Self::Ready,
            (_, Event::Disabled) => Self::Disabled,
        }
    }

    pub(super) const fn status(self) -> ControllerStatus {
        match self {
            Self::Disabled => ControllerStatus(0),
            Self::Ready => ControllerStatus::READY,
            Self::ShutDown => {
                ControllerStatus(ControllerStatus::READY.0 | ControllerStatus::SHUT_DOWN.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_answers_every_event() {
        use Life::{Disabled, Ready, ShutDown};
        let table = [
            (Disabled, [Ready, Disabled, ShutDown]),
            (Ready, [Ready, Disabled, ShutDown]),
            (ShutDown, [ShutDown, Disabled, ShutDown]),
        ];
        for (state, row) in table {
            let events = [Event::Enabled, Event::Disabled, Event::ShutDown];
            assert_eq!(events.map(|event| state.after(event)), row, "{state:?}");
        }
    }

    #[test]
    fn registers_name_events_and_states() {
        let enabled = Configuration::ENABLED;
        assert_eq!(Event::of(enabled), Event::Enabled);
        assert_eq!(Event::of(enabled.shutting_down()), Event::ShutDown);
        assert_eq!(Event::of(Configuration(0)), Event::Disabled);
        assert!(Life::Ready.status().is_ready());
        assert!(Life::ShutDown.status().is_shut_down());
        assert_eq!(Life::Disabled.status().0, 0);
    }
}
