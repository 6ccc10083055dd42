//! Who is at the other end of a connection, and what it may touch.
//!
//! Both sides prove that they know the cluster's secret before any other byte is read; then they
//! share a [`Session`], to which sealed records and capabilities are bound. Everything here is
//! sans-IO: bytes, points in time and randomness come in, bytes go out. The cryptography is that of
//! `snow` (the Noise protocol framework) and `ring`; this package only puts them in order.
//!
//! ```text
//!   initiator                                     responder (knows one or two secrets)
//!      | --- hello:   e, epoch, wishes   ------------> |  opens under the first or second secret
//!      | <-- reply:   e, ee, epoch, wishes ----------- |
//!      | --- confirm: proof of the fresh key --------> |  a replayed hello cannot give it
//!      | === records (sealed, if a side wants it) ==== |
//! ```
//!
//! It leaves out sockets, clocks, random sources and files: who loads the secret, who listens and
//! what a segment is are the business of the layers above. There are no identities below the
//! cluster's: whoever knows the secret is a member.
//!
//! | module | subject |
//! |---|---|
//! | [`secret`] | [`Secrets`]: the file of one or two secrets, their checks |
//! | [`policy`] | [`Policy`]: who may listen where, from the settings alone |
//! | [`handshake`] | [`Handshake`]: both sides of the authentication |
//! | [`session`] | [`Session`]: what both sides know afterwards |
//! | [`record`] | [`Sealer`], [`Opener`]: encrypted records, in place |
//! | [`capability`] | [`Capability`], [`Issuer`]: rights to a range of a segment |
//!
//! ```
//! use lunette_auth::{Encryption, Entropy, Handshake, Party, Progress, Secrets};
//! use lunette_runtime_core::time::Time;
//!
//! let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef").unwrap();
//! let party = Party { epoch: 1, encryption: Encryption::Required };
//! // Real entropy comes from the system, and deadlines from the clock.
//! let draw = |byte| Entropy::new([byte; 32]);
//! let mut client = Handshake::initiator(&secrets, party, draw(1), Time::MAX);
//! let mut server = Handshake::responder(&secrets, party, draw(2), Time::MAX);
//!
//! let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
//! client.start(&mut to_server);
//! let mut input = &to_server[..];
//! assert!(matches!(server.handle(&mut input, &mut to_client), Progress::NeedMore));
//! to_server.clear();
//! let Progress::Done(ours) = client.handle(&mut &to_client[..], &mut to_server) else {
//!     panic!("the secret is the same");
//! };
//! // From here on the client may send; its proof goes first.
//! let Progress::Done(theirs) = server.handle(&mut &to_server[..], &mut Vec::new()) else {
//!     panic!("the proof is right");
//! };
//! assert_eq!(ours.session.id, theirs.session.id);
//!
//! let (mut sealer, mut opener) = (ours.records.unwrap().0, theirs.records.unwrap().1);
//! let mut bytes = b"payload".to_vec();
//! let (header, tag) = sealer.seal_in_place(&mut bytes).unwrap();
//! bytes.extend(tag);
//! assert_eq!(opener.open_in_place(&header, &mut bytes).unwrap(), b"payload");
//! ```
#![forbid(unsafe_code)]

pub mod capability;
pub mod handshake;
mod keys;
mod message;
mod noise;
pub mod policy;
pub mod record;
pub mod secret;
pub mod session;

pub use capability::{Capability, Issuer, OwnerKey, Refusal, Request, Rights, Verified};
pub use handshake::{AuthFault, Established, Handshake, Progress};
pub use policy::Policy;
pub use record::{Opener, RecordFault, Sealer};
pub use secret::Secrets;
pub use session::{Encryption, Entropy, Party, Session, SessionId};
