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
//! | `store` | objects, and the bytes that go in and out |
//! | `coordinator` | a coordinator in this process |
//! | `waiting` | an answer is waited for: the GIL, signals |
//! | `failure` | errors as exceptions |

mod coordinator;
mod failure;
mod store;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<store::NativeStore>()?;
    module.add_class::<coordinator::NativeCoordinator>()?;
    module.add("StoreError", py.get_type::<failure::StoreException>())?;
    module.add("Unavailable", py.get_type::<failure::Unavailable>())?;
    module.add("Corrupt", py.get_type::<failure::Corrupt>())?;
    module.add("Closed", py.get_type::<failure::Closed>())
}
