//! What a drive's log lies on.

use std::fmt;
use std::path::PathBuf;

use lunette_nvmeof::NamespaceOptions;

/// What a drive's log lies on.
#[derive(Clone, Debug)]
pub enum Medium {
    /// A file, which is made and given its room if it is not there. The system locks it.
    File(PathBuf),
    /// A device: a block device, or the character device of an NVMe namespace (`/dev/ng0n1`), which is read and
    /// written by commands to the drive, around the block layer. The log claims its part of it.
    Device(PathBuf),
    /// A namespace that is reached by NVMe/TCP. The log claims its part of it.
    Namespace(Box<NamespaceOptions>),
}

impl Medium {
    /// Whether who writes there is told by a claim of the log, since no lock of the system covers it: another process
    /// may reach it by another name, or from another host.
    pub(super) const fn is_claimed(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Device(_) | Self::Namespace(_) => true,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) | Self::Device(path) => path.display().fmt(f),
            Self::Namespace(options) => {
                f.write_str("nvme://")?;
                for (index, address) in options.addresses.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{address}")?;
                }
                write!(f, "/{}?nsid={}", options.subsystem, options.nsid)
            }
        }
    }
}
