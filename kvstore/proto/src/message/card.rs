//! What a node says about itself when a connection opens.

use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::CORES_MAX;

use super::{FormatVersion, FormatVersions, MessageFault};

/// The greeting of a node, which its hello carries: who it is, which of its cores answers on this
/// connection, where the others listen, and which versions it speaks. A client that keeps one connection
/// per core sends each request straight to the core that owns the key.
///
/// ```text
///  node u64 | weight u32 | core u16 | count u16 | port u16 ... | min u8 | max u8 | of later versions ...
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCard {
    /// The node.
    pub node_id: NodeId,
    /// Its weight in the cluster map. 0 for a node that is no home.
    pub weight: u32,
    /// The core that answers on this connection: an index into `ports`.
    pub core: CoreIndex,
    /// The port on which each of its cores listens, by core: 1 to [`CORES_MAX`].
    pub ports: Vec<u16>,
    /// The versions of the formats that it speaks.
    pub versions: FormatVersions,
}

impl NodeCard {
    /// Appends the card to `out`.
    ///
    /// # Panics
    /// If the card breaks the limits that [`NodeCard::decode`] checks.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(
            check(self.core, self.ports.len()).is_ok(),
            "a node knows its own cores"
        );
        let count = u16::try_from(self.ports.len()).expect("CORES_MAX fits 16 bits");
        let mut writer = Writer::new(out);
        writer
            .u64(self.node_id.0)
            .u32(self.weight)
            .u16(self.core.0)
            .u16(count);
        for &port in &self.ports {
            writer.u16(port);
        }
        writer.u8(self.versions.min.0).u8(self.versions.max.0);
    }

    /// The version in which to speak with the node: the newest that both know.
    ///
    /// # Errors
    /// Those that the node speaks, none of which this package does.
    pub fn common_version(&self) -> Result<FormatVersion, FormatVersions> {
        let common = FormatVersions::OURS.newest_common(self.versions);
        common.ok_or(self.versions)
    }

    /// The card at the front of `bytes`. What follows is of later versions and not looked at.
    ///
    /// # Errors
    /// [`MessageFault`] if there is no card within its limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(bytes);
        let node_id = NodeId(reader.u64()?);
        let weight = reader.u32()?;
        let core = CoreIndex(reader.u16()?);
        let count = usize::from(reader.u16()?);
        check(core, count)?;
        let ports = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
        let versions = FormatVersions {
            min: FormatVersion(reader.u8()?),
            max: FormatVersion(reader.u8()?),
        };
        if !versions.is_valid() {
            return Err(MessageFault::VersionsOutOfOrder(versions));
        }
        Ok(Self {
            node_id,
            weight,
            core,
            ports,
            versions,
        })
    }
}

fn check(core: CoreIndex, ports: usize) -> Result<(), MessageFault> {
    if ports == 0 || ports > CORES_MAX {
        return Err(MessageFault::PortsOutOfLimits(ports));
    }
    if usize::from(core.0) >= ports {
        return Err(MessageFault::CoreOutOfLimits {
            core: core.0,
            ports,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: FormatVersions = FormatVersions {
        min: FormatVersion(1),
        max: FormatVersion(4),
    };

    fn card(core: u16, ports: usize) -> NodeCard {
        NodeCard {
            node_id: NodeId(0x0102),
            weight: 3,
            core: CoreIndex(core),
            ports: (7000..).take(ports).collect(),
            versions: VERSIONS,
        }
    }

    fn encoded(card: &NodeCard) -> Vec<u8> {
        let mut out = Vec::new();
        card.encode(&mut out);
        out
    }

    #[test]
    fn golden_card() {
        let golden = [
            2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 2, 0, 0x58, 0x1b, 0x59, 0x1b, 1, 4,
        ];
        assert_eq!(encoded(&card(1, 2)), golden);
        assert_eq!(NodeCard::decode(&golden), Ok(card(1, 2)));
    }

    #[test]
    fn a_later_card_is_longer_and_one_without_versions_is_none() {
        let mut bytes = encoded(&card(1, 2));
        let len = bytes.len();
        bytes.extend_from_slice(&[1, 2, 3]);
        assert_eq!(NodeCard::decode(&bytes), Ok(card(1, 2)));
        assert!(NodeCard::decode(&bytes[..len - 1]).is_err());
        for (min, max) in [(0, 1), (3, 2)] {
            bytes[len - 2..len].copy_from_slice(&[min, max]);
            let versions = FormatVersions {
                min: FormatVersion(min),
                max: FormatVersion(max),
            };
            let fault = MessageFault::VersionsOutOfOrder(versions);
            assert_eq!(NodeCard::decode(&bytes), Err(fault));
        }
    }

    #[test]
    fn nodes_that_share_no_version_are_told_apart() {
        let ours = FormatVersions::OURS;
        assert_eq!(card(1, 2).common_version(), Ok(ours.max));
        let later = FormatVersions {
            min: FormatVersion(ours.max.0 + 1),
            max: FormatVersion(9),
        };
        let stranger = NodeCard {
            versions: later,
            ..card(1, 2)
        };
        assert_eq!(stranger.common_version(), Err(later));
    }

    #[test]
    fn cores_are_bounded_on_both_sides() {
        let largest = card(255, CORES_MAX);
        let mut bytes = encoded(&largest);
        assert_eq!(NodeCard::decode(&bytes), Ok(largest));
        bytes[14..16].copy_from_slice(&257_u16.to_le_bytes());
        bytes.extend([0, 0]);
        assert_eq!(
            NodeCard::decode(&bytes),
            Err(MessageFault::PortsOutOfLimits(257))
        );
        bytes[14..16].fill(0);
        assert_eq!(
            NodeCard::decode(&bytes[..18]),
            Err(MessageFault::PortsOutOfLimits(0))
        );
        let mut bytes = encoded(&card(1, 2));
        bytes[12] = 2;
        let fault = MessageFault::CoreOutOfLimits { core: 2, ports: 2 };
        assert_eq!(NodeCard::decode(&bytes), Err(fault));
    }
}
