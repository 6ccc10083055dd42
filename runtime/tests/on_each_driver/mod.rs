//! A scenario on each driver: those that this system allows, and the simulated one, so that it does
//! what the kernel does.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, DriverChoice, ProbeError, StartError, block_on};

/// How long a scenario may last, in a world's time.
const WORLD_MAX: Duration = Duration::from_secs(600);

/// Set where io_uring is forbidden on purpose, so that a scenario is not skipped for not running on it.
const FORBIDDEN_ON_PURPOSE: &str = "LUNETTE_WITHOUT_URING";

/// Runs `scenario` on each driver, and in that many simulated worlds: in none if it is about what a
/// world does not have. Where io_uring is forbidden, and not on purpose, says so and runs it on the
/// others.
pub(crate) fn run<F: Future<Output = ()> + 'static>(worlds: u64, scenario: impl Fn() -> F) {
    run_on_system(&scenario);
    for seed in 0..worlds {
        // As on a system's loopback, a few bytes come at once.
        let options = WorldOptions {
            short_receives_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let done = world.spawn(process, 0, &scenario);
        let until = world.now() + WORLD_MAX;
        let ended = world.run_until(until, || done.is_there());
        assert!(ended, "in a world of seed {seed} it does not end");
    }
}

fn run_on_system<F: Future<Output = ()> + 'static>(scenario: impl Fn() -> F) {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let options = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        match block_on(None, options, &scenario) {
            Ok(()) => {}
            Err(StartError::Driver(error @ ProbeError::Forbidden(_))) => {
                if std::env::var_os(FORBIDDEN_ON_PURPOSE).is_none() {
                    let thread = std::thread::current();
                    let name = thread.name().unwrap_or_default();
                    println!("SKIP {name}: on io_uring: {error}");
                }
            }
            Err(error) => unreachable!("{error}"),
        }
    }
}
