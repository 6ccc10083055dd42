//! What a node says about itself when a connection opens.

use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::CORES_MAX;

use super::{MessageFault, end_of};

/// The greeting of a node, which its hello carries: who it is, which of its cores answers on this
/// connection, and where the others listen. A client that keeps one connection per core sends each
/// request straight to the core that owns the key.
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
    }

    /// The card in `bytes`.
    ///
    /// # Errors
    /// [`MessageFault`] if they hold anything else than one card within its limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(bytes);
        let node_id = NodeId(reader.u64()?);
        let weight = reader.u32()?;
        let core = CoreIndex(reader.u16()?);
        let count = usize::from(reader.u16()?);
        check(core, count)?;
        let ports = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
        end_of(&reader)?;
        Ok(Self {
            node_id,
            weight,
            core,
            ports,
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

    fn card(core: u16, ports: usize) -> NodeCard {
        NodeCard {
            node_id: NodeId(0x0102),
            weight: 3,
            core: CoreIndex(core),
            ports: (7000..).take(ports).collect(),
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
            2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 2, 0, 0x58, 0x1b, 0x59, 0x1b,
        ];
        assert_eq!(encoded(&card(1, 2)), golden);
        assert_eq!(NodeCard::decode(&golden), Ok(card(1, 2)));
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
            NodeCard::decode(&bytes[..16]),
            Err(MessageFault::PortsOutOfLimits(0))
        );
        let mut bytes = encoded(&card(1, 2));
        bytes[12] = 2;
        let fault = MessageFault::CoreOutOfLimits { core: 2, ports: 2 };
        assert_eq!(NodeCard::decode(&bytes), Err(fault));
    }
}
