//! A gather list: control bytes and regions, sent in one operation.

use std::any::Any;
use std::fmt;

use super::empty_header;
use crate::arena::{Exposed, Region};

/// Most parts of one message (the system's limit of a gather list is 1,024).
pub const MESSAGE_PARTS_MAX: usize = 512;

/// A part that fits into so many bytes together with the control bytes before it is copied to them: one
/// piece is sent sooner than two, by more than such a copy takes.
const COPIED_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug)]
enum Part {
    /// A range of the control buffer.
    Control { start: usize, len: usize },
    /// Shared memory, pinned until the message is cleared.
    Payload(Region),
    /// Memory that anybody may write, kept until the message is cleared.
    Exposed(Exposed),
    /// As `Payload`, with what the sender's owner keeps until then.
    Pinned { region: Region, _pin: Pin },
}

/// Dropped when the bytes that it goes with have been sent, or will never be: the way in which an
/// owner learns that its memory is free again.
pub struct Pin(Box<dyn Any>);

impl Pin {
    /// A pin that drops `guard` when it is dropped.
    #[must_use]
    pub fn new(guard: impl Any) -> Self {
        Self(Box::new(guard))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({:p})", self.0)
    }
}

/// Bytes to send, in order: control bytes, which are copied in, and regions, which are not.
///
/// It is boxed when it is lent, because the system reads its header until the completion.
pub struct Message {
    control: Vec<u8>,
    parts: Vec<Part>,
    /// Kept for parts that have no place for a pin.
    pins: Vec<Pin>,
    len: usize,
    sent: usize,
    iov: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Message {
    /// An empty message.
    #[must_use]
    pub fn new() -> Box<Self> {
        Box::new(Self {
            control: Vec::new(),
            parts: Vec::new(),
            pins: Vec::new(),
            len: 0,
            sent: 0,
            iov: Vec::new(),
            header: empty_header(),
        })
    }

    /// Bytes that are still to be sent.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len - self.sent
    }

    /// Whether nothing is left to be sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether so many parts more fit. If not: send and clear first.
    #[must_use]
    pub const fn has_room_for(&self, parts: usize) -> bool {
        self.parts.len() + parts <= MESSAGE_PARTS_MAX
    }

    /// Appends control bytes: `write` appends them to the buffer that it is given.
    ///
    /// # Panics
    /// If the message is full.
    pub fn control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.control.len();
        write(&mut self.control);
        let added = self
            .control
            .len()
            .checked_sub(start)
            .expect("control bytes are appended");
        if added == 0 {
            return;
        }
        self.len += added;
        if let Some(Part::Control { start: first, len }) = self.parts.last_mut()
            && *first + *len == start
        {
            *len += added;
            return;
        }
        self.push(Part::Control { start, len: added });
    }

    /// Appends a region, pinned until [`Message::clear`] unless it is so short that it is copied.
    ///
    /// # Panics
    /// If the message is full.
    pub fn payload(&mut self, region: Region) {
        if self.is_to_be_copied(region.len()) {
            self.control(|out| out.extend_from_slice(region.as_slice()));
        } else if !region.is_empty() {
            self.len += region.len();
            self.push(Part::Payload(region));
        }
    }

    /// Appends a region as [`Message::payload`] does, and keeps `pin` as long as the region.
    ///
    /// # Panics
    /// If the message is full.
    pub fn payload_pinned(&mut self, region: Region, pin: Pin) {
        if !region.is_empty() {
            self.len += region.len();
            self.push(Part::Pinned { region, _pin: pin });
        }
    }

    /// Appends exposed memory, kept until [`Message::clear`]. What is sent is what lies there when the
    /// system reads it, or now if it is so short that it is copied.
    ///
    /// # Panics
    /// If the message is full.
    pub fn exposed(&mut self, memory: Exposed) {
        if self.is_to_be_copied(memory.len()) {
            self.control(|out| {
                let start = out.len();
                out.resize(start + memory.len(), 0);
                memory.copy_out(0, &mut out[start..]);
            });
        } else if !memory.is_empty() {
            self.len += memory.len();
            self.push(Part::Exposed(memory));
        }
    }

    /// Whether a part of `len` bytes goes to the control bytes, if those are all that there is so far.
    fn is_to_be_copied(&self, len: usize) -> bool {
        matches!(self.parts[..], [Part::Control { .. }])
            && self.control.len() + len <= COPIED_BYTES_MAX
    }

    /// Keeps `pin` until [`Message::clear`].
    pub fn pin(&mut self, pin: Pin) {
        self.pins.push(pin);
    }

    /// Appends the bytes that are still to be sent to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut skip = self.sent;
        for part in &self.parts {
            let len = match part {
                Part::Control { len, .. } => *len,
                Part::Payload(region) | Part::Pinned { region, .. } => region.len(),
                Part::Exposed(memory) => memory.len(),
            };
            let skipped = skip.min(len);
            skip -= skipped;
            match part {
                Part::Control { start, .. } => {
                    out.extend_from_slice(&self.control[start + skipped..start + len]);
                }
                Part::Payload(region) | Part::Pinned { region, .. } => {
                    out.extend_from_slice(&region.as_slice()[skipped..]);
                }
                Part::Exposed(memory) => {
                    let start = out.len();
                    out.resize(start + len - skipped, 0);
                    memory.copy_out(skipped, &mut out[start..]);
                }
            }
        }
    }

    /// Empties the message, unpins its regions and keeps its buffers.
    pub fn clear(&mut self) {
        self.control.clear();
        self.parts.clear();
        self.pins.clear();
        self.iov.clear();
        self.len = 0;
        self.sent = 0;
    }

    fn push(&mut self, part: Part) {
        assert!(
            self.parts.len() < MESSAGE_PARTS_MAX,
            "a message is sent before it is full"
        );
        self.parts.push(part);
    }

    /// Records that the next `count` bytes have been sent.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "no more is sent than was lent");
        self.sent += count;
    }

    /// The system's view of what is left. Valid until the message is changed or moved out of its
    /// box.
    pub(crate) fn header(&mut self) -> *const libc::msghdr {
        self.list();
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len();
        &raw const self.header
    }

    /// What is left, if it is one part. Valid until the message is changed.
    pub(crate) fn only_part(&mut self) -> Option<(*const u8, u32)> {
        let [Part::Control { start, len }] = self.parts[..] else {
            return None;
        };
        let left = &self.control[start..start + len][self.sent..];
        Some((left.as_ptr(), u32::try_from(left.len()).ok()?))
    }

    /// The parts of what is left: the list's address and length. Valid until the message is
    /// changed.
    pub(crate) fn list(&mut self) -> (*const libc::iovec, usize) {
        self.iov.clear();
        let mut skip = self.sent;
        for part in &self.parts {
            let (address, len) = match part {
                Part::Control { start, len } => (self.control[*start..].as_ptr(), *len),
                Part::Payload(region) | Part::Pinned { region, .. } => {
                    (region.as_slice().as_ptr(), region.len())
                }
                Part::Exposed(memory) => (memory.address().as_ptr().cast_const(), memory.len()),
            };
            let skipped = skip.min(len);
            skip -= skipped;
            if skipped < len {
                self.iov.push(libc::iovec {
                    iov_base: address.wrapping_add(skipped).cast_mut().cast(),
                    iov_len: len - skipped,
                });
            }
        }
        (self.iov.as_ptr(), self.iov.len())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("parts", &self.parts.len())
            .field("len", &self.len)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, ArenaOptions};

    /// What the system would read, gathered.
    fn gathered(message: &mut Message) -> Vec<u8> {
        message.header();
        let mut out = Vec::new();
        for iov in &message.iov {
            // SAFETY: the message made this entry from a live slice just now, and nothing has
            // changed it since. Ends with the copy.
            let bytes =
                unsafe { std::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len) };
            out.extend_from_slice(bytes);
        }
        out
    }

    #[test]
    fn parts_are_sent_in_order_from_any_point() {
        let arena = Arena::new(ArenaOptions::default());
        let long = vec![b'p'; COPIED_BYTES_MAX];
        let mut region = arena.alloc(long.len()).expect("room");
        region.as_mut_slice().copy_from_slice(&long);
        let mut message = Message::new();
        message.control(|out| out.extend_from_slice(b"ab"));
        message.control(|out| out.extend_from_slice(b"cd"));
        message.payload(region.freeze());
        message.control(|out| out.extend_from_slice(b"ef"));
        assert_eq!(
            message.parts.len(),
            3,
            "neighbouring control bytes are one part"
        );
        assert_eq!(message.only_part(), None);
        let whole = [b"abcd", &long[..], b"ef"].concat();
        for step in [1, 2, 1, 1, long.len() - 2, 1, 1, 1] {
            message.advance(step);
            let sent = whole.len() - message.len();
            assert_eq!(gathered(&mut message), &whole[sent..]);
            let mut appended = vec![1];
            message.append_to(&mut appended);
            assert_eq!(appended[1..], whole[sent..]);
        }
        assert!(message.is_empty());
    }

    /// The bytes of the only part.
    fn alone(message: &mut Message) -> Option<Vec<u8>> {
        let (address, len) = message.only_part()?;
        // SAFETY: the message named a part of its own control bytes just now, and nothing has changed
        // them since. Ends with the copy.
        let bytes = unsafe { std::slice::from_raw_parts(address, len as usize) };
        Some(bytes.to_vec())
    }

    #[test]
    fn what_is_short_goes_with_the_control_bytes_up_to_the_bound() {
        let arena = Arena::new(ArenaOptions::default());
        let region = |len: usize| {
            let mut region = arena.alloc(len).expect("room");
            region.as_mut_slice().fill(b'x');
            region
        };
        let mut message = Message::new();
        message.control(|out| out.push(b'a'));
        message.exposed(region(100).expose());
        message.payload(region(COPIED_BYTES_MAX - 101).freeze());
        assert_eq!(arena.used_bytes(), 0, "the copy is all that is kept");
        let mut whole = vec![b'x'; COPIED_BYTES_MAX];
        whole[0] = b'a';
        for sent in 0..3 {
            assert_eq!(alone(&mut message).as_deref(), Some(&whole[sent..]));
            message.advance(1);
        }
        message.payload(region(1).freeze());
        assert_eq!(alone(&mut message), None, "one byte more is a part");
        message.clear();
        message.payload(region(1).freeze());
        assert_eq!(alone(&mut message), None, "nothing goes before it");
    }

    #[test]
    fn clearing_unpins() {
        let arena = Arena::new(ArenaOptions::default());
        let mut message = Message::new();
        message.payload(arena.alloc(4).expect("room").freeze());
        assert!(arena.used_bytes() > 0);
        message.clear();
        assert_eq!(arena.used_bytes(), 0);
        assert!(message.is_empty());
    }

    #[test]
    fn fullness_is_announced_before_it_bites() {
        let arena = Arena::new(ArenaOptions::default());
        let region = arena.alloc(1).expect("room").freeze();
        let mut message = Message::new();
        while message.has_room_for(2) {
            message.payload(region.clone());
        }
        message.payload(region);
        assert!(!message.has_room_for(1));
    }
}
