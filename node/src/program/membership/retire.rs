//! `lunette cluster retire`.

use serde_json::json;

use super::RetireArguments;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::store::with_cluster_client;

pub(super) fn run(arguments: &RetireArguments, as_json: bool) -> Result<(), Failure> {
    let member = arguments.member;
    with_cluster_client(&arguments.cluster, move |client| async move {
        Ok(client.retire(member).await?)
    })?;
    if as_json {
        let object = json!({ "retired": member.to_string() });
        return output::line(&object.to_string());
    }
    output::line(&format!(
        "{member} is the home of nothing: stop it when its objects are of no use any more"
    ))
}
