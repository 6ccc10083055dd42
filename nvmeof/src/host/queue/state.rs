//! The commands in flight on one connection, and who waits for what.

use std::collections::VecDeque;
use std::task::Waker;

use lunette_nvmeof_proto::completion::Completion;
use lunette_nvmeof_proto::host::{HostOptions, HostQueue, Transfer};
use lunette_runtime::net::Outbox;
use slab::Slab;

use super::lent::{Incoming, Outgoing};
use crate::error::{CloseReason, CommandError};

#[derive(Debug)]
pub(in crate::host) struct State {
    pub(in crate::host) queue: HostQueue,
    pub(super) waiters: Slab<Waiter>,
    /// Which waiter's command is in flight in a slot. A waiter stays until its caller has its
    /// outcome, which may be later than the slot is used again.
    pub(super) by_slot: Vec<Option<usize>>,
    /// Callers that wait for a free slot, with their tickets.
    pub(super) blocked: VecDeque<(u64, Waker)>,
    pub(super) next_ticket: u64,
    /// Those who wait for the set-up, or for the end.
    pub(super) watchers: Vec<Waker>,
    pub(super) is_open: bool,
    pub(super) closed: Option<CloseReason>,
    pub(super) scratch: Vec<u8>,
}

/// One command and its caller.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) cid: u16,
    pub(super) waker: Option<Waker>,
    /// To be filled; none while it is lent to a receive.
    pub(super) incoming: Option<Incoming>,
    pub(super) outgoing: Option<Outgoing>,
    pub(super) len: usize,
    /// How it ended: the completion and the bytes that were moved.
    pub(super) outcome: Option<Result<(Completion, u32), CommandError>>,
    /// The caller is gone; what is left goes when the command ends.
    pub(super) is_abandoned: bool,
    /// A receive into its region is in flight.
    pub(super) is_lent: bool,
    /// The machine has nothing to say about it any more.
    pub(super) is_over: bool,
    /// It is no Abort itself.
    pub(super) may_be_aborted: bool,
}

impl State {
    pub(super) fn new(options: HostOptions) -> Self {
        let commands_max = usize::from(options.commands_max);
        Self {
            queue: HostQueue::new(options),
            waiters: Slab::with_capacity(commands_max),
            by_slot: vec![None; commands_max],
            blocked: VecDeque::new(),
            next_ticket: 0,
            watchers: Vec::new(),
            is_open: false,
            closed: None,
            scratch: Vec::new(),
        }
    }

    /// A command is in flight from now on.
    pub(super) fn insert(&mut self, waiter: Waiter) -> usize {
        let slot = HostQueue::slot_of(waiter.cid);
        let index = self.waiters.insert(waiter);
        let slot = &mut self.by_slot[slot];
        assert!(slot.is_none(), "a free slot has no command in flight");
        *slot = Some(index);
        index
    }

    pub(super) fn waiter(&mut self, cid: u16) -> Option<&mut Waiter> {
        let index = self.by_slot[HostQueue::slot_of(cid)]?;
        let waiter = self.waiters.get_mut(index);
        waiter.filter(|waiter| waiter.cid == cid)
    }

    /// Nobody asks for a waiter any more.
    pub(super) fn forget(&mut self, index: usize) -> Waiter {
        let waiter = self.waiters.remove(index);
        let slot = &mut self.by_slot[HostQueue::slot_of(waiter.cid)];
        if *slot == Some(index) {
            *slot = None;
        }
        waiter
    }

    /// Why the connection has ended, if it has.
    pub(in crate::host) const fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// The connection is set up.
    pub(in crate::host) fn open(&mut self) {
        self.is_open = true;
        for waker in self.watchers.drain(..) {
            waker.wake();
        }
    }

    /// Keeps `waker` until the set-up, and until the end.
    pub(super) fn watch(&mut self, waker: &Waker) {
        if !self.watchers.iter().any(|known| known.will_wake(waker)) {
            self.watchers.push(waker.clone());
        }
    }

    /// A slot is free: whoever has waited for one the longest gets to know.
    pub(super) fn wake_next(&mut self) {
        if let Some((_, waker)) = self.blocked.pop_front() {
            waker.wake();
        }
    }

    /// Places data that arrived in staging.
    pub(in crate::host) fn place(&mut self, cid: u16, offset: usize, bytes: &[u8]) {
        let waiter = self.waiter(cid).expect("data of a command in flight");
        if let Some(incoming) = &mut waiter.incoming {
            incoming.place(offset, bytes);
        }
    }

    /// Takes a command's memory for a receive.
    pub(in crate::host) fn lend(&mut self, cid: u16) -> Option<Incoming> {
        let waiter = self.waiter(cid)?;
        waiter.is_lent = true;
        waiter.incoming.take()
    }

    /// A receive into a command's memory has ended.
    pub(in crate::host) fn give_back(&mut self, cid: u16, incoming: Incoming) {
        let Some(waiter) = self.waiter(cid) else {
            return;
        };
        waiter.incoming = Some(incoming).filter(|_| !waiter.is_abandoned);
        waiter.is_lent = false;
        if waiter.outcome.is_some()
            && let Some(waker) = waiter.waker.take()
        {
            waker.wake();
        }
    }

    /// Queues data that the controller has asked for.
    pub(in crate::host) fn send(&mut self, transfer: &Transfer, outbox: &Outbox) {
        self.scratch.clear();
        self.queue.append_transfer(transfer, &mut self.scratch);
        let framing = self.queue.framing();
        let waiter = self.waiter(transfer.cid).expect("a command in flight");
        let outgoing = waiter
            .outgoing
            .as_ref()
            .expect("a command with data to send");
        let part = outgoing.slice(transfer.offset_bytes as usize, transfer.len_bytes as usize);
        let scratch = &self.scratch;
        outbox.append(|message| {
            message.control(|out| out.extend_from_slice(scratch));
            part.clone().append(message);
            message.control(|out| framing.append_data_digest(out, || part.crc32c()));
        });
    }

    /// A command has ended: its caller gets to know, and a slot is free.
    pub(in crate::host) fn complete(&mut self, cid: u16, completion: Completion, data_bytes: u32) {
        let index = self.by_slot[HostQueue::slot_of(cid)].take();
        let index = index.expect("a command in flight");
        let waiter = &mut self.waiters[index];
        assert_eq!(waiter.cid, cid, "slots are used one command at a time");
        waiter.is_over = true;
        waiter.outcome.get_or_insert(Ok((completion, data_bytes)));
        let waker = waiter.waker.take();
        if waiter.is_abandoned {
            drop(self.waiters.remove(index));
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        self.wake_next();
    }
}
