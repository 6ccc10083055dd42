//! The Lunette wire protocol as sans-IO state machines.
#![forbid(unsafe_code)]

pub mod calls;
mod deadlines;
pub mod frame;
pub mod hello;
pub mod receiver;
