//! Sizes as people write them.

use std::fmt;

use thiserror::Error;

/// Units by their names, the largest first.
const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A number of bytes above zero, written like `512`, `64KiB` or `1.5GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// Why a text is no size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum SizeFault {
    #[error("no number; write a size like 512, 64KiB, 100MiB or 1.5GiB")]
    NoNumber,
    #[error("unknown unit `{0}`; the units are B, KiB, MiB, GiB and TiB")]
    UnknownUnit(String),
    #[error("a size is above zero")]
    Zero,
    #[error("larger than any memory")]
    TooLarge,
}

impl Size {
    /// Reads a size. Fractions are rounded down to whole bytes.
    pub(crate) fn parse(text: &str) -> Result<Self, SizeFault> {
        let text = text.trim();
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = (&text[..unit_at], text[unit_at..].trim());
        let unit_bytes = if unit.is_empty() {
            1
        } else {
            let known = |(name, _): &&(&str, u64)| name.eq_ignore_ascii_case(unit);
            let found = UNITS.iter().find(known);
            found
                .ok_or_else(|| SizeFault::UnknownUnit(unit.to_owned()))?
                .1
        };
        let bytes = scaled(number, unit_bytes)?;
        if bytes == 0 {
            return Err(SizeFault::Zero);
        }
        Ok(Self(bytes))
    }
}

/// `number`, a decimal fraction perhaps, times `unit_bytes`, in whole numbers.
fn scaled(number: &str, unit_bytes: u64) -> Result<u64, SizeFault> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(SizeFault::NoNumber);
    }
    let digits = u32::try_from(fraction.len()).map_err(|_| SizeFault::TooLarge)?;
    let parts = 10_u128.checked_pow(digits).ok_or(SizeFault::TooLarge)?;
    let joined: u128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| SizeFault::TooLarge)?;
    let scaled = joined
        .checked_mul(u128::from(unit_bytes))
        .ok_or(SizeFault::TooLarge)?;
    u64::try_from(scaled / parts).map_err(|_| SizeFault::TooLarge)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = UNITS
            .into_iter()
            .find(|&(_, bytes)| self.0 >= bytes)
            .unwrap_or(("B", 1));
        if self.0.is_multiple_of(bytes) {
            write!(f, "{}{name}", self.0 / bytes)
        } else {
            write!(f, "{:.1}{name}", self.0 as f64 / bytes as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("1", 1),
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("100MiB", 104_857_600),
            ("1GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5KiB", 512),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_why() {
        let cases = [
            ("", SizeFault::NoNumber),
            ("GiB", SizeFault::NoNumber),
            ("-1", SizeFault::UnknownUnit("-1".to_owned())),
            (".5GiB", SizeFault::NoNumber),
            ("1.", SizeFault::NoNumber),
            ("1.2.3KiB", SizeFault::NoNumber),
            ("1GB", SizeFault::UnknownUnit("GB".to_owned())),
            ("0", SizeFault::Zero),
            ("0.1B", SizeFault::Zero),
            ("18446744073709551616", SizeFault::TooLarge),
            ("16777216TiB", SizeFault::TooLarge),
            (
                "0.000000000000000000000000000000000000000001B",
                SizeFault::TooLarge,
            ),
        ];
        for (text, fault) in cases {
            assert_eq!(Size::parse(text), Err(fault), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        let cases = [
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (64 << 20, "64MiB"),
            (3 << 29, "1.5GiB"),
            (0, "0B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
