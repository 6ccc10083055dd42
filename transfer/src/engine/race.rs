//! Several attempts at the same thing, of which the first to succeed counts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lunette_runtime::time;

/// How long an attempt is waited for before the next one begins beside it (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// One of them.
pub(super) type Attempt<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + 'a>>;

/// Makes one attempt after the other: the next when one has failed, or when nothing has come of those
/// before for a while. The first that succeeds ends the others; its index comes with it. If all fail,
/// the error is that of the last to do so.
///
/// # Panics
/// Without attempts.
pub(super) async fn first<T, E>(
    attempts: impl IntoIterator<Item = Attempt<'_, T, E>>,
) -> Result<(usize, T), E> {
    let mut waiting = attempts.into_iter().enumerate().peekable();
    let mut running = Vec::from_iter(waiting.next());
    assert!(!running.is_empty(), "there is something to attempt");
    let mut patience = time::sleep(STAGGER);
    poll_fn(|cx| {
        loop {
            match poll_all(&mut running, cx) {
                Poll::Ready(Ok(won)) => return Poll::Ready(Ok(won)),
                Poll::Ready(Err(error)) if running.is_empty() && waiting.peek().is_none() => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(_)) => {}
                Poll::Pending if waiting.peek().is_none() => return Poll::Pending,
                Poll::Pending => ready!(Pin::new(&mut patience).poll(cx)),
            }
            running.extend(waiting.next());
            patience = time::sleep(STAGGER);
        }
    })
    .await
}

/// Polls each attempt. One that fails is taken out, and nothing is polled after it this time.
fn poll_all<T, E>(
    running: &mut Vec<(usize, Attempt<'_, T, E>)>,
    cx: &mut Context<'_>,
) -> Poll<Result<(usize, T), E>> {
    for at in 0..running.len() {
        let (index, attempt) = &mut running[at];
        let index = *index;
        match attempt.as_mut().poll(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(won)) => return Poll::Ready(Ok((index, won))),
            Poll::Ready(Err(error)) => {
                drop(running.remove(at));
                return Poll::Ready(Err(error));
            }
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_runtime::CoreOptions;
    use lunette_runtime::sim::{World, WorldOptions};

    /// An attempt that ends so many milliseconds after its beginning.
    fn attempt(ms: u64, succeeds: bool) -> Attempt<'static, u64, u64> {
        Box::pin(async move {
            time::sleep(Duration::from_millis(ms)).await;
            if succeeds { Ok(ms) } else { Err(ms) }
        })
    }

    /// What comes of these attempts, and after how many milliseconds.
    fn raced(attempts: &[(u64, bool)]) -> (Result<(usize, u64), u64>, u128) {
        let mut world = World::new(1, WorldOptions::default());
        let host = std::net::IpAddr::from([10, 0, 0, 1]);
        let process = world.start(host, 1, CoreOptions::default());
        let attempts = attempts.to_vec();
        let done = world.spawn(process, 0, move || async move {
            let began = time::now();
            let attempts = attempts.into_iter().map(|(ms, ok)| attempt(ms, ok));
            let result = first(attempts).await;
            (result, time::now().since(began).as_millis())
        });
        let until = world.now() + Duration::from_secs(60);
        assert!(world.run_until(until, || done.is_there()));
        done.take().expect("it is there")
    }

    fn is_about(took: u128, expected: u128) -> bool {
        (expected..expected + 20).contains(&took)
    }

    #[test]
    fn the_first_is_left_alone_while_it_is_fast() {
        let (result, took) = raced(&[(200, true), (1, true)]);
        assert_eq!(result, Ok((0, 200)));
        assert!(is_about(took, 200), "{took}");
    }

    #[test]
    fn a_slow_one_gets_company_and_a_failed_one_a_successor_at_once() {
        let (result, took) = raced(&[(9_000, true), (10, true)]);
        assert_eq!(result, Ok((1, 10)));
        assert!(is_about(took, 260), "{took}");
        let (result, took) = raced(&[(5, false), (7, false), (10, true)]);
        assert_eq!(result, Ok((2, 10)));
        assert!(is_about(took, 22), "{took}");
        // The slow one wins after all.
        let (result, took) = raced(&[(400, true), (9_000, true), (9_000, true)]);
        assert_eq!(result, Ok((0, 400)));
        assert!(is_about(took, 400), "{took}");
    }

    #[test]
    fn if_all_fail_the_last_word_counts() {
        let (result, took) = raced(&[(700, false), (10, false), (20, false)]);
        assert_eq!(result, Err(700));
        assert!(is_about(took, 700), "{took}");
        let (result, _) = raced(&[(3, false)]);
        assert_eq!(result, Err(3));
        let (result, took) = raced(&[(1_000, true)]);
        assert_eq!((result, is_about(took, 1_000)), (Ok((0, 1_000)), true));
    }
}
