//! The object of `/health`: whether clients are to come here, and if not why.

use lunette::kvstore::{CoreReport, DriveReport};
use lunette_kvstore_proto::message::{NodeStat, NodeState};
use serde_json::{Value, json};

use super::Subject;

/// How a node is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Health {
    pub(super) is_serving: bool,
    pub(super) object: Value,
}

/// How a node is whose cores have said this, or have not.
pub(super) fn health(subject: Subject, reports: &Result<Vec<CoreReport>, String>) -> Health {
    let mut object = json!({
        "serving": false,
        "node_id": subject.node_id,
        "cores": subject.cores,
    });
    let reports = match reports {
        Ok(reports) => reports,
        Err(why) => {
            object["reason"] = json!(why);
            return Health {
                is_serving: false,
                object,
            };
        }
    };
    let mut stat = NodeStat::default();
    for report in reports {
        stat.add(&report.stat);
    }
    let state = stat.state();
    let is_serving = state.is_serving();
    object["serving"] = json!(is_serving);
    object["state"] = json!(state.word());
    if state != NodeState::Alone {
        object["epoch"] = json!(stat.epoch);
        object["lease_left_ms"] = json!(stat.lease_left_ms);
    }
    if let Some(reason) = reason(state) {
        object["reason"] = json!(reason);
    }
    let members = reports.iter().filter_map(|report| report.member.as_ref());
    let drives: Vec<_> = members.filter_map(|member| member.drive).collect();
    if !drives.is_empty() {
        let count = |is: fn(&DriveReport) -> bool| drives.iter().filter(|drive| is(drive)).count();
        object["failed_drives"] = json!(count(|drive| drive.has_failed));
        object["away_drives"] = json!(count(|drive| drive.is_away));
    }
    Health { is_serving, object }
}

/// Why clients are to go elsewhere.
const fn reason(state: NodeState) -> Option<&'static str> {
    match state {
        NodeState::Alone | NodeState::Serving => None,
        NodeState::Draining => Some("draining: it ends, or is being emptied"),
        NodeState::Joining => Some("not joined: it is not in its cluster's map"),
        NodeState::Fenced => Some("fenced: its lease is over, and no coordinator renews it"),
        NodeState::Left => Some("left: it has given its place in the cluster up"),
        NodeState::Unknown => Some("it does not say what it is doing"),
    }
}

#[cfg(test)]
mod tests {
    use lunette::runtime::CoreIndex;

    use super::*;

    fn report(core: u16, state: NodeState) -> CoreReport {
        CoreReport {
            core: CoreIndex(core),
            stat: NodeStat {
                cores: 1,
                epoch: 4,
                state_code: state.code(),
                ..NodeStat::default()
            },
            requests: Vec::new(),
            copies_written: 0,
            copies_moved: 0,
            moved_bytes: 0,
            member: None,
            tenants: Vec::new(),
        }
    }

    #[test]
    fn a_node_is_as_well_as_the_worst_of_its_cores() {
        let subject = Subject {
            node_id: 9,
            cores: 2,
        };
        for state in NodeState::ALL {
            let reports = vec![report(0, NodeState::Serving), report(1, state)];
            let health = health(subject, &Ok(reports));
            let is_serving = state <= NodeState::Serving;
            assert_eq!(health.is_serving, is_serving, "{state:?}");
            assert_eq!(health.object["serving"], is_serving);
            let reason = health.object["reason"].as_str();
            assert_eq!(reason.is_none(), is_serving, "{state:?}: {reason:?}");
        }
        let health = health(subject, &Err("gone".to_owned()));
        let expected = json!({ "serving": false, "reason": "gone", "node_id": 9, "cores": 2 });
        assert!(!health.is_serving && health.object == expected);
    }
}
