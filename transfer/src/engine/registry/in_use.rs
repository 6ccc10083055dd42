//! Who is using what is registered, and waiting until nobody is.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use futures_channel::oneshot;

use super::Content;

/// The accesses to one segment that are under way.
#[derive(Debug, Default)]
pub(super) struct Users {
    count: Cell<usize>,
    waiting: RefCell<Option<Waiting>>,
}

/// Who waits until nobody uses it any more.
#[derive(Debug)]
enum Waiting {
    /// A task of this core.
    Here(Waker),
    /// Another core.
    There(oneshot::Sender<()>),
}

/// Somebody who is using a segment's memory.
#[derive(Debug)]
pub(in crate::engine) struct InUse(Rc<Users>);

impl InUse {
    pub(super) fn new(users: &Rc<Users>) -> Self {
        users.count.set(users.count.get() + 1);
        Self(Rc::clone(users))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left > 0 {
            return;
        }
        match self.0.waiting.take() {
            Some(Waiting::Here(waker)) => waker.wake(),
            // Nobody waits any more: then nobody is told.
            Some(Waiting::There(told)) => {
                let _told = told.send(());
            }
            None => {}
        }
    }
}

/// What was behind a segment that is gone.
#[derive(Debug)]
pub(in crate::engine) struct Unregistered {
    pub(super) content: Content,
    pub(super) users: Rc<Users>,
}

impl Unregistered {
    /// The memory or file, when nobody is using it any more.
    pub(in crate::engine) async fn unused(self) -> Content {
        let Self { content, users } = self;
        poll_fn(|cx| {
            if users.count.get() == 0 {
                return Poll::Ready(());
            }
            *users.waiting.borrow_mut() = Some(Waiting::Here(cx.waker().clone()));
            Poll::Pending
        })
        .await;
        content
    }

    /// Tells another core when nobody is using it any more.
    pub(in crate::engine) fn tell_unused(self, told: oneshot::Sender<()>) {
        if self.users.count.get() == 0 {
            // Nobody waits any more: then nobody is told.
            let _told = told.send(());
        } else {
            *self.users.waiting.borrow_mut() = Some(Waiting::There(told));
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Exposed, HugePages};

    use super::*;

    #[test]
    fn another_core_is_told_when_the_last_access_ends() {
        let memory = Exposed::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let users: Rc<Users> = Rc::default();
        let (first, second) = (InUse::new(&users), InUse::new(&users));
        let unregistered = |users: &Rc<Users>| Unregistered {
            content: Content::Memory(memory.clone()),
            users: Rc::clone(users),
        };
        let (told, mut hears) = oneshot::channel();
        unregistered(&users).tell_unused(told);
        drop(first);
        assert_eq!(hears.try_recv(), Ok(None));
        drop(second);
        assert_eq!(hears.try_recv(), Ok(Some(())));
        let (told, mut hears) = oneshot::channel();
        unregistered(&users).tell_unused(told);
        assert_eq!(hears.try_recv(), Ok(Some(())), "nobody is using it");
    }
}
