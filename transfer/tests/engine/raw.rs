//! An asker without a secret that keeps to the wire's form and to nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_transfer::engine::{Refusal, SegmentId, Way};
use lunette_transfer::{Attachments, Connection, Payload, Room};
use lunette_transfer_proto::engine::message::{Operation, Place, write_note, write_places};
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
