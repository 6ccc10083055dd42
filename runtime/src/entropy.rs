//! Numbers that nobody can tell in advance.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::executor::Core;

/// The system could not give any.
const NO_ENTROPY: &str = "a system that runs programs gives random bytes";

/// A number for names that are not to come again and that nobody is to guess: the epoch of a session,
/// say. From the system's generator (`getrandom(2)`), or from the seed of a simulated world.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn entropy() -> u64 {
    if let Some(host) = Core::current().simulated_host() {
        return host.draw();
    }
    let mut bytes = [0; size_of::<u64>()];
    let mut filled = 0;
    while filled < bytes.len() {
        // Interrupted calls give what they have.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).expect(NO_ENTROPY);
    }
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;
    use crate::sim::{World, WorldOptions};
    use crate::{CoreOptions, block_on};

    #[test]
    fn the_system_does_not_repeat_itself_and_a_world_does_with_its_seed() {
        let two = block_on(None, CoreOptions::default(), || async {
            (entropy(), entropy())
        });
        let (one, other) = two.expect("a core");
        assert_ne!(one, other);
        let in_world = |seed| {
            let mut world = World::new(seed, WorldOptions::default());
            let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let process = world.start(host, 1, CoreOptions::default());
            let drawn = world.spawn(process, 0, || async { (entropy(), entropy()) });
            world.run_for(Duration::from_millis(1));
            drawn.take().expect("it was drawn")
        };
        assert_eq!(in_world(1), in_world(1));
        assert_ne!(in_world(1), in_world(2));
        assert_ne!(in_world(1).0, in_world(1).1);
    }
}
