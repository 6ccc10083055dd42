//! What a core counts, and how it tells.
//!
//! Each core has counters of its own, which nobody else touches: no atomic, no lock. They are told to
//! who asks ([`CoreReport`]), and a part of them travels as
//! [`NodeStat`](lunette_kvstore_proto::message::NodeStat).
//!
//! | file | subject |
//! |---|---|
//! | `counts` | the counters of a core, and one request on its way to them |
//! | `outcome` | how requests end |
//! | `report` | what is told |

mod counts;
mod outcome;
mod report;

pub(crate) use counts::{CopyCounts, Counting, Counts};
pub use outcome::Outcome;
pub use report::{
    CoreReport, DriveReport, HISTOGRAM_BUCKETS, Histogram, MemberReport, RequestReport,
    TenantReport,
};
