//! The Lunette wire under attack: one script, three ways to cut its stream, one client.
//!
//! | module | subject |
//! |---|---|
//! | `script` | from fuzz bytes to a hostile stream, its cuts and its timing |
//! | `stream` | receiver and handshake: the same transcript however the stream is cut |
//! | `message` | frames by themselves, where there is no stream |
//! | `client` | receiver and calls: no memory is used after it was given back |

mod client;
mod message;
mod script;
mod stream;

use script::Script;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Frames that came through with body and checksum.
    pub frames: u32,
    /// Payloads that arrived intact.
    pub payloads_intact: u32,
    /// Payloads that arrived damaged.
    pub payloads_corrupt: u32,
    /// Streams lost to a fault.
    pub wire_faults: u32,
    /// Handshakes that opened a connection.
    pub handshakes_open: u32,
    /// Handshakes that failed.
    pub handshakes_failed: u32,
    /// Calls that ended with their response.
    pub calls_done: u32,
    /// Calls that ended by deadline or by being given up.
    pub calls_given_up: u32,
    /// Calls that the peer has not read.
    pub calls_unread: u32,
    /// Calls whose memory had to be fenced first.
    pub calls_fenced: u32,
    /// Responses to calls that were over.
    pub responses_discarded: u32,
    /// Responses that answered nothing.
    pub call_faults: u32,
}

/// Drives the wire's machines with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn wire(data: &[u8]) -> Reached {
    let script = Script::read(data);
    let mut reached = Reached::default();
    stream::attack(&script, &mut reached);
    message::attack(&script.stream);
    client::attack(&script, &mut reached);
    reached
}
