//! Stores on a real kernel, several in one process, with the embedded coordinator and with a real etcd.

mod devices;
#[path = "../../../transfer/cluster/tests/conformance/etcd.rs"]
#[expect(dead_code, reason = "here it forgets nothing")]
mod etcd;
mod faults;
mod filing;
mod hosting;
mod real_etcd;
mod resharding;
mod scene;
mod sourcing;
mod spreading;
mod updating;
