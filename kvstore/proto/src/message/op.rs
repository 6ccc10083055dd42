//! The operations of the store.

use thiserror::Error;

/// What a request asks for; its code is the frame's `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Op {
    /// An object's value.
    Get = 1,
    /// To keep a value under a key.
    Put = 2,
    /// Which keys of a batch are resident.
    Exists = 3,
    /// To remove the keys of a batch.
    Remove = 4,
    /// The node's counters.
    Stat = 5,
    /// The newest cluster map that the node knows.
    Map = 6,
    /// What one seat has for another.
    Tell = 7,
    /// Questions of an asker to a home.
    Ask = 8,
    /// To write an object at an owner.
    Write = 9,
    /// To get an object by way of its home.
    Find = 10,
    /// To read a copy at its owner.
    Read = 11,
    /// To keep a replica.
    Replicate = 12,
    /// To reserve room for an object that comes in ranges.
    Reserve = 13,
    /// To write a range of a reserved object.
    Fill = 14,
    /// To make a reserved object its key's value.
    Commit = 15,
    /// To give reserved room back.
    Revoke = 16,
    /// "Remove all".
    Clear = 17,
    /// What a home knows of keys at once.
    Peek = 18,
    /// To meet where the node's memory can be mapped.
    Meet = 19,
    /// As [`Find`](Self::Find), by somebody who maps the node's memory.
    FindNear = 20,
    /// As [`Read`](Self::Read), by somebody who maps the node's memory.
    ReadNear = 21,
    /// To get small objects of many keys by way of their home, in one answer.
    Gather = 22,
    /// To be told by how many adapters the node's core is reached.
    Adapters = 23,
    /// To connect two adapters.
    Pair = 24,
    /// As [`Find`](Self::Find), of bytes that are to be written to the asker's memory.
    FindPushed = 25,
    /// As [`Read`](Self::Read), of bytes that are to be written to the asker's memory.
    ReadPushed = 26,
    /// As [`Find`](Self::Find), by somebody who reads the node's memory by an adapter.
    FindFar = 27,
    /// As [`Read`](Self::Read), by somebody who reads the node's memory by an adapter.
    ReadFar = 28,
    /// To hold copies, and to be told where an adapter reads them.
    Reach = 29,
    /// As [`Pair`](Self::Pair), of adapters over which requests are asked and answered too, by messages.
    PairAsking = 30,
    /// As [`Write`](Self::Write), of bytes that the owner's adapter is to read in the asker's memory.
    WritePulled = 31,
    /// Keys of what an owner has, page by page.
    List = 32,
    /// As [`Write`](Self::Write), of small objects of many keys in one request.
    Scatter = 33,
    /// Quotas of tenants, and to change one.
    Quota = 34,
    /// To be emptied: the next map has the node as the home of nothing.
    Retire = 35,
    /// What the core's clock says, by which it is told until when something may be done.
    Clock = 36,
}

/// The code stands for no operation that this version knows: answer
/// [`Status::Unsupported`](super::Status::Unsupported).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("operation {0} is unknown")]
pub struct UnknownOp(
    /// The code.
    pub u16,
);

impl Op {
    /// All operations.
    pub const ALL: [Self; 36] = [
        Self::Get,
        Self::Put,
        Self::Exists,
        Self::Remove,
        Self::Stat,
        Self::Map,
        Self::Tell,
        Self::Ask,
        Self::Write,
        Self::Find,
        Self::Read,
        Self::Replicate,
        Self::Reserve,
        Self::Fill,
        Self::Commit,
        Self::Revoke,
        Self::Clear,
        Self::Peek,
        Self::Meet,
        Self::FindNear,
        Self::ReadNear,
        Self::Gather,
        Self::Adapters,
        Self::Pair,
        Self::FindPushed,
        Self::ReadPushed,
        Self::FindFar,
        Self::ReadFar,
        Self::Reach,
        Self::PairAsking,
        Self::WritePulled,
        Self::List,
        Self::Scatter,
        Self::Quota,
        Self::Retire,
        Self::Clock,
    ];

    /// Its code on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether it may be asked by a message between adapters, besides over a connection. A message may be lost with
    /// its queue pair, answered or not, and is asked over the connection then: so these are the requests that do no
    /// harm where they are carried out twice, and that bring no bytes. Of [`Ask`](Self::Ask) that is the asker's to see
    /// to.
    #[must_use]
    pub const fn may_be_message(self) -> bool {
        matches!(
            self,
            Self::Ask
                | Self::Peek
                | Self::FindPushed
                | Self::ReadPushed
                | Self::FindFar
                | Self::ReadFar
                | Self::Reach
        )
    }
}

impl TryFrom<u16> for Op {
    type Error = UnknownOp;

    fn try_from(code: u16) -> Result<Self, UnknownOp> {
        Self::ALL
            .into_iter()
            .find(|op| op.code() == code)
            .ok_or(UnknownOp(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_stands_for_one_operation_or_none() {
        for code in 0..=u16::MAX {
            match Op::try_from(code) {
                Ok(op) => assert_eq!(op.code(), code),
                Err(unknown) => assert_eq!(unknown, UnknownOp(code)),
            }
        }
        let codes = Op::ALL.map(Op::code);
        let expected: Vec<u16> = (1..=36).collect();
        assert_eq!(codes.as_slice(), expected);
    }
}
