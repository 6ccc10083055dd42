//! Records and tokens under any bytes: what was sealed comes back, anything else is refused.

use lunette_auth::capability::TOKEN_BYTES;
use lunette_auth::record::RECORD_HEADER_BYTES;
use lunette_auth::{
    Capability, Encryption, Entropy, Established, Handshake, Issuer, Opener, Party, Progress,
    RecordFault, Request, Rights, Sealer, Secrets, SessionId,
};
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn ends(seed: u8) -> [Established; 2] {
    let secrets = Secrets::parse(&[b'k'; 40]).expect("it is long enough");
    let party = |epoch| Party {
        epoch,
        encryption: Encryption::Required,
    };
    let entropy = |byte| Entropy::new([byte; 32]);
    let mut ours = Handshake::initiator(&secrets, party(1), entropy(seed), Time::MAX);
    let mut theirs = Handshake::responder(&secrets, party(2), entropy(!seed), Time::MAX);
    let (mut there, mut back) = (Vec::new(), Vec::new());
    ours.start(&mut there);
    let waits = theirs.handle(&mut &there[..], &mut back);
    assert!(matches!(waits, Progress::NeedMore));
    there.clear();
    let Progress::Done(ours) = ours.handle(&mut &back[..], &mut there) else {
        unreachable!("the secret is the same");
    };
    let Progress::Done(theirs) = theirs.handle(&mut &there[..], &mut back) else {
        unreachable!("the proof is right");
    };
    [*ours, *theirs]
}

const WISHED: &str = "both sides want it";

fn direction(seed: u8) -> (Sealer, Opener) {
    let [ours, theirs] = ends(seed);
    (
        ours.records.expect(WISHED).0,
        theirs.records.expect(WISHED).1,
    )
}

/// A record as it is sent.
fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(bytes, &mut out).expect("numbers are left");
    out
}

fn open(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, RecordFault> {
    let (header, body) = record.split_first_chunk().expect("a header");
    let mut body = body.to_vec();
    opener
        .open_in_place(header, &mut body)
        .map(|plain| plain.to_vec())
}

/// What an attacker underway does to the records.
#[derive(Clone, Debug)]
enum Attack {
    Flip { record: Index, bit: Index },
    Swap { first: Index, second: Index },
    Again { record: Index, before: Index },
    Drop { record: Index },
    Cut { record: Index },
}

fn attack() -> impl Strategy<Value = Attack> {
    let index = any::<Index>;
    prop_oneof![
        (index(), index()).prop_map(|(record, bit)| Attack::Flip { record, bit }),
        (index(), index()).prop_map(|(first, second)| Attack::Swap { first, second }),
        (index(), index()).prop_map(|(record, before)| Attack::Again { record, before }),
        index().prop_map(|record| Attack::Drop { record }),
        index().prop_map(|record| Attack::Cut { record }),
    ]
}

fn apply(attack: &Attack, records: &mut Vec<Vec<u8>>) {
    let count = records.len();
    match attack {
        Attack::Flip { record, bit } => {
            let record = &mut records[record.index(count)];
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
        }
        Attack::Swap { first, second } => records.swap(first.index(count), second.index(count)),
        Attack::Again { record, before } => {
            let again = records[record.index(count)].clone();
            records.insert(before.index(count + 1), again);
        }
        Attack::Drop { record } => drop(records.remove(record.index(count))),
        Attack::Cut { record } => {
            let record = &mut records[record.index(count)];
            record.truncate((record.len() - 1).max(RECORD_HEADER_BYTES));
        }
    }
}

proptest! {
    /// What is opened is a prefix of what was sealed, whatever happens underway; and as soon as it
    /// is no longer the same, it ends with a fault.
    #[test]
    fn only_what_was_sealed_is_opened_and_in_order(
        seed in any::<u8>(),
        plain in vec(vec(any::<u8>(), 0..200), 1..6),
        attack in attack(),
    ) {
        let (mut sealer, mut opener) = direction(seed);
        let honest: Vec<_> = plain.iter().map(|bytes| sealed(&mut sealer, bytes)).collect();
        let mut sent = honest.clone();
        apply(&attack, &mut sent);
        let mut opened = Vec::new();
        let mut fault = None;
        for record in &sent {
            match open(&mut opener, record) {
                Ok(bytes) => opened.push(bytes),
                Err(error) => { fault = Some(error); break; }
            }
        }
        prop_assert_eq!(&opened[..], &plain[..opened.len()]);
        let same = honest.iter().zip(&sent).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(opened.len(), same.min(sent.len()));
        prop_assert_eq!(fault.is_some(), same < sent.len());
        if let Some(fault) = fault {
            let again = open(&mut opener, &honest[opened.len().min(honest.len() - 1)]);
            prop_assert_eq!(again, Err(fault), "a fault stays");
        }
    }

    /// The two directions, and two sessions, share no key.
    #[test]
    fn a_record_opens_on_its_own_session_and_side_only(seed in 0_u8..100, bytes in vec(any::<u8>(), 1..99)) {
        let [ours, theirs] = ends(seed);
        let [_, others] = ends(seed + 1);
        let (mut sealer, mut own_opener) = ours.records.unwrap();
        let record = sealed(&mut sealer, &bytes);
        let tampered = Err(RecordFault::Tampered { sequence: 0 });
        prop_assert_eq!(open(&mut own_opener, &record), tampered.clone(), "sent back");
        prop_assert_eq!(open(&mut others.records.unwrap().1, &record), tampered);
        prop_assert_eq!(open(&mut theirs.records.unwrap().1, &record), Ok(bytes));
    }

    /// Against plain arithmetic in 128 bits.
    #[test]
    fn a_token_permits_its_range_and_nothing_else(
        granted in (any::<u64>(), any::<u64>()),
        wanted in (any::<u64>(), any::<u64>()),
        near in any::<bool>(),
        (may_write, writes) in any::<(bool, bool)>(),
        (segment, segment_wanted) in (0_u64..2, 0_u64..2),
    ) {
        let (offset_bytes, len_bytes) = granted;
        // Nearby ranges touch their bounds often.
        let wanted = if near { (offset_bytes.wrapping_add(wanted.0 % 5).wrapping_sub(2),
            len_bytes.wrapping_add(wanted.1 % 5).wrapping_sub(2)) } else { wanted };
        let rights = if may_write { Rights::READ_WRITE } else { Rights::READ };
        let asked = if writes { Rights::WRITE } else { Rights::READ };
        let issuer = Issuer::new(&[1; 32], SessionId([2; 16]), 3);
        let capability = Capability { rights, segment, offset_bytes, len_bytes };
        let end = |(offset, len): (u64, u64)| u128::from(offset) + u128::from(len);
        let Ok(token) = issuer.issue(&capability) else {
            prop_assert!(end(granted) > u128::from(u64::MAX));
            return Ok(());
        };
        let request = Request { rights: asked, segment: segment_wanted, offset_bytes: wanted.0, len_bytes: wanted.1 };
        let is_inside = wanted.0 >= granted.0 && end(wanted) <= end(granted);
        let expected = is_inside && (may_write || !writes) && segment == segment_wanted;
        prop_assert_eq!(issuer.check(&token, &request).is_ok(), expected);
    }

    #[test]
    fn a_changed_token_is_never_accepted(bit in 0..TOKEN_BYTES * 8) {
        let issuer = Issuer::new(&[1; 32], SessionId([2; 16]), 3);
        let granted = Capability { rights: Rights::READ_WRITE, segment: 1, offset_bytes: 0, len_bytes: u64::MAX };
        let request = Request { rights: Rights::READ, segment: 1, offset_bytes: 0, len_bytes: 1 };
        let mut token = issuer.issue(&granted).unwrap();
        prop_assert!(issuer.check(&token, &request).is_ok());
        token[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(issuer.check(&token, &request).is_err());
    }
}
