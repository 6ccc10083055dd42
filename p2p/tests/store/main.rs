//! Stores on a real kernel, several in one process, with the embedded coordinator and with a real etcd.

#[path = "../../../transfer/cluster/tests/conformance/etcd.rs"]
#[expect(dead_code, reason = "here it forgets nothing")]
mod etcd;
mod faults;
mod hosting;
mod real_etcd;
mod resharding;
mod scene;
mod spreading;
mod updating;
