//! Work requests and their completions.

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte, in the peer's terms.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// What lies `offset_bytes` further.
    #[must_use]
    pub const fn at(self, offset_bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(offset_bytes),
            rkey: self.rkey,
        }
    }
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write(RemoteMemory),
    WriteImmediate(RemoteMemory, u32),
    Send,
    Read(RemoteMemory),
    CompareSwap {
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: RemoteMemory,
        add: u64,
    },
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) lkey: u32,
    pub(crate) is_signalled: bool,
    /// The bytes are copied at the doorbell.
    pub(crate) is_inline: bool,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRequest {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) lkey: u32,
}

/// A completion as the provider has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) len_bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// The queue pair that it is of, by number.
    pub(crate) pair: u32,
}
