//! As much of HTTP/1.1 as is spoken: the head of one request for each connection, one answer.
//!
//! A connection is closed behind its answer, so that those who ask once in a while hold none.

use std::fmt::Write;

/// Longest head of a request, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Most header fields of a request.
const HEADERS_MAX: usize = 64;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Metrics,
    Health,
}

/// A request that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) page: Page,
    /// Only the head of the answer is wanted.
    pub(super) is_head_only: bool,
}

/// Why a request is not answered with a page: the status that it is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It makes no sense, or is too long.
    Malformed,
    /// No such page.
    NoPage,
    /// Pages are only read.
    NotRead,
}

/// The request at the front of `bytes`, if its head is there whole.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Request>, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let seen = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    match request.parse(seen) {
        Err(_fault) => return Err(Fault::Malformed),
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(Fault::Malformed),
        Ok(httparse::Status::Complete(_len)) => {}
    }
    let path = request.path.ok_or(Fault::Malformed)?;
    let path = path.split_once('?').map_or(path, |(path, _query)| path);
    let page = match path {
        "/metrics" => Page::Metrics,
        "/health" => Page::Health,
        _ => return Err(Fault::NoPage),
    };
    let is_head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Fault::NotRead),
    };
    Ok(Some(Request { page, is_head_only }))
}

/// An answer, but for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) status: u16,
    pub(super) media_type: &'static str,
}

/// The bytes of an answer.
pub(super) fn answer(kind: Kind, text: &str, is_head_only: bool) -> Vec<u8> {
    let Kind { status, media_type } = kind;
    let mut out = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    let fields = [
        ("Content-Type", media_type),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ];
    for (name, value) in fields {
        write!(out, "{name}: {value}\r\n").expect("a string takes everything");
    }
    if status == 405 {
        out.push_str("Allow: GET, HEAD\r\n");
    }
    write!(out, "Content-Length: {}\r\n\r\n", text.len()).expect("a string takes everything");
    if !is_head_only {
        out.push_str(text);
    }
    out.into_bytes()
}

/// The answer to what is no request for a page.
pub(super) fn refusal(fault: Fault) -> Vec<u8> {
    let (status, text) = match fault {
        Fault::Malformed => (400, "not a request that is understood here\n"),
        Fault::NoPage => (404, "there are /metrics and /health\n"),
        Fault::NotRead => (405, "pages are only read: GET or HEAD\n"),
    };
    let media_type = "text/plain; charset=utf-8";
    answer(Kind { status, media_type }, text, false)
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let read = |page| {
            let is_head_only = false;
            Ok(Some(Request { page, is_head_only }))
        };
        let head = Ok(Some(Request {
            page: Page::Health,
            is_head_only: true,
        }));
        let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        let long = format!("GET /health HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(9000));
        let table: [(&str, Result<Option<Request>, Fault>); 14] = [
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                read(Page::Metrics),
            ),
            ("GET /metrics HTTP/1.0\r\n\r\n", read(Page::Metrics)),
            ("GET /health?verbose=1 HTTP/1.1\r\n\r\n", read(Page::Health)),
            ("HEAD /health HTTP/1.1\r\n\r\n", head),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", Ok(None)),
            ("G", Ok(None)),
            ("", Ok(None)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(Fault::NotRead)),
            ("POST / HTTP/1.1\r\n\r\n", Err(Fault::NoPage)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Err(Fault::NoPage)),
            ("GET /metrics\r\n\r\n", Err(Fault::Malformed)),
            ("\x16\x03\x01\x02", Err(Fault::Malformed)),
            (&many, Err(Fault::Malformed)),
            (&long, Err(Fault::Malformed)),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
            let whole = text.as_bytes();
            for len in 0..whole.len() {
                // In any pieces: nothing is said too early but that it is wrong.
                let early = parse(&whole[..len]);
                assert!(early == Ok(None) || early == expected, "{text}: {early:?}");
            }
        }
    }

    #[test]
    fn an_answer_tells_its_length_also_without_its_text() {
        let kind = Kind {
            status: 503,
            media_type: "application/json",
        };
        let text = String::from_utf8(answer(kind, "{}", false)).expect("text");
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        assert!(text.ends_with("Content-Length: 2\r\n\r\n{}"), "{text}");
        let head = String::from_utf8(answer(kind, "{}", true)).expect("text");
        assert_eq!(text.strip_suffix("{}"), Some(head.as_str()));
        let refused = String::from_utf8(refusal(Fault::NotRead)).expect("text");
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }
}
