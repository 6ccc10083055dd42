//! Reads and writes of files.

use rustix::io::Errno;

use super::File;
use crate::driver::{Submission, Via};
use crate::executor::Core;
use crate::lease::{Lend, LendRead, LendWrite};
use crate::op::{BufResult, Op, OpError};
use crate::vectored::{Message, Scatter};

impl File {
    /// One operation, done again by the ordinary way if the device turns out not to be polled.
    async fn operate<B: Lend>(&self, what: Submission, buffer: B) -> BufResult<u32, B> {
        let core = Core::current();
        let was_polled = self.fd.via() == Via::Polling;
        let (result, buffer) = Op::submit(&core, what, &self.fd, buffer).await;
        match result {
            Err(OpError::Os(Errno::OPNOTSUPP)) if was_polled => {
                self.fd.stop_polling();
                Op::submit(&core, what, &self.fd, buffer).await
            }
            result => (result, buffer),
        }
    }

    /// Operations until `len` bytes are done: `what` is asked for the one after so many bytes, and
    /// `advance` tells the buffer of each. If nothing more is done, the error is `end`.
    async fn in_pieces<B: Lend>(
        &self,
        mut buffer: B,
        len: usize,
        end: Errno,
        what: impl Fn(usize) -> Submission,
        advance: impl Fn(&mut B, usize),
    ) -> BufResult<(), B> {
        let mut done = 0;
        while done < len {
            let (result, back) = self.operate(what(done), buffer).await;
            buffer = back;
            match result {
                Ok(0) => return (Err(OpError::Os(end)), buffer),
                Ok(count) => {
                    done += count as usize;
                    advance(&mut buffer, count as usize);
                }
                Err(error) if error.is_interruption() => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Reads at most `len` bytes from `offset` of the file to `start` of `buffer`; fewer at the
    /// end of the file, and possibly elsewhere.
    ///
    /// The buffer belongs to the system until the future ends. Dropping the future asks for
    /// cancellation; a read that is on its way to the device goes on, and its buffer is freed when
    /// it has ended.
    pub async fn read_at<B: LendWrite>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<usize, B> {
        let what = Submission::ReadAt { start, len, offset };
        let (result, buffer) = self.operate(what, buffer).await;
        (result.map(|count| count as usize), buffer)
    }

    /// Reads exactly `len` bytes, in as many pieces as it takes.
    ///
    /// The file's end within them is [`OpError::Os`] with `NODATA`.
    pub async fn read_exact_at<B: LendWrite>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<(), B> {
        let what = |done: usize| Submission::ReadAt {
            start: start + done,
            len: len - done,
            offset: offset + done as u64,
        };
        let end = Errno::NODATA;
        self.in_pieces(buffer, len, end, what, |_, _| {}).await
    }

    /// Writes at most `len` bytes from `start` of `buffer` to `offset` of the file. Ownership and
    /// cancellation are as for [`File::read_at`]: a write that was cancelled may have happened.
    pub async fn write_at<B: LendRead>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<usize, B> {
        let what = Submission::WriteAt { start, len, offset };
        let (result, buffer) = self.operate(what, buffer).await;
        (result.map(|count| count as usize), buffer)
    }

    /// Writes exactly `len` bytes, in as many pieces as it takes.
    pub async fn write_all_at<B: LendRead>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        offset: u64,
    ) -> BufResult<(), B> {
        let what = |done: usize| Submission::WriteAt {
            start: start + done,
            len: len - done,
            offset: offset + done as u64,
        };
        let end = Errno::NOSPC;
        self.in_pieces(buffer, len, end, what, |_, _| {}).await
    }

    /// Reads from `offset` of the file until the list is full, in as many pieces as it takes.
    ///
    /// Ownership and cancellation are as for [`File::read_at`]. The file's end within it is
    /// [`OpError::Os`] with `NODATA`; the list then says what is left.
    pub async fn read_scatter_at(
        &self,
        scatter: Box<Scatter>,
        offset: u64,
    ) -> BufResult<(), Box<Scatter>> {
        let what = |done: usize| Submission::ReadScatterAt {
            offset: offset + done as u64,
        };
        let (len, end) = (scatter.len(), Errno::NODATA);
        let advance = |scatter: &mut Box<Scatter>, count| scatter.advance(count);
        self.in_pieces(scatter, len, end, what, advance).await
    }

    /// Writes what is left of `message` to `offset` of the file, all of it or an error; the message
    /// then says how much.
    ///
    /// Ownership and cancellation are as for [`File::write_at`]. In a direct file each part of the
    /// message keeps [`DIRECT_ALIGN_BYTES`](super::DIRECT_ALIGN_BYTES), which control bytes do not.
    pub async fn write_message_at(
        &self,
        message: Box<Message>,
        offset: u64,
    ) -> BufResult<(), Box<Message>> {
        let what = |done: usize| Submission::WriteMessageAt {
            offset: offset + done as u64,
        };
        let (len, end) = (message.len(), Errno::NOSPC);
        let advance = |message: &mut Box<Message>, count| message.advance(count);
        self.in_pieces(message, len, end, what, advance).await
    }
}
