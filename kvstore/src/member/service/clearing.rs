//! "Remove all", and to be emptied, for a client that asks.

use futures_channel::oneshot;
use lunette_kvstore_proto::message::directory::{
    ChangeMessage, ClearReply, ClockReply, MemberMessage, Term,
};
use lunette_kvstore_proto::message::{NodeState, Status};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Intake, Later, Response};

use super::{MemberService, Pending, version_of};
use crate::counting::{Counting, Outcome};
use crate::member::emptying::Emptied;
use crate::member::steering::Steer;
use crate::refusals::{bad_request, refusal};

impl MemberService {
    /// Answered when this node knows the map that says so. A node that is cut off, and could not tell when
    /// that will be, refuses.
    pub(super) fn clear(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ChangeMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let until = until(message.term)?;
        let (state, _) = self.core.standing();
        if !matches!(state, NodeState::Serving | NodeState::Draining) {
            return Err(Status::Unavailable);
        }
        let (answer, cleared) = oneshot::channel();
        let asked = self
            .steering
            .clone()
            .try_send(Steer::Clear { until, answer });
        asked.map_err(|_full| Status::Busy)?;
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            let Ok((epoch, generation)) = cleared.await else {
                // It ends, or has too many to answer; perhaps it is done all the same.
                counting.end_with(Status::Internal.code());
                return refusal(Status::Internal);
            };
            counting.end(Outcome::Ok);
            let mut response = Response::default();
            ClearReply { epoch, generation }.encode(version, &mut response.body);
            response
        })))
    }

    /// Answered when this node knows the map that has it without weight, or that there will be none. A node that is cut off
    /// may be in time still.
    pub(super) fn retire(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ChangeMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        let until = until(message.term)?;
        let (answer, emptied) = oneshot::channel();
        let drain = Steer::Drain { until, answer };
        let asked = self.steering.clone().try_send(drain);
        asked.map_err(|_full| Status::Busy)?;
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            let status = match emptied.await {
                Ok(Emptied::Yes) => {
                    counting.end(Outcome::Ok);
                    return Response::default();
                }
                Ok(Emptied::IsLast) => Status::LastMember,
                Ok(Emptied::IsBusy) => Status::Busy,
                // It ends, or was not emptied in time; perhaps it will be all the same.
                Err(_gone) => Status::Internal,
            };
            counting.end_with(status.code());
            refusal(status)
        })))
    }

    /// By which who asks is told until when something may be done.
    pub(super) fn clock(&self, body: &[u8]) -> Result<Response, Status> {
        let message = MemberMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let told_ns = time::now().as_ns();
        let mut response = Response::default();
        ClockReply { told_ns }.encode(version, &mut response.body);
        Ok(response)
    }
}

/// Until when what is asked may be done. Nothing is done of what was on its way for so long that whoever asked has gone on.
pub(super) fn until(term: Term) -> Result<Time, Status> {
    term.until(time::now()).ok_or(Status::Busy)
}
