//! HTTP/1.1 as etcd's gateway speaks it: posts of JSON, answers with a length or in chunks.
//!
//! Both readers take bytes as they come and tell lines: the gateway writes one JSON value a line, so
//! a stream of values and a single one look alike. What a peer can make them hold is bounded: a head
//! by [`HEAD_BYTES_MAX`], a line or a request's body by [`BODY_BYTES_MAX`].

pub(crate) mod body;
mod request;
mod response;

use thiserror::Error;

pub use request::{Request, RequestReader};
pub use response::{Part, ResponseReader};

/// Longest head of a message, and longest line between chunks, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest line of an answer, and longest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most header fields of a message.
pub const HEADERS_MAX: usize = 64;

/// Why a stream is no HTTP that this package reads. The connection is of no further use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HttpFault {
    /// The head makes no sense.
    #[error("malformed head")]
    Head,
    /// The head is longer than [`HEAD_BYTES_MAX`], or has more than [`HEADERS_MAX`] fields.
    #[error("the head is too long")]
    HeadTooLong,
    /// The body's length is told twice, or not as a number.
    #[error("malformed length of a body")]
    Length,
    /// The body, or a line of it, is longer than [`BODY_BYTES_MAX`].
    #[error("the body is too long")]
    BodyTooLong,
    /// A chunk does not begin or end as it must.
    #[error("malformed chunk")]
    Chunk,
    /// A request that is no POST, or asks for what is not served here.
    #[error("only posts are served")]
    Method,
    /// The peer closed within a message.
    #[error("the message was cut off")]
    Cut,
}

/// Appends a request: a post of `json` to `path`.
pub fn append_request(out: &mut Vec<u8>, host: &str, path: &str, json: &[u8]) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        json.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(json);
}

/// Appends a whole answer.
pub fn append_response(out: &mut Vec<u8>, status: u16, json: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        reason(status),
        json.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(json);
}

/// Appends the head of an answer that comes in chunks.
pub fn append_stream_head(out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
}

/// Appends one line of such an answer, as a chunk.
pub fn append_stream_line(out: &mut Vec<u8>, json: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", json.len() + 1).as_bytes());
    out.extend_from_slice(json);
    out.extend_from_slice(b"\n\r\n");
}

/// Appends the end of such an answer.
pub fn append_stream_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        412 => "Precondition Failed",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

/// Takes a head from the front of `buffer`, if it is there whole.
pub(crate) fn head_len(buffer: &[u8]) -> Result<Option<usize>, HttpFault> {
    let seen = &buffer[..buffer.len().min(HEAD_BYTES_MAX)];
    match seen.windows(4).position(|window| window == b"\r\n\r\n") {
        Some(at) => Ok(Some(at + 4)),
        None if buffer.len() >= HEAD_BYTES_MAX => Err(HttpFault::HeadTooLong),
        None => Ok(None),
    }
}

pub(crate) const fn of_parse(error: httparse::Error) -> HttpFault {
    match error {
        httparse::Error::TooManyHeaders => HttpFault::HeadTooLong,
        _ => HttpFault::Head,
    }
}
