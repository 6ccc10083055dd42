//! Answers that the services of members and of nodes that are alone have in common.

use lunette_kvstore_proto::message::{MessageFault, NodeStat, Status};
use lunette_transfer::Response;

/// No, with the reason.
pub(crate) fn refusal(status: Status) -> Response {
    Response {
        status: status.code(),
        ..Response::default()
    }
}

/// What a message that makes no sense is refused with.
pub(crate) fn bad_request(fault: MessageFault) -> Status {
    tracing::debug!(%fault, "bad request");
    Status::BadRequest
}

/// The answer to a stat, whose request has an empty body.
pub(crate) fn stat_response(
    body: &[u8],
    stat: impl FnOnce() -> NodeStat,
) -> Result<Response, Status> {
    if !body.is_empty() {
        return Err(Status::BadRequest);
    }
    let mut response = Response::default();
    stat().encode(&mut response.body);
    Ok(response)
}
