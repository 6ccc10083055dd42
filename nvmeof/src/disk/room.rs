//! Memory for a command, as soon as there is some.

use std::time::Duration;

use lunette_runtime::arena::RegionMut;
use lunette_runtime::{arena, time};

/// How long a command waits for memory, and how often it looks.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
const ROOM_PAUSE: Duration = Duration::from_micros(500);

/// A region, as soon as there is memory for it.
pub(crate) async fn room(len: usize) -> Option<RegionMut> {
    let deadline = time::now() + ROOM_TIMEOUT;
    loop {
        match arena().alloc(len) {
            Ok(region) => return Some(region),
            Err(error) if error.is_backpressure() && time::now() < deadline => {
                time::sleep(ROOM_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "no memory for a command");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{ArenaOptions, CHUNK_BYTES_MIN};
    use lunette_runtime::{CoreOptions, block_on, spawn_local};

    use super::*;

    #[test]
    fn it_comes_as_soon_as_somebody_gives_some_back() {
        let options = CoreOptions {
            arena: ArenaOptions {
                bytes_max: CHUNK_BYTES_MIN,
                chunk_bytes: CHUNK_BYTES_MIN,
                ..ArenaOptions::default()
            },
            ..CoreOptions::default()
        };
        let ran = block_on(None, options, || async {
            let mut all = Vec::new();
            while let Ok(region) = arena().alloc(CHUNK_BYTES_MIN / 4) {
                all.push(region);
            }
            assert!(!all.is_empty());
            let waiting = spawn_local(room(CHUNK_BYTES_MIN / 4));
            time::sleep(4 * ROOM_PAUSE).await;
            drop(all.pop());
            let region = waiting.await.expect("no panic");
            assert!(region.is_some());
            assert!(
                room(usize::MAX).await.is_none(),
                "not what there will never be"
            );
        });
        ran.expect("a core");
    }
}
