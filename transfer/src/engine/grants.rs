//! What an engine grants, and what the sessions of its peers have redeemed.
//!
//! A segment that is registered [`by_capability`](RegisterOptions::by_capability) is reached by those
//! alone who hold a capability for it. Its owner makes a [`Token`] for one engine, by that engine's
//! session epoch, and its program hands it over by whatever way it likes; the other presents it once,
//! and from then on each access of its session is compared with what was granted.
//!
//! ```text
//!   owner                                         holder
//!     | Engine::grant -> Token  ----(programs)----> |  Peer::redeem
//!     | <------------------------- Redeem(token) -- |
//!     |   verified (a hash), kept by session        |
//!     | <------------------------- Read, Write ---- |
//!     |   compared: segment, epoch, rights, range   |
//!     | Engine::revoke: the segment's next epoch    |
//! ```
//!
//! The tokens themselves are [`lunette_auth::capability`]'s.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use lunette_auth::capability::{self, named_segment};
use lunette_auth::{Capability, Entropy, OwnerKey, Request, Rights, SessionId, Verified};
use lunette_runtime::entropy;
use lunette_transfer_proto::engine::message::{Descriptor, TOKEN_BYTES};
use lunette_transfer_proto::engine::segment::{Access, SegmentId, Way};
use thiserror::Error;

use super::sessions::Link;
use super::{Engine, Inner, Refusal};

/// Capabilities that an engine remembers of one session, which ends with its last connection. More are
/// refused as [`Refusal::Busy`]; those that are revoked do not count.
pub const GRANTS_MAX: usize = 256;

const _: () = assert!(TOKEN_BYTES == capability::TOKEN_BYTES);

/// A capability on its way from its owner to its holder: plain bytes, worth nothing to any other engine
/// than the one that it was made for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// The token of these bytes. Whether they are one is the owner's to say.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to hand over.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why nothing was granted: always the caller's fault.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GrantError {
    /// There is no such segment.
    #[error("no such segment")]
    NoSegment,
    /// The segment is open to every peer, and nobody would present a capability.
    #[error("the segment was not registered by capability")]
    Open,
    /// The segment itself does not allow so much.
    #[error("the segment does not allow {0:?}")]
    Forbidden(Rights),
    /// The range is empty, or does not lie in the segment.
    #[error("{start}..{end} is empty or not in a segment of {segment_bytes} bytes")]
    OutOfRange {
        /// Where the range begins.
        start: u64,
        /// Where it ends.
        end: u64,
        /// The segment's length.
        segment_bytes: u64,
    },
}

impl Engine {
    /// Grants `rights` to bytes `range` of a segment to the engine whose session epoch is `holder`:
    /// that engine reaches them when it has [redeemed](super::Peer::redeem) the token, until the segment
    /// is unregistered or [revoked](Self::revoke) or its session epoch is over. An access has to lie in
    /// one granted range as a whole.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn grant(
        &self,
        segment: SegmentId,
        holder: u64,
        rights: Rights,
        range: Range<u64>,
    ) -> Result<Token, GrantError> {
        self.inner.grant(segment, holder, rights, range)
    }

    /// Revokes all that was granted for a segment so far, whoever has redeemed it: from now on no access
    /// begins by it. Accesses that have begun finish; to wait for those, [`unregister`](Self::unregister)
    /// the segment. What is granted afterwards holds. False if there is no such segment, or if it was not
    /// registered by capability.
    #[must_use]
    pub fn revoke(&self, segment: SegmentId) -> bool {
        self.inner.registry.borrow().revoke(segment)
    }
}

impl Inner {
    /// See [`Engine::grant`].
    pub(super) fn grant(
        &self,
        segment: SegmentId,
        holder: u64,
        rights: Rights,
        range: Range<u64>,
    ) -> Result<Token, GrantError> {
        let registry = self.registry.borrow();
        let what = registry.descriptor(segment);
        let what = what.ok_or(GrantError::NoSegment)?;
        let epoch = registry.capability_epoch(segment).ok_or(GrantError::Open)?;
        let wanted = access(rights);
        if what.access.and(wanted) != Some(wanted) {
            return Err(GrantError::Forbidden(rights));
        }
        let Range { start, end } = range;
        if start >= end || end > what.len_bytes {
            let segment_bytes = what.len_bytes;
            return Err(GrantError::OutOfRange {
                start,
                end,
                segment_bytes,
            });
        }
        let issuer = self.alive.siblings().owner_key.get_or_init(draw_key);
        let issuer = issuer.issuer(session(self.epoch, holder), epoch);
        let token = issuer.issue(&Capability {
            rights,
            segment: segment.to_wire(),
            offset_bytes: start,
            len_bytes: end - start,
        });
        Ok(Token(token.expect("it ends within the segment")))
    }

    /// Lets the session of a connection do what a token grants, and says what that is.
    pub(super) fn redeem(&self, link: Link, token: &[u8]) -> Result<Descriptor, Refusal> {
        let mut sessions = self.sessions.borrow_mut();
        let (holder, grants) = sessions.grants(link).ok_or(Refusal::Session)?;
        let id = SegmentId::from_wire(named_segment(token).map_err(refusal)?);
        let key = self
            .alive
            .siblings()
            .owner_key
            .get()
            .ok_or(Refusal::BadCapability)?;
        let registry = self.registry.borrow();
        let epoch = registry.capability_epoch(id).ok_or(Refusal::Stale)?;
        let issuer = key.issuer(session(self.epoch, holder), epoch);
        let verified = issuer.verify(token).map_err(refusal)?;
        let is_live = |grant: &Verified| {
            let id = SegmentId::from_wire(grant.capability().segment);
            registry.capability_epoch(id) == Some(grant.epoch())
        };
        grants.add(verified, is_live)?;
        let Capability {
            rights,
            offset_bytes,
            len_bytes,
            ..
        } = *verified.capability();
        Ok(Descriptor {
            segment: id,
            len_bytes: offset_bytes + len_bytes,
            start: 0,
            access: access(rights),
            kind: registry.kind(id).ok_or(Refusal::Stale)?,
        })
    }
}

/// What one session has redeemed. What was revoked since is among it, and allows nothing.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_segment: BTreeMap<u64, Vec<Verified>>,
    count: usize,
}

impl Grants {
    /// Remembers a capability, unless it is known already. At the bound, what is not alive makes room.
    pub(super) fn add(
        &mut self,
        verified: Verified,
        is_live: impl Fn(&Verified) -> bool,
    ) -> Result<(), Refusal> {
        let segment = verified.capability().segment;
        let held = self.by_segment.get(&segment);
        if held.is_some_and(|held| held.contains(&verified)) {
            return Ok(());
        }
        if self.count >= GRANTS_MAX {
            self.by_segment.retain(|_, held| {
                held.retain(&is_live);
                !held.is_empty()
            });
            self.count = self.by_segment.values().map(Vec::len).sum();
        }
        if self.count >= GRANTS_MAX {
            return Err(Refusal::Busy);
        }
        self.by_segment.entry(segment).or_default().push(verified);
        self.count += 1;
        Ok(())
    }

    /// Whether one of them allows an access while it is the segment's epoch `current`. If none does, the
    /// refusal is that of the one that came nearest.
    pub(super) fn permit(&self, wanted: &Request, current: u64) -> Result<(), Refusal> {
        let mut nearest = Refusal::NoCapability;
        for grant in self.by_segment.get(&wanted.segment).into_iter().flatten() {
            match grant.permit(current, wanted).map_err(refusal) {
                Ok(()) => return Ok(()),
                Err(refused) if nearness(refused) > nearness(nearest) => nearest = refused,
                Err(_) => {}
            }
        }
        Err(nearest)
    }
}

/// How far a refused access came.
const fn nearness(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::OutOfRange => 3,
        Refusal::Forbidden => 2,
        Refusal::Revoked => 1,
        _ => 0,
    }
}

/// An access, as capabilities see it.
pub(super) const fn request(id: SegmentId, way: Way, offset_bytes: u64, len_bytes: u64) -> Request {
    Request {
        rights: match way {
            Way::Read => Rights::READ,
            Way::Write => Rights::WRITE,
        },
        segment: id.to_wire(),
        offset_bytes,
        len_bytes,
    }
}

const fn access(rights: Rights) -> Access {
    match (rights.allow(Rights::READ), rights.allow(Rights::WRITE)) {
        (true, true) => Access::ReadWrite,
        (true, false) => Access::Read,
        (false, _) => Access::Write,
    }
}

const fn refusal(refused: capability::Refusal) -> Refusal {
    use capability::Refusal as Of;
    match refused {
        Of::Truncated(_) | Of::Malformed { .. } => Refusal::Malformed,
        Of::WrongSession | Of::Forged => Refusal::BadCapability,
        Of::StaleEpoch { .. } => Refusal::Revoked,
        Of::Rights { .. } => Refusal::Forbidden,
        Of::WrongSegment { .. } => Refusal::NoCapability,
        Of::OutOfRange { .. } => Refusal::OutOfRange,
    }
}

/// The session of two engines, whatever connections they have.
fn session(owner: u64, holder: u64) -> SessionId {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&owner.to_le_bytes());
    name[8..].copy_from_slice(&holder.to_le_bytes());
    SessionId(name)
}

fn draw_key() -> OwnerKey {
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = entropy().to_le_bytes();
    }
    OwnerKey::new(&Entropy::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 5;

    fn verified(segment: u64, rights: Rights, range: Range<u64>, epoch: u64) -> Verified {
        let key = OwnerKey::new(&Entropy::new([1; 32]));
        let issuer = key.issuer(session(1, 2), epoch);
        let token = issuer.issue(&Capability {
            rights,
            segment,
            offset_bytes: range.start,
            len_bytes: range.end - range.start,
        });
        issuer.verify(&token.unwrap()).unwrap()
    }

    #[test]
    fn a_session_remembers_so_many_and_what_is_dead_makes_room() {
        let mut grants = Grants::default();
        let everything_lives = |_: &Verified| true;
        let grant = |segment| verified(segment, Rights::READ, 0..10, EPOCH);
        for segment in 0..GRANTS_MAX as u64 {
            assert_eq!(grants.add(grant(segment), everything_lives), Ok(()));
        }
        let one_more = grant(GRANTS_MAX as u64);
        let refused = grants.add(one_more, everything_lives);
        assert_eq!(refused, Err(Refusal::Busy));
        assert_eq!(grants.add(grant(0), everything_lives), Ok(()), "known");
        let is_live = |grant: &Verified| grant.capability().segment != 7;
        assert_eq!(grants.add(one_more, is_live), Ok(()));
        assert_eq!(grants.count, GRANTS_MAX);
        let read = |segment| Request {
            segment,
            ..request(SegmentId::from_wire(0), Way::Read, 0, 10)
        };
        let gone = grants.permit(&read(7), EPOCH);
        assert_eq!(gone, Err(Refusal::NoCapability));
        assert_eq!(grants.permit(&read(GRANTS_MAX as u64), EPOCH), Ok(()));
    }

    #[test]
    fn any_of_several_allows_and_the_nearest_refuses() {
        let mut grants = Grants::default();
        let id = SegmentId::from_wire(3);
        let permit = |grants: &Grants, way, offset, len| {
            grants.permit(&request(id, way, offset, len), EPOCH)
        };
        let read = |grants: &Grants, offset, len| permit(grants, Way::Read, offset, len);
        let add = |grants: &mut Grants, rights, range, epoch| {
            let verified = verified(3, rights, range, epoch);
            grants.add(verified, |_| true).unwrap();
        };
        assert_eq!(read(&grants, 0, 1), Err(Refusal::NoCapability));
        add(&mut grants, Rights::READ_WRITE, 0..100, EPOCH - 1);
        assert_eq!(read(&grants, 0, 1), Err(Refusal::Revoked));
        add(&mut grants, Rights::WRITE, 10..20, EPOCH);
        assert_eq!(read(&grants, 10, 1), Err(Refusal::Forbidden));
        add(&mut grants, Rights::READ, 20..30, EPOCH);
        assert_eq!(read(&grants, 20, 10), Ok(()));
        assert_eq!(permit(&grants, Way::Write, 10, 10), Ok(()));
        for (offset, len) in [(19, 1), (20, 11), (30, 1), (u64::MAX, 2)] {
            assert_eq!(read(&grants, offset, len), Err(Refusal::OutOfRange));
        }
        let both = permit(&grants, Way::Write, 15, 10);
        assert_eq!(both, Err(Refusal::OutOfRange), "not within one of them");
    }

    #[test]
    fn the_session_of_two_engines_has_a_direction() {
        assert_ne!(session(1, 2), session(2, 1));
        assert_ne!(session(1, 2), session(1, 3));
    }

    #[test]
    fn tokens_do_not_show_themselves() {
        assert_eq!(
            format!("{:?}", Token::from_bytes([7; TOKEN_BYTES])),
            "Token"
        );
    }
}
