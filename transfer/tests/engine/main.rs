//! The engine: on each driver, in worlds whose links and drives fail, against a model, and beside peers that
//! keep no rules.
//!
//! | module | what it proves |
//! |---|---|
//! | `moving` | bytes go where they belong, and nowhere else |
//! | `faults` | over two rails that fail nothing is lost or written twice |
//! | `crowds` | many peers, and many who never say who they are |
//! | `names`, `sources` | where rails lead, and from where they are connected |
//! | `sealed` | connections whose bytes are sealed |
//! | `grants`, `grants_model` | segments that are reached by capability; the same against a model |
//! | `files`, `files_faults` | files as segments; the same where links and drives fail |
//! | `same_host` | peers on one host |
//! | `threads` | engines that are asked from plain threads |
//! | `scene`, `rails`, `raw` | what they share: engines and memory; worlds of two rails; an asker that is no engine |
#![forbid(unsafe_code)]

mod crowds;
mod faults;
mod files;
mod files_faults;
mod grants;
mod grants_model;
mod moving;
mod names;
#[path = "../../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
mod rails;
mod raw;
mod same_host;
mod scene;
mod sealed;
mod sources;
mod threads;
