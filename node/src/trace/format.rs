//! Trace files: one JSON object a line.
//!
//! ```text
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
//! ```
//!
//! `timestamp` is in milliseconds, lengths are in tokens, and `hash_ids` names the prompt's blocks
//! of [`TOKENS_PER_BLOCK`] tokens, of which the last may be partial. This is the format in which
//! Mooncake published its traces. Other fields are ignored.

use std::io::{self, BufRead, Read};

use serde_json::Value;
use thiserror::Error;

/// Tokens that one block covers.
pub const TOKENS_PER_BLOCK: u64 = 512;
/// Longest line of a trace file, in bytes, its end included.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, in milliseconds since the trace began.
    pub timestamp_ms: u64,
    /// Length of its prompt, in tokens.
    pub input_tokens: u64,
    /// Length of the answer, in tokens.
    pub output_tokens: u64,
    /// The prompt's blocks, from its start: each hash covers its block and all before it.
    pub hash_ids: Vec<u64>,
}

impl Request {
    /// Tokens that the first `blocks` blocks cover.
    #[must_use]
    pub fn prefix_tokens(&self, blocks: usize) -> u64 {
        let blocks = u64::try_from(blocks).expect("a block count fits");
        self.input_tokens.min(blocks * TOKENS_PER_BLOCK)
    }
}

/// Why a trace could not be read on, and where.
#[derive(Debug, Error)]
#[error("line {line}: {fault}")]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub fault: LineFault,
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum LineFault {
    /// The file could not be read.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// Longer than a line may be.
    #[error("longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// No JSON.
    #[error("not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// JSON, but something else than an object.
    #[error("not a JSON object")]
    NotObject,
    /// A field is not there.
    #[error("no field `{0}`")]
    Missing(&'static str),
    /// A number below zero.
    #[error("`{0}` is negative")]
    Negative(&'static str),
    /// Not what the field holds.
    #[error("`{field}` is not {expected}")]
    BadType {
        /// The field.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// The prompt's length and its blocks contradict each other.
    #[error("{input_tokens} tokens make {expected} blocks, `hash_ids` names {blocks}")]
    BlockCount {
        /// The prompt's length.
        input_tokens: u64,
        /// Blocks of that length.
        expected: u64,
        /// Blocks named.
        blocks: usize,
    },
}

/// Reads a trace line by line. It ends after the last line or after the first error. Blank lines
/// are passed over.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// A reader of `source`.
    pub const fn new(source: R) -> Self {
        Self {
            source,
            line: 0,
            buffer: Vec::new(),
            ended: false,
        }
    }

    fn next_request(&mut self) -> Result<Option<Request>, LineFault> {
        loop {
            self.line += 1;
            self.buffer.clear();
            let limit = u64::try_from(LINE_BYTES_MAX).expect("the limit fits") + 1;
            let count = self
                .source
                .by_ref()
                .take(limit)
                .read_until(b'\n', &mut self.buffer)?;
            if count == 0 {
                return Ok(None);
            }
            if count > LINE_BYTES_MAX {
                return Err(LineFault::TooLong);
            }
            if !self.buffer.trim_ascii().is_empty() {
                return parse(&self.buffer).map(Some);
            }
        }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_request().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        let line = self.line;
        next.map(|result| result.map_err(|fault| TraceError { line, fault }))
    }
}

fn parse(line: &[u8]) -> Result<Request, LineFault> {
    let value: Value = serde_json::from_slice(line)?;
    if !value.is_object() {
        return Err(LineFault::NotObject);
    }
    let request = Request {
        timestamp_ms: number(&value, "timestamp")?,
        input_tokens: number(&value, "input_length")?,
        output_tokens: number(&value, "output_length")?,
        hash_ids: numbers(&value, "hash_ids")?,
    };
    let expected = request.input_tokens.div_ceil(TOKENS_PER_BLOCK);
    let blocks = request.hash_ids.len();
    if u64::try_from(blocks) != Ok(expected) {
        return Err(LineFault::BlockCount {
            input_tokens: request.input_tokens,
            expected,
            blocks,
        });
    }
    Ok(request)
}

fn number(object: &Value, field: &'static str) -> Result<u64, LineFault> {
    natural(object.get(field).ok_or(LineFault::Missing(field))?, field)
}

fn numbers(object: &Value, field: &'static str) -> Result<Vec<u64>, LineFault> {
    let value = object.get(field).ok_or(LineFault::Missing(field))?;
    let values = value.as_array().ok_or(LineFault::BadType {
        field,
        expected: "a list",
    })?;
    values.iter().map(|value| natural(value, field)).collect()
}

fn natural(value: &Value, field: &'static str) -> Result<u64, LineFault> {
    if value.as_f64().is_some_and(|number| number < 0.0) {
        return Err(LineFault::Negative(field));
    }
    value.as_u64().ok_or(LineFault::BadType {
        field,
        expected: "a whole number below 2^64",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 9, "input_length": 513, "output_length": 2, "hash_ids": [0, 7]}"#;

    fn read(text: &str) -> Vec<Result<Request, TraceError>> {
        TraceReader::new(text.as_bytes()).collect()
    }

    fn fault_of(line: &str) -> TraceError {
        let mut results = read(&format!("{GOOD}\n\n{line}\n{GOOD}\n"));
        assert_eq!(results.len(), 2, "reading ends at the error");
        results.pop().expect("two results").expect_err(line)
    }

    #[test]
    fn lines_become_requests_with_or_without_a_last_newline() {
        let expected = Request {
            timestamp_ms: 9,
            input_tokens: 513,
            output_tokens: 2,
            hash_ids: vec![0, 7],
        };
        for text in [GOOD.to_owned(), format!("{GOOD}\r\n"), format!("\n{GOOD}")] {
            let requests: Vec<Request> = read(&text).into_iter().map(Result::unwrap).collect();
            assert_eq!(requests, std::slice::from_ref(&expected));
        }
        assert_eq!(expected.prefix_tokens(0), 0);
        assert_eq!(expected.prefix_tokens(1), 512);
        assert_eq!(expected.prefix_tokens(2), 513);
    }

    #[test]
    fn what_is_wrong_and_where_is_said() {
        let cases = [
            ("{", "line 3: not JSON: "),
            ("[1]", "line 3: not a JSON object"),
            (
                r#"{"timestamp": 9, "input_length": 1, "hash_ids": [0]}"#,
                "line 3: no field `output_length`",
            ),
            (
                r#"{"timestamp": -9, "input_length": 1, "output_length": 1, "hash_ids": [0]}"#,
                "line 3: `timestamp` is negative",
            ),
            (
                r#"{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": [-1]}"#,
                "line 3: `hash_ids` is negative",
            ),
            (
                r#"{"timestamp": 9, "input_length": 1.5, "output_length": 1, "hash_ids": [0]}"#,
                "line 3: `input_length` is not a whole number below 2^64",
            ),
            (
                r#"{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": 0}"#,
                "line 3: `hash_ids` is not a list",
            ),
            (
                r#"{"timestamp": 9, "input_length": 512, "output_length": 1, "hash_ids": [0, 1]}"#,
                "line 3: 512 tokens make 1 blocks, `hash_ids` names 2",
            ),
        ];
        for (line, expected) in cases {
            let message = fault_of(line).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        let padded = |len: usize| format!("{GOOD}{}\n", " ".repeat(len - 1 - GOOD.len()));
        assert!(read(&padded(LINE_BYTES_MAX))[0].is_ok());
        let error = read(&padded(LINE_BYTES_MAX + 1))
            .remove(0)
            .expect_err("too long");
        assert!(matches!(error.fault, LineFault::TooLong), "{error}");
    }
}
