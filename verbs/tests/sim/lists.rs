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
            let mut list = pair.list(soon());
            for at in 0..PARTS - 3 {
                list.push(scene.write(at, at)).expect("room");
            }
            // Over what was written before, and back from there.
            list.push(scene.few(PARTS - 1, 10, 0)).expect("room");
            list.push(scene.read(0, PARTS - 2)).expect("room");
            assert_eq!(list.end().await.0, Ok(()));
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
            assert_eq!(pair.list(soon()).end().await.0, Ok(()), "one of nothing");
        });
    }

    #[test]
    fn a_list_fails_as_the_first_of_its_requests_and_so_breaks_those_behind_it() {
        on_core(Idle::default(), || async {
            let scene = scene().await;
            let pair = &scene.ends.0.pair;
            scene.ours.copy_in(0, &[1; PART * 4]);
            let mut list = pair.list(soon());
            list.push(scene.write(0, 0)).expect("room");
            list.push(scene.write(1, PARTS)).expect("room");
            list.push(scene.write(2, 2)).expect("room");
            let failing = list.end();
            let mut behind = pair.list(soon());
            behind.push(scene.write(3, 3)).expect("room");
            let behind = behind.end();
            let denied = RequestError::Failed(Status::RemoteAccess);
            assert_eq!(failing.await.0, Err(denied));
            assert_eq!(behind.await.0, Err(RequestError::Flushed));
            assert!(scene.theirs.slice(0, PART).to_vec() == [1; PART]);
            assert!(scene.theirs.slice(2 * PART, 2 * PART).to_vec() == [0; 2 * PART]);
            let mut late = pair.list(soon());
            assert_eq!(late.push(scene.write(0, 0)), Err(RequestError::Broken));
            assert_eq!(late.end().await.0, Ok(()), "nothing was added to it");
        });
    }

    #[test]
    fn memory_is_kept_until_all_of_a_list_is_over_whoever_waits_for_it() {
        on_core(Idle::default(), || async {
            for is_ended in [true, false] {
                let scene = scene().await;
                scene.fabric.inject(0, Fault::Slow { steps: 50 });
                let pair = &scene.ends.0.pair;
                let mut list = pair.list(soon());
                let mut extents = Vec::new();
                for at in 0..3 {
                    let memory = memory();
                    memory.copy_in(0, &[7; PART]);
                    let extent = RegisteredExtent::register(&scene.here, memory.extent()).await;
                    let extent = extent.expect("registered");
                    let lent = extent.lend(memory.slice(0, PART));
                    let moved = Moved::From(lent.expect("it lies there"));
                    let there = scene.there(at);
                    list.push(Listed { moved, there }).expect("room");
                    extents.push(extent);
                }
                if is_ended {
                    drop(list.end());
                } else {
                    drop(list);
                }
                let are_kept = || extents.iter().map(|extent| extent.extent().is_alive());
                while pair.counts().retired < 3 {
                    assert!(are_kept().all(|is_kept| is_kept), "the list has it");
                    time::yield_now().await;
                }
                assert!(scene.theirs.slice(0, 3 * PART).to_vec() == [7; 3 * PART]);
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
            let mut list = pair.list(soon());
            let nobody_writes_it = Listed {
                moved: Moved::Into(
                    chunk
                        .expect("registered")
                        .lend(region)
                        .expect("it lies there"),
                ),
                there: scene.there(0),
            };
            assert_eq!(list.push(nobody_writes_it), Err(RequestError::Refused));
            let too_long = scene.few(0, INLINE_BYTES_MAX + 1, 0);
            assert_eq!(list.push(too_long), Err(RequestError::Length));
            let room = pair.credits();
            for _ in 0..room {
                list.push(scene.write(0, 1)).expect("room");
            }
            assert_eq!(list.push(scene.write(0, 2)), Err(RequestError::Full));
            assert_eq!(list.end().await.0, Ok(()));
            assert_eq!(pair.credits(), room);
            assert!(scene.theirs.slice(PART, 2 * PART).to_vec()[..PART] == [9; PART]);
            assert_eq!(
                scene.theirs.slice(2 * PART, 1).to_vec(),
                [0],
                "it was refused"
            );
        });
    }
}
