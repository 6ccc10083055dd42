//! A scenario on each driver that this system allows.

use std::future::Future;

use lunette_runtime::{CoreOptions, DriverChoice, ProbeError, StartError, block_on};

/// Runs `scenario` on each driver; where io_uring is forbidden, says so and runs it on the other.
pub(crate) fn run<F: Future<Output = ()> + 'static>(scenario: impl Fn() -> F) {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let options = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        match block_on(None, options, &scenario) {
            Ok(()) => {}
            Err(StartError::Driver(error @ ProbeError::Forbidden(_))) => {
                let thread = std::thread::current();
                let name = thread.name().unwrap_or_default();
                println!("SKIP {name}: on io_uring: {error}");
            }
            Err(error) => unreachable!("{error}"),
        }
    }
}
