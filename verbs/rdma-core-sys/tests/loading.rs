//! Nothing of RDMA is part of a program until it asks for it, so that the same program runs where
//! there is none. A process of its own, in which nobody else has asked.

use std::fs;

use rdma_core_sys::{Library, Unavailable};

fn has_library() -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("a process reads its own");
    maps.contains("/libibverbs.so")
}

#[test]
fn the_library_is_loaded_when_it_is_asked_for_and_not_before() {
    assert!(!has_library(), "nothing links it");
    match Library::open() {
        Ok(_) => assert!(has_library()),
        Err(Unavailable::NoLibrary { .. }) => assert!(!has_library()),
        Err(other) => assert!(!other.to_string().is_empty()),
    }
}
