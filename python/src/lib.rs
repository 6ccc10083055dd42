//! The store for Python programs: the native half of the package `lunette`.
//!
//! What Python sees is `python/lunette`; this module, `lunette._native`, has what needs the store: a
//! `NativeStore` that is a member of a cluster or asks one, and a `NativeCoordinator`. Its
//! signatures are in `python/lunette/_native.pyi`.
//!
//! It leaves out what is policy of an interface: defaults, names, other programs' return codes.
//!
//! | module | subject |
//! |---|---|
//! | `store` | `NativeStore`: what can be asked |
//! | `objects` | objects from and to memory of the program |
//! | `memory` | that memory, lent by address |
//! | `tensor` | `Given`: memory of tensors, by DLPack |
//! | `opening` | members and clients come into being |
//! | `owned` | what has threads, until it is closed, and for its own process |
//! | `engine` | `NativeEngine`: transfers between memory here and of peers |
//! | `p2p` | `NativeObjects`: objects that receivers pass on to each other |
//! | `coordinator` | a coordinator in this process |
//! | `reserving` | `NativeReservation`: objects that are written in ranges |
//! | `queue` | `NativeQueue`: answers that wake an event loop |
//! | `waiting` | an answer is waited for: the GIL, signals |
//! | `gil` | when the GIL is given up |
//! | `failure` | errors as exceptions |

mod coordinator;
mod engine;
mod failure;
mod gil;
mod memory;
mod objects;
mod opening;
mod owned;
mod p2p;
mod queue;
mod reserving;
mod store;
mod tensor;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<opening::NativeCluster>()?;
    module.add_class::<store::NativeStore>()?;
    module.add_class::<engine::NativeEngine>()?;
    module.add_function(wrap_pyfunction!(opening::rdma_devices, module)?)?;
    p2p::add_to(module)?;
    module.add_function(wrap_pyfunction!(memory::is_of_device, module)?)?;
    module.add_class::<tensor::Given>()?;
    module.add_class::<queue::NativeQueue>()?;
    module.add_class::<reserving::NativeReservation>()?;
    module.add_class::<coordinator::NativeCoordinator>()?;
    failure::add_to(module)
}
