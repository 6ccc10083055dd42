//! RESP 2, as redis speaks it.

use redis_protocol::error::RedisProtocolError;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::{OwnedFrame as Frame, Resp2Frame as _};

use super::{Answer, Answered, Ask, KEY_BYTES_MAX, MetadataFault, VALUE_BYTES_MAX, shortened};

/// Longest frame: a SET.
const FRAME_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + 128;

/// Bytes that become frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    is_lost: bool,
}

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Result<Option<Frame>, MetadataFault> {
        let frame = if self.is_lost {
            Err(MALFORMED)
        } else {
            self.decode()
        };
        self.is_lost = frame.is_err();
        frame
    }

    fn decode(&mut self) -> Result<Option<Frame>, MetadataFault> {
        let decoded = decode(&self.buffer).map_err(|_: RedisProtocolError| MALFORMED)?;
        let Some((frame, len)) = decoded else {
            let is_too_long = self.buffer.len() > FRAME_BYTES_MAX;
            return if is_too_long {
                Err(MALFORMED)
            } else {
                Ok(None)
            };
        };
        self.buffer.drain(..len);
        Ok(Some(frame))
    }
}

const MALFORMED: MetadataFault = MetadataFault::Malformed {
    what: "this is no frame of redis",
};

fn append(frame: &Frame, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + frame.encode_len(false), 0);
    let len = encode(&mut out[start..], frame, false).expect("it was measured");
    assert_eq!(start + len, out.len(), "a frame is as long as it says");
}

fn bulk(bytes: &[u8]) -> Frame {
    Frame::BulkString(bytes.to_vec())
}

pub(super) fn append_ask(ask: &Ask, out: &mut Vec<u8>) {
    let words: Vec<&[u8]> = match ask {
        Ask::Get { key } => vec![b"GET", key.as_bytes()],
        Ask::Put { key, value } => vec![b"SET", key.as_bytes(), value],
        Ask::Delete { key } => vec![b"DEL", key.as_bytes()],
    };
    append(&Frame::Array(words.into_iter().map(bulk).collect()), out);
}

pub(super) fn next_answer(
    frames: &mut Frames,
    ask: &Ask,
) -> Result<Option<Answered>, MetadataFault> {
    let Some(frame) = frames.next()? else {
        return Ok(None);
    };
    let answer = match (ask, frame) {
        (_, Frame::Error(message)) => {
            let message = shortened(message.as_bytes());
            return Ok(Some(Err(MetadataFault::Refused { message })));
        }
        (Ask::Get { .. }, Frame::BulkString(value)) => Answer::Found(value),
        (Ask::Get { .. }, Frame::Null) | (Ask::Delete { .. }, Frame::Integer(0)) => Answer::Absent,
        (Ask::Put { .. }, Frame::SimpleString(said)) if said == b"OK" => Answer::Done,
        (Ask::Delete { .. }, Frame::Integer(1)) => Answer::Done,
        _ => {
            frames.is_lost = true;
            return Err(MetadataFault::Malformed {
                what: "this answers something else",
            });
        }
    };
    Ok(Some(Ok(answer)))
}

pub(super) fn next_ask(
    frames: &mut Frames,
) -> Result<Option<Result<Ask, MetadataFault>>, MetadataFault> {
    let Some(frame) = frames.next()? else {
        return Ok(None);
    };
    let Frame::Array(words) = frame else {
        frames.is_lost = true;
        return Err(MALFORMED);
    };
    Ok(Some(ask_of(words)))
}

fn ask_of(words: Vec<Frame>) -> Result<Ask, MetadataFault> {
    let refused = |message: &str| MetadataFault::Refused {
        message: format!("ERR {message}"),
    };
    let texts = words.into_iter().map(|word| match word {
        Frame::BulkString(bytes) => Ok(bytes),
        _ => Err(refused("Protocol error: expected '$'")),
    });
    let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
    let name = texts.first().map(|name| name.to_ascii_uppercase());
    let value = if texts.len() == 3 { texts.pop() } else { None };
    let key = || texts.get(1).cloned().unwrap_or_default();
    let key = String::from_utf8(key()).map_err(|_| refused("the key is no text"))?;
    match (name.as_deref(), texts.len(), value) {
        (Some(b"GET"), 2, None) => Ok(Ask::Get { key }),
        (Some(b"SET"), 2, Some(value)) => Ok(Ask::Put { key, value }),
        (Some(b"DEL"), 2, None) => Ok(Ask::Delete { key }),
        (Some(b"GET" | b"SET" | b"DEL"), ..) => Err(refused("wrong number of arguments")),
        _ => Err(refused("unknown command")),
    }
}

pub(super) fn append_answer(ask: Option<&Ask>, answered: &Answered, out: &mut Vec<u8>) {
    let frame = match (ask, answered) {
        (_, Err(fault)) => Frame::Error(match fault {
            MetadataFault::Refused { message } => message.clone(),
            fault => format!("ERR {fault}"),
        }),
        (_, Ok(Answer::Found(value))) => bulk(value),
        (Some(Ask::Delete { .. }), Ok(Answer::Absent)) => Frame::Integer(0),
        (_, Ok(Answer::Absent)) => Frame::Null,
        (Some(Ask::Delete { .. }), Ok(Answer::Done)) => Frame::Integer(1),
        (_, Ok(Answer::Done)) => Frame::SimpleString(b"OK".to_vec()),
    };
    append(&frame, out);
}
