//! Handshakes with any bytes, cut anywhere: two sides agree on everything or one of them refuses.

use lunette_auth::handshake::{AuthFault, FRAME_BYTES_MAX};
use lunette_auth::{Encryption, Entropy, Handshake, Party, Progress, Secrets, Session};
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;

fn secrets(names: &[u8]) -> Secrets {
    let lines: Vec<_> = names.iter().map(|&name| vec![name; 32]).collect();
    Secrets::parse(&lines.join(&b'\n')).expect("they are long enough")
}

fn wish(is_required: bool) -> Encryption {
    if is_required {
        Encryption::Required
    } else {
        Encryption::Optional
    }
}

/// Carries `bytes` to `side` in pieces of the given lengths.
fn give(
    side: &mut Handshake,
    mut bytes: &[u8],
    cuts: &[usize],
) -> (Vec<u8>, Option<Result<Session, AuthFault>>) {
    let mut out = Vec::new();
    let mut cuts = cuts.iter().cycle();
    while !bytes.is_empty() {
        let len = (*cuts.next().expect("cuts repeat")).min(bytes.len());
        let (piece, rest) = bytes.split_at(len);
        bytes = rest;
        match side.handle(&mut &piece[..], &mut out) {
            Progress::NeedMore => {}
            Progress::Done(established) => {
                let expected = established.session.is_encrypted();
                assert_eq!(established.records.is_some(), expected);
                return (out, Some(Ok(established.session)));
            }
            Progress::Failed(fault) => return (out, Some(Err(fault))),
        }
    }
    (out, None)
}

proptest! {
    #[test]
    fn two_sides_with_a_common_secret_agree(
        ours in prop::sample::subsequence(vec![b'a', b'b'], 1..=2).prop_shuffle(),
        theirs in prop::sample::subsequence(vec![b'a', b'b'], 1..=2).prop_shuffle(),
        (wishes, wished) in any::<(bool, bool)>(),
        epochs in any::<(u64, u64)>(),
        seeds in any::<([u8; 32], [u8; 32])>(),
        cuts in vec(1_usize..90, 1..4),
    ) {
        let our_party = Party { epoch: epochs.0, encryption: wish(wishes) };
        let their_party = Party { epoch: epochs.1, encryption: wish(wished) };
        let mut initiator = Handshake::initiator(&secrets(&ours), our_party, Entropy::new(seeds.0), Time::MAX);
        let mut responder = Handshake::responder(&secrets(&theirs), their_party, Entropy::new(seeds.1), Time::MAX);
        let mut hello = Vec::new();
        initiator.start(&mut hello);
        let (reply, heard) = give(&mut responder, &hello, &cuts);
        let (confirm, session) = give(&mut initiator, &reply, &cuts);
        if theirs.contains(&ours[0]) {
            let session = session.unwrap().unwrap();
            prop_assert_eq!((session.ours, session.theirs), (our_party, their_party));
            prop_assert_eq!(session.is_encrypted(), wishes || wished);
            let (rest, answered) = give(&mut responder, &confirm, &cuts);
            prop_assert!(rest.is_empty());
            let answered = answered.unwrap().unwrap();
            prop_assert_eq!((answered.id, answered.binding), (session.id, session.binding));
            prop_assert_eq!(theirs[answered.secret_index], ours[0]);
        } else {
            prop_assert_eq!(heard, Some(Err(AuthFault::WrongSecret)));
            prop_assert_eq!(session, Some(Err(AuthFault::WrongSecret)));
        }
    }

    /// Nobody without the secret gets a session, in whatever way honest frames are mixed with noise.
    #[test]
    fn bytes_from_a_stranger_never_authenticate(
        noise in vec(any::<u8>(), 0..200),
        keep in 0_usize..=72,
        is_responder in any::<bool>(),
        cuts in vec(1_usize..90, 1..4),
    ) {
        let party = Party { epoch: 1, encryption: Encryption::Optional };
        let (insider, stranger) = (secrets(b"a"), secrets(b"b"));
        let entropy = |byte| Entropy::new([byte; 32]);
        // The stranger's own, well-formed frames, continued with noise.
        let mut other = Handshake::initiator(&stranger, party, entropy(1), Time::MAX);
        let mut hello = Vec::new();
        other.start(&mut hello);
        let mut victim = if is_responder {
            Handshake::responder(&insider, party, entropy(2), Time::MAX)
        } else {
            let mut victim = Handshake::initiator(&insider, party, entropy(2), Time::MAX);
            let mut sent = Vec::new();
            victim.start(&mut sent);
            let mut answering = Handshake::responder(&stranger, party, entropy(3), Time::MAX);
            hello = give(&mut answering, &hello, &cuts).0;
            victim
        };
        hello.truncate(keep);
        hello.extend(noise);
        let (out, heard) = give(&mut victim, &hello, &cuts);
        prop_assert!(!matches!(heard, Some(Ok(_))));
        prop_assert!(out.len() <= FRAME_BYTES_MAX, "what it sends is bounded");
    }
}
