//! In simulated worlds alone: links that fail, drives that fail, crowds; and capabilities against a model.
//!
//! | module | what it proves |
//! |---|---|
//! | `faults` | over two rails that fail nothing is lost or written twice |
//! | `flaps` | a rail that loses bytes, or that comes and goes |
//! | `urgency` | what is urgent overtakes what is not |
//! | `killed` | who is killed at whatever step of a transfer harms nobody else, and leaves nothing behind |
//! | `cores` | the same between engines of two cores |
//! | `files` | what was written to a file stays as it was written, also where links and drives fail |
//! | `namespaces` | the same of namespaces, whose server also dies |
//! | `crowds` | many peers, and many who never say who they are |
//! | `grants` | capabilities, against a model |
//! | `rdma` | over adapters of a simulated fabric, with all its faults |
//! | `rails` | worlds of two hosts with two rails between them |

mod cores;
mod crowds;
mod faults;
mod files;
mod flaps;
mod grants;
mod killed;
mod namespaces;
pub(crate) mod rails;
mod rdma;
mod urgency;
