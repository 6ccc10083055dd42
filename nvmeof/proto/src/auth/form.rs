//! The form in which people pass keys on: `PREFIX:NN:BASE64:`, of bytes and their CRC-32 (NVMe Base 2.0,
//! "Secret Representation"; NVMe/TCP 1.0, "PSK Interchange Format").

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use zeroize::Zeroizing;

const CRC_BYTES: usize = 4;

/// A key in writing.
pub(super) struct Written<'a> {
    /// Two digits, which name a hash.
    pub(super) hash: &'a str,
    digits: &'a str,
}

/// What was written: bytes, and their checksum behind them.
pub(super) struct Decoded(Zeroizing<Vec<u8>>);

impl<'a> Written<'a> {
    /// Takes one apart, if it has the form. Blanks around it do not matter.
    pub(super) fn new(text: &'a str, prefix: &str) -> Option<Self> {
        let rest = text.trim().strip_prefix(prefix)?;
        let (hash, rest) = rest.split_once(':')?;
        let digits = rest.strip_suffix(':')?;
        Some(Self { hash, digits })
    }

    /// `None`, if its digits are none.
    pub(super) fn decode(&self) -> Option<Decoded> {
        let decoded = STANDARD.decode(self.digits).ok()?;
        Some(Decoded(Zeroizing::new(decoded)))
    }
}

impl Decoded {
    /// The bytes, and whether the checksum is theirs; `None`, if there is none.
    pub(super) fn checked(&self) -> Option<(&[u8], bool)> {
        let (bytes, checksum) = self.0.split_last_chunk::<CRC_BYTES>()?;
        Some((bytes, u32::from_le_bytes(*checksum) == crc32(bytes)))
    }
}

/// Writes a key down.
pub(super) fn write(prefix: &str, hash: u8, bytes: &[u8]) -> Zeroizing<String> {
    let mut all = Zeroizing::new(Vec::with_capacity(bytes.len() + CRC_BYTES));
    all.extend_from_slice(bytes);
    all.extend_from_slice(&crc32(bytes).to_le_bytes());
    let digits = Zeroizing::new(STANDARD.encode(&*all));
    Zeroizing::new(format!("{prefix}{hash:02}:{}:", &*digits))
}

fn crc32(bytes: &[u8]) -> u32 {
    let value = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(value).expect("32 bits")
}
