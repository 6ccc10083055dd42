//! PDUs: their headers, from and to bytes.
//!
//! ```text
//!  offset 0      1      2      3      4                8              hlen        pdo
//!        +------+------+------+------+----------------+---------------+-----+-----+------+-----+
//!        | type |flags | hlen | pdo  |      plen      | specific part |hdgst| pad | data |ddgst|
//!        +------+------+------+------+----------------+---------------+-----+-----+------+-----+
//!         \____________ common header _______________/
//! ```
//!
//! All fields are little-endian. `hdgst` and `ddgst` are CRC32C and there only where both sides
//! agreed on them; those that set the connection up or end it never have them. Source: NVMe/TCP
//! 1.0, "PDU Definitions".

mod fault;

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated};

pub use fault::WireFault;

use crate::command::{COMMAND_BYTES, Command};
use crate::completion::{COMPLETION_BYTES, Completion};

/// Length of the part that every header begins with, in bytes.
pub const COMMON_HEADER_BYTES: usize = 8;
/// Longest header, in bytes; with a digest and what pads it none is longer either.
pub const HEADER_BYTES_MAX: usize = 128;
/// Length of a digest, in bytes.
pub const DIGEST_BYTES: usize = 4;
/// Largest alignment of data that a side may ask for, as the wire has it: dwords less one.
pub const ALIGN_DWORDS_MAX: u8 = 31;
/// The smallest limit of data in one PDU that a controller may announce, in bytes.
pub const H2C_DATA_BYTES_MIN: u32 = 4096;

const _: () = assert!(HEADER_BYTES_MAX == (ALIGN_DWORDS_MAX as usize + 1) * 4);

const HEADER_DIGEST_FLAG: u8 = 1 << 0;
const DATA_DIGEST_FLAG: u8 = 1 << 1;
const LAST_FLAG: u8 = 1 << 2;
const SUCCESS_FLAG: u8 = 1 << 3;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Sends commands.
    Host,
    /// Carries them out.
    Controller,
}

/// The type of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PduKind {
    /// The host's first.
    IcReq,
    /// The controller's answer to it.
    IcResp,
    /// The host ends the connection.
    H2cTermReq,
    /// The controller ends the connection.
    C2hTermReq,
    /// A command, possibly with data.
    CapsuleCmd,
    /// A completion.
    CapsuleResp,
    /// Data that the controller has asked for.
    H2cData,
    /// Data that a command has asked for.
    C2hData,
    /// The controller is ready to receive data of a command.
    R2t,
}

impl PduKind {
    /// Every kind, in the order of its wire value.
    pub const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// The value on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::IcReq => 0,
            Self::IcResp => 1,
            Self::H2cTermReq => 2,
            Self::C2hTermReq => 3,
            Self::CapsuleCmd => 4,
            Self::CapsuleResp => 5,
            Self::H2cData => 6,
            Self::C2hData => 7,
            Self::R2t => 9,
        }
    }

    /// The kind that the wire names `found`.
    #[must_use]
    pub const fn from_wire(found: u8) -> Option<Self> {
        Some(match found {
            0 => Self::IcReq,
            1 => Self::IcResp,
            2 => Self::H2cTermReq,
            3 => Self::C2hTermReq,
            4 => Self::CapsuleCmd,
            5 => Self::CapsuleResp,
            6 => Self::H2cData,
            7 => Self::C2hData,
            9 => Self::R2t,
            _ => return None,
        })
    }

    /// Length of the header, in bytes: fixed for each kind.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => HEADER_BYTES_MAX,
            Self::CapsuleCmd => COMMON_HEADER_BYTES + COMMAND_BYTES,
            Self::CapsuleResp => COMMON_HEADER_BYTES + COMPLETION_BYTES,
            Self::H2cTermReq | Self::C2hTermReq | Self::H2cData | Self::C2hData | Self::R2t => 24,
        }
    }

    /// Who sends it.
    #[must_use]
    pub const fn sender(self) -> Role {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => Role::Host,
            Self::IcResp | Self::C2hTermReq | Self::CapsuleResp | Self::C2hData | Self::R2t => {
                Role::Controller
            }
        }
    }

    /// Whether it sets the connection up.
    #[must_use]
    pub const fn is_initial(self) -> bool {
        matches!(self, Self::IcReq | Self::IcResp)
    }

    /// Whether it ends the connection.
    #[must_use]
    pub const fn is_term_req(self) -> bool {
        matches!(self, Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether digests go with it where they were agreed on.
    const fn has_digests(self) -> bool {
        !self.is_initial() && !self.is_term_req()
    }

    /// Whether data may go with it, and whether it must.
    const fn data(self) -> (bool, bool) {
        match self {
            Self::H2cData | Self::C2hData => (true, true),
            Self::CapsuleCmd => (true, false),
            _ => (false, false),
        }
    }
}

/// Which digests PDUs carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digests {
    /// CRC32C of each header.
    pub header: bool,
    /// CRC32C of each PDU's data.
    pub data: bool,
}

impl Digests {
    /// None at all.
    pub const NONE: Self = Self {
        header: false,
        data: false,
    };
    /// Both.
    pub const BOTH: Self = Self {
        header: true,
        data: true,
    };

    /// Those that both sides have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            header: self.header && other.header,
            data: self.data && other.data,
        }
    }

    fn to_wire(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    const fn from_wire(found: u8) -> Self {
        Self {
            header: found & 1 != 0,
            data: found & 2 != 0,
        }
    }
}

/// The host's first PDU (NVMe/TCP 1.0, "Initialize Connection Request PDU").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// Format of the PDUs; 0 is the only one.
    pub version: u16,
    /// Alignment of data that is sent to the host: dwords less one, at most [`ALIGN_DWORDS_MAX`].
    pub align_dwords: u8,
    /// Digests that the host wants.
    pub digests: Digests,
    /// R2Ts of one command that the host accepts at a time, less one.
    pub r2t_max: u32,
}

/// The controller's first PDU (NVMe/TCP 1.0, "Initialize Connection Response PDU").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// Format of the PDUs; 0 is the only one.
    pub version: u16,
    /// Alignment of data that is sent to the controller: dwords less one.
    pub align_dwords: u8,
    /// Digests that both use from here on.
    pub digests: Digests,
    /// Most data in one H2CData PDU, in bytes.
    pub h2c_data_bytes_max: u32,
}

/// Why a side ends the connection (NVMe/TCP 1.0, "Terminate Connection Request PDU").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// Fatal error status.
    pub status: u16,
    /// What goes with it: the place of a field, or a digest.
    pub information: u32,
}

/// Where the data of a PDU belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The command that they belong to.
    pub cid: u16,
    /// The R2T that asked for them; 0 for data to the host.
    pub ttag: u16,
    /// First byte within the command's data.
    pub offset_bytes: u32,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Nothing more comes: of this R2T to the controller, of the command to the host.
    pub is_last: bool,
    /// The command has succeeded, and no completion follows. Only to the host.
    pub is_success: bool,
}

/// The controller asks for data of a command (NVMe/TCP 1.0, "Ready to Transfer PDU").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// The command.
    pub cid: u16,
    /// The tag that the data are to carry.
    pub ttag: u16,
    /// First byte within the command's data.
    pub offset_bytes: u32,
    /// Length in bytes.
    pub len_bytes: u32,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// See [`IcReq`].
    IcReq(IcReq),
    /// See [`IcResp`].
    IcResp(IcResp),
    /// Sent by the host.
    H2cTermReq(TermReq),
    /// Sent by the controller.
    C2hTermReq(TermReq),
    /// A command.
    Command(Command),
    /// A completion.
    Response(Completion),
    /// Data to the controller.
    H2cData(DataHeader),
    /// Data to the host.
    C2hData(DataHeader),
    /// See [`R2t`].
    R2t(R2t),
}

impl Pdu {
    /// Its type.
    #[must_use]
    pub const fn kind(&self) -> PduKind {
        match self {
            Self::IcReq(_) => PduKind::IcReq,
            Self::IcResp(_) => PduKind::IcResp,
            Self::H2cTermReq(_) => PduKind::H2cTermReq,
            Self::C2hTermReq(_) => PduKind::C2hTermReq,
            Self::Command(_) => PduKind::CapsuleCmd,
            Self::Response(_) => PduKind::CapsuleResp,
            Self::H2cData(_) => PduKind::H2cData,
            Self::C2hData(_) => PduKind::C2hData,
            Self::R2t(_) => PduKind::R2t,
        }
    }

    fn flags(&self) -> u8 {
        match self {
            Self::H2cData(data) | Self::C2hData(data) => {
                (u8::from(data.is_last) * LAST_FLAG) | (u8::from(data.is_success) * SUCCESS_FLAG)
            }
            _ => 0,
        }
    }

    /// Writes the part behind the common header to where it belongs in a header of zeroes.
    fn write_specific(&self, header: &mut [u8; HEADER_BYTES_MAX]) {
        match self {
            Self::IcReq(request) => {
                header[8..10].copy_from_slice(&request.version.to_le_bytes());
                (header[10], header[11]) = (request.align_dwords, request.digests.to_wire());
                header[12..16].copy_from_slice(&request.r2t_max.to_le_bytes());
            }
            Self::IcResp(response) => {
                header[8..10].copy_from_slice(&response.version.to_le_bytes());
                (header[10], header[11]) = (response.align_dwords, response.digests.to_wire());
                header[12..16].copy_from_slice(&response.h2c_data_bytes_max.to_le_bytes());
            }
            Self::H2cTermReq(request) | Self::C2hTermReq(request) => {
                header[8..10].copy_from_slice(&request.status.to_le_bytes());
                header[10..14].copy_from_slice(&request.information.to_le_bytes());
            }
            Self::Command(command) => header[8..72].copy_from_slice(&command.encode()),
            Self::Response(completion) => header[8..24].copy_from_slice(&completion.encode()),
            Self::H2cData(DataHeader {
                cid,
                ttag,
                offset_bytes,
                len_bytes,
                ..
            })
            | Self::C2hData(DataHeader {
                cid,
                ttag,
                offset_bytes,
                len_bytes,
                ..
            })
            | Self::R2t(R2t {
                cid,
                ttag,
                offset_bytes,
                len_bytes,
            }) => {
                header[8..10].copy_from_slice(&cid.to_le_bytes());
                header[10..12].copy_from_slice(&ttag.to_le_bytes());
                header[12..16].copy_from_slice(&offset_bytes.to_le_bytes());
                header[16..20].copy_from_slice(&len_bytes.to_le_bytes());
            }
        }
    }

    /// Reads the part behind the common header.
    fn read_specific(kind: PduKind, flags: u8, bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        Ok(match kind {
            PduKind::IcReq => Self::IcReq(IcReq {
                version: reader.u16()?,
                align_dwords: reader.u8()?,
                digests: Digests::from_wire(reader.u8()?),
                r2t_max: reader.u32()?,
            }),
            PduKind::IcResp => Self::IcResp(IcResp {
                version: reader.u16()?,
                align_dwords: reader.u8()?,
                digests: Digests::from_wire(reader.u8()?),
                h2c_data_bytes_max: reader.u32()?,
            }),
            PduKind::H2cTermReq => Self::H2cTermReq(read_term_req(&mut reader)?),
            PduKind::C2hTermReq => Self::C2hTermReq(read_term_req(&mut reader)?),
            PduKind::CapsuleCmd => Self::Command(Command::decode(&reader.array()?)),
            PduKind::CapsuleResp => Self::Response(Completion::decode(&reader.array()?)),
            PduKind::H2cData => Self::H2cData(read_data(&mut reader, flags)?),
            PduKind::C2hData => Self::C2hData(read_data(&mut reader, flags)?),
            PduKind::R2t => Self::R2t(R2t {
                cid: reader.u16()?,
                ttag: reader.u16()?,
                offset_bytes: reader.u32()?,
                len_bytes: reader.u32()?,
            }),
        })
    }
}

fn read_term_req(reader: &mut Reader<'_>) -> Result<TermReq, Truncated> {
    Ok(TermReq {
        status: reader.u16()?,
        information: reader.u32()?,
    })
}

fn read_data(reader: &mut Reader<'_>, flags: u8) -> Result<DataHeader, Truncated> {
    Ok(DataHeader {
        cid: reader.u16()?,
        ttag: reader.u16()?,
        offset_bytes: reader.u32()?,
        len_bytes: reader.u32()?,
        is_last: flags & LAST_FLAG != 0,
        is_success: flags & SUCCESS_FLAG != 0,
    })
}

/// How one direction of a connection is framed: agreed on by the first PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Digests in use.
    pub digests: Digests,
    /// Alignment of data within a PDU, in dwords less one.
    pub align_dwords: u8,
}

impl Framing {
    /// Before anything has been agreed on.
    pub const INITIAL: Self = Self {
        digests: Digests::NONE,
        align_dwords: 0,
    };

    /// Appends a header, its digest and what pads it, for `data_len_bytes` of data that the caller
    /// sends behind it, followed by [`Framing::append_data_digest`].
    ///
    /// # Panics
    /// If the kind takes no data and is given some, or the PDU's length exceeds 32 bits.
    pub fn append_header(&self, out: &mut Vec<u8>, pdu: &Pdu, data_len_bytes: u32) {
        let kind = pdu.kind();
        let (may_have_data, must_have_data) = kind.data();
        assert!(
            data_len_bytes == 0 && !must_have_data || data_len_bytes > 0 && may_have_data,
            "{data_len_bytes} bytes of data with a {kind:?}"
        );
        let header_bytes = kind.header_bytes();
        let has_header_digest = self.digests.header && kind.has_digests();
        let has_data_digest = self.digests.data && data_len_bytes > 0;
        let headed_bytes = header_bytes + usize::from(has_header_digest) * DIGEST_BYTES;
        let (data_offset, before_data_bytes) = if data_len_bytes > 0 {
            let align_bytes = (usize::from(self.align_dwords) + 1) * 4;
            let offset = headed_bytes.next_multiple_of(align_bytes);
            (offset, offset)
        } else {
            (0, headed_bytes)
        };
        let digest_bytes = usize::from(has_data_digest) * DIGEST_BYTES;
        let around_bytes = u32_of(before_data_bytes + digest_bytes);
        let len_bytes = around_bytes
            .checked_add(data_len_bytes)
            .expect("a PDU's length fits 32 bits");
        let mut header = [0; HEADER_BYTES_MAX];
        header[0] = kind.to_wire();
        header[1] = pdu.flags() | self.digest_flags(kind, data_len_bytes > 0);
        (header[2], header[3]) = (u8_of(header_bytes), u8_of(data_offset));
        header[4..8].copy_from_slice(&len_bytes.to_le_bytes());
        pdu.write_specific(&mut header);
        if has_header_digest {
            let digest = crc32c(&header[..header_bytes]);
            header[header_bytes..headed_bytes].copy_from_slice(&digest.to_le_bytes());
        }
        out.extend_from_slice(&header[..before_data_bytes]);
    }

    /// Appends the digest of a PDU's data, if digests of data are in use. `crc32c` is called only
    /// then.
    pub fn append_data_digest(&self, out: &mut Vec<u8>, crc32c: impl FnOnce() -> u32) {
        if self.digests.data {
            out.extend_from_slice(&crc32c().to_le_bytes());
        }
    }

    /// Length of the header of `kind` with its digest, in bytes.
    pub(crate) fn headed_bytes(&self, kind: PduKind) -> usize {
        let has_digest = self.digests.header && kind.has_digests();
        kind.header_bytes() + usize::from(has_digest) * DIGEST_BYTES
    }

    /// Reads a header with its digest. `bytes` are as many as [`Framing::headed_bytes`] says.
    ///
    /// The digest comes first: no other field is believed before (NVMe/TCP 1.0, "Header Digest").
    pub(crate) fn read_header(&self, kind: PduKind, bytes: &[u8]) -> Result<Headed, WireFault> {
        let (header, digest) = bytes.split_at(kind.header_bytes());
        if let Some(received) = digest.first_chunk() {
            let (received, computed) = (u32::from_le_bytes(*received), crc32c(header));
            if received != computed {
                return Err(WireFault::HeaderDigest { received, computed });
            }
        }
        let bad = |at| WireFault::BadField { kind, at };
        let mut reader = Reader::new(header);
        let common = (|| Ok((reader.u16()?, reader.u8()?, reader.u8()?, reader.u32()?)))();
        let (kind_and_flags, _header_bytes, data_offset, len_bytes) =
            common.map_err(|_: Truncated| bad(2))?;
        let flags = u8_of(usize::from(kind_and_flags >> 8));
        let (data_len_bytes, pad_bytes) = self.data_len(kind, data_offset, len_bytes)?;
        // Other bits are reserved, and left to later versions.
        let digest_flags = flags & (HEADER_DIGEST_FLAG | DATA_DIGEST_FLAG);
        if digest_flags != self.digest_flags(kind, data_len_bytes > 0) {
            return Err(bad(1));
        }
        let pdu = Pdu::read_specific(kind, flags, reader.rest()).map_err(|_| bad(2))?;
        check_specific(&pdu, data_len_bytes)?;
        Ok(Headed {
            pdu,
            data_len_bytes,
            pad_bytes,
        })
    }

    /// Length of the data and of the padding before it, in bytes.
    fn data_len(
        &self,
        kind: PduKind,
        data_offset: u8,
        len_bytes: u32,
    ) -> Result<(u32, u8), WireFault> {
        let bad_length = WireFault::BadField { kind, at: 4 };
        let headed_bytes = u32_of(self.headed_bytes(kind));
        if kind.is_term_req() {
            // What follows is a copy of the header that it is about.
            let most = headed_bytes + u32_of(HEADER_BYTES_MAX);
            let fits = (headed_bytes..=most).contains(&len_bytes);
            return fits.then_some((0, 0)).ok_or(bad_length);
        }
        let (may_have_data, must_have_data) = kind.data();
        if len_bytes == headed_bytes && !must_have_data {
            return Ok((0, 0));
        }
        if !may_have_data || len_bytes < headed_bytes {
            return Err(bad_length);
        }
        // Both sides of ours ask for no alignment beyond that of the wire.
        let offset = u32::from(data_offset);
        if offset < headed_bytes || !offset.is_multiple_of(4) {
            return Err(WireFault::BadField { kind, at: 3 });
        }
        let digest_bytes = u32::from(self.digests.data) * u32_of(DIGEST_BYTES);
        let data_len_bytes = len_bytes
            .checked_sub(offset + digest_bytes)
            .filter(|&len| len > 0)
            .ok_or(bad_length)?;
        Ok((
            data_len_bytes,
            u8_of(usize::try_from(offset - headed_bytes).expect("a padding is short")),
        ))
    }

    fn digest_flags(&self, kind: PduKind, has_data: bool) -> u8 {
        let header = self.digests.header && kind.has_digests();
        let data = self.digests.data && has_data;
        (u8::from(header) * HEADER_DIGEST_FLAG) | (u8::from(data) * DATA_DIGEST_FLAG)
    }
}

/// Checks what needs nothing but the header.
fn check_specific(pdu: &Pdu, data_len_bytes: u32) -> Result<(), WireFault> {
    let kind = pdu.kind();
    let bad = |at| Err(WireFault::BadField { kind, at });
    match pdu {
        Pdu::IcReq(IcReq { align_dwords, .. }) | Pdu::IcResp(IcResp { align_dwords, .. })
            if *align_dwords > ALIGN_DWORDS_MAX =>
        {
            bad(10)
        }
        Pdu::IcResp(response) if response.h2c_data_bytes_max < H2C_DATA_BYTES_MIN => bad(12),
        Pdu::H2cData(data) | Pdu::C2hData(data) if data.len_bytes != data_len_bytes => bad(16),
        Pdu::C2hData(data) if data.is_success && !data.is_last => bad(1),
        Pdu::R2t(r2t) if r2t.len_bytes == 0 => bad(16),
        _ => Ok(()),
    }
}

/// A header that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headed {
    pub(crate) pdu: Pdu,
    pub(crate) data_len_bytes: u32,
    pub(crate) pad_bytes: u8,
}

fn u32_of(len_bytes: usize) -> u32 {
    u32::try_from(len_bytes).expect("what surrounds data is short")
}

fn u8_of(value: usize) -> u8 {
    u8::try_from(value).expect("offsets in a header are short")
}

#[cfg(test)]
mod tests;
