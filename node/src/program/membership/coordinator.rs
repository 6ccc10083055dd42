//! `lunette cluster coordinator`.

use std::rc::Rc;

use futures_channel::oneshot;
use lunette::runtime::net::{REBIND_WAIT, TcpListener};
use lunette::runtime::{CoreOptions, Idle, block_on};
use lunette_cluster::{Hosted, Security, serve, system_entropy};
use serde_json::json;

use super::{CoordinatorArguments, secrets};
use crate::program::failure::Failure;
use crate::program::{output, serve as serving};

pub(super) fn run(arguments: &CoordinatorArguments, as_json: bool) -> Result<(), Failure> {
    let secrets = secrets()?;
    serving::check_listen(arguments.listen, secrets.is_some())?;
    let (end, ended) = oneshot::channel();
    serving::end_on_signals(move |_why| {
        if end.send(()).is_err() {
            tracing::debug!("the coordinator has failed meanwhile");
        }
    })
    .map_err(|error| Failure::file("signals", error))?;
    let security = secrets.map(|secrets| Security {
        secrets,
        entropy: Rc::new(system_entropy),
    });
    let (listen, data) = (arguments.listen, arguments.data.clone());
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, move || async move {
        let hosted = match &data {
            Some(path) => Hosted::open(path).await?,
            None => Hosted::in_memory(),
        };
        let listener = TcpListener::bind_within(listen, REBIND_WAIT).await;
        let listener = listener.map_err(|error| Failure::file(&listen.to_string(), error))?;
        let address = listener.local_addr();
        let is_kept = data.is_some();
        tracing::info!(%address, is_kept, "coordinating");
        if as_json {
            let ready = json!({
                "ready": true, "address": address.to_string(), "is_kept": is_kept,
            });
            output::line(&ready.to_string())?;
        } else {
            let kept = if is_kept { "" } else { ", in memory only" };
            output::line(&format!("coordinating on {address}{kept}"))?;
        }
        let stop = async {
            // If whoever was to send it is gone, that is an end too.
            let why = ended.await;
            tracing::info!(?why, "shutting down");
        };
        serve(listener, hosted, security, stop).await;
        tracing::info!(%address, "ended");
        Ok(())
    })?
}
