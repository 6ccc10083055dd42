//! NVMe namespaces by their character devices (`/dev/ng0n1`).
//!
//! What is to be known of one is asked by `ioctl`, on the control thread. Source: NVM Command Set
//! specification 1.0, section 4.1.5.1 (Identify Namespace); `linux/nvme_ioctl.h`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::driver::Namespace;
use crate::driver::command::{COMMAND_BYTES, Command, request_code};

/// `NVME_IOCTL_ID`: which namespace a descriptor is of.
const REQUEST_ID: libc::Ioctl = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`.
const REQUEST_ADMIN: libc::Ioctl = request_code(0x41) as libc::Ioctl;
/// `NVME_IOCTL_IO_CMD`.
const REQUEST_IO: libc::Ioctl = request_code(0x43) as libc::Ioctl;

const ADMIN_IDENTIFY: u8 = 0x06;
const IO_FLUSH: u8 = 0x00;
const IDENTIFY_BYTES: usize = 4096;
/// Blocks that any device may have, as powers of two: 512 bytes to 64 KiB.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;

/// What a namespace is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) namespace: Namespace,
    len_bytes: u64,
}

impl Geometry {
    /// Asks the device. None if the file is no namespace's.
    pub(super) fn of(file: &fs::File) -> io::Result<Option<Self>> {
        // SAFETY: the descriptor is open for the time of the borrow, and the request takes no
        // argument.
        let id = unsafe { libc::ioctl(file.as_raw_fd(), REQUEST_ID) };
        let Some(id) = u32::try_from(id).ok().filter(|id| *id > 0) else {
            return Ok(None);
        };
        let mut identified = vec![0; IDENTIFY_BYTES];
        let identify = Command {
            opcode: ADMIN_IDENTIFY,
            namespace_id: id,
            address: identified.as_mut_ptr().expose_provenance() as u64,
            data_len: u32::try_from(IDENTIFY_BYTES).expect("small"),
            ..Command::default()
        };
        command(file.as_raw_fd(), REQUEST_ADMIN, identify)?;
        let geometry = Self::from_identified(id, &identified);
        geometry.map(Some).ok_or_else(|| {
            let text = "a namespace whose blocks carry metadata, or are of no known size";
            io::Error::new(io::ErrorKind::Unsupported, text)
        })
    }

    /// Reads the answer of the device, if its blocks are plain.
    fn from_identified(id: u32, identified: &[u8]) -> Option<Self> {
        let (count, _) = identified.split_first_chunk::<8>()?;
        // Which of the formats that are listed from byte 128 on: its low bits, then its high bits.
        let selected = *identified.get(26)?;
        let index = usize::from(selected & 0xf | (selected >> 5 & 0x3) << 4);
        let format = identified.get(128 + 4 * index..)?.first_chunk::<4>()?;
        let [metadata_low, metadata_high, block_shift, _performance] = *format;
        let is_plain = (metadata_low, metadata_high) == (0, 0);
        if !is_plain || !BLOCK_SHIFTS.contains(&block_shift) {
            return None;
        }
        let block_count = u64::from_le_bytes(*count);
        Some(Self {
            namespace: Namespace { id, block_shift },
            len_bytes: block_count.checked_mul(1 << block_shift)?,
        })
    }

    pub(super) const fn block_bytes(self) -> usize {
        1 << self.namespace.block_shift
    }

    pub(super) const fn len_bytes(self) -> u64 {
        self.len_bytes
    }

    /// Waits until what was written is on the medium.
    pub(super) fn flush(self, fd: &OwnedFd) -> Result<(), Errno> {
        let flush = Command {
            opcode: IO_FLUSH,
            namespace_id: self.namespace.id,
            ..Command::default()
        };
        command(fd.as_raw_fd(), REQUEST_IO, flush)
    }
}

/// Gives a command to the device and waits for its end. A status of the device is `EIO`.
fn command(fd: i32, request: libc::Ioctl, command: Command) -> Result<(), Errno> {
    let mut bytes: [u8; COMMAND_BYTES] = command.to_bytes();
    // SAFETY: the system reads and writes the command, which is ours until the call returns, and
    // the memory that it names, which its maker holds, of the length that it says.
    let status = unsafe { libc::ioctl(fd, request, bytes.as_mut_ptr()) };
    match status {
        0 => Ok(()),
        1.. => {
            tracing::warn!("an NVMe device refused a command with status {status:#x}");
            Err(Errno::IO)
        }
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of 1,000 blocks in format `index`, with metadata and size as given.
    fn identified(index: u8, metadata: u16, block_shift: u8) -> Vec<u8> {
        let mut answer = vec![0; IDENTIFY_BYTES];
        answer[..8].copy_from_slice(&1000_u64.to_le_bytes());
        answer[26] = index & 0xf | index >> 4 << 5;
        let at = 128 + 4 * usize::from(index);
        answer[at..at + 2].copy_from_slice(&metadata.to_le_bytes());
        answer[at + 2] = block_shift;
        answer
    }

    #[test]
    fn the_selected_format_tells_the_size_of_a_block() {
        for (index, shift) in [(0, 9), (3, 12), (15, 12), (16, 9), (63, 16)] {
            let geometry = Geometry::from_identified(7, &identified(index, 0, shift));
            let geometry = geometry.expect("plain blocks");
            assert_eq!(geometry.namespace.id, 7);
            assert_eq!(geometry.block_bytes(), 1 << shift);
            assert_eq!(geometry.len_bytes(), 1000 << shift);
        }
    }

    #[test]
    fn what_is_not_plain_is_refused() {
        for (metadata, shift) in [(8, 12), (0, 8), (0, 17), (0, 0), (0, 255)] {
            let answer = identified(0, metadata, shift);
            assert_eq!(Geometry::from_identified(1, &answer), None);
        }
        for len in [0, 7, 26, 128, 131] {
            let answer = &identified(0, 0, 12)[..len];
            assert_eq!(Geometry::from_identified(1, answer), None, "{len} bytes");
        }
    }

    #[test]
    fn other_character_devices_are_no_namespaces() {
        let null = fs::File::open("/dev/null").expect("there is one");
        assert_eq!(Geometry::of(&null).expect("no error"), None);
    }
}
