//! [`Library`]: the functions of libibverbs, opened when the program runs.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use thiserror::Error;

use crate::completion::{ibv_comp_channel, ibv_cq};
use crate::device::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use crate::event::ibv_async_event;
use crate::memory::{ibv_mr, ibv_pd};
use crate::queue_pair::{
    ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

/// The name under which every distribution has the library.
const LIBRARY_NAME: &str = "libibverbs.so.1";

/// Why there is no RDMA here. Nothing is wrong with the program; another path is to be taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unavailable {
    /// The library is not installed.
    #[error("no RDMA library: {reason}")]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// libibverbs is installed and the kernel has no RDMA, or does not let us use it.
    #[error("the kernel offers no RDMA: {reason}")]
    NoKernel {
        /// What the library said.
        reason: String,
    },
    /// Everything is there but a device.
    #[error("no RDMA device")]
    NoDevice,
    /// The library is too old, or another library of the same name.
    #[error("the library has no {name}")]
    SymbolMissing {
        /// The function.
        name: &'static str,
    },
}

macro_rules! functions {
    (
        $(#[$about:meta])*
        $library:ident
        required { $( $(#[$doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?; )* }
        optional { $( $(#[$odoc:meta])* $oname:ident = $symbol:literal: fn($($oargument:ty),*) $(-> $oresult:ty)?; )* }
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $library {
            $( $(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
            $( $(#[$odoc])* pub $oname: Option<unsafe extern "C" fn($($oargument),*) $(-> $oresult)?>, )*
        }

        impl $library {
            fn of(library: &libloading::Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    $( $name: $crate::library::symbol(library, stringify!($name)).ok_or(
                        Unavailable::SymbolMissing { name: stringify!($name) },
                    )?, )*
                    $( $oname: $crate::library::symbol(library, $symbol), )*
                })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The functions of libibverbs. Each is `unsafe` to call, with the rules of its manual page:
    /// pointers are live objects of this library.
    Library
    required {
        /// The devices, ended by null; null with `errno` set on failure.
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        /// Gives the list back. Opened devices stay open.
        ibv_free_device_list: fn(*mut *mut ibv_device);
        /// A device's name.
        ibv_get_device_name: fn(*mut ibv_device) -> *const std::ffi::c_char;
        /// Opens a device.
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        /// Closes a device.
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        /// What a device can do.
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        /// A port's state, shortened; see [`crate::inline::ibv_query_port`].
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        /// Makes a domain.
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        /// Ends a domain.
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        /// Registers memory; without optional access bits.
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        /// Ends a registration.
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        /// Makes a channel.
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        /// Ends a channel.
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        /// Makes a completion queue: depth, context, channel, vector.
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        /// Ends a completion queue. Waits for its events to be acknowledged.
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        /// Takes an event of a channel: the queue, and its context.
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        /// Acknowledges events of a queue.
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        /// Makes a shared receive queue.
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// Changes a shared receive queue.
        ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        /// Ends a shared receive queue.
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        /// Makes a queue pair.
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        /// Changes a queue pair: attributes, and which of them.
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        /// Asks for a queue pair's attributes.
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        /// Ends a queue pair.
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        /// Takes an asynchronous event.
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        /// Acknowledges an asynchronous event.
        ibv_ack_async_event: fn(*mut ibv_async_event);
    }
    optional {
        /// Registers memory, optional access bits included: domain, memory, length, address that
        /// peers use, access. Since 1.8.
        ibv_reg_mr_iova2 = "ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        /// Registers a dma-buf: domain, offset, length, address that peers use, descriptor, access.
        /// Since 1.12.
        ibv_reg_dmabuf_mr = "ibv_reg_dmabuf_mr": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        /// A queue pair as a builder, or null. Since 1.6.
        ibv_qp_to_qp_ex = "ibv_qp_to_qp_ex": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        /// The GIDs of all ports: entries, their number, flags, size of an entry. Since 1.11.
        ibv_query_gid_table = "_ibv_query_gid_table": fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        /// One GID of a port: port, index, entry, flags, size of an entry. Since 1.11.
        ibv_query_gid_ex = "_ibv_query_gid_ex": fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    }
}

impl Library {
    /// The library of this process, opened at the first call and never closed: its providers leave
    /// handlers behind that must stay callable.
    ///
    /// # Errors
    /// [`Unavailable`], the same at every call.
    pub fn open() -> Result<&'static Self, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| open_for_good(LIBRARY_NAME, Self::of))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The devices of this machine.
    ///
    /// # Errors
    /// [`Unavailable::NoKernel`] or [`Unavailable::NoDevice`]: there is none.
    pub fn devices(&'static self) -> Result<DeviceList, Unavailable> {
        let mut count = 0;
        // SAFETY: the count is ours to write. The list lives until `DeviceList` drops.
        let list = unsafe { (self.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(Unavailable::NoKernel {
                reason: io::Error::last_os_error().to_string(),
            });
        }
        let list = DeviceList {
            library: self,
            list,
            len: usize::try_from(count).unwrap_or(0),
        };
        if list.len == 0 {
            return Err(Unavailable::NoDevice);
        }
        Ok(list)
    }
}

/// Opens the library of this name and never closes it.
pub(crate) fn open_for_good<T>(
    name: &str,
    functions_of: impl FnOnce(&libloading::Library) -> Result<T, Unavailable>,
) -> Result<T, Unavailable> {
    // SAFETY: initialisers of the libraries of rdma-core do nothing that this process forbids; it is
    // forgotten below, so its functions stay valid for the rest of the process.
    let library = unsafe { libloading::Library::new(name) };
    let library = library.map_err(|error| Unavailable::NoLibrary {
        reason: error.to_string(),
    })?;
    let functions = functions_of(&library);
    std::mem::forget(library);
    functions
}

/// The newest version of a function. Old libraries have older versions under the same name, which
/// an unversioned look-up never yields.
pub(crate) fn symbol<F: Copy>(library: &libloading::Library, name: &'static str) -> Option<F> {
    assert_eq!(
        size_of::<F>(),
        size_of::<*const c_void>(),
        "a function pointer"
    );
    // SAFETY: `F` is the type that the headers of libibverbs give this name, which the test
    // against those headers checks. The library is never closed.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|found| *found)
}

/// The devices of this machine, given back when dropped.
#[derive(Debug)]
pub struct DeviceList {
    library: &'static Library,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    /// How many there are; at least one.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A device, live as long as this list.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn device(&self, index: usize) -> *mut ibv_device {
        assert!(index < self.len, "device {index} of {}", self.len);
        // SAFETY: the list has `len` entries and lives until `self` drops.
        let entry = unsafe { self.list.add(index) };
        // SAFETY: as above.
        unsafe { *entry }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is given back once.
        unsafe { (self.library.ibv_free_device_list)(self.list) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_a_value() {
        let absent = open_for_good("liblunette-no-such.so.1", Library::of).unwrap_err();
        assert!(matches!(&absent, Unavailable::NoLibrary { .. }), "{absent}");
        assert!(
            absent.to_string().contains("liblunette-no-such"),
            "{absent}"
        );
    }

    #[test]
    fn a_library_without_a_function_names_it() {
        let other = open_for_good("libc.so.6", Library::of).unwrap_err();
        let name = "ibv_get_device_list";
        assert_eq!(other, Unavailable::SymbolMissing { name });
    }

    #[test]
    fn what_is_absent_here_is_told_and_what_is_here_works() {
        match Library::open().and_then(Library::devices) {
            Ok(devices) => assert!(!devices.device(devices.len() - 1).is_null()),
            Err(absent) => assert!(!absent.to_string().is_empty()),
        }
        assert_eq!(Library::open().err(), Library::open().err());
    }
}
