//! What answers commands of one connection, whoever does.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use lunette_nvmeof_proto::auth::TlsPsk;
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{AdminReply, Attached, ControllerQueue};
use lunette_nvmeof_proto::fabrics::ConnectData;
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_runtime::arena::Region;
use lunette_runtime::net::Outbox;
use lunette_runtime::net::TcpStream;
use lunette_runtime::vectored::Message;
use lunette_runtime_core::checksum::Crc32c;

use crate::disk::Found;
use crate::error::CloseReason;
use crate::wire::Wire;

/// The answering half of a connection, which its commands share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    /// There once both ends have agreed on it.
    wire: OnceCell<Wire>,
    /// The names of the host and of the subsystem that TLS's key was for.
    pledged: OnceCell<(Nqn, Nqn)>,
    /// The port by which it came.
    pub(super) port_id: u16,
    pub(super) outbox: Outbox,
    pub(super) queue: RefCell<ControllerQueue>,
    pub(super) attached: Cell<Option<Attached>>,
    /// The host has said goodbye: what is queued is sent, and nothing more is read.
    pub(super) is_closing: Cell<bool>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, port_id: u16, queue: ControllerQueue) -> Self {
        Self {
            stream,
            wire: OnceCell::new(),
            pledged: OnceCell::new(),
            port_id,
            outbox: Outbox::default(),
            queue: RefCell::new(queue),
            attached: Cell::new(None),
            is_closing: Cell::new(false),
        }
    }

    /// Agrees with the host on TLS, if there is a key.
    pub(super) async fn secure(&self, psk: Option<&Arc<TlsPsk>>) -> Result<(), CloseReason> {
        let (wire, names) = Wire::accept(&self.stream, psk).await?;
        if let Some(names) = names {
            self.pledged.get_or_init(|| names);
        }
        self.wire.get_or_init(|| wire);
        Ok(())
    }

    pub(super) fn wire(&self) -> &Wire {
        self.wire.get().expect("connections are secured first")
    }

    /// Whether a Connect comes from who TLS's key was for, and for what.
    pub(super) fn is_as_pledged(&self, connect: &[u8]) -> bool {
        self.pledged.get().is_none_or(|(host, subsystem)| {
            let found = ConnectData::decode(connect);
            found.is_ok_and(|found| found.host == *host && found.subsystem == *subsystem)
        })
    }

    /// Ends a command without data.
    pub(super) fn complete(&self, slot: u16, status: Status, result: u64) {
        let mut queue = self.queue.borrow_mut();
        self.outbox.append(|message| {
            message.control(|out| queue.complete(slot, status, result, out));
        });
    }

    /// Answers a command of the admin queue. An Abort of a command elsewhere is its caller's.
    pub(super) fn reply(&self, slot: u16, reply: AdminReply) {
        match reply {
            AdminReply::Done { status, result } => self.complete(slot, status, result),
            AdminReply::Data(bytes) => self.send_bytes(slot, &bytes),
            AdminReply::LastData(bytes) => {
                tracing::warn!("a host did not prove itself");
                self.send_bytes(slot, &bytes);
                self.is_closing.set(true);
            }
            AdminReply::Held | AdminReply::Abort { .. } => {}
            AdminReply::Close => {
                self.complete(slot, Status::SUCCESS, 0);
                self.is_closing.set(true);
            }
        }
    }

    /// Asks for the data of a command.
    pub(super) fn request_data(&self, slot: u16) {
        let mut queue = self.queue.borrow_mut();
        self.outbox
            .append(|message| message.control(|out| queue.request_data(slot, out)));
    }

    /// Ends a command with data that are copied.
    pub(super) fn send_bytes(&self, slot: u16, bytes: &[u8]) {
        let mut queue = self.queue.borrow_mut();
        let len = u32::try_from(bytes.len()).expect("a command's data are bounded");
        let completes = queue.may_skip_completion();
        self.outbox.append(|message| {
            message.control(|out| {
                queue.send_data(slot, len, completes, out);
                out.extend_from_slice(bytes);
                let crc = || lunette_runtime_core::checksum::crc32c(bytes);
                queue.framing().append_data_digest(out, crc);
                if !completes {
                    queue.complete(slot, Status::SUCCESS, 0, out);
                }
            });
        });
    }

    /// Ends a command with data that are sent from where they lie.
    pub(super) fn send_found(&self, slot: u16, found: Found) {
        let mut queue = self.queue.borrow_mut();
        let (completes, framing) = (queue.may_skip_completion(), queue.framing());
        let crc = framing.digests.data.then(|| crc_of(found.regions()));
        let begin = |message: &mut Message, queue: &mut ControllerQueue, len: usize| {
            let len = u32::try_from(len).expect("a command's data are bounded");
            message.control(|out| queue.send_data(slot, len, completes, out));
        };
        let end = |message: &mut Message, queue: &mut ControllerQueue| {
            message.control(|out| {
                framing.append_data_digest(out, || crc.expect("computed where it is in use"));
                if !completes {
                    queue.complete(slot, Status::SUCCESS, 0, out);
                }
            });
        };
        match found {
            Found::One(region) => self.outbox.append(|message| {
                begin(message, &mut queue, region.len());
                message.payload(region);
                end(message, &mut queue);
            }),
            Found::Several(regions) => {
                let len = regions.iter().map(Region::len).sum();
                self.outbox
                    .append(|message| begin(message, &mut queue, len));
                for region in regions {
                    self.outbox.append(|message| message.payload(region));
                }
                self.outbox.append(|message| end(message, &mut queue));
            }
        }
    }

    /// Ends the connection, from whatever side it is looked at.
    pub(super) fn close(&self) {
        self.outbox.close();
        self.stream.shutdown();
    }
}

fn crc_of(regions: &[Region]) -> u32 {
    let mut crc = Crc32c::new();
    for region in regions {
        crc.fold(region.as_slice());
    }
    crc.value()
}

#[cfg(test)]
mod tests {
    use lunette_nvmeof_proto::controller::ControllerOptions;
    use lunette_nvmeof_proto::pdu::Digests;
    use lunette_runtime::net::TcpListener;
    use lunette_runtime::{CoreOptions, block_on};

    use super::*;

    #[test]
    fn who_connects_is_who_the_key_was_for() {
        let name = |text: &str| Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name");
        let connect = move |host: &str, subsystem: &str| {
            let data = ConnectData {
                host_id: [1; 16],
                controller_id: 1,
                subsystem: name(subsystem),
                host: name(host),
            };
            data.encode()
        };
        let ran = block_on(None, CoreOptions::default(), move || async move {
            let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
            let listener = listener.expect("a port");
            let stream = TcpStream::connect(listener.local_addr()).await;
            let queue = ControllerQueue::new(ControllerOptions {
                digests: Digests::NONE,
                h2c_data_bytes_max: 4096,
                r2t_bytes_max: 4096,
                in_capsule_bytes_max: 4096,
            });
            let link = Link::new(stream.expect("connected"), 1, queue);
            assert!(
                link.is_as_pledged(&connect("a", "s")),
                "without TLS, anybody"
            );
            link.pledged.get_or_init(|| (name("a"), name("s")));
            assert!(link.is_as_pledged(&connect("a", "s")));
            for other in [
                connect("b", "s"),
                connect("a", "t"),
                vec![0; 1024],
                Vec::new(),
            ] {
                assert!(!link.is_as_pledged(&other));
            }
        });
        ran.expect("a core");
    }
}
