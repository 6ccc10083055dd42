//! Answers, as a client reads them.

use super::body::Body;
use super::{BODY_BYTES_MAX, HEADERS_MAX, HttpFault, head_len, of_parse};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// It begins, with this status.
    Head {
        /// The status: 200 if all is well.
        status: u16,
    },
    /// A line of its body, without the end of the line.
    Line(Vec<u8>),
    /// It is over; the next one may follow.
    End,
}

/// Reads one answer after the other from a stream.
#[derive(Debug, Default)]
pub struct ResponseReader {
    /// Bytes that were not looked at.
    buffer: Vec<u8>,
    /// The line that is arriving.
    line: Vec<u8>,
    /// Up to where the line was searched for its end.
    searched: usize,
    body: Option<Body>,
    fault: Option<HttpFault>,
}

impl ResponseReader {
    /// Takes bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether it stands between two answers, and nothing of the next is here.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.body.is_none() && self.buffer.is_empty()
    }

    /// The next part, if it is here.
    ///
    /// # Errors
    /// [`HttpFault`]. It stays.
    pub fn next_part(&mut self) -> Result<Option<Part>, HttpFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let part = self.step();
        self.fault = part.as_ref().err().copied();
        part
    }

    fn step(&mut self) -> Result<Option<Part>, HttpFault> {
        let Some(body) = &mut self.body else {
            return self.head();
        };
        loop {
            if let Some(at) = self.line[self.searched..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let rest = self.line.split_off(self.searched + at + 1);
                let mut line = core::mem::replace(&mut self.line, rest);
                line.pop();
                self.searched = 0;
                return Ok(Some(Part::Line(line)));
            }
            self.searched = self.line.len();
            if self.line.len() > BODY_BYTES_MAX {
                return Err(HttpFault::BodyTooLong);
            }
            if *body == Body::Done {
                self.searched = 0;
                // The last line may lack its end.
                if !self.line.is_empty() {
                    return Ok(Some(Part::Line(core::mem::take(&mut self.line))));
                }
                self.body = None;
                return Ok(Some(Part::End));
            }
            if !body.step(&mut self.buffer, &mut self.line)? {
                return Ok(None);
            }
        }
    }

    fn head(&mut self) -> Result<Option<Part>, HttpFault> {
        let Some(len) = head_len(&self.buffer)? else {
            return Ok(None);
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&self.buffer[..len]).map_err(of_parse)?;
        if parsed != httparse::Status::Complete(len) {
            return Err(HttpFault::Head);
        }
        let status = response.code.ok_or(HttpFault::Head)?;
        let announced = Body::announced(response.headers)?;
        self.body = Some(announced.unwrap_or(Body::ToClose));
        self.buffer.drain(..len);
        Ok(Some(Part::Head { status }))
    }

    /// The stream ended. What is left of an answer that ends with it is told by
    /// [`next_part`](Self::next_part).
    ///
    /// # Errors
    /// [`HttpFault::Cut`] if it ended within an answer.
    pub fn on_eof(&mut self) -> Result<(), HttpFault> {
        match &mut self.body {
            None if self.buffer.is_empty() => Ok(()),
            Some(body) if *body == Body::ToClose => {
                *body = Body::Done;
                self.line.append(&mut self.buffer);
                Ok(())
            }
            _ => Err(HttpFault::Cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        append_response, append_stream_end, append_stream_head, append_stream_line,
    };
    use super::*;

    fn parts(stream: &[u8], piece: usize) -> Result<Vec<Part>, HttpFault> {
        let mut reader = ResponseReader::default();
        let mut parts = Vec::new();
        for piece in stream.chunks(piece) {
            reader.push(piece);
            while let Some(part) = reader.next_part()? {
                parts.push(part);
            }
        }
        Ok(parts)
    }

    #[test]
    fn answers_come_one_after_the_other_in_any_pieces() {
        let mut stream = Vec::new();
        append_response(&mut stream, 404, b"{}");
        append_stream_head(&mut stream);
        append_stream_line(&mut stream, b"{\"a\":1}");
        append_stream_line(&mut stream, b"{\"b\":2}");
        append_stream_end(&mut stream);
        append_response(&mut stream, 200, b"");
        let line = |text: &str| Part::Line(text.into());
        let expected = [
            Part::Head { status: 404 },
            line("{}"),
            Part::End,
            Part::Head { status: 200 },
            line("{\"a\":1}"),
            line("{\"b\":2}"),
            Part::End,
            Part::Head { status: 200 },
            Part::End,
        ];
        for piece in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(parts(&stream, piece).unwrap(), expected, "{piece}");
        }
    }

    /// As etcd 3.4 refuses: in chunks, with a trailer that it announced.
    #[test]
    fn trailers_and_extensions_are_passed_over() {
        let stream =
            b"HTTP/1.1 412 Precondition Failed\r\nTrailer: X\r\nTransfer-Encoding: chunked\
            \r\n\r\n4;why=not\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\nX: grpc\r\n\r\n";
        let expected = [
            Part::Head { status: 412 },
            Part::Line(b"{\"a\":1}".into()),
            Part::End,
        ];
        assert_eq!(parts(stream, 5).unwrap(), expected);
    }

    #[test]
    fn an_answer_may_end_with_its_connection() {
        let mut reader = ResponseReader::default();
        reader.push(b"HTTP/1.1 200 OK\r\n\r\nwhole");
        assert_eq!(reader.next_part(), Ok(Some(Part::Head { status: 200 })));
        assert_eq!(reader.next_part(), Ok(None));
        assert_eq!(reader.on_eof(), Ok(()));
        assert_eq!(reader.next_part(), Ok(Some(Part::Line(b"whole".into()))));
        assert_eq!(reader.next_part(), Ok(Some(Part::End)));
        let mut cut = ResponseReader::default();
        cut.push(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        while let Ok(Some(_)) = cut.next_part() {}
        assert_eq!(cut.on_eof(), Err(HttpFault::Cut));
    }

    #[test]
    fn what_makes_no_sense_is_named_and_stays() {
        let head = "HTTP/1.1 200 OK\r\n";
        for (text, fault) in [
            ("SSH-2.0-x\r\n\r\n".to_owned(), HttpFault::Head),
            (
                format!("{head}Content-Length: x\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Content-Length: -1\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Content-Length: +1\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Content-Length: 99999999999999999999\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Content-Length: 1\r\nContent-Length: 1\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Transfer-Encoding: gzip\r\n\r\n"),
                HttpFault::Length,
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\nxy\r\n"),
                HttpFault::Chunk,
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n\r\n"),
                HttpFault::Chunk,
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"),
                HttpFault::Chunk,
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n123456789\r\n"),
                HttpFault::Chunk,
            ),
            (
                "x".repeat(super::super::HEAD_BYTES_MAX),
                HttpFault::HeadTooLong,
            ),
            (
                format!("{head}{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1)),
                HttpFault::HeadTooLong,
            ),
        ] {
            assert_eq!(parts(text.as_bytes(), 4096), Err(fault), "{text:.80}");
            let mut reader = ResponseReader::default();
            reader.push(text.as_bytes());
            while let Ok(Some(_)) = reader.next_part() {}
            reader.push(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(reader.next_part(), Err(fault));
        }
    }

    #[test]
    fn a_line_is_bounded_on_both_sides() {
        let stream = |len| {
            let mut out = Vec::new();
            append_response(&mut out, 200, &vec![b'x'; len]);
            out
        };
        assert!(parts(&stream(BODY_BYTES_MAX), 1 << 16).is_ok());
        let refused = parts(&stream(BODY_BYTES_MAX + 1), 1 << 16);
        assert_eq!(refused, Err(HttpFault::BodyTooLong));
    }
}
