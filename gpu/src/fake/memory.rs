//! Memory of a fake machine: by address, each byte checked.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use lunette_gpu_proto::fault::Fault;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::provider::{Address, IPC_HANDLE_BYTES, PointerInfo};

/// Addresses of devices begin here, far from those of any process.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000;
/// Allocations begin at multiples of this, and nothing lies behind them up to the next one.
const ALLOCATION_UNIT: u64 = 1 << 21;
/// How a handle between processes begins.
const HANDLE_MARK: [u8; 8] = *b"lunette-";
/// Bytes of a byte that nobody has written.
const UNWRITTEN: u8 = 0xa5;

/// Bytes that several mappings may show.
#[derive(Debug)]
pub(super) struct Store {
    number: u64,
    device: usize,
    len: u64,
    bytes: RefCell<Vec<u8>>,
    /// Where its bytes are instead, from the first time on that an adapter is to reach them.
    dma_buf: OnceCell<File>,
    is_shareable: bool,
}

impl Store {
    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let Some(file) = self.dma_buf.get() else {
            return self.bytes.borrow()[at..at + len].to_vec();
        };
        let mut bytes = vec![0; len];
        let read = file.read_exact_at(&mut bytes, at as u64);
        read.expect("it lies in memory");
        bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        match self.dma_buf.get() {
            None => self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes),
            Some(file) => {
                let written = file.write_all_at(bytes, at as u64);
                written.expect("it lies in memory");
            }
        }
    }

    /// A file of its bytes, which whoever maps it reads and writes from now on.
    fn share(&self) -> io::Result<OwnedFd> {
        if self.dma_buf.get().is_none() {
            let file = File::from(memfd_create("lunette-fake", MemfdFlags::CLOEXEC)?);
            file.write_all_at(&self.bytes.borrow(), 0)?;
            self.dma_buf.set(file).expect("there was none");
            self.bytes.take();
        }
        let file = self.dma_buf.get().expect("just made");
        Ok(file.try_clone()?.into())
    }
}

/// A range of addresses of one context.
#[derive(Debug)]
struct Mapping {
    store: Rc<Store>,
    context: u32,
}

/// A range of the host that a context has pinned.
#[derive(Debug)]
struct Pinned {
    id: u64,
    context: u32,
    start: u64,
    len: u64,
}

/// Who uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) device: usize,
    pub(super) context: u32,
}

#[derive(Debug)]
pub(super) struct Memory {
    mappings: BTreeMap<u64, Mapping>,
    pins: Vec<Pinned>,
    next_address: u64,
    next_number: u64,
    /// Bytes of each device in use.
    used: BTreeMap<usize, u64>,
}

impl Memory {
    pub(super) const fn new() -> Self {
        Self {
            mappings: BTreeMap::new(),
            pins: Vec::new(),
            next_address: FIRST_ADDRESS,
            next_number: 1,
            used: BTreeMap::new(),
        }
    }

    pub(super) fn alloc(
        &mut self,
        user: User,
        len: u64,
        (limit, is_shareable): (u64, bool),
    ) -> Result<(u64, u64), Fault> {
        if len == 0 {
            return Err(Fault::Code(1));
        }
        let used = self.used.entry(user.device).or_default();
        if len > limit.saturating_sub(*used) {
            return Err(Fault::OutOfMemory);
        }
        *used += len;
        let bytes = vec![UNWRITTEN; usize::try_from(len).map_err(|_| Fault::OutOfMemory)?];
        let store = Rc::new(Store {
            number: self.next_number,
            device: user.device,
            len,
            bytes: RefCell::new(bytes),
            dma_buf: OnceCell::new(),
            is_shareable,
        });
        self.next_number += 1;
        Ok((self.map(user.context, store), len))
    }

    fn map(&mut self, context: u32, store: Rc<Store>) -> u64 {
        let address = self.next_address;
        let len = store.len;
        // An address never comes again, so that a stale one is always seen.
        self.next_address += len.next_multiple_of(ALLOCATION_UNIT) + ALLOCATION_UNIT;
        self.mappings.insert(address, Mapping { store, context });
        address
    }

    pub(super) fn free(&mut self, address: u64) {
        let mapping = self.mappings.remove(&address);
        let Mapping { store, .. } = mapping.expect("memory is freed once");
        if Rc::strong_count(&store) == 1 {
            let used = self.used.get_mut(&store.device).expect("it was allocated");
            *used -= store.len;
        }
    }

    pub(super) fn allocations(&self) -> u64 {
        self.mappings.len() as u64
    }

    /// The mapping in which a range lies as a whole.
    fn find(&self, user: User, address: u64, len: u64) -> (Rc<Store>, usize) {
        let before = self.mappings.range(..=address).next_back();
        let (base, mapping) = before.unwrap_or_else(|| unreachable!("{address:#x} is no memory"));
        let offset = address - base;
        let size = mapping.store.len;
        assert!(
            offset < size,
            "{address:#x} was freed, or was never allocated"
        );
        assert!(
            len <= size - offset,
            "{len} bytes at {offset} of {size}: out of range"
        );
        assert_eq!(
            mapping.context, user.context,
            "{address:#x} is memory of another context"
        );
        assert_eq!(
            mapping.store.device, user.device,
            "{address:#x} is memory of another device"
        );
        let offset = usize::try_from(offset).expect("inside memory of this process");
        (Rc::clone(&mapping.store), offset)
    }

    /// Copies, and whether memory of the host was pinned as far as it was used.
    pub(super) fn copy(&self, user: User, from: Address, to: Address, len: usize) -> bool {
        let is_pinned = |address| match address {
            Address::Device(_) => true,
            Address::Host(start) => self.is_pinned(user.context, start, len as u64),
        };
        let all_pinned = is_pinned(from) && is_pinned(to);
        let bytes = self.read(user, from, len);
        self.write(user, to, &bytes);
        all_pinned
    }

    pub(super) fn read(&self, user: User, from: Address, len: usize) -> Vec<u8> {
        match from {
            Address::Device(address) => {
                let (store, at) = self.find(user, address, len as u64);
                store.read(at, len)
            }
            Address::Host(start) => read_host(start, len),
        }
    }

    pub(super) fn write(&self, user: User, to: Address, bytes: &[u8]) {
        match to {
            Address::Device(address) => {
                let (store, at) = self.find(user, address, bytes.len() as u64);
                store.write(at, bytes);
            }
            Address::Host(start) => write_host(start, bytes),
        }
    }

    /// Where a kernel's address is: pinned memory of the host, or the device's.
    pub(super) fn kernel_address(&self, user: User, address: u64, len: u64) -> Address {
        if address >= FIRST_ADDRESS {
            return Address::Device(address);
        }
        assert!(
            self.is_pinned(user.context, address, len),
            "a kernel reaches pinned memory of the host alone"
        );
        Address::Host(address)
    }

    pub(super) fn pointer(&self, user: User, address: u64) -> PointerInfo {
        let before = self.mappings.range(..=address).next_back();
        let found = before.filter(|(base, mapping)| {
            let len = mapping.store.len;
            address - **base < len
                && mapping.context == user.context
                && mapping.store.device == user.device
        });
        PointerInfo {
            is_own: found.is_some(),
            base: found.map_or(0, |(base, _)| *base),
            len: found.map_or(0, |(_, mapping)| mapping.store.len),
        }
    }

    /// A file of the allocation that begins at this address.
    pub(super) fn dma_buf(&self, base: u64) -> Result<OwnedFd, Fault> {
        let mapping = self.mappings.get(&base).ok_or(Fault::Code(1))?;
        mapping.store.share().map_err(|_| Fault::Refused(304))
    }

    pub(super) fn pin(&mut self, context: u32, start: u64, len: u64) -> Result<u64, Fault> {
        let end = start + len;
        let is_known =
            |pin: &Pinned| pin.context == context && start < pin.start + pin.len && pin.start < end;
        if self.pins.iter().any(is_known) {
            // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            return Err(Fault::Code(712));
        }
        let id = self.next_number;
        self.next_number += 1;
        self.pins.push(Pinned {
            id,
            context,
            start,
            len,
        });
        Ok(id)
    }

    pub(super) fn unpin(&mut self, id: u64) {
        let at = self.pins.iter().position(|pin| pin.id == id);
        self.pins.swap_remove(at.expect("memory is unpinned once"));
    }

    fn is_pinned(&self, context: u32, start: u64, len: u64) -> bool {
        let covers = |pin: &Pinned| {
            pin.context == context && pin.start <= start && start + len <= pin.start + pin.len
        };
        self.pins.iter().any(covers)
    }

    /// The handle of an allocation that begins at this address.
    pub(super) fn handle(&self, base: u64) -> Result<[u8; IPC_HANDLE_BYTES], Fault> {
        let mapping = self.mappings.get(&base).ok_or(Fault::Code(1))?;
        let mut handle = [0; IPC_HANDLE_BYTES];
        handle[..8].copy_from_slice(&HANDLE_MARK);
        handle[8..16].copy_from_slice(&mapping.store.number.to_le_bytes());
        handle[16..20].copy_from_slice(&mapping.context.to_le_bytes());
        Ok(handle)
    }

    /// Maps what a handle names. A process cannot open its own.
    pub(super) fn open(
        &mut self,
        user: User,
        handle: &[u8; IPC_HANDLE_BYTES],
    ) -> Result<(u64, u64), Fault> {
        let is_marked = handle[..8] == HANDLE_MARK;
        let number = handle[8..16].try_into().expect("eight bytes");
        let exporter = handle[16..20].try_into().expect("four bytes");
        if !is_marked || u32::from_le_bytes(exporter) == user.context {
            return Err(Fault::Code(400));
        }
        self.show(user, u64::from_le_bytes(number), |_| true)
    }

    /// Maps shareable memory by its number.
    pub(super) fn import(&mut self, user: User, number: u64) -> Result<(u64, u64), Fault> {
        self.show(user, number, |store| store.is_shareable)
    }

    fn show(
        &mut self,
        user: User,
        number: u64,
        may: impl Fn(&Store) -> bool,
    ) -> Result<(u64, u64), Fault> {
        let mut stores = self.mappings.values().map(|mapping| &mapping.store);
        let found = stores.find(|store| store.number == number && store.device == user.device);
        let store = Rc::clone(found.filter(|store| may(store)).ok_or(Fault::Code(400))?);
        let len = store.len;
        Ok((self.map(user.context, store), len))
    }

    /// The number of shareable memory.
    pub(super) fn shareable(&self, base: u64) -> Option<u64> {
        let mapping = self.mappings.get(&base)?;
        let store = &mapping.store;
        store.is_shareable.then_some(store.number)
    }
}

/// Memory of this process, as a device reads it.
fn read_host(start: u64, len: usize) -> Vec<u8> {
    let start = usize::try_from(start).expect("an address of this process");
    let place: *const u8 = std::ptr::with_exposed_provenance(start);
    let mut bytes = vec![0; len];
    // SAFETY: who queued the copy keeps the range until its event has come, and nobody writes it
    // meanwhile (`RawStream::copy`). Ends with the call.
    unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), len) };
    bytes
}

/// Memory of this process, as a device writes it.
fn write_host(start: u64, bytes: &[u8]) {
    let start = usize::try_from(start).expect("an address of this process");
    let place: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: as above; the range is the device's alone until the event has come.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: User = User {
        device: 0,
        context: 0,
    };
    const OTHER_CONTEXT: User = User {
        device: 0,
        context: 1,
    };
    const OTHER_DEVICE: User = User {
        device: 1,
        context: 0,
    };

    fn with_allocation() -> (Memory, u64) {
        let mut memory = Memory::new();
        let (address, _) = memory.alloc(A, 100, (1000, false)).unwrap();
        (memory, address)
    }

    #[test]
    fn memory_inside_is_read_and_written() {
        let (memory, address) = with_allocation();
        memory.write(A, Address::Device(address + 98), &[1, 2]);
        let all = memory.read(A, Address::Device(address), 100);
        assert_eq!(all[97..], [UNWRITTEN, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn memory_behind_the_end_is_not_touched() {
        let (memory, address) = with_allocation();
        memory.write(A, Address::Device(address + 99), &[1, 2]);
    }

    #[test]
    #[should_panic(expected = "was freed, or was never allocated")]
    fn freed_memory_is_not_touched() {
        let (mut memory, address) = with_allocation();
        let (last, _) = memory.alloc(A, 100, (1000, false)).unwrap();
        memory.free(last);
        assert_eq!(memory.read(A, Address::Device(address), 1).len(), 1);
        let _bytes = memory.read(A, Address::Device(last), 1);
    }

    #[test]
    #[should_panic(expected = "memory is freed once")]
    fn memory_is_freed_once() {
        let (mut memory, address) = with_allocation();
        memory.free(address);
        memory.free(address);
    }

    #[test]
    #[should_panic(expected = "memory of another context")]
    fn memory_of_another_context_is_not_touched() {
        let (memory, address) = with_allocation();
        let _bytes = memory.read(OTHER_CONTEXT, Address::Device(address), 1);
    }

    #[test]
    #[should_panic(expected = "memory of another device")]
    fn memory_of_another_device_is_not_touched() {
        let (memory, address) = with_allocation();
        let _bytes = memory.read(OTHER_DEVICE, Address::Device(address), 1);
    }

    #[test]
    #[should_panic(expected = "a kernel reaches pinned memory")]
    fn a_kernel_does_not_reach_memory_that_is_not_pinned() {
        let (mut memory, _) = with_allocation();
        let pin = memory.pin(0, 4096, 4096).unwrap();
        assert_eq!(memory.kernel_address(A, 8191, 1), Address::Host(8191));
        memory.unpin(pin);
        let _place = memory.kernel_address(A, 8191, 1);
    }

    #[test]
    fn memory_is_as_large_as_it_is_and_pins_do_not_overlap() {
        let (mut memory, _) = with_allocation();
        let alloc = |memory: &mut Memory, len| memory.alloc(A, len, (1000, false)).map(|_| ());
        assert_eq!(alloc(&mut memory, 901), Err(Fault::OutOfMemory));
        assert_eq!(alloc(&mut memory, 900), Ok(()));
        assert_eq!(alloc(&mut memory, 0), Err(Fault::Code(1)));
        assert!(memory.pin(0, 4096, 4096).is_ok());
        assert_eq!(memory.pin(0, 8191, 1), Err(Fault::Code(712)));
        assert!(memory.pin(0, 8192, 1).is_ok());
        assert!(memory.pin(1, 8191, 1).is_ok(), "another context");
    }
}
