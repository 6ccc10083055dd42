//! To empty a member that is to leave.

use std::net::SocketAddr;

use lunette_cluster::proto::map::MapMember;
use lunette_kvstore_proto::asker::PAUSE;
use lunette_kvstore_proto::message::directory::{ChangeMessage, ClockReply, MemberMessage};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::time::Time;

use super::terms::term;
use super::{ClusterClient, calls};
use crate::error::{StoreError, StoreErrorKind};

impl ClusterClient {
    /// Has a member emptied, by its name (`host:port`, as the cluster's map has it): from the next map on it is the home of nothing, and
    /// takes neither new objects nor replicas. Others make copies of what it has, as far as they have room, and it serves that
    /// until they have. Waits until this client knows that map, or until the deadline of operations: a member begins nothing of
    /// it later than that. What is empty already stays so; a member is filled again when it starts anew. Of members that are asked at one
    /// time one stays.
    ///
    /// # Errors
    /// `NoMember`: the map has no such member, or none any more. `LastMember`: all others are emptied already. `TimedOut`: it was not
    /// asked. `Interrupted`: it did not answer, or no such map was made in time; what it had begun may be done within its lease.
    /// `OfAllTenants`: this client is of a tenant other than the default one.
    pub async fn retire(&self, member: SocketAddr) -> Result<(), StoreError> {
        self.check_of_all()?;
        let until = time::now() + self.timeout;
        loop {
            if self
                .member(member)
                .is_none_or(|known| self.is_last(known.id))
            {
                // It, or another, may have joined since this client looked last.
                self.wait_for_map(until).await?;
            }
            let to = self.member(member).map(|member| Seat {
                node: member.id,
                incarnation: member.incarnation,
                core: CoreIndex(0),
            });
            let to = to.ok_or(StoreError::local(StoreErrorKind::NoMember { member }))?;
            if self.is_last(to.node) {
                return Err(StoreError::local(StoreErrorKind::LastMember { member }));
            }
            match self.ask_to_retire((to, member), until).await {
                Ok(Status::Ok) => break,
                Ok(Status::WrongSeat) => {}
                Ok(Status::LastMember) => {
                    return Err(StoreError::at(
                        member,
                        StoreErrorKind::LastMember { member },
                    ));
                }
                Ok(Status::Internal) => {
                    return Err(StoreError::at(member, StoreErrorKind::Interrupted));
                }
                Ok(status) => {
                    return Err(StoreError::at(member, StoreErrorKind::Refused(status)));
                }
                Err(error) => return Err(error),
            }
            // It has left, or has started again since this client looked last.
            self.wait_for_map(until).await.map_err(in_doubt)?;
            time::sleep(PAUSE).await;
        }
        loop {
            let known = self.member(member);
            let known = known.ok_or(StoreError::local(StoreErrorKind::NoMember { member }))?;
            if known.is_draining {
                return Ok(());
            }
            self.wait_for_map(until).await.map_err(in_doubt)?;
            time::sleep(PAUSE).await;
        }
    }

    async fn ask_to_retire(
        &self,
        (to, member): (Seat, SocketAddr),
        until: Time,
    ) -> Result<Status, StoreError> {
        let message = MemberMessage { to };
        let body = |version: FormatVersion, out: &mut Vec<u8>| message.encode(version, out);
        let told = calls::ask_owner(&self.asking, to, Op::Clock, body, None, until).await;
        let told_ns = match told {
            Ok((version, reply)) if reply.status == Status::Ok.code() => {
                let told = ClockReply::decode(version, &reply.body);
                told.map_err(|fault| StoreError::at(member, fault.into()))?
                    .told_ns
            }
            Ok((_, reply)) => return Ok(Status::from_code(reply.status)),
            Err(StoreErrorKind::Refused(status)) => return Ok(status),
            Err(kind) => return Err(StoreError::at(member, kind)),
        };
        let term = term(told_ns, until);
        let message = ChangeMessage { to, term };
        let body = |version: FormatVersion, out: &mut Vec<u8>| message.encode(version, out);
        match calls::ask_owner(&self.asking, to, Op::Retire, body, None, until).await {
            Ok((_, reply)) => Ok(Status::from_code(reply.status)),
            Err(StoreErrorKind::Refused(status)) => Ok(status),
            Err(kind) => Err(in_doubt(StoreError::at(member, kind))),
        }
    }

    /// Whether no other member takes objects, in the map that this client knows.
    fn is_last(&self, node: NodeId) -> bool {
        let map = self.asking.map();
        let mut others = map.members().iter().filter(|other| other.id != node);
        others.all(|other| other.weight() == 0)
    }

    fn member(&self, address: SocketAddr) -> Option<MapMember> {
        let map = self.asking.map();
        let mut members = map.members().iter();
        members.find(|member| member.address == address).cloned()
    }
}

/// Time was over after the member may have been asked.
const fn in_doubt(error: StoreError) -> StoreError {
    match error.kind {
        StoreErrorKind::TimedOut => StoreError {
            kind: StoreErrorKind::Interrupted,
            ..error
        },
        _ => error,
    }
}
