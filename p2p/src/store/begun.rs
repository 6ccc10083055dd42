//! An object that is held before the program knows of it.

use std::rc::Rc;

use super::Inner;
use super::local::Local;

/// An object that is held, and of which the program does not know yet: it is let go of, if the future that is to tell it is
/// dropped.
pub(super) struct Begun {
    inner: Rc<Inner>,
    pub(super) local: Rc<Local>,
    is_done: bool,
}

impl Begun {
    pub(super) const fn new(inner: Rc<Inner>, local: Rc<Local>) -> Self {
        Self {
            inner,
            local,
            is_done: false,
        }
    }

    /// The program knows.
    pub(super) fn done(mut self) -> Rc<Local> {
        self.is_done = true;
        Rc::clone(&self.local)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // Nobody is given its memory back: whoever lent it may wait until nothing has it.
        self.local.abandon();
        if !self.local.is_closing() {
            let (inner, local) = (Rc::clone(&self.inner), Rc::clone(&self.local));
            // Where it is refused, it is held until the store ends.
            self.inner
                .spawn(async move { drop(inner.let_go(&local).await) });
        }
    }
}
