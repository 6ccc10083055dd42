//! Which start of which machine this is.

use std::fs;

use crate::executor::Core;

/// A number that two processes have in common if they run on one kernel: in one container or in two, and
/// whatever their addresses are. `None` in a simulated world, and where the system does not tell.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn boot_id() -> Option<u128> {
    if Core::current().simulated_host().is_some() {
        return None;
    }
    parse(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
}

fn parse(text: &str) -> Option<u128> {
    let digits: String = text.trim().split('-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoreOptions, block_on};

    #[test]
    fn a_kernel_has_one() {
        let both = block_on(None, CoreOptions::default(), || async {
            (boot_id(), boot_id())
        });
        let (one, other) = both.expect("a core");
        assert!(one.is_some());
        assert_eq!(one, other);
    }

    #[test]
    fn what_is_no_id_is_none() {
        assert_eq!(parse("00000000-0000-0000-0000-00000000000f\n"), Some(15));
        for text in ["", "f", "g0000000-0000-0000-0000-00000000000f"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
