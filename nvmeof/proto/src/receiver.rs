//! From bytes to PDUs, and to the places of their data.
//!
//! ```text
//!   Header --(digest, padding)--> Data --> Digest --> Header ...
//!      \__________________ any fault: Failed, for ever ________________/
//! ```
//!
//! Headers are collected here, at most 132 bytes; data pass by. Data that are not in the input yet
//! may be received straight into their destination by the caller, who then hands them to
//! [`Receiver::on_data`], so that the digest is folded while they are in cache.

use lunette_runtime_core::checksum::Crc32c;

use crate::pdu::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, Framing, HEADER_BYTES_MAX, Pdu, PduKind, Role, WireFault,
};

/// Whether data came through as they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Their digest fits, or none was agreed on.
    Intact,
    /// Their digest does not fit. The connection can go on; the command cannot (NVMe/TCP 1.0, "Data
    /// Digest").
    Corrupt {
        /// The digest that came with them.
        received: u32,
        /// The digest of what arrived.
        computed: u32,
    },
}

/// What comes next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A header. Its data, if any, come with the next steps.
    Pdu {
        /// The header.
        pdu: Pdu,
        /// Length of its data, in bytes.
        data_len_bytes: u32,
    },
    /// Some of its data, to be placed before the next step.
    Data {
        /// First byte within the PDU's data.
        offset_bytes: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The input is spent in the middle of data. Give more of it, or receive up to `len_bytes`
    /// elsewhere and call [`Receiver::on_data`].
    NeedData {
        /// First missing byte within the PDU's data.
        offset_bytes: u32,
        /// Bytes that are missing.
        len_bytes: u32,
    },
    /// All data of the PDU have come.
    DataEnd(
        /// Whether they may be used.
        Verdict,
    ),
    /// The input is spent outside data. Give more of it.
    NeedBytes,
}

#[derive(Clone, Copy, Debug)]
struct Headers {
    bytes: [u8; HEADER_BYTES_MAX + DIGEST_BYTES],
    filled: usize,
    /// Bytes of the last header that are there.
    known: usize,
}

#[derive(Debug)]
enum State {
    Header,
    /// Bytes between header and data.
    Pad {
        left: u8,
        data_len_bytes: u32,
    },
    Data {
        len_bytes: u32,
        arrived_bytes: u32,
    },
    Digest {
        filled: usize,
    },
    Failed(WireFault),
}

/// The receiving half of one end of a connection.
#[derive(Debug)]
pub struct Receiver {
    role: Role,
    framing: Framing,
    is_open: bool,
    headers: Headers,
    state: State,
    crc: Crc32c,
}

impl Receiver {
    /// The receiver of `role`, which waits for the peer's first PDU.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            framing: Framing::INITIAL,
            is_open: false,
            headers: Headers {
                bytes: [0; HEADER_BYTES_MAX + DIGEST_BYTES],
                filled: 0,
                known: 0,
            },
            state: State::Header,
            crc: Crc32c::new(),
        }
    }

    /// The connection has been set up: from here on PDUs are framed so, and the initial ones are
    /// no longer accepted.
    ///
    /// # Panics
    /// If it is open already, or in the middle of a PDU.
    pub fn open(&mut self, framing: Framing) {
        assert!(!self.is_open, "a connection is set up once");
        assert!(matches!(self.state, State::Header), "between two PDUs");
        assert_eq!(self.headers.filled, 0, "between two PDUs");
        self.framing = framing;
        self.is_open = true;
    }

    /// Takes from the front of `input` up to the next thing that its caller has to know.
    ///
    /// The steps do not depend on how the stream is cut, but for the number of [`Step::Data`]s.
    ///
    /// # Errors
    /// [`WireFault`], from then on for ever: say so to the peer and close.
    pub fn step<'i>(&mut self, input: &mut &'i [u8]) -> Result<Step<'i>, WireFault> {
        loop {
            match self.state {
                State::Failed(fault) => return Err(fault),
                State::Header => {
                    let Some((pdu, data_len_bytes)) = self.take_header(input)? else {
                        return Ok(Step::NeedBytes);
                    };
                    return Ok(Step::Pdu {
                        pdu,
                        data_len_bytes,
                    });
                }
                State::Pad {
                    left,
                    data_len_bytes,
                } => {
                    let skipped = take(input, usize::from(left)).len();
                    let left = left - u8::try_from(skipped).expect("a padding is short");
                    if left > 0 {
                        self.state = State::Pad {
                            left,
                            data_len_bytes,
                        };
                        return Ok(Step::NeedBytes);
                    }
                    self.state = State::Data {
                        len_bytes: data_len_bytes,
                        arrived_bytes: 0,
                    };
                }
                State::Data {
                    len_bytes,
                    arrived_bytes,
                } => return Ok(self.take_data(input, len_bytes, arrived_bytes)),
                State::Digest { filled } => {
                    return Ok(self.take_digest(input, filled));
                }
            }
        }
    }

    /// Tells of data that were received elsewhere after [`Step::NeedData`].
    ///
    /// # Panics
    /// If they are more than were missing: a bug of the caller, who chose how much to receive.
    pub fn on_data(&mut self, bytes: &[u8]) {
        self.on_folded(bytes.len(), |crc| crc.fold(bytes));
    }

    /// As [`on_data`](Self::on_data), of so many bytes that are in nobody's hands alone: `fold` folds them in,
    /// where there is a digest.
    ///
    /// # Panics
    /// As there.
    pub fn on_folded(&mut self, count: usize, fold: impl FnOnce(&mut Crc32c)) {
        let State::Data {
            len_bytes,
            arrived_bytes,
        } = self.state
        else {
            unreachable!("data outside data");
        };
        assert!(
            count <= (len_bytes - arrived_bytes) as usize,
            "no more than was missing"
        );
        self.arrive(count, fold, len_bytes, arrived_bytes);
    }

    /// Whether the stream may end here, as far as PDUs go.
    #[must_use]
    pub const fn is_between_pdus(&self) -> bool {
        matches!(self.state, State::Header) && self.headers.filled == 0
    }

    /// Makes every later step fail with `fault`, which another part of the connection found.
    pub fn fail(&mut self, fault: WireFault) {
        self.state = State::Failed(fault);
    }

    /// The header that was read last, as far as it was: what a terminate request quotes.
    #[must_use]
    pub fn last_header(&self) -> &[u8] {
        &self.headers.bytes[..self.headers.known]
    }

    fn take_header(&mut self, input: &mut &[u8]) -> Result<Option<(Pdu, u32)>, WireFault> {
        let at_once = self.headed_at_once(input);
        if !self.collect(input, at_once.unwrap_or(COMMON_HEADER_BYTES)) {
            return Ok(None);
        }
        self.headers.known = COMMON_HEADER_BYTES;
        let kind = match self.check_kind() {
            Ok(kind) => kind,
            Err(fault) => return Err(self.failed(fault)),
        };
        let headed_bytes = self.framing.headed_bytes(kind);
        if !self.collect(input, headed_bytes) {
            return Ok(None);
        }
        self.headers.filled = 0;
        self.headers.known = kind.header_bytes();
        let read = self
            .framing
            .read_header(kind, &self.headers.bytes[..headed_bytes]);
        match read {
            Err(fault) => Err(self.failed(fault)),
            Ok(headed) => {
                if headed.data_len_bytes > 0 {
                    self.state = State::Pad {
                        left: headed.pad_bytes,
                        data_len_bytes: headed.data_len_bytes,
                    };
                }
                Ok(Some((headed.pdu, headed.data_len_bytes)))
            }
        }
    }

    /// How much of `input` is a header, if it begins with one and has all of it: then it need not be
    /// collected in two pieces. Whether it is one to be expected is not looked at here.
    fn headed_at_once(&self, input: &[u8]) -> Option<usize> {
        let kind = PduKind::from_wire(*input.first()?)?;
        let headed_bytes = self.framing.headed_bytes(kind);
        (self.headers.filled == 0 && input.len() >= headed_bytes).then_some(headed_bytes)
    }

    /// Whether the first `len` bytes of a header are there.
    fn collect(&mut self, input: &mut &[u8], len: usize) -> bool {
        let Headers { bytes, filled, .. } = &mut self.headers;
        if *filled < len {
            let piece = take(input, len - *filled);
            bytes[*filled..*filled + piece.len()].copy_from_slice(piece);
            *filled += piece.len();
        }
        *filled >= len
    }

    /// Checks what has to be known before the rest of the header can be waited for.
    fn check_kind(&self) -> Result<PduKind, WireFault> {
        let [found, _flags, header_bytes, ..] = self.headers.bytes;
        let kind = PduKind::from_wire(found).ok_or(WireFault::UnknownKind { found })?;
        if kind.sender() == self.role || kind.is_initial() == self.is_open && !kind.is_term_req() {
            return Err(WireFault::Unexpected { kind });
        }
        if usize::from(header_bytes) != kind.header_bytes() {
            return Err(WireFault::BadField { kind, at: 2 });
        }
        Ok(kind)
    }

    fn take_data<'i>(
        &mut self,
        input: &mut &'i [u8],
        len_bytes: u32,
        offset_bytes: u32,
    ) -> Step<'i> {
        let missing_bytes = len_bytes - offset_bytes;
        let bytes = take(input, missing_bytes as usize);
        if bytes.is_empty() {
            return Step::NeedData {
                offset_bytes,
                len_bytes: missing_bytes,
            };
        }
        self.arrive(bytes.len(), |crc| crc.fold(bytes), len_bytes, offset_bytes);
        Step::Data {
            offset_bytes,
            bytes,
        }
    }

    fn arrive(
        &mut self,
        count: usize,
        fold: impl FnOnce(&mut Crc32c),
        len_bytes: u32,
        arrived_bytes: u32,
    ) {
        if self.framing.digests.data {
            if arrived_bytes == 0 {
                self.crc = Crc32c::new();
            }
            fold(&mut self.crc);
        }
        let count = u32::try_from(count).expect("no more than was missing");
        let arrived_bytes = arrived_bytes + count;
        self.state = if arrived_bytes < len_bytes {
            State::Data {
                len_bytes,
                arrived_bytes,
            }
        } else {
            State::Digest { filled: 0 }
        };
    }

    fn take_digest(&mut self, input: &mut &[u8], filled: usize) -> Step<'static> {
        if !self.framing.digests.data {
            self.state = State::Header;
            return Step::DataEnd(Verdict::Intact);
        }
        // Of the header nothing is needed any more but its quotable front.
        let kept = &mut self.headers.bytes[HEADER_BYTES_MAX..];
        let piece = take(input, DIGEST_BYTES - filled);
        kept[filled..filled + piece.len()].copy_from_slice(piece);
        let filled = filled + piece.len();
        if filled < DIGEST_BYTES {
            self.state = State::Digest { filled };
            return Step::NeedBytes;
        }
        let digest = kept.first_chunk().expect("4 bytes are kept for a digest");
        let (received, computed) = (u32::from_le_bytes(*digest), self.crc.value());
        self.state = State::Header;
        Step::DataEnd(if received == computed {
            Verdict::Intact
        } else {
            Verdict::Corrupt { received, computed }
        })
    }

    fn failed(&mut self, fault: WireFault) -> WireFault {
        self.state = State::Failed(fault);
        fault
    }
}

/// Up to `len` bytes from the front of `input`.
fn take<'i>(input: &mut &'i [u8], len: usize) -> &'i [u8] {
    let (head, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    head
}

#[cfg(test)]
mod tests;
