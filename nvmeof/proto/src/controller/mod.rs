//! The controller's side.
//!
//! | module | subject |
//! |---|---|
//! | `queue` | [`ControllerQueue`]: one connection, the commands to carry out on it |
//! | `cids` | which ids of commands are in use |
//! | `stage` | what may happen to a command when |
//! | `target` | [`Target`]: subsystems, controllers, and what they answer |
//! | `view` | [`IoView`]: what commands for I/O are checked against; [`IoOrder`]: what they ask for |
//! | `shares` | [`Shares`]: whose command is carried out next |
//! | `access` | who has to prove what before a queue may be used |
//! | `admin`, `life`, `settings` | admin commands; a controller's states; its features |

mod access;
mod admin;
mod cids;
mod life;
mod queue;
mod settings;
mod shares;
mod stage;
mod target;
mod view;

pub use queue::{ControllerOptions, ControllerQueue, ControllerStep};
pub use shares::{HostId, Shares};
pub use target::{
    AdminReply, Attached, CONTROLLER_ID_MAX, ControllerId, Namespace, Notice, Refusal,
    SUBSYSTEMS_MAX, Secrets, Subsystem, SubsystemOptions, Target, TargetOptions,
};
pub use view::{IoOrder, IoView};
