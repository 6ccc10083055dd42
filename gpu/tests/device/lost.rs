//! The end of a context: a kernel of somebody else's in this process goes where there is no memory.
//!
//! It ends the context for the whole process, so each such test has a process of its own.

use std::env;
use std::ffi::{CString, c_char, c_void};
use std::process::Command;
use std::ptr;

use lunette_gpu::proto::fault::Fault;
use lunette_gpu::{CopyError, Device, DeviceRegion, Driver};
use lunette_runtime::{Idle, arena};

use crate::rig::{fill, host, on_core, pattern, region, stream};
use crate::tests::driver_for;

/// Tells a process that it is the one that is spoilt.
const SPOILT: &str = "LUNETTE_TEST_SPOILT";
/// A kernel that writes to the address 8.
const KERNEL: &str = ".version 6.0\n.target sm_70\n.address_size 64\n\
    .visible .entry astray() { .reg .u64 %a; mov.u64 %a, 8; st.global.u64 [%a], %a; ret; }\n";
const COPIES: usize = 5;
const LEN: usize = 1 << 20;

type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> u32;
type Find = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> u32;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> u32;

/// Starts that kernel in the default stream of the device that this thread has opened.
fn spoil() {
    // SAFETY: the driver is loaded already.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("it is loaded");
    // SAFETY: as the driver's header has them, here and below.
    let load = unsafe { library.get::<Load>(b"cuModuleLoadData") }.expect("a function");
    // SAFETY: as above.
    let find = unsafe { library.get::<Find>(b"cuModuleGetFunction") }.expect("a function");
    // SAFETY: as above.
    let launch = unsafe { library.get::<Launch>(b"cuLaunchKernel") }.expect("a function");
    let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
    let (text, name) = (CString::new(KERNEL), CString::new("astray"));
    let (text, name) = (text.expect("no zero"), name.expect("no zero"));
    // SAFETY: the text is ended by a zero byte; the result is ours to write.
    let code = unsafe { load(&raw mut module, text.as_ptr().cast()) };
    assert_eq!(code, 0, "it compiles");
    // SAFETY: the module is loaded, the name ended by a zero byte.
    assert_eq!(unsafe { find(&raw mut kernel, module, name.as_ptr()) }, 0);
    let null = ptr::null_mut();
    // SAFETY: it has no parameters. Where it writes there is nothing of anybody's.
    let code = unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, null, null.cast(), null.cast()) };
    assert_eq!(code, 0, "it is queued");
}

fn is_poisoned(result: &Result<(), CopyError>) -> bool {
    matches!(result, Err(CopyError::Poisoned(Fault::Poisoned(_))))
}

/// Copies before, beside and after the end: each comes back with its memory, and from some moment on with the reason.
fn goes_astray() {
    on_core(Idle::Efficient, || async {
        let driver = Driver::probe().expect("the other process found it");
        let device = Device::open_with(driver, 0).expect("it is there");
        let (stream, memory) = (stream(&device), region(&device, LEN as u64));
        fill(&stream, &memory, &pattern(LEN, 1)).await;
        let used = arena().used_bytes();
        spoil();
        let copies: Vec<_> = (0..COPIES)
            .map(|_| stream.upload(host(&pattern(LEN, 2)), 0, &memory))
            .collect();
        let mut results = Vec::new();
        for copy in copies {
            let (result, lent) = copy.await;
            assert!(lent.as_slice() == pattern(LEN, 2), "it is as it was");
            results.push(result);
        }
        println!("{results:?}");
        // Until the kernel has run others may be done.
        let mut result = Ok(());
        for _ in 0..1000 {
            let (last, lent) = stream.upload(host(&pattern(LEN, 3)), 0, &memory).await;
            assert!(lent.as_slice() == pattern(LEN, 3));
            result = last;
            if result.is_err() {
                break;
            }
        }
        assert!(is_poisoned(&result), "{result:?}");
        let later = results.iter().skip_while(|result| result.is_ok());
        assert!(later.clone().all(is_poisoned), "{results:?}");
        let refused = DeviceRegion::alloc(&device, 100).expect_err("nothing can be made of it");
        println!("{refused:?}");
        assert_eq!((stream.in_flight(), arena().used_bytes()), (0, used));
    });
}

#[test]
fn what_a_context_does_not_survive_is_told_and_gives_everything_back() {
    const TEST: &str = "lost::what_a_context_does_not_survive_is_told_and_gives_everything_back";
    if env::var_os(SPOILT).is_some() {
        return goes_astray();
    }
    let test = "what_a_context_does_not_survive_is_told_and_gives_everything_back";
    if driver_for(test).is_none() {
        return;
    }
    let mut command = Command::new(env::current_exe().expect("a path"));
    let spoilt = command
        .args([TEST, "--exact", "--nocapture"])
        .env(SPOILT, "");
    let ended = spoilt.status().expect("this program");
    assert!(ended.success(), "{ended}");
}
