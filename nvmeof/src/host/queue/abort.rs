//! Asking the controller to abort commands that nobody waits for any more.
//!
//! A command that is given up keeps its slot until the controller has completed it. So the
//! controller is asked to do that early (NVMe Base 2.0, "Abort command"), by one request at a time,
//! which is as many as every controller takes. It may say that it does not; then the command takes
//! what it takes, and the connection ends if that is too long.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use lunette_nvmeof_proto::command::{Command, admin};
use lunette_nvmeof_proto::host::{COMMANDS_MAX, HostQueue};
use lunette_runtime::{Signal, spawn_local, time};

use super::shared::{GRACE, Shared};
use super::{Data, Queue};

/// What is to be aborted, and by whom.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    /// The controller's admin queue, and the id of this one. It may be this one itself.
    admin: RefCell<Option<(Weak<Shared>, u16)>>,
    waiting: RefCell<VecDeque<u16>>,
    pub(super) told: Signal,
    /// Commands that the controller has aborted.
    pub(super) aborted: Cell<u64>,
}

impl Queue {
    /// Has commands of this queue, `queue_id` of its controller, aborted on `admin` when nobody
    /// waits for them any more. The admin queue is not kept open for that.
    pub(crate) fn abort_on(&self, admin: &Self, queue_id: u16) {
        let admin = Rc::downgrade(&admin.shared);
        self.shared.aborts.admin.replace(Some((admin, queue_id)));
        drop(spawn_local(Rc::clone(&self.shared).abort_given_up()));
    }

    /// How many commands the controller has aborted because nobody waited for them any more.
    #[must_use]
    pub fn aborted(&self) -> u64 {
        self.shared.aborts.aborted.get()
    }
}

impl Shared {
    /// Nobody waits for a command any more.
    pub(super) fn abort(&self, cid: u16) {
        let mut waiting = self.aborts.waiting.borrow_mut();
        let has_admin = self.aborts.admin.borrow().is_some();
        if has_admin && waiting.len() < usize::from(COMMANDS_MAX) {
            waiting.push_back(cid);
            self.aborts.told.raise();
        }
    }

    /// Whether an Abort of this connection's is meant, which is not to be aborted itself.
    pub(super) fn is_abort(&self, command: &Command) -> bool {
        let admin = self.aborts.admin.borrow();
        let is_admin = admin.as_ref().is_some_and(|(_, queue_id)| *queue_id == 0);
        is_admin && command.opcode == admin::ABORT
    }

    /// Asks for one abort after the other, until the connection ends.
    async fn abort_given_up(self: Rc<Self>) {
        while self.state.borrow().closed().is_none() {
            let next = self.aborts.waiting.borrow_mut().pop_front();
            let Some(cid) = next else {
                self.aborts.told.raised().await;
                continue;
            };
            // It may have ended meanwhile.
            if !self.state.borrow().is_in_flight(cid) {
                continue;
            }
            let known = self.aborts.admin.borrow().clone();
            let Some((admin, queue_id)) =
                known.and_then(|(admin, id)| Some((admin.upgrade()?, id)))
            else {
                return;
            };
            let deadline = time::now() + GRACE;
            let asked = Queue::command_on(&admin, request(queue_id, cid), Data::None, deadline);
            match asked.await {
                Ok(done) if done.result & 1 == 0 => {
                    self.aborts.aborted.set(self.aborts.aborted.get() + 1);
                }
                Ok(_) => tracing::debug!(cid, "the controller does not abort it"),
                Err(failure) => tracing::debug!(%failure, cid, "abort"),
            }
        }
    }
}

/// An Abort of a command of a queue.
fn request(queue_id: u16, cid: u16) -> Command {
    let named = u32::from(queue_id) | u32::from(cid) << 16;
    Command::new(admin::ABORT, 0, [named, 0, 0, 0, 0, 0])
}

impl super::state::State {
    fn is_in_flight(&self, cid: u16) -> bool {
        let index = self.by_slot[HostQueue::slot_of(cid)];
        index.is_some_and(|index| self.waiters[index].cid == cid)
    }
}
