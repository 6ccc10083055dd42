//! The engine: on each driver, in worlds whose links and drives fail, against a model, and beside peers that
//! keep no rules.
//!
//! | module | what it proves |
//! |---|---|
//! | `moving` | bytes go where they belong, and nowhere else |
//! | `names`, `sources` | where rails lead, and from where they are connected |
//! | `sealed` | connections whose bytes are sealed |
//! | `grants` | segments that are reached by capability |
//! | `files` | files as segments |
//! | `devices` | memory of devices as this side of requests, and as segments beside it |
//! | `namespaces` | namespaces of NVMe controllers as segments |
//! | `regions` | shared regions as what is written |
//! | `same_host` | peers on one host |
//! | `threads`, `cores` | engines that are asked from plain threads; engines of several cores |
//! | `worlds` | what takes links and drives that fail, or more peers than a machine has |
//! | `scene`, `raw` | engines and memory; an asker that is no engine |
//! | `disks` | a disk behind a server of NVMe/TCP |
//! | `between` | somebody on the way |
#![forbid(unsafe_code)]

mod between;
mod cores;
mod devices;
mod disks;
mod files;
mod grants;
mod moving;
mod names;
mod namespaces;
#[path = "../../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
mod raw;
mod regions;
mod same_host;
mod scene;
mod sealed;
mod sources;
#[path = "../../../gpu/tests/driver/stub.rs"]
mod stub;
mod threads;
mod worlds;
