//! What a controller tells unasked.
//!
//! One request for an event is with the controller at a time, and the next one goes there when the
//! page that the last event named has been read: until then events wait at the controller, so that
//! they take nothing here however many there are.

use std::cell::Cell;
use std::rc::Rc;

use lunette_nvmeof_proto::command::{Command, admin};
use lunette_nvmeof_proto::log_page::AnaGroup;
use lunette_runtime::Signal;
use lunette_runtime_core::time::Time;

use super::queue::{Data, Queue};
use crate::error::CommandError;

/// What a controller told unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// These namespaces have come, gone or changed. `NSID_ALL` alone: more than a list holds.
    Namespaces(Vec<u32>),
    /// How groups of namespaces can be reached now: all groups, without their namespaces.
    Paths(Vec<AnaGroup>),
    /// What discovery tells has changed.
    Discovery,
}

/// Where the event lies between the task that asks for it and whoever waits for it.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The log page that the event names.
    page: Cell<Option<u8>>,
    ended: Cell<Option<CommandError>>,
    told: Signal,
    taken: Signal,
}

impl Events {
    /// The log page of the next event, which stays the next one until it is [taken](Self::take).
    pub(super) async fn page(&self) -> Result<u8, CommandError> {
        loop {
            if let Some(page) = self.page.get() {
                return Ok(page);
            }
            if let Some(error) = self.ended.get() {
                return Err(error);
            }
            self.told.raised().await;
        }
    }

    /// The event has been seen to.
    pub(super) fn take(&self) {
        self.page.set(None);
        self.taken.raise();
    }
}

/// Asks for one event after the other.
pub(super) async fn listen(admin: Queue, events: Rc<Events>) {
    loop {
        let request = Command::new(admin::ASYNC_EVENT, 0, [0; 6]);
        // It ends when something happens.
        let asked = admin.command_until(request, Data::None, Time::MAX);
        match asked.await {
            Ok(done) => events.page.set(Some(page_of(done.result))),
            Err(failure) => {
                events.ended.set(Some(failure.error));
                events.told.raise();
                return;
            }
        }
        events.told.raise();
        while events.page.get().is_some() {
            events.taken.raised().await;
        }
    }
}

/// The log page that an event's completion names (NVMe Base 2.0, "Asynchronous Event Request
/// Command").
const fn page_of(result: u64) -> u8 {
    result.to_le_bytes()[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_byte_of_an_event_is_its_page() {
        assert_eq!(page_of(0x00ff_0004_0002), 4);
        assert_eq!(page_of(0x000c_0302), 12);
    }
}
