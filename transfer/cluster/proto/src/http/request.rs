//! Requests, as a coordinator reads them.

use super::body::Body;
use super::{BODY_BYTES_MAX, HEADERS_MAX, HttpFault, head_len, of_parse};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it is sent to.
    pub path: String,
    /// What it says.
    pub body: Vec<u8>,
}

/// Reads one request after the other from a stream.
#[derive(Debug, Default)]
pub struct RequestReader {
    buffer: Vec<u8>,
    arriving: Option<(Request, Body)>,
    fault: Option<HttpFault>,
}

impl RequestReader {
    /// Takes bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next request, if it is here whole.
    ///
    /// # Errors
    /// [`HttpFault`]. It stays.
    pub fn next_request(&mut self) -> Result<Option<Request>, HttpFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let request = self.step();
        self.fault = request.as_ref().err().copied();
        request
    }

    fn step(&mut self) -> Result<Option<Request>, HttpFault> {
        if self.arriving.is_none() {
            self.arriving = self.head()?;
        }
        let Some((request, body)) = &mut self.arriving else {
            return Ok(None);
        };
        loop {
            if request.body.len() > BODY_BYTES_MAX {
                return Err(HttpFault::BodyTooLong);
            }
            if *body == Body::Done {
                return Ok(self.arriving.take().map(|(request, _)| request));
            }
            if !body.step(&mut self.buffer, &mut request.body)? {
                return Ok(None);
            }
        }
    }

    fn head(&mut self) -> Result<Option<(Request, Body)>, HttpFault> {
        let Some(len) = head_len(&self.buffer)? else {
            return Ok(None);
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let parsed = request.parse(&self.buffer[..len]).map_err(of_parse)?;
        if parsed != httparse::Status::Complete(len) {
            return Err(HttpFault::Head);
        }
        let path = request.path.ok_or(HttpFault::Head)?.to_owned();
        if request.method != Some("POST") {
            return Err(HttpFault::Method);
        }
        let body = Body::announced(request.headers)?.unwrap_or(Body::Done);
        if matches!(body, Body::Length(len) if len > BODY_BYTES_MAX) {
            return Err(HttpFault::BodyTooLong);
        }
        self.buffer.drain(..len);
        Ok(Some((
            Request {
                path,
                body: Vec::new(),
            },
            body,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::append_request;
    use super::*;

    #[test]
    fn requests_come_one_after_the_other_in_any_pieces() {
        let mut stream = Vec::new();
        append_request(
            &mut stream,
            "etcd:2379",
            "/v3/kv/put",
            b"{\"key\":\"YQ==\"}",
        );
        append_request(&mut stream, "etcd:2379", "/v3/watch", b"");
        stream.extend_from_slice(
            b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        );
        for piece in [1, 5, 1000] {
            let (mut reader, mut requests) = (RequestReader::default(), Vec::new());
            for piece in stream.chunks(piece) {
                reader.push(piece);
                while let Some(request) = reader.next_request().unwrap() {
                    requests.push((request.path, request.body));
                }
            }
            let expected = [
                ("/v3/kv/put", &b"{\"key\":\"YQ==\"}"[..]),
                ("/v3/watch", b""),
                ("/x", b"{}"),
            ];
            assert_eq!(
                requests,
                expected.map(|(path, body)| (path.to_owned(), body.to_vec()))
            );
        }
    }

    #[test]
    fn what_is_no_post_of_bounded_length_is_refused() {
        for (text, fault) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), HttpFault::Method),
            ("POST\r\n\r\n".into(), HttpFault::Head),
            (
                format!(
                    "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
                    BODY_BYTES_MAX + 1
                ),
                HttpFault::BodyTooLong,
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
                HttpFault::Length,
            ),
        ] {
            let mut reader = RequestReader::default();
            reader.push(text.as_bytes());
            assert_eq!(reader.next_request(), Err(fault), "{text}");
            assert_eq!(reader.next_request(), Err(fault), "it stays");
        }
    }
}
