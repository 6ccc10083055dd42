//! One simulated adapter: its memory, its queues, and what it refuses.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use lunette_runtime_core::time::Time;
use lunette_verbs_proto::id::WrId;
use lunette_verbs_proto::qp_state::{QpState, required};
use lunette_verbs_proto::status::Status;
use rustix::io::Errno;

use super::{Fault, Speed};
use crate::provider::{
    Access, Completion, PairEvent, QueueSizes, RawEvent, ReceiveRequest, Route, SendRequest, Step,
};

const BITS_24: u32 = 0xff_ffff;

/// A registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub(super) address: u64,
    pub(super) pointer: *mut u8,
    pub(super) len: usize,
    pub(super) access: Access,
}

#[derive(Debug)]
pub(super) struct Queue {
    entries_max: usize,
    entries: VecDeque<Completion>,
    is_broken: bool,
}

/// A request that the adapter holds. Inline bytes travel with it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) request: SendRequest,
    pub(super) inline: Option<Vec<u8>>,
    /// When its last byte has arrived, once its adapter has begun with it; adapters with a rate alone.
    pub(super) due: Option<Time>,
}

/// Receives that queue pairs share.
#[derive(Debug)]
pub(super) struct SharedQueue {
    depth: usize,
    pub(super) receives: VecDeque<ReceiveRequest>,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) state: QpState,
    /// It completes nothing any more, not even as flushed.
    pub(super) is_mute: bool,
    pub(super) sizes: QueueSizes,
    pub(super) queue: u32,
    pub(super) access: Access,
    pub(super) route: Option<Route>,
    pub(super) sends: VecDeque<Held>,
    pub(super) receives: VecDeque<ReceiveRequest>,
    /// Where receives come from instead.
    pub(super) shared: Option<u32>,
    /// Sends whose end has not been told by a completion that was polled.
    pub(super) untold: VecDeque<u64>,
    /// Steps that the first send has taken.
    pub(super) waited: u32,
    /// Since when the first send, whose time has come, meets no peer.
    pub(super) unanswered_since: Option<Time>,
    /// The next packet's number, as sender and as receiver.
    pub(super) send_psn: u32,
    pub(super) receive_psn: u32,
}

/// One adapter.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) memory: BTreeMap<u32, Registered>,
    pub(super) queues: BTreeMap<u32, Queue>,
    pub(super) shared: BTreeMap<u32, SharedQueue>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) events: VecDeque<RawEvent>,
    pub(super) event_wakers: Vec<Waker>,
    pub(super) faults: VecDeque<Fault>,
    pub(super) is_link_up: bool,
    pub(super) is_silent: bool,
    pub(super) steps_per_request: u32,
    /// Requests of the next doorbell that are taken.
    pub(super) takes: Option<u32>,
    /// How fast it is, if that matters.
    pub(super) speed: Option<Speed>,
    /// Until when its port is busy with what it has begun.
    pub(super) busy_until: Time,
    next_key: u32,
}

impl Adapter {
    pub(super) const fn new() -> Self {
        Self {
            memory: BTreeMap::new(),
            queues: BTreeMap::new(),
            shared: BTreeMap::new(),
            pairs: BTreeMap::new(),
            events: VecDeque::new(),
            event_wakers: Vec::new(),
            faults: VecDeque::new(),
            is_link_up: true,
            is_silent: false,
            steps_per_request: 1,
            takes: None,
            speed: None,
            busy_until: Time::ZERO,
            next_key: 0x100,
        }
    }

    pub(super) fn tell(&mut self, event: RawEvent) {
        self.events.push_back(event);
        self.event_wakers.drain(..).for_each(Waker::wake);
    }

    /// Keys are never used again, so that an old one meets nothing.
    const fn key(&mut self) -> u32 {
        self.next_key += 0x101;
        self.next_key
    }

    /// What requests name by `address` and what follows.
    pub(super) fn register(
        &mut self,
        address: u64,
        pointer: *mut u8,
        len: usize,
        access: Access,
    ) -> u32 {
        let key = self.key();
        let registered = Registered {
            address,
            pointer,
            len,
            access,
        };
        self.memory.insert(key, registered);
        key
    }

    pub(super) fn deregister(&mut self, key: u32) {
        let gone = self.memory.remove(&key);
        assert!(gone.is_some(), "a registration ends once");
    }

    /// Where a piece lies, if the key covers all of it.
    pub(super) fn resolve(&self, key: u32, address: u64, len: u32) -> Option<(*mut u8, Access)> {
        let registered = self.memory.get(&key)?;
        let offset = usize::try_from(address.checked_sub(registered.address)?).ok()?;
        let end = offset.checked_add(usize::try_from(len).ok()?)?;
        (end <= registered.len)
            .then(|| (registered.pointer.wrapping_add(offset), registered.access))
    }

    pub(super) fn add_queue(&mut self, entries: u32) -> u32 {
        let number = self.key();
        let queue = Queue {
            entries_max: entries as usize,
            entries: VecDeque::new(),
            is_broken: false,
        };
        self.queues.insert(number, queue);
        number
    }

    pub(super) fn remove_queue(&mut self, number: u32) {
        let is_used = self.pairs.values().any(|pair| pair.queue == number);
        assert!(!is_used, "a completion queue ends after its queue pairs");
        self.queues.remove(&number);
        self.forget(|event| *event == RawEvent::CompletionQueue(number.into()));
    }

    /// Events that nobody asked for end with what they name.
    fn forget(&mut self, names: impl Fn(&RawEvent) -> bool) {
        self.events.retain(|event| !names(event));
    }

    pub(super) fn add_shared(&mut self, depth: u32) -> u32 {
        let number = self.key();
        let queue = SharedQueue {
            depth: depth as usize,
            receives: VecDeque::new(),
        };
        self.shared.insert(number, queue);
        number
    }

    pub(super) fn remove_shared(&mut self, number: u32) {
        let is_used = self.pairs.values().any(|pair| pair.shared == Some(number));
        assert!(!is_used, "shared receives end after their queue pairs");
        self.shared.remove(&number);
        self.forget(|event| *event == RawEvent::SharedReceives(number.into()));
    }

    pub(super) fn post_shared(
        &mut self,
        number: u32,
        request: &ReceiveRequest,
    ) -> Result<(), Errno> {
        let queue = self.shared.get_mut(&number).ok_or(Errno::INVAL)?;
        if queue.receives.len() >= queue.depth {
            return Err(Errno::NOMEM);
        }
        if !WrId::from_bits(request.id).is_receive {
            return Err(Errno::INVAL);
        }
        queue.receives.push_back(*request);
        Ok(())
    }

    pub(super) fn add_pair(
        &mut self,
        number: u32,
        queue: u32,
        shared: Option<u32>,
        sizes: QueueSizes,
    ) {
        let pair = Pair {
            state: QpState::Reset,
            is_mute: false,
            sizes,
            queue,
            access: Access::default(),
            route: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            shared,
            untold: VecDeque::new(),
            waited: 0,
            unanswered_since: None,
            send_psn: 0,
            receive_psn: 0,
        };
        self.pairs.insert(number, pair);
    }

    /// The queue pair is gone, and its completions with it.
    pub(super) fn remove_pair(&mut self, number: u32) {
        let Some(pair) = self.pairs.remove(&number) else {
            return;
        };
        let token = u64::from(number);
        self.forget(|event| matches!(event, RawEvent::Pair(of, _) if *of == token));
        let Some(queue) = self.queues.get_mut(&pair.queue) else {
            return;
        };
        let received: Vec<u64> = pair.receives.iter().map(|receive| receive.id).collect();
        queue.entries.retain(|completion| {
            !pair.untold.contains(&completion.id) && !received.contains(&completion.id)
        });
    }

    pub(super) fn step_pair(&mut self, number: u32, step: &Step) -> Result<(), Errno> {
        let pair = self.pairs.get_mut(&number).ok_or(Errno::INVAL)?;
        let to = match step {
            Step::Init(_) => QpState::Init,
            Step::Rtr(_) => QpState::Rtr,
            Step::Rts(_) => QpState::Rts,
            Step::Error => QpState::Error,
        };
        required(pair.state, to).ok_or(Errno::INVAL)?;
        match step {
            Step::Init(access) => pair.access = *access,
            Step::Rtr(route) => {
                check_route(route)?;
                pair.receive_psn = route.peer_psn;
                pair.route = Some(*route);
            }
            Step::Rts(route) => {
                check_route(route)?;
                if pair.route != Some(*route) {
                    return Err(Errno::INVAL);
                }
                pair.send_psn = route.own_psn;
            }
            Step::Error => {}
        }
        pair.state = to;
        Ok(())
    }

    /// A queue takes what it holds. A request whose end nobody has been told still takes a place.
    pub(super) fn post_sends(
        &mut self,
        number: u32,
        requests: &[SendRequest],
    ) -> (usize, Option<Errno>) {
        let takes = self.takes.take().map_or(usize::MAX, |takes| takes as usize);
        for (taken, request) in requests.iter().enumerate() {
            if taken >= takes {
                return (taken, Some(Errno::NOMEM));
            }
            let bytes = request.is_inline.then(|| inline_bytes(request));
            let Some(pair) = self.pairs.get_mut(&number) else {
                return (taken, Some(Errno::INVAL));
            };
            if !pair.state.may_send() || WrId::from_bits(request.id).is_receive {
                return (taken, Some(Errno::INVAL));
            }
            if pair.untold.len() >= pair.sizes.sends as usize {
                return (taken, Some(Errno::NOMEM));
            }
            if request.is_inline && request.len_bytes > pair.sizes.inline_bytes {
                return (taken, Some(Errno::INVAL));
            }
            assert!(
                !pair.untold.contains(&request.id),
                "two requests in flight have one id"
            );
            pair.untold.push_back(request.id);
            pair.sends.push_back(Held {
                request: *request,
                inline: bytes,
                due: None,
            });
        }
        (requests.len(), None)
    }

    pub(super) fn post_receives(
        &mut self,
        number: u32,
        requests: &[ReceiveRequest],
    ) -> (usize, Option<Errno>) {
        for (taken, request) in requests.iter().enumerate() {
            let Some(pair) = self.pairs.get_mut(&number) else {
                return (taken, Some(Errno::INVAL));
            };
            let is_shared = pair.shared.is_some();
            let is_receive = WrId::from_bits(request.id).is_receive;
            if is_shared || !pair.state.may_receive() || !is_receive {
                return (taken, Some(Errno::INVAL));
            }
            if pair.receives.len() >= pair.sizes.receives as usize {
                return (taken, Some(Errno::NOMEM));
            }
            pair.receives.push_back(*request);
        }
        (requests.len(), None)
    }

    /// Puts a completion where it belongs. One too many breaks the queue and its queue pairs.
    pub(super) fn complete(&mut self, number: u32, completion: Completion, overrun: bool) {
        let Some(pair) = self.pairs.get(&number) else {
            return;
        };
        let wanted = pair.queue;
        let Some(queue) = self.queues.get_mut(&wanted) else {
            return;
        };
        if queue.is_broken {
            return;
        }
        if !overrun && queue.entries.len() < queue.entries_max {
            queue.entries.push_back(completion);
            return;
        }
        self.break_queue(number);
    }

    /// The completion queue of a queue pair breaks, and all queue pairs that complete to it.
    pub(super) fn break_queue(&mut self, number: u32) {
        let wanted = self.pair(number).queue;
        if let Some(queue) = self.queues.get_mut(&wanted) {
            queue.is_broken = true;
            queue.entries.clear();
        }
        for pair in self.pairs.values_mut().filter(|pair| pair.queue == wanted) {
            pair.state = QpState::Error;
            pair.is_mute = true;
        }
        self.tell(RawEvent::CompletionQueue(wanted.into()));
    }

    /// The receives that a queue pair shares break, and all queue pairs that share them.
    pub(super) fn break_shared(&mut self, number: u32) {
        let shared = self.pair(number).shared;
        let wanted = shared.expect("a queue pair that shares receives");
        for pair in self.pairs.values_mut().filter(|pair| pair.shared == shared) {
            pair.state = QpState::Error;
            pair.is_mute = true;
        }
        self.tell(RawEvent::SharedReceives(wanted.into()));
    }

    pub(super) fn raise_pair(&mut self, number: u32, event: PairEvent) {
        let pair = self.pair(number);
        if event.cause().is_some() || event == PairEvent::LastReceiveTaken {
            pair.state = QpState::Error;
        }
        pair.is_mute |= event == PairEvent::Fatal;
        self.tell(RawEvent::Pair(number.into(), event));
    }

    fn pair(&mut self, number: u32) -> &mut Pair {
        let pair = self.pairs.get_mut(&number);
        pair.expect("a queue pair of this adapter")
    }

    pub(super) fn take_completions(
        &mut self,
        number: u32,
        out: &mut [Completion],
    ) -> Result<usize, Errno> {
        let queue = self.queues.get_mut(&number).ok_or(Errno::INVAL)?;
        if queue.is_broken && queue.entries.is_empty() {
            return Err(Errno::IO);
        }
        let count = queue.entries.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(queue.entries.drain(..count)) {
            *place = completion;
        }
        for completion in &out[..count] {
            self.told(completion.id);
        }
        Ok(count)
    }

    /// The program knows now that this request and all before it are over.
    fn told(&mut self, id: u64) {
        for pair in self.pairs.values_mut() {
            if let Some(place) = pair.untold.iter().position(|untold| *untold == id) {
                pair.untold.drain(..=place);
                return;
            }
        }
    }

    /// A failure of the first send of a queue pair, which breaks it.
    pub(super) fn fail(&mut self, number: u32, status: Status) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.state = QpState::Error;
        pair.waited = 0;
        if let Some(held) = pair.sends.pop_front() {
            let completion = Completion {
                id: held.request.id,
                status: status.code(),
                ..Completion::default()
            };
            self.complete(number, completion, false);
        }
    }

    /// Flushes one request of a broken queue pair. False if there is none.
    pub(super) fn flush_one(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return false;
        };
        let send = pair.sends.pop_front().map(|held| held.request.id);
        let Some(id) = send.or_else(|| pair.receives.pop_front().map(|receive| receive.id)) else {
            return false;
        };
        let completion = Completion {
            id,
            status: Status::Flushed.code(),
            ..Completion::default()
        };
        self.complete(number, completion, false);
        true
    }
}

/// What no adapter would take.
fn check_route(route: &Route) -> Result<(), Errno> {
    let patience = route.patience;
    let fits = route.peer_psn <= BITS_24
        && route.own_psn <= BITS_24
        && route.peer_qp <= BITS_24
        && route.agreement.mtu_bytes <= 1024
        && route.agreement.reads_out <= 4
        && route.agreement.reads_in <= 8
        && patience.timeout_exponent <= 31
        && patience.retries <= 7
        // 7 means for ever, which no program of ours may ask for.
        && patience.receiver_not_ready_retries <= 6;
    if fits { Ok(()) } else { Err(Errno::INVAL) }
}

/// The bytes of an inline request, as they are now.
fn inline_bytes(request: &SendRequest) -> Vec<u8> {
    let mut bytes = vec![0; request.len_bytes as usize];
    let from = std::ptr::with_exposed_provenance::<u8>(
        usize::try_from(request.address).expect("an address of this process"),
    );
    // SAFETY: an inline request's bytes are readable while it is posted, which is the promise of
    // whoever posts. Ends with the call.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}
