//! What Get Log Page returns.

use core::net::{IpAddr, SocketAddr};

use lunette_runtime_core::codec::{Reader, Truncated, Writer};

use crate::command::{Command, admin};
use crate::fabrics::{CONTROLLER_ANY, low};
use crate::identify::NSID_ALL;
use crate::nqn::{NQN_FIELD_BYTES, Nqn};

/// Log pages (NVMe Base 2.0, "Log Page Identifiers").
pub mod id {
    /// Errors.
    pub const ERROR: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Length of one record of the discovery log, and of its header, in bytes.
pub const DISCOVERY_RECORD_BYTES: usize = 1024;
const TRANSPORT_TCP: u8 = 3;
/// Where a discovery record says what connections are in: the first byte of its "Transport Specific Address Subtype".
const SECURITY_AT: usize = 768;

/// Get Log Page: which page, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// The page.
    pub id: u8,
    /// What is specific to the page.
    pub specific: u8,
    /// Keep the event that told of the page.
    pub retains_event: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl LogRequest {
    /// The command, without its data pointer.
    ///
    /// # Panics
    /// If the length is no positive multiple of 4 within 32 bits of dwords.
    #[must_use]
    pub fn command(&self) -> Command {
        assert!(
            self.len_bytes > 0 && self.len_bytes.is_multiple_of(4),
            "log pages are read in dwords"
        );
        let dwords = u32::try_from(self.len_bytes / 4 - 1).expect("a length within bounds");
        let cdw10 = u32::from(self.id)
            | u32::from(self.specific & 0x7f) << 8
            | u32::from(self.retains_event) << 15
            | (dwords & 0xffff) << 16;
        let [low_offset, high_offset] = [self.offset_bytes & 0xffff_ffff, self.offset_bytes >> 32]
            .map(|half| u32::try_from(half).expect("half of 64 bits"));
        let cdw10 = [cdw10, dwords >> 16, low_offset, high_offset, 0, 0];
        Command::new(admin::GET_LOG_PAGE, NSID_ALL, cdw10)
    }

    /// Reads the command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let [cdw10, cdw11, ..] = command.cdw10;
        let [id, specific, ..] = cdw10.to_le_bytes();
        let dwords = u64::from(low(cdw10 >> 16)) | u64::from(low(cdw11)) << 16;
        Self {
            id,
            specific: specific & 0x7f,
            retains_event: specific & 0x80 != 0,
            offset_bytes: command.wide(2),
            len_bytes: (dwords + 1) * 4,
        }
    }

    /// The part of `page` that is asked for, with zeroes behind its end; nothing if it begins
    /// beyond.
    #[must_use]
    pub fn part_of(&self, page: &[u8], len_bytes_max: u32) -> Option<Vec<u8>> {
        let start = usize::try_from(self.offset_bytes).ok()?;
        let rest = page.get(start..)?;
        let len = usize::try_from(self.len_bytes.min(u64::from(len_bytes_max))).ok()?;
        let mut part = rest[..len.min(rest.len())].to_vec();
        part.resize(len, 0);
        Some(part)
    }
}

/// How a namespace can be reached by a path (NVMe Base 2.0, "ANA States").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnaState {
    /// The best way.
    Optimized,
    /// A way.
    NonOptimized,
    /// No way for now.
    Inaccessible,
    /// No way any more.
    PersistentLoss,
    /// Between two of the others.
    Change,
}

impl AnaState {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    const fn to_wire(self) -> u8 {
        match self {
            Self::Optimized => 1,
            Self::NonOptimized => 2,
            Self::Inaccessible => 3,
            Self::PersistentLoss => 4,
            Self::Change => 15,
        }
    }

    /// Whether commands are carried out.
    #[must_use]
    pub const fn is_accessible(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }
}

/// One group of the ANA log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number.
    pub id: u32,
    /// How often it has changed.
    pub changes: u64,
    /// How it can be reached.
    pub state: AnaState,
    /// The namespaces in it.
    pub nsids: Vec<u32>,
}

/// The ANA log (NVMe Base 2.0, "Asymmetric Namespace Access").
#[must_use]
pub fn encode_ana(changes: u64, groups: &[AnaGroup]) -> Vec<u8> {
    let mut out = Vec::new();
    let count = u16::try_from(groups.len()).expect("groups are few");
    Writer::new(&mut out).u64(changes).u16(count).bytes(&[0; 6]);
    for group in groups {
        let nsids = u32::try_from(group.nsids.len()).expect("namespaces are few");
        let mut writer = Writer::new(&mut out);
        writer.u32(group.id).u32(nsids).u64(group.changes);
        writer.u8(group.state.to_wire()).bytes(&[0; 15]);
        for &nsid in &group.nsids {
            writer.u32(nsid);
        }
    }
    out
}

/// Reads an ANA log: its change count and groups. Groups with an unknown state are taken for
/// inaccessible.
///
/// # Errors
/// [`Truncated`]: there are fewer bytes than the log says. Read more of it.
pub fn decode_ana(bytes: &[u8]) -> Result<(u64, Vec<AnaGroup>), Truncated> {
    let mut reader = Reader::new(bytes);
    let (changes, count) = (reader.u64()?, reader.u16()?);
    reader.bytes(6)?;
    let mut groups = Vec::new();
    for _ in 0..count {
        let (id, nsid_count) = (reader.u32()?, reader.u32()?);
        let (changes, wire_state) = (reader.u64()?, reader.u8()?);
        reader.bytes(15)?;
        let states = AnaState::ALL.into_iter();
        let state = states
            .into_iter()
            .find(|state| state.to_wire() == wire_state & 15)
            .unwrap_or(AnaState::Inaccessible);
        // As many as are there, whatever the count promises.
        let mut nsids = Vec::new();
        for _ in 0..nsid_count {
            nsids.push(reader.u32()?);
        }
        groups.push(AnaGroup {
            id,
            changes,
            state,
            nsids,
        });
    }
    Ok((changes, groups))
}

/// What a record of the discovery log leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// Another discovery subsystem.
    Referral,
    /// A subsystem with namespaces.
    Nvm,
    /// The discovery subsystem that was asked.
    CurrentDiscovery,
    /// Something newer.
    Other(u8),
}

impl SubsystemKind {
    const fn to_wire(self) -> u8 {
        match self {
            Self::Referral => 1,
            Self::Nvm => 2,
            Self::CurrentDiscovery => 3,
            Self::Other(other) => other,
        }
    }

    const fn from_wire(found: u8) -> Self {
        match found {
            1 => Self::Referral,
            2 => Self::Nvm,
            3 => Self::CurrentDiscovery,
            other => Self::Other(other),
        }
    }
}

/// What a way asks of its connections (NVMe/TCP 1.0, "Transport Specific Address Subtype": SECTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelSecurity {
    /// Nothing.
    None,
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
    /// Something newer.
    Other(u8),
}

impl ChannelSecurity {
    const fn to_wire(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tls12 => 1,
            Self::Tls13 => 2,
            Self::Other(other) => other,
        }
    }

    const fn from_wire(found: u8) -> Self {
        match found {
            0 => Self::None,
            1 => Self::Tls12,
            2 => Self::Tls13,
            other => Self::Other(other),
        }
    }

    /// What is required of a connection (TREQ, "Transport Requirements"): that it is secured, or that it need not be.
    const fn requirement(self) -> u8 {
        match self {
            Self::None => 2,
            Self::Tls12 | Self::Tls13 | Self::Other(_) => 1,
        }
    }
}

/// One way to a subsystem over TCP (NVMe Base 2.0, "Discovery Log Page Entry").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryRecord {
    /// What is there.
    pub kind: SubsystemKind,
    /// The port of the subsystem.
    pub port_id: u16,
    /// Entries of its admin queue at most.
    pub admin_entries_max: u16,
    /// Its name.
    pub subsystem: Nqn,
    /// Where it listens.
    pub address: SocketAddr,
    /// What connections there are in.
    pub security: ChannelSecurity,
}

/// The discovery log with `generation`.
#[must_use]
pub fn encode_discovery(generation: u64, records: &[DiscoveryRecord]) -> Vec<u8> {
    let mut out = Vec::with_capacity((records.len() + 1) * DISCOVERY_RECORD_BYTES);
    Writer::new(&mut out)
        .u64(generation)
        .u64(records.len() as u64);
    out.resize(DISCOVERY_RECORD_BYTES, 0);
    for record in records {
        let start = out.len();
        let family = if record.address.is_ipv4() { 1 } else { 2 };
        let mut writer = Writer::new(&mut out);
        writer.u8(TRANSPORT_TCP).u8(family);
        let security = record.security;
        writer.u8(record.kind.to_wire()).u8(security.requirement());
        writer.u16(record.port_id).u16(CONTROLLER_ANY);
        writer.u16(record.admin_entries_max);
        let mut field = |at: usize, bytes: &[u8]| {
            out.resize(start + at, 0);
            out.extend_from_slice(bytes);
        };
        field(32, record.address.port().to_string().as_bytes());
        field(256, &record.subsystem.encode());
        field(512, record.address.ip().to_string().as_bytes());
        field(SECURITY_AT, &[security.to_wire()]);
        out.resize(start + DISCOVERY_RECORD_BYTES, 0);
    }
    out
}

/// Generation and number of records, from the header of a discovery log.
///
/// # Errors
/// [`Truncated`]: fewer than 16 bytes.
pub fn decode_discovery_header(bytes: &[u8]) -> Result<(u64, u64), Truncated> {
    let mut reader = Reader::new(bytes);
    Ok((reader.u64()?, reader.u64()?))
}

/// The records behind the header that lead somewhere over TCP; the others are left out.
#[must_use]
pub fn decode_discovery_records(bytes: &[u8]) -> Vec<DiscoveryRecord> {
    let (records, _) = bytes.as_chunks::<DISCOVERY_RECORD_BYTES>();
    records.iter().filter_map(decode_record).collect()
}

fn decode_record(record: &[u8; DISCOVERY_RECORD_BYTES]) -> Option<DiscoveryRecord> {
    let mut reader = Reader::new(record);
    let (transport, _family) = (reader.u8().ok()?, reader.u8().ok()?);
    let (kind, _requirement) = (reader.u8().ok()?, reader.u8().ok()?);
    let (port_id, _controller_id) = (reader.u16().ok()?, reader.u16().ok()?);
    let admin_entries_max = reader.u16().ok()?;
    if transport != TRANSPORT_TCP {
        return None;
    }
    let subsystem = record[256..].first_chunk::<NQN_FIELD_BYTES>()?;
    let ip: IpAddr = text(&record[512..768])?.parse().ok()?;
    let port: u16 = text(&record[32..64])?.parse().ok()?;
    let security = ChannelSecurity::from_wire(record[SECURITY_AT]);
    Some(DiscoveryRecord {
        kind: SubsystemKind::from_wire(kind),
        port_id,
        admin_entries_max,
        subsystem: Nqn::decode(subsystem).ok()?,
        address: SocketAddr::new(ip, port),
        security,
    })
}

fn text(field: &[u8]) -> Option<&str> {
    let text = core::str::from_utf8(field).ok()?;
    Some(text.trim_end_matches(['\0', ' ']))
}

/// Length of the health page, in bytes.
pub(crate) const HEALTH_BYTES: usize = 512;

/// The health page of something that does not wear.
pub(crate) fn health() -> Vec<u8> {
    let mut page = vec![0; HEALTH_BYTES];
    // 300 K, all spare blocks there, warned of below 10 %.
    page[1..3].copy_from_slice(&300_u16.to_le_bytes());
    page[3] = 100;
    page[4] = 10;
    page
}

/// The page of commands and effects: `admin` and `io` are supported; those in `writes` change
/// data.
pub(crate) fn effects(admin: &[u8], io: &[u8], writes: &[u8]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    for &opcode in admin {
        page[4 * usize::from(opcode)] = 1;
    }
    for &opcode in io {
        let changes = u8::from(writes.contains(&opcode)) << 1;
        page[1024 + 4 * usize::from(opcode)] = 1 | changes;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_through_its_command() {
        let request = LogRequest {
            id: id::DISCOVERY,
            specific: 0,
            retains_event: true,
            offset_bytes: 0x1_0000_0004,
            len_bytes: 4 << 20,
        };
        let command = request.command();
        assert_eq!(command.cdw10, [0xffff_8070, 0xf, 4, 1, 0, 0]);
        assert_eq!(LogRequest::of(&command), request);
    }

    #[test]
    fn parts_begin_within_the_page() {
        let request = |offset_bytes, len_bytes| LogRequest {
            id: 1,
            specific: 0,
            retains_event: false,
            offset_bytes,
            len_bytes,
        };
        let page = [1, 2, 3, 4, 5, 6];
        assert_eq!(request(4, 4).part_of(&page, 64), Some(vec![5, 6, 0, 0]));
        assert_eq!(request(6, 4).part_of(&page, 64), Some(vec![0; 4]));
        assert_eq!(request(7, 4).part_of(&page, 64), None);
        assert_eq!(request(u64::MAX, 4).part_of(&page, 64), None);
        let bounded = request(0, u64::MAX).part_of(&page, 8);
        assert_eq!(bounded.map(|part| part.len()), Some(8));
    }

    #[test]
    fn ana_groups_go_through_the_log_and_cannot_be_cut() {
        let groups: Vec<AnaGroup> = AnaState::ALL
            .into_iter()
            .zip(1..)
            .map(|(state, id)| AnaGroup {
                id,
                changes: 3,
                state,
                nsids: (0..id).collect(),
            })
            .collect();
        let bytes = encode_ana(9, &groups);
        assert_eq!(decode_ana(&bytes), Ok((9, groups)));
        for len in 0..bytes.len() {
            assert!(decode_ana(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn discovery_records_go_through_the_log() {
        let record = |address: &str, kind, security| DiscoveryRecord {
            security,
            kind,
            port_id: 1,
            admin_entries_max: 32,
            subsystem: Nqn::new("nqn.s").expect("a name"),
            address: address.parse().expect("an address"),
        };
        let records = [
            record("127.0.0.1:4420", SubsystemKind::Nvm, ChannelSecurity::Tls13),
            record(
                "[::1]:8009",
                SubsystemKind::CurrentDiscovery,
                ChannelSecurity::None,
            ),
            record("[::1]:1", SubsystemKind::Nvm, ChannelSecurity::Other(9)),
        ];
        let bytes = encode_discovery(5, &records);
        assert_eq!(bytes.len(), 4 * 1024);
        assert_eq!(decode_discovery_header(&bytes), Ok((5, 3)));
        // Whether it is required to be secured, and how.
        let told = |record: usize| (bytes[record * 1024 + 3], bytes[record * 1024 + 768]);
        assert_eq!([1, 2, 3].map(told), [(1, 2), (2, 0), (1, 9)]);
        assert_eq!(decode_discovery_records(&bytes[1024..]), records);
        for at in [1024, 1024 + 32, 1024 + 256, 1024 + 512] {
            let mut bytes = bytes.clone();
            bytes[at] = b'x';
            assert_eq!(decode_discovery_records(&bytes[1024..]), records[1..]);
        }
    }
}
