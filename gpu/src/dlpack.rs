//! Tensors as DLPack hands them over.
//!
//! The struct is that of DLPack before version 1.0 (`DLManagedTensor`), which every producer makes for
//! a capsule named `dltensor`. Source: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::slice;

use crate::device::Device;
use crate::error::ImportError;
use crate::region::DeviceRegion;

/// `kDLCUDA`.
const DEVICE_CUDA: c_int = 2;
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
    let dimensions = usize::try_from(tensor.dimensions).ok();
    let dimensions = dimensions.filter(|count| *count <= DIMENSIONS_MAX);
    let dimensions = dimensions.ok_or(ImportError::Malformed)?;
    // SAFETY: passed on from the caller.
    let shape = unsafe { list(tensor.shape, dimensions) }.ok_or(ImportError::Malformed)?;
    // SAFETY: passed on from the caller.
    let strides = unsafe { list(tensor.strides, dimensions) };
    if strides.is_some_and(|strides| !is_dense(shape, strides)) {
        return Err(ImportError::NotContiguous);
    }
    let bits = u64::from(tensor.element.bits) * u64::from(tensor.element.lanes);
    let elements = shape.iter().try_fold(1u64, |all, extent| {
        all.checked_mul(u64::try_from(*extent).ok()?)
    });
    let len = elements
        .and_then(|elements| elements.checked_mul(bits))
        .map(|bits| bits.div_ceil(8))
        .ok_or(ImportError::Malformed)?;
    let address = (tensor.data.addr() as u64).checked_add(tensor.offset_bytes);
    Ok((address.ok_or(ImportError::Malformed)?, len))
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
    }
}
