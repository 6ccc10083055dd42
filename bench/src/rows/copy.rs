//! A core that copies: what a transfer between two processes of one host is measured beside.

use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::Failure;
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::topology::pin_current_thread;

/// Copies between two memories that are mapped as an engine's are.
pub(super) fn measure(cpu: usize, pace: Pace, bytes: usize) -> Result<Calls, Failure> {
    pin_current_thread(cpu)?;
    let map = || Exposed::map(bytes, HugePages::Never, &mut Vec::new());
    let (from, to) = (map()?, map()?);
    from.copy_in(0, &vec![3; bytes]);
    to.copy_in(0, &vec![5; bytes]);
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            std::thread::sleep(PACED_PAUSE);
        }
        calls.begin();
        to.copy_from(0, &from);
        calls.end();
    }
    Ok(calls)
}
