//! Adapters with a rate, in a world's time.

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, time};
    use lunette_verbs::sim::{Fabric, Fault, Speed};
    use lunette_verbs::{Context, QueueSizes, RequestError};
    use lunette_verbs_proto::status::Status;

    use crate::rig::{End, connect, soon};

    const SPEED: Speed = Speed {
        bytes_per_second: 100_000_000,
        latency: Duration::from_micros(2),
    };

    fn in_a_world<F: Future<Output = ()> + 'static>(
        scene: impl FnOnce(Fabric, End, End) -> F + 'static,
    ) {
        let mut world = World::new(3, WorldOptions::default());
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let done = world.spawn(process, 0, || async move {
            let fabric = Fabric::new(3);
            let (a, b) = (fabric.add_device(), fabric.add_device());
            let context = |index| Context::simulated(&fabric, index).expect("added above");
            let (a, b) = connect(&context(a), &context(b), QueueSizes::default()).await;
            fabric.set_speed(0, SPEED);
            scene(fabric, a, b).await;
        });
        let until = world.now() + Duration::from_secs(30);
        assert!(world.run_until(until, || done.is_there()));
        done.take().expect("it ended well");
    }

    async fn writes(a: &End, b: &End, count: usize) -> Duration {
        let began = time::now();
        let bulk = vec![1; 100_000];
        let remote = b.window.remote();
        let write = |_| a.pair.write(a.piece(&bulk), bulk.len(), remote, soon());
        let requests: Vec<_> = (0..count).map(write).collect();
        for request in requests {
            assert_eq!(request.await.0, Ok(()));
        }
        time::now().since(began)
    }

    #[test]
    fn requests_take_as_long_as_their_bytes_and_the_slower_end_says() {
        in_a_world(async |fabric, a, b| {
            let ms = |took: Duration| (took.as_micros() + 500) / 1000;
            assert_eq!(ms(writes(&a, &b, 4).await), 4);
            let slow = Speed {
                bytes_per_second: 50_000_000,
                ..SPEED
            };
            fabric.set_speed(1, slow);
            assert_eq!(ms(writes(&a, &b, 4).await), 8);
        });
    }

    #[test]
    fn a_link_that_comes_back_in_time_costs_that_time_and_one_that_does_not_breaks_the_queue_pair()
    {
        in_a_world(async |fabric, a, b| {
            fabric.inject(1, Fault::LinkDown);
            let up = fabric.clone();
            drop(lunette_runtime::spawn_local(async move {
                time::sleep(Duration::from_millis(50)).await;
                up.inject(1, Fault::LinkUp);
            }));
            let took = writes(&a, &b, 2).await;
            assert!((50..55).contains(&took.as_millis()), "{took:?}");
            fabric.inject(1, Fault::LinkDown);
            let began = time::now();
            let write = a.pair.write(a.piece(&[1]), 1, b.window.remote(), soon());
            let exceeded = Err(RequestError::Failed(Status::RetryExceeded));
            assert_eq!(write.await.0, exceeded);
            // 4.096 us times 2^14, eight times.
            let took = time::now().since(began).as_millis();
            assert!((536..540).contains(&took), "{took} ms");
        });
    }
}
