//! Mooncake's metadata server: `/metadata?key=` over HTTP/1.1.

use super::{Answer, Answered, Ask, MetadataFault, VALUE_BYTES_MAX, shortened};
use crate::http::body::Body;
use crate::http::{HEADERS_MAX, HttpFault, head_len, of_parse};

const PATH: &str = "/metadata?key=";

/// A message that is read to its end: its head, and its body.
#[derive(Debug)]
struct Messages<H> {
    buffer: Vec<u8>,
    arriving: Option<(H, Body, Vec<u8>)>,
    is_lost: bool,
}

impl<H> Default for Messages<H> {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            arriving: None,
            is_lost: false,
        }
    }
}

impl<H> Messages<H> {
    /// The next message whole; `head` reads the first bytes of one.
    fn next(
        &mut self,
        head: impl Fn(&[u8]) -> Result<(H, Body), HttpFault>,
    ) -> Result<Option<(H, Vec<u8>)>, MetadataFault> {
        let message = if self.is_lost {
            Err(HttpFault::Head)
        } else {
            self.step(head)
        };
        self.is_lost = message.is_err();
        message.map_err(|_| MetadataFault::Malformed {
            what: "this is no HTTP",
        })
    }

    fn step(
        &mut self,
        head: impl Fn(&[u8]) -> Result<(H, Body), HttpFault>,
    ) -> Result<Option<(H, Vec<u8>)>, HttpFault> {
        if self.arriving.is_none() {
            let Some(len) = head_len(&self.buffer)? else {
                return Ok(None);
            };
            let (head, body) = head(&self.buffer[..len])?;
            self.buffer.drain(..len);
            self.arriving = Some((head, body, Vec::new()));
        }
        loop {
            let (_, body, bytes) = self.arriving.as_mut().expect("it was just put there");
            if bytes.len() > VALUE_BYTES_MAX {
                return Err(HttpFault::BodyTooLong);
            }
            if *body == Body::Done {
                let whole = self.arriving.take();
                return Ok(whole.map(|(head, _, bytes)| (head, bytes)));
            }
            if !body.step(&mut self.buffer, bytes)? {
                return Ok(None);
            }
        }
    }
}

/// Answers, at a client, by their status.
#[derive(Debug, Default)]
pub(super) struct Responses(Messages<u16>);

/// Asks, at a server, by method and path.
#[derive(Debug, Default)]
pub(super) struct Requests(Messages<(String, String)>);

impl Responses {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.buffer.extend_from_slice(bytes);
    }

    pub(super) fn next_answer(&mut self, ask: &Ask) -> Result<Option<Answered>, MetadataFault> {
        let Some((status, body)) = self.0.next(response_head)? else {
            return Ok(None);
        };
        Ok(Some(match (ask, status) {
            (Ask::Get { .. }, 200) => Ok(Answer::Found(body)),
            (Ask::Get { .. } | Ask::Delete { .. }, 404) => Ok(Answer::Absent),
            (Ask::Put { .. } | Ask::Delete { .. }, 200..=204) => Ok(Answer::Done),
            _ => Err(MetadataFault::Refused {
                message: format!("{status} {}", shortened(&body)),
            }),
        }))
    }
}

fn response_head(bytes: &[u8]) -> Result<(u16, Body), HttpFault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(bytes).map_err(of_parse)?;
    let status = response.code.ok_or(HttpFault::Head)?;
    if parsed != httparse::Status::Complete(bytes.len()) {
        return Err(HttpFault::Head);
    }
    // An answer whose end is that of the connection is none that we wait for.
    let announced = Body::announced(response.headers)?;
    let body = match status {
        204 | 304 => Body::Done,
        _ => announced.ok_or(HttpFault::Length)?,
    };
    Ok((status, body))
}

impl Requests {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.buffer.extend_from_slice(bytes);
    }

    pub(super) fn next_ask(&mut self) -> Result<Option<Result<Ask, MetadataFault>>, MetadataFault> {
        let Some(((method, path), value)) = self.0.next(request_head)? else {
            return Ok(None);
        };
        let refused = |message: &str| MetadataFault::Refused {
            message: message.to_owned(),
        };
        let key = path.strip_prefix(PATH).and_then(decoded);
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return Ok(Some(Err(refused("No key"))));
        };
        Ok(Some(match method.as_str() {
            "GET" => Ok(Ask::Get { key }),
            "PUT" => Ok(Ask::Put { key, value }),
            "DELETE" => Ok(Ask::Delete { key }),
            _ => Err(refused("Method not allowed")),
        }))
    }
}

fn request_head(bytes: &[u8]) -> Result<((String, String), Body), HttpFault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).map_err(of_parse)?;
    if parsed != httparse::Status::Complete(bytes.len()) {
        return Err(HttpFault::Head);
    }
    let method = request.method.ok_or(HttpFault::Head)?.to_owned();
    let path = request.path.ok_or(HttpFault::Head)?.to_owned();
    let body = Body::announced(request.headers)?.unwrap_or(Body::Done);
    Ok(((method, path), body))
}

pub(super) fn append_ask(ask: &Ask, host: &str, out: &mut Vec<u8>) {
    let (method, value) = match ask {
        Ask::Get { .. } => ("GET", None),
        Ask::Put { value, .. } => ("PUT", Some(value)),
        Ask::Delete { .. } => ("DELETE", None),
    };
    let key = encoded(ask.key());
    out.extend_from_slice(format!("{method} {PATH}{key} HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
    if let Some(value) = value {
        let head = "Content-Type: application/json\r\nContent-Length:";
        out.extend_from_slice(format!("{head} {}\r\n", value.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value.map_or(&[], Vec::as_slice));
}

pub(super) fn append_answer(answered: &Answered, out: &mut Vec<u8>) {
    let (status, body) = match answered {
        Ok(Answer::Found(value)) => ("200 OK", value.clone()),
        Ok(Answer::Done) => ("200 OK", b"metadata updated".to_vec()),
        Ok(Answer::Absent) => ("404 Not Found", b"metadata not found".to_vec()),
        Err(MetadataFault::Refused { message }) => ("400 Bad Request", message.clone().into()),
        Err(fault) => ("413 Content Too Large", fault.to_string().into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&body);
}

/// Text as a part of a query: everything but unreserved characters in hexadecimal.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The text of a query's part, if it is text.
fn decoded(query: &str) -> Option<String> {
    let mut bytes = query.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        out.push(match byte {
            b'%' => u8::try_from(digit()? << 4 | digit()?).ok()?,
            b'+' => b' ',
            b'&' => break,
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}
