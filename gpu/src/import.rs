//! Memory of somebody else in this process: a serving engine's tensors, by their addresses.

use std::any::Any;

use crate::copy::fits;
use crate::device::Device;
use crate::error::ImportError;
use crate::region::{DeviceRegion, Origin};

impl DeviceRegion {
    /// Takes in memory that somebody else allocated, checked against what the driver knows: it must
    /// be plain memory of this device, and lie inside one allocation. (An engine's allocator hands
    /// out parts of an allocation, so whose part it is must be right by itself.)
    ///
    /// `keeper` is whatever keeps the memory allocated. It is dropped when the last handle and the last
    /// operation are gone, on this core, maybe inside a turn of its loop: it must not drop the
    /// device.
    ///
    /// # Errors
    /// [`ImportError::NotOfDevice`], [`ImportError::Range`], and what the driver says. The keeper
    /// is dropped then.
    pub fn import(
        device: &Device,
        address: u64,
        len_bytes: u64,
        keeper: impl Any,
    ) -> Result<Self, ImportError> {
        let inner = device.inner();
        let info = inner.context().pointer(address)?;
        if !info.is_own {
            return Err(ImportError::NotOfDevice);
        }
        let offset = address.checked_sub(info.base);
        let offset = offset.ok_or(ImportError::Range)?;
        if !fits(offset, len_bytes, info.len) {
            return Err(ImportError::Range);
        }
        let origin = Origin::Foreign(Box::new(keeper));
        Ok(Self::of(inner, origin, Some(address), len_bytes)?)
    }
}
