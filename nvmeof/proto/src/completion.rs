//! Completions and the statuses that they carry.

use core::fmt;

use lunette_runtime_core::codec::Reader;

/// Length of a completion, in bytes.
pub const COMPLETION_BYTES: usize = 16;
/// The head of a submission queue whose flow control is off (NVMe Base 2.0, "Connect Command").
pub const HEAD_WITHOUT_FLOW_CONTROL: u16 = 0xffff;

const DO_NOT_RETRY: u16 = 1 << 14;
const MORE: u16 = 1 << 13;
const CODE_MASK: u16 = 0x7ff;

/// How a command ended: type and code, and whether to retry. Unknown ones survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Those that have a name here.
            pub const NAMED: &'static [Self] = &[$(Self::$name),*];

            const fn text(self) -> Option<&'static str> {
                match self.code() {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = 0x000, "success";
    /// No such command.
    INVALID_OPCODE = 0x001, "invalid opcode";
    /// A field has a value that it may not have.
    INVALID_FIELD = 0x002, "invalid field";
    /// The command's data did not come through.
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    /// The controller failed.
    INTERNAL_ERROR = 0x006, "internal error";
    /// The host asked for the abort.
    ABORT_REQUESTED = 0x007, "aborted on request";
    /// Its queue has been deleted, as a reset of the controller does.
    ABORTED_WITH_QUEUE = 0x008, "aborted with its queue";
    /// No such namespace.
    INVALID_NAMESPACE = 0x00b, "invalid namespace";
    /// Not now.
    COMMAND_SEQUENCE_ERROR = 0x00c, "command sequence error";
    /// The length of the data is not that of the command.
    DATA_LENGTH_INVALID = 0x00f, "data length invalid";
    /// The data pointer is of a kind that is not supported.
    SGL_TYPE_INVALID = 0x011, "data descriptor type invalid";
    /// The data lie outside the capsule.
    SGL_OFFSET_INVALID = 0x016, "data offset invalid";
    /// The host did not prove who it is, or may not.
    OPERATION_DENIED = 0x015, "operation denied";
    /// The keep-alive timeout cannot be kept.
    KEEP_ALIVE_INVALID = 0x019, "keep-alive timeout invalid";
    /// The transport damaged something; try again.
    TRANSIENT_TRANSPORT_ERROR = 0x022, "transient transport error";
    /// Beyond the end of the namespace.
    LBA_OUT_OF_RANGE = 0x080, "block out of range";
    /// The namespace has no room.
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0x082, "namespace not ready";
    /// No such queue, or one that is in use.
    INVALID_QUEUE_ID = 0x101, "invalid queue id";
    /// More requests for events than are taken.
    ASYNC_EVENT_LIMIT = 0x105, "too many requests for events";
    /// No such log page.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The feature cannot be kept.
    FEATURE_NOT_SAVEABLE = 0x10d, "feature not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    /// Connect in a format that is not known.
    CONNECT_FORMAT = 0x180, "connect: unknown format";
    /// The controller is taken.
    CONTROLLER_BUSY = 0x181, "connect: controller busy";
    /// Connect with a parameter that does not fit.
    CONNECT_PARAMETERS = 0x182, "connect: invalid parameters";
    /// This host may not connect.
    CONNECT_HOST = 0x184, "connect: host not allowed";
    /// The host has to authenticate first.
    AUTH_REQUIRED = 0x191, "authentication required";
    /// The medium could not be written.
    WRITE_FAULT = 0x280, "write fault";
    /// The medium could not be read.
    UNRECOVERED_READ = 0x281, "unrecovered read error";
    /// The bytes are not those compared with.
    COMPARE_FAILURE = 0x285, "compare failure";
    /// The path failed inside the controller.
    PATH_INTERNAL = 0x300, "internal path error";
    /// The namespace is no more reachable this way.
    ANA_PERSISTENT_LOSS = 0x301, "path lost for good";
    /// The namespace is not reachable this way.
    ANA_INACCESSIBLE = 0x302, "path inaccessible";
    /// The namespace is changing its state.
    ANA_TRANSITION = 0x303, "path in transition";
    /// The host gave the command up.
    HOST_ABORTED = 0x371, "given up by the host";
}

impl Status {
    /// From the 15 bits of a completion.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The 15 bits of a completion.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Type and code alone.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & CODE_MASK
    }

    /// The same, and not to be tried again.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// Whether the command did what was asked.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Whether the same command may succeed later, the peer has not said otherwise.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        !self.is_success() && self.0 & DO_NOT_RETRY == 0
    }

    /// Whether another path to the namespace may serve (status code type 3).
    #[must_use]
    pub const fn is_path_error(self) -> bool {
        self.code() >> 8 == 3
    }

    /// Whether bytes were damaged underway, or on the medium.
    #[must_use]
    pub const fn is_corruption(self) -> bool {
        matches!(self.code(), 0x004 | 0x022 | 0x281)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().unwrap_or("status"))?;
        write!(f, " ({:#05x}", self.code())?;
        if self.0 & DO_NOT_RETRY != 0 {
            f.write_str(", do not retry")?;
        }
        if self.0 & MORE != 0 {
            f.write_str(", more in the log")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

/// One completion (NVMe Base 2.0, "Completion Queue Entry").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the command returns.
    pub result: u64,
    /// Head of the submission queue.
    pub head: u16,
    /// The queue; 0 over fabrics.
    pub queue_id: u16,
    /// The command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        bytes[..8].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.head.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.queue_id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.cid.to_le_bytes());
        bytes[14..].copy_from_slice(&(self.status.bits() << 1).to_le_bytes());
        bytes
    }

    /// Reads a completion. Total: any 16 bytes are one. The phase bit has no meaning over fabrics.
    #[must_use]
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        let mut reader = Reader::new(bytes);
        let whole = "16 bytes hold every field";
        let result = reader.u64().expect(whole);
        let mut word = || reader.u16().expect(whole);
        Self {
            result,
            head: word(),
            queue_id: word(),
            cid: word(),
            status: Status::from_bits(word() >> 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_layout() {
        let completion = Completion {
            result: 0x0807_0605_0403_0201,
            head: 0x0a09,
            queue_id: 0x0c0b,
            cid: 0x0e0d,
            status: Status::LBA_OUT_OF_RANGE.do_not_retry(),
        };
        let golden = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x00, 0x81];
        assert_eq!(completion.encode(), golden);
        assert_eq!(Completion::decode(&golden), completion);
    }

    #[test]
    fn statuses_have_names_of_their_own() {
        let mut texts: Vec<String> = Status::NAMED.iter().map(Status::to_string).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), Status::NAMED.len());
        assert_eq!(
            Status::from_bits(0x6abc).to_string(),
            "status (0x2bc, do not retry, more in the log)"
        );
    }

    #[test]
    fn what_to_do_after_a_status() {
        assert!(Status::SUCCESS.is_success() && !Status::SUCCESS.is_retryable());
        assert!(Status::INTERNAL_ERROR.is_retryable());
        assert!(!Status::INTERNAL_ERROR.do_not_retry().is_retryable());
        for &status in Status::NAMED {
            assert_eq!(
                status.is_path_error(),
                status.code() & 0x700 == 0x300,
                "{status}"
            );
        }
    }
}
