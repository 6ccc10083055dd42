//! What is let go of while its name, which was another version's, is written again.

use std::future::pending;
use std::time::Duration;

use lunette_p2p::{Dtype, Held, RegisterOptions, Store, Tensor};
use lunette_runtime::sim::WorldOptions;
use lunette_runtime::{CoreOptions, time};

use crate::scene::{LONG, OPTIONS, host, memory, name, pattern, store, world_with};

const LEN: usize = 16 << 10;
/// To the coordinator, and back: longer than anything takes that asks nobody.
const LATENCY: Duration = Duration::from_millis(1);

/// With tensors, which are written before the name is.
async fn register(store: &Store) -> Held {
    let memory = memory(LEN);
    memory.copy_in(0, &pattern(LEN));
    let options = RegisterOptions {
        may_replace: true,
        ..OPTIONS
    };
    let tensor = Tensor::whole("w".to_owned(), Dtype::U8, vec![LEN as u64], 0, 0);
    let (name, buffers) = (name(), vec![memory]);
    let registering = store.register_tensors(&name, buffers, vec![tensor], options);
    registering.await.expect("registered")
}

/// Whether the object is found when its first version has been let go of, so long after its second one has begun to be.
fn is_found(after: Duration) -> bool {
    let options = WorldOptions {
        latency: (LATENCY, LATENCY),
        ..WorldOptions::default()
    };
    let mut world = world_with(7, options);
    let origin = world.start(host(1), 1, CoreOptions::default());
    let outcome = world.spawn(origin, 0, move || async move {
        let store = store(host(1)).await;
        let held = register(&store).await;
        let first = held.version();
        let second = loop {
            let found = store.find(&name()).await.expect("asked").expect("there");
            if found.version != first {
                break found.version;
            }
            time::sleep(Duration::from_millis(1)).await;
        };
        assert_ne!(first, second);
        while store
            .find(&name())
            .await
            .expect("asked")
            .is_some_and(|found| found.version == second)
        {
            time::sleep(Duration::from_micros(50)).await;
        }
        time::sleep(after).await;
        drop(held.unregister().await);
        store.find(&name()).await.expect("asked").is_some()
    });
    let other = world.start(host(2), 1, CoreOptions::default());
    drop(world.spawn(other, 0, || async {
        let store = store(host(2)).await;
        time::sleep(Duration::from_secs(1)).await;
        let second = register(&store).await;
        time::sleep(Duration::from_secs(1)).await;
        drop(second.unregister().await);
        pending::<()>().await;
    }));
    let until = world.now() + LONG;
    assert!(world.run_until(until, || outcome.is_there()), "{after:?}");
    outcome.take().expect("it is there")
}

#[test]
fn a_name_that_is_written_again_goes_with_what_is_let_go_of() {
    for at in 0..40 {
        let after = Duration::from_micros(250) * at;
        assert!(!is_found(after), "{after:?}");
    }
}
