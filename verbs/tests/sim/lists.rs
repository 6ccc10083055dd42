//! Requests that are over together.

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Exposed, HugePages};
    use lunette_runtime::{Idle, arena, time};
    use lunette_verbs::sim::{Fabric, Fault};
    use lunette_verbs::{
        Context, ExposedWindow, INLINE_BYTES_MAX, Listed, Moved, QueueSizes, RegisteredExtent,
        RemoteMemory, RequestError,
    };
    use lunette_verbs_proto::status::Status;

    use crate::fabric::two_adapters;
    use crate::rig::{ALL, End, connect, on_core, soon};

    const PART: usize = 1000;
    /// More than a doorbell's.
    const PARTS: usize = 100;

    struct Scene {
        fabric: Fabric,
        here: Context,
        ends: (End, End),
        ours: Exposed,
        theirs: Exposed,
        extent: RegisteredExtent,
        window: ExposedWindow,
    }

    fn memory() -> Exposed {
        Exposed::map(PART * PARTS, HugePages::Never, &mut Vec::new()).expect("memory")
    }

    async fn scene() -> Scene {
        let (fabric, here, there) = two_adapters(7);
        let ends = connect(&here, &there, QueueSizes::default()).await;
        let (ours, theirs) = (memory(), memory());
        let extent = RegisteredExtent::register(&here, ours.extent()).await;
        let window = ExposedWindow::register(&there, theirs.clone(), ALL).await;
        Scene {
            fabric,
            here,
            ends,
            ours,
            theirs,
            extent: extent.expect("registered"),
            window: window.expect("a window"),
        }
    }

    impl Scene {
        fn there(&self, at: usize) -> RemoteMemory {
            self.window.remote().at((at * PART) as u64)
        }

        fn write(&self, from: usize, to: usize) -> Listed {
            let lent = self.extent.lend(self.ours.slice(from * PART, PART));
            Listed {
                moved: Moved::From(lent.expect("it lies there")),
                there: self.there(to),
            }
        }

        fn read(&self, from: usize, to: usize) -> Listed {
            let lent = self.extent.lend(self.ours.slice(to * PART, PART));
            Listed {
                moved: Moved::Into(lent.expect("it lies there")),
                there: self.there(from),
            }
        }

        fn few(&self, from: usize, len: usize, to: usize) -> Listed {
            Listed {
                moved: Moved::Few(self.ours.slice(from * PART, len).into()),
                there: self.there(to),
            }
        }
    }

    #[test]
    fn all_of_a_list_is_done_when_it_is_in_the_order_in_which_it_was_added() {
        on_core(Idle::default(), || async {
            let scene = scene().await;
            let pair = &scene.ends.0.pair;
            for at in 0..PARTS {
                let byte = u8::try_from(at).expect("few");
                scene.ours.copy_in(at * PART, &[byte; PART]);
            }
            let mut list: Vec<Listed> = (0..PARTS - 3).map(|at| scene.write(at, at)).collect();
            // Over what was written before, and back from there.
            list.push(scene.few(PARTS - 1, 10, 0));
            list.push(scene.read(0, PARTS - 2));
            let (outcome, again) = pair.list(list, soon()).await;
            assert_eq!((outcome, again.len()), (Ok(()), PARTS - 1));
            let counts = pair.counts();
            assert_eq!(counts.retired, PARTS as u64 - 1);
            assert!(counts.doorbells < 8, "{counts:?}");
            let mut first = vec![0; PART];
            first[..10].fill(u8::try_from(PARTS - 1).expect("few"));
            assert!(scene.ours.slice((PARTS - 2) * PART, PART).to_vec() == first);
            for at in 1..PARTS - 3 {
                let byte = u8::try_from(at).expect("few");
                assert!(scene.theirs.slice(at * PART, PART).to_vec() == [byte; PART]);
            }
            assert_eq!(
                pair.list(Vec::new(), soon()).await.0,
                Ok(()),
                "one of nothing"
            );
        });
    }

    #[test]
    fn a_list_fails_as_the_first_of_its_requests_and_so_breaks_those_behind_it() {
        on_core(Idle::default(), || async {
            let scene = scene().await;
            let pair = &scene.ends.0.pair;
            scene.ours.copy_in(0, &[1; PART * 4]);
            let list = vec![scene.write(0, 0), scene.write(1, PARTS), scene.write(2, 2)];
            let failing = pair.list(list, soon());
            let behind = pair.list(vec![scene.write(3, 3)], soon());
            let denied = RequestError::Failed(Status::RemoteAccess);
            assert_eq!(failing.await.0, Err(denied));
            assert_eq!(behind.await.0, Err(RequestError::Flushed));
            assert!(scene.theirs.slice(0, PART).to_vec() == [1; PART]);
            assert!(scene.theirs.slice(2 * PART, 2 * PART).to_vec() == [0; 2 * PART]);
            let (outcome, again) = pair.list(vec![scene.write(0, 0)], soon()).await;
            assert_eq!((outcome, again.len()), (Err(RequestError::Broken), 1));
        });
    }

    #[test]
    fn a_list_of_which_the_adapter_takes_a_part_fails_and_comes_back() {
        on_core(Idle::default(), || async {
            for taken in [0, 5] {
                let scene = scene().await;
                let pair = &scene.ends.0.pair;
                scene.fabric.inject(0, Fault::PartialPost { taken });
                let list = (0..PARTS).map(|at| scene.write(at, at)).collect();
                let (outcome, again) = pair.list(list, soon()).await;
                assert!(outcome.is_err(), "{taken}");
                assert_eq!((again.len(), pair.is_open()), (PARTS, false));
                // What was not made is over as well: nothing is waited for.
                assert_eq!(pair.credits(), QueueSizes::default().sends);
            }
        });
    }

    #[test]
    fn memory_is_kept_until_all_of_a_list_is_over_whoever_waits_for_it() {
        on_core(Idle::default(), || async {
            for is_awaited in [true, false] {
                let scene = scene().await;
                scene.fabric.inject(0, Fault::Slow { steps: 50 });
                let pair = &scene.ends.0.pair;
                let (mut list, mut extents) = (Vec::new(), Vec::new());
                for at in 0..3 {
                    let memory = memory();
                    memory.copy_in(0, &[7; PART]);
                    let extent = RegisteredExtent::register(&scene.here, memory.extent()).await;
                    let extent = extent.expect("registered");
                    let lent = extent.lend(memory.slice(0, PART));
                    let moved = Moved::From(lent.expect("it lies there"));
                    let there = scene.there(at);
                    list.push(Listed { moved, there });
                    extents.push(extent);
                }
                let mut list = Some(pair.list(list, soon()));
                if !is_awaited {
                    list = None;
                }
                let are_kept = || extents.iter().map(|extent| extent.extent().is_alive());
                while pair.counts().retired < 3 {
                    assert!(are_kept().all(|is_kept| is_kept), "the list has it");
                    time::yield_now().await;
                }
                assert!(scene.theirs.slice(0, 3 * PART).to_vec() == [7; 3 * PART]);
                if let Some(list) = list {
                    let (outcome, again) = list.await;
                    assert_eq!((outcome, again.len()), (Ok(()), 3));
                    assert!(are_kept().all(|is_kept| is_kept), "it is given back");
                }
                assert!(!are_kept().any(|is_kept| is_kept), "nobody has it");
            }
        });
    }

    #[test]
    fn a_list_has_no_more_than_there_is_room_for_and_nothing_that_cannot_be_done() {
        on_core(Idle::default(), || async {
            let scene = scene().await;
            let pair = &scene.ends.0.pair;
            scene.ours.copy_in(0, &[9; PART]);
            let mut region = arena().alloc(8).expect("room");
            region.as_mut_slice().fill(3);
            let region = region.freeze();
            let chunk = RegisteredExtent::register(&scene.here, region.extent()).await;
            let nobody_writes_it = Listed {
                moved: Moved::Into(
                    chunk
                        .expect("registered")
                        .lend(region)
                        .expect("it lies there"),
                ),
                there: scene.there(0),
            };
            let too_long = scene.few(0, INLINE_BYTES_MAX + 1, 0);
            for (refused, error, at) in [
                (nobody_writes_it, RequestError::Refused, 1),
                (too_long, RequestError::Length, 3),
            ] {
                let list = vec![scene.write(0, at), refused, scene.write(0, at + 1)];
                let (outcome, again) = pair.list(list, soon()).await;
                assert_eq!((outcome, again.len()), (Err(error), 3));
                let there = scene.theirs.slice(at * PART, 2 * PART).to_vec();
                let expected = [[9; PART], [0; PART]].concat();
                assert!(there == expected, "those before it are done");
            }
            let room = pair.credits();
            for (more, outcome) in [(1, Err(RequestError::Full)), (0, Ok(()))] {
                let list = (0..room + more).map(|_| scene.write(0, 5)).collect();
                let done = pair.list(list, soon());
                assert_eq!(pair.credits(), if more > 0 { room } else { 0 });
                assert_eq!(done.await.0, outcome);
            }
            assert_eq!(pair.credits(), room);
            assert!(scene.theirs.slice(5 * PART, PART).to_vec() == [9; PART]);
        });
    }
}
