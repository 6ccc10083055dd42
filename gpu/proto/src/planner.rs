//! DMA, batched DMA or kernel: chosen by what was measured when the program started.
//!
//! A copy engine is the fastest for large pieces and leaves the SMs to the model; each piece costs
//! it a submission, though, and a list of small ones is better given to it in one call, or to a
//! kernel that moves them itself. Where the borders are depends on machine, driver and direction. So
//! the driver runs the [`PROBES`] of each direction and the planner draws a line through each
//! method's times: a fixed cost, a cost per piece, a cost per byte.

use std::time::Duration;

use thiserror::Error;

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From memory of the host to the device's.
    HostToDevice,
    /// From the device's memory to the host's.
    DeviceToHost,
    /// Inside the device.
    DeviceToDevice,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::HostToDevice, Self::DeviceToHost, Self::DeviceToDevice];
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A copy engine, one submission for each piece.
    Dma,
    /// A copy engine, one submission for all pieces.
    BatchedDma,
    /// A kernel on some of the SMs.
    Kernel,
}

impl Method {
    /// All of them, from the one that disturbs least.
    pub const ALL: [Self; 3] = [Self::Dma, Self::BatchedDma, Self::Kernel];
}

/// Something to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Pieces.
    pub pieces: u32,
    /// Bytes of each.
    pub piece_bytes: u32,
}

impl Probe {
    /// Bytes of all pieces.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.pieces as u64 * self.piece_bytes as u64
    }
}

/// What is measured of each method in each direction: one small piece, many small ones, few large
/// ones. The three differ in exactly the three costs.
pub const PROBES: [Probe; 3] = [
    Probe {
        pieces: 1,
        piece_bytes: 4096,
    },
    Probe {
        pieces: 512,
        piece_bytes: 4096,
    },
    Probe {
        pieces: 2,
        piece_bytes: 8 << 20,
    },
];

/// What a method costs in a direction, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// However little it is.
    pub fixed_ps: u64,
    /// For each piece.
    pub piece_ps: u64,
    /// For each byte.
    pub byte_ps: u64,
}

/// Why nothing is known of a method.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CalibrationError {
    /// A time of zero was told: no clock measures that.
    #[error("a measured time of zero")]
    Zero,
    /// A probe took longer than [`PROBE_TIME_MAX`].
    #[error("a probe took longer than {PROBE_TIME_MAX:?}")]
    Slow,
}

/// Longest time of a probe that still says something.
pub const PROBE_TIME_MAX: Duration = Duration::from_secs(60);

impl Cost {
    /// The line through the times of the [`PROBES`], in their order.
    ///
    /// # Errors
    /// [`CalibrationError`]: measure again, or do without the method.
    pub fn fit(times: [Duration; PROBES.len()]) -> Result<Self, CalibrationError> {
        if times.iter().any(Duration::is_zero) {
            return Err(CalibrationError::Zero);
        }
        if times.iter().any(|time| *time > PROBE_TIME_MAX) {
            return Err(CalibrationError::Slow);
        }
        let [one, many, large] = times.map(|time| time.as_nanos() * 1000);
        let [first, second, third] = PROBES;
        let bytes = |probe: Probe| u128::from(probe.bytes());
        // Few large pieces differ from one small piece in bytes, next to nothing else.
        let byte_ps = large.saturating_sub(one) / (bytes(third) - bytes(first));
        let more_bytes = (bytes(second) - bytes(first)) * byte_ps;
        let more_pieces = u128::from(second.pieces - first.pieces);
        let piece_ps = many.saturating_sub(one).saturating_sub(more_bytes) / more_pieces;
        let fixed_ps = one.saturating_sub(piece_ps + bytes(first) * byte_ps);
        let narrow = |ps: u128| u64::try_from(ps).expect("bounded by PROBE_TIME_MAX");
        Ok(Self {
            fixed_ps: narrow(fixed_ps),
            piece_ps: narrow(piece_ps),
            byte_ps: narrow(byte_ps),
        })
    }

    /// What so many pieces of so many bytes together cost, in picoseconds.
    #[must_use]
    pub fn of(&self, pieces: u64, bytes: u64) -> u128 {
        u128::from(self.fixed_ps)
            + u128::from(self.piece_ps) * u128::from(pieces)
            + u128::from(self.byte_ps) * u128::from(bytes)
    }
}

/// What is known of each method in each direction. A method of which nothing is known is not used,
/// but for [`Method::Dma`], which every device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planner {
    /// By direction, by method.
    costs: [[Option<Cost>; Method::ALL.len()]; Direction::ALL.len()],
}

impl Planner {
    /// One that knows nothing, and so always answers [`Method::Dma`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            costs: [[None; Method::ALL.len()]; Direction::ALL.len()],
        }
    }

    /// Takes what a method costs in a direction; none where it cannot be used there.
    pub fn learn(&mut self, direction: Direction, method: Method, cost: Option<Cost>) {
        self.costs[direction as usize][method as usize] = cost;
    }

    /// What is known of a method in a direction.
    #[must_use]
    pub const fn cost(&self, direction: Direction, method: Method) -> Option<Cost> {
        self.costs[direction as usize][method as usize]
    }

    /// The cheapest way for so many pieces of so many bytes together, of those that `is_usable`
    /// admits. Of equal ones it is the one that disturbs least.
    pub fn choose(
        &self,
        direction: Direction,
        pieces: u64,
        bytes: u64,
        is_usable: impl Fn(Method) -> bool,
    ) -> Method {
        let known = Method::ALL.into_iter().filter(|method| is_usable(*method));
        let priced = known.filter_map(|method| {
            let cost = self.cost(direction, method)?;
            Some((cost.of(pieces, bytes), method))
        });
        priced
            .min_by_key(|(cost, _)| *cost)
            .map_or(Method::Dma, |(_, method)| method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Direction::{DeviceToDevice, DeviceToHost, HostToDevice};

    /// As a device with these costs would measure.
    fn measured(cost: Cost) -> [Duration; 3] {
        PROBES.map(|probe| {
            let ps = cost.of(u64::from(probe.pieces), probe.bytes());
            Duration::from_nanos(u64::try_from(ps / 1000).unwrap())
        })
    }

    fn cost(fixed_us: u64, piece_ns: u64, byte_ps: u64) -> Cost {
        Cost {
            fixed_ps: fixed_us * 1_000_000,
            piece_ps: piece_ns * 1000,
            byte_ps,
        }
    }

    /// Copy engine, batch, kernel, about as a PCIe 5 device has them.
    fn planner() -> Planner {
        let mut planner = Planner::new();
        for direction in [HostToDevice, DeviceToHost] {
            planner.learn(direction, Method::Dma, Some(cost(8, 2000, 18)));
            planner.learn(direction, Method::BatchedDma, Some(cost(15, 300, 18)));
            planner.learn(direction, Method::Kernel, Some(cost(12, 20, 22)));
        }
        planner.learn(DeviceToDevice, Method::Dma, Some(cost(6, 1500, 1)));
        planner
    }

    #[test]
    fn the_line_goes_through_what_was_measured() {
        for wanted in [cost(8, 2000, 18), cost(15, 300, 18), cost(0, 0, 20)] {
            let fitted = Cost::fit(measured(wanted)).unwrap();
            for probe in PROBES {
                let (pieces, bytes) = (u64::from(probe.pieces), probe.bytes());
                let (is, should) = (fitted.of(pieces, bytes), wanted.of(pieces, bytes));
                // One picosecond for each byte is what integers lose.
                assert!(
                    is.abs_diff(should) <= should / 10 + 2_000_000,
                    "{is} {should}"
                );
            }
        }
    }

    #[test]
    fn times_that_say_nothing_are_refused() {
        let second = Duration::from_secs(1);
        let fit = |last| Cost::fit([second, second, last]);
        assert_eq!(fit(Duration::ZERO), Err(CalibrationError::Zero));
        assert!(fit(PROBE_TIME_MAX).is_ok());
        let longer = PROBE_TIME_MAX + Duration::from_nanos(1);
        assert_eq!(fit(longer), Err(CalibrationError::Slow));
        // A clock that jumped, or a machine that was busy: no cost is negative.
        let odd = Cost::fit([second, second / 2, second / 4]).unwrap();
        assert_eq!((odd.piece_ps, odd.byte_ps), (0, 0));
    }

    #[test]
    fn each_way_has_its_place() {
        let planner = planner();
        let all = |_| true;
        let table = [
            (HostToDevice, 1, 4096, Method::Dma),
            (HostToDevice, 1, 1 << 30, Method::Dma),
            (HostToDevice, 16, 16 << 20, Method::BatchedDma),
            (DeviceToHost, 4096, 4096 * 4096, Method::Kernel),
            (DeviceToHost, 4096, 4096 << 20, Method::BatchedDma),
            (DeviceToDevice, 4096, 4096 * 4096, Method::Dma),
        ];
        for (direction, pieces, bytes, method) in table {
            let chosen = planner.choose(direction, pieces, bytes, all);
            assert_eq!(chosen, method, "{direction:?} {pieces} {bytes}");
        }
    }

    #[test]
    fn what_is_forbidden_or_unknown_is_not_chosen() {
        let planner = planner();
        let no_kernel = |method| method != Method::Kernel;
        let chosen = planner.choose(DeviceToHost, 4096, 4096 * 4096, no_kernel);
        assert_eq!(chosen, Method::BatchedDma);
        let chosen = planner.choose(DeviceToHost, 4096, 1 << 24, |_| false);
        assert_eq!(chosen, Method::Dma, "every device has it");
        let chosen = Planner::new().choose(DeviceToHost, 4096, 1 << 24, |_| true);
        assert_eq!(chosen, Method::Dma);
    }

    #[test]
    fn of_equal_ways_the_one_that_disturbs_least_is_chosen() {
        let mut planner = Planner::new();
        for method in Method::ALL {
            planner.learn(DeviceToHost, method, Some(cost(1, 1, 1)));
        }
        let chosen = planner.choose(DeviceToHost, 9, 9, |_| true);
        assert_eq!(chosen, Method::Dma);
    }
}
