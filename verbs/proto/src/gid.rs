//! Which of a port's addresses to use.
//!
//! A port has many: per interface, per IP address, per version of `RoCE`. Packets of version 1 cross
//! no router and a link-local address no segment, so the first entry of the table, which drivers
//! fill with the link-local one, is the one to avoid.

/// A global identifier, as on the wire.
pub type Gid = [u8; 16];

/// How packets of an entry look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// `RoCE` within one Ethernet segment.
    RoceV1,
    /// `RoCE` over UDP.
    RoceV2,
}

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, for address vectors.
    pub index: u8,
    /// The identifier.
    pub gid: Gid,
    /// How its packets look.
    pub kind: GidKind,
    /// Whether its network interface is up.
    pub is_up: bool,
}

/// Where a packet to an identifier can get; the order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    LinkLocal,
    GlobalIpv6,
    Ipv4,
}

/// Whether an identifier is an IPv4 address.
#[must_use]
pub fn is_ipv4(gid: &Gid) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

fn reach(gid: &Gid) -> Reach {
    if is_ipv4(gid) {
        Reach::Ipv4
    } else if gid[0] == 0xfe && gid[1] & 0xc0 == 0x80 {
        Reach::LinkLocal
    } else {
        Reach::GlobalIpv6
    }
}

/// The entry to connect from: of those that are up, one of `RoCE` version 2 or InfiniBand, of the
/// peer's family if that is known, reaching as far as possible; the first of equals.
#[must_use]
pub fn choose(table: &[GidEntry], peer_is_ipv4: Option<bool>) -> Option<GidEntry> {
    let usable = table
        .iter()
        .filter(|entry| entry.is_up && entry.gid != [0; 16] && entry.kind != GidKind::RoceV1);
    let rank = |entry: &&GidEntry| {
        let is_of_family = peer_is_ipv4.is_none_or(|ipv4| ipv4 == is_ipv4(&entry.gid));
        let first = core::cmp::Reverse(entry.index);
        (is_of_family, reach(&entry.gid), first)
    };
    usable.max_by_key(rank).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINK_LOCAL: Gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
    const IPV4: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 1];
    const IPV6: Gid = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn entry(index: u8, gid: Gid) -> GidEntry {
        GidEntry {
            index,
            gid,
            kind: GidKind::RoceV2,
            is_up: true,
        }
    }

    #[test]
    fn the_address_that_reaches_farthest_is_chosen() {
        let table = [
            entry(0, LINK_LOCAL),
            entry(1, IPV4),
            entry(2, IPV6),
            entry(3, IPV4),
        ];
        assert_eq!(choose(&table, None), Some(table[1]));
        assert_eq!(choose(&table, Some(true)), Some(table[1]));
        assert_eq!(choose(&table, Some(false)), Some(table[2]));
        assert_eq!(choose(&table[..1], Some(true)), Some(table[0]));
        assert_eq!(choose(&[], None), None);
    }

    #[test]
    fn what_is_down_empty_or_of_version_1_is_not_chosen() {
        let down = GidEntry {
            is_up: false,
            ..entry(0, IPV4)
        };
        let old = GidEntry {
            kind: GidKind::RoceV1,
            ..entry(1, IPV4)
        };
        assert_eq!(choose(&[down, old, entry(2, [0; 16])], None), None);
    }

    proptest! {
        #[test]
        fn nothing_better_is_left(
            entries in prop::collection::vec((0..3_usize, any::<bool>(), any::<bool>()), 0..8),
            family in any::<Option<bool>>(),
        ) {
            let table: Vec<GidEntry> = entries.iter().zip(0_u8..).map(|(&(gid, old, is_up), index)| {
                let kind = if old { GidKind::RoceV1 } else { GidKind::RoceV2 };
                GidEntry { index, gid: [LINK_LOCAL, IPV4, IPV6][gid], kind, is_up }
            }).collect();
            let usable = |e: &GidEntry| e.is_up && e.kind != GidKind::RoceV1;
            let chosen = choose(&table, family);
            prop_assert_eq!(chosen.is_some(), table.iter().any(usable));
            if let Some(chosen) = chosen {
                prop_assert!(usable(&chosen));
                for other in table.iter().filter(|e| usable(e)) {
                    let fits = |e: &GidEntry| family.is_none_or(|ipv4| is_ipv4(&e.gid) == ipv4);
                    prop_assert!(fits(&chosen) || !fits(other));
                    let same = fits(&chosen) == fits(other);
                    prop_assert!(!same || reach(&chosen.gid) >= reach(&other.gid));
                }
            }
        }
    }
}
