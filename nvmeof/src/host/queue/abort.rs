//! Asking the controller to abort commands that nobody waits for any more.
//!
//! A command that is given up keeps its slot until the controller has completed it. So the
//! controller is asked to do that early (NVMe Base 2.0, "Abort command"), by one request at a time,
//! which is as many as every controller takes. It may say that it does not; then the command takes
//! what it takes, and the connection ends if that is too long.
//!
//! A queue on another core than its controller's admin queue sends there what is to be aborted.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunette_nvmeof_proto::command::{Command, admin};
use lunette_nvmeof_proto::host::{COMMANDS_MAX, HostQueue};
use lunette_runtime::{Port, Sender, Signal, spawn_local, time};

use super::shared::{GRACE, Shared};
use super::{Data, Queue};

/// What is to be aborted, and by whom.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    /// The controller's admin queue, and the id of this one.
    admin: RefCell<Option<(Admin, u16)>>,
    waiting: RefCell<VecDeque<u16>>,
    pub(super) told: Signal,
    /// Commands that the controller has aborted.
    aborted: Arc<AtomicU64>,
}

/// Where an admin queue is.
#[derive(Clone, Debug)]
enum Admin {
    /// On this core. It may be the queue itself whose commands are aborted.
    Here(Weak<Shared>),
    Elsewhere(Sender<Ask>),
}

/// A command of a queue on another core is to be aborted.
#[derive(Debug)]
pub(in crate::host) struct Ask {
    queue_id: u16,
    cid: u16,
    aborted: Arc<AtomicU64>,
}

impl Queue {
    /// Has commands of this queue, `queue_id` of its controller, aborted on `admin` when nobody
    /// waits for them any more. The admin queue is not kept open for that.
    pub(crate) fn abort_on(&self, admin: &Self, queue_id: u16) {
        self.abort_by(Admin::Here(Rc::downgrade(&admin.shared)), queue_id);
    }

    /// As [`Queue::abort_on`], with an admin queue on another core.
    pub(in crate::host) fn abort_elsewhere(&self, admin: Sender<Ask>, queue_id: u16) {
        self.abort_by(Admin::Elsewhere(admin), queue_id);
    }

    fn abort_by(&self, admin: Admin, queue_id: u16) {
        self.shared.aborts.admin.replace(Some((admin, queue_id)));
        drop(spawn_local(Rc::clone(&self.shared).abort_given_up()));
    }

    /// Does what queues of other cores ask this admin queue for, one after the other, as long as there
    /// is one.
    pub(in crate::host) async fn abort_for_others(self, asks: Port<Ask>) {
        let Ok(mut asks) = asks.open() else {
            tracing::warn!("this core has too many sources to abort commands of other cores");
            return;
        };
        while let Some(ask) = asks.recv().await {
            self.shared.abort_one(&ask).await;
        }
    }

    /// How many commands the controller has aborted because nobody waited for them any more.
    #[must_use]
    pub fn aborted(&self) -> u64 {
        self.shared.aborts.aborted.load(Ordering::Relaxed)
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
            // It may have ended meanwhile. (Elsewhere that is not known; its id is not used again soon.)
            if !self.state.borrow().is_in_flight(cid) {
                continue;
            }
            let known = self.aborts.admin.borrow().clone();
            let Some((admin, queue_id)) = known else {
                return;
            };
            let ask = Ask {
                queue_id,
                cid,
                aborted: Arc::clone(&self.aborts.aborted),
            };
            match admin {
                Admin::Here(admin) => match admin.upgrade() {
                    Some(admin) => admin.abort_one(&ask).await,
                    None => return,
                },
                // Where more wait than may, the command takes what it takes.
                Admin::Elsewhere(admin) => drop(admin.try_send(ask)),
            }
        }
    }

    /// Asks on this queue, the controller's admin queue, for one abort.
    async fn abort_one(self: &Rc<Self>, ask: &Ask) {
        let cid = ask.cid;
        let deadline = time::now() + GRACE;
        let asked = Queue::command_on(self, request(ask.queue_id, cid), Data::None, deadline);
        match asked.await {
            Ok(done) if done.result & 1 == 0 => {
                ask.aborted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => tracing::debug!(cid, "the controller does not abort it"),
            Err(failure) => tracing::debug!(%failure, cid, "abort"),
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
