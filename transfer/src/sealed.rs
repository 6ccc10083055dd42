//! Connections whose bytes are sealed: records around the same frames.

use std::ops::Range;

use lunette_auth::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_TAG_BYTES};
use lunette_auth::{Opener, RecordFault, Sealer};
use lunette_runtime::net::{Outbox, TcpStream};

use crate::error::CloseReason;

/// Bytes that are received at a time: the longest record, and as much of those behind it.
pub(crate) const SEALED_STAGING_BYTES: usize =
    2 * (RECORD_HEADER_BYTES + RECORD_BYTES_MAX + RECORD_TAG_BYTES);

/// Sends what is queued until the outbox is closed, sealed if there is a sealer.
pub(crate) async fn send(
    stream: &TcpStream,
    outbox: &Outbox,
    sealer: Option<Sealer>,
) -> Result<(), CloseReason> {
    match sealer {
        None => Ok(outbox.run(stream).await?),
        Some(mut sealer) => {
            let seal = |plain: &[u8], out: &mut Vec<u8>| Ok(sealer.seal(plain, out)?);
            outbox.run_changed(stream, seal).await
        }
    }
}

/// Opens what arrives, in the buffer that it arrives in.
#[derive(Debug)]
pub(crate) struct Opening {
    opener: Opener,
    /// What of the buffer has been received and not been opened.
    sealed: Range<usize>,
}

impl Opening {
    /// So many bytes lie at the front of the buffer.
    pub(crate) const fn new(opener: Opener, len: usize) -> Self {
        Self {
            opener,
            sealed: 0..len,
        }
    }

    /// Where the next bytes are to be received to.
    pub(crate) const fn end(&self) -> usize {
        self.sealed.end
    }

    /// So many bytes more have been received.
    pub(crate) const fn received(&mut self, count: usize) {
        self.sealed.end += count;
    }

    /// Opens the next record, if it is whole, and says where its bytes lie. Otherwise there is room for the
    /// rest of it behind [`end`](Self::end) then: what lay before it is overwritten.
    pub(crate) fn open(&mut self, buffer: &mut [u8]) -> Result<Option<Range<usize>>, RecordFault> {
        let sealed = &buffer[self.sealed.clone()];
        if let Some(&header) = sealed.first_chunk::<RECORD_HEADER_BYTES>() {
            let start = self.sealed.start + RECORD_HEADER_BYTES;
            let end = start + self.opener.body_len(&header)?;
            if end <= self.sealed.end {
                let plain = self
                    .opener
                    .open_in_place(&header, &mut buffer[start..end])?;
                self.sealed.start = end;
                return Ok(Some(start..start + plain.len()));
            }
        }
        buffer.copy_within(self.sealed.clone(), 0);
        self.sealed = 0..self.sealed.len();
        assert!(self.sealed.end < buffer.len(), "a record fits twice");
        Ok(None)
    }
}
