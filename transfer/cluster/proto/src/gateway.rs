//! The interface as etcd's JSON gateway spells it (version 3, as of etcd 3.4).
//!
//! Keys and values are in base64, numbers of 64 bits are strings, and what is zero is left out.
//! Clients encode what they ask and decode what is answered; a coordinator does it the other way
//! round with the same tables, so that the embedded one is reached as etcd is.

mod client;
mod server;
mod wire;

pub use client::{WatchLine, decode, decode_watch_line, encode, encode_watch};
pub use server::{
    Asked, decode_request, encode_answer, encode_created, encode_fault, encode_watch_line,
};

/// Longest message of a peer that is kept in a fault, in characters.
const MESSAGE_CHARS_MAX: usize = 200;

const PATH_RANGE: &str = "/v3/kv/range";
const PATH_PUT: &str = "/v3/kv/put";
const PATH_DELETE: &str = "/v3/kv/deleterange";
const PATH_TXN: &str = "/v3/kv/txn";
const PATH_GRANT: &str = "/v3/lease/grant";
const PATH_KEEP_ALIVE: &str = "/v3/lease/keepalive";
const PATH_REVOKE: &str = "/v3/lease/revoke";
const PATH_WATCH: &str = "/v3/watch";

/// Codes of gRPC that have a meaning here.
const CODE_INVALID_ARGUMENT: u32 = 3;
const CODE_DEADLINE_EXCEEDED: u32 = 4;
const CODE_NOT_FOUND: u32 = 5;
const CODE_RESOURCE_EXHAUSTED: u32 = 8;
const CODE_FAILED_PRECONDITION: u32 = 9;
const CODE_OUT_OF_RANGE: u32 = 11;
const CODE_UNAVAILABLE: u32 = 14;

fn shortened(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).collect()
}
