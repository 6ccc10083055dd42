//! Bounds that more than one package must agree on. A bound of one package lives there.

/// Longest key of an object, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Largest body of one frame, in bytes (lookups of a whole batch travel in one body).
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Largest payload of one frame, and so the largest extent's value, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest chunk of an arena, in bytes.
pub const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Most cores of one process's runtime.
pub const CORES_MAX: usize = 256;
/// Most keys of one batched lookup or removal.
pub const BATCH_KEYS_MAX: usize = 4096;

const _: () = assert!(PAYLOAD_BYTES_MAX <= CHUNK_BYTES_MAX);
const _: () = assert!(PAYLOAD_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(BODY_BYTES_MAX <= u32::MAX as usize);
