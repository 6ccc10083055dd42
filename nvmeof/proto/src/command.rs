//! Commands as queues carry them: 64 bytes, from and to their fields.

use lunette_runtime_core::codec::Reader;

/// Length of a command, in bytes.
pub const COMMAND_BYTES: usize = 64;

/// Says in [`Command::flags`] that the data pointer is a scatter-gather list (NVMe Base 2.0, "PSDT").
const SGL_FLAG: u8 = 0x40;
const PSDT_MASK: u8 = 0xc0;
const DESCRIPTOR_IN_CAPSULE: u8 = 0x01;
const DESCRIPTOR_TRANSPORT: u8 = 0x5a;

/// Opcodes of the admin queue (NVMe Base 2.0, "Admin Command Set").
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Fabrics commands; the type is in [`super::Command::fabrics_type`].
    pub const FABRICS: u8 = 0x7f;
}

/// Opcodes of I/O queues (NVMe NVM Command Set 1.0).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Types of fabrics commands (NVMe Base 2.0, "Fabrics Command Set").
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Where the data of a command go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// None at all.
    None,
    /// From the host.
    ToController,
    /// To the host.
    ToHost,
}

/// Where a command's data lie (NVMe Base 2.0, "SGL Descriptor").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// No descriptor.
    None,
    /// In the capsule, behind the command.
    InCapsule {
        /// From where on in the capsule's data, in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        len_bytes: u32,
    },
    /// The transport moves them: PDUs of data.
    Transport {
        /// Length in bytes.
        len_bytes: u32,
    },
    /// A descriptor that NVMe/TCP has no use for.
    Other([u8; 16]),
}

impl Sgl {
    /// Length that it describes, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u32 {
        match *self {
            Self::InCapsule { len_bytes, .. } | Self::Transport { len_bytes } => len_bytes,
            Self::None | Self::Other(_) => 0,
        }
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (address, len_bytes, descriptor) = match self {
            Self::None => return bytes,
            Self::Other(bytes) => return bytes,
            Self::InCapsule {
                offset_bytes,
                len_bytes,
            } => (offset_bytes, len_bytes, DESCRIPTOR_IN_CAPSULE),
            Self::Transport { len_bytes } => (0, len_bytes, DESCRIPTOR_TRANSPORT),
        };
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len_bytes.to_le_bytes());
        bytes[15] = descriptor;
        bytes
    }

    fn decode(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, _, _, _, descriptor] = bytes;
        let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let len_bytes = u32::from_le_bytes([i, j, k, l]);
        match descriptor {
            DESCRIPTOR_IN_CAPSULE => Self::InCapsule {
                offset_bytes: address,
                len_bytes,
            },
            DESCRIPTOR_TRANSPORT => Self::Transport { len_bytes },
            _ if bytes == [0; 16] => Self::None,
            _ => Self::Other(bytes),
        }
    }
}

/// One command (NVMe Base 2.0, "Submission Queue Entry").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// Fused operation, and kind of data pointer.
    pub flags: u8,
    /// Names the command among those in flight.
    pub cid: u16,
    /// Namespace; the type of a fabrics command.
    pub nsid: u32,
    /// Dwords 2 and 3.
    pub cdw2: u32,
    /// See `cdw2`.
    pub cdw3: u32,
    /// Metadata pointer.
    pub metadata: u64,
    /// Data pointer.
    pub sgl: Sgl,
    /// Dwords 10 to 15.
    pub cdw10: [u32; 6],
}

impl Command {
    /// A command of `opcode` for namespace `nsid` with dwords 10 to 15; without data yet.
    #[must_use]
    pub const fn new(opcode: u8, nsid: u32, cdw10: [u32; 6]) -> Self {
        Self {
            opcode,
            flags: SGL_FLAG,
            cid: 0,
            nsid,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            sgl: Sgl::None,
            cdw10,
        }
    }

    /// A fabrics command of `kind` with dwords 10 to 15; without data yet.
    #[must_use]
    pub fn fabrics(kind: u8, cdw10: [u32; 6]) -> Self {
        Self::new(admin::FABRICS, u32::from(kind), cdw10)
    }

    /// The type of a fabrics command, `None` for any other.
    #[must_use]
    pub fn fabrics_type(&self) -> Option<u8> {
        (self.opcode == admin::FABRICS).then(|| self.nsid.to_le_bytes()[0])
    }

    /// Where its data go: the low two bits of what names the command (NVMe Base 2.0, "Opcode").
    #[must_use]
    pub fn direction(&self) -> Direction {
        match self.fabrics_type().unwrap_or(self.opcode) & 3 {
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::None,
        }
    }

    /// Whether the data pointer is of a kind that fabrics know.
    #[must_use]
    pub const fn has_sgl(&self) -> bool {
        self.flags & PSDT_MASK == SGL_FLAG
    }

    /// A 64-bit field in dwords `10 + at` and the next.
    ///
    /// # Panics
    /// If `at` is above 4.
    #[must_use]
    pub const fn wide(&self, at: usize) -> u64 {
        (self.cdw10[at + 1] as u64) << 32 | self.cdw10[at] as u64
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        (bytes[0], bytes[1]) = (self.opcode, self.flags);
        bytes[2..4].copy_from_slice(&self.cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.cdw2.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.cdw3.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.metadata.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.sgl.encode());
        let (dwords, _) = bytes[40..].as_chunks_mut();
        for (place, dword) in dwords.iter_mut().zip(self.cdw10) {
            *place = dword.to_le_bytes();
        }
        bytes
    }

    /// Reads a command. Total: any 64 bytes are one.
    #[must_use]
    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> Self {
        let mut reader = Reader::new(bytes);
        let whole = "64 bytes hold every field";
        let (opcode, flags) = (reader.u8().expect(whole), reader.u8().expect(whole));
        let cid = reader.u16().expect(whole);
        let mut dword = || reader.u32().expect(whole);
        let (nsid, cdw2, cdw3) = (dword(), dword(), dword());
        let metadata = reader.u64().expect(whole);
        let sgl = Sgl::decode(reader.array().expect(whole));
        let cdw10 = [(); 6].map(|()| reader.u32().expect(whole));
        Self {
            opcode,
            flags,
            cid,
            nsid,
            cdw2,
            cdw3,
            metadata,
            sgl,
            cdw10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_layout() {
        let mut command = Command::new(io::READ, 0x0102_0304, [10, 11, 12, 13, 14, 15]);
        command.cid = 0x0506;
        command.sgl = Sgl::Transport { len_bytes: 0x1000 };
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(&[2, 0x40, 6, 5, 4, 3, 2, 1]);
        golden[33] = 0x10;
        golden[39] = 0x5a;
        for (index, dword) in (10..16).enumerate() {
            golden[40 + 4 * index] = dword;
        }
        assert_eq!(command.encode(), golden);
        assert_eq!(Command::decode(&golden), command);
        assert_eq!(command.wide(2), 13 << 32 | 12);
    }

    #[test]
    fn any_64_bytes_come_back_as_they_were() {
        for seed in 0..=u8::MAX {
            let mut bytes = [seed; COMMAND_BYTES];
            bytes[39] = seed.wrapping_mul(3);
            let again = Command::decode(&bytes).encode();
            // The reserved bytes of the two descriptors that have a meaning are not kept.
            let reserved = if matches!(bytes[39], DESCRIPTOR_IN_CAPSULE | DESCRIPTOR_TRANSPORT) {
                36..39
            } else {
                0..0
            };
            for at in (0..COMMAND_BYTES).filter(|at| !reserved.contains(at)) {
                let address = bytes[39] == DESCRIPTOR_TRANSPORT && (24..32).contains(&at);
                assert!(address || again[at] == bytes[at], "{seed} at {at}");
            }
        }
    }

    #[test]
    fn the_direction_is_in_the_name() {
        let cases = [
            (io::WRITE, Direction::ToController),
            (io::READ, Direction::ToHost),
            (io::COMPARE, Direction::ToController),
            (io::DATASET_MANAGEMENT, Direction::ToController),
            (io::FLUSH, Direction::None),
            (io::WRITE_ZEROES, Direction::None),
            (admin::IDENTIFY, Direction::ToHost),
            (admin::GET_LOG_PAGE, Direction::ToHost),
            (admin::KEEP_ALIVE, Direction::None),
        ];
        for (opcode, direction) in cases {
            let command = Command::new(opcode, 1, [0; 6]);
            assert_eq!(command.direction(), direction, "{opcode:#x}");
            assert_eq!(command.fabrics_type(), None);
        }
        let cases = [
            (fabrics::CONNECT, Direction::ToController),
            (fabrics::AUTH_RECEIVE, Direction::ToHost),
            (fabrics::PROPERTY_GET, Direction::None),
        ];
        for (kind, direction) in cases {
            let command = Command::fabrics(kind, [0; 6]);
            assert_eq!(command.direction(), direction, "{kind:#x}");
            assert_eq!(command.fabrics_type(), Some(kind));
        }
    }
}
