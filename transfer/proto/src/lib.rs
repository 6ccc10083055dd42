//! The Lunette wire protocol as sans-IO state machines.
