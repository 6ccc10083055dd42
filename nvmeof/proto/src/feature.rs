//! Features: what is set, and what may be.

use crate::command::{Command, admin};

/// Features (NVMe Base 2.0, "Feature Identifiers").
pub mod id {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power management.
    pub const POWER: u8 = 0x02;
    /// Temperature threshold.
    pub const TEMPERATURE: u8 = 0x04;
    /// Error recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile write cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of queues.
    pub const QUEUES: u8 = 0x07;
    /// Write atomicity.
    pub const ATOMICITY: u8 = 0x0a;
    /// Events that are told.
    pub const EVENTS: u8 = 0x0b;
    /// Keep-alive timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// What may be done with a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can be read.
    Read,
    /// It can be set, too.
    Set,
}

/// The features that a controller has.
pub const FEATURES: [(u8, Access); 9] = [
    (id::ARBITRATION, Access::Set),
    (id::POWER, Access::Read),
    (id::TEMPERATURE, Access::Set),
    (id::ERROR_RECOVERY, Access::Set),
    (id::WRITE_CACHE, Access::Read),
    (id::QUEUES, Access::Set),
    (id::ATOMICITY, Access::Set),
    (id::EVENTS, Access::Set),
    (id::KEEP_ALIVE, Access::Set),
];

/// Events that the host can ask for (NVMe Base 2.0, "Asynchronous Event Configuration").
pub mod events {
    /// A namespace has come, gone or changed.
    pub const NAMESPACES: u32 = 1 << 8;
    /// The state of a namespace on a path has changed.
    pub const ANA: u32 = 1 << 11;
    /// The discovery log has changed.
    pub const DISCOVERY: u32 = 1 << 31;
}

/// What a feature is asked for: bits 8 to 10 of the command that reads it.
pub(crate) const SELECT_CAPABILITIES: u8 = 3;

/// What may be done with feature `id`; `None` if there is none.
#[must_use]
pub fn access(id: u8) -> Option<Access> {
    FEATURES.iter().find(|row| row.0 == id).map(|row| row.1)
}

/// The command that sets feature `id` to `value`.
#[must_use]
pub fn set(id: u8, value: u32) -> Command {
    Command::new(admin::SET_FEATURES, 0, [u32::from(id), value, 0, 0, 0, 0])
}

/// The command that reads feature `id`.
#[must_use]
pub fn get(id: u8) -> Command {
    Command::new(admin::GET_FEATURES, 0, [u32::from(id), 0, 0, 0, 0, 0])
}

/// The value that asks for, or grants, `count` queues for I/O in each direction.
///
/// # Panics
/// If `count` is 0.
#[must_use]
pub fn queues_value(count: u16) -> u32 {
    let less_one = u32::from(count.checked_sub(1).expect("at least one queue"));
    less_one << 16 | less_one
}

/// How many queues for I/O a value grants, both ways.
#[must_use]
pub fn queues_of(value: u32) -> u16 {
    let [a, b, c, d] = value.to_le_bytes();
    let granted = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d]));
    granted.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_from_zero_on_the_wire() {
        for count in [1, 2, 128, u16::MAX] {
            assert_eq!(queues_of(queues_value(count)), count);
        }
        assert_eq!(queues_of(0x0003_007f), 4);
        assert_eq!(queues_of(u32::MAX), u16::MAX);
    }

    #[test]
    fn every_feature_is_in_the_table_once() {
        for id in 0..=u8::MAX {
            let rows = FEATURES.iter().filter(|row| row.0 == id).count();
            assert_eq!(rows, usize::from(access(id).is_some()), "{id}");
        }
        assert_eq!(access(id::POWER), Some(Access::Read));
    }
}
