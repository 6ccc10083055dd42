//! What is begun and given up while the coordinator says nothing: its memory is free at once all the same.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_p2p::{
    Dtype, ObjectName, OfferOptions, ReceiveOptions, Slice, SliceOptions, Store, Tensor,
};
use lunette_runtime::arena::{Exposed, SharedMemory};
use lunette_runtime::{CoreOptions, time};

use crate::scene::{COORDINATOR, LONG, OPTIONS, host, memory, pattern, store, world};

/// Of the object: eight chunks.
const LEN: usize = 128 << 10;
/// How long it is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long its memory may be kept then.
const KEPT_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
enum Begun {
    Register,
    Receive,
    Slices,
    Offer,
}

fn name(name: &str) -> ObjectName {
    name.parse().expect("a name")
}

/// Eight of them.
fn tensors() -> Vec<Tensor> {
    let len = LEN as u64 / 8;
    let each = (0..8).map(|at| Tensor::whole(format!("t{at}"), Dtype::U8, vec![len], 0, at * len));
    each.collect()
}

async fn begin(store: &Store, begun: Begun, buffers: Vec<Exposed>) {
    match begun {
        Begun::Register => drop(store.register(&name("new"), buffers, OPTIONS).await),
        Begun::Receive => {
            let options = ReceiveOptions::default();
            drop(store.receive(&name("object"), buffers, options).await);
        }
        Begun::Slices => {
            let tensor = tensors().remove(5);
            let slice = Slice {
                tensor: tensor.name,
                dtype: tensor.dtype,
                shape: tensor.shape,
                block: tensor.block,
                buffer: 0,
                offset_bytes: 7,
            };
            let options = SliceOptions::default();
            let (object, slices) = (name("object"), [slice]);
            drop(
                store
                    .receive_slices(&object, buffers, &slices, options)
                    .await,
            );
        }
        Begun::Offer => {
            let options = OfferOptions {
                bucket_bytes: LEN as u64 / 4,
                register: OPTIONS,
            };
            drop(store.offer(&name("w"), &buffers, tensors(), options).await);
        }
    }
}

/// How long the memory of something was kept that was given up, when the coordinator was cut off so long after it was
/// begun; `None` if it was not given up.
fn kept(begun: Begun, cut_after: Duration) -> Option<Duration> {
    let mut world = world(7);
    let origin = world.start(host(1), 1, CoreOptions::default());
    drop(world.spawn(origin, 0, || async {
        let store = store(host(1)).await;
        let memory = memory(LEN);
        memory.copy_in(0, &pattern(LEN));
        let object = name("object");
        let registering = store.register_tensors(&object, vec![memory], tensors(), OPTIONS);
        registering.await.expect("registered");
        pending::<()>().await;
    }));
    world.run_for(Duration::from_millis(200));
    let process = world.start(host(2), 1, CoreOptions::default());
    let is_ready = Rc::new(Cell::new(false));
    let ready = Rc::clone(&is_ready);
    let outcome = world.spawn(process, 0, move || async move {
        let store = store(host(2)).await;
        let memory = SharedMemory::owned(vec![1; LEN]);
        let kept = Arc::new(());
        let buffers = vec![memory.here(Arc::clone(&kept) as _)];
        ready.set(true);
        let begun = time::timeout(PATIENCE, begin(&store, begun, buffers)).await;
        let given_up = time::now();
        while begun.is_err() && Arc::strong_count(&kept) > 1 {
            time::sleep(Duration::from_millis(1)).await;
        }
        begun.is_err().then(|| time::now().since(given_up))
    });
    let until = world.now() + LONG;
    assert!(world.run_until(until, || is_ready.get()), "it starts");
    world.run_for(cut_after);
    world.cut(COORDINATOR, host(2));
    world.cut(host(2), COORDINATOR);
    assert!(world.run_until(until, || outcome.is_there()), "{begun:?}");
    outcome.take().expect("it is there")
}

#[test]
fn memory_is_free_at_once_wherever_it_is_given_up() {
    for begun in [Begun::Register, Begun::Receive, Begun::Slices, Begun::Offer] {
        let each = (0..24).map(|at| Duration::from_micros(250) * at);
        let each = each.filter_map(|cut_after| Some((cut_after, kept(begun, cut_after)?)));
        let each: Vec<_> = each.collect();
        assert!(!each.is_empty(), "{begun:?} is given up at least once");
        for (cut_after, kept) in each {
            assert!(kept <= KEPT_MAX, "{begun:?} {cut_after:?}: {kept:?}");
        }
    }
}
