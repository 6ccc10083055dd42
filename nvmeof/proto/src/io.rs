//! Commands of I/O queues: what they ask for, checked against the namespace.

use crate::command::{Command, Direction, Sgl, io};
use crate::completion::Status;
use crate::identify::NSID_ALL;

/// Ranges of one Dataset Management at most (NVM Command Set 1.0, "Dataset Management").
pub const RANGES_MAX: usize = 256;
/// Length of one range, in bytes.
pub const RANGE_BYTES: usize = 16;

const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 2;

/// Blocks, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first.
    pub first: u64,
    /// How many: at least one.
    pub count: u32,
}

/// The shape of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in blocks.
    pub blocks: u64,
    /// Length of a block: a power of two of bytes.
    pub block_bytes_log2: u8,
    /// Most data of one command, in bytes.
    pub transfer_bytes_max: u32,
}

impl Geometry {
    /// First byte and length in bytes of blocks inside the namespace.
    #[must_use]
    pub const fn bytes(&self, blocks: Blocks) -> (u64, u64) {
        let log2 = self.block_bytes_log2;
        (blocks.first << log2, (blocks.count as u64) << log2)
    }

    fn check(&self, blocks: Blocks) -> Result<(), Status> {
        let end = blocks.first.checked_add(u64::from(blocks.count));
        if end.is_some_and(|end| end <= self.blocks) {
            Ok(())
        } else {
            Err(Status::LBA_OUT_OF_RANGE.do_not_retry())
        }
    }
}

/// What a command asks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoRequest {
    /// What has been written is to last.
    Flush,
    /// Blocks to the host.
    Read(Blocks),
    /// Blocks from the host.
    Write {
        /// Where.
        blocks: Blocks,
        /// They are to last when the command completes.
        must_last: bool,
    },
    /// Blocks from the host are to be those that are there.
    Compare(Blocks),
    /// Blocks become zeroes.
    WriteZeroes {
        /// Where.
        blocks: Blocks,
        /// Their memory may be given back.
        may_deallocate: bool,
    },
    /// Ranges from the host, of which nothing has to be kept if `deallocates`.
    Manage {
        /// How many ranges.
        ranges: u16,
        /// Whether they may be given back; else it is a hint without effect.
        deallocates: bool,
    },
}

impl IoRequest {
    /// Reads a command for a namespace of shape `geometry`.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn of(command: &Command, geometry: &Geometry) -> Result<Self, Status> {
        if command.flags & 3 != 0 {
            // Fused commands are not supported.
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let request = Self::parse(command)?;
        if let Some(blocks) = request.blocks() {
            geometry.check(blocks)?;
        }
        let needed = request.data_bytes(geometry);
        let found = u64::from(command.sgl.len_bytes());
        let fits = match request {
            // Some hosts always bring room for all the ranges that there may be.
            Self::Manage { .. } => (needed..=(RANGES_MAX * RANGE_BYTES) as u64).contains(&found),
            _ => found == needed,
        };
        if !fits {
            return Err(Status::DATA_LENGTH_INVALID.do_not_retry());
        }
        if needed > u64::from(geometry.transfer_bytes_max) {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        Ok(request)
    }

    fn parse(command: &Command) -> Result<Self, Status> {
        let [_, _, cdw12, ..] = command.cdw10;
        let blocks = Blocks {
            first: command.wide(0),
            count: (cdw12 & 0xffff) + 1,
        };
        match command.opcode {
            io::FLUSH => Ok(Self::Flush),
            io::READ => Ok(Self::Read(blocks)),
            io::WRITE => Ok(Self::Write {
                blocks,
                must_last: cdw12 & FORCE_UNIT_ACCESS != 0,
            }),
            io::COMPARE => Ok(Self::Compare(blocks)),
            io::WRITE_ZEROES => Ok(Self::WriteZeroes {
                blocks,
                may_deallocate: cdw12 & (1 << 25) != 0,
            }),
            io::DATASET_MANAGEMENT => Ok(Self::Manage {
                ranges: u16::from(command.cdw10[0].to_le_bytes()[0]) + 1,
                deallocates: command.cdw10[1] & DEALLOCATE != 0,
            }),
            _ => Err(Status::INVALID_OPCODE.do_not_retry()),
        }
    }

    /// The command, with a descriptor for data that the transport moves.
    ///
    /// # Panics
    /// If there are more than 65,536 blocks, or more than [`RANGES_MAX`] ranges: callers split.
    #[must_use]
    pub fn command(&self, nsid: u32, geometry: &Geometry) -> Command {
        let mut command = match *self {
            Self::Flush => Command::new(io::FLUSH, nsid, [0; 6]),
            Self::Read(blocks) => of_blocks(io::READ, nsid, blocks, 0),
            Self::Write { blocks, must_last } => {
                let flags = u32::from(must_last) * FORCE_UNIT_ACCESS;
                of_blocks(io::WRITE, nsid, blocks, flags)
            }
            Self::Compare(blocks) => of_blocks(io::COMPARE, nsid, blocks, 0),
            Self::WriteZeroes {
                blocks,
                may_deallocate,
            } => of_blocks(
                io::WRITE_ZEROES,
                nsid,
                blocks,
                u32::from(may_deallocate) << 25,
            ),
            Self::Manage {
                ranges,
                deallocates,
            } => {
                let less_one = u8::try_from(ranges - 1).expect("ranges are bounded");
                let attributes = u32::from(deallocates) * DEALLOCATE;
                let cdw10 = [u32::from(less_one), attributes, 0, 0, 0, 0];
                Command::new(io::DATASET_MANAGEMENT, nsid, cdw10)
            }
        };
        let len_bytes = u32::try_from(self.data_bytes(geometry)).expect("callers split");
        if len_bytes > 0 {
            command.sgl = Sgl::Transport { len_bytes };
        }
        command
    }

    /// The blocks that it names in its command.
    #[must_use]
    pub const fn blocks(&self) -> Option<Blocks> {
        match *self {
            Self::Read(blocks)
            | Self::Compare(blocks)
            | Self::Write { blocks, .. }
            | Self::WriteZeroes { blocks, .. } => Some(blocks),
            Self::Flush | Self::Manage { .. } => None,
        }
    }

    /// Where its data go.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        match self {
            Self::Read(_) => Direction::ToHost,
            Self::Write { .. } | Self::Compare(_) | Self::Manage { .. } => Direction::ToController,
            Self::Flush | Self::WriteZeroes { .. } => Direction::None,
        }
    }

    /// Length of its data, in bytes.
    #[must_use]
    pub const fn data_bytes(&self, geometry: &Geometry) -> u64 {
        match *self {
            Self::Read(blocks) | Self::Compare(blocks) | Self::Write { blocks, .. } => {
                geometry.bytes(blocks).1
            }
            Self::Manage { ranges, .. } => ranges as u64 * RANGE_BYTES as u64,
            Self::Flush | Self::WriteZeroes { .. } => 0,
        }
    }

    /// Whether doing it again, after it may have been done, changes nothing that a reader could
    /// see. A Write is not: the one in flight may still be carried out after another's.
    #[must_use]
    pub const fn is_idempotent(&self) -> bool {
        matches!(self, Self::Flush | Self::Read(_) | Self::Compare(_))
    }

    /// Whether it needs a namespace that can be written.
    #[must_use]
    pub const fn changes_data(&self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } => true,
            Self::Manage { deallocates, .. } => *deallocates,
            Self::Flush | Self::Read(_) | Self::Compare(_) => false,
        }
    }
}

fn of_blocks(opcode: u8, nsid: u32, blocks: Blocks, flags: u32) -> Command {
    assert!(
        (1..=1 << 16).contains(&blocks.count),
        "callers split what is longer"
    );
    let [first_low, first_high] = [blocks.first & 0xffff_ffff, blocks.first >> 32]
        .map(|half| u32::try_from(half).expect("half of 64 bits"));
    let cdw12 = (blocks.count - 1) | flags;
    Command::new(opcode, nsid, [first_low, first_high, cdw12, 0, 0, 0])
}

/// The ranges of a Dataset Management, as bytes.
#[must_use]
pub fn encode_ranges(ranges: &[Blocks]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ranges.len() * RANGE_BYTES);
    for range in ranges {
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&range.count.to_le_bytes());
        out.extend_from_slice(&range.first.to_le_bytes());
    }
    out
}

/// Reads ranges; empty ones are left out.
///
/// # Errors
/// The status that the command ends with: a range is not inside the namespace.
pub fn decode_ranges(bytes: &[u8], geometry: &Geometry) -> Result<Vec<Blocks>, Status> {
    let (ranges, _) = bytes.as_chunks::<RANGE_BYTES>();
    let ranges = ranges.iter().map(|range| {
        let [_, _, _, _, a, b, c, d, first @ ..] = *range;
        Blocks {
            first: u64::from_le_bytes(first),
            count: u32::from_le_bytes([a, b, c, d]),
        }
    });
    let ranges: Vec<Blocks> = ranges.filter(|range| range.count > 0).collect();
    for &range in &ranges {
        geometry.check(range)?;
    }
    Ok(ranges)
}

/// Whether a Flush is for every namespace.
#[must_use]
pub const fn is_for_all(nsid: u32) -> bool {
    nsid == NSID_ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        blocks: 100,
        block_bytes_log2: 9,
        transfer_bytes_max: 4096,
    };

    fn blocks(first: u64, count: u32) -> Blocks {
        Blocks { first, count }
    }

    #[test]
    fn every_request_goes_through_its_command() {
        let requests = [
            IoRequest::Flush,
            IoRequest::Read(blocks(99, 1)),
            IoRequest::Write {
                blocks: blocks(0, 8),
                must_last: true,
            },
            IoRequest::Compare(blocks(1, 2)),
            IoRequest::WriteZeroes {
                blocks: blocks(0, 100),
                may_deallocate: true,
            },
            IoRequest::Manage {
                ranges: 256,
                deallocates: true,
            },
        ];
        for request in requests {
            let command = request.command(1, &GEOMETRY);
            assert_eq!(IoRequest::of(&command, &GEOMETRY), Ok(request));
            assert_eq!(command.direction(), request.direction(), "{request:?}");
        }
    }

    #[test]
    fn limits_are_kept_from_both_sides() {
        let read = |first, count| {
            let command = IoRequest::Read(blocks(first, count)).command(1, &GEOMETRY);
            IoRequest::of(&command, &GEOMETRY).map_err(Status::code)
        };
        assert!(read(92, 8).is_ok());
        let out_of_range = Err(Status::LBA_OUT_OF_RANGE.code());
        assert_eq!(read(93, 8), out_of_range);
        assert_eq!(read(u64::MAX, 1), out_of_range);
        assert_eq!(read(u64::MAX - 1, 1), out_of_range);
        assert_eq!(read(0, 9), Err(Status::INVALID_FIELD.code()));
        let mut command = IoRequest::Read(blocks(0, 1)).command(1, &GEOMETRY);
        command.sgl = Sgl::Transport { len_bytes: 511 };
        let status = IoRequest::of(&command, &GEOMETRY).map_err(Status::code);
        assert_eq!(status, Err(Status::DATA_LENGTH_INVALID.code()));
        let hint = IoRequest::Manage {
            ranges: 2,
            deallocates: true,
        };
        for (len_bytes, fits) in [(31, false), (32, true), (4096, true), (4097, false)] {
            let mut command = hint.command(1, &GEOMETRY);
            command.sgl = Sgl::Transport { len_bytes };
            assert_eq!(
                IoRequest::of(&command, &GEOMETRY).is_ok(),
                fits,
                "{len_bytes}"
            );
        }
        command.opcode = 0x04;
        let status = IoRequest::of(&command, &GEOMETRY).map_err(Status::code);
        assert_eq!(status, Err(Status::INVALID_OPCODE.code()));
        command.flags |= 1;
        let status = IoRequest::of(&command, &GEOMETRY).map_err(Status::code);
        assert_eq!(status, Err(Status::INVALID_FIELD.code()));
    }

    #[test]
    fn ranges_go_through_bytes_and_stay_inside() {
        let ranges = [blocks(0, 100), blocks(99, 1)];
        let mut bytes = encode_ranges(&ranges);
        assert_eq!(decode_ranges(&bytes, &GEOMETRY), Ok(ranges.to_vec()));
        bytes.extend_from_slice(&encode_ranges(&[blocks(500, 0)]));
        assert_eq!(decode_ranges(&bytes, &GEOMETRY), Ok(ranges.to_vec()));
        bytes.extend_from_slice(&encode_ranges(&[blocks(99, 2)]));
        assert!(decode_ranges(&bytes, &GEOMETRY).is_err());
    }

    #[test]
    fn what_may_be_done_twice() {
        let write = IoRequest::Write {
            blocks: blocks(0, 1),
            must_last: false,
        };
        assert!(!write.is_idempotent() && write.changes_data());
        assert!(IoRequest::Flush.is_idempotent() && !IoRequest::Flush.changes_data());
        let hint = IoRequest::Manage {
            ranges: 1,
            deallocates: false,
        };
        assert!(!hint.changes_data());
    }
}
