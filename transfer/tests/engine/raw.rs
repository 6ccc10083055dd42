//! An asker without a secret that keeps to the wire's form and to nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_transfer::engine::{Refusal, SegmentId, Way};
use lunette_transfer::{Attachments, CloseReason, Connection, Payload, Room};
use lunette_transfer_proto::engine::message::{Note, Operation, Place, write_note, write_places};
use lunette_transfer_proto::engine::siblings::read_ports;
use lunette_transfer_proto::hello::{Hello, VersionRange};

/// What it writes everywhere.
pub(crate) const WRITTEN: u8 = 9;

/// Its only connection, which ends with it.
pub(crate) struct Raw(Connection);

impl Raw {
    /// One that says it is the engine of that epoch.
    pub(crate) async fn new(address: SocketAddr, epoch: u64) -> Self {
        Self::greeting(address, epoch, &(1_u64 << 60).to_le_bytes()).await
    }

    /// The same, with another greeting than an engine's.
    pub(crate) async fn greeting(address: SocketAddr, epoch: u64, greeting: &[u8]) -> Self {
        let hello = Hello {
            versions: VersionRange::OURS,
            session_epoch: epoch,
            in_flight_max: 8,
            payload_bytes_max: 1 << 20,
            greeting: greeting.to_vec(),
        };
        let connected = Connection::connect(address, hello, Duration::from_secs(5));
        Self(connected.await.expect("connected"))
    }

    async fn ask(
        &self,
        op: Operation,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
    ) -> Option<Refusal> {
        let patience = Duration::from_secs(5);
        let reply = self.0.call(op.to_wire(), body, attachments, patience).await;
        Refusal::from_wire(reply.expect("a reply").status)
    }

    /// Has another connection of its session ended.
    pub(crate) async fn fence(&self, number: u64) -> Option<Refusal> {
        let body = |out: &mut Vec<u8>| out.extend_from_slice(&number.to_le_bytes());
        self.ask(Operation::Fence, body, Attachments::default())
            .await
    }

    pub(crate) async fn notify(&self, id: u64, bytes: &[u8]) -> Option<Refusal> {
        let body = |out: &mut Vec<u8>| write_note(out, Some(Note { id, bytes }));
        self.ask(Operation::Notify, body, Attachments::default())
            .await
    }

    /// What it is told of the other cores.
    pub(crate) async fn ports(&self) -> Vec<u16> {
        let (op, patience) = (Operation::Siblings.to_wire(), Duration::from_secs(5));
        let reply = self.0.call(op, |_| {}, Attachments::default(), patience);
        read_ports(&reply.await.expect("a reply").body).expect("ports")
    }

    /// What the other side said of itself.
    pub(crate) fn greeted(&self) -> &[u8] {
        &self.0.agreement().greeting
    }

    /// Waits until the other side has ended it.
    pub(crate) async fn ended(&self) {
        let reason = self.0.ended().await;
        assert_ne!(reason, CloseReason::Local);
    }

    pub(crate) async fn redeem(&self, token: &[u8]) -> Option<Refusal> {
        let body = |out: &mut Vec<u8>| out.extend_from_slice(token);
        self.ask(Operation::Redeem, body, Attachments::default())
            .await
    }

    pub(crate) async fn reach(
        &self,
        way: Way,
        segment: SegmentId,
        at: u64,
        len: u32,
    ) -> Option<Refusal> {
        let place = Place {
            segment,
            offset_bytes: at,
            len_bytes: len,
        };
        let mut attachments = Attachments::default();
        let len_max = len.max(1) as usize;
        let local = Exposed::map(len_max, HugePages::Never, &mut Vec::new()).expect("memory");
        local.copy_in(0, &vec![WRITTEN; len_max]);
        let local = local.slice(0, len as usize);
        let op = match way {
            Way::Read => {
                attachments.room = Some(Room::exposed(vec![local]));
                Operation::Read
            }
            Way::Write => {
                attachments.payload = Some(Payload::exposed(vec![local]));
                Operation::Write
            }
        };
        let body = |out: &mut Vec<u8>| {
            if way == Way::Write {
                write_note(out, None);
            }
            write_places(out, [place].into_iter());
        };
        self.ask(op, body, attachments).await
    }
}
