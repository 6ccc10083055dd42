//! The messages of DH-HMAC-CHAP (NVMe Base 2.0, "DH-HMAC-CHAP Protocol"), little-endian.

use lunette_runtime_core::codec::{Reader, Writer};
use thiserror::Error;

use super::group::Group;
use super::hash::Hash;

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;
const TYPE_COMMON: u8 = 0;
const TYPE_DHCHAP: u8 = 1;
const ID_NEGOTIATE: u8 = 0x00;
const ID_CHALLENGE: u8 = 0x01;
const ID_REPLY: u8 = 0x02;
const ID_SUCCESS1: u8 = 0x03;
const ID_SUCCESS2: u8 = 0x04;
const ID_FAILURE2: u8 = 0xf0;
const ID_FAILURE1: u8 = 0xf1;
/// The protocol, in a negotiation.
const PROTOCOL_DHCHAP: u8 = 1;
/// Ids of one kind in a protocol's descriptor at most, and their room.
const IDS_MAX: usize = 30;
const DESCRIPTOR_BYTES: usize = 64;

/// Why an authentication ends, as either end tells the other (NVMe Base 2.0, "AUTH_Failure").
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// What was to be proved was not.
    #[error("the proof does not hold")]
    Failed,
    /// No protocol is known to both.
    #[error("no authentication protocol in common")]
    Protocol,
    /// One wants the connection to be encrypted, the other does not.
    #[error("no agreement on an encrypted connection")]
    Concatenation,
    /// No hash is known to both.
    #[error("no hash in common")]
    Hash,
    /// No group is known to both.
    #[error("no Diffie-Hellman group in common")]
    Group,
    /// A message's content makes no sense.
    #[error("a message makes no sense")]
    Payload,
    /// A message came out of turn.
    #[error("a message out of turn")]
    Message,
    /// Another one.
    #[error("reason {0:#04x}")]
    Other(u8),
}

impl Reason {
    const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Protocol => 2,
            Self::Concatenation => 3,
            Self::Hash => 4,
            Self::Group => 5,
            Self::Payload => 6,
            Self::Message => 7,
            Self::Other(code) => code,
        }
    }

    const fn of(code: u8) -> Self {
        match code {
            1 => Self::Failed,
            2 => Self::Protocol,
            3 => Self::Concatenation,
            4 => Self::Hash,
            5 => Self::Group,
            6 => Self::Payload,
            7 => Self::Message,
            code => Self::Other(code),
        }
    }
}

/// A challenge to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// What proofs are made with.
    pub hash: Hash,
    /// What is agreed on beside.
    pub group: Group,
    /// Number of the challenge.
    pub sequence: u32,
    /// As long as a hash.
    pub value: Vec<u8>,
    /// The controller's public number, as long as the group's.
    pub public: Vec<u8>,
}

/// The host's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its proof.
    pub proof: Vec<u8>,
    /// A challenge to the controller, as long as a hash.
    pub challenge: Option<Vec<u8>>,
    /// The number of that challenge.
    pub sequence: u32,
    /// The host's public number.
    pub public: Vec<u8>,
}

/// A message, without the id of its transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The host says what it can do.
    Negotiate {
        /// It wants the connection to be encrypted with what comes of this.
        wants_secure_channel: bool,
        /// It knows this protocol.
        has_protocol: bool,
        /// Hashes that it knows.
        hashes: Vec<Hash>,
        /// Groups that it knows.
        groups: Vec<Group>,
    },
    /// The controller's challenge.
    Challenge(Challenge),
    /// The host's answer.
    Reply(Reply),
    /// The host has proved its secret; the controller's own proof, if it was asked for.
    Success1(Option<Vec<u8>>),
    /// The controller has, too.
    Success2,
    /// The controller ends it.
    Failure1(Reason),
    /// The host ends it.
    Failure2(Reason),
}

fn ids<T>(bytes: &[u8], of: impl Fn(u8) -> Option<T>) -> Vec<T> {
    bytes.iter().filter_map(|&id| of(id)).collect()
}

fn len<T: TryFrom<usize>>(bytes: &[u8]) -> T {
    T::try_from(bytes.len()).unwrap_or_else(|_| unreachable!("messages are short"))
}

impl Message {
    const fn id(&self) -> (u8, u8) {
        match self {
            Self::Negotiate { .. } => (TYPE_COMMON, ID_NEGOTIATE),
            Self::Challenge(_) => (TYPE_DHCHAP, ID_CHALLENGE),
            Self::Reply(_) => (TYPE_DHCHAP, ID_REPLY),
            Self::Success1(_) => (TYPE_DHCHAP, ID_SUCCESS1),
            Self::Success2 => (TYPE_DHCHAP, ID_SUCCESS2),
            Self::Failure1(_) => (TYPE_COMMON, ID_FAILURE1),
            Self::Failure2(_) => (TYPE_COMMON, ID_FAILURE2),
        }
    }

    /// As bytes. `hash_bytes` is the length of the hash that was agreed on.
    #[must_use]
    pub fn encode(&self, transaction: u16, hash_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let (kind, id) = self.id();
        let mut writer = Writer::new(&mut out);
        let writer = writer.u8(kind).u8(id).u16(0).u16(transaction);
        match self {
            Self::Negotiate {
                wants_secure_channel,
                hashes,
                groups,
                ..
            } => {
                let hashes: Vec<u8> = hashes.iter().map(|hash| hash.id()).collect();
                let groups: Vec<u8> = groups.iter().map(|group| group.id()).collect();
                writer.u8(u8::from(*wants_secure_channel)).u8(1);
                writer.u8(PROTOCOL_DHCHAP).u8(0);
                writer.u8(len(&hashes)).u8(len(&groups));
                for mut ids in [hashes, groups] {
                    ids.resize(IDS_MAX, 0);
                    writer.bytes(&ids);
                }
            }
            Self::Challenge(challenge) => {
                let (hash, group) = (challenge.hash.id(), challenge.group.id());
                writer.u8(len(&challenge.value)).u8(0).u8(hash).u8(group);
                writer.u16(len(&challenge.public)).u32(challenge.sequence);
                writer.bytes(&challenge.value).bytes(&challenge.public);
            }
            Self::Reply(reply) => {
                writer.u8(len(&reply.proof)).u8(0);
                writer.u8(u8::from(reply.challenge.is_some())).u8(0);
                writer.u16(len(&reply.public)).u32(reply.sequence);
                let unasked = vec![0; reply.proof.len()];
                let challenge = reply.challenge.as_ref().unwrap_or(&unasked);
                writer.bytes(&reply.proof).bytes(challenge);
                writer.bytes(&reply.public);
            }
            Self::Success1(proof) => {
                let hash_bytes = u8::try_from(hash_bytes).expect("hashes are short");
                writer.u8(hash_bytes).u8(0).u8(u8::from(proof.is_some()));
                writer.bytes(&[0; 7]);
                writer.bytes(proof.as_deref().unwrap_or_default());
            }
            Self::Success2 => {
                writer.bytes(&[0; 10]);
            }
            Self::Failure1(reason) | Self::Failure2(reason) => {
                writer.u8(1).u8(reason.code());
            }
        }
        out
    }

    /// Reads one, and the id of its transaction. Zeroes behind it do not matter: controllers fill
    /// what was asked for.
    ///
    /// # Errors
    /// [`Reason::Message`] if it is none of these messages, [`Reason::Payload`] if its content makes
    /// no sense.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self), Reason> {
        let mut reader = Reader::new(bytes);
        let payload = |_| Reason::Payload;
        let kind = (reader.u8().map_err(payload)?, reader.u8().map_err(payload)?);
        reader.u16().map_err(payload)?;
        let transaction = reader.u16().map_err(payload)?;
        let message = match kind {
            (TYPE_COMMON, ID_NEGOTIATE) => negotiate(&mut reader),
            (TYPE_DHCHAP, ID_CHALLENGE) => challenge(&mut reader),
            (TYPE_DHCHAP, ID_REPLY) => reply(&mut reader),
            (TYPE_DHCHAP, ID_SUCCESS1) => success1(&mut reader),
            (TYPE_DHCHAP, ID_SUCCESS2) => Some(Self::Success2),
            (TYPE_COMMON, ID_FAILURE1) => failure(&mut reader).map(Self::Failure1),
            (TYPE_COMMON, ID_FAILURE2) => failure(&mut reader).map(Self::Failure2),
            _ => return Err(Reason::Message),
        };
        Ok((transaction, message.ok_or(Reason::Payload)?))
    }
}

fn negotiate(reader: &mut Reader<'_>) -> Option<Message> {
    let wants_secure_channel = reader.u8().ok()? != 0;
    let protocols = reader.u8().ok()?;
    let mut message = Message::Negotiate {
        wants_secure_channel,
        has_protocol: false,
        hashes: Vec::new(),
        groups: Vec::new(),
    };
    for _ in 0..protocols {
        let descriptor: [u8; DESCRIPTOR_BYTES] = reader.array().ok()?;
        let [protocol, _, hashes, groups, ids @ ..] = descriptor;
        let (hash_ids, group_ids) = ids.split_at(IDS_MAX);
        let hash_ids = hash_ids.get(..usize::from(hashes))?;
        let group_ids = group_ids.get(..usize::from(groups))?;
        if let Message::Negotiate {
            has_protocol,
            hashes,
            groups,
            ..
        } = &mut message
            && protocol == PROTOCOL_DHCHAP
            && !*has_protocol
        {
            *has_protocol = true;
            *hashes = self::ids(hash_ids, Hash::of);
            *groups = self::ids(group_ids, Group::of);
        }
    }
    Some(message)
}

fn challenge(reader: &mut Reader<'_>) -> Option<Message> {
    let hash_bytes = reader.u8().ok()?;
    reader.u8().ok()?;
    let hash = Hash::of(reader.u8().ok()?)?;
    let group = Group::of(reader.u8().ok()?)?;
    let public_bytes = usize::from(reader.u16().ok()?);
    let sequence = reader.u32().ok()?;
    let fits = usize::from(hash_bytes) == hash.len_bytes() && public_bytes == group.len_bytes();
    fits.then_some(())?;
    Some(Message::Challenge(Challenge {
        hash,
        group,
        sequence,
        value: reader.bytes(hash.len_bytes()).ok()?.to_vec(),
        public: reader.bytes(public_bytes).ok()?.to_vec(),
    }))
}

fn reply(reader: &mut Reader<'_>) -> Option<Message> {
    let hash_bytes = usize::from(reader.u8().ok()?);
    reader.u8().ok()?;
    let has_challenge = reader.u8().ok()? & 1 != 0;
    reader.u8().ok()?;
    let public_bytes = usize::from(reader.u16().ok()?);
    let sequence = reader.u32().ok()?;
    let proof = reader.bytes(hash_bytes).ok()?.to_vec();
    let challenge = reader.bytes(hash_bytes).ok()?.to_vec();
    Some(Message::Reply(Reply {
        proof,
        challenge: has_challenge.then_some(challenge),
        sequence,
        public: reader.bytes(public_bytes).ok()?.to_vec(),
    }))
}

fn success1(reader: &mut Reader<'_>) -> Option<Message> {
    let hash_bytes = usize::from(reader.u8().ok()?);
    reader.u8().ok()?;
    let has_proof = reader.u8().ok()? & 1 != 0;
    reader.bytes(7).ok()?;
    let proof = has_proof.then(|| reader.bytes(hash_bytes).ok().map(<[u8]>::to_vec));
    Some(Message::Success1(match proof {
        Some(proof) => Some(proof?),
        None => None,
    }))
}

fn failure(reader: &mut Reader<'_>) -> Option<Reason> {
    reader.u8().ok()?;
    Some(Reason::of(reader.u8().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let challenge = |hash: Hash, group: Group| {
            Message::Challenge(Challenge {
                hash,
                group,
                sequence: 0x0403_0201,
                value: vec![7; hash.len_bytes()],
                public: vec![9; group.len_bytes()],
            })
        };
        let reply = |challenge| {
            Message::Reply(Reply {
                proof: vec![1; 48],
                challenge,
                sequence: 5,
                public: vec![3; 256],
            })
        };
        let mut messages = vec![
            Message::Negotiate {
                wants_secure_channel: false,
                has_protocol: true,
                hashes: Hash::ALL.to_vec(),
                groups: Group::ALL.to_vec(),
            },
            challenge(Hash::Sha256, Group::Null),
            challenge(Hash::Sha512, Group::Ffdhe8192),
            reply(None),
            reply(Some(vec![2; 48])),
            Message::Success1(None),
            Message::Success1(Some(vec![4; 32])),
            Message::Success2,
        ];
        for code in 0..9 {
            messages.push(Message::Failure1(Reason::of(code)));
            messages.push(Message::Failure2(Reason::of(code)));
        }
        messages
    }

    #[test]
    fn messages_come_back_and_are_short_by_no_byte() {
        for message in messages() {
            let bytes = message.encode(0x1234, 32);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::decode(&bytes), Ok((0x1234, message.clone())));
            let padded = [&bytes[..], &[0; 64]].concat();
            assert_eq!(Message::decode(&padded), Ok((0x1234, message.clone())));
            let needed = if message == Message::Success2 {
                6
            } else {
                bytes.len()
            };
            for len in 0..needed {
                let cut = Message::decode(&bytes[..len]).map(drop);
                assert_eq!(cut, Err(Reason::Payload), "{message:?} of {len} bytes");
            }
        }
    }

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        let [negotiate, challenge, ..] = &messages()[..] else {
            unreachable!("there are more")
        };
        let bytes = negotiate.encode(0x0201, 0);
        assert_eq!(bytes.len(), 8 + 64);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 1, 2, 0, 1, 1, 0, 3, 6]);
        assert_eq!(bytes[12..16], [1, 2, 3, 0]);
        assert_eq!(bytes[42..49], [0, 1, 2, 3, 4, 5, 0]);
        let bytes = challenge.encode(0x0201, 0);
        assert_eq!(
            bytes[..16],
            [1, 1, 0, 0, 1, 2, 32, 0, 1, 0, 0, 0, 1, 2, 3, 4]
        );
        assert_eq!(bytes.len(), 16 + 32);
        let failure = Message::Failure1(Reason::Hash).encode(1, 0);
        assert_eq!(failure, [0, 0xf1, 0, 0, 1, 0, 1, 4]);
        assert_eq!(Message::Success2.encode(1, 0).len(), 16);
        assert_eq!(
            Message::Success1(Some(vec![4; 32])).encode(1, 32)[6..9],
            [32, 0, 1]
        );
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let [negotiate, challenge, ..] = &messages()[..] else {
            unreachable!("there are more")
        };
        for (message, at, value) in [
            (negotiate, 7, 2),
            (negotiate, 10, 31),
            (negotiate, 11, 31),
            (challenge, 6, 31),
            (challenge, 8, 0),
            (challenge, 9, 6),
            (challenge, 10, 1),
        ] {
            let mut bytes = message.encode(1, 32);
            bytes[at] = value;
            assert_eq!(Message::decode(&bytes), Err(Reason::Payload), "{at}");
        }
        let unknown = Message::decode(&[1, 0x77, 0, 0, 1, 0, 0, 0]);
        assert_eq!(unknown, Err(Reason::Message));
    }
}
