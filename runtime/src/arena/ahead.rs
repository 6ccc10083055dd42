//! Pages that are there before what comes to lie in them.
//!
//! The first byte that is written to a page of a chunk makes the system find and clear the page, which takes longer
//! than most copies do. So the control thread touches some memory beyond what has been handed out so far, and the
//! faults fall on no transfer. Memory that nobody needs yet stays untouched: a node lends much and may use little.
//!
//! It leaves out memory that is to be there as a whole before the first transfer: [`Arena::prefault`].

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::chunk::Chunk;
use super::mapping::Mapping;
use super::transparent::HUGE_PAGE_BYTES;
use super::{Arena, Inner};
use crate::control::{ControlError, control};
use crate::executor::Core;
use crate::{Signal, time};

/// What is touched by one call of the control thread, for which others wait, from its first huge page on: 100 us, and up to
/// some ms where the system has to find a huge page first, or has none.
const STRETCH_BYTES: usize = HUGE_PAGE_BYTES;
/// Pause where there is too much to do.
const PAUSE: Duration = Duration::from_millis(5);

/// How far an arena is to be ahead.
pub(super) struct Ahead {
    bytes: usize,
    /// Less than half of that is left.
    short: Rc<Signal>,
}

/// What is to be touched next.
enum Next {
    Stretch(Rc<Chunk>, Range<usize>),
    /// There is enough for now.
    Enough(Rc<Signal>),
    /// Everything is touched.
    Done,
}

impl Arena {
    /// Touches memory before it is handed out: `ahead_bytes` beyond what has been handed out so far, in steps on the
    /// control thread, and on when half of it is used up. Ends when all of the arena has been touched, or the system
    /// refuses more, and with a drop of the future at once. In a simulated world, whose pages cost nothing, it does
    /// nothing. For one task at a time.
    pub async fn touch_ahead(&self, ahead_bytes: usize) {
        if Core::current().simulated_host().is_some() {
            return;
        }
        self.inner.borrow_mut().ahead = Some(Ahead {
            bytes: ahead_bytes,
            short: Rc::default(),
        });
        loop {
            let next = self.inner.borrow_mut().next_stretch();
            match next {
                Next::Done => break,
                Next::Enough(short) => short.raised().await,
                Next::Stretch(chunk, range) => match touch(chunk.counted(), range.clone()).await {
                    Ok(Ok(())) => {
                        chunk.set_touched(range.end);
                        if chunk.used_end() >= range.end {
                            // It is used faster than it can be touched: both at once would hold each other up.
                            time::sleep(PAUSE).await;
                        }
                    }
                    Ok(Err(errno)) => {
                        tracing::warn!(%errno, "memory is not touched before it is used");
                        break;
                    }
                    Err(ControlError::Full) => time::sleep(PAUSE).await,
                    Err(ControlError::Gone) => break,
                },
            }
        }
        self.inner.borrow_mut().ahead = None;
    }
}

/// The control thread has a count of the mapping: it is there until the call is over, whoever waits for it.
async fn touch(
    mapping: Arc<Mapping>,
    range: Range<usize>,
) -> Result<Result<(), Errno>, ControlError> {
    control(move || mapping.populate(range)).await
}

impl Inner {
    /// Something was handed out that had never been.
    pub(super) fn on_first_use(&self) {
        if let Some(ahead) = &self.ahead
            && self.lead_bytes() < ahead.bytes / 2
        {
            ahead.short.raise();
        }
    }

    /// Bytes that are touched and have not been handed out yet.
    fn lead_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.lead_bytes()).sum()
    }

    fn next_stretch(&mut self) -> Next {
        let Some(ahead) = &self.ahead else {
            return Next::Done;
        };
        if self.lead_bytes() >= ahead.bytes {
            return Next::Enough(Rc::clone(&ahead.short));
        }
        loop {
            let mut chunks = self.chunks.iter();
            let begun = chunks.find_map(|chunk| Some((chunk, chunk.untouched()?)));
            if let Some((chunk, rest)) = begun {
                let end = (rest.start + 1).next_multiple_of(STRETCH_BYTES);
                let end = rest.end.min(end);
                return Next::Stretch(Rc::clone(chunk), rest.start..end);
            }
            // What cannot be mapped now may be later, and is then touched by those who use it.
            if !matches!(self.add_chunk(), Ok(true)) {
                return Next::Done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::ArenaOptions;
    use crate::{CoreOptions, block_on, spawn_local};

    const CHUNKS: usize = 3;
    const CHUNK_BYTES: usize = 2 * STRETCH_BYTES;
    const ALL: usize = CHUNKS * CHUNK_BYTES;

    fn arena() -> Arena {
        Arena::new(ArenaOptions {
            bytes_max: ALL,
            chunk_bytes: CHUNK_BYTES,
            ..ArenaOptions::default()
        })
    }

    /// How many bytes of the arena have pages.
    fn resident(arena: &Arena) -> usize {
        let chunks = arena.inner.borrow().chunks.clone();
        chunks.iter().map(|chunk| chunk.counted().resident()).sum()
    }

    /// Waits until so many bytes have pages, and the task that has touched them rests: the pages are there before
    /// it is told.
    async fn comes_to(arena: &Arena, bytes: usize, ahead: usize) {
        for _ in 0..2000 {
            let rests = arena.inner.borrow().lead_bytes() >= ahead;
            if rests && resident(arena) == bytes {
                return;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} of {bytes} bytes", resident(arena));
    }

    #[test]
    fn so_much_is_touched_before_it_is_handed_out_and_no_more() {
        block_on(None, CoreOptions::default(), || async {
            let arena = arena();
            let ahead = STRETCH_BYTES;
            let task = spawn_local({
                let arena = arena.clone();
                async move { arena.touch_ahead(ahead).await }
            });
            comes_to(&arena, ahead, ahead).await;
            let mut kept = Vec::new();
            // Less than half of it is used: nothing more is needed.
            kept.push(arena.alloc(ahead / 2 - 4096).expect("room"));
            time::sleep(Duration::from_millis(50)).await;
            assert_eq!(resident(&arena), ahead);
            kept.push(arena.alloc(8192).expect("room"));
            comes_to(&arena, 2 * ahead, ahead).await;
            // What was there before is there again.
            drop(kept);
            let again = arena.alloc(ahead / 2).expect("room");
            time::sleep(Duration::from_millis(50)).await;
            assert_eq!(resident(&arena), 2 * ahead);
            drop(again);
            // The first chunk is all used: the next ones are begun.
            let first = arena.alloc(CHUNK_BYTES).expect("room");
            comes_to(&arena, CHUNK_BYTES + ahead, ahead).await;
            let second = arena.alloc(CHUNK_BYTES).expect("room");
            // The rest of the second is touched by who has it.
            comes_to(&arena, CHUNK_BYTES + 2 * ahead, ahead).await;
            let third = arena.alloc(CHUNK_BYTES).expect("room");
            task.await.expect("it ends by itself");
            assert_eq!(resident(&arena), CHUNK_BYTES + 2 * ahead);
            drop((first, second, third));
        })
        .expect("a core");
    }

    #[test]
    fn what_was_handed_out_before_ends_anywhere() {
        block_on(None, CoreOptions::default(), || async {
            let arena = arena();
            let used = arena.alloc(1000).expect("room");
            let ahead = STRETCH_BYTES / 2;
            let task = spawn_local({
                let arena = arena.clone();
                async move { arena.touch_ahead(ahead).await }
            });
            comes_to(&arena, STRETCH_BYTES, ahead).await;
            assert!(!task.is_finished(), "it goes on");
            drop(used);
        })
        .expect("a core");
    }

    #[test]
    fn it_ends_when_everything_is_touched_and_may_be_dropped_before() {
        block_on(None, CoreOptions::default(), || async {
            let all = arena();
            all.touch_ahead(2 * ALL).await;
            assert_eq!(resident(&all), ALL);
            for _ in 0..20 {
                let arena = arena();
                let touching = arena.touch_ahead(ALL);
                // The control thread has the mapping for as long as it needs it.
                let _is_over = time::timeout(Duration::from_micros(200), touching).await;
                drop(arena);
            }
        })
        .expect("a core");
    }
}
