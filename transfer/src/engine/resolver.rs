//! Who is asked for the addresses of a name.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use lunette_runtime::net::{ResolveError, resolve};

/// Questions of one engine that are under way; others wait for them.
const QUESTIONS_MAX: usize = 64;

/// An answer on its way. It stays on the core that asked.
pub type Resolving = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, ResolveError>>>>;

/// Who knows the addresses of names: the system, a directory of the program's own, a test.
pub trait Resolve: Send + Sync {
    /// The addresses of `host` with `port`, in the order in which they should be tried. It is polled on
    /// the engine's core, so it may wait and must not block. Nobody who asks waits for longer than
    /// [`connect_timeout`](super::EngineOptions::connect_timeout), but the answer counts also if it comes
    /// later.
    fn resolve(&self, host: &str, port: u16) -> Resolving;
}

/// Whom an engine asks for the addresses of names. By default the system, on the control thread.
#[derive(Clone)]
pub struct Resolver(Arc<dyn Resolve>);

impl Resolver {
    /// One of the program's own.
    #[must_use]
    pub fn new(resolve: impl Resolve + 'static) -> Self {
        Self(Arc::new(resolve))
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(System)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

struct System;

impl Resolve for System {
    fn resolve(&self, host: &str, port: u16) -> Resolving {
        let host = host.to_owned();
        Box::pin(async move { resolve(&host, port).await })
    }
}

/// An engine's questions, a bounded number at a time.
#[derive(Debug, Default)]
pub(super) struct Questions {
    under_way: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

/// Leave to ask.
struct Turn(Rc<Questions>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }
}

impl Questions {
    async fn turn(self: &Rc<Self>) -> Turn {
        poll_fn(|cx| {
            if self.under_way.get() >= QUESTIONS_MAX {
                self.waiting.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            self.under_way.set(self.under_way.get() + 1);
            Poll::Ready(Turn(Rc::clone(self)))
        })
        .await
    }

    /// Asks when it is our turn.
    pub(super) async fn ask(
        self: Rc<Self>,
        resolver: Resolver,
        host: String,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let _turn = self.turn().await;
        resolver.0.resolve(&host, port).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_channel::oneshot;
    use std::sync::Mutex;
    use std::task::Context;

    /// Answers when it is told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

    impl Resolve for Slow {
        fn resolve(&self, _host: &str, port: u16) -> Resolving {
            let (sender, receiver) = oneshot::channel();
            self.0.lock().expect("one thread").push(sender);
            Box::pin(async move {
                assert!(receiver.await.is_err(), "its sender is dropped");
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
            })
        }
    }

    #[test]
    fn questions_beyond_the_bound_wait_for_others() {
        let (slow, questions) = (Slow::default(), Rc::<Questions>::default());
        let resolver = Resolver::new(slow.clone());
        let ask = |_| {
            let asked = Rc::clone(&questions).ask(resolver.clone(), "store".to_owned(), 1);
            Box::pin(asked)
        };
        let mut asked: Vec<_> = (0..=QUESTIONS_MAX).map(ask).collect();
        let mut cx = Context::from_waker(Waker::noop());
        for question in &mut asked {
            assert!(question.as_mut().poll(&mut cx).is_pending());
        }
        let begun = || slow.0.lock().expect("one thread").len();
        assert_eq!(begun(), QUESTIONS_MAX);
        // One is answered, one is given up: one that waits begins.
        drop(slow.0.lock().expect("one thread").remove(0));
        assert!(asked[0].as_mut().poll(&mut cx).is_ready());
        drop(asked.remove(1));
        let last = asked.last_mut().expect("the one that waits");
        assert!(last.as_mut().poll(&mut cx).is_pending());
        assert_eq!(begun(), QUESTIONS_MAX);
        assert_eq!(questions.under_way.get(), QUESTIONS_MAX - 1);
        drop(asked);
        assert_eq!(questions.under_way.get(), 0);
    }
}
