//! A stream's operations against a list of names.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::stream_queue::{BeginError, OperationId, Outcome, StreamQueue};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Queue,
    QueueInPart,
    Withdraw,
    Event,
    Poison,
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Queue),
        2 => Just(Step::QueueInPart),
        2 => Just(Step::Withdraw),
        6 => Just(Step::Event),
        1 => Just(Step::Poison),
        3 => Just(Step::End),
    ];
    prop::collection::vec(step, 1..200)
}

const PART: Fault = Fault::Code(1);
const DEAD: Fault = Fault::Lost(46);

/// What is in flight, and how it would end.
#[derive(Debug, Default)]
struct Model {
    flights: VecDeque<(OperationId, Outcome)>,
    is_dead: bool,
}

impl Model {
    fn begin(&self, depth: usize) -> Result<(), BeginError> {
        if self.is_dead {
            Err(BeginError::Poisoned(DEAD))
        } else if self.flights.len() == depth {
            Err(BeginError::Full)
        } else {
            Ok(())
        }
    }
}

proptest! {
    #[test]
    fn each_operation_ends_once_in_order_and_for_its_own_reason(
        depth in 1..5usize,
        steps in steps(),
    ) {
        let (mut queue, mut model) = (StreamQueue::new(depth), Model::default());
        let mut ended: Vec<OperationId> = Vec::new();
        for step in steps {
            match step {
                Step::Queue | Step::QueueInPart | Step::Withdraw => {
                    let begun = queue.begin();
                    prop_assert_eq!(begun.map(|_| ()), model.begin(depth));
                    let Ok(id) = begun else { continue };
                    prop_assert!(model.flights.iter().all(|(other, _)| *other < id));
                    match step {
                        Step::Queue => queue.queued(id, Ok(())),
                        Step::QueueInPart => queue.queued(id, Err(PART)),
                        _ => queue.withdraw(id),
                    }
                    match step {
                        Step::Queue => model.flights.push_back((id, Outcome::Done)),
                        Step::QueueInPart => model.flights.push_back((id, Outcome::Failed(PART))),
                        _ => {}
                    }
                }
                Step::Event => {
                    prop_assert_eq!(queue.oldest(), model.flights.front().map(|one| one.0));
                    if let Some(expected) = model.flights.pop_front() {
                        prop_assert_eq!(queue.completed(), expected);
                        ended.push(expected.0);
                    }
                }
                Step::Poison => {
                    queue.poison(DEAD);
                    model.is_dead = true;
                }
                Step::End => {
                    let expected = model.is_dead.then(|| model.flights.pop_front()).flatten();
                    let expected = expected.map(|(id, _)| (id, Outcome::Failed(DEAD)));
                    prop_assert_eq!(queue.end_oldest(), expected);
                    ended.extend(expected.map(|one| one.0));
                }
            }
            prop_assert_eq!(queue.len(), model.flights.len());
        }
        prop_assert!(ended.is_sorted_by(|a, b| a < b), "each once, in order");
    }
}
