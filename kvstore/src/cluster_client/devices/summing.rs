//! Who sums what a device copies: a kernel of the device's, which copies it as well, or this core, beside the copy engine.
//!
//! A kernel leaves the core alone, and copies as fast as the engine does. But it waits for SMs where a model has them,
//! longer than it takes to sum a few MiB; the engine waits for nobody.

use std::cell::Cell;
use std::time::Duration;

/// Below, a core sums sooner than a kernel begins.
const KERNEL_FROM_BYTES: usize = 128 * 1024;
/// Below, how long a sum took says little.
const TELLS_FROM_BYTES: usize = 64 * 1024;
/// What a kernel and the bus take for a byte, and the copy engine: 50 GB/s.
const COPIED_BYTE_PS: u64 = 20;
/// What a core takes to sum a byte before one was timed: 12.5 GB/s.
const SUMMED_BYTE_PS: u64 = 80;
/// A kernel may take so much longer than a core, as that many times of hundred: a core that sums does nothing else.
const KERNEL_PERCENT: u64 = 125;

/// When this core would have summed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    /// While the device copies it: a get.
    Beside,
    /// When it has been copied: a put.
    Behind,
}

/// What is known of this core's sums.
#[derive(Debug)]
pub(super) struct Summing {
    byte_ps: Cell<u64>,
}

impl Summing {
    pub(super) const fn new() -> Self {
        Self {
            byte_ps: Cell::new(SUMMED_BYTE_PS),
        }
    }

    /// Whether so many bytes may be a kernel's: what it waits is worth a look.
    pub(super) const fn has_choice(bytes: usize) -> bool {
        bytes >= KERNEL_FROM_BYTES
    }

    /// Whether it is better to have so many bytes summed by a kernel, which waits so long until it begins.
    pub(super) fn is_for_kernel(&self, bytes: usize, sum: Sum, kernel_wait: Duration) -> bool {
        if !Self::has_choice(bytes) {
            return false;
        }
        let of_bytes = |byte_ps: u64| (bytes as u64).saturating_mul(byte_ps);
        let wait_ps = u64::try_from(kernel_wait.as_nanos()).unwrap_or(u64::MAX);
        let wait_ps = wait_ps.saturating_mul(1000);
        let kernel_ps = wait_ps.saturating_add(of_bytes(COPIED_BYTE_PS));
        let summed_ps = of_bytes(self.byte_ps.get());
        let core_ps = match sum {
            Sum::Beside => summed_ps.max(of_bytes(COPIED_BYTE_PS)),
            Sum::Behind => summed_ps.saturating_add(of_bytes(COPIED_BYTE_PS)),
        };
        kernel_ps.saturating_mul(100) <= core_ps.saturating_mul(KERNEL_PERCENT)
    }

    /// This core has summed so many bytes in that time.
    pub(super) fn summed(&self, bytes: usize, took: Duration) {
        if bytes >= TELLS_FROM_BYTES {
            let took_ps = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 1000);
            let byte_ps = took_ps.saturating_mul(1000) / bytes as u64;
            // One that was interrupted is one of eight.
            let known = self.byte_ps.get();
            self.byte_ps.set(known - known / 8 + byte_ps / 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn wait(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_kernel_sums_unless_it_waits_too_long_or_there_is_little_to_sum() {
        let summing = Summing::new();
        let table = [
            (64 * 1024, Sum::Beside, 0, false),
            (KERNEL_FROM_BYTES, Sum::Beside, 0, true),
            (KERNEL_FROM_BYTES, Sum::Beside, 20, false),
            (MIB, Sum::Beside, 80, true),
            (MIB, Sum::Beside, 90, false),
            (MIB, Sum::Behind, 105, true),
            (MIB, Sum::Behind, 115, false),
            (4 * MIB, Sum::Beside, 330, true),
            (4 * MIB, Sum::Beside, 350, false),
            (usize::MAX, Sum::Behind, u64::MAX, true),
        ];
        for (bytes, sum, us, expected) in table {
            let is_kernels = summing.is_for_kernel(bytes, sum, wait(us));
            assert_eq!(is_kernels, expected, "{bytes} {sum:?} {us}");
        }
    }

    #[test]
    fn a_core_that_sums_faster_than_was_thought_does_so_more_often() {
        let summing = Summing::new();
        // Too little to tell.
        summing.summed(TELLS_FROM_BYTES - 1, Duration::from_secs(1));
        assert!(summing.is_for_kernel(MIB, Sum::Beside, wait(80)));
        for _ in 0..40 {
            summing.summed(4 * MIB, wait(168));
        }
        assert!(!summing.is_for_kernel(MIB, Sum::Beside, wait(50)));
        assert!(summing.is_for_kernel(MIB, Sum::Beside, wait(20)));
        for _ in 0..40 {
            summing.summed(4 * MIB, wait(1000));
        }
        assert!(summing.is_for_kernel(MIB, Sum::Beside, wait(250)));
    }
}
