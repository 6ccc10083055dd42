//! What a controller tells unasked.

use lunette_nvmeof::{ControllerEvent, RemoteController};
use serde_json::{Value, json};

use super::failure::Outcome;
use super::subsystem::{SubsystemArguments, config};
use crate::program::output;

/// Prints a line for each event, until the connection ends.
pub(super) async fn watch(arguments: &SubsystemArguments) -> Outcome<()> {
    let config = config(&arguments.host, arguments.digests.digests(), 1)?;
    let controller = RemoteController::connect(arguments.address, &arguments.nqn, config).await?;
    loop {
        let event = controller.event().await?;
        if output::line(&said(&event).to_string()).is_err() {
            // Nobody reads any more.
            return Ok(controller.shut_down().await?);
        }
    }
}

fn said(event: &ControllerEvent) -> Value {
    match event {
        ControllerEvent::Namespaces(nsids) => json!({ "changed_namespaces": nsids }),
        ControllerEvent::Paths(groups) => {
            let groups = groups.iter().map(|group| {
                json!({
                    "group": group.id, "state": format!("{:?}", group.state),
                    "changes": group.changes,
                })
            });
            json!({ "paths": Value::from_iter(groups) })
        }
        ControllerEvent::Discovery => json!({ "changed": "discovery" }),
    }
}

#[cfg(test)]
mod tests {
    use lunette_nvmeof::proto::log_page::{AnaGroup, AnaState};

    use super::*;

    #[test]
    fn each_event_is_one_object() {
        let paths = ControllerEvent::Paths(vec![AnaGroup {
            id: 1,
            changes: 7,
            state: AnaState::Inaccessible,
            nsids: vec![],
        }]);
        let events = [
            (
                ControllerEvent::Namespaces(vec![1, 3]),
                r#"{"changed_namespaces":[1,3]}"#,
            ),
            (
                paths,
                r#"{"paths":[{"changes":7,"group":1,"state":"Inaccessible"}]}"#,
            ),
            (ControllerEvent::Discovery, r#"{"changed":"discovery"}"#),
        ];
        for (event, expected) in events {
            assert_eq!(said(&event).to_string(), expected);
        }
    }
}
