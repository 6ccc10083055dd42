//! Without the right to lock much memory the arena works on, unlocked, and says so; without the right
//! to lock any, a kernel that counts a ring's memory refuses it, with a typed error. A process of its
//! own, because limits belong to a process.
#![forbid(unsafe_code)]

use std::time::Duration;

use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN, Shortfall};
use lunette_runtime::{
    CoreOptions, ProbeError, RegisterError, StartError, block_on, register_arena, time,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn limit_locked_memory(bytes: u64) {
    let limit = getrlimit(Resource::Memlock);
    let lowered = Rlimit {
        current: Some(bytes),
        ..limit
    };
    setrlimit(Resource::Memlock, lowered).expect("lowering a limit");
    let mut sets = capabilities(None).expect("this thread's capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("giving a capability up");
}

fn open_a_core() -> Result<(), StartError> {
    block_on(None, CoreOptions::default(), || {
        time::sleep(Duration::from_millis(1))
    })
}

#[test]
fn refused_locks_are_reported_with_their_remedy() {
    limit_locked_memory(CHUNK_BYTES_MIN as u64 / 2);
    let options = ArenaOptions {
        bytes_max: CHUNK_BYTES_MIN,
        lock: true,
        ..ArenaOptions::default()
    };
    let arena = Arena::new(options);
    let mut region = arena.alloc(4096).expect("memory without a lock");
    region.as_mut_slice().fill(1);
    let shortfalls = arena.shortfalls();
    assert!(
        matches!(shortfalls[..], [Shortfall::Lock(_)]),
        "{shortfalls:?}"
    );
    assert!(
        shortfalls[0].to_string().contains("memlock"),
        "the remedy is named"
    );
    assert_eq!(open_a_core(), Ok(()), "a ring needs little");

    let registered = block_on(None, CoreOptions::default(), || async {
        let region = lunette_runtime::arena().alloc(4096).expect("memory");
        (register_arena(), region.len())
    });
    let (registered, _) = registered.expect("a core");
    assert!(
        matches!(
            registered,
            Err(RegisterError::Memlock | RegisterError::Unsupported)
        ),
        "{registered:?}"
    );

    limit_locked_memory(0);
    if let Err(error) = open_a_core() {
        assert!(
            matches!(error, StartError::Driver(ProbeError::NoMemory(_))),
            "{error}"
        );
        assert!(error.to_string().contains("memlock"), "the remedy is named");
    }
}
