//! The host's side.
//!
//! | module | subject |
//! |---|---|
//! | `queue` | [`Queue`]: one connection, commands in flight, deadlines |
//! | `inbound` | receiving for a queue |
//! | `controller` | [`RemoteController`]: bring-up, keep-alive, queues; [`discover`] |
//! | `seat` | [`QueueSeat`]: a queue for another core |
//! | `events` | what a controller tells unasked |
//! | `namespace` | [`RemoteNamespace`]: blocks, by one path or another; connecting again |

mod controller;
mod events;
mod inbound;
mod namespace;
mod queue;
mod seat;

pub use controller::{HostConfig, RemoteController, discover};
pub use events::ControllerEvent;
pub use namespace::{NamespaceOptions, PathState, RemoteNamespace};
pub use queue::{Data, Done, Queue};
pub use seat::QueueSeat;
