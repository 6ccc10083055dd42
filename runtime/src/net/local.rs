//! Packets with descriptors, between processes of one host.
//!
//! Sockets of the Unix family that keep packets apart (`SOCK_SEQPACKET`), under names that lie in no file
//! system, or as files. They are for what is said rarely: descriptors of memory that two processes share,
//! and that one of them is gone. Simulated worlds have none.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

use crate::arena::ProcessMemory;
use crate::executor::Core;
use crate::op::OpError;
use crate::watched::Watched;

/// Longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 512;
/// Descriptors of one packet.
pub const PACKET_DESCRIPTORS_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What came in one packet.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors, which are now this process's.
    pub descriptors: Vec<OwnedFd>,
}

/// Accepts connections of processes of this host.
#[derive(Debug)]
pub struct LocalListener {
    socket: Watched,
    /// Removed with it.
    file: Option<PathBuf>,
}

/// A connection between two processes of this host.
pub struct LocalChannel {
    socket: Watched,
}

/// What threads send packets by, on a core's channel. As long as there is one, the other side does not see the channel's end.
#[derive(Debug)]
pub struct LocalSender {
    socket: OwnedFd,
}

impl LocalListener {
    /// Listens under a name that no other socket of this network namespace has.
    ///
    /// # Errors
    /// The system's; `Unsupported` in a simulated world.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        Self::listen(&SocketAddrUnix::new_abstract_name(name)?, None)
    }

    /// Listens as a file, by which processes in other network namespaces connect too, if they see it. It is
    /// removed when the listener is dropped.
    ///
    /// # Errors
    /// The system's: `AddrInUse` if there is such a file; a path has at most 107 bytes. `Unsupported` in a
    /// simulated world.
    pub fn bind_at(path: &Path) -> io::Result<Self> {
        Self::listen(&SocketAddrUnix::new(path)?, Some(path.to_owned()))
    }

    fn listen(address: &SocketAddrUnix, file: Option<PathBuf>) -> io::Result<Self> {
        let socket = socket()?;
        bind(&socket, address)?;
        let listener = Self {
            socket: Watched::new(socket),
            file,
        };
        listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system's, of which some (no descriptor is free) pass; `Interrupted` when the core goes down.
    pub async fn accept(&self) -> io::Result<LocalChannel> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    return Ok(LocalChannel {
                        socket: Watched::new(socket),
                    });
                }
                // The other side may have gone before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => readable(&self.socket).await?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && let Err(error) = fs::remove_file(file)
        {
            tracing::debug!(%error, ?file, "the file of a socket stays");
        }
    }
}

impl LocalChannel {
    /// Connects to the listener of a name.
    ///
    /// # Errors
    /// The system's: `ConnectionRefused` if nobody listens, `WouldBlock` if too many wait to be accepted;
    /// `Unsupported` in a simulated world.
    pub fn connect(name: &[u8]) -> io::Result<Self> {
        Self::connect_to(&SocketAddrUnix::new_abstract_name(name)?)
    }

    /// Connects to the listener of a file.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `NotFound` if there is no such file.
    pub fn connect_at(path: &Path) -> io::Result<Self> {
        Self::connect_to(&SocketAddrUnix::new(path)?)
    }

    fn connect_to(address: &SocketAddrUnix) -> io::Result<Self> {
        let socket = socket()?;
        connect(&socket, address)?;
        Ok(Self {
            socket: Watched::new(socket),
        })
    }

    /// The process at the other end, whose memory may be read where the system lets this one. It is not
    /// proved that whoever has the other end now is that process.
    ///
    /// # Errors
    /// The system's; `NotFound` for a process that has ended, or is in a namespace that is not seen from
    /// here.
    pub fn process(&self) -> io::Result<ProcessMemory> {
        ProcessMemory::behind(self.socket.as_fd())
    }

    /// Sends a packet. The other process gets duplicates of the descriptors.
    ///
    /// # Errors
    /// The system's; `WouldBlock` if the other side has not taken enough of what was sent before.
    ///
    /// # Panics
    /// If it is empty, or longer than [`PACKET_BYTES_MAX`], or has more than [`PACKET_DESCRIPTORS_MAX`].
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.socket.as_fd(), bytes, descriptors)
    }

    /// What threads send by.
    ///
    /// # Errors
    /// The system's: no descriptor is free.
    pub fn sender(&self) -> io::Result<LocalSender> {
        let socket = self.socket.as_fd().try_clone_to_owned()?;
        Ok(LocalSender { socket })
    }

    /// The next packet; `None` when the other side has gone. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The system's; `InvalidData` for a packet that is too long or has too many descriptors, all of
    /// which are closed.
    pub async fn recv(&self) -> io::Result<Option<Packet>> {
        loop {
            match receive(&self.socket) {
                Ok(packet) => return packet,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => readable(&self.socket).await?,
                // What it had not read yet when it closed makes a reset of the end.
                Err(Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl LocalSender {
    /// Sends a packet without descriptors, on whatever thread. It does not wait.
    ///
    /// # Errors
    /// As [`LocalChannel::send`].
    ///
    /// # Panics
    /// As there.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        send(self.socket.as_fd(), bytes, &[])
    }
}

impl fmt::Debug for LocalChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalChannel({:?})", self.socket.as_fd())
    }
}

fn socket() -> io::Result<OwnedFd> {
    if Core::current().simulated_host().is_some() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!((1..=PACKET_BYTES_MAX).contains(&bytes.len()), "a packet");
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let has_room = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(has_room, "{} descriptors", descriptors.len());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(sent) => {
                assert_eq!(sent, bytes.len(), "packets are sent whole");
                return Ok(());
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

async fn readable(socket: &Watched) -> io::Result<()> {
    socket.readable().await.map_err(|error| match error {
        OpError::Os(errno) => errno.into(),
        other => io::Error::new(io::ErrorKind::Interrupted, other),
    })
}

fn receive(socket: &Watched) -> Result<io::Result<Option<Packet>>, Errno> {
    let mut bytes = [0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Ok(None));
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Ok(Err(io::ErrorKind::InvalidData.into()));
    }
    Ok(Ok(Some(Packet {
        bytes: bytes[..received.bytes].to_vec(),
        descriptors,
    })))
}
