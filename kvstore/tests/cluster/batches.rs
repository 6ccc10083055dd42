//! What is put together, and what memory makes of that.

use lunette_kvstore::{ClusterClient, Fetched, PutOptions, Value};
use lunette_runtime::time::timeout;

use super::on_each_driver::run;
use super::scene::{PATIENCE, Scene, key, pattern, room};

const MIB: u64 = 1 << 20;
const WORLDS: u64 = 1;
const LEN: usize = 16_384;
/// Blocks of a prompt.
const BLOCKS: usize = 4;
/// After so many other prompts one is asked for again, but for its last block.
const AGAIN_AFTER: usize = 70;
const PROMPTS: usize = 1_000;

fn block(prompt: usize, at: usize) -> Vec<u8> {
    key(prompt * BLOCKS + at)
}

async fn put_prompt(client: &ClusterClient, prompt: usize) {
    let objects = (0..BLOCKS).map(|at| (block(prompt, at), Value::new(pattern(at, LEN))));
    let objects: Vec<_> = objects.collect();
    for stored in client.put_all(&objects, PutOptions::default()).await {
        stored.expect("room");
    }
}

/// A prompt is asked for again, and goes on otherwise than before: blocks that are gone are computed anew.
async fn repeat_prompt(client: &ClusterClient, prompt: usize) {
    for at in (0..BLOCKS - 1).rev() {
        let fetched = client.get(&block(prompt, at), room(LEN)).await;
        if !matches!(fetched, Ok(Fetched::Hit { .. })) {
            let value = Value::new(pattern(at, LEN));
            let options = PutOptions::default();
            let stored = client.put(&block(prompt, at), value, options).await;
            stored.expect("room");
        }
    }
}

/// The latest prompts have not been asked for yet: how many of their blocks are there, by the place in the prompt.
async fn present(client: &ClusterClient) -> [usize; BLOCKS] {
    let mut present = [0; BLOCKS];
    for prompt in PROMPTS - AGAIN_AFTER..PROMPTS {
        let keys: Vec<_> = (0..BLOCKS).map(|at| block(prompt, at)).collect();
        let found = client.exists(&keys).await.expect("answered");
        for (present, found) in present.iter_mut().zip(found) {
            *present += usize::from(found);
        }
    }
    present
}

#[test]
fn last_blocks_that_nobody_asks_for_again_make_room_for_others() {
    run(WORLDS, || async {
        for is_inside in [true, false] {
            let scene = Scene::of(1, 4 * MIB).await;
            let client = if is_inside {
                scene.inside(0).await
            } else {
                scene.client().await
            };
            let work = async {
                for prompt in 0..PROMPTS {
                    put_prompt(&client, prompt).await;
                    if prompt >= AGAIN_AFTER {
                        repeat_prompt(&client, prompt - AGAIN_AFTER).await;
                    }
                }
                present(&client).await
            };
            let present = timeout(10 * PATIENCE, work).await.expect("in time");
            let [first, .., last] = present;
            assert!(first >= AGAIN_AFTER / 2, "of the latest: {present:?}");
            assert!(last <= AGAIN_AFTER / 8, "of the latest: {present:?}");
        }
    });
}
