//! Where memory lies.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest name of a kind of device, in bytes.
const KIND_BYTES_MAX: usize = 16;

/// Where memory lies. Written as Mooncake does: `cpu:0`, `cuda:3`, `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// Anywhere, or nobody knows.
    Any,
    /// Memory of the host, on this NUMA node.
    Cpu(u32),
    /// Memory of a device.
    Device {
        /// `cuda`, `npu`: lower-case letters.
        kind: Box<str>,
        /// Which one, as its library counts.
        index: u32,
    },
}

/// A text names no place of memory.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no place of memory: cpu:N, cuda:N or *")]
pub struct NotALocation(pub String);

impl Location {
    /// Memory of a GPU, as CUDA counts them.
    #[must_use]
    pub fn cuda(index: u32) -> Self {
        let kind = "cuda".into();
        Self::Device { kind, index }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Cpu(node) => write!(f, "cpu:{node}"),
            Self::Device { kind, index } => write!(f, "{kind}:{index}"),
        }
    }
}

impl FromStr for Location {
    type Err = NotALocation;

    fn from_str(text: &str) -> Result<Self, NotALocation> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let refused = || NotALocation(text.chars().take(64).collect());
        let (kind, number) = text.split_once(':').ok_or_else(refused)?;
        let index: u32 = number.parse().map_err(|_| refused())?;
        // One way to write each, so that no two keys of a file are the same place.
        if index.to_string() != number {
            return Err(refused());
        }
        let is_kind = kind.bytes().all(|byte| byte.is_ascii_lowercase());
        match kind {
            "cpu" => Ok(Self::Cpu(index)),
            _ if is_kind && (1..=KIND_BYTES_MAX).contains(&kind.len()) => {
                let kind = kind.into();
                Ok(Self::Device { kind, index })
            }
            _ => Err(refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_and_read_alike() {
        let npu = Location::Device {
            kind: "npu".into(),
            index: 7,
        };
        let places = [
            (Location::Any, "*"),
            (Location::Cpu(0), "cpu:0"),
            (Location::Cpu(u32::MAX), "cpu:4294967295"),
            (Location::cuda(12), "cuda:12"),
            (npu, "npu:7"),
        ];
        for (place, text) in places {
            assert_eq!(place.to_string(), text);
            assert_eq!(text.parse(), Ok(place));
        }
    }

    #[test]
    fn what_is_no_place_is_named() {
        let long = format!("{}:0", "a".repeat(KIND_BYTES_MAX + 1));
        for text in [
            "",
            "cpu",
            "cpu:",
            ":0",
            "cpu:-1",
            "cpu:+1",
            "cpu:01",
            "CPU:0",
            "cpu:4294967296",
            "**",
            "cpu:0:1",
            &long,
        ] {
            let refused = text.parse::<Location>().expect_err(text);
            assert_eq!(refused, NotALocation(text.to_owned()));
        }
        let longest = format!("{}:0", "a".repeat(KIND_BYTES_MAX));
        assert!(longest.parse::<Location>().is_ok());
        // What is reported is bounded, whatever came.
        let refused = "x".repeat(1000).parse::<Location>().expect_err("no place");
        assert_eq!(refused.0.len(), 64);
    }
}
