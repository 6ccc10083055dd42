//! What fabrics commands carry: Connect, and the properties of a controller.

use lunette_runtime_core::codec::{Reader, Writer};
use thiserror::Error;

use crate::command::{Command, fabrics};
use crate::nqn::{NQN_FIELD_BYTES, Nqn, NqnFault};

/// Length of the data of a Connect, in bytes.
pub const CONNECT_DATA_BYTES: u32 = 1024;
/// Asks for a controller that the subsystem chooses.
pub const CONTROLLER_ANY: u16 = 0xffff;
/// Entries of a queue at most, one of which stays empty.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;

const NO_FLOW_CONTROL_FLAG: u32 = 1 << 2;
/// Where names lie in the data of a Connect.
const SUBSYSTEM_AT: usize = 256;

/// The command's part of a Connect (NVMe Base 2.0, "Connect Command").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Format of the data; 0 is the only one.
    pub format: u16,
    /// The queue: 0 for the admin queue.
    pub queue_id: u16,
    /// Entries of the queue, less one.
    pub entries_less_one: u16,
    /// The host does without the head of the submission queue.
    pub without_flow_control: bool,
    /// Keep-alive timeout in milliseconds, 0 for none. Of the admin queue alone.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// The command, without its data pointer.
    #[must_use]
    pub fn command(&self) -> Command {
        let flags = u32::from(self.without_flow_control) * NO_FLOW_CONTROL_FLAG;
        let cdw10 = u32::from(self.format) | u32::from(self.queue_id) << 16;
        let cdw11 = u32::from(self.entries_less_one) | flags << 16;
        Command::fabrics(
            fabrics::CONNECT,
            [cdw10, cdw11, self.keep_alive_ms, 0, 0, 0],
        )
    }

    /// Reads the command's part.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let [cdw10, cdw11, keep_alive_ms, ..] = command.cdw10;
        Self {
            format: low(cdw10),
            queue_id: low(cdw10 >> 16),
            entries_less_one: low(cdw11),
            without_flow_control: cdw11 >> 16 & NO_FLOW_CONTROL_FLAG != 0,
            keep_alive_ms,
        }
    }
}

/// The low half of a dword.
pub(crate) fn low(dword: u32) -> u16 {
    u16::try_from(dword & 0xffff).expect("16 bits fit 16 bits")
}

/// Why the data of a Connect make no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConnectFault {
    /// They are not [`CONNECT_DATA_BYTES`] long.
    #[error("the data of a Connect have {CONNECT_DATA_BYTES} bytes")]
    Length,
    /// The name of the subsystem is none.
    #[error("subsystem: {0}")]
    Subsystem(NqnFault),
    /// The name of the host is none.
    #[error("host: {0}")]
    Host(NqnFault),
}

impl ConnectFault {
    /// Where in the data the field lies that is wrong.
    #[must_use]
    pub const fn at(&self) -> u16 {
        match self {
            Self::Length => 0,
            Self::Subsystem(_) => 256,
            Self::Host(_) => 512,
        }
    }
}

/// The data of a Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Which host this is, beside its name.
    pub host_id: [u8; 16],
    /// The controller, or [`CONTROLLER_ANY`].
    pub controller_id: u16,
    /// The subsystem's name.
    pub subsystem: Nqn,
    /// The host's name.
    pub host: Nqn,
}

impl ConnectData {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CONNECT_DATA_BYTES as usize);
        Writer::new(&mut out)
            .bytes(&self.host_id)
            .u16(self.controller_id);
        out.resize(SUBSYSTEM_AT, 0);
        Writer::new(&mut out)
            .bytes(&self.subsystem.encode())
            .bytes(&self.host.encode());
        out.resize(CONNECT_DATA_BYTES as usize, 0);
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ConnectFault> {
        if bytes.len() != CONNECT_DATA_BYTES as usize {
            return Err(ConnectFault::Length);
        }
        let mut reader = Reader::new(bytes);
        let host_id = reader.array().map_err(|_| ConnectFault::Length)?;
        let controller_id = reader.u16().map_err(|_| ConnectFault::Length)?;
        let mut names = Reader::new(&bytes[SUBSYSTEM_AT..]);
        let mut name = || {
            names
                .array::<NQN_FIELD_BYTES>()
                .map_err(|_| ConnectFault::Length)
        };
        let (subsystem, host) = (name()?, name()?);
        Ok(Self {
            host_id,
            controller_id,
            subsystem: Nqn::decode(&subsystem).map_err(ConnectFault::Subsystem)?,
            host: Nqn::decode(&host).map_err(ConnectFault::Host)?,
        })
    }
}

/// A register of a controller (NVMe Base 2.0, "Controller Properties").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// Capabilities.
    Capabilities,
    /// Version of the specification.
    Version,
    /// Configuration.
    Configuration,
    /// Status.
    Status,
    /// Resets the subsystem.
    SubsystemReset,
}

impl Property {
    /// Every property.
    pub const ALL: [Self; 5] = [
        Self::Capabilities,
        Self::Version,
        Self::Configuration,
        Self::Status,
        Self::SubsystemReset,
    ];

    const fn offset(self) -> u32 {
        match self {
            Self::Capabilities => 0x00,
            Self::Version => 0x08,
            Self::Configuration => 0x14,
            Self::Status => 0x1c,
            Self::SubsystemReset => 0x20,
        }
    }

    const fn is_wide(self) -> bool {
        matches!(self, Self::Capabilities)
    }

    /// The command that reads it.
    #[must_use]
    pub fn read(self) -> Command {
        let size = u32::from(self.is_wide());
        Command::fabrics(fabrics::PROPERTY_GET, [size, self.offset(), 0, 0, 0, 0])
    }

    /// The command that writes `value` to it.
    #[must_use]
    pub fn write(self, value: u32) -> Command {
        Command::fabrics(fabrics::PROPERTY_SET, [0, self.offset(), value, 0, 0, 0])
    }

    /// The property that a command names, if its size fits.
    #[must_use]
    pub fn of(command: &Command) -> Option<Self> {
        let [size, offset, ..] = command.cdw10;
        Self::ALL.into_iter().find(|property| {
            property.offset() == offset && u32::from(property.is_wide()) == size & 7
        })
    }
}

/// The configuration of a controller, as far as it has a meaning over fabrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Enabled, entries of 64 and 16 bytes.
    pub const ENABLED: Self = Self(0x0046_0001);

    /// Whether the controller is to work.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it is to shut down.
    #[must_use]
    pub const fn shuts_down(self) -> bool {
        self.0 >> 14 & 3 != 0
    }

    /// The same, shutting down.
    #[must_use]
    pub const fn shutting_down(self) -> Self {
        Self(self.0 & !(3 << 14) | 1 << 14)
    }
}

/// The status of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// It works.
    pub const READY: Self = Self(1);
    /// It has failed.
    pub const FATAL: Self = Self(1 << 1);
    /// It has shut down.
    pub const SHUT_DOWN: Self = Self(2 << 2);

    /// Whether it works.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it has failed for good.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether it has shut down.
    #[must_use]
    pub const fn is_shut_down(self) -> bool {
        self.0 >> 2 & 3 == 2
    }
}

/// What a controller can do, from its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Those of a controller with queues of `entries` and `ready_timeout_halves` of half a second
    /// to become ready: queues contiguous, the NVM command set.
    #[must_use]
    pub const fn new(entries: u16, ready_timeout_halves: u8) -> Self {
        assert!(entries >= 2, "a queue has two entries at least");
        Self(1 << 37 | (ready_timeout_halves as u64) << 24 | 1 << 16 | (entries as u64 - 1))
    }

    /// Entries of a queue at most.
    #[must_use]
    pub fn entries_max(self) -> u32 {
        u32::from(low(u32::try_from(self.0 & 0xffff).expect("16 bits"))) + 1
    }

    /// How long it may take to become ready, in milliseconds.
    #[must_use]
    pub const fn ready_timeout_ms(self) -> u64 {
        (self.0 >> 24 & 0xff) * 500
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_goes_through_a_command() {
        let connect = Connect {
            format: 0,
            queue_id: 3,
            entries_less_one: 127,
            without_flow_control: true,
            keep_alive_ms: 5000,
        };
        let command = connect.command();
        assert_eq!(command.cdw10[..3], [3 << 16, 4 << 16 | 127, 5000]);
        assert_eq!(Connect::of(&command), connect);
    }

    #[test]
    fn connect_data_have_their_layout() {
        let data = ConnectData {
            host_id: [7; 16],
            controller_id: 0x0102,
            subsystem: Nqn::new("nqn.s").expect("a name"),
            host: Nqn::new("nqn.h").expect("a name"),
        };
        let bytes = data.encode();
        assert_eq!(bytes.len(), 1024);
        assert_eq!(bytes[16..18], [2, 1]);
        assert_eq!(bytes[256..262], *b"nqn.s\0");
        assert_eq!(bytes[512..518], *b"nqn.h\0");
        assert_eq!(ConnectData::decode(&bytes), Ok(data));
        assert_eq!(ConnectData::decode(&bytes[1..]), Err(ConnectFault::Length));
        for at in [256, 512] {
            let mut bytes = bytes.clone();
            bytes[at] = b'!';
            let fault = ConnectData::decode(&bytes).expect_err("no name");
            assert_eq!(usize::from(fault.at()), at);
        }
    }

    #[test]
    fn properties_are_found_by_offset_and_size() {
        for property in Property::ALL {
            assert_eq!(Property::of(&property.read()), Some(property));
            let mut command = property.read();
            command.cdw10[0] ^= 1;
            assert_eq!(Property::of(&command), None);
        }
        assert_eq!(
            Property::of(&Property::Status.write(1)),
            Some(Property::Status)
        );
    }

    #[test]
    fn registers_say_what_they_say() {
        // What the kernel's target answers: 1,024 entries, 7.5 s.
        let capabilities = Capabilities(0x0820_0f00_03ff);
        assert_eq!(capabilities.entries_max(), 1024);
        assert_eq!(capabilities.ready_timeout_ms(), 7500);
        assert_eq!(Capabilities::new(128, 15).entries_max(), 128);
        assert!(Configuration::ENABLED.is_enabled());
        assert!(Configuration::ENABLED.shutting_down().shuts_down());
        assert!(!Configuration::ENABLED.shuts_down());
        assert!(ControllerStatus::SHUT_DOWN.is_shut_down());
        assert!(!ControllerStatus::READY.is_fatal() && ControllerStatus::FATAL.is_fatal());
    }
}
