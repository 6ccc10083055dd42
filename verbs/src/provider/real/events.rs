//! Asynchronous events of libibverbs.
//!
//! An event is acknowledged as it is read: the end of what it names waits for that. Until then it is
//! live, and the kernel forgets what nobody has read when it ends, so that the address by which an
//! event names a queue is never that of a later one.

use rdma_core_sys as sys;
use rdma_core_sys::event_type as kind;
use rustix::io::Errno;

use super::super::{DeviceEvent, PairEvent, RawEvent};
use super::{Device, last_errno};

impl Device {
    /// The next event. Fails when none can come any more.
    pub(crate) fn next_event(&self) -> Result<Option<RawEvent>, Errno> {
        let (library, context) = (self.shared.library, self.shared.context.as_ptr());
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is live, its descriptor does not block, and the event is ours.
        let got = unsafe { (library.ibv_get_async_event)(context, &raw mut event) };
        if got != 0 {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                other => Err(other),
            };
        }
        // SAFETY: the event came from this library and is acknowledged once; what it names is made
        // and ended by this core alone, and so is live.
        unsafe { (library.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(meaning(&event)))
    }
}

fn meaning(event: &sys::ibv_async_event) -> RawEvent {
    let pair = |what| RawEvent::Pair(event.element, what);
    match event.event_type {
        kind::CQ_ERR => RawEvent::CompletionQueue(event.element),
        kind::SRQ_ERR => RawEvent::SharedReceives(event.element),
        kind::QP_FATAL => pair(PairEvent::Fatal),
        kind::QP_REQ_ERR => pair(PairEvent::InvalidRequest),
        kind::QP_ACCESS_ERR => pair(PairEvent::Access),
        kind::COMM_EST => pair(PairEvent::Established),
        kind::SQ_DRAINED => pair(PairEvent::SendQueueDrained),
        kind::PATH_MIG => pair(PairEvent::PathMigrated),
        kind::PATH_MIG_ERR => pair(PairEvent::PathMigrationFailed),
        kind::QP_LAST_WQE_REACHED => pair(PairEvent::LastReceiveTaken),
        kind::PORT_ACTIVE => RawEvent::Device(DeviceEvent::PortActive),
        kind::PORT_ERR => RawEvent::Device(DeviceEvent::PortDown),
        kind::GID_CHANGE | kind::LID_CHANGE => RawEvent::Device(DeviceEvent::AddressesChanged),
        kind::DEVICE_FATAL => RawEvent::Device(DeviceEvent::DeviceLost),
        other => RawEvent::Device(DeviceEvent::Other(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reaches_whom_it_names_and_unknown_ones_survive() {
        let mut unknown = Vec::new();
        for event_type in (0..24).chain([u32::MAX]) {
            let event = sys::ibv_async_event {
                element: 0x1234,
                event_type,
            };
            match (event_type, meaning(&event)) {
                (0, RawEvent::CompletionQueue(0x1234))
                | (14, RawEvent::SharedReceives(0x1234))
                | (1..=7 | 16, RawEvent::Pair(0x1234, _)) => {}
                (_, RawEvent::Device(DeviceEvent::Other(code))) => {
                    assert_eq!(code, event_type);
                    unknown.push(code);
                }
                (8..=11 | 18, RawEvent::Device(_)) => {}
                (code, other) => panic!("{code} became {other:?}"),
            }
        }
        assert_eq!(unknown, [12, 13, 15, 17, 19, 20, 21, 22, 23, u32::MAX]);
    }
}
