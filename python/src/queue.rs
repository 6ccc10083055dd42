//! Questions whose answers wake an event loop.
//!
//! A question is under way from when it is put. When its answer comes, on a thread of a core, its number is noted and
//! one descriptor becomes readable; the loop's thread takes what is there. No thread waits.
//!
//! What a question has lent is the cores' until they have let go of it: a question that is given up is kept, with
//! the objects whose memory it names, until then.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use crate::failure::{Unavailable, of_start};
use crate::memory::Loans;
use crate::owned::Owned;

/// Most questions under way on one queue.
const QUESTIONS_MAX: usize = 1 << 16;

/// Makes an answer an object, under the GIL.
pub(crate) type Making = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// What is asked, until it is answered.
pub(crate) type Question = Pin<Box<dyn Future<Output = Making> + Send>>;

/// What is taken from the queue: a number, whether there is an answer, and the answer or an exception.
type Taken = (u64, bool, Py<PyAny>);

/// Questions of one event loop.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeQueue {
    /// Its descriptor is one with that of a child of a fork.
    of_process: Owned<()>,
    ready: Arc<Ready>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    asked: BTreeMap<u64, Asked>,
}

/// One question.
struct Asked {
    /// None once it is answered, or given up.
    question: Option<Question>,
    /// The answer, from when it is there until nothing is lent any more. None where nobody wants it.
    answer: Option<Making>,
    loans: Option<Loans>,
    /// What has the memory that is lent.
    keeps: Py<PyAny>,
}

/// Numbers that may have come further.
struct Ready {
    numbers: Mutex<Vec<u64>>,
    /// Whether the descriptor is readable already.
    is_told: AtomicBool,
    descriptor: OwnedFd,
}

/// Wakes the loop for one question.
struct Ring {
    number: u64,
    ready: Arc<Ready>,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.ready.add(self.number);
    }
}

impl Ready {
    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: u64) {
        self.numbers().push(number);
        if !self.is_told.swap(true, Ordering::AcqRel) {
            // It counts: there is room for as many as one can imagine.
            let told = write(&self.descriptor, &1_u64.to_ne_bytes());
            debug_assert!(told.is_ok(), "{told:?}");
        }
    }

    /// Takes all of them. What is added from now on makes the descriptor readable again.
    fn take(&self) -> Vec<u64> {
        let mut counted = [0; 8];
        match read(&self.descriptor, &mut counted) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => debug_assert!(false, "{error}"),
        }
        self.is_told.store(false, Ordering::Release);
        std::mem::take(&mut self.numbers())
    }
}

impl fmt::Debug for NativeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeQueue").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeQueue {
    #[new]
    fn new() -> PyResult<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(|error| of_start(&error))?;
        Ok(Self {
            of_process: Owned::new(()),
            ready: Arc::new(Ready {
                numbers: Mutex::default(),
                is_told: AtomicBool::new(false),
                descriptor,
            }),
            table: Mutex::default(),
        })
    }

    /// The descriptor, which is readable when `take` has something. It stays the queue's.
    fn fileno(&self) -> i32 {
        self.ready.descriptor.as_raw_fd()
    }

    /// What is answered, with its numbers. Not for two threads at a time.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Taken>> {
        self.of_process.check()?;
        let mut taken = Vec::new();
        let mut done = Vec::new();
        for number in self.ready.take() {
            let mut table = self.table();
            let Some(asked) = table.asked.get_mut(&number) else {
                continue;
            };
            if asked.poll(&self.waker(number)).is_ready()
                && let Some(asked) = table.asked.remove(&number)
            {
                drop(table);
                if let Some(making) = asked.answer {
                    taken.push(match making(py) {
                        Ok(answer) => (number, true, answer),
                        Err(error) => (number, false, error.into_value(py).into_any()),
                    });
                }
                done.push(asked.keeps);
            }
        }
        drop(done);
        Ok(taken)
    }

    /// Nobody wants the answer any more. What is only read is not asked for any longer.
    fn give_up(&self, number: u64) -> PyResult<()> {
        self.of_process.check()?;
        let mut table = self.table();
        if let Some(asked) = table.asked.get_mut(&number) {
            let given_up = asked.question.take();
            asked.answer = None;
            drop(table);
            drop(given_up);
            // It is looked at again when what it lent is back.
            self.ready.add(number);
        }
        Ok(())
    }

    /// How many questions are under way, those that were given up included.
    fn under_way(&self) -> usize {
        self.table().asked.len()
    }
}

impl NativeQueue {
    /// Whether there is room for a question: asked before anything is lent for it. As many threads as ask at the same
    /// time may come beyond the limit.
    ///
    /// # Errors
    /// `Unavailable`; `Closed`.
    pub(crate) fn admit(&self) -> PyResult<()> {
        self.of_process.check()?;
        if self.table().asked.len() < QUESTIONS_MAX {
            return Ok(());
        }
        let said = format!("{QUESTIONS_MAX} questions are under way");
        Err(Unavailable::new_err(said))
    }

    /// Puts a question that has lent memory of `keeps`: its number. It cannot be refused: what it lent is lent.
    pub(crate) fn put(&self, question: Question, loans: Loans, keeps: Py<PyAny>) -> u64 {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        let mut asked = Asked {
            question: Some(question),
            answer: None,
            loans: Some(loans),
            keeps,
        };
        if asked.poll(&self.waker(number)).is_ready() {
            self.ready.add(number);
        }
        table.asked.insert(number, asked);
        number
    }

    fn waker(&self, number: u64) -> Waker {
        let ready = Arc::clone(&self.ready);
        Waker::from(Arc::new(Ring { number, ready }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NativeQueue {
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What has lent memory is not let go of: nobody is left who would wait for that.
        for (_, asked) in std::mem::take(&mut table.asked) {
            drop(asked.question);
            std::mem::forget(asked.keeps);
        }
    }
}

impl Asked {
    /// Whether it is answered or given up, and nothing is lent any more.
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut cx = Context::from_waker(waker);
        if let Some(question) = &mut self.question {
            let Poll::Ready(answer) = question.as_mut().poll(&mut cx) else {
                return Poll::Pending;
            };
            self.answer = Some(answer);
            self.question = None;
        }
        if let Some(loans) = &self.loans {
            let over = pin!(loans.over()).poll(&mut cx);
            if over.is_pending() {
                return Poll::Pending;
            }
            self.loans = None;
        }
        Poll::Ready(())
    }
}
