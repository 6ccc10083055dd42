//! Where the body of a message ends: after so many bytes, or after the last chunk.

use httparse::Header;

use super::{HEAD_BYTES_MAX, HttpFault};

/// What of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes.
    Length(usize),
    /// A chunk's first line.
    ChunkSize,
    /// So many bytes of a chunk, then the end of its line.
    Chunk(usize),
    /// The end of a chunk's last line.
    ChunkEnd,
    /// Trailers, up to an empty line.
    Trailers,
    /// Everything up to the close.
    ToClose,
    /// Nothing.
    Done,
}

impl Body {
    /// What these fields announce; `None` if they announce nothing.
    pub(crate) fn announced(headers: &[Header<'_>]) -> Result<Option<Self>, HttpFault> {
        let mut announced = None;
        for header in headers {
            let value = header.value.trim_ascii();
            let body = if header.name.eq_ignore_ascii_case("content-length") {
                let digits = value.iter().all(u8::is_ascii_digit);
                let text = core::str::from_utf8(value).map_err(|_| HttpFault::Length)?;
                let len = text.parse().ok().filter(|_| digits);
                Self::Length(len.ok_or(HttpFault::Length)?)
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(HttpFault::Length);
                }
                Self::ChunkSize
            } else {
                continue;
            };
            // Told twice, a body has two ends, and who reads it one way or the other disagree.
            if announced.replace(body).is_some() {
                return Err(HttpFault::Length);
            }
        }
        Ok(announced)
    }

    /// Takes what it can from the front of `buffer` and appends the body's bytes to `out`. Whether
    /// it got on; without, more bytes are needed.
    pub(crate) fn step(
        &mut self,
        buffer: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<bool, HttpFault> {
        match *self {
            Self::Length(0) => *self = Self::Done,
            Self::Length(left) => return Ok(self.take(left, Self::Length, buffer, out)),
            Self::Chunk(0) => *self = Self::ChunkEnd,
            Self::Chunk(left) => return Ok(self.take(left, Self::Chunk, buffer, out)),
            Self::ToClose => return Ok(self.take(usize::MAX, |_| Self::ToClose, buffer, out)),
            Self::ChunkSize => {
                let Some(line) = line_of(buffer)? else {
                    return Ok(false);
                };
                let size = line.split(|&byte| byte == b';').next().unwrap_or_default();
                *self = match chunk_size(size.trim_ascii())? {
                    0 => Self::Trailers,
                    size => Self::Chunk(size),
                };
            }
            Self::ChunkEnd => {
                let Some(line) = line_of(buffer)? else {
                    return Ok(false);
                };
                if !line.is_empty() {
                    return Err(HttpFault::Chunk);
                }
                *self = Self::ChunkSize;
            }
            Self::Trailers => {
                let Some(line) = line_of(buffer)? else {
                    return Ok(false);
                };
                if line.is_empty() {
                    *self = Self::Done;
                }
            }
            Self::Done => return Ok(false),
        }
        Ok(true)
    }

    fn take(
        &mut self,
        left: usize,
        then: fn(usize) -> Self,
        buffer: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> bool {
        let count = left.min(buffer.len());
        out.extend(buffer.drain(..count));
        *self = then(left - count);
        count > 0
    }
}

/// Takes a line, without its end, from the front of `buffer`.
fn line_of(buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, HttpFault> {
    let seen = &buffer[..buffer.len().min(HEAD_BYTES_MAX)];
    let Some(at) = seen.windows(2).position(|window| window == b"\r\n") else {
        let is_too_long = buffer.len() >= HEAD_BYTES_MAX;
        return if is_too_long {
            Err(HttpFault::Chunk)
        } else {
            Ok(None)
        };
    };
    let mut line: Vec<u8> = buffer.drain(..at + 2).collect();
    line.truncate(at);
    Ok(Some(line))
}

/// A chunk's size, in hexadecimal. Far more than is ever read is refused later, byte by byte.
fn chunk_size(digits: &[u8]) -> Result<usize, HttpFault> {
    if digits.is_empty() || digits.len() > 8 {
        return Err(HttpFault::Chunk);
    }
    let mut size = 0_usize;
    for &digit in digits {
        let value = char::from(digit).to_digit(16).ok_or(HttpFault::Chunk)?;
        size = size << 4 | value as usize;
    }
    Ok(size)
}
