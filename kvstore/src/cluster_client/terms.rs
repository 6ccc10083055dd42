//! Until when a member may do what it is asked, by its own clock.

use lunette_kvstore_proto::message::directory::{ClockReply, MemberMessage, Term};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::Attachments;

use super::calls::Called;
use super::{ClusterClient, calls};

impl ClusterClient {
    /// What a core's clock says; `None`: it is not there, or does not answer before that.
    pub(super) async fn told_ns(&self, to: Seat, until: Time) -> Option<u64> {
        let message = MemberMessage { to };
        let body = |version: FormatVersion, out: &mut Vec<u8>| message.encode(version, out);
        let asked = calls::call(&self.asking, to, Op::Clock, body, Attachments::default());
        let called = time::timeout(until.since(time::now()), asked).await;
        match called.ok()?.0 {
            Called::Reply(version, reply) if reply.status == Status::Ok.code() => {
                let told = ClockReply::decode(version, &reply.body).ok()?;
                Some(told.told_ns)
            }
            _ => None,
        }
    }
}

/// What is asked from now on may be done until then: that is no later by the clock that has told this.
pub(super) fn term(told_ns: u64, until: Time) -> Term {
    let wait = until.since(time::now());
    Term {
        told_ns,
        wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
    }
}
