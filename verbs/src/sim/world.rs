//! What happens between the adapters of a fabric.

use std::task::Waker;

use lunette_runtime_core::random::{SplitMix64, mix};
use lunette_verbs_proto::qp_state::QpState;
use lunette_verbs_proto::status::Status;

use super::adapter::{Adapter, Held};
use super::objects::gid_of;
use super::{DEVICES_MAX, Fault, Raised};
use crate::provider::{
    Access, Completion, DeviceEvent, Operation, QueueSizes, RawEvent, RemoteMemory,
};

/// Steps of the fabric in one poll, at most.
const STEPS_PER_POLL: u32 = 8;
/// Steps that a request waits for a link, for each retry.
const STEPS_PER_RETRY: u32 = 64;
const BITS_24: u32 = 0xff_ffff;

#[derive(Debug)]
pub(super) struct World {
    pub(super) devices: Vec<Adapter>,
    random: SplitMix64,
    next_pair: u32,
    executed: u64,
    hash: u64,
    /// Who waits for the next request that takes time.
    pub(super) tickers: Vec<Waker>,
}

/// A direction of data that rights are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Read,
    Write,
    Atomic,
}

impl Right {
    const fn is_granted(self, access: Access) -> bool {
        match self {
            Self::Read => access.remote_read,
            Self::Write => access.remote_write,
            Self::Atomic => access.remote_atomic,
        }
    }
}

impl World {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            devices: Vec::new(),
            random: SplitMix64::new(seed),
            next_pair: 0x11,
            executed: 0,
            hash: seed,
            tickers: Vec::new(),
        }
    }

    pub(super) fn add_device(&mut self) -> usize {
        assert!(self.devices.len() < DEVICES_MAX, "adapters are bounded");
        self.devices.push(Adapter::new());
        self.devices.len() - 1
    }

    pub(super) fn add_pair(
        &mut self,
        device: usize,
        queue: u32,
        shared: Option<u32>,
        sizes: QueueSizes,
    ) -> u32 {
        let number = self.next_pair;
        self.next_pair = (number + 1) & BITS_24;
        self.devices[device].add_pair(number, queue, shared, sizes);
        number
    }

    pub(super) fn inject(&mut self, device: usize, fault: Fault) {
        let adapter = &mut self.devices[device];
        match fault {
            Fault::LinkDown | Fault::LinkUp => {
                adapter.is_link_up = fault == Fault::LinkUp;
                adapter.tell(RawEvent::Device(if adapter.is_link_up {
                    DeviceEvent::PortActive
                } else {
                    DeviceEvent::PortDown
                }));
            }
            Fault::Slow { steps } => adapter.steps_per_request = steps.max(1),
            Fault::Silence => adapter.is_silent = true,
            Fault::PartialPost { taken } => adapter.takes = Some(taken),
            other => adapter.faults.push_back(other),
        }
    }

    pub(super) fn raise(&mut self, device: usize, event: Raised) {
        let adapter = &mut self.devices[device];
        match event {
            Raised::Pair(number, event) => adapter.raise_pair(number, event),
            Raised::CompletionQueue(number) => adapter.break_queue(number),
            Raised::SharedReceives(number) => adapter.break_shared(number),
            Raised::DeviceLost => {
                adapter.is_silent = true;
                adapter.tell(RawEvent::Device(DeviceEvent::DeviceLost));
            }
        }
    }

    pub(super) const fn trace(&self) -> (u64, u64) {
        (self.executed, self.hash)
    }

    /// Queue pairs that have something to do, in a fixed order.
    fn busy(&self) -> Vec<(usize, u32)> {
        let now = self.now();
        let mut busy = Vec::new();
        for (index, adapter) in self.devices.iter().enumerate() {
            if adapter.is_silent {
                continue;
            }
            for (number, pair) in &adapter.pairs {
                let is_broken = pair.state == QpState::Error;
                let flushes = is_broken && !pair.receives.is_empty();
                let has_any = !pair.sends.is_empty() && !pair.is_early(now);
                if !pair.is_mute && (has_any || flushes) {
                    busy.push((index, *number));
                }
            }
        }
        busy
    }

    pub(super) fn has_work(&self) -> bool {
        !self.busy().is_empty()
    }

    /// Some steps: one to [`STEPS_PER_POLL`], as the seed has it.
    pub(super) fn advance(&mut self) {
        // Nothing is drawn for a poll that finds nothing to do: how many of those there are is
        // the clock's doing, not the seed's.
        if !self.has_work() {
            return;
        }
        let steps = 1 + self.random.below(STEPS_PER_POLL);
        for _ in 0..steps {
            let busy = self.busy();
            let count = u32::try_from(busy.len()).expect("queue pairs have 24-bit numbers");
            if count == 0 {
                return;
            }
            let (device, number) = busy[self.random.below(count) as usize];
            self.step(device, number);
            self.wake_tickers();
        }
    }

    /// One step of one queue pair.
    fn step(&mut self, device: usize, number: u32) {
        let adapter = &mut self.devices[device];
        let steps = adapter.steps_per_request;
        let Some(pair) = adapter.pairs.get_mut(&number) else {
            return;
        };
        if pair.state == QpState::Error {
            adapter.flush_one(number);
            self.note(device, number, Status::Flushed);
            return;
        }
        pair.waited += 1;
        let retries = pair
            .route
            .map_or(0, |route| u32::from(route.patience.retries));
        let patience = STEPS_PER_RETRY * (retries + 1);
        let (waited, is_link_up) = (pair.waited, adapter.is_link_up);
        if waited < steps {
            return;
        }
        if let Some(fault) = adapter.faults.pop_front() {
            return self.hit(device, number, fault);
        }
        let peer = self.peer_of(device, number);
        let reaches = is_link_up && peer.is_some_and(|(peer, _)| self.devices[peer].is_link_up);
        if let Some(peer) = peer.filter(|_| reaches) {
            return self.execute(device, number, peer);
        }
        // Packets that nobody answers are sent again, and again, and then no more.
        let now = self.now();
        let pair = self.devices[device].pairs.get_mut(&number);
        let waits = pair.and_then(|pair| pair.waits_for_answer(now));
        if !waits.unwrap_or(waited < patience) {
            self.fail(device, number, Status::RetryExceeded);
        }
    }

    fn hit(&mut self, device: usize, number: u32, fault: Fault) {
        let status = match fault {
            Fault::ReceiverNotReady => Status::ReceiverNotReady,
            Fault::RetryExceeded => Status::RetryExceeded,
            Fault::RemoteAccess => Status::RemoteAccess,
            Fault::Code(code) => Status::from_code(code),
            Fault::CompletionOverrun => {
                let completion = Completion::default();
                return self.devices[device].complete(number, completion, true);
            }
            _ => Status::Flushed,
        };
        self.fail(device, number, status);
    }

    fn fail(&mut self, device: usize, number: u32, status: Status) {
        self.devices[device].fail(number, status);
        self.note(device, number, status);
    }

    fn note(&mut self, device: usize, number: u32, status: Status) {
        self.executed += 1;
        let what = u64::from(number) << 32 | u64::from(status.code()) << 8 | device as u64;
        self.hash = mix(self.hash ^ what);
    }

    /// The queue pair at the other end, if it is there, ready, and knows this one by number and
    /// packet number.
    fn peer_of(&self, device: usize, number: u32) -> Option<(usize, u32)> {
        let pair = self.devices[device].pairs.get(&number)?;
        let route = pair.route?;
        let peer = self.device_of(route.peer_gid)?;
        let other = self.devices[peer].pairs.get(&route.peer_qp)?;
        let back = other.route?;
        let is_ready = matches!(other.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let knows = back.peer_qp == number && back.peer_gid == gid_of(device);
        (is_ready && knows && other.receive_psn == pair.send_psn && !self.devices[peer].is_silent)
            .then_some((peer, route.peer_qp))
    }

    /// The adapter of an address.
    pub(super) fn device_of(&self, gid: [u8; 16]) -> Option<usize> {
        (0..self.devices.len()).find(|device| gid_of(*device) == gid)
    }

    /// Executes the first send of a queue pair at its peer.
    fn execute(&mut self, device: usize, number: u32, peer: (usize, u32)) {
        let Some(held) = self.devices[device]
            .pairs
            .get_mut(&number)
            .and_then(|p| p.sends.pop_front())
        else {
            return;
        };
        let result = self.transfer(device, number, peer, &held);
        let adapter = &mut self.devices[device];
        match result {
            Ok(len_bytes) => {
                if let Some(pair) = adapter.pairs.get_mut(&number) {
                    pair.waited = 0;
                    pair.unanswered_since = None;
                    pair.send_psn = (pair.send_psn + 1) & BITS_24;
                }
                if let Some(pair) = self.devices[peer.0].pairs.get_mut(&peer.1) {
                    pair.receive_psn = (pair.receive_psn + 1) & BITS_24;
                }
                if held.request.is_signalled {
                    let completion = Completion {
                        id: held.request.id,
                        len_bytes,
                        ..Completion::default()
                    };
                    self.devices[device].complete(number, completion, false);
                }
                self.note(device, number, Status::Success);
            }
            Err(status) => {
                if let Some(pair) = adapter.pairs.get_mut(&number) {
                    pair.sends.push_front(held);
                }
                self.fail(device, number, status);
                // A peer that was asked for what it does not allow breaks too.
                if matches!(status, Status::RemoteAccess | Status::RemoteInvalid)
                    && let Some(pair) = self.devices[peer.0].pairs.get_mut(&peer.1)
                {
                    pair.state = QpState::Error;
                }
            }
        }
    }

    /// Moves the bytes of a request: how many came back.
    fn transfer(
        &mut self,
        device: usize,
        number: u32,
        peer: (usize, u32),
        held: &Held,
    ) -> Result<u32, Status> {
        let request = held.request;
        let local = self.local(device, held)?;
        let len = request.len_bytes;
        match request.operation {
            Operation::Write(remote) => {
                let target = self.remote(peer, remote, len, Right::Write)?;
                move_bytes(local, target, len);
                Ok(0)
            }
            Operation::WriteImmediate(remote, immediate) => {
                let target = self.remote(peer, remote, len, Right::Write)?;
                self.consume_receive(peer, len, Some(immediate), None)?;
                move_bytes(local, target, len);
                Ok(0)
            }
            Operation::Send => {
                self.consume_receive(peer, len, None, Some(local))?;
                Ok(0)
            }
            Operation::Read(remote) => {
                self.may_read(device, number)?;
                let source = self.remote(peer, remote, len, Right::Read)?;
                move_bytes(source, local, len);
                Ok(len)
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                self.may_read(device, number)?;
                let target = self.atomic(peer, remote, len)?;
                let old = load(target);
                store(local, old);
                if old == compare {
                    store(target, swap);
                }
                Ok(8)
            }
            Operation::FetchAdd { remote, add } => {
                self.may_read(device, number)?;
                let target = self.atomic(peer, remote, len)?;
                let old = load(target);
                store(local, old);
                store(target, old.wrapping_add(add));
                Ok(8)
            }
        }
    }

    /// Reads and atomics need the right to have one in flight.
    fn may_read(&self, device: usize, number: u32) -> Result<(), Status> {
        let pair = self.devices[device].pairs.get(&number);
        let reads = pair
            .and_then(|pair| pair.route)
            .map_or(0, |route| route.agreement.reads_out);
        if reads == 0 {
            Err(Status::LocalOperation)
        } else {
            Ok(())
        }
    }

    fn local(&self, device: usize, held: &Held) -> Result<*mut u8, Status> {
        if let Some(bytes) = &held.inline {
            return Ok(bytes.as_ptr().cast_mut());
        }
        let request = held.request;
        if request.len_bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        let found = self.devices[device].resolve(request.lkey, request.address, request.len_bytes);
        found
            .map(|(pointer, _)| pointer)
            .ok_or(Status::LocalProtection)
    }

    fn remote(
        &self,
        (peer, pair): (usize, u32),
        remote: RemoteMemory,
        len: u32,
        right: Right,
    ) -> Result<*mut u8, Status> {
        // No bytes, no key.
        if len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let adapter = &self.devices[peer];
        let allowed = adapter
            .pairs
            .get(&pair)
            .is_some_and(|pair| right.is_granted(pair.access));
        let found = adapter.resolve(remote.rkey, remote.address, len);
        found
            .filter(|(_, access)| allowed && right.is_granted(*access))
            .map(|(pointer, _)| pointer)
            .ok_or(Status::RemoteAccess)
    }

    fn atomic(
        &self,
        peer: (usize, u32),
        remote: RemoteMemory,
        len: u32,
    ) -> Result<*mut u8, Status> {
        if len != 8 || !remote.address.is_multiple_of(8) {
            return Err(Status::RemoteInvalid);
        }
        self.remote(peer, remote, 8, Right::Atomic)
    }

    /// Takes the peer's next receive for a message, with its bytes if it has any.
    fn consume_receive(
        &mut self,
        (peer, number): (usize, u32),
        len: u32,
        immediate: Option<u32>,
        bytes: Option<*mut u8>,
    ) -> Result<(), Status> {
        let adapter = &mut self.devices[peer];
        let pair = adapter
            .pairs
            .get_mut(&number)
            .ok_or(Status::RemoteOperation)?;
        let shared = pair
            .shared
            .and_then(|shared| adapter.shared.get_mut(&shared));
        let receives = shared.map_or(&mut pair.receives, |shared| &mut shared.receives);
        let receive = receives.pop_front().ok_or(Status::ReceiverNotReady)?;
        let mut status = Status::Success;
        if let Some(bytes) = bytes.filter(|_| len > 0) {
            let target = adapter.resolve(receive.lkey, receive.address, receive.len_bytes);
            match target {
                Some((target, _)) if receive.len_bytes >= len => move_bytes(bytes, target, len),
                Some(_) => status = Status::LocalLength,
                None => status = Status::LocalProtection,
            }
        }
        let completion = Completion {
            id: receive.id,
            status: status.code(),
            len_bytes: len,
            immediate,
            pair: number,
        };
        adapter.complete(number, completion, false);
        if status == Status::Success {
            return Ok(());
        }
        if let Some(pair) = adapter.pairs.get_mut(&number) {
            pair.state = QpState::Error;
        }
        Err(Status::RemoteInvalid)
    }
}

fn move_bytes(from: *mut u8, to: *mut u8, len: u32) {
    if len == 0 {
        return;
    }
    // SAFETY: both ends were resolved in live registrations (or are a request's own inline bytes)
    // for `len` bytes; whoever registered them lets the adapter reach them. They may overlap. Ends
    // with the call.
    unsafe { std::ptr::copy(from, to, len as usize) };
}

fn load(from: *mut u8) -> u64 {
    // SAFETY: resolved for 8 bytes, as in `move_bytes`.
    unsafe { from.cast::<u64>().read_unaligned() }
}

fn store(to: *mut u8, value: u64) {
    // SAFETY: resolved for 8 bytes, as in `move_bytes`.
    unsafe { to.cast::<u64>().write_unaligned(value) };
}
