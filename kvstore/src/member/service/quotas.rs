//! Quotas of tenants, for a client that asks.

use futures_channel::oneshot;
use lunette_cluster::proto::member::QuotaRefusal;
use lunette_kvstore_proto::message::directory::{QuotaMessage, QuotaReply};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_transfer::{Intake, Later, Response};

use super::clearing::until;
use super::{MemberService, Pending, version_of};
use crate::counting::Counting;
use crate::member::steering::Steer;
use crate::refusals::{bad_request, refusal};

impl MemberService {
    /// What this core knows of them; a change is answered when the coordinator has made it.
    pub(super) fn quota(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = QuotaMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let reply = QuotaReply {
            epoch: self.core.map().epoch(),
            quotas: self.core.quota_uses(),
        };
        let Some(change) = message.change else {
            return Ok(Intake::Answer(answer(version, &reply)));
        };
        let (told, made) = oneshot::channel();
        let until = until(change.term)?;
        let asked = Steer::Quota {
            tenant: change.tenant,
            quota_bytes: change.quota_bytes,
            until,
            answer: told,
        };
        let asked = self.steering.clone().try_send(asked);
        asked.map_err(|_full| Status::Busy)?;
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            let status = match made.await {
                Ok(Ok(())) => Status::Ok,
                Ok(Err(refused)) => status_of(refused),
                // It ends, or is no member.
                Err(_) => Status::Unavailable,
            };
            counting.end_with(status.code());
            match status {
                Status::Ok => answer(version, &reply),
                status => refusal(status),
            }
        })))
    }
}

fn answer(version: FormatVersion, reply: &QuotaReply) -> Response {
    let mut response = Response::default();
    reply.encode(version, &mut response.body);
    response
}

const fn status_of(refused: QuotaRefusal) -> Status {
    match refused {
        QuotaRefusal::BadName | QuotaRefusal::NoBytes => Status::BadRequest,
        QuotaRefusal::TooMany => Status::TooManyQuotas,
        QuotaRefusal::Busy => Status::Busy,
        QuotaRefusal::Left | QuotaRefusal::Late => Status::Unavailable,
    }
}
