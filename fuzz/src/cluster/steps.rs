//! Honest clients of a coordinator: each question goes over HTTP, and comes out as it was asked.

use std::time::Duration;

use lunette_cluster_proto::coordination::Revision;
use lunette_cluster_proto::coordinator::Coordinator;
use lunette_cluster_proto::gateway::{self, Asked};
use lunette_cluster_proto::http::{self, RequestReader};
use lunette_generate::Bytes;
use lunette_generate::coordination::Step;
use lunette_runtime_core::time::Time;

use super::Reached;

/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 64;
const TTL_S: u32 = 3;

pub(super) fn attack(bytes: &[u8], piece: usize, reached: &mut Reached) {
    let mut coordinator = Coordinator::default();
    let mut now = Time::ZERO;
    let mut reader = RequestReader::default();
    for step in Step::draw_all(&mut Bytes::new(bytes), STEPS_MAX) {
        // A swap thinks that nothing has happened since its key was read, or that something has.
        let modified = Revision(coordinator.revision().0.min(u64::from(TTL_S)));
        let ask = step.ask(|key| vec![b'k', key], |value| vec![value], TTL_S, modified);
        match (step, ask) {
            (_, Some(ask)) => {
                let (path, json) = gateway::encode(&ask);
                let mut stream = Vec::new();
                http::append_request(&mut stream, "host:1", path, &json);
                stream.chunks(piece).for_each(|piece| reader.push(piece));
                let request = reader.next_request().expect("honest").expect("whole");
                let Ok(Asked::Ask(read)) = gateway::decode_request(&request.path, &request.body)
                else {
                    unreachable!("{ask:?} is a question");
                };
                assert_eq!(read, ask, "it comes out as it was asked");
                if let Ok(answer) = coordinator.handle(now, &ask) {
                    let told = gateway::encode_answer(&ask, &answer);
                    assert_eq!(gateway::decode(&ask, 200, &told), Ok(answer));
                    reached.asked += 1;
                }
            }
            (Step::Pass { tenths }, None) => now = now + Duration::from_millis(100) * tenths.into(),
            (Step::Compact, None) => coordinator.compact(coordinator.revision()),
            (_, None) => {
                let before = coordinator.revision();
                let restored = Coordinator::restore(now, &coordinator.snapshot());
                coordinator = restored.expect("it is its own snapshot");
                assert_eq!(coordinator.revision(), before);
            }
        }
    }
}
