//! Capabilities: the right of one session to a range of a segment, in a token.
//!
//! The owner of a segment issues the token and is the only one that checks it. It is authenticated
//! under a key that is derived from a secret of the owner's and from the session, so the holder can
//! neither make one nor change one, and on another session it is worth nothing.
//!
//! ```text
//!  0         1        2          8          24      32        40       48      56        88
//!  | version | rights | reserved | session  | epoch | segment | offset | len   | tag     |
//! ```
//!
//! All numbers are little-endian; the tag is HMAC-SHA-256 of the 56 bytes before it. A token holds
//! until its epoch is over: an owner revokes what it granted by going on to its next epoch.

use core::fmt;

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use ring::{hkdf, hmac};
use thiserror::Error;

use crate::session::{Entropy, SessionId};

/// Length of a token, in bytes.
pub const TOKEN_BYTES: usize = 88;
/// What the tag covers.
const SIGNED_BYTES: usize = 56;
const TOKEN_VERSION: u8 = 1;
const LABEL: &[u8] = b"lunette capabilities 1";

/// What a holder may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// To read.
    pub const READ: Self = Self(1);
    /// To write.
    pub const WRITE: Self = Self(2);
    /// Both.
    pub const READ_WRITE: Self = Self(3);

    /// Whether all of `wanted` are among them.
    #[must_use]
    pub const fn allow(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// The rights of this byte: at least one, and none that this version does not know.
    const fn of_byte(byte: u8) -> Option<Self> {
        match byte {
            1..=3 => Some(Self(byte)),
            _ => None,
        }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::READ => "Rights(read)",
            Self::WRITE => "Rights(write)",
            _ => "Rights(read, write)",
        })
    }
}

/// What is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What may be done.
    pub rights: Rights,
    /// The segment, in its owner's count.
    pub segment: u64,
    /// Where the range begins, in bytes from the segment's beginning.
    pub offset_bytes: u64,
    /// Its length in bytes. The range ends within 64 bits.
    pub len_bytes: u64,
}

/// What the holder of a token wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What for.
    pub rights: Rights,
    /// The segment.
    pub segment: u64,
    /// Where, in bytes from the segment's beginning.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
}

/// Why a request is refused. Nothing was touched.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The token is cut off.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// The token is longer than a token, or of a later version, or has no meaning.
    #[error("malformed capability: {field}")]
    Malformed {
        /// What is wrong with it.
        field: &'static str,
    },
    /// It was issued on another session. Ask for one on this.
    #[error("the capability belongs to another session")]
    WrongSession,
    /// This side did not issue it.
    #[error("the capability is forged")]
    Forged,
    /// It was issued in an epoch that is over, and is revoked. Ask for another.
    #[error("the capability is of epoch {epoch}, which is over: it is epoch {current}")]
    StaleEpoch {
        /// Its epoch.
        epoch: u64,
        /// The epoch that it is.
        current: u64,
    },
    /// It does not give that right.
    #[error("the capability gives {granted:?}, not {wanted:?}")]
    Rights {
        /// What it gives.
        granted: Rights,
        /// What was asked.
        wanted: Rights,
    },
    /// It is for another segment.
    #[error("the capability is for segment {granted}, not {wanted}")]
    WrongSegment {
        /// Its segment.
        granted: u64,
        /// The one asked for.
        wanted: u64,
    },
    /// The request begins or ends outside its range, or ends beyond 64 bits.
    #[error("{len_bytes} bytes at {offset_bytes} are outside the capability's range")]
    OutOfRange {
        /// Where the request begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
    },
}

impl Refusal {
    /// Whether a new token, asked for on this session, may be accepted.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::StaleEpoch { .. } | Self::WrongSession)
    }
}

/// A range that ends beyond 64 bits cannot be granted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{len_bytes} bytes at {offset_bytes} end beyond 64 bits")]
pub struct RangeOverflow {
    /// Where the range would begin.
    pub offset_bytes: u64,
    /// How long it would be.
    pub len_bytes: u64,
}

/// A capability that its issuer has verified. It holds on its session, until its epoch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    capability: Capability,
    session: SessionId,
    epoch: u64,
}

impl Verified {
    /// What is granted.
    #[must_use]
    pub const fn capability(&self) -> &Capability {
        &self.capability
    }

    /// The epoch in which it was issued.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Checks that it allows `request` while it is epoch `current`, for an owner whose segments have
    /// epochs of their own and who keeps what was verified by session. It costs a few comparisons.
    ///
    /// # Errors
    /// [`Refusal`], and nothing may be touched.
    pub fn permit(&self, current: u64, request: &Request) -> Result<(), Refusal> {
        check_epoch(self.epoch, current)?;
        self.capability.permit(request)
    }
}

/// What the issuers of one owner are derived from: 32 bytes that only this process knows, drawn once.
/// Not the cluster's secret, which every holder knows too.
pub struct OwnerKey(hkdf::Prk);

impl OwnerKey {
    /// The key of an owner who has drawn these bytes, for this alone.
    #[must_use]
    pub fn new(drawn: &Entropy) -> Self {
        Self::of(&drawn.0)
    }

    fn of(secret: &[u8; 32]) -> Self {
        Self(hkdf::Salt::new(hkdf::HKDF_SHA256, LABEL).extract(secret))
    }

    /// The issuer on `session`, in `epoch`.
    #[must_use]
    pub fn issuer(&self, session: SessionId, epoch: u64) -> Issuer {
        let info = [&session.0[..]];
        let okm = self.0.expand(&info, hmac::HMAC_SHA256);
        let key = okm.expect("a key is far below HKDF's bound").into();
        Issuer {
            key,
            session,
            epoch,
        }
    }
}

impl fmt::Debug for OwnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerKey")
    }
}

/// Issues and checks the capabilities of one session.
pub struct Issuer {
    key: hmac::Key,
    session: SessionId,
    epoch: u64,
}

impl Issuer {
    /// The issuer on `session`. `owner_secret` is 32 bytes that only this process knows, drawn when
    /// it started: not the cluster's secret, which every holder knows too.
    #[must_use]
    pub fn new(owner_secret: &[u8; 32], session: SessionId, epoch: u64) -> Self {
        OwnerKey::of(owner_secret).issuer(session, epoch)
    }

    /// Its epoch: tokens of any other are refused.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Goes on to a later epoch: everything issued until now is revoked.
    ///
    /// # Panics
    /// If `epoch` is not later: what was revoked would hold again.
    pub fn advance(&mut self, epoch: u64) {
        assert!(epoch > self.epoch, "epochs only grow");
        self.epoch = epoch;
    }

    /// The token of a capability, for the peer of this session.
    ///
    /// # Errors
    /// [`RangeOverflow`], the caller's fault.
    pub fn issue(&self, granted: &Capability) -> Result<[u8; TOKEN_BYTES], RangeOverflow> {
        let Capability {
            rights,
            segment,
            offset_bytes,
            len_bytes,
        } = *granted;
        if offset_bytes.checked_add(len_bytes).is_none() {
            return Err(RangeOverflow {
                offset_bytes,
                len_bytes,
            });
        }
        let mut token = Vec::with_capacity(TOKEN_BYTES);
        Writer::new(&mut token)
            .u8(TOKEN_VERSION)
            .u8(rights.0)
            .bytes(&[0; 6])
            .bytes(&self.session.0)
            .u64(self.epoch)
            .u64(segment)
            .u64(offset_bytes)
            .u64(len_bytes);
        assert_eq!(token.len(), SIGNED_BYTES);
        let tag = hmac::sign(&self.key, &token);
        token.extend_from_slice(tag.as_ref());
        Ok(token.try_into().expect("it has its fixed length"))
    }

    /// Checks that this side issued `token` on this session, and in this epoch. It costs a hash: a
    /// token that is used often is verified once, and [`permit`](Self::permit) asked from then on.
    ///
    /// The tag is compared in a time that does not depend on where it differs; what is looked at
    /// before it, version and session, is no secret.
    ///
    /// # Errors
    /// [`Refusal`], and nothing may be touched.
    pub fn verify(&self, token: &[u8]) -> Result<Verified, Refusal> {
        let (session, epoch, capability) = decode(token)?;
        if session != self.session {
            return Err(Refusal::WrongSession);
        }
        let (signed, tag) = token.split_at(SIGNED_BYTES);
        hmac::verify(&self.key, signed, tag).map_err(|_| Refusal::Forged)?;
        let verified = Verified {
            capability,
            session,
            epoch,
        };
        check_epoch(epoch, self.epoch)?;
        Ok(verified)
    }

    /// Checks that a verified capability allows `request`, now. It costs a few comparisons.
    ///
    /// # Errors
    /// [`Refusal`], and nothing may be touched.
    pub fn permit(&self, verified: &Verified, request: &Request) -> Result<(), Refusal> {
        if verified.session != self.session {
            return Err(Refusal::WrongSession);
        }
        verified.permit(self.epoch, request)
    }

    /// Checks that `token` allows `request` on this session, now: both of the above.
    ///
    /// # Errors
    /// [`Refusal`], and nothing may be touched.
    pub fn check(&self, token: &[u8], request: &Request) -> Result<Capability, Refusal> {
        let verified = self.verify(token)?;
        self.permit(&verified, request)?;
        Ok(verified.capability)
    }
}

const fn check_epoch(epoch: u64, current: u64) -> Result<(), Refusal> {
    if epoch == current {
        Ok(())
    } else {
        Err(Refusal::StaleEpoch { epoch, current })
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Issuer({}, epoch {})", self.session, self.epoch)
    }
}

impl Capability {
    /// Whether a request stays within what is granted.
    fn permit(&self, request: &Request) -> Result<(), Refusal> {
        if !self.rights.allow(request.rights) {
            let (granted, wanted) = (self.rights, request.rights);
            return Err(Refusal::Rights { granted, wanted });
        }
        if self.segment != request.segment {
            let (granted, wanted) = (self.segment, request.segment);
            return Err(Refusal::WrongSegment { granted, wanted });
        }
        let Request {
            offset_bytes,
            len_bytes,
            ..
        } = *request;
        let granted_end = self.offset_bytes.checked_add(self.len_bytes);
        let granted_end = granted_end.expect("what was issued ends within 64 bits");
        let ends_within = offset_bytes
            .checked_add(len_bytes)
            .is_some_and(|end| end <= granted_end);
        if offset_bytes < self.offset_bytes || !ends_within {
            return Err(Refusal::OutOfRange {
                offset_bytes,
                len_bytes,
            });
        }
        Ok(())
    }
}

/// The segment that a token names. Nothing of it is verified: an owner whose segments have epochs of
/// their own learns from it which epoch to verify the token in.
///
/// # Errors
/// [`Refusal::Truncated`], [`Refusal::Malformed`].
pub fn named_segment(token: &[u8]) -> Result<u64, Refusal> {
    let (_, _, capability) = decode(token)?;
    Ok(capability.segment)
}

/// What a token says, before anything is believed.
fn decode(token: &[u8]) -> Result<(SessionId, u64, Capability), Refusal> {
    let malformed = |field| Refusal::Malformed { field };
    let mut reader = Reader::new(token);
    if reader.u8()? != TOKEN_VERSION {
        return Err(malformed("version"));
    }
    let rights = reader.u8()?;
    let reserved: [u8; 6] = reader.array()?;
    let session = SessionId(reader.array()?);
    let epoch = reader.u64()?;
    let (segment, offset_bytes, len_bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let _tag: [u8; 32] = reader.array()?;
    if !reader.is_empty() {
        return Err(malformed("length"));
    }
    let rights = Rights::of_byte(rights).ok_or(malformed("rights"))?;
    if reserved != [0; 6] {
        return Err(malformed("reserved"));
    }
    let granted = Capability {
        rights,
        segment,
        offset_bytes,
        len_bytes,
    };
    if offset_bytes.checked_add(len_bytes).is_none() {
        return Err(malformed("range"));
    }
    Ok((session, epoch, granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);
    const GRANTED: Capability = Capability {
        rights: Rights::READ,
        segment: 3,
        offset_bytes: 100,
        len_bytes: 50,
    };

    fn issuer() -> Issuer {
        Issuer::new(&[9; 32], SESSION, 5)
    }

    fn request(offset_bytes: u64, len_bytes: u64) -> Request {
        Request {
            rights: Rights::READ,
            segment: 3,
            offset_bytes,
            len_bytes,
        }
    }

    /// A change here is a change of the wire.
    #[test]
    fn golden_token() {
        let token = issuer().issue(&GRANTED).unwrap();
        let mut expected = vec![1, 1, 0, 0, 0, 0, 0, 0];
        expected.extend([7; 16]);
        for number in [5_u64, 3, 100, 50] {
            expected.extend(number.to_le_bytes());
        }
        assert_eq!(token[..56], expected[..]);
        let tag: String = token[56..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            tag,
            "cbe744a8e422d1aaea15fd001d8034c3b96df9883879552be6f748f88ff996dc"
        );
    }

    #[test]
    fn a_range_is_bounded_on_both_sides() {
        let token = issuer().issue(&GRANTED).unwrap();
        let check = |offset, len| issuer().check(&token, &request(offset, len));
        for (offset, len) in [(100, 50), (100, 0), (150, 0), (149, 1), (120, 10)] {
            assert_eq!(check(offset, len), Ok(GRANTED), "{len} at {offset}");
        }
        for (offset, len) in [
            (99, 1),
            (99, 51),
            (100, 51),
            (150, 1),
            (151, 0),
            (0, u64::MAX),
            (u64::MAX, 1),
            (100, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            let (offset_bytes, len_bytes) = (offset, len);
            let refused = Err(Refusal::OutOfRange {
                offset_bytes,
                len_bytes,
            });
            assert_eq!(check(offset, len), refused, "{len} at {offset}");
        }
    }

    #[test]
    fn each_refusal_has_its_name() {
        let token = issuer().issue(&GRANTED).unwrap();
        let fits = request(100, 1);
        let write = Request {
            rights: Rights::WRITE,
            ..fits
        };
        let both = Request {
            rights: Rights::READ_WRITE,
            ..fits
        };
        let elsewhere = Request { segment: 4, ..fits };
        let check = |issuer: &Issuer, request: &Request| issuer.check(&token, request);
        for wanted in [write, both] {
            let (granted, wanted_rights) = (Rights::READ, wanted.rights);
            let refused = Refusal::Rights {
                granted,
                wanted: wanted_rights,
            };
            assert_eq!(check(&issuer(), &wanted), Err(refused));
        }
        let refused = Refusal::WrongSegment {
            granted: 3,
            wanted: 4,
        };
        assert_eq!(check(&issuer(), &elsewhere), Err(refused));

        let other = Issuer::new(&[9; 32], SessionId([8; 16]), 5);
        assert_eq!(check(&other, &fits), Err(Refusal::WrongSession));
        let stranger = Issuer::new(&[8; 32], SESSION, 5);
        assert_eq!(check(&stranger, &fits), Err(Refusal::Forged));
        let mut later = issuer();
        later.advance(6);
        let stale = Refusal::StaleEpoch {
            epoch: 5,
            current: 6,
        };
        assert_eq!(check(&later, &fits), Err(stale));
        assert!(stale.is_retryable() && !Refusal::Forged.is_retryable());
    }

    /// The session's name is no secret: who puts it into a token of another session gains nothing.
    #[test]
    fn a_token_cannot_be_carried_to_another_session() {
        let mut token = issuer().issue(&GRANTED).unwrap();
        token[8..24].copy_from_slice(&[8; 16]);
        let other = Issuer::new(&[9; 32], SessionId([8; 16]), 5);
        assert_eq!(other.check(&token, &request(100, 1)), Err(Refusal::Forged));
    }

    #[test]
    fn malformed_tokens_are_told_apart() {
        let token = issuer().issue(&GRANTED).unwrap();
        let fits = request(100, 1);
        for len in 0..TOKEN_BYTES {
            let refused = issuer().check(&token[..len], &fits);
            assert!(
                matches!(refused, Err(Refusal::Truncated(_))),
                "{len}: {refused:?}"
            );
        }
        let longer = [&token[..], &[0]].concat();
        let malformed = |field| Err(Refusal::Malformed { field });
        assert_eq!(issuer().check(&longer, &fits), malformed("length"));
        for (at, value, field) in [
            (0, 2, "version"),
            (1, 0, "rights"),
            (1, 4, "rights"),
            (2, 1, "reserved"),
        ] {
            let mut changed = token;
            changed[at] = value;
            assert_eq!(issuer().check(&changed, &fits), malformed(field), "{at}");
        }
        let mut overflowing = token;
        overflowing[48..56].copy_from_slice(&[0xff; 8]);
        assert_eq!(issuer().check(&overflowing, &fits), malformed("range"));
    }

    #[test]
    fn a_range_beyond_64_bits_is_not_granted() {
        let granted = |offset_bytes, len_bytes| Capability {
            offset_bytes,
            len_bytes,
            ..GRANTED
        };
        assert!(issuer().issue(&granted(u64::MAX - 1, 1)).is_ok());
        let (offset_bytes, len_bytes) = (u64::MAX, 1);
        let overflow = RangeOverflow {
            offset_bytes,
            len_bytes,
        };
        assert_eq!(issuer().issue(&granted(u64::MAX, 1)), Err(overflow));
    }

    /// What is asked of a verified capability is what is asked of its token.
    #[test]
    fn a_verified_capability_holds_until_its_epoch_or_session_is_over() {
        let mut issuer = issuer();
        let token = issuer.issue(&GRANTED).unwrap();
        let verified = issuer.verify(&token).unwrap();
        assert_eq!(verified.capability(), &GRANTED);
        assert_eq!(issuer.permit(&verified, &request(100, 50)), Ok(()));
        let (offset_bytes, len_bytes) = (100, 51);
        let refused = Refusal::OutOfRange {
            offset_bytes,
            len_bytes,
        };
        assert_eq!(issuer.permit(&verified, &request(100, 51)), Err(refused));
        let other = Issuer::new(&[9; 32], SessionId([8; 16]), 5);
        let refused = other.permit(&verified, &request(100, 1));
        assert_eq!(refused, Err(Refusal::WrongSession));
        issuer.advance(6);
        let stale = Refusal::StaleEpoch {
            epoch: 5,
            current: 6,
        };
        assert_eq!(issuer.permit(&verified, &request(100, 1)), Err(stale));
        assert_eq!(issuer.verify(&token), Err(stale));
    }

    /// An owner with an epoch per segment asks what was verified, and needs no key for it.
    #[test]
    fn what_was_verified_is_asked_with_the_epoch_that_it_is() {
        let owner = OwnerKey::new(&Entropy::new([9; 32]));
        let token = owner.issuer(SESSION, 5).issue(&GRANTED).unwrap();
        assert_eq!(
            token,
            issuer().issue(&GRANTED).unwrap(),
            "it is the same key"
        );
        assert_eq!(named_segment(&token), Ok(3));
        let verified = issuer().verify(&token).unwrap();
        assert_eq!(verified.epoch(), 5);
        assert_eq!(verified.permit(5, &request(100, 50)), Ok(()));
        let stale = Refusal::StaleEpoch {
            epoch: 5,
            current: 6,
        };
        assert_eq!(verified.permit(6, &request(100, 50)), Err(stale));
        assert!(verified.permit(5, &request(99, 1)).is_err());
        assert!(named_segment(&token[..87]).is_err());
        assert_eq!(format!("{owner:?}"), "OwnerKey", "it is not shown");
    }

    #[test]
    #[should_panic(expected = "epochs only grow")]
    fn epochs_do_not_go_back() {
        issuer().advance(5);
    }
}
