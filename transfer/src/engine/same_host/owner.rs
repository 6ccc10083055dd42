//! The answering side: who is let in, and what is handed out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, View};
use lunette_runtime::net::{LocalChannel, LocalListener};
use lunette_runtime::{Scope, boot_id, time};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{Introduction, Refusal, Whereabouts};
use lunette_transfer_proto::engine::same_host::commands::{WINDOW, WINDOW_BYTES_MAX};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::SegmentId;

use super::super::registry::{HandedOut, Shown};
use super::super::{Inner, spawned};
use super::seat::{Seated, Seats};
use super::trust::{DISTRUST, Sight};
use super::{draw, nonsense, understand};
use crate::server::select;

/// Tickets that nobody has used yet.
const TICKETS_MAX: usize = 1024;
/// How long a ticket is good.
const TICKET_LIFE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted: no descriptor is free, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What an engine needs to let peers of its host in.
#[derive(Debug)]
pub(in crate::engine) struct Owner {
    boot_id: u128,
    /// Of its listener, which nobody can guess.
    name: u128,
    tickets: RefCell<BTreeMap<u128, Ticket>>,
    seats: Rc<Seats>,
}

#[derive(Debug)]
struct Ticket {
    proof: u128,
    good_until: Time,
}

impl Owner {
    /// Listens for peers in this network namespace, and for others in a folder, if there is one. `None`
    /// where there is no such thing: in a simulated world, or where the system refuses.
    pub(in crate::engine) fn listen(folder: Option<&Path>) -> Option<(Self, Vec<LocalListener>)> {
        let (boot_id, name) = (boot_id()?, draw());
        let near = LocalListener::bind(&name.to_le_bytes());
        let far = folder.map(|folder| LocalListener::bind_at(&meeting_point(folder, name)));
        let refused = |error: &io::Error| {
            tracing::warn!(%error, "some peers on this host are served over the network alone");
        };
        let listeners = [Some(near), far].into_iter().flatten();
        let listeners: Vec<_> = listeners
            .filter_map(|bound| bound.inspect_err(refused).ok())
            .collect();
        if listeners.is_empty() {
            return None;
        }
        let owner = Self {
            boot_id,
            name,
            tickets: RefCell::default(),
            seats: Rc::default(),
        };
        Some((owner, listeners))
    }

    /// Tells an authenticated peer where to go.
    pub(in crate::engine) fn introduce(
        &self,
        introduction: Introduction,
        now: Time,
    ) -> Result<Whereabouts, Refusal> {
        if introduction.boot_id != self.boot_id {
            return Err(Refusal::Elsewhere);
        }
        let mut tickets = self.tickets.borrow_mut();
        tickets.retain(|_, ticket| now < ticket.good_until);
        if tickets.len() >= TICKETS_MAX {
            return Err(Refusal::Busy);
        }
        let ticket = draw();
        tickets.insert(
            ticket,
            Ticket {
                proof: introduction.proof,
                good_until: now + TICKET_LIFE,
            },
        );
        Ok(Whereabouts {
            ticket,
            name: self.name,
        })
    }

    /// Has those who have opened a segment close it: who has not within `patience` loses its channel.
    pub(in crate::engine) fn recall(&self, segment: SegmentId, patience: Duration) {
        self.seats.recall(segment, patience);
    }

    /// The proof that belongs to a ticket, which is used up.
    fn redeem(&self, ticket: u128, now: Time) -> Option<u128> {
        let ticket = self.tickets.borrow_mut().remove(&ticket)?;
        (now < ticket.good_until).then_some(ticket.proof)
    }
}

/// The file of the listener of that name.
pub(super) fn meeting_point(folder: &Path, name: u128) -> PathBuf {
    folder.join(format!("lunette-{name:032x}.sock"))
}

/// Lets peers in until the engine drains.
pub(in crate::engine) async fn accept(inner: Rc<Inner>, listener: LocalListener) {
    let retire = inner.drain.listen();
    let channels = Scope::new();
    let channels_max = inner.options.same_host_peers_max;
    loop {
        let accepted = select(listener.accept(), poll_fn(|cx| retire.poll(cx.waker()))).await;
        match accepted {
            None => return,
            // Closed at once: its peer goes over the network.
            Some(Ok(_)) if channels.len() >= channels_max => {}
            Some(Ok(channel)) => {
                // Without a task it is closed, and its peer sees that.
                spawned(channels.spawn(serve(Rc::clone(&inner), channel)));
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "accept, from this host");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(inner: Rc<Inner>, channel: LocalChannel) {
    match converse(&inner, channel).await {
        Ok(()) => tracing::debug!("a peer of this host has gone"),
        Err(error) => tracing::debug!(%error, "a channel to a peer of this host ends"),
    }
}

async fn converse(inner: &Rc<Inner>, channel: LocalChannel) -> io::Result<()> {
    let owner = inner.owner.as_ref().expect("it listens");
    let patience = inner.options.connect_timeout;
    let first = time::timeout(patience, channel.recv()).await;
    let Some(first) = first.map_err(|_| io::ErrorKind::TimedOut)?? else {
        return Ok(());
    };
    let Some((Packet::Join { ticket }, _)) = understand(first) else {
        return Err(nonsense());
    };
    let proof = owner.redeem(ticket, time::now()).ok_or_else(nonsense)?;
    let board = inner.registry.borrow_mut().board()?;
    let channel = Rc::new(channel);
    let seat = Seats::take(&owner.seats, inner, &channel)?;
    channel.send(
        &Packet::Welcome { proof }.encode(),
        &[board.as_fd(), seat.commands()],
    )?;
    while let Some(received) = seat.recv(&channel).await? {
        let (packet, files) = understand(received).ok_or_else(nonsense)?;
        heed(inner, &seat, &channel, packet, files)?;
    }
    Ok(())
}

/// Does what a peer asks for, and answers.
fn heed(
    inner: &Inner,
    seat: &Seated,
    channel: &LocalChannel,
    packet: Packet,
    mut files: Vec<OwnedFd>,
) -> io::Result<()> {
    let mut file = || files.pop().expect("it came with its file");
    let answer = match packet {
        Packet::Map { segment } => match hand_over(inner, seat, segment) {
            Some(handed) => handed,
            None => return hand_out(inner, channel, segment, seat.is_trusted()),
        },
        Packet::Memory {
            segment,
            offset_bytes,
            len_bytes,
        } => {
            let view = View::map(file(), offset_bytes, len_bytes);
            let view = view.inspect_err(|error| tracing::debug!(%error, "memory that is lent"));
            borrow(inner, seat, segment, view.ok().map(Sight::Mapped))
        }
        Packet::At {
            segment,
            address,
            len_bytes,
        } => borrow(inner, seat, segment, seat.sight(address, len_bytes)),
        Packet::Trust { address, value, .. } => {
            if inner.options.same_host_trust {
                seat.try_out(address, value).ok_or_else(nonsense)?
            } else {
                DISTRUST
            }
        }
        Packet::Window { len_bytes } => open_window(seat, file(), len_bytes)?,
        Packet::Trusted if inner.options.same_host_trust => {
            seat.trust();
            return Ok(());
        }
        Packet::TakeBack { segment } => {
            seat.give_back(segment);
            return Ok(());
        }
        Packet::Closed { segment } => {
            seat.closed(segment);
            return Ok(());
        }
        Packet::Wake => return Ok(()),
        _ => return Err(nonsense()),
    };
    channel.send(&answer.encode(), &[])
}

/// Keeps what is lent, if it can be had and there is room.
fn borrow(inner: &Inner, seat: &Seated, segment: SegmentId, lent: Option<Sight>) -> Packet {
    let lent_max = inner.options.same_host_segments_max;
    if lent.is_some_and(|lent| seat.borrow(segment, lent, lent_max)) {
        Packet::Accepted { segment }
    } else {
        Packet::Declined { segment }
    }
}

/// Takes the window of a peer, its only one.
fn open_window(seat: &Seated, file: OwnedFd, len_bytes: u64) -> io::Result<Packet> {
    if len_bytes > WINDOW_BYTES_MAX {
        return Err(nonsense());
    }
    let len = usize::try_from(len_bytes).expect("bounded");
    let window = match Exposed::join(file, len) {
        Ok(window) => window,
        Err(error) => {
            tracing::debug!(%error, "a window");
            return Ok(Packet::Declined { segment: WINDOW });
        }
    };
    if !seat.open_window(window) {
        return Err(nonsense());
    }
    Ok(Packet::Accepted { segment: WINDOW })
}

/// The handle of a device's segment, for a peer that is trusted, if there is room for one more; `None` if it is none.
fn hand_over(inner: &Inner, seat: &Seated, segment: SegmentId) -> Option<Packet> {
    if !seat.is_trusted() || !seat.has_room(inner.options.same_host_segments_max) {
        return None;
    }
    let handed = inner.registry.borrow_mut().hand_out(segment).ok()?;
    let HandedOut {
        device,
        access,
        in_use,
    } = handed;
    let handle = device.region().ipc_handle();
    let handle = handle
        .inspect_err(|error| tracing::debug!(%error, %segment, "memory of a device"))
        .ok()?;
    seat.hand(segment, in_use);
    Some(Packet::Handle {
        segment,
        access,
        handle: handle.to_bytes(),
    })
}

fn hand_out(
    inner: &Inner,
    channel: &LocalChannel,
    segment: SegmentId,
    is_trusted: bool,
) -> io::Result<()> {
    let shared = inner.registry.borrow_mut().share(segment, is_trusted);
    match shared {
        Ok(Shown::At { address, len_bytes }) => {
            let packet = Packet::At {
                segment,
                address,
                len_bytes,
            };
            channel.send(&packet.encode(), &[])
        }
        Ok(Shown::File(share)) => {
            let packet = Packet::Memory {
                segment,
                offset_bytes: share.offset_bytes,
                len_bytes: share.len_bytes,
            };
            channel.send(&packet.encode(), &[share.memfd.as_fd()])
        }
        Err(refusal) => {
            tracing::debug!(%segment, %refusal, "a segment is not mapped");
            channel.send(&Packet::Refused { segment }.encode(), &[])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner {
            boot_id: 7,
            name: 8,
            tickets: RefCell::default(),
            seats: Rc::default(),
        }
    }

    #[test]
    fn tickets_are_for_this_host_good_once_and_for_a_while() {
        lunette_runtime::block_on(None, lunette_runtime::CoreOptions::default(), || async {
            let owner = owner();
            let now = Time::ZERO;
            let ask = |boot_id| Introduction { boot_id, proof: 9 };
            assert_eq!(owner.introduce(ask(6), now), Err(Refusal::Elsewhere));
            let first = owner.introduce(ask(7), now).expect("this host");
            let second = owner.introduce(ask(7), now).expect("this host");
            assert_ne!(first.ticket, second.ticket);
            assert_eq!(owner.redeem(first.ticket, now), Some(9));
            assert_eq!(owner.redeem(first.ticket, now), None, "used up");
            assert_eq!(owner.redeem(first.ticket ^ 1, now), None, "never given");
            assert_eq!(owner.redeem(second.ticket, now + TICKET_LIFE), None);
        })
        .expect("a core");
    }

    #[test]
    fn tickets_that_nobody_uses_are_bounded_and_run_out() {
        lunette_runtime::block_on(None, lunette_runtime::CoreOptions::default(), || async {
            let owner = owner();
            let ask = Introduction {
                boot_id: 7,
                proof: 0,
            };
            for _ in 0..TICKETS_MAX {
                owner.introduce(ask, Time::ZERO).expect("room");
            }
            assert_eq!(owner.introduce(ask, Time::ZERO), Err(Refusal::Busy));
            assert!(owner.introduce(ask, Time::ZERO + TICKET_LIFE).is_ok());
            assert_eq!(owner.tickets.borrow().len(), 1);
        })
        .expect("a core");
    }
}
