//! Registered memory, and who is using it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_runtime::arena::Exposed;
use lunette_transfer_proto::engine::message::Descriptor;
use lunette_transfer_proto::engine::segment::{
    Access, AccessRefusal, Registration, Segment, SegmentId, Segments, Way,
};

use super::error::RegisterError;

/// How memory is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The name by which peers open it.
    pub name: Option<String>,
    /// Whether peers may name places in it by their addresses here. Ranges that are known by address
    /// do not overlap.
    pub by_address: bool,
    /// What peers may do.
    pub access: Access,
}

impl RegisterOptions {
    /// Memory that peers open by this name and may read and write.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            by_address: false,
            access: Access::ReadWrite,
        }
    }
}

/// The memory of a segment.
#[derive(Debug)]
pub(super) struct Memory {
    exposed: Exposed,
    users: Cell<usize>,
    waiting: RefCell<Option<Waker>>,
}

/// Somebody who is using a segment's memory.
#[derive(Debug)]
pub(super) struct InUse(Rc<Memory>);

impl InUse {
    fn new(memory: &Rc<Memory>) -> Self {
        memory.users.set(memory.users.get() + 1);
        Self(Rc::clone(memory))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let left = self.0.users.get() - 1;
        self.0.users.set(left);
        if left == 0
            && let Some(waker) = self.0.waiting.take()
        {
            waker.wake();
        }
    }
}

/// A segment's memory after the segment is gone.
#[derive(Debug)]
pub(super) struct Unregistered(Rc<Memory>);

impl Unregistered {
    /// The memory, when nobody is using it any more.
    pub(super) async fn unused(self) -> Exposed {
        let memory = self.0;
        poll_fn(|cx| {
            if memory.users.get() == 0 {
                return Poll::Ready(());
            }
            *memory.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        memory.exposed.clone()
    }
}

/// What one engine has registered.
#[derive(Debug, Default)]
pub(super) struct Registry(Segments<Rc<Memory>>);

impl Registry {
    pub(super) fn register(
        &mut self,
        exposed: Exposed,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterError> {
        let registration = Registration {
            name: options.name.as_deref().map(str::as_bytes),
            start: options.by_address.then_some(exposed.start() as u64),
            len_bytes: exposed.len() as u64,
            access: options.access,
        };
        let memory = Rc::new(Memory {
            exposed,
            users: Cell::new(0),
            waiting: RefCell::default(),
        });
        self.0
            .register(&registration, memory)
            .map_err(|(refusal, memory)| RegisterError {
                refusal,
                memory: memory.exposed.clone(),
            })
    }

    pub(super) fn unregister(&mut self, id: SegmentId) -> Option<Unregistered> {
        Some(Unregistered(self.0.unregister(id)?.memory))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn find(&self, start: u64, len_bytes: u64) -> Option<(SegmentId, u64)> {
        self.0.by_address(start, len_bytes)
    }

    /// Memory, for whoever registered it: whatever peers may do with it.
    pub(super) fn memory(&self, id: SegmentId, offset: u64, len: u64) -> Option<Exposed> {
        let segment = self.0.get(id)?;
        let end = offset.checked_add(len)?;
        if end > segment.len_bytes {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        Some(segment.memory.exposed.slice(offset, len))
    }

    /// What peers are told of the segment of a name.
    pub(super) fn open(&self, name: &[u8]) -> Option<Descriptor> {
        let (id, segment) = self.0.by_name(name)?;
        Some(describe(id, segment))
    }

    /// What peers are told of a segment.
    pub(super) fn descriptor(&self, id: SegmentId) -> Option<Descriptor> {
        Some(describe(id, self.0.get(id)?))
    }

    /// The memory that an access reaches, and a hold on it.
    pub(super) fn reach(
        &self,
        id: SegmentId,
        way: Way,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(Exposed, InUse), AccessRefusal> {
        let segment = self.0.reach(id, way, offset_bytes, len_bytes)?;
        let in_memory = |bytes: u64| usize::try_from(bytes).expect("a segment lies in memory");
        let (offset, len) = (in_memory(offset_bytes), in_memory(len_bytes));
        let exposed = segment.memory.exposed.slice(offset, len);
        Ok((exposed, InUse::new(&segment.memory)))
    }
}

fn describe(id: SegmentId, segment: &Segment<Rc<Memory>>) -> Descriptor {
    Descriptor {
        segment: id,
        len_bytes: segment.len_bytes,
        start: segment.start().unwrap_or(0),
        access: segment.access,
    }
}
