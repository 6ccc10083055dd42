//! The host's side.
//!
//! | module | subject |
//! |---|---|
//! | `queue` | [`HostQueue`]: one connection, the commands in flight on it |
//! | `heads` | what completions may say of the submission queue's head |
//! | `stage` | what a controller may do about a command, and when |
//! | `bring_up` | [`BringUp`]: from a connection to a controller that works |
//! | `association` | [`Association`]: what is kept of it, to connect its queues |
//! | `paths` | [`Paths`]: which of several paths a command goes by |
//! | `hedge` | [`Hedge`]: when a read is sent a second way |
//! | `reconnect` | [`Reconnect`]: when to try again, and when to give up |

mod association;
mod bring_up;
mod heads;
mod hedge;
mod paths;
pub(crate) mod queue;
mod reconnect;
mod stage;

pub use association::Association;
pub use bring_up::{BringUp, BringUpFault, BringUpOptions, Next, Request, RequestData};
pub use hedge::{Hedge, HedgeCounts, HedgeDelay, HedgeOptions};
pub use paths::{Choice, Fate, NoPath, PATHS_MAX, PathFacts, PathPolicy, Paths, fate_of};
pub use queue::{
    COMMANDS_MAX, Expired, GiveUp, HostOptions, HostQueue, HostStep, QueueFull, Transfer,
};
pub use reconnect::{Reconnect, ReconnectOptions, Retry};
