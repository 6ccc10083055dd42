//! What Identify returns: pages of 4,096 bytes.

use crate::command::{Command, admin};
use crate::nqn::{NQN_FIELD_BYTES, Nqn, NqnFault};

/// Length of every page, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Most namespaces in one list.
pub const LIST_MAX: usize = PAGE_BYTES / 4;
/// The namespace id that stands for all.
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Which structure is asked for (NVMe Base 2.0, "CNS Values").
pub mod cns {
    /// One namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Ids of active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Lasting names of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// One namespace, as its command set has it.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// The controller, as a command set has it.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// One namespace, as far as command sets agree.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
}

/// Identify for structure `cns` of namespace `nsid`.
#[must_use]
pub fn identify(cns: u8, nsid: u32) -> Command {
    Command::new(admin::IDENTIFY, nsid, [u32::from(cns), 0, 0, 0, 0, 0])
}

/// A page to be filled.
pub(crate) struct Page(pub(crate) Vec<u8>);

impl Page {
    pub(crate) fn new() -> Self {
        Self(vec![0; PAGE_BYTES])
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Text is padded with blanks.
    fn text(&mut self, at: usize, len: usize, text: &str) -> &mut Self {
        let field = &mut self.0[at..at + len];
        field.fill(b' ');
        for (byte, &letter) in field.iter_mut().zip(text.as_bytes()) {
            *byte = if letter.is_ascii_graphic() {
                letter
            } else {
                b' '
            };
        }
        self
    }
}

/// What a controller says of itself (NVMe Base 2.0, "Identify Controller Data Structure").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifyController {
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Model, at most 40.
    pub model: String,
    /// Firmware, at most 8.
    pub firmware: String,
    /// The controller's id.
    pub controller_id: u16,
    /// Most data of one command: a power of two of 4,096 bytes; 0 for no limit.
    pub transfer_pages_log2: u8,
    /// It only tells where subsystems are.
    pub is_discovery: bool,
    /// Most namespace ids.
    pub namespaces_max: u32,
    /// Commands in flight at most on one queue.
    pub commands_max: u16,
    /// Bytes of data that may come in a capsule of an I/O queue.
    pub in_capsule_bytes: u32,
    /// Optional NVM commands: see the bits below.
    pub optional_commands: u16,
    /// The namespace's state differs between paths, and is told.
    pub has_ana: bool,
    /// Seconds that a change of such a state may take.
    pub ana_transition_s: u8,
    /// Caches writes, so that Flush has a meaning.
    pub caches_writes: bool,
    /// Events that it tells: bits of the feature that asks for them.
    pub events: u32,
    /// The subsystem's name.
    pub subsystem: Nqn,
}

/// Bits of [`IdentifyController::optional_commands`].
pub mod optional {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
}

/// Steps of the keep-alive timeout, in units of 100 ms.
const KEEP_ALIVE_STEPS: u16 = 10;
/// Version 1.4.0: the newest whose mandatory pages are all here.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// Requests for events at a time, less one.
pub(crate) const EVENT_REQUESTS_LESS_ONE: u8 = 3;
/// Groups of namespaces with the same state.
pub(crate) const ANA_GROUPS_MAX: u32 = 128;
/// Seconds that a change of state may take at a controller here.
pub(crate) const ANA_TRANSITION_S: u8 = 10;

impl IdentifyController {
    /// As a page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Page::new();
        page.text(4, 20, &self.serial).text(24, 40, &self.model);
        page.text(64, 8, &self.firmware);
        // Several ports and controllers may be there; and states by path.
        page.put(76, &[0b11 | u8::from(self.has_ana) << 3]);
        page.put(77, &[self.transfer_pages_log2]);
        page.put(78, &self.controller_id.to_le_bytes());
        page.put(80, &VERSION.to_le_bytes());
        page.put(92, &self.events.to_le_bytes());
        page.put(111, &[if self.is_discovery { 2 } else { 1 }]);
        // No aborts at a time beyond the one; events; log pages may be read in parts.
        page.put(258, &[3, EVENT_REQUESTS_LESS_ONE, 0b11, 0b110]);
        page.put(320, &KEEP_ALIVE_STEPS.to_le_bytes());
        if self.has_ana {
            // All five states are told, and groups do not change.
            page.put(342, &[self.ana_transition_s, 0b101_1111]);
            page.put(344, &ANA_GROUPS_MAX.to_le_bytes());
            page.put(348, &ANA_GROUPS_MAX.to_le_bytes());
        }
        page.put(512, &[0x66, 0x44]);
        page.put(514, &self.commands_max.to_le_bytes());
        page.put(516, &self.namespaces_max.to_le_bytes());
        page.put(520, &self.optional_commands.to_le_bytes());
        // A Flush for all namespaces is taken.
        page.put(525, &[0b110 | u8::from(self.caches_writes)]);
        // Data descriptors, and offsets in the capsule.
        page.put(536, &(1_u32 | 1 << 20).to_le_bytes());
        page.put(540, &self.namespaces_max.to_le_bytes());
        page.put(768, &self.subsystem.encode());
        page.put(1792, &((64 + self.in_capsule_bytes) / 16).to_le_bytes());
        page.put(1796, &1_u32.to_le_bytes());
        page.put(1803, &[1]);
        page.0
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`NqnFault`]: the subsystem's name is none.
    pub fn decode(page: &[u8; PAGE_BYTES]) -> Result<Self, NqnFault> {
        let capsule_bytes = u32_at(page, 1792).saturating_mul(16);
        Ok(Self {
            serial: text_at(page, 4, 20),
            model: text_at(page, 24, 40),
            firmware: text_at(page, 64, 8),
            controller_id: u16_at(page, 78),
            transfer_pages_log2: page[77],
            is_discovery: page[111] == 2,
            namespaces_max: u32_at(page, 516),
            commands_max: u16_at(page, 514),
            in_capsule_bytes: capsule_bytes.saturating_sub(64),
            optional_commands: u16_at(page, 520),
            has_ana: page[76] & 8 != 0,
            ana_transition_s: if page[76] & 8 != 0 { page[342] } else { 0 },
            caches_writes: page[525] & 1 != 0,
            events: u32_at(page, 92),
            subsystem: Nqn::decode(array_at::<NQN_FIELD_BYTES>(page, 768))?,
        })
    }

    /// Most data of one command in bytes, if there is a limit.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u32> {
        if self.transfer_pages_log2 == 0 {
            return None;
        }
        let shift = u32::from(self.transfer_pages_log2);
        Some(
            4096_u32
                .checked_shl(shift)
                .filter(|&b| b >> shift == 4096)
                .unwrap_or(u32::MAX),
        )
    }
}

/// What is said of a namespace (NVM Command Set 1.0, "Identify Namespace Data Structure").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyNamespace {
    /// Size in blocks.
    pub blocks: u64,
    /// Length of a block: a power of two of bytes.
    pub block_bytes_log2: u8,
    /// Its group of states by path.
    pub ana_group: u32,
    /// Its lasting name.
    pub uuid: [u8; 16],
    /// It cannot be written.
    pub is_read_only: bool,
    /// The length in blocks of which reads and writes are best a multiple, less one.
    pub optimal_blocks_less_one: u16,
}

impl IdentifyNamespace {
    /// As a page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Page::new();
        for at in [0, 8, 16] {
            page.put(at, &self.blocks.to_le_bytes());
        }
        // The fields on best lengths have a meaning. One format, in use. Several controllers may
        // share it. Deallocated blocks read as zeroes.
        page.put(24, &[1 << 4]).put(30, &[1]).put(33, &[0b001]);
        for at in [64, 66, 72] {
            page.put(at, &self.optimal_blocks_less_one.to_le_bytes());
        }
        page.put(92, &self.ana_group.to_le_bytes());
        page.put(99, &[u8::from(self.is_read_only)]);
        page.put(104, &self.uuid);
        page.put(130, &[self.block_bytes_log2]);
        page.0
    }

    /// Reads a page; `None` for a namespace that is not there, or has blocks of no sensible length.
    #[must_use]
    pub fn decode(page: &[u8; PAGE_BYTES]) -> Option<Self> {
        let blocks = u64_at(page, 0);
        let format = usize::from(page[26] & 0xf);
        let block_bytes_log2 = page[128 + 4 * format + 2];
        if blocks == 0 || !(9..=16).contains(&block_bytes_log2) {
            return None;
        }
        Some(Self {
            blocks,
            block_bytes_log2,
            ana_group: u32_at(page, 92),
            uuid: *array_at(page, 104),
            is_read_only: page[99] & 1 != 0,
            optimal_blocks_less_one: u16_at(page, 72),
        })
    }

    /// Length of a block, in bytes.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        1 << self.block_bytes_log2
    }
}

/// A list of namespaces above `above`, in order; at most [`LIST_MAX`] of them.
#[must_use]
pub fn encode_list(nsids: impl Iterator<Item = u32>, above: u32) -> Vec<u8> {
    let mut page = Page::new();
    for (index, nsid) in nsids
        .filter(|&nsid| nsid > above)
        .take(LIST_MAX)
        .enumerate()
    {
        page.put(4 * index, &nsid.to_le_bytes());
    }
    page.0
}

/// Reads a list: up to the first zero.
#[must_use]
pub fn decode_list(page: &[u8; PAGE_BYTES]) -> Vec<u32> {
    let (dwords, _) = page.as_chunks::<4>();
    let nsids = dwords.iter().map(|dword| u32::from_le_bytes(*dword));
    nsids.take_while(|&nsid| nsid != 0).collect()
}

/// The lasting names of a namespace: its UUID, and the NVM command set.
#[must_use]
pub fn encode_descriptors(uuid: &[u8; 16]) -> Vec<u8> {
    let mut page = Page::new();
    page.put(0, &[3, 16]).put(4, uuid).put(20, &[4, 1]);
    page.0
}

/// The lasting names of a namespace, by which it is known whatever controller it is reached by.
/// Zeroes: it has none of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceNames {
    /// IEEE extended unique identifier.
    pub eui64: [u8; 8],
    /// Namespace globally unique identifier.
    pub nguid: [u8; 16],
    /// UUID.
    pub uuid: [u8; 16],
}

impl NamespaceNames {
    /// From the page of the namespace, and that of its descriptors where the controller has one
    /// (NVMe Base 2.0, "Namespace Identification Descriptor").
    #[must_use]
    pub fn decode(namespace: &[u8; PAGE_BYTES], descriptors: Option<&[u8; PAGE_BYTES]>) -> Self {
        let mut names = Self {
            eui64: *array_at(namespace, 120),
            nguid: *array_at(namespace, 104),
            uuid: [0; 16],
        };
        let mut rest = descriptors.map_or(&[][..], |page| &page[..]);
        while let Some((&[kind, len, _, _], behind)) = rest.split_first_chunk::<4>() {
            let Some((name, behind)) = behind.split_at_checked(usize::from(len)) else {
                break;
            };
            match (kind, name.try_into(), name.try_into()) {
                (0, ..) => break,
                (1, Ok(eui64), _) => names.eui64 = eui64,
                (2, _, Ok(nguid)) => names.nguid = nguid,
                (3, _, Ok(uuid)) => names.uuid = uuid,
                _ => {}
            }
            rest = behind;
        }
        names
    }

    /// Whether it has any.
    #[must_use]
    pub fn is_named(&self) -> bool {
        *self != Self::default()
    }
}

/// What command sets agree on of a namespace.
pub(crate) fn encode_independent(namespace: &IdentifyNamespace) -> Vec<u8> {
    let mut page = Page::new();
    page.put(1, &[1]);
    page.put(4, &namespace.ana_group.to_le_bytes());
    page.put(13, &[u8::from(namespace.is_read_only)]);
    // Ready.
    page.put(14, &[1]);
    page.0
}

fn array_at<const N: usize>(page: &[u8; PAGE_BYTES], at: usize) -> &[u8; N] {
    page[at..]
        .first_chunk()
        .expect("field offsets are constants within the page")
}

fn u16_at(page: &[u8; PAGE_BYTES], at: usize) -> u16 {
    u16::from_le_bytes(*array_at(page, at))
}

fn u32_at(page: &[u8; PAGE_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(*array_at(page, at))
}

fn u64_at(page: &[u8; PAGE_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(*array_at(page, at))
}

fn text_at(page: &[u8; PAGE_BYTES], at: usize, len: usize) -> String {
    let text = String::from_utf8_lossy(&page[at..at + len]);
    text.trim_end_matches(['\0', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(bytes: Vec<u8>) -> [u8; PAGE_BYTES] {
        bytes.try_into().expect("a page")
    }

    #[test]
    fn a_controller_goes_through_a_page() {
        let controller = IdentifyController {
            serial: "0123".into(),
            model: "a model".into(),
            firmware: "1.0".into(),
            controller_id: 7,
            transfer_pages_log2: 8,
            is_discovery: false,
            namespaces_max: 16,
            commands_max: 128,
            in_capsule_bytes: 8192,
            optional_commands: optional::COMPARE | optional::WRITE_ZEROES,
            has_ana: true,
            ana_transition_s: 10,
            caches_writes: true,
            events: 0x900,
            subsystem: Nqn::new("nqn.s").expect("a name"),
        };
        let page = page_of(controller.encode());
        assert_eq!(page[24..34], *b"a model   ");
        assert_eq!(u32_at(&page, 1792), 516);
        assert_eq!(IdentifyController::decode(&page), Ok(controller.clone()));
        assert_eq!(controller.transfer_bytes_max(), Some(1 << 20));
        let limits = [
            (0, None),
            (19, Some(1 << 31)),
            (20, Some(u32::MAX)),
            (255, Some(u32::MAX)),
        ];
        for (transfer_pages_log2, expected) in limits {
            let controller = IdentifyController {
                transfer_pages_log2,
                ..controller.clone()
            };
            assert_eq!(controller.transfer_bytes_max(), expected);
        }
    }

    #[test]
    fn a_namespace_goes_through_a_page() {
        let namespace = IdentifyNamespace {
            blocks: 1 << 40,
            block_bytes_log2: 12,
            ana_group: 1,
            uuid: [9; 16],
            is_read_only: true,
            optimal_blocks_less_one: 31,
        };
        let mut page = page_of(namespace.encode());
        assert_eq!(IdentifyNamespace::decode(&page), Some(namespace));
        assert_eq!(namespace.block_bytes(), 4096);
        for (log2, is_fine) in [(8, false), (9, true), (16, true), (17, false)] {
            page[130] = log2;
            assert_eq!(
                IdentifyNamespace::decode(&page).is_some(),
                is_fine,
                "{log2}"
            );
        }
        assert_eq!(IdentifyNamespace::decode(&[0; PAGE_BYTES]), None);
    }

    #[test]
    fn lists_begin_above_and_end_at_the_page() {
        let page = page_of(encode_list(1..=2000, 3));
        let listed = decode_list(&page);
        assert_eq!((listed[0], listed.len()), (4, LIST_MAX));
        assert_eq!(decode_list(&page_of(encode_list(1..=3, 3))), []);
    }

    #[test]
    fn names_are_found_wherever_they_are() {
        let namespace = [0; PAGE_BYTES];
        let of =
            |descriptors: &[u8; PAGE_BYTES]| NamespaceNames::decode(&namespace, Some(descriptors));
        let uuid = |byte| NamespaceNames {
            uuid: [byte; 16],
            ..NamespaceNames::default()
        };
        assert_eq!(of(&page_of(encode_descriptors(&[5; 16]))), uuid(5));
        for nothing in [[0; PAGE_BYTES], [0xff; PAGE_BYTES]] {
            assert!(!of(&nothing).is_named());
        }
        let mut other = [0; PAGE_BYTES];
        other[..2].copy_from_slice(&[1, 8]);
        other[4..12].fill(7);
        other[12..14].copy_from_slice(&[3, 16]);
        other[16..32].fill(6);
        let both = NamespaceNames {
            eui64: [7; 8],
            ..uuid(6)
        };
        assert_eq!(of(&other), both);
        // A name of another length than its kind has is none.
        other[13] = 15;
        assert_eq!(of(&other).uuid, [0; 16]);
        let mut namespace = [0; PAGE_BYTES];
        namespace[104..120].fill(3);
        namespace[120..128].fill(4);
        let names = NamespaceNames::decode(&namespace, None);
        assert_eq!((names.nguid, names.eui64), ([3; 16], [4; 8]));
    }
}
