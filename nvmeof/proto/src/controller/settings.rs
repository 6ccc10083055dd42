//! The features of one controller, as they are set.

use crate::completion::Status;
use crate::feature::{self, Access, SELECT_CAPABILITIES, id};

const SAVE: u32 = 1 << 31;

/// Values of features.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    values: [u32; feature::FEATURES.len()],
    /// Queues for I/O that may be granted.
    queues_max: u16,
}

impl Settings {
    pub(super) fn new(queues_max: u16, keep_alive_ms: u32, caches_writes: bool) -> Self {
        let mut settings = Self {
            values: [0; feature::FEATURES.len()],
            queues_max,
        };
        settings.put(id::QUEUES, feature::queues_value(queues_max));
        settings.put(id::KEEP_ALIVE, keep_alive_ms);
        settings.put(id::WRITE_CACHE, u32::from(caches_writes));
        settings
    }

    /// The value of a feature that exists.
    pub(super) fn value(&self, feature: u8) -> u32 {
        self.values[index(feature).expect("a feature that exists")]
    }

    /// Answers Get Features.
    pub(super) fn read(&self, cdw10: u32) -> Result<u32, Status> {
        let [feature, select, ..] = cdw10.to_le_bytes();
        let found = index(feature).ok_or(Status::INVALID_FIELD.do_not_retry())?;
        if select & 7 == SELECT_CAPABILITIES {
            // Changeable or not; nothing is saved.
            let is_changeable = feature::access(feature) == Some(Access::Set);
            return Ok(u32::from(is_changeable) << 2);
        }
        Ok(self.values[found])
    }

    /// Answers Set Features: the value that is set.
    pub(super) fn write(&mut self, cdw10: u32, value: u32) -> Result<u32, Status> {
        let [feature, ..] = cdw10.to_le_bytes();
        if cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.do_not_retry());
        }
        match feature::access(feature) {
            None => return Err(Status::INVALID_FIELD.do_not_retry()),
            Some(Access::Read) => return Err(Status::FEATURE_NOT_CHANGEABLE.do_not_retry()),
            Some(Access::Set) => {}
        }
        let value = if feature == id::QUEUES {
            let wanted = feature::queues_of(value);
            feature::queues_value(wanted.min(self.queues_max))
        } else {
            value
        };
        self.put(feature, value);
        Ok(value)
    }

    fn put(&mut self, feature: u8, value: u32) {
        self.values[index(feature).expect("a feature that exists")] = value;
    }
}

fn index(feature: u8) -> Option<usize> {
    feature::FEATURES.iter().position(|row| row.0 == feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_read_and_set_as_the_table_says() {
        let mut settings = Settings::new(8, 5000, true);
        for feature in 0..=u8::MAX {
            let set = settings.write(u32::from(feature), 3).map_err(Status::code);
            let read = settings.read(u32::from(feature)).map_err(Status::code);
            match feature::access(feature) {
                None => assert_eq!((set, read), (Err(2), Err(2)), "{feature}"),
                Some(Access::Read) => assert_eq!(set, Err(0x10e), "{feature}"),
                Some(Access::Set) => assert_eq!(set, read, "{feature}"),
            }
            if let Some(access) = feature::access(feature) {
                let capabilities = settings.read(u32::from(feature) | 3 << 8);
                assert_eq!(capabilities, Ok(u32::from(access == Access::Set) << 2));
            }
        }
        assert_eq!(settings.value(id::WRITE_CACHE), 1);
    }

    #[test]
    fn queues_are_granted_up_to_the_limit() {
        let mut settings = Settings::new(8, 0, false);
        let mut grant = |count| {
            let set = settings.write(u32::from(id::QUEUES), feature::queues_value(count));
            set.map(feature::queues_of)
        };
        assert_eq!(grant(7), Ok(7));
        assert_eq!(grant(8), Ok(8));
        assert_eq!(grant(9), Ok(8));
        assert!(settings.write(SAVE | u32::from(id::EVENTS), 0).is_err());
    }
}
