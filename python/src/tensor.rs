//! Memory of tensors that are no buffers: given by DLPack.
//!
//! A producer describes its memory, and keeps it until the description's deleter is called. There are two ways to a description:
//!
//! - By a table of C functions that the type of the tensor has, as of DLPack 1.3 (`__dlpack_c_exchange_api__`). Nothing of Python
//!   runs, and nobody waits for anything: the producer tells the stream in which it works, and copies come after what that has to do.
//! - By the method `__dlpack__`, which every producer has. It is told a stream, and has that wait for what it has still to do. Torch
//!   takes 20 us to do so. What may not be given away it refuses, which a table does not.
//!
//! Source: <https://dmlc.github.io/dlpack/latest/>.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use lunette_gpu::dlpack::{
    DEVICE_CUDA, DIMENSIONS_MAX, ManagedTensor, ManagedTensorVersioned, Tensor, TensorDevice,
    Version,
};
use lunette_gpu::{EngineStream, locate, meeting_stream};
use pyo3::exceptions::{PySystemError, PyTypeError, PyValueError};
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use pyo3::{ffi, intern, prelude::*};

/// Kinds of devices whose memory the processor reaches: its own, and what CUDA or ROCm has pinned of it.
const OF_HOST: [c_int; 3] = [1, 3, 11];
/// A bit of flags.
const READ_ONLY: u64 = 1;
/// The version of descriptions and tables that is known.
const MAJOR: u32 = 1;
/// The most that producers are asked for.
const VERSION_MAX: (u32, u32) = (MAJOR, 0);
/// `kDLComplex`.
const COMPLEX: u8 = 5;
/// Most tables of other versions before one that is known.
const TABLES_MAX: usize = 16;
/// `CU_STREAM_PER_THREAD`.
const STREAM_OF_THREAD: usize = 2;

// Capsules keep no copy of their names: these stay.
const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
const TABLE: &CStr = c"dlpack_exchange_api";

/// `DLPackExchangeAPIHeader`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    version: Version,
    /// One of an older version.
    previous: *mut Self,
}

type Export = unsafe extern "C" fn(*mut c_void, *mut *mut ManagedTensorVersioned) -> c_int;
type Working = unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int;

/// `DLPackExchangeAPI`, of major version 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct Table {
    _header: Header,
    _allocate: *const c_void,
    export: Option<Export>,
    _import: *const c_void,
    _describe: *const c_void,
    working: Option<Working>,
}

/// What of a table is used.
#[derive(Clone, Copy)]
struct Exchange {
    /// Describes the memory of an object.
    export: Export,
    /// Tells the stream in which the producer works on a device.
    working: Working,
}

/// A description, until its deleter is called: when this is dropped.
#[derive(Debug)]
enum Keeper {
    Old(NonNull<ManagedTensor>),
    Versioned(NonNull<ManagedTensorVersioned>),
}

// SAFETY: a description is its consumer's alone, on whichever thread that is; its deleter, which may be called on any that has the
// GIL, is called with it, as `drop` sees to. Ends with that call.
unsafe impl Send for Keeper {}
// SAFETY: nothing is done with one that is shared: it is only dropped. Ends there.
unsafe impl Sync for Keeper {}

impl Drop for Keeper {
    fn drop(&mut self) {
        Python::attach(|py| {
            // What is being raised, in whichever frame lets go of the memory, is nothing that the producer raised.
            let raised = PyErr::take(py);
            self.give_back();
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

impl Keeper {
    fn give_back(&self) {
        match *self {
            Self::Old(managed) => {
                // SAFETY: it was given away by its producer, so it is live until its deleter is called: here, and once.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Self::Versioned(managed) => {
                // SAFETY: as above. Up to the deleter it is the same in every version, so DLPack promises.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}

/// A tensor that has been taken.
#[derive(Debug)]
struct Taken {
    /// Its lists live as long as the keeper.
    tensor: Tensor,
    flags: u64,
    keeper: Keeper,
}

impl Taken {
    /// What the capsule has, which is ours from now on.
    fn from_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let none =
            || PyTypeError::new_err("__dlpack__ gave no capsule of a tensor, or one that is used");
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| none())?;
        if capsule.is_valid_checked(Some(VERSIONED)) {
            let managed = capsule.pointer_checked(Some(VERSIONED))?.cast();
            // If it is not known it stays the capsule's.
            known(managed)?;
            rename(capsule, VERSIONED_USED)?;
            return Ok(Self::versioned(managed));
        }
        if !capsule.is_valid_checked(Some(OLD)) {
            return Err(none());
        }
        let managed = capsule.pointer_checked(Some(OLD))?.cast();
        rename(capsule, OLD_USED)?;
        Ok(Self::old(managed))
    }

    fn old(managed: NonNull<ManagedTensor>) -> Self {
        let keeper = Keeper::Old(managed);
        // SAFETY: the producer has given it away, as the capsule said that has been marked as used, so it is live until the keeper
        // is dropped. It is read here, and no more.
        let tensor = unsafe { managed.as_ref() }.tensor;
        let flags = 0;
        Self {
            tensor,
            flags,
            keeper,
        }
    }

    /// Of one whose version is [`known`].
    fn versioned(managed: NonNull<ManagedTensorVersioned>) -> Self {
        let keeper = Keeper::Versioned(managed);
        // SAFETY: as of `old`; or it came from a table's function, which gives it away too. Its version has been looked at.
        let told = unsafe { managed.as_ref() };
        Self {
            tensor: told.tensor,
            flags: told.flags,
            keeper,
        }
    }

    /// # Errors
    /// `ValueError`, if it has no such shape as tensors have.
    fn shape(&self) -> PyResult<Vec<i64>> {
        let dimensions = self.tensor.dimensions;
        if !usize::try_from(dimensions).is_ok_and(|count| count <= DIMENSIONS_MAX) {
            let told = format!("a tensor of {dimensions} dimensions");
            return Err(PyValueError::new_err(told));
        }
        // SAFETY: the producer made its list as long as it says, as DLPack has it, and keeps it until its deleter is called: the
        // keeper is here. It is copied before this ends.
        let extents = unsafe { self.tensor.extents() };
        let extents = extents.ok_or_else(|| PyValueError::new_err("a tensor without a shape"))?;
        Ok(extents.to_vec())
    }

    fn is_in_one_piece(&self) -> bool {
        // SAFETY: as of `shape`, for both lists. They are read before this ends.
        unsafe { self.tensor.is_dense() }
    }
}

/// # Errors
/// `ValueError`, if a description is of a version of which nothing else is known.
fn known(managed: NonNull<ManagedTensorVersioned>) -> PyResult<()> {
    // SAFETY: a live description by the word of whoever gives it, a capsule or a table; each version of it begins with its number.
    // It is read here, and no more.
    let version = unsafe { managed.cast::<Version>().read() };
    if version.major == MAJOR {
        return Ok(());
    }
    let told = format!("DLPack {} is not known", version.major);
    Err(PyValueError::new_err(told))
}

/// What a function of C has raised, that says that it has.
fn raised(py: Python<'_>) -> PyErr {
    let told = || PySystemError::new_err("a function failed, and did not say why");
    PyErr::take(py).unwrap_or_else(told)
}

/// Says of a capsule that it is used, so that its destructor leaves the tensor to us.
fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: it is a capsule, which lives for this call, and the name stays, as it must for as long as the capsule does.
    let code = unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) };
    if code != 0 {
        return Err(raised(capsule.py()));
    }
    Ok(())
}

impl Exchange {
    /// That of the object's type, if there is one that is known. It is inherited like a method: `torch.nn.Parameter` has that of
    /// `torch.Tensor`. Not so beside a `__dlpack__` of a subclass's own: it is not of the type for which the table was made, and what
    /// it says itself counts.
    fn of(producer: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = producer.py();
        let kind = producer.get_type();
        let name = intern!(py, "__dlpack_c_exchange_api__");
        for class in kind.mro() {
            let own = class.getattr(intern!(py, "__dict__"))?;
            if own.contains(name)? {
                return Ok(Self::in_capsule(&kind.getattr(name)?));
            }
            if own.contains(intern!(py, "__dlpack__"))? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn in_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        if !capsule.is_valid_checked(Some(TABLE)) {
            return None;
        }
        let mut header: NonNull<Header> = capsule.pointer_checked(Some(TABLE)).ok()?.cast();
        for _ in 0..TABLES_MAX {
            // SAFETY: a capsule of that name has a table, and a table the next one, that stays as long as the process, so DLPack
            // has producers promise; each version begins with this. It is read here, and no more.
            let told = unsafe { header.read() };
            if told.version.major == MAJOR {
                // SAFETY: as above; of this version it is so long.
                let table = unsafe { header.cast::<Table>().read() };
                let (export, working) = (table.export?, table.working?);
                return Some(Self { export, working });
            }
            header = NonNull::new(told.previous)?;
        }
        None
    }

    /// # Errors
    /// What the producer raised; `ValueError` if its description is not known.
    fn take(self, producer: &Bound<'_, PyAny>) -> PyResult<Taken> {
        let mut managed = null_mut();
        // SAFETY: the producer's function, of a table of a version that is known, is called with the GIL, as it has to be, with a
        // live object of the type that has the table, and room for one pointer. Ends with the call.
        let code = unsafe { (self.export)(producer.as_ptr().cast(), &raw mut managed) };
        if code != 0 {
            return Err(raised(producer.py()));
        }
        let managed = NonNull::new(managed);
        let managed = managed.ok_or_else(|| PyTypeError::new_err("there is no tensor of it"))?;
        // Unlike a capsule's it is ours also if it is not known.
        known(managed).inspect_err(|_| drop(Keeper::Versioned(managed)))?;
        Ok(Taken::versioned(managed))
    }

    /// The stream that copies are to come after.
    ///
    /// # Errors
    /// What the producer raised.
    fn stream(self, py: Python<'_>, device: TensorDevice) -> PyResult<usize> {
        let mut stream = null_mut();
        // SAFETY: as of `take`, with room for one pointer. Ends with the call.
        let code = unsafe { (self.working)(device.kind, device.index, &raw mut stream) };
        if code != 0 {
            return Err(raised(py));
        }
        // Null is CUDA's other name of the default stream, which torch works in unless it is told otherwise. That of each thread would
        // be that of a core where it is waited for: the device's default one waits for it, whichever thread's it is.
        Ok(match stream.expose_provenance() {
            0 | STREAM_OF_THREAD => EngineStream::DEFAULT.handle(),
            handle => handle,
        })
    }
}

/// A tensor's memory, until this is dropped.
#[pyclass(frozen, module = "lunette._native")]
#[derive(Debug)]
pub(crate) struct Given {
    #[pyo3(get)]
    address: u64,
    /// In bytes.
    #[pyo3(get)]
    size: u64,
    shape: Vec<i64>,
    /// What elements are: DLPack's code, bits, and how many of them are one.
    #[pyo3(get)]
    element: (u8, u8, u16),
    #[pyo3(get)]
    is_read_only: bool,
    /// Streams of a device that have still to do with it: one, if it is on a device.
    #[pyo3(get)]
    after: Vec<usize>,
    _keeper: Keeper,
}

#[pymethods]
impl Given {
    /// `ValueError` if it is not in one piece, or not in the host's memory, nor in that of a device where that may be.
    #[new]
    #[pyo3(signature = (producer, of_devices=false))]
    fn new(producer: &Bound<'_, PyAny>, of_devices: bool) -> PyResult<Self> {
        match Self::exchanged(producer, of_devices)? {
            Some(given) => Ok(given),
            None => Self::asked(producer, of_devices),
        }
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }
}

impl Given {
    /// By the table of its type; `None` if that is not the way.
    fn exchanged(producer: &Bound<'_, PyAny>, of_devices: bool) -> PyResult<Option<Self>> {
        let py = producer.py();
        let Some(exchange) = Exchange::of(producer)? else {
            return Ok(None);
        };
        // A table describes what is not to be given away, too: what learns, and numbers that are conjugates of those in the
        // memory. By the method they are refused, in the producer's own words.
        let learns = producer.getattr_opt(intern!(py, "requires_grad"))?;
        if learns.is_some_and(|learns| learns.is_truthy().unwrap_or(true)) {
            return Ok(None);
        }
        let taken = exchange.take(producer)?;
        let tensor = taken.tensor;
        if tensor.element.code == COMPLEX {
            return Ok(None);
        }
        let is_of_device = is_of_device(tensor.device.kind, of_devices)?;
        let mut given = Self::of(taken, is_of_device)?;
        if is_of_device {
            given.after.push(exchange.stream(py, tensor.device)?);
        }
        Ok(Some(given))
    }

    /// By its method.
    fn asked(producer: &Bound<'_, PyAny>, of_devices: bool) -> PyResult<Self> {
        let py = producer.py();
        let device = producer.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, number): (c_int, Bound<'_, PyAny>) = device.extract()?;
        let is_of_device = is_of_device(kind, of_devices)?;
        let how = PyDict::new(py);
        let mut after = Vec::new();
        if is_of_device {
            // There a producer puts what is still to be done: what others have put elsewhere is not waited for.
            let stream = meeting_stream(number.extract()?).handle();
            how.set_item(intern!(py, "stream"), stream)?;
            after.push(stream);
        }
        let taken = Taken::from_capsule(&capsule(producer, &how)?)?;
        Ok(Self {
            after,
            ..Self::of(taken, is_of_device)?
        })
    }

    fn of(taken: Taken, is_of_device: bool) -> PyResult<Self> {
        let tensor = taken.tensor;
        let shape = taken.shape()?;
        let size = tensor.len_bytes(&shape);
        let size = size.ok_or_else(|| PyValueError::new_err("a tensor of no such shape"))?;
        let mut address = 0;
        if size > 0 {
            if !taken.is_in_one_piece() {
                return Err(PyValueError::new_err("the tensor is not in one piece"));
            }
            let told = tensor.address();
            address = told.ok_or_else(|| PyValueError::new_err("the tensor is nowhere"))?;
            if is_of_device && locate(address).is_none() {
                let told = "the tensor is in the memory of a device that this process cannot use";
                return Err(PyValueError::new_err(told));
            }
        }
        let element = tensor.element;
        Ok(Self {
            address,
            size,
            shape,
            element: (element.code, element.bits, element.lanes),
            is_read_only: taken.flags & READ_ONLY != 0,
            after: Vec::new(),
            _keeper: taken.keeper,
        })
    }
}

/// # Errors
/// `ValueError`, if memory of that kind of devices is not used.
fn is_of_device(kind: c_int, of_devices: bool) -> PyResult<bool> {
    let is_of_device = of_devices && kind == DEVICE_CUDA;
    if is_of_device || OF_HOST.contains(&kind) {
        return Ok(is_of_device);
    }
    Err(PyValueError::new_err(format!(
        "the tensor is in the memory of a device of kind {kind}, not of the host"
    )))
}

/// What `__dlpack__` answers.
fn capsule<'py>(
    producer: &Bound<'py, PyAny>,
    how: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = producer.py();
    let name = intern!(py, "__dlpack__");
    let versioned = how.copy()?;
    versioned.set_item(intern!(py, "max_version"), VERSION_MAX)?;
    match producer.call_method(name, (), Some(&versioned)) {
        // It is older than versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            producer.call_method(name, (), Some(how))
        }
        answered => answered,
    }
}
