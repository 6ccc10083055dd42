//! Receiving without a buffer of one's own.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::driver::{Arrival, Descriptor, Submission};
use crate::executor::Core;
use crate::op::{Multishot, OpError};
use crate::pool::{BufferPool, PooledBytes};

/// What a connection receives, in pieces, each in a buffer that the system took from a pool when
/// the bytes had come. One operation of the driver receives again and again.
///
/// A connection that is silent holds no buffer. One that is not read from fast enough can take all
/// of the pool; it is then the peers' turn to wait, as it is when a socket's buffer is full.
///
/// Dropping it loses bytes that have arrived and not been asked for, so drop it only to close the
/// connection.
#[derive(Debug)]
pub struct Receives {
    fd: Rc<Descriptor>,
    is_within_host: bool,
    pool: BufferPool,
    receives: Option<Multishot>,
    ended: bool,
}

impl Receives {
    pub(super) const fn new(fd: Rc<Descriptor>, is_within_host: bool, pool: BufferPool) -> Self {
        Self {
            fd,
            is_within_host,
            pool,
            receives: None,
            ended: false,
        }
    }

    /// The next bytes, or `None` once the peer has finished or an error has been returned.
    ///
    /// When the pool is empty it waits until a buffer comes back. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// [`OpError`], once; the connection is to be closed.
    pub async fn next(&mut self) -> Result<Option<PooledBytes>, OpError> {
        let core = Core::current();
        let next = poll_fn(|cx| self.poll_next(&core, cx)).await;
        self.ended |= !matches!(next, Ok(Some(_)));
        next
    }

    fn poll_next(
        &mut self,
        core: &Rc<Core>,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<PooledBytes>, OpError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            if let Some(receives) = self.receives.as_mut() {
                match receives.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => self.receives = None,
                    Poll::Ready(Some(Arrival::Received(bytes))) => {
                        if self.is_within_host {
                            core.on_heard(&self.fd);
                        }
                        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
                        return Poll::Ready(Ok(bytes));
                    }
                    Poll::Ready(Some(Arrival::Finished)) => return Poll::Ready(Ok(None)),
                    Poll::Ready(Some(Arrival::Failed(errno))) => {
                        return Poll::Ready(Err(errno.into()));
                    }
                    Poll::Ready(Some(other)) => unreachable!("a stream does not yield {other:?}"),
                }
            }
            // It ended because the pool was empty, or has not begun.
            if self.pool.wait(cx.waker()) {
                return Poll::Pending;
            }
            let what = Submission::ReceiveMany;
            self.receives = Some(Multishot::submit(core, what, &self.fd, self.pool.clone())?);
        }
    }
}
