//! Who takes part, over which lines, and what goes wrong.

use core::time::Duration;

use lunette_p2p_proto::swarm::Options;
use lunette_runtime_core::random::SplitMix64;

/// What goes wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// What part of the receivers dies, at times drawn between a tenth and nine tenths of the bound.
    pub dying: f64,
    /// When the first origin dies, as a part of the bound.
    pub origin_dies_at: Option<f64>,
    /// What part of the chunks arrives damaged, whoever sends them.
    pub corrupt: f64,
    /// From when to when nobody can read the catalogue, as parts of the bound.
    pub catalogue_lost: Option<(f64, f64)>,
}

/// A swarm, or as many receivers under Mooncake's scheme.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Who has the whole object at first; they are the first hosts.
    pub origins: usize,
    /// Who wants it, all at the same time.
    pub receivers: usize,
    /// How long the object is.
    pub object_bytes: u64,
    /// How long its chunks are.
    pub chunk_bytes: u64,
    /// What a host's line carries, each way.
    pub bytes_per_s: u64,
    /// How many receivers have a line of a tenth.
    pub stragglers: usize,
    /// Whether lines are of a half, of this, and of twice as much, in turn, but for the origins'.
    pub is_mixed: bool,
    /// Racks, over which hosts are spread in turn.
    pub racks: usize,
    /// What is carried into and out of each rack.
    pub between_bytes_per_s: u64,
    /// How long a message takes.
    pub latency: Duration,
    /// What the machines may do.
    pub options: Options,
    /// What goes wrong.
    pub faults: Faults,
    /// Draws everything.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            origins: 1,
            receivers: 64,
            object_bytes: 16 << 30,
            chunk_bytes: 8 << 20,
            bytes_per_s: 12_500_000_000,
            stragglers: 0,
            is_mixed: false,
            racks: 1,
            between_bytes_per_s: 12_500_000_000,
            latency: Duration::from_micros(50),
            options: Options::default(),
            faults: Faults::default(),
            seed: 1,
        }
    }
}

/// How much less a straggler's line carries.
const STRAGGLER_FACTOR: u64 = 10;

impl Scenario {
    pub(super) const fn hosts(&self) -> usize {
        self.origins + self.receivers
    }

    pub(super) const fn is_straggler(&self, host: usize) -> bool {
        host >= self.hosts() - self.stragglers
    }

    /// What a host's line carries.
    pub(super) fn line(&self, host: usize) -> u64 {
        if host < self.origins {
            self.bytes_per_s
        } else if self.is_straggler(host) {
            self.bytes_per_s / STRAGGLER_FACTOR
        } else if self.is_mixed {
            (self.bytes_per_s / 2) << (host % 3)
        } else {
            self.bytes_per_s
        }
    }

    pub(super) const fn rack(&self, host: usize) -> usize {
        host % self.racks
    }

    pub(super) fn chunks(&self) -> u32 {
        let chunks = self.object_bytes.div_ceil(self.chunk_bytes);
        u32::try_from(chunks).expect("a scenario has so many chunks at most")
    }

    pub(super) fn chunk_len(&self, chunk: u32) -> u64 {
        let start = u64::from(chunk) * self.chunk_bytes;
        self.chunk_bytes.min(self.object_bytes - start)
    }

    /// What no scheme can pass: the object once over the slowest line that it must all go over, and the time that a
    /// pipeline of receivers takes to fill. Stragglers have a time of their own, and are not counted.
    #[must_use]
    pub fn bound(&self) -> Duration {
        let hosts = 0..self.hosts() - self.stragglers;
        let lines: Vec<_> = hosts.map(|host| self.line(host)).collect();
        let slowest = lines.iter().copied().min().unwrap_or(self.bytes_per_s);
        let origins = self.bytes_per_s * self.origins as u64;
        let mut line = slowest.min(origins);
        let all: u64 = lines.iter().sum();
        let receivers = self.receivers - self.stragglers;
        line = line.min(all / receivers.max(1) as u64);
        if self.racks > 1 && self.origins < self.racks {
            line = line.min(self.between_bytes_per_s);
        }
        let fill = (self.receivers + 1).next_power_of_two().ilog2();
        let seconds = |bytes: u64, line: u64| bytes as f64 / line as f64;
        let one = seconds(self.object_bytes, line);
        let filling = f64::from(fill) * seconds(self.chunk_bytes, slowest.max(1));
        Duration::from_secs_f64(one + filling)
    }

    /// The receivers that die, and when.
    pub(super) fn deaths(&self) -> Vec<(usize, Duration)> {
        let mut random = SplitMix64::new(self.seed ^ 0xdead);
        let bound = self.bound();
        let mut alive: Vec<_> = (self.origins..self.hosts()).collect();
        let count = (self.receivers as f64 * self.faults.dying).round();
        let mut deaths = Vec::new();
        while (deaths.len() as f64) < count {
            let length = u32::try_from(alive.len()).expect("receivers are few");
            let host = alive.swap_remove(random.below(length) as usize);
            deaths.push((host, bound.mul_f64(0.8f64.mul_add(random.unit(), 0.1))));
        }
        if let Some(part) = self.faults.origin_dies_at {
            deaths.push((0, bound.mul_f64(part)));
        }
        deaths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_one_transfer_and_the_pipeline() {
        let scenario = Scenario {
            receivers: 7,
            object_bytes: 1000,
            chunk_bytes: 10,
            bytes_per_s: 1000,
            between_bytes_per_s: 1000,
            ..Scenario::default()
        };
        assert_eq!(scenario.bound(), Duration::from_millis(1030));
        let racks = Scenario {
            racks: 2,
            between_bytes_per_s: 100,
            ..scenario.clone()
        };
        assert_eq!(racks.bound(), Duration::from_millis(10_030));
        let two = Scenario {
            origins: 2,
            ..scenario
        };
        assert_eq!(
            two.bound(),
            Duration::from_millis(1030),
            "a receiver's own line"
        );
    }

    #[test]
    fn as_many_die_as_it_says_and_no_origin() {
        let mut scenario = Scenario {
            receivers: 20,
            ..Scenario::default()
        };
        scenario.faults.dying = 0.1;
        let deaths = scenario.deaths();
        assert_eq!(deaths.len(), 2);
        assert!(deaths.iter().all(|&(host, _)| host >= 1));
        scenario.faults.origin_dies_at = Some(0.5);
        assert_eq!(scenario.deaths().last().unwrap().0, 0);
    }
}
