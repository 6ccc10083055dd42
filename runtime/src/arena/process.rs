//! Memory of another process, by its addresses.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Exposed;

/// Another process, whose memory this one may read, where the system lets it: both belong to one user and
/// neither is hardened, or this one may trace the other (`process_vm_readv(2)`, `ptrace(2)`, "access mode
/// checks"). The number of a process that has ended is not taken for another's.
#[derive(Debug)]
pub struct ProcessMemory {
    process: Pid,
    /// Tells that the process has ended, whoever has its number now.
    pidfd: OwnedFd,
}

impl ProcessMemory {
    /// Who made the other end of a connected Unix socket, or listened where it was made. Whether that is
    /// who still has it, and whose memory is meant, is for the two to prove: by bytes that only that process
    /// has, at an address that it names.
    ///
    /// # Errors
    /// The system's; `NotFound` for a process that has ended, or that is not seen from this one's
    /// namespace.
    pub fn behind(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let process = Pid::from_raw(credentials(socket)?.pid).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => io::ErrorKind::NotFound.into(),
            other => io::Error::from(other),
        })?;
        Ok(Self { process, pidfd })
    }

    /// Copies from an address of that process over all of `to`. What it writes meanwhile may be in the copy
    /// or not. After an error some of it may have been copied.
    ///
    /// # Errors
    /// `PERM` if the system forbids it, `FAULT` if not all of that is memory there, `SRCH` if the process
    /// has ended.
    pub fn copy_out(&self, address: u64, to: &Exposed) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let there = usize::try_from(address)
                .ok()
                .and_then(|at| at.checked_add(done));
            let there = there.ok_or(Errno::FAULT)?;
            done += self.read_once(there, &to.slice(done, to.len() - done))?;
        }
        // What was read was its own only if it has not ended meanwhile.
        if self.has_ended()? {
            return Err(Errno::SRCH);
        }
        Ok(())
    }

    fn read_once(&self, there: usize, here: &Exposed) -> Result<usize, Errno> {
        let local = libc::iovec {
            iov_base: here.address().as_ptr().cast(),
            iov_len: here.len(),
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(there),
            iov_len: here.len(),
        };
        let process = self.process.as_raw_nonzero().get();
        // SAFETY: the kernel writes at most `iov_len` bytes to `local`, which lies in memory that `here`
        // keeps and to which no reference exists; `remote` is an address in another process, which the
        // kernel checks there. Both lists have one entry. Ends with the call.
        let read = unsafe {
            libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(read) {
            Ok(0) => Err(Errno::FAULT),
            Ok(read) => Ok(read),
            Err(_) => Err(last_error()),
        }
    }

    fn has_ended(&self) -> Result<bool, Errno> {
        let mut asked = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec::default();
        Ok(poll(&mut asked, Some(&at_once))? > 0)
    }
}

/// Of the process at the other end. Its number is 0 if it is not seen from here, which `rustix` has no value
/// for.
fn credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few words");
    // SAFETY: the kernel writes at most `len` bytes to `found`, and the length to `len`; both live to the
    // end of the call, and any bytes are a `ucred`.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if asked == 0 {
        Ok(found)
    } else {
        Err(last_error().into())
    }
}

fn last_error() -> Errno {
    let error = io::Error::last_os_error();
    Errno::from_io_error(&error).expect("the system's")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::arena::HugePages;

    fn memory(len: usize) -> Exposed {
        Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
    }

    fn own() -> ProcessMemory {
        let (socket, _other) = UnixStream::pair().expect("sockets");
        ProcessMemory::behind(socket.as_fd()).expect("this process")
    }

    #[test]
    fn bytes_are_copied_from_the_address_of_a_process() {
        let process = own();
        let there: Vec<u8> = (0..=250).cycle().take(3 << 20).collect();
        let here = memory(there.len() - 7);
        let address = there.as_ptr().addr() as u64;
        process.copy_out(address + 7, &here).expect("its own");
        assert_eq!(here.to_vec(), there[7..]);
    }

    #[test]
    fn what_is_no_memory_there_is_an_error() {
        // No program's: what was unmapped a moment ago may be another test's again.
        const BEYOND: u64 = 1 << 55;
        let process = own();
        let here = memory(8192);
        for address in [0, BEYOND, u64::MAX, u64::MAX - 4096] {
            assert_eq!(
                process.copy_out(address, &here),
                Err(Errno::FAULT),
                "{address:#x}"
            );
        }
    }

    #[test]
    fn a_process_that_has_ended_is_not_read() {
        let mut child = Command::new("sleep");
        let mut child = child
            .arg("60")
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        let id = i32::try_from(child.id()).expect("a process id");
        let process = Pid::from_raw(id).expect("not 0");
        let ended = ProcessMemory {
            process,
            pidfd: pidfd_open(process, PidfdFlags::empty()).expect("it runs"),
        };
        assert_eq!(ended.has_ended(), Ok(false));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        // As if its number was another's now: this process's.
        let number = Pid::from_raw(i32::try_from(std::process::id()).expect("a process id"));
        let reused = ProcessMemory {
            process: number.expect("not 0"),
            ..ended
        };
        let there = [1_u8; 8];
        let read = reused.copy_out(there.as_ptr().addr() as u64, &memory(8));
        assert_eq!(read, Err(Errno::SRCH));
    }
}
