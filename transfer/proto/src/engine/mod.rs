//! The transfer engine's machines: what is registered, what travels, and over which rail.
//!
//! ```text
//!   a batch of requests                                     rails to one peer
//!        |                                                    |
//!        v                        Action::Send               v
//!   scheduler::Scheduler -- cuts slices, picks rails --> a call per slice (message)
//!        ^                                                    |
//!        |  answered, lost, refused, connected, fenced        v
//!        +----------------------------------------- segment::Segments (the peer's)
//! ```
//!
//! They name memory by segment, offset and length and never hold it.
//!
//! | module | subject |
//! |---|---|
//! | [`segment`] | [`segment::Segments`], memory under generation-checked ids, names and addresses |
//! | [`message`] | bodies of the engine's operations |
//! | [`one_sided`] | what engines say before adapters move bytes between their memories |
//! | [`rail`] | [`rail::Rail`], one way to a peer: its state, its rate, what is under way on it |
//! | [`same_host`] | two engines on one host: what they tell each other, and writes that the owner copies |
//! | [`siblings`] | the cores of an engine, as its peers are told of them |
//! | [`slices`] | [`slices::Cutter`], from requests to slices and back |
//! | [`scheduler`] | [`scheduler::Scheduler`], transfers over rails: order, failover, fences, deadlines |

pub mod message;
pub mod one_sided;
pub mod rail;
pub mod same_host;
pub mod scheduler;
pub mod segment;
pub mod siblings;
pub mod slices;
