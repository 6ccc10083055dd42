//! Choosing paths, against the rules said again in their plainest form: any events in any order.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use lunette_nvmeof_proto::completion::Status;
    use lunette_nvmeof_proto::host::{Choice, PathFacts, PathPolicy, Paths};
    use lunette_nvmeof_proto::log_page::{AnaGroup, AnaState};
    use lunette_runtime_core::time::Time;
    use proptest::prelude::*;

    const COUNT: usize = 4;
    const TRANSITION: Duration = Duration::from_millis(500);

    #[derive(Clone, Debug)]
    enum Op {
        Up(usize, AnaState),
        Down(usize),
        Lost(usize),
        Groups(usize, AnaState),
        Status(usize, Status),
        Pass(u64),
        Choose(Option<usize>),
        End,
    }

    fn op() -> impl Strategy<Value = Op> {
        let path = 0..COUNT;
        let state = prop::sample::select(AnaState::ALL.to_vec());
        let status = prop::sample::select(vec![
            Status::SUCCESS,
            Status::PATH_INTERNAL,
            Status::ANA_INACCESSIBLE,
            Status::ANA_TRANSITION,
            Status::TRANSIENT_TRANSPORT_ERROR,
        ]);
        prop_oneof![
            4 => (path.clone(), state.clone()).prop_map(|(path, state)| Op::Up(path, state)),
            1 => path.clone().prop_map(Op::Down),
            1 => path.clone().prop_map(Op::Lost),
            3 => (path.clone(), state).prop_map(|(path, state)| Op::Groups(path, state)),
            2 => (path.clone(), status).prop_map(|(path, status)| Op::Status(path, status)),
            2 => (0..400_u64).prop_map(Op::Pass),
            8 => prop::option::weighted(0.2, path).prop_map(Op::Choose),
            4 => Just(Op::End),
        ]
    }

    /// What the host was told of a path last.
    #[derive(Clone, Copy, Debug)]
    struct Told {
        is_up: bool,
        state: AnaState,
        /// It failed after that, and may be left for a pause.
        has_failed: bool,
    }

    struct Checked {
        paths: Paths,
        told: [Told; COUNT],
        in_flight: Vec<usize>,
        now: Time,
    }

    impl Checked {
        fn open(&self, state: AnaState, avoided: Option<usize>) -> Vec<usize> {
            let is_open = |&index: &usize| {
                let told = self.told[index];
                told.is_up && told.state == state && Some(index) != avoided
            };
            (0..COUNT).filter(is_open).collect()
        }

        fn tell(&mut self, op: &Op) {
            match *op {
                Op::Up(index, state) => {
                    let facts = PathFacts {
                        group: 9,
                        state,
                        transition: TRANSITION,
                    };
                    self.paths.on_up(index, facts, self.now);
                    self.told[index].is_up = true;
                    self.told[index].state = state;
                }
                Op::Down(index) => {
                    self.paths.on_down(index);
                    self.told[index].is_up = false;
                }
                Op::Lost(index) => {
                    self.paths.on_lost(index);
                    self.told[index].is_up = false;
                }
                Op::Groups(index, state) => {
                    let group = |id, state| AnaGroup {
                        id,
                        changes: 0,
                        state,
                        nsids: Vec::new(),
                    };
                    let groups = [group(1, AnaState::Optimized), group(9, state)];
                    self.paths.on_groups(index, &groups, self.now);
                    self.told[index].state = state;
                }
                Op::Status(index, status) => {
                    self.paths.on_status(index, status, self.now);
                    let told = &mut self.told[index];
                    told.has_failed |= status.is_path_error();
                    match status {
                        Status::ANA_INACCESSIBLE => told.state = AnaState::Inaccessible,
                        Status::ANA_TRANSITION => told.state = AnaState::Change,
                        _ => {}
                    }
                }
                Op::Pass(ms) => {
                    self.now = self.now + Duration::from_millis(ms);
                    while let Some(index) = self.paths.expire(self.now) {
                        let told = &mut self.told[index];
                        assert!(told.is_up && told.state == AnaState::Change);
                        told.is_up = false;
                    }
                }
                Op::Choose(_) | Op::End => {}
            }
        }

        fn choose(&mut self, policy: PathPolicy, avoided: Option<usize>) {
            let best = self.open(AnaState::Optimized, avoided);
            let second = self.open(AnaState::NonOptimized, avoided);
            match self.paths.choose(avoided, self.now) {
                Choice::Use(index) => {
                    assert!(best.contains(&index) || second.contains(&index));
                    let is_passed_over = |&other: &usize| {
                        let is_better = best.contains(&other) && !best.contains(&index);
                        is_better && !self.told[other].has_failed
                    };
                    assert!(!(0..COUNT).any(|other| is_passed_over(&other)));
                    if policy == PathPolicy::QueueDepth {
                        let depth = |path| self.in_flight.iter().filter(|&&on| on == path).count();
                        let equals = if best.contains(&index) {
                            &best
                        } else {
                            &second
                        };
                        let others = equals.iter().filter(|&&path| !self.told[path].has_failed);
                        assert!(others.clone().all(|&path| depth(path) >= depth(index)));
                    }
                    self.paths.began(index);
                    self.in_flight.push(index);
                }
                Choice::WaitUntil(at) => {
                    assert!(at > self.now, "waiting for what is there");
                    let is_left = |&index: &usize| self.told[index].has_failed;
                    assert!(best.iter().chain(&second).all(is_left));
                }
                Choice::Never(_) => assert!(best.is_empty() && second.is_empty()),
            }
        }
    }

    proptest! {
        #[test]
        fn a_choice_is_one_of_the_best(
            is_deep in any::<bool>(),
            ops in prop::collection::vec(op(), 1..200),
        ) {
            let policy = if is_deep { PathPolicy::QueueDepth } else { PathPolicy::RoundRobin };
            let mut checked = Checked {
                paths: Paths::new(COUNT, policy),
                told: [Told { is_up: false, state: AnaState::Inaccessible, has_failed: false }; COUNT],
                in_flight: Vec::new(),
                now: Time::ZERO,
            };
            for op in ops {
                checked.tell(&op);
                match op {
                    Op::Choose(avoided) => checked.choose(policy, avoided),
                    Op::End => {
                        if let Some(path) = checked.in_flight.pop() {
                            checked.paths.ended(path);
                        }
                    }
                    _ => {}
                }
                for path in 0..COUNT {
                    let count = checked.in_flight.iter().filter(|&&on| on == path).count();
                    prop_assert_eq!(checked.paths.in_flight(path) as usize, count);
                }
            }
        }
    }
}
