//! Looks at how long kernels wait on a device, by one that does nothing.

use std::cell::{Cell as Flag, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lunette_gpu_proto::crowd::Crowd;
use lunette_gpu_proto::sums::SumJob;
use lunette_runtime::{spawn_local, time};

use crate::device::{Device, Inner};
use crate::error::SetupError;
use crate::lease::{Holds, HostMemory};
use crate::operation::{Cell, Operation};
use crate::provider::Queued;
use crate::stream::{StreamCore, StreamOptions};

/// A kernel that has nothing to do.
const NOTHING: SumJob = SumJob {
    list_at: 0,
    sums_at: 0,
    stripes: 0,
};

/// What a device's looks need.
#[derive(Default)]
pub(crate) struct Looks {
    crowd: Rc<Flag<Crowd>>,
    /// In which they are had, once one was.
    stream: RefCell<Option<Rc<StreamCore>>>,
}

impl Device {
    /// How long a kernel of an urgent stream waits until it begins, by the [looks](Self::look) that were had.
    #[must_use]
    pub fn kernel_wait(&self) -> Duration {
        self.inner().looks().crowd.get().wait()
    }

    /// Has a look at how long kernels wait, beside what else is under way, if none was had for a millisecond. It is for who
    /// may choose between a kernel and something else; it costs some microseconds, and nobody waits for it.
    pub fn look(&self) {
        let crowd = &self.inner().looks().crowd;
        if !crowd.get().is_due(time::now()) {
            return;
        }
        change(crowd, |crowd| crowd.begin(time::now()));
        let looking = Looking(Rc::clone(crowd));
        if let Ok(look) = self.inner().begin_look() {
            drop(spawn_local(async move {
                if look.await.0.is_ok() {
                    change(&looking.0, |crowd| crowd.end(time::now()));
                }
            }));
        }
    }

    /// This core did something for so long without a look at its devices: a look that was under way may have ended meanwhile.
    pub fn was_away(&self, time: Duration) {
        change(&self.inner().looks().crowd, |crowd| crowd.was_away(time));
    }
}

/// A look that is under way. One that is dropped before its end, as where a core takes no more tasks, is given up.
struct Looking(Rc<Flag<Crowd>>);

impl Drop for Looking {
    fn drop(&mut self) {
        change(&self.0, Crowd::give_up);
    }
}

fn change(crowd: &Flag<Crowd>, change: impl FnOnce(&mut Crowd)) {
    let mut changed = crowd.get();
    change(&mut changed);
    crowd.set(changed);
}

impl Inner {
    fn begin_look(&self) -> Result<Operation<()>, SetupError> {
        let options = StreamOptions {
            depth: 1,
            is_urgent: true,
            ..StreamOptions::default()
        };
        let known = self.looks().stream.borrow().clone();
        let stream = match known {
            Some(stream) => stream,
            None => {
                let stream = StreamCore::open(self, options)?;
                self.looks().stream.replace(Some(Rc::clone(&stream)));
                stream
            }
        };
        let cell = Cell::new(().into_lease(), Holds::default());
        let queued = stream.queue(self, &cell, |raw| {
            // SAFETY: it has no stripes, so it reads no list and tells no sums: there is no memory to be kept.
            let result = unsafe { raw.launch_sums(&NOTHING, options.blocks_max) };
            Queued {
                count: usize::from(result.is_ok()),
                result,
            }
        });
        if let Err(error) = queued {
            cell.end(Err(error));
        }
        Ok(Operation::new(cell))
    }
}
