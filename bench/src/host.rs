//! What the host does to this machine meanwhile.

use std::fs;

/// Time of all CPUs since boot, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticks {
    total: u64,
    stolen: u64,
}

impl Ticks {
    /// The counters of `/proc/stat`, or zeros where there are none.
    #[must_use]
    pub fn now() -> Self {
        fs::read_to_string("/proc/stat")
            .map(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Fields of the first line: user nice system idle iowait irq softirq steal (man 5 proc).
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        Self {
            total: fields.iter().sum(),
            stolen: fields.get(7).copied().unwrap_or(0),
        }
    }

    /// Share of all CPUs' time that the host gave to others since `before`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "ticks of one run are far below 2^52"
    )]
    #[must_use]
    pub fn stolen_since(self, before: Self) -> f64 {
        let total = self.total.saturating_sub(before.total);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if total == 0 {
            0.0
        } else {
            stolen as f64 / total as f64
        }
    }
}

/// Load average of the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|field| field.parse().ok())
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_field() {
        let before = Ticks::parse("cpu  10 0 10 80 0 0 0 0 7 7\ncpu0 1 1");
        let after = Ticks::parse("cpu  20 0 20 150 0 0 0 10 9 9\ncpu0 1 1");
        assert!((after.stolen_since(before) - 0.1).abs() < 1e-9);
        assert!(Ticks::parse("nonsense").stolen_since(after).abs() < 1e-9);
    }
}
