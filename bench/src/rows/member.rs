//! The asking side of gets from a member of a cluster; every value's checksum is verified on the way.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, ClusterClientOptions, Fetched, PutOptions, Value};
use lunette_runtime::{CoreOptions, arena, block_on, time};
use lunette_transfer::Room;

use crate::peer::idle;
use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::Failure;

const KEY: &[u8] = b"bench/object/000";

pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    pace: Pace,
    spin: Duration,
    bytes: usize,
) -> Result<Calls, Failure> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    block_on(Some(cpu), options, move || get(server, pace, bytes))?
}

async fn get(server: SocketAddr, pace: Pace, bytes: usize) -> Result<Calls, Failure> {
    let client = ClusterClient::connect(ClusterClientOptions::new(vec![server])).await?;
    let key = [KEY, &bytes.to_string().into_bytes()].concat();
    let mut value = arena().alloc(bytes)?;
    value.as_mut_slice().fill(3);
    let value = Value::new(value.freeze());
    client.put(&key, value, PutOptions::default()).await?;
    let mut calls = Calls::new(pace);
    let mut room = Room::whole(arena().alloc(bytes)?);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        calls.begin();
        room = match client.get(&key, room).await? {
            Fetched::Hit {
                room, len_bytes, ..
            } if len_bytes == bytes => room,
            other => return Err(format!("the object is not what was put: {other:?}").into()),
        };
        calls.end();
    }
    Ok(calls)
}
