//! One connection: from bytes to commands.

use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use lunette_nvmeof_proto::auth::{Entropy, MESSAGE_BYTES_MAX};
use lunette_nvmeof_proto::command::{Command, Direction, admin, fabrics};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{AdminReply, Attached, ControllerStep, IoOrder};
use lunette_nvmeof_proto::fabrics::CONNECT_DATA_BYTES;
use lunette_nvmeof_proto::io::{Geometry, IoRequest};
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime::arena::RegionMut;
use lunette_runtime::vectored::Scatter;
use lunette_runtime::{Scope, arena, control, time};

use super::arrivals::{Arrival, Arrivals, Purpose};
use super::desk::{Desk, Job};
use super::link::Link;
use super::server::Server;
use super::work::{Work, range};
use crate::disk::room;
use crate::error::CloseReason;

/// Size of the staging buffer, where commands and small data arrive.
const STAGING_BYTES: usize = 128 * 1024;
/// How much is received into it while large data are expected: a header or two, so that most of the
/// data behind go straight to their place.
const HEADERS_BYTES: usize = 512;
/// Data of at least this much are large.
const LARGE_BYTES_MIN: u32 = 16 * 1024;
/// Data that are missing by at least this much are received straight into their memory; less comes with what is staged.
const DIRECT_BYTES_MIN: u32 = 512;
/// Most of them at once: they are to be in cache when their digest is folded.
const DIRECT_BYTES_MAX: u32 = 256 * 1024;
/// Answers that may wait for one host before its next commands are left unread.
const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How much is received into staging behind a command: little behind one that brings large data, and as much as there is behind
/// any other, whatever came before that.
fn staged_bytes_behind(command: &Command) -> usize {
    let brings_data = command.direction() == Direction::ToController;
    if brings_data && command.sgl.len_bytes() >= LARGE_BYTES_MIN {
        HEADERS_BYTES
    } else {
        STAGING_BYTES
    }
}

/// All data of a command, as they lie in the staging buffer.
#[derive(Clone, Copy, Debug)]
struct Whole<'a> {
    slot: u16,
    bytes: &'a [u8],
}

/// What is to be received next.
enum Next {
    Staging,
    Direct {
        slot: u16,
        offset: usize,
        len: u32,
    },
    /// Nothing, before there is memory for data so long that have come in part.
    Room {
        slot: u16,
        len: usize,
    },
    Closing,
}

/// One connection of a host.
pub(super) struct Connection {
    server: Rc<Server>,
    link: Rc<Link>,
    /// Commands that take time.
    tasks: Rc<Scope>,
    arrivals: Arrivals,
    staging: Option<RegionMut>,
    unread: Range<usize>,
    /// See [`staged_bytes_behind`].
    staged_bytes: usize,
    /// Of the last receive that went to a place of its own.
    list: Option<Box<Scatter>>,
    out: Vec<u8>,
}

impl Connection {
    pub(super) fn new(server: Rc<Server>, link: Rc<Link>) -> Result<Self, CloseReason> {
        let staging = arena().alloc(STAGING_BYTES);
        let staging = staging.map_err(|_full| CloseReason::NoMemory)?;
        Ok(Self {
            server,
            link,
            tasks: Rc::new(Scope::new()),
            arrivals: Arrivals::default(),
            staging: Some(staging),
            unread: 0..0,
            staged_bytes: STAGING_BYTES,
            list: None,
            out: Vec::new(),
        })
    }

    /// Serves until the connection ends, and says why.
    pub(super) async fn run(&mut self) -> CloseReason {
        let reason = loop {
            self.link.outbox.drained_below(REPLY_BYTES_MAX).await;
            let received = match self.step_all() {
                Err(reason) => break reason,
                Ok(Next::Closing) => break CloseReason::Peer,
                Ok(Next::Staging) => self.receive_staged().await,
                Ok(Next::Direct { slot, offset, len }) => {
                    self.receive_direct(slot, offset, len).await
                }
                Ok(Next::Room { slot, len }) => {
                    self.wait_for_room(slot, len).await;
                    Ok(())
                }
            };
            if let Err(reason) = received {
                break reason;
            }
        };
        if let CloseReason::Wire(fault) = &reason {
            let mut farewell = Vec::new();
            let queue = self.link.queue.borrow();
            queue.append_term_req(fault, &mut farewell);
            self.link.outbox.append_bytes(&mut farewell);
        }
        reason
    }

    /// Steps through everything that has been received.
    fn step_all(&mut self) -> Result<Next, CloseReason> {
        let staging = self.staging.take().expect("no receive is in flight");
        let mut input = &staging.as_slice()[self.unread.clone()];
        let next = self.step_through(&mut input);
        self.unread.start = self.unread.end - input.len();
        self.staging = Some(staging);
        next
    }

    fn step_through(&mut self, input: &mut &[u8]) -> Result<Next, CloseReason> {
        // Data that are all there have no need of room of their own, once their digest is known to fit.
        let mut whole: Option<Whole<'_>> = None;
        while !self.link.is_closing.get() {
            let step = self.link.queue.borrow_mut().step(input, &mut self.out);
            self.link.outbox.append_bytes(&mut self.out);
            match step? {
                ControllerStep::Open(request) => tracing::debug!(?request, "set up"),
                ControllerStep::Command {
                    slot,
                    command,
                    data_len_bytes,
                } => {
                    let len = data_len_bytes as usize;
                    self.on_command(slot, command, len > 0);
                    if len > input.len() && !self.arrivals.has_room(slot) {
                        return Ok(Next::Room { slot, len });
                    }
                }
                ControllerStep::Data { slot, bytes, .. }
                    if self.arrivals.is_whole(slot, bytes.len()) =>
                {
                    whole = Some(Whole { slot, bytes });
                }
                ControllerStep::Data {
                    slot,
                    offset_bytes,
                    bytes,
                } => self.arrivals.place(slot, offset_bytes as usize, bytes),
                ControllerStep::NeedData {
                    slot,
                    offset_bytes,
                    len_bytes,
                } => {
                    let is_direct = len_bytes >= DIRECT_BYTES_MIN
                        && self.link.wire().is_plain()
                        && self.arrivals.can_lend(slot);
                    if is_direct {
                        let offset = offset_bytes as usize;
                        let len = len_bytes;
                        return Ok(Next::Direct { slot, offset, len });
                    }
                    if len_bytes >= DIRECT_BYTES_MIN {
                        // They have no place to be received to.
                        self.staged_bytes = STAGING_BYTES;
                    }
                    return Ok(Next::Staging);
                }
                ControllerStep::DataEnd { slot, is_intact } => {
                    let whole = whole.take().filter(|whole| whole.slot == slot);
                    self.on_data_end(slot, is_intact, whole.map(|whole| whole.bytes));
                }
                ControllerStep::NeedBytes => {
                    // Their digest has not come with them.
                    if let Some(Whole { slot, bytes }) = whole {
                        self.arrivals.place(slot, 0, bytes);
                    }
                    return Ok(Next::Staging);
                }
            }
        }
        Ok(Next::Closing)
    }

    fn on_command(&mut self, slot: u16, command: Command, data_follow: bool) {
        let has_data = command.direction() == Direction::ToController;
        let len = command.sgl.len_bytes();
        self.staged_bytes = staged_bytes_behind(&command);
        if let Some(attached) = self.link.attached.get()
            && (attached.queue_id == 0 || command.opcode == admin::FABRICS)
            && !(has_data && len > 0)
        {
            self.administer(attached, slot, &command);
            return;
        }
        match self.purpose_of(&command) {
            Err(status) if data_follow => {
                self.take_data(slot, Purpose::Refused(status), len as usize, true);
            }
            Err(status) => self.link.complete(slot, status, 0),
            Ok(purpose) if has_data && len > 0 => {
                self.take_data(slot, purpose, len as usize, data_follow);
            }
            Ok(Purpose::Io(order)) if self.read_at_once(slot, &order) => {}
            Ok(Purpose::Io(order)) => self.carry_out(slot, order, None),
            Ok(_) => self
                .link
                .complete(slot, Status::INVALID_FIELD.do_not_retry(), 0),
        }
    }

    /// What a command of a queue for I/O, or the first of a connection, is for.
    fn purpose_of(&self, command: &Command) -> Result<Purpose, Status> {
        let Some(attached) = self.link.attached.get() else {
            let is_connect = command.opcode == admin::FABRICS;
            return if is_connect && command.sgl.len_bytes() == CONNECT_DATA_BYTES {
                Ok(Purpose::Connect(*command))
            } else {
                Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry())
            };
        };
        if command.fabrics_type() == Some(fabrics::AUTH_SEND)
            && command.sgl.len_bytes() as usize <= MESSAGE_BYTES_MAX
        {
            return Ok(Purpose::Authenticate(*command));
        }
        if attached.queue_id == 0 || command.opcode == admin::FABRICS {
            // Other commands of the admin queue bring no data here.
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let view = self.server.view();
        let order = view.io(attached.controller, attached.queue_id, command)?;
        Ok(Purpose::Io(order))
    }

    /// Makes room for a command's data; they are on their way if `data_follow`, else asked for.
    fn take_data(&mut self, slot: u16, purpose: Purpose, len: usize, data_follow: bool) {
        self.arrivals.begin(slot, purpose, len);
        if data_follow {
            return;
        }
        if let Ok(room) = arena().alloc(len) {
            self.arrivals.give(slot, room);
            self.link.request_data(slot);
            return;
        }
        let (link, arrivals) = (Rc::clone(&self.link), self.arrivals.clone());
        self.spawn(async move {
            let Some(room) = room(len).await else {
                arrivals.end(slot);
                link.complete(slot, Status::NAMESPACE_NOT_READY, 0);
                return;
            };
            arrivals.give(slot, room);
            link.request_data(slot);
        });
    }

    /// Waits for memory for data that are on their way, and refuses them if there is none for long. Nothing is
    /// received meanwhile: the host has to wait, too.
    async fn wait_for_room(&self, slot: u16, len: usize) {
        match room(len).await {
            Some(room) => self.arrivals.give(slot, room),
            None => self.arrivals.refuse(slot, Status::NAMESPACE_NOT_READY),
        }
    }

    /// All data of a command have come: to its room, or as `whole`.
    fn on_data_end(&mut self, slot: u16, is_intact: bool, whole: Option<&[u8]>) {
        let mut arrival = self.arrivals.end(slot);
        if let Some(bytes) = whole.filter(|_| is_intact) {
            if self.write_at_once(slot, &arrival.purpose, bytes) {
                return;
            }
            if let Some(room) = arrival.room() {
                room.as_mut_slice().copy_from_slice(bytes);
            }
        }
        let Arrival { purpose, room, .. } = arrival;
        match purpose {
            Purpose::Refused(status) => self.link.complete(slot, status, 0),
            _ if !is_intact => self
                .link
                .complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0),
            Purpose::Connect(command) => {
                let data = room.expect("no receive is in flight");
                self.server
                    .connect(&self.link, slot, &command, data.as_slice());
            }
            Purpose::Authenticate(command) => {
                let data = room.expect("no receive is in flight");
                self.authenticate(slot, &command, data.as_slice());
            }
            Purpose::Io(order) => self.carry_out(slot, order, room),
        }
    }

    /// Answers a read that has just been looked into, if its disk does that now.
    fn read_at_once(&self, slot: u16, order: &IoOrder) -> bool {
        let IoRequest::Read(blocks) = order.request else {
            return false;
        };
        let Some((desk, geometry)) = self.desk(order) else {
            return false;
        };
        let (offset, len) = range(&geometry, blocks);
        match desk.read_at_once(offset, len) {
            None => return false,
            Some(Ok(found)) => self.link.send_found(slot, found),
            Some(Err(status)) => self.link.complete(slot, status, 0),
        }
        true
    }

    /// Where an order is carried out; none of a Flush for all namespaces.
    fn desk(&self, order: &IoOrder) -> Option<(Rc<Desk>, Geometry)> {
        let attached = self.link.attached.get().expect("commands follow a Connect");
        let subsystem = attached.subsystem.expect("queues for I/O have a subsystem");
        let (nsid, geometry) = order.namespace?;
        Some((self.server.desk(subsystem, nsid), geometry))
    }

    /// Carries a write out from where its data were received, if its disk does that now.
    fn write_at_once(&self, slot: u16, purpose: &Purpose, bytes: &[u8]) -> bool {
        let Purpose::Io(order) = purpose else {
            return false;
        };
        let IoRequest::Write { blocks, .. } = order.request else {
            return false;
        };
        if !self.server.is_current(&self.link, order.resets) {
            return false;
        }
        let Some((desk, geometry)) = self.desk(order) else {
            return false;
        };
        let (offset, len) = range(&geometry, blocks);
        assert_eq!(bytes.len(), len, "all of its data");
        let Some(written) = desk.write_at_once(offset, bytes) else {
            return false;
        };
        let status = written.err().unwrap_or(Status::SUCCESS);
        self.link.complete(slot, status, 0);
        true
    }

    /// Looks into a message by which a host proves itself: beside this core, if that takes long.
    fn authenticate(&self, slot: u16, command: &Command, message: &[u8]) {
        let attached = self.link.attached.get().expect("just seen");
        let (controller, queue_id) = (attached.controller, attached.queue_id);
        let server = &self.server;
        let taken = server.target(|target| target.take_auth(controller, queue_id, command));
        let mut auth = match taken {
            Ok(auth) => auth,
            Err(status) => return self.link.complete(slot, status, 0),
        };
        let entropy = Entropy::draw(lunette_runtime::entropy);
        if !auth.is_costly() {
            auth.on_send(message, &entropy);
            let is_over = server.target(|target| target.give_auth(controller, queue_id, auth));
            self.link.complete(slot, Status::SUCCESS, 0);
            self.link.is_closing.set(is_over);
            return;
        }
        let (server, link) = (Rc::clone(&self.server), Rc::clone(&self.link));
        let message = message.to_vec();
        self.spawn(async move {
            let looked = control(move || {
                auth.on_send(&message, &entropy);
                auth
            });
            match looked.await {
                Ok(auth) => {
                    let is_over =
                        server.target(|target| target.give_auth(controller, queue_id, auth));
                    link.complete(slot, Status::SUCCESS, 0);
                    if is_over {
                        link.outbox.drained_below(0).await;
                        link.close();
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a host cannot prove itself now: the connection ends");
                    link.close();
                }
            }
        });
    }

    /// Carries a command for I/O out, now or in its host's turn, unless its controller has been reset
    /// since it came.
    fn carry_out(&self, slot: u16, order: IoOrder, data: Option<RegionMut>) {
        if !self.server.is_current(&self.link, order.resets) {
            self.link.complete(slot, Status::ABORTED_WITH_QUEUE, 0);
            return;
        }
        let attached = self.link.attached.get().expect("commands follow a Connect");
        let Some((desk, geometry)) = self.desk(&order) else {
            self.flush_all(slot, attached);
            return;
        };
        let work = Work {
            slot,
            request: order.request,
            geometry,
            data,
        };
        desk.take(Job {
            work,
            host: attached.host,
            resets: order.resets,
            link: Rc::clone(&self.link),
            tasks: Rc::downgrade(&self.tasks),
        });
    }

    fn flush_all(&self, slot: u16, attached: Attached) {
        let desks = self.server.desks_of(attached.subsystem);
        let link = Rc::clone(&self.link);
        self.spawn(async move {
            let mut status = Status::SUCCESS;
            for desk in desks {
                status = desk.disk.flush().await.err().unwrap_or(status);
            }
            link.complete(slot, status, 0);
        });
    }

    /// Runs a future as a task that ends with the connection.
    fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        if let Err(error) = self.tasks.spawn(future) {
            tracing::warn!(%error, "no task for a command: the connection ends");
            self.link.close();
        }
    }

    /// Answers a command of the admin queue.
    fn administer(&self, attached: Attached, slot: u16, command: &Command) {
        let server = &self.server;
        let (id, queue_id, now) = (attached.controller, attached.queue_id, time::now());
        let reply = server.target(|target| target.admin(id, queue_id, slot, command, now));
        match reply {
            AdminReply::Abort { queue_id, cid } => {
                server.abort(&self.link, slot, (id, queue_id), cid);
            }
            reply => self.link.reply(slot, reply),
        }
        server.deliver_notices();
        server.look_at_desks();
        server.keeper.raise();
    }

    async fn receive_staged(&mut self) -> Result<(), CloseReason> {
        let staging = self.staging.take().expect("one receive at a time");
        let wire = self.link.wire();
        let len = if wire.is_plain() {
            self.staged_bytes
        } else {
            STAGING_BYTES
        };
        let (result, staging) = wire.recv(&self.link.stream, staging, len).await;
        self.staging = Some(staging);
        let count = self.check(result)?;
        self.unread = 0..count;
        Ok(())
    }

    /// Receives data straight into their room, and what is behind them into staging.
    async fn receive_direct(
        &mut self,
        slot: u16,
        offset: usize,
        len: u32,
    ) -> Result<(), CloseReason> {
        let room = self.arrivals.lend(slot);
        let staging = self.staging.take().expect("one receive at a time");
        let direct = len.min(DIRECT_BYTES_MAX) as usize;
        let is_rest = direct == len as usize;
        let behind = if is_rest { self.staged_bytes } else { 0 };
        let mut list = self.list.take().unwrap_or_else(Scatter::new);
        let fits = "two parts are few";
        list.push(room, offset, direct).expect(fits);
        list.push(staging, 0, behind).expect(fits);
        let (result, mut list) = self.link.stream.recv_list(list).await;
        let mut regions = list.drain_regions();
        let room = regions.next().expect("as they were given");
        self.staging = regions.next();
        drop(regions);
        self.list = Some(list);
        let count = self.check(result.map_err(CloseReason::Io));
        if let Ok(count) = count {
            let placed = count.min(direct);
            let bytes = &room.as_slice()[offset..offset + placed];
            self.link.queue.borrow_mut().on_data(bytes);
            self.unread = 0..count - placed;
        }
        self.arrivals.give(slot, room);
        count.map(drop)
    }

    fn check(&self, result: Result<usize, CloseReason>) -> Result<usize, CloseReason> {
        match result {
            Ok(0) if self.link.queue.borrow().is_between_pdus() => Err(CloseReason::Peer),
            Ok(0) => Err(CloseReason::Wire(WireFault::Truncated)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_nvmeof_proto::command::{Sgl, io};

    use super::*;

    /// A large write followed by reads: their commands come many at a time.
    #[test]
    fn little_is_received_behind_commands_that_bring_large_data_alone() {
        let large = LARGE_BYTES_MIN;
        for (opcode, len_bytes, expected) in [
            (io::WRITE, large, HEADERS_BYTES),
            (io::WRITE, large - 1, STAGING_BYTES),
            (io::READ, large, STAGING_BYTES),
            (io::FLUSH, 0, STAGING_BYTES),
        ] {
            let mut command = Command::new(opcode, 1, [0; 6]);
            command.sgl = match len_bytes {
                0 => Sgl::None,
                len_bytes => Sgl::Transport { len_bytes },
            };
            let behind = staged_bytes_behind(&command);
            assert_eq!(behind, expected, "{opcode} of {len_bytes}");
        }
    }
}
