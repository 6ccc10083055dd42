//! NVMe commands as Linux takes them: by `ioctl` and by a ring's `uring_cmd`.
//!
//! Source: `linux/nvme_ioctl.h` (`struct nvme_passthru_cmd`, `struct nvme_uring_cmd`: one layout).

/// Length of a command in bytes.
pub(crate) const COMMAND_BYTES: usize = LEN as usize;
const LEN: u32 = 72;

/// A command without metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) namespace_id: u32,
    /// Where the data lies, or the list of its parts.
    pub(crate) address: u64,
    /// Bytes of the data, or parts of the list.
    pub(crate) data_len: u32,
    pub(crate) dword_10: u32,
    pub(crate) dword_11: u32,
    pub(crate) dword_12: u32,
}

impl Command {
    /// The structure that the system reads; what is not set is zero: no metadata, no flags, the
    /// system's own time limit.
    pub(crate) fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = self.opcode;
        bytes[24..32].copy_from_slice(&self.address.to_ne_bytes());
        let words = [
            (4, self.namespace_id),
            (36, self.data_len),
            (40, self.dword_10),
            (44, self.dword_11),
            (48, self.dword_12),
        ];
        for (at, word) in words {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// `_IOWR('N', number, struct nvme_passthru_cmd)`.
pub(crate) const fn request_code(number: u32) -> u32 {
    const READ_WRITE: u32 = 3;
    const LETTER: u32 = 0x4e;
    READ_WRITE << 30 | LEN << 16 | LETTER << 8 | number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_system_reads_them() {
        let command = Command {
            opcode: 0x02,
            namespace_id: 0x0403_0201,
            address: 0x1716_1514_1312_1110,
            data_len: 0x2322_2120,
            dword_10: 0x3332_3130,
            dword_11: 0x4342_4140,
            dword_12: 0x5352_5150,
        };
        let bytes = command.to_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!((bytes[0], word(4)), (command.opcode, command.namespace_id));
        let address = u64::from_ne_bytes(bytes[24..32].try_into().expect("eight"));
        assert_eq!((address, word(36)), (command.address, command.data_len));
        assert_eq!(word(40), command.dword_10);
        assert_eq!((word(44), word(48)), (command.dword_11, command.dword_12));
        let set: usize = bytes.iter().filter(|byte| **byte != 0).count();
        assert_eq!(set, 1 + 4 + 8 + 4 * 4, "nothing else is said");
    }

    #[test]
    fn requests_are_those_of_the_system() {
        // NVME_IOCTL_ADMIN_CMD, NVME_IOCTL_IO_CMD, NVME_URING_CMD_IO, NVME_URING_CMD_IO_VEC.
        let codes = [0x41, 0x43, 0x80, 0x81].map(request_code);
        assert_eq!(codes, [0xc048_4e41, 0xc048_4e43, 0xc048_4e80, 0xc048_4e81]);
    }
}
