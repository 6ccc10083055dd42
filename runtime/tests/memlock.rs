//! Without the right to lock much memory the arena works on, unlocked, and says so; without the right
//! to lock any, a kernel that counts a ring's memory refuses it, with a typed error. A process of its
//! own, because limits belong to a process.
#![forbid(unsafe_code)]

use std::thread;
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

/// What registering an arena of one chunk says.
fn register_one_chunk(chunk_bytes: usize) -> Result<usize, RegisterError> {
    let options = CoreOptions {
        arena: ArenaOptions {
            bytes_max: chunk_bytes,
            chunk_bytes,
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    };
    let registered = block_on(None, options, || async {
        let region = lunette_runtime::arena().alloc(4096).expect("memory");
        let registered = register_arena();
        drop(region);
        registered
    });
    registered.expect("a core")
}

#[test]
fn refused_locks_are_reported_with_their_remedy() {
    // What a user without rights has by default on many systems. A ring counts too.
    limit_locked_memory(8 << 20);
    let registered = register_one_chunk(4 << 20);
    assert!(
        matches!(registered, Ok(1) | Err(RegisterError::Unsupported)),
        "{registered:?}"
    );
    let refused = register_one_chunk(16 << 20);
    assert!(
        matches!(
            refused,
            Err(RegisterError::Memlock | RegisterError::Unsupported)
        ),
        "{refused:?}"
    );

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
    // The kernel gives back what rings of the past counted for when it comes to it.
    let opens = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(50));
        open_a_core().is_ok()
    });
    assert!(opens, "a ring needs little");

    let registered = register_one_chunk(CHUNK_BYTES_MIN);
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
