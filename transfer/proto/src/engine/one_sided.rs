//! What two engines tell each other before adapters move bytes between their memories.
//!
//! ```text
//!   adapters  nothing                                        -> count u16
//!   pair      connection u64, adapter u16, handshake message -> handshake message
//!             (telling, or not: an engine that hears no messages refuses the first, and is asked for the other)
//!   windows   segment u64                                    -> windows
//!
//!   windows   count u16, then per window: adapter u16, address u64, key u32
//! ```
//!
//! All fields are little-endian. A message of the handshake is between the adapters' own machines; an empty
//! answer says that nothing more is to be said. A window is good as long as its segment's id.
//!
//! Over a queue pair that tells, a message is a frame ([`message`](crate::message)): a notification, as it is asked for
//! over a stream ([`Operation::Notify`](super::message::Operation::Notify)), and its answer. One that follows writes of
//! the same queue pair arrives after them.

use lunette_runtime_core::codec::{Reader, Writer};

use super::message::{BodyFault, finish};
use super::segment::SegmentId;

/// Adapters of one engine.
pub const ADAPTERS_MAX: usize = 32;

/// Where an adapter of the owner's reaches a whole segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Which of the owner's adapters.
    pub adapter: u16,
    /// What its first byte is named by.
    pub address: u64,
    /// With which key.
    pub key: u32,
}

/// A step of the handshake of a connection between two adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing<'a> {
    /// What the asker calls the connection.
    pub connection: u64,
    /// Which of the other side's adapters.
    pub adapter: u16,
    /// What the asker's machine says.
    pub message: &'a [u8],
}

impl Pairing<'_> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u64(self.connection).u16(self.adapter);
        out.extend_from_slice(self.message);
    }
}

impl<'a> Pairing<'a> {
    /// Reads a whole body.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(body: &'a [u8]) -> Result<Self, BodyFault> {
        let mut reader = Reader::new(body);
        let (connection, adapter) = (reader.u64()?, reader.u16()?);
        let message = reader.rest();
        Ok(Self {
            connection,
            adapter,
            message,
        })
    }
}

/// Appends how many adapters there are.
///
/// # Panics
/// If there are more than [`ADAPTERS_MAX`].
pub fn write_adapters(out: &mut Vec<u8>, count: usize) {
    assert!(count <= ADAPTERS_MAX, "{count} adapters");
    Writer::new(out).u16(u16::try_from(count).expect("adapters are bounded"));
}

/// Reads what [`write_adapters`] wrote.
///
/// # Errors
/// [`BodyFault`].
pub fn read_adapters(body: &[u8]) -> Result<usize, BodyFault> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.u16()?);
    finish(&reader)?;
    if count > ADAPTERS_MAX {
        return Err(BodyFault::OutOfRange);
    }
    Ok(count)
}

/// Appends a segment's windows.
///
/// # Panics
/// If there are more than [`ADAPTERS_MAX`].
pub fn write_windows(out: &mut Vec<u8>, windows: &[Window]) {
    write_adapters(out, windows.len());
    let mut writer = Writer::new(out);
    for window in windows {
        writer.u16(window.adapter).u64(window.address);
        writer.u32(window.key);
    }
}

/// Reads what [`write_windows`] wrote.
///
/// # Errors
/// [`BodyFault`].
pub fn read_windows(body: &[u8]) -> Result<Vec<Window>, BodyFault> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.u16()?);
    if count > ADAPTERS_MAX {
        return Err(BodyFault::OutOfRange);
    }
    let mut windows = Vec::with_capacity(count);
    for _ in 0..count {
        windows.push(Window {
            adapter: reader.u16()?,
            address: reader.u64()?,
            key: reader.u32()?,
        });
    }
    finish(&reader)?;
    Ok(windows)
}

/// Appends which segment's windows are asked for.
pub fn write_segment(out: &mut Vec<u8>, segment: SegmentId) {
    Writer::new(out).u64(segment.to_wire());
}

/// Reads what [`write_segment`] wrote.
///
/// # Errors
/// [`BodyFault`].
pub fn read_segment(body: &[u8]) -> Result<SegmentId, BodyFault> {
    let mut reader = Reader::new(body);
    let segment = SegmentId::from_wire(reader.u64()?);
    finish(&reader)?;
    Ok(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_shorter_or_longer_is() {
        let window = |adapter| Window {
            adapter,
            address: u64::MAX - 7,
            key: 0x0102_0304,
        };
        let windows: Vec<Window> = (0..32).map(window).collect();
        for count in [0, 1, ADAPTERS_MAX] {
            let mut body = Vec::new();
            write_windows(&mut body, &windows[..count]);
            assert_eq!(read_windows(&body).as_deref(), Ok(&windows[..count]));
            for len in 0..body.len() {
                assert!(read_windows(&body[..len]).is_err(), "{count} {len}");
            }
            body.push(0);
            assert_eq!(read_windows(&body), Err(BodyFault::Trailing(1)));
        }
        assert_eq!(read_windows(&[33, 0]), Err(BodyFault::OutOfRange));
        assert_eq!(read_adapters(&[33, 0]), Err(BodyFault::OutOfRange));
        assert_eq!(read_adapters(&[32, 0]), Ok(32));
        let pairing = Pairing {
            connection: 1 << 40,
            adapter: 3,
            message: b"offer",
        };
        let mut body = Vec::new();
        pairing.encode(&mut body);
        assert_eq!(Pairing::decode(&body), Ok(pairing));
        assert!(Pairing::decode(&body[..9]).is_err());
        let segment = SegmentId::from_wire(0x1_0000_0002);
        let mut body = Vec::new();
        write_segment(&mut body, segment);
        assert_eq!(read_segment(&body), Ok(segment));
    }
}
