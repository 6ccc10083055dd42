//! Until when a member may do what it is asked, by its own clock.

use lunette_kvstore_proto::message::directory::{ClockReply, MemberMessage, Term};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::Attachments;

use super::calls::Called;
use super::{ClusterClient, calls};
use crate::error::StoreErrorKind;

impl ClusterClient {
    /// What a core's clock says; `None`: it is not there, or does not answer before that.
    ///
    /// # Errors
    /// What no member answers otherwise: it speaks no version that this client does, or knows nothing of this.
    pub(super) async fn told_ns(
        &self,
        to: Seat,
        until: Time,
    ) -> Result<Option<u64>, StoreErrorKind> {
        let message = MemberMessage { to };
        let body = |version: FormatVersion, out: &mut Vec<u8>| message.encode(version, out);
        let asked = calls::call(&self.asking, to, Op::Clock, body, Attachments::default());
        let called = time::timeout(until.since(time::now()), asked).await;
        match called {
            Ok((Called::Reply(version, reply), _)) => match Status::from_code(reply.status) {
                Status::Ok => Ok(Some(ClockReply::decode(version, &reply.body)?.told_ns)),
                status if status == Status::WrongSeat || status.is_retryable() => Ok(None),
                status => Err(StoreErrorKind::Refused(status)),
            },
            Ok((Called::Never(kind), _)) => Err(kind),
            Ok((Called::Unsent(_) | Called::Unanswered(_), _)) | Err(_) => Ok(None),
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
