//! What a driver's result codes mean for who uses it.

use thiserror::Error;

/// Why the driver did not do what it was asked, by what the caller may do about it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// No memory of the kind that was asked for is left: free something, then try again.
    #[error("out of memory")]
    OutOfMemory,
    /// This device, driver or machine cannot do it: take another way.
    #[error("not supported here (code {0})")]
    Unsupported(u32),
    /// The system does not let this process do it: take another way.
    #[error("not permitted here (code {0})")]
    Refused(u32),
    /// The device's context is of no use any more, and so is what was in its memory. Nothing
    /// queued in it runs. A new process, or a new context, is what helps.
    #[error("the device's context is poisoned (code {0})")]
    Poisoned(u32),
    /// The device is gone.
    #[error("the device is lost (code {0})")]
    Lost(u32),
    /// Any other code. The operation was not done; others go on.
    #[error("the driver answers with code {0}")]
    Code(u32),
}

impl Fault {
    /// What a result code of the CUDA driver means. Codes that this table does not know are kept.
    ///
    /// # Panics
    /// For 0, which is success.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        assert!(code != 0, "success is no fault");
        match code {
            2 => Self::OutOfMemory,
            // No code for this device and nothing to make it with, no peer access, not supported,
            // a driver that is too old or does not fit.
            209 | 217 | 218 | 221..=223 | 801 | 803 | 804 => Self::Unsupported(code),
            // The operating system's refusal, and the driver's own.
            304 | 800 => Self::Refused(code),
            // What a context does not survive: memory errors, failed launches, the end of MPS.
            201 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 => {
                Self::Poisoned(code)
            }
            // Shut down, not there, fallen from the bus.
            3 | 4 | 46 | 100 | 101 | 999 => Self::Lost(code),
            code => Self::Code(code),
        }
    }

    /// Whether everything else in the same context fails from now on, too.
    #[must_use]
    pub const fn is_sticky(self) -> bool {
        matches!(self, Self::Poisoned(_) | Self::Lost(_))
    }

    /// Whether waiting or freeing can help.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::OutOfMemory)
    }

    /// Whether another way to the same end can help.
    #[must_use]
    pub const fn is_unavailable(self) -> bool {
        matches!(self, Self::Unsupported(_) | Self::Refused(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_by_what_helps() {
        let table = [
            (1, Fault::Code(1)),
            (2, Fault::OutOfMemory),
            (46, Fault::Lost(46)),
            (220, Fault::Poisoned(220)),
            (221, Fault::Unsupported(221)),
            (223, Fault::Unsupported(223)),
            (224, Fault::Code(224)),
            (304, Fault::Refused(304)),
            (700, Fault::Poisoned(700)),
            (701, Fault::Code(701)),
            (713, Fault::Code(713)),
            (714, Fault::Poisoned(714)),
            (719, Fault::Poisoned(719)),
            (720, Fault::Code(720)),
            (801, Fault::Unsupported(801)),
            (u32::MAX, Fault::Code(u32::MAX)),
        ];
        for (code, fault) in table {
            assert_eq!(Fault::from_code(code), fault);
        }
        assert!(Fault::from_code(700).is_sticky() && Fault::from_code(46).is_sticky());
        assert!(!Fault::from_code(1).is_sticky() && !Fault::OutOfMemory.is_sticky());
        assert!(Fault::OutOfMemory.is_backpressure() && !Fault::Code(1).is_backpressure());
        assert!(Fault::from_code(801).is_unavailable() && !Fault::Lost(4).is_unavailable());
    }

    #[test]
    #[should_panic(expected = "success is no fault")]
    fn success_is_not_one() {
        let _fault = Fault::from_code(0);
    }
}
