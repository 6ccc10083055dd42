//! Memory of the program's, moved and reached where it lies.

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Exposed, HugePages};
    use lunette_runtime::{Idle, arena};
    use lunette_verbs::sim::{Fabric, Fault};
    use lunette_verbs::{
        Access, Context, ExposedWindow, QueueSizes, RegisteredExtent, RequestError, SetupError,
    };
    use lunette_verbs_proto::status::Status;

    use crate::fabric::two_adapters;
    use crate::rig::{ALL, End, connect, on_core, soon};

    const LEN: usize = 200_000;

    fn memory() -> Exposed {
        Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory")
    }

    async fn registered(context: &Context, memory: &Exposed) -> RegisteredExtent {
        let registered = RegisteredExtent::register(context, memory.extent()).await;
        registered.expect("registered")
    }

    async fn ends() -> (Fabric, [Context; 2], (End, End)) {
        let (fabric, a, b) = two_adapters(7);
        let connected = connect(&a, &b, QueueSizes::default()).await;
        (fabric, [a, b], connected)
    }

    #[test]
    fn exposed_memory_and_regions_go_from_where_they_lie_to_where_they_belong() {
        on_core(Idle::default(), || async {
            let (_fabric, [here, there], (a, _b)) = ends().await;
            let (ours, theirs) = (memory(), memory());
            ours.copy_in(100, b"bytes");
            let window = ExposedWindow::register(&there, theirs.clone(), ALL).await;
            let window = window.expect("a window");
            assert_eq!((window.len(), window.is_empty()), (LEN, false));
            let extent = registered(&here, &ours).await;
            assert_eq!(extent.extent().start().as_ptr().addr(), ours.start());
            let remote = window.remote();
            let lent = extent.lend(ours.slice(100, 5)).expect("it lies there");
            let written = a.pair.write_lent(lent, remote.at(LEN as u64 - 5), soon());
            assert_eq!(written.await.0, Ok(()));
            assert_eq!(theirs.slice(LEN - 5, 5).to_vec(), b"bytes");
            let mut region = arena().alloc(3).expect("room");
            region.as_mut_slice().copy_from_slice(b"two");
            let region = region.freeze();
            let chunk = RegisteredExtent::register(&here, region.extent()).await;
            let chunk = chunk.expect("registered");
            let lend = || chunk.lend(region.clone()).expect("it lies there");
            assert_eq!(a.pair.write_lent(lend(), remote, soon()).await.0, Ok(()));
            let refused = a.pair.read_lent(lend(), remote, soon()).await;
            assert_eq!(
                refused.0,
                Err(RequestError::Refused),
                "nobody writes a region"
            );
            let into = extent.lend(ours.slice(0, 4)).expect("it lies there");
            assert_eq!(a.pair.read_lent(into, remote, soon()).await.0, Ok(()));
            assert_eq!(ours.slice(0, 4).to_vec(), b"two\0");
            assert!(extent.lend(theirs).is_none() && extent.lend(region).is_none());
        });
    }

    #[test]
    fn a_request_keeps_its_memory_and_a_registration_does_not() {
        on_core(Idle::default(), || async {
            let (fabric, [here, there], (a, _b)) = ends().await;
            let theirs = memory();
            let window = ExposedWindow::register(&there, theirs.clone(), ALL).await;
            let window = window.expect("a window");
            let ours = memory();
            ours.copy_in(0, &[5; 64]);
            let extent = registered(&here, &ours).await;
            fabric.inject(0, Fault::Slow { steps: 50 });
            let lent = extent.lend(ours.slice(0, 64)).expect("it lies there");
            let request = a.pair.write_lent(lent, window.remote(), soon());
            drop(ours);
            assert!(extent.extent().is_alive(), "the request has it");
            assert_eq!(request.await.0, Ok(()));
            assert_eq!(theirs.slice(0, 64).to_vec(), [5; 64]);
            assert!(!extent.extent().is_alive(), "nobody has it");
            let start = extent.extent().start().as_ptr().addr();
            let part = extent.extent().part(start, 64).expect("a part");
            let gone = RegisteredExtent::register(&here, part);
            assert_eq!(gone.await.err(), Some(SetupError::Size));
        });
    }

    #[test]
    fn peers_reach_a_window_as_far_as_it_goes_as_its_access_says_and_while_it_is_there() {
        on_core(Idle::default(), || async {
            let none = Access::default();
            let read = Access {
                remote_read: true,
                ..none
            };
            let write = Access {
                remote_write: true,
                ..none
            };
            let denied = Err(RequestError::Failed(Status::RemoteAccess));
            for (access, reads, writes) in [(read, Ok(()), denied), (write, denied, Ok(()))] {
                for (is_read, expected) in [(true, reads), (false, writes)] {
                    let (_fabric, [here, there], (a, _b)) = ends().await;
                    let (ours, theirs) = (memory(), memory());
                    let window = ExposedWindow::register(&there, theirs.slice(4096, 64), access);
                    let remote = window.await.expect("a window");
                    let extent = registered(&here, &ours).await;
                    let lent = extent.lend(ours.slice(0, 64)).expect("it lies there");
                    let request = if is_read {
                        a.pair.read_lent(lent, remote.remote(), soon())
                    } else {
                        a.pair.write_lent(lent, remote.remote(), soon())
                    };
                    assert_eq!(request.await.0, expected, "{access:?} {is_read}");
                }
            }
            for (offset, is_dropped) in [(1, false), (u64::MAX, false), (0, true)] {
                let (_fabric, [here, there], (a, _b)) = ends().await;
                let (ours, theirs) = (memory(), memory());
                let window = ExposedWindow::register(&there, theirs.slice(4096, 64), ALL).await;
                let window = window.expect("a window");
                let remote = window.remote().at(offset);
                let _kept = (!is_dropped).then_some(window);
                let extent = registered(&here, &ours).await;
                let lent = extent.lend(ours.slice(0, 64)).expect("it lies there");
                let beyond = a.pair.write_lent(lent, remote, soon());
                assert_eq!(beyond.await.0, denied, "{offset} {is_dropped}");
                assert_eq!(theirs.to_vec(), vec![0; LEN]);
            }
        });
    }
}
