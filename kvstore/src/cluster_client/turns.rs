//! Asking one after the other, without waiting for those who are silent.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunette_runtime::time;

/// Who has not answered for so long is not waited for before the next one is asked.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// Begins one after the other, each when one of those before has ended, or none has for a moment, until `judge` breaks with what
/// has come of one. `None` if that does not come, of all of them, or of those that end within `last_wait` when nothing else is
/// left to begin. Who is not waited for any more is dropped.
pub(super) async fn by_turns<F: Future, R>(
    mut begun: impl Iterator<Item = F>,
    last_wait: Duration,
    mut judge: impl FnMut(F::Output) -> ControlFlow<R>,
) -> Option<R> {
    let mut under_way = FuturesUnordered::new();
    loop {
        let next = begun.next();
        let is_last = next.is_none();
        let wait = if is_last { last_wait } else { SILENCE_MAX };
        under_way.extend(next);
        match time::timeout(wait, under_way.next()).await {
            Ok(Some(ended)) => {
                if let ControlFlow::Break(right) = judge(ended) {
                    return Some(right);
                }
            }
            Ok(None) => return None,
            Err(_silent) if is_last => return None,
            Err(_silent) => {}
        }
    }
}
