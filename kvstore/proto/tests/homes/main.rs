//! One home between others that say what they are told to: what it believes, remembers and waits for when members leave and
//! come back.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

mod bench;
mod departures;
mod losses;
mod memory;
