//! Places on the PCI bus.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Where a device sits on the PCI bus. Displayed as the system writes it: `0000:1a:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain, also called segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

/// A text is no place on the PCI bus, as in `0000:1a:00.0`.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a place on the PCI bus, like 0000:1a:00.0")]
pub struct NotAPciAddress;

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = NotAPciAddress;

    fn from_str(text: &str) -> Result<Self, NotAPciAddress> {
        let (rest, function) = text.rsplit_once('.').ok_or(NotAPciAddress)?;
        let mut fields = rest.split(':');
        let mut field = |digits| {
            let text = fields.next().ok_or(NotAPciAddress)?;
            number(text, digits)
        };
        let (domain, bus, device) = (field(4..=8)?, field(2..=2)?, field(2..=2)?);
        let function = number(function, 1..=1)?;
        if fields.next().is_some() || device > 0x1f || function > 7 {
            return Err(NotAPciAddress);
        }
        let byte = |number| u8::try_from(number).map_err(|_| NotAPciAddress);
        Ok(Self {
            domain,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }
}

/// Hexadecimal digits, so many of them.
fn number(text: &str, digits: std::ops::RangeInclusive<usize>) -> Result<u32, NotAPciAddress> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !digits.contains(&text.len()) {
        return Err(NotAPciAddress);
    }
    u32::from_str_radix(text, 16).map_err(|_| NotAPciAddress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_the_system_does_and_read_back() {
        let address = PciAddress {
            domain: 0,
            bus: 0x1a,
            device: 0x1f,
            function: 7,
        };
        let far = PciAddress {
            domain: 0x1_0000,
            ..address
        };
        for (address, text) in [(address, "0000:1a:1f.7"), (far, "10000:1a:1f.7")] {
            assert_eq!(address.to_string(), text);
            assert_eq!(text.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "",
            "0000:1a:00",
            "1a:00.0",
            "0000:1a:00.8",
            "0000:1a:20.0",
            "0000:1a:00.00",
            "0000:+a:00.0",
            "0000:1a:00:00.0",
            "000000000:1a:00.0",
            "pci0000:1a",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NotAPciAddress), "{text}");
        }
    }
}
