//! A provider that completes everything at once and touches nothing: what is left is our own cost.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use lunette_verbs_proto::gid::{GidEntry, GidKind};

use super::{Completion, DeviceInfo, SendRequest};

/// The device.
#[derive(Debug)]
pub(crate) struct NullDevice;

/// What is to be polled. Like on an adapter, only signalled requests say anything.
#[derive(Debug)]
pub(crate) struct NullCompletions {
    entries: Rc<RefCell<VecDeque<u64>>>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct NullQueuePair {
    entries: Rc<RefCell<VecDeque<u64>>>,
}

pub(crate) fn info() -> DeviceInfo {
    let gid = GidEntry {
        index: 0,
        gid: [1; 16],
        kind: GidKind::RoceV2,
        is_up: true,
    };
    DeviceInfo {
        name: "null".into(),
        is_active: true,
        is_ethernet: true,
        is_iwarp: false,
        lid: 0,
        mtu_bytes: 4096,
        gids: vec![gid],
        queue_depth_max: 1 << 15,
        completions_max: 1 << 20,
        reads_out_max: 16,
        reads_in_max: 16,
        has_atomics: true,
    }
}

impl NullCompletions {
    pub(crate) fn new(entries: u32) -> Self {
        let entries = VecDeque::with_capacity(entries as usize);
        Self {
            entries: Rc::new(RefCell::new(entries)),
        }
    }

    pub(crate) fn queue_pair(&self) -> NullQueuePair {
        NullQueuePair {
            entries: Rc::clone(&self.entries),
        }
    }

    pub(crate) fn poll(&self, out: &mut [Completion]) -> usize {
        let mut entries = self.entries.borrow_mut();
        let count = entries.len().min(out.len());
        for (place, id) in out.iter_mut().zip(entries.drain(..count)) {
            *place = Completion {
                id,
                ..Completion::default()
            };
        }
        count
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.entries.borrow().is_empty()
    }
}

impl NullQueuePair {
    pub(crate) fn post_sends(&self, requests: &[SendRequest]) -> usize {
        let signalled = requests.iter().filter(|request| request.is_signalled);
        self.entries
            .borrow_mut()
            .extend(signalled.map(|request| request.id));
        requests.len()
    }
}
