//! A request, as a client on a member's core serves it.

use std::rc::Rc;

use lunette_kvstore::{ClusterClient, Fetched, PutOptions, Stored, Value};
use lunette_runtime::{arena, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_transfer::Room;

use super::Plan;

/// Keys that are asked about in one call.
const PRESENT_MAX: usize = 500;

/// The key of a block.
fn key(block: u64) -> Vec<u8> {
    format!("block/{block}").into_bytes()
}

/// Blocks of a request that were there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    pub(super) all: usize,
    /// Those before the first that was not.
    pub(super) leading: usize,
}

/// Gets the blocks, and puts those that were not there: how many were.
pub(super) async fn serve(client: Rc<ClusterClient>, request: Vec<u64>, plan: Plan) -> Hits {
    let keys: Vec<_> = request.iter().copied().map(key).collect();
    let wanted = keys.iter().map(|key| {
        let room = arena().alloc(plan.block_bytes).expect("room");
        (key.clone(), Room::whole(room))
    });
    let got = client.get_all(wanted.collect::<Vec<_>>()).await;
    let missed = got.into_iter().zip(0..).filter_map(|(got, place)| {
        let Fetched::Hit { room, .. } = got.expect("nothing fails") else {
            return Some(place);
        };
        let bytes = bytes_of(request[place], plan.block_bytes);
        assert!(room.as_slice() == bytes, "what was put is what is got");
        None
    });
    let missed: Vec<usize> = missed.collect();
    for run in missed.chunk_by(|before, next| before + 1 == *next) {
        let blocks = run.iter().map(|&place| {
            let mut region = arena().alloc(plan.block_bytes).expect("room");
            let bytes = bytes_of(request[place], plan.block_bytes);
            region.as_mut_slice().copy_from_slice(&bytes);
            (keys[place].clone(), Value::new(region.freeze()))
        });
        let blocks: Vec<_> = blocks.collect();
        let options = PutOptions::default();
        let stored = if plan.are_chains {
            let after = run[0].checked_sub(1).map(|place| keys[place].as_slice());
            client.put_chain(after, &blocks, options).await
        } else {
            client.put_all(&blocks, options).await
        };
        for stored in stored {
            let stored = stored.expect("room is made");
            assert!(matches!(
                stored,
                Stored::Written { .. } | Stored::Exists { .. }
            ));
        }
    }
    Hits {
        all: request.len() - missed.len(),
        leading: missed.first().copied().unwrap_or(request.len()),
    }
}

/// Bytes that only this block has.
fn bytes_of(block: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(block);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Which of the blocks are there.
pub(super) async fn present(client: Rc<ClusterClient>, blocks: Vec<u64>) -> Vec<u64> {
    let mut there = Vec::new();
    for some in blocks.chunks(PRESENT_MAX) {
        let keys: Vec<_> = some.iter().copied().map(key).collect();
        let found = client.exists(&keys).await.expect("nothing fails");
        let found = some.iter().zip(found).filter(|(_, is_there)| *is_there);
        there.extend(found.map(|(block, _)| *block));
        time::yield_now().await;
    }
    there
}
