//! The processor that a thread has, and who else wants it.
//!
//! Threads of one host that wait for each other are often put on one processor. Systems wake who receives where the sender
//! runs, as it is about to sleep, or so they take it; and a guest of a hypervisor takes its processors without work for ones
//! that are not there (`vcpu_is_preempted`), and leaves them alone. One that looks for what is to come then keeps the other
//! from sending it.

use std::os::fd::AsFd;

use rustix::net::sockopt;
use rustix::thread::sched_getcpu;

/// How long a core keeps a processor from others that want it, and the others one from a core that is woken: the least that
/// can be asked for. The default is some milliseconds, longer than most of what a core is woken for takes.
const TURN_NS: u64 = 100_000;

/// Asks for [short turns](TURN_NS) for the calling thread, which come sooner in exchange: it takes a processor from a thread
/// with longer ones when it is woken. Its share of time stays as it was, and so does a thread that the host has given another
/// class (`SCHED_FIFO`, `SCHED_IDLE`, ...). Linux from 6.12 on (`sched_setattr(2)`, `sched_runtime` of `SCHED_OTHER`), without
/// effect before.
pub(crate) fn ask_for_short_turns() {
    let Some(attributes) = attributes() else {
        return;
    };
    let has_short_ones = (1..=TURN_NS).contains(&attributes.runtime);
    if attributes.policy != libc::SCHED_OTHER.cast_unsigned() || has_short_ones {
        return;
    }
    let asked = Attributes {
        runtime: TURN_NS,
        ..attributes
    };
    // SAFETY: the call reads as many bytes as the structure says that it has, which is ours, and changes the calling thread's
    // turns alone: the rest is as it was.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const asked, 0) };
    if set != 0 {
        // Forbidden here, perhaps: it runs with turns as they are.
        tracing::debug!("a core's turns stay as long as the system's default");
    }
}

/// The first version of `struct sched_attr` (`sched_setattr(2)`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const ATTRIBUTES_BYTES: u32 = 48;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_BYTES as usize);

/// The calling thread's, if the system tells.
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let place = &raw mut attributes;
    // SAFETY: the call writes as many bytes as it is told, which the structure has, any of which are valid in it.
    let told = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, place, ATTRIBUTES_BYTES, 0) };
    (told == 0).then_some(attributes)
}

/// The number of the processor on which this thread runs now, and perhaps not for long.
#[must_use]
pub fn this_processor() -> usize {
    sched_getcpu()
}

/// Whether the peer of a connection within this host has sent last on the processor on which this thread runs. If it waits for
/// an answer, or has more to send, it is there, and gets nowhere as long as this thread does not sleep.
pub(crate) fn is_sent_from_here(socket: impl AsFd) -> bool {
    let sent_from = sockopt::socket_incoming_cpu(socket).ok();
    sent_from.is_some_and(|cpu| usize::try_from(cpu) == Ok(this_processor()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// What a thread of its own comes to.
    fn in_thread<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(what).join().expect("no panic")
    }

    #[test]
    fn turns_are_short_and_the_rest_stays() {
        in_thread(|| {
            let before = attributes().expect("told");
            ask_for_short_turns();
            let after = attributes().expect("told");
            let known = [before.runtime, TURN_NS];
            assert!(known.contains(&after.runtime), "{after:?}");
            if before.runtime != 0 {
                assert_eq!(after.runtime, TURN_NS, "a system that tells them has them");
            }
            let others = |of: Attributes| (of.policy, of.flags, of.nice, of.priority);
            assert_eq!(others(after), others(before));
        });
    }

    #[test]
    fn who_has_another_class_keeps_it() {
        in_thread(|| {
            let idle = Attributes {
                policy: libc::SCHED_IDLE.cast_unsigned(),
                runtime: 0,
                ..attributes().expect("told")
            };
            // SAFETY: as in `ask_for_short_turns`; each thread may go to this class.
            let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const idle, 0) };
            assert_eq!(set, 0);
            let before = attributes().expect("told");
            assert_eq!(before.policy, idle.policy);
            ask_for_short_turns();
            let after = attributes().expect("told");
            assert_eq!((after.policy, after.runtime), (idle.policy, before.runtime));
        });
    }

    #[test]
    fn what_was_sent_here_is_told_from_what_was_sent_elsewhere() {
        in_thread(|| {
            let all = sched_getaffinity(None).expect("told");
            let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
            let run_on = |cpu: usize| {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one).expect("one of ours");
            };
            let (here, elsewhere) = (cpus.next().expect("one"), cpus.next());
            run_on(here);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("it has one");
            let mut sender = TcpStream::connect(address).expect("connected");
            let (mut receiver, _) = listener.accept().expect("accepted");
            sender.write_all(b"here").expect("sent");
            receiver.read_exact(&mut [0; 4]).expect("received");
            assert!(is_sent_from_here(&receiver));
            if let Some(elsewhere) = elsewhere {
                run_on(elsewhere);
                assert!(!is_sent_from_here(&receiver));
            }
        });
    }
}
