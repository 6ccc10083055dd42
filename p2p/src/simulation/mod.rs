//! Swarms in a simulated network: the machine of `lunette-p2p-proto`, as it runs elsewhere, in virtual time.
//!
//! A seed gives a run that is the same each time. Bytes go in blocks from line to line (`network`); messages take a
//! latency, and no room. Beside it stands Mooncake's scheme (`mooncake`): whole objects from a random replica.
//!
//! | module | subject |
//! |---|---|
//! | `scenario` | [`Scenario`]: who takes part, over which lines, and what goes wrong |
//! | `network` | lines and flows |
//! | `events` | what happens next |
//! | `world` | holders, each with its machine, and who drives them: [`simulate`] |
//! | `mooncake` | [`simulate_mooncake`] |
//! | `suite` | [`Case`]: the scenarios that are measured |
//! | `report` | [`Report`]: what was measured |

mod events;
mod mooncake;
mod network;
mod report;
mod scenario;
mod suite;
mod world;

pub use mooncake::simulate_mooncake;
pub use report::Report;
pub use scenario::{Faults, Scenario};
pub use suite::{Case, adversities, equal_lines};
pub use world::simulate;
