//! Limits, from both sides.

#[cfg(test)]
mod tests {
    use std::future::pending;

    use lunette_runtime::{Idle, Scope, arena, can_spawn, time};
    use lunette_verbs::context::WINDOWS_MAX;
    use lunette_verbs::sim::{DEVICES_MAX, Fabric};
    use lunette_verbs::{
        CompletionQueue, Context, QueuePair, QueueSizes, SetupError, SharedReceives, Window,
    };
    use lunette_verbs_proto::id::SLOTS_MAX;
    use lunette_verbs_proto::{receive_queue, send_queue};

    use crate::rig::{self, ALL};

    fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
        rig::on_core(Idle::default(), test);
    }

    #[test]
    fn queues_are_as_deep_as_they_may_be_and_no_deeper() {
        on_core(|| async {
            let fabric = Fabric::new(1);
            let context = Context::simulated(&fabric, fabric.add_device()).expect("added here");
            let (sends, receives) = (send_queue::DEPTH_MAX, receive_queue::DEPTH_MAX);
            let queue = CompletionQueue::new(&context, sends + receives).expect("a queue");
            let of = |sends, receives| {
                let sizes = QueueSizes {
                    sends,
                    receives,
                    inline_bytes: 0,
                };
                QueuePair::new(&context, &queue, sizes, ALL, &mut rig::random()).map(drop)
            };
            assert_eq!(of(sends, receives), Ok(()));
            assert_eq!(of(2 * sends, 1), Err(SetupError::Size));
            assert_eq!(of(2, receives + 1), Err(SetupError::Size));
            let pool = |depth| SharedReceives::new(&context, &queue, depth).map(drop);
            assert_eq!((pool(receives), pool(1)), (Ok(()), Ok(())));
            for depth in [0, receives + 1] {
                assert_eq!(pool(depth), Err(SetupError::Size));
            }
        });
    }

    #[test]
    fn a_completion_queue_serves_so_many_and_no_more() {
        on_core(|| async {
            let context = Context::null();
            let entries = u32::try_from(SLOTS_MAX).expect("few") + 1;
            let queue = CompletionQueue::new(&context, entries).expect("a queue");
            let pool = || SharedReceives::new(&context, &queue, 1);
            let mut pools: Vec<_> = (0..SLOTS_MAX).map(|_| pool().expect("room")).collect();
            assert_eq!(pool().err(), Some(SetupError::Size));
            drop(pools.pop());
            assert!(pool().is_ok());
        });
    }

    #[test]
    fn a_context_has_so_many_windows_and_no_more() {
        on_core(|| async {
            let context = Context::null();
            let window = || {
                let region = arena().alloc(64).expect("room in the arena");
                Window::register(&context, region, ALL)
            };
            let mut windows: Vec<_> = (0..WINDOWS_MAX).map(|_| window().expect("room")).collect();
            assert_eq!(window().err(), Some(SetupError::Size));
            let name = windows.pop().expect("there are some").name();
            let again = window().expect("room");
            assert!(
                context.window(name).is_none(),
                "a place has a name for each window"
            );
            assert!(context.window(again.name()).is_some());
        });
    }

    #[test]
    #[should_panic(expected = "bounded")]
    fn a_fabric_has_so_many_adapters_and_no_more() {
        let fabric = Fabric::new(1);
        for device in 0..DEVICES_MAX {
            assert_eq!(fabric.add_device(), device);
        }
        fabric.add_device();
    }
    #[test]
    fn a_core_that_takes_no_more_tasks_has_no_queue_that_nobody_keeps() {
        on_core(|| async {
            let fabric = Fabric::new(1);
            let context = Context::simulated(&fabric, fabric.add_device()).expect("added here");
            // What watches the device is there already.
            drop(CompletionQueue::new(&context, 64).expect("a queue"));
            time::yield_now().await;
            for left in [0, 1] {
                let (few, others) = (Scope::new(), Scope::new());
                for _ in 0..left {
                    few.spawn(pending()).expect("there is room");
                }
                while can_spawn() {
                    others.spawn(pending()).expect("there is room");
                }
                drop(few);
                time::yield_now().await;
                let refused = CompletionQueue::new(&context, 64).map(drop);
                assert_eq!(refused, Err(SetupError::TooManyTasks), "{left} left");
                drop(others);
                time::yield_now().await;
                drop(CompletionQueue::new(&context, 64).expect("a queue"));
                time::yield_now().await;
            }
            // That of a device is told in the same way.
            let other = Context::simulated(&fabric, fabric.add_device()).expect("added here");
            let others = Scope::new();
            while can_spawn() {
                others.spawn(pending()).expect("there is room");
            }
            assert!(CompletionQueue::new(&other, 64).is_err_and(|error| error.is_backpressure()));
            drop(others);
            time::yield_now().await;
            assert!(
                CompletionQueue::new(&other, 64).is_ok(),
                "it is watched now"
            );
        });
    }
}
