//! What the runtime relies on in the kernel, asked of the kernel itself. Where a newer or older
//! kernel, or the file system below, answers otherwise, the driver's assumptions are to be looked at.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, Napi};
use io_uring::{IoUring, cqueue, opcode, squeue};
use lunette_runtime::{
    CoreOptions, DriverChoice, DriverKind, DriverOptions, block_on, driver, net, spawn_local,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::system::uname;

/// A ring as the driver opens it.
fn ring() -> Option<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    match builder.build(64) {
        Ok(ring) => Some(ring),
        Err(error) => {
            let thread = thread::current();
            let name = thread.name().unwrap_or_default();
            println!("SKIP {name}: no io_uring here: {error}");
            None
        }
    }
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: every caller waits for the completions of what it pushes before it frees what the
    // entry names.
    unsafe { ring.submission().push(entry) }.expect("room in the queue");
}

/// Submits, and waits for `count` completions in all.
fn complete(ring: &mut IoUring, count: usize) -> Vec<cqueue::Entry> {
    let mut all = Vec::new();
    while all.len() < count {
        ring.submit_and_wait(1).expect("entered");
        all.extend(ring.completion());
    }
    all
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    (client, listener.accept().expect("accepted").0)
}

#[test]
fn a_ring_of_one_issuer_refuses_other_threads() {
    let Some(mut ring) = ring() else { return };
    // The first to submit is the issuer.
    ring.submit().expect("entered");
    push(&mut ring, &opcode::Nop::new().build());
    let refused = thread::scope(|scope| {
        let other = scope.spawn(|| ring.submitter().submit_and_wait(0));
        other.join().expect("no panic")
    });
    let refused = refused.expect_err("another thread");
    assert_eq!(refused.raw_os_error(), Some(libc::EEXIST));
    assert_eq!(complete(&mut ring, 1)[0].result(), 0, "nothing is lost");
}

#[test]
fn a_ring_of_one_issuer_refuses_a_child_of_a_fork() {
    let Some(mut ring) = ring() else { return };
    ring.submit().expect("entered");
    push(&mut ring, &opcode::Nop::new().build());
    // SAFETY: the child makes one system call on memory of its own, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = ring.submitter().submit_and_wait(0).err();
        let refused = refused.and_then(|error| error.raw_os_error());
        // SAFETY: ends this process at once, as a child of a fork should.
        unsafe { libc::_exit(i32::from(refused != Some(libc::EEXIST))) };
    }
    let child = Pid::from_raw(child).expect("forked");
    let ended = waitpid(Some(child), WaitOptions::empty()).expect("it is ours");
    let (_, status) = ended.expect("it has ended");
    assert_eq!(status.exit_status(), Some(0), "refused with EEXIST");
    assert_eq!(complete(&mut ring, 1)[0].result(), 0, "nothing is lost");
}

/// The kernel's version.
fn release() -> (u32, u32) {
    let name = uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// What opening a ring with these flags says, beside those that the driver sets.
fn opened_with(flags: u32) -> Result<OwnedFd, i32> {
    /// `SINGLE_ISSUER`, `DEFER_TASKRUN`, `TASKRUN_FLAG` and `SUBMIT_ALL`.
    const OF_THE_DRIVER: u32 = 1 << 12 | 1 << 13 | 1 << 9 | 1 << 7;
    // `struct io_uring_params`: the flags come third.
    let mut params = [0_u32; 30];
    params[2] = OF_THE_DRIVER | flags;
    // SAFETY: the parameters are ours, and as long as the kernel takes them.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &raw mut params) };
    let Ok(ring @ 0..) = i32::try_from(done) else {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    };
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(ring) })
}

#[test]
fn set_up_flags_that_the_driver_does_without_are_taken_or_refused_and_nothing_else() {
    if ring().is_none() {
        return;
    }
    const IOPOLL: u32 = 1;
    // Each with the first Linux that knows it.
    let flags = [
        ("HYBRID_IOPOLL", IOPOLL | 1 << 17, (6, 13)),
        ("CQE_MIXED", 1 << 18, (6, 18)),
        ("SQE_MIXED", 1 << 19, (6, 19)),
        // Beside others that the driver does not set.
        ("SQ_REWIND", 1 << 20, (u32::MAX, 0)),
        ("none that there is", 1 << 31, (u32::MAX, 0)),
    ];
    for (name, flags, since) in flags {
        let refused = opened_with(flags).err();
        let expected = (release() < since).then_some(libc::EINVAL);
        assert_eq!(refused, expected, "{name} in {:?}", release());
        let mut ring = ring().expect("there was one before");
        push(&mut ring, &opcode::Nop::new().build());
        assert_eq!(complete(&mut ring, 1)[0].result(), 0, "after {name}");
    }
    assert_eq!(opened_with(0).err(), None);
}

/// Says something over loopback and hears it again.
async fn hear_oneself() {
    let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = net::TcpListener::bind(loopback).expect("a port");
    let address = listener.local_addr();
    let accepted = spawn_local(async move { listener.accept().await });
    let client = net::TcpStream::connect(address).await.expect("connected");
    let server = accepted.await.expect("ran").expect("accepted");
    for byte in 0..100 {
        let heard = spawn_local({
            let server = server.clone();
            async move { server.recv(vec![0], 0, 1).await }
        });
        let (sent, _) = client.send_all(vec![byte], 0, 1).await;
        sent.expect("sent");
        assert_eq!(heard.await.expect("ran"), (Ok(1), vec![byte]));
    }
}

#[test]
fn a_core_that_is_to_have_network_devices_polled_says_whether_the_kernel_does() {
    let Some(ring) = ring() else { return };
    ring.submit().expect("entered");
    let mut napi = Napi::new().set_busy_poll_timeout(50);
    let does = ring.submitter().register_napi(&mut napi).is_ok();
    println!("polls network devices: {does}");
    assert!(
        does || release() < (6, 9),
        "Linux 6.9 does, if it has a network"
    );
    for busy_poll in [None, Some(Duration::from_micros(50)), Some(Duration::MAX)] {
        let options = CoreOptions {
            driver: DriverChoice::Uring,
            driver_options: DriverOptions { busy_poll },
            ..CoreOptions::default()
        };
        let said = block_on(None, options, || async {
            hear_oneself().await;
            driver()
        });
        let Ok(DriverKind::Uring(features)) = said else {
            unreachable!("there was a ring: {said:?}")
        };
        assert_eq!(features.busy_poll, busy_poll.is_some() && does);
    }
}

#[test]
fn combinations_of_set_up_flags_are_judged_as_expected() {
    if ring().is_none() {
        return;
    }
    let errno = |build: &mut io_uring::Builder| {
        let built = build.build(8);
        built.err().and_then(|error| error.raw_os_error())
    };
    let mut builder = IoUring::builder();
    assert_eq!(errno(builder.setup_defer_taskrun()), Some(libc::EINVAL));
    let mut builder = IoUring::builder();
    builder.setup_sqpoll(10).setup_single_issuer();
    assert_eq!(errno(builder.setup_defer_taskrun()), Some(libc::EINVAL));
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    assert_eq!(errno(builder.setup_iopoll()), None);
}

#[test]
fn a_send_without_copies_has_two_completions_also_when_it_fails() {
    let Some(mut ring) = ring() else { return };
    let bytes = vec![7_u8; 1 << 16];
    let send = |stream: &TcpStream| {
        let len = u32::try_from(bytes.len()).expect("small");
        opcode::SendZc::new(Fd(stream.as_raw_fd()), bytes.as_ptr(), len)
            .flags(libc::MSG_NOSIGNAL)
            .build()
    };
    let (client, server) = sockets();
    for is_open in [true, false] {
        if !is_open {
            client.shutdown(std::net::Shutdown::Write).expect("open");
        }
        push(&mut ring, &send(&client));
        let both = complete(&mut ring, 2);
        assert!(cqueue::more(both[0].flags()) && !cqueue::notif(both[0].flags()));
        assert!(cqueue::notif(both[1].flags()) && !cqueue::more(both[1].flags()));
        if is_open {
            assert!(both[0].result() > 0);
        } else {
            assert_eq!(both[0].result(), -libc::EPIPE);
        }
    }
    drop(server);
}

#[test]
fn a_multishot_receive_ends_where_there_is_no_buffer() {
    let Some(mut ring) = ring() else { return };
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Box::new(Page([0; 4096]));
    let address = (&raw mut *page).expose_provenance() as u64;
    // SAFETY: the page outlives the ring (dropped below, after it), and offers no buffer.
    let registered = unsafe {
        ring.submitter()
            .register_buf_ring_with_flags(address, 4, 0, 0)
    };
    registered.expect("Linux 5.19");
    // SAFETY: the tail lies in the page, which the kernel only reads.
    let tail = unsafe { BufRingEntry::tail((&raw const *page).cast()) };
    assert!(tail.addr() as u64 > address);
    let (client, server) = sockets();
    io::Write::write_all(&mut &client, b"bytes").expect("sent");
    let receive = opcode::RecvMulti::new(Fd(server.as_raw_fd()), 0).build();
    push(&mut ring, &receive);
    let [only] = &complete(&mut ring, 1)[..] else {
        unreachable!("one was asked for")
    };
    assert_eq!(only.result(), -libc::ENOBUFS);
    assert!(!cqueue::more(only.flags()), "it is to be armed again");
    drop(ring);
    page.0.fill(0);
}

/// A file for direct access, `blocks` blocks long and written, if the file system has it.
fn direct_file(name: &str, blocks: usize) -> Option<fs::File> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, vec![1; blocks * BLOCK_BYTES]).expect("written");
    fs::File::open(&path)
        .and_then(|file| file.sync_all())
        .expect("synced");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    if opened.is_err() {
        println!("SKIP {name}: no O_DIRECT here");
    }
    opened.ok()
}

const BLOCK_BYTES: usize = 16 * 1024;

/// Memory that is aligned for direct access.
struct Block(*mut u8);

impl Block {
    const LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(BLOCK_BYTES, 4096)
    {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        Self(unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; tests drop it after its completions.
        unsafe { std::alloc::dealloc(self.0, Self::LAYOUT) };
    }
}

#[test]
fn a_cancelled_read_of_a_file_completes_all_the_same_and_once() {
    const READS: usize = 32;
    let Some(mut ring) = ring() else { return };
    let Some(file) = direct_file("cancelled_reads", READS) else {
        return;
    };
    let blocks: Vec<Block> = (0..READS).map(|_| Block::new()).collect();
    let len = u32::try_from(BLOCK_BYTES).expect("small");
    for (index, block) in blocks.iter().enumerate() {
        let read = opcode::Read::new(Fd(file.as_raw_fd()), block.0, len)
            .offset((index * BLOCK_BYTES) as u64)
            .build()
            .user_data(index as u64);
        push(&mut ring, &read);
    }
    ring.submit().expect("entered");
    let mut all: Vec<cqueue::Entry> = Vec::new();
    for index in 0..READS as u64 {
        let cancel = opcode::AsyncCancel::new(index).build().user_data(u64::MAX);
        push(&mut ring, &cancel);
        if index % 16 == 15 {
            ring.submit().expect("entered");
            all.extend(ring.completion());
        }
    }
    let missing = 2 * READS - all.len();
    all.extend(complete(&mut ring, missing));
    let mut ends = [0; READS];
    for entry in all.iter().filter(|entry| entry.user_data() != u64::MAX) {
        ends[usize::try_from(entry.user_data()).expect("small")] += 1;
        let result = entry.result();
        assert!(
            result == len.cast_signed() || result == -libc::ECANCELED,
            "{result}"
        );
    }
    assert_eq!(ends, [1; READS], "each read ends once, cancelled or not");
}

#[test]
fn a_polled_read_works_or_says_that_it_does_not() {
    if ring().is_none() {
        return;
    }
    let Some(file) = direct_file("polled_read", 1) else {
        return;
    };
    let mut builder = IoUring::builder();
    let ring = builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_iopoll()
        .build(8);
    let mut ring = ring.expect("a ring that polls its devices");
    let block = Block::new();
    let len = u32::try_from(BLOCK_BYTES).expect("small");
    push(
        &mut ring,
        &opcode::Read::new(Fd(file.as_raw_fd()), block.0, len).build(),
    );
    let result = complete(&mut ring, 1)[0].result();
    assert!(
        result == len.cast_signed() || result == -libc::EOPNOTSUPP,
        "{result}"
    );
}

/// A call that the safe interface does not have.
fn register(ring: i32, operation: u32, argument: *mut libc::c_void, count: u32) -> i32 {
    // SAFETY: each caller's argument is what the operation documents, and outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring,
            operation,
            argument,
            count,
        )
    };
    if done < 0 {
        -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    } else {
        i32::try_from(done).expect("small")
    }
}

#[test]
fn a_thread_without_a_ring_can_send_to_one() {
    /// `IORING_REGISTER_SEND_MSG_RING`, Linux 6.13.
    const SEND_MSG_RING: u32 = 31;
    let Some(mut ring) = ring() else { return };
    let mut entry = opcode::MsgRingData::new(Fd(ring.as_raw_fd()), 5, 99, None).build();
    match register(-1, SEND_MSG_RING, (&raw mut entry).cast(), 1) {
        refused if refused == -libc::EINVAL => {
            println!("SKIP a_thread_without_a_ring_can_send_to_one: before Linux 6.13");
        }
        sent => {
            assert_eq!(sent, 0);
            let got = complete(&mut ring, 1);
            assert_eq!((got[0].user_data(), got[0].result()), (99, 5));
        }
    }
}

#[test]
fn a_ring_can_be_made_larger() {
    /// `IORING_REGISTER_RESIZE_RINGS`, Linux 6.13.
    const RESIZE_RINGS: u32 = 33;
    let Some(ring) = ring() else { return };
    ring.submit().expect("entered");
    // `struct io_uring_params`: the numbers of entries come first, and the flags third.
    const CQ_SIZE: u32 = 1 << 3;
    let mut params = [0_u32; 30];
    params[..3].copy_from_slice(&[128, 512, CQ_SIZE]);
    let argument = (&raw mut params).cast();
    match register(ring.as_raw_fd(), RESIZE_RINGS, argument, 1) {
        refused if refused == -libc::EINVAL => {
            println!("SKIP a_ring_can_be_made_larger: before Linux 6.13");
        }
        done => assert_eq!((done, params[0], params[1]), (0, 128, 512)),
    }
}
