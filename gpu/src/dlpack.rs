//! Tensors as DLPack hands them over.
//!
//! Regions take the struct of DLPack before version 1.0 (`DLManagedTensor`), which every producer makes for
//! a capsule named `dltensor`. That of version 1 is here for who takes tensors from Python.
//! Source: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::slice;

use crate::device::Device;
use crate::error::ImportError;
use crate::region::DeviceRegion;

/// `kDLCUDA`.
pub const DEVICE_CUDA: c_int = 2;
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDevice {
    /// Kind of device.
    pub kind: c_int,
    /// Its number.
    pub index: c_int,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorType {
    /// Kind of number.
    pub code: u8,
    /// Its bits.
    pub bits: u8,
    /// Numbers of an element.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// Its memory.
    pub data: *mut c_void,
    /// Where that is.
    pub device: TensorDevice,
    /// How many dimensions.
    pub dimensions: i32,
    /// What an element is.
    pub element: TensorType,
    /// Extents, by dimension.
    pub shape: *mut i64,
    /// Elements from one to the next, by dimension. Null: the last dimension is the innermost one,
    /// without gaps.
    pub strides: *mut i64,
    /// First byte in its memory.
    pub offset_bytes: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedTensor {
    /// The tensor.
    pub tensor: Tensor,
    /// The producer's.
    pub producer: *mut c_void,
    /// Gives it back to the producer, if there is anything to give back.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Of another one nothing is known but what its struct begins with, to the deleter.
    pub major: u32,
    /// Of another one there may be kinds of devices and of elements that are not known.
    pub minor: u32,
}

/// `DLManagedTensorVersioned`, of major version 1.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedTensorVersioned {
    /// Of which version it is.
    pub version: Version,
    /// The producer's.
    pub producer: *mut c_void,
    /// Gives it back to the producer, if there is anything to give back.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// What is to be known of its memory, by bits. The lowest one: it is only read.
    pub flags: u64,
    /// The tensor.
    pub tensor: Tensor,
}

impl Tensor {
    /// Its extents, by dimension; `None` if there are more than [`DIMENSIONS_MAX`], or they are nowhere.
    ///
    /// # Safety
    /// `shape` is null, or has as many entries as there are dimensions, for as long as `self` is borrowed.
    #[must_use]
    pub unsafe fn extents(&self) -> Option<&[i64]> {
        // SAFETY: passed on from the caller.
        unsafe { list(self.shape, self.dimensions()?) }
    }

    /// Whether its last dimension is the innermost one, without gaps.
    ///
    /// # Safety
    /// As of [`extents`](Self::extents), also of `strides`.
    #[must_use]
    pub unsafe fn is_dense(&self) -> bool {
        // SAFETY: passed on from the caller.
        let Some(extents) = (unsafe { self.extents() }) else {
            return false;
        };
        // SAFETY: passed on from the caller.
        let strides = unsafe { list(self.strides, extents.len()) };
        strides.is_none_or(|strides| is_dense(extents, strides))
    }

    /// Bytes of elements with such extents; `None` if one is negative, or they are more than can be counted.
    #[must_use]
    pub fn len_bytes(&self, extents: &[i64]) -> Option<u64> {
        let bits = u64::from(self.element.bits) * u64::from(self.element.lanes);
        let elements = extents.iter().try_fold(1u64, |all, extent| {
            all.checked_mul(u64::try_from(*extent).ok()?)
        });
        let bits = elements?.checked_mul(bits)?;
        Some(bits.div_ceil(8))
    }

    /// Where its first element is.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        (self.data.addr() as u64).checked_add(self.offset_bytes)
    }

    fn dimensions(&self) -> Option<usize> {
        let dimensions = usize::try_from(self.dimensions).ok();
        dimensions.filter(|count| *count <= DIMENSIONS_MAX)
    }
}

/// A tensor that is given back to its producer when dropped.
struct Owned(NonNull<ManagedTensor>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: whoever made this gave the tensor away, so it is live until its deleter is called,
        // here and once.
        let deleter = unsafe { self.0.as_ref() }.deleter;
        if let Some(deleter) = deleter {
            // SAFETY: as above.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

impl DeviceRegion {
    /// Takes a tensor over, whose elements must lie side by side in memory of this device. It is
    /// given back to its producer when the last handle and the last operation are gone, on this core.
    /// What the producer's own streams still write there is for the producer to wait for.
    ///
    /// # Errors
    /// [`ImportError`]; the tensor is still the caller's then.
    ///
    /// # Safety
    /// `tensor` was made by a producer as DLPack has it, and is the caller's to give away: nobody else
    /// calls its deleter after success. The deleter may be called on this core's thread.
    pub unsafe fn from_dlpack(
        device: &Device,
        tensor: NonNull<ManagedTensor>,
    ) -> Result<Self, ImportError> {
        // SAFETY: live, as the caller promises, for the length of this call at least.
        let managed = unsafe { tensor.as_ref() };
        // SAFETY: its lists are as long as it says, as DLPack has it.
        let (address, len) = unsafe { extent(device, &managed.tensor) }?;
        // Checked first, and kept by nobody, so that a refusal leaves the tensor alone.
        Self::import(device, address, len, ())?;
        Self::import(device, address, len, Owned(tensor))
    }
}

/// Address and length of a tensor's elements.
///
/// # Safety
/// Shape and strides are as long as the number of dimensions says.
unsafe fn extent(device: &Device, tensor: &Tensor) -> Result<(u64, u64), ImportError> {
    let index = usize::try_from(tensor.device.index).ok();
    if tensor.device.kind != DEVICE_CUDA || index != Some(device.info().index) {
        return Err(ImportError::NotOfDevice);
    }
    // SAFETY: passed on from the caller.
    let extents = unsafe { tensor.extents() }.ok_or(ImportError::Malformed)?;
    // SAFETY: passed on from the caller.
    if !unsafe { tensor.is_dense() } {
        return Err(ImportError::NotContiguous);
    }
    let len = tensor.len_bytes(extents).ok_or(ImportError::Malformed)?;
    let address = tensor.address().ok_or(ImportError::Malformed)?;
    Ok((address, len))
}

/// A list, if there is one.
///
/// # Safety
/// It is null, or has `len` entries that live as long as `'a`.
unsafe fn list<'a>(start: *const i64, len: usize) -> Option<&'a [i64]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: not null, and as long as the caller says.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, len) })
}

/// Whether the last dimension is the innermost one, without gaps. Strides of dimensions with one
/// element say nothing.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected: i64 = 1;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if *extent != 1 && *stride != expected {
            return false;
        }
        expected = expected.saturating_mul(*extent);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_turned_dimensions_are_seen() {
        assert!(is_dense(&[2, 3, 4], &[12, 4, 1]));
        assert!(is_dense(&[2, 1, 4], &[4, 999, 1]));
        assert!(is_dense(&[], &[]));
        assert!(!is_dense(&[2, 3], &[1, 2]));
        assert!(!is_dense(&[2, 3], &[4, 1]));
        assert!(!is_dense(&[i64::MAX, 2, 3], &[5, 3, 1]));
    }

    use std::cell::Cell;

    use lunette_runtime::{CoreOptions, block_on};

    use crate::fake::{FakeMachine, FakeOptions};

    /// A producer's tensor of 2 by 8 numbers of 16 bits, 64 bytes into a region that it keeps.
    struct Producer {
        shape: [i64; 2],
        strides: [i64; 2],
        deletions: Cell<u32>,
        tensor: Option<ManagedTensor>,
    }

    type Change = fn(&mut Producer);

    unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
        // SAFETY: the producer outlives its tensor in these tests, and stands behind it.
        let producer = unsafe { (*tensor).producer }.cast::<Producer>();
        // SAFETY: as above.
        let deletions = unsafe { &(*producer).deletions };
        deletions.set(deletions.get() + 1);
    }

    impl Producer {
        fn new(region: &DeviceRegion) -> Box<Self> {
            let mut producer = Box::new(Self {
                shape: [2, 8],
                strides: [8, 1],
                deletions: Cell::new(0),
                tensor: None,
            });
            let tensor = Tensor {
                data: std::ptr::without_provenance_mut(usize::try_from(region.address()).unwrap()),
                device: TensorDevice { kind: 2, index: 0 },
                dimensions: 2,
                element: TensorType {
                    code: 4,
                    bits: 16,
                    lanes: 1,
                },
                shape: producer.shape.as_mut_ptr(),
                strides: producer.strides.as_mut_ptr(),
                offset_bytes: 64,
            };
            producer.tensor = Some(ManagedTensor {
                tensor,
                producer: (&raw mut *producer).cast(),
                deleter: Some(delete),
            });
            producer
        }

        fn give(&mut self, device: &Device) -> Result<DeviceRegion, ImportError> {
            let tensor = self.tensor.as_mut().map(NonNull::from).unwrap();
            // SAFETY: as a producer makes it, and given away once by each test.
            unsafe { DeviceRegion::from_dlpack(device, tensor) }
        }
    }

    fn with_region<F: Future<Output = ()> + 'static>(
        test: impl FnOnce(Device, DeviceRegion) -> F + Send,
    ) {
        let done = block_on(None, CoreOptions::default(), || {
            let machine = FakeMachine::new(1);
            let index = machine.add_device(FakeOptions::default());
            let device = Device::fake(&machine, index).unwrap();
            let region = DeviceRegion::alloc(&device, 96).unwrap();
            test(device, region)
        });
        done.unwrap();
    }

    #[test]
    fn a_tensor_is_given_back_once_when_nobody_has_it() {
        with_region(|device, region| async move {
            let mut producer = Producer::new(&region);
            let tensor = producer.give(&device).unwrap();
            assert_eq!(tensor.address(), region.address() + 64);
            assert_eq!(tensor.len(), 32);
            let part = tensor.slice(0..4);
            drop(tensor);
            assert_eq!(producer.deletions.get(), 0);
            drop(part);
            assert_eq!(producer.deletions.get(), 1);
        });
    }

    #[test]
    fn a_tensor_that_is_refused_stays_its_producers() {
        let changes: [(Change, ImportError); 6] = [
            (|it| it.strides = [9, 1], ImportError::NotContiguous),
            (|it| it.shape = [3, 8], ImportError::Range),
            (|it| it.shape = [-1, 8], ImportError::Malformed),
            (|it| it.shape = [0, 8], ImportError::Range),
            (|it| it.shape = [i64::MAX, 8], ImportError::Malformed),
            (
                |it| it.tensor.as_mut().unwrap().tensor.device.kind = 1,
                ImportError::NotOfDevice,
            ),
        ];
        with_region(|device, region| async move {
            for (change, error) in changes {
                let mut producer = Producer::new(&region);
                change(&mut producer);
                assert_eq!(producer.give(&device).err(), Some(error));
                assert_eq!(producer.deletions.get(), 0);
            }
        });
    }

    #[test]
    fn the_structs_are_as_long_as_in_c() {
        assert_eq!(size_of::<Tensor>(), 48);
        assert_eq!(size_of::<ManagedTensor>(), 64);
        assert_eq!(std::mem::offset_of!(Tensor, shape), 24);
        assert_eq!(std::mem::offset_of!(ManagedTensor, deleter), 56);
        assert_eq!(size_of::<ManagedTensorVersioned>(), 80);
        assert_eq!(std::mem::offset_of!(ManagedTensorVersioned, deleter), 16);
        assert_eq!(std::mem::offset_of!(ManagedTensorVersioned, tensor), 32);
    }
}
