//! NVMe/TCP under attack: a hostile host against a controller, a hostile controller against a host.
//!
//! | module | subject |
//! |---|---|
//! | `script` | from fuzz bytes to a hostile stream and its cuts |
//! | `auth` | authentication, with somebody in the middle: nobody without the secret comes in |
//! | `controller` | a controller and its target: the same answers however the stream is cut |
//! | `several` | several hosts of one target, and a stranger: the disk holds what the hosts wrote |
//! | `host` | a host's commands: each ends once, and no byte goes where it may not |

mod auth;
mod controller;
mod host;
mod script;
mod several;

use script::Script;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Connections that were set up.
    pub opened: u32,
    /// Streams that ended with a fault.
    pub faults: u32,
    /// Headers whose digest did not fit.
    pub header_digests: u32,
    /// Controllers that hosts connected.
    pub connected: u32,
    /// Commands that a controller carried out.
    pub carried_out: u32,
    /// Commands whose data came whole.
    pub data_complete: u32,
    /// Commands whose data were damaged.
    pub data_corrupt: u32,
    /// Commands of a host that completed.
    pub completed: u32,
    /// Heads of queues that a host was told with completions.
    pub heads: u32,
    /// Requests for data that a host answered.
    pub transfers: u32,
    /// Commands of a host that it gave up.
    pub given_up: u32,
    /// Authentications that held.
    pub proved: u32,
    /// Those that the controller ended.
    pub rejected: u32,
    /// Those that the host ended because the controller proved nothing.
    pub unproved: u32,
    /// Those that the host ended because the controller's words made no sense.
    pub objected: u32,
    /// Commands of several hosts that completed as the model says.
    pub several_done: u32,
    /// Reads of theirs that brought what the model holds.
    pub several_read: u32,
    /// Commands of theirs that did not succeed, as they were not to.
    pub several_refused: u32,
    /// Whether a stranger among them connected to another subsystem.
    pub stranger_connected: u32,
    /// Whether it broke the rules of its connection.
    pub stranger_faults: u32,
}

/// Drives both ends with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn nvme(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    if data.first().is_some_and(|first| first & auth::FLAG != 0) {
        auth::attack(data, &mut reached);
        return reached;
    }
    if data.first().is_some_and(|first| first & several::FLAG != 0) {
        several::attack(data, &mut reached);
        return reached;
    }
    let script = Script::read(data);
    if script.is_from_host {
        controller::attack(&script, &mut reached);
    } else {
        host::attack(&script, &mut reached);
    }
    reached
}
