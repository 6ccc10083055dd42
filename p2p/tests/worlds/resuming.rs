//! What it costs to go on with what was given up: the chunks that were under way, and no others.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p::{BufferFile, Held, ReceiveOptions, Store};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{CoreOptions, time};

use crate::scene::{CHUNK_BYTES, LONG, host, memory, name, pattern, register, store, world};

/// Of the object: 256 chunks.
const LEN: usize = 4 << 20;
/// Chunks that are under way from one source at a time.
const UNDER_WAY_MAX: u64 = 2;

const fn resumed(resume: bool) -> ReceiveOptions {
    ReceiveOptions {
        resume,
        version: None,
    }
}

async fn begin(store: &Store, memory: Option<&Exposed>, resume: bool) -> Held {
    let (object, options) = (name(), resumed(resume));
    if let Some(memory) = memory {
        let receiving = store.receive(&object, vec![memory.clone()], options);
        return receiving.await.expect("begun");
    }
    let file = BufferFile::open(Path::new("/object"), LEN as u64).await;
    let receiving = store.receive_files(&object, vec![file.expect("opened")], options);
    receiving.await.expect("begun")
}

/// How many bytes left the origin, when the object was given up once after that many had come.
fn sent_bytes(seed: u64, into_files: bool, given_up_at_bytes: u64) -> u64 {
    let mut world = world(seed);
    let origin = world.start(host(1), 1, CoreOptions::default());
    let known = Rc::new(RefCell::new(None));
    let tells = Rc::clone(&known);
    drop(world.spawn(origin, 0, || async move {
        let store = store(host(1)).await;
        register(&store, LEN).await;
        tells.replace(Some(store));
        pending::<()>().await;
    }));
    world.run_for(Duration::from_millis(200));
    let process = world.start(host(2), 1, CoreOptions::default());
    let is_whole = Rc::new(Cell::new(false));
    let whole = Rc::clone(&is_whole);
    let outcome = world.spawn(process, 0, move || async move {
        let store = store(host(2)).await;
        let memory = (!into_files).then(|| memory(LEN));
        let held = begin(&store, memory.as_ref(), false).await;
        while held.progress().held_bytes < given_up_at_bytes {
            time::sleep(Duration::from_millis(1)).await;
        }
        held.unregister().await;
        let held = begin(&store, memory.as_ref(), true).await;
        held.whole(LONG).await.expect("all of it");
        if let Some(memory) = memory {
            assert!(memory.to_vec() == pattern(LEN));
        }
        whole.set(true);
    });
    let until = world.now() + LONG;
    assert!(world.run_until(until, || outcome.is_there()), "seed {seed}");
    assert!(is_whole.get());
    let store: Store = known.borrow().clone().expect("it has begun");
    store.engine().statistics().served_read_bytes
}

#[test]
fn what_is_gone_on_with_costs_no_more_than_what_was_under_way() {
    let mut worst = 0;
    for seed in 0..4 {
        for into_files in [false, true] {
            let at = LEN as u64 / 8 * (1 + seed);
            let sent = sent_bytes(seed, into_files, at);
            let again = sent.checked_sub(LEN as u64).expect("each byte was sent");
            assert!(
                again <= UNDER_WAY_MAX * u64::from(CHUNK_BYTES),
                "seed {seed}: {again} bytes twice"
            );
            worst = worst.max(again);
        }
    }
    // Each is given up while chunks are under way, so that the bound is one of something.
    assert!(worst > 0, "nothing was sent twice");
}
