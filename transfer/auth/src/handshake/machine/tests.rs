//! The handshake: its table of states and events, and what an attacker may try.

use super::*;
use crate::session::Encryption;

const DEADLINE: Time = Time::from_ns(100);
const FIRST: [u8; 32] = [b'a'; 32];
const SECOND: [u8; 32] = [b'b'; 32];

fn secrets(lines: &[[u8; 32]]) -> Secrets {
    Secrets::parse(&lines.join(&b'\n')).unwrap()
}

fn party(epoch: u64, encryption: Encryption) -> Party {
    Party { epoch, encryption }
}

fn initiator(lines: &[[u8; 32]], seed: u8) -> Handshake {
    let (ours, entropy) = (party(1, Encryption::Optional), Entropy::new([seed; 32]));
    Handshake::initiator(&secrets(lines), ours, entropy, DEADLINE)
}

fn responder(lines: &[[u8; 32]], seed: u8) -> Handshake {
    let (ours, entropy) = (party(2, Encryption::Required), Entropy::new([seed; 32]));
    Handshake::responder(&secrets(lines), ours, entropy, DEADLINE)
}

fn told(progress: Progress) -> Result<Option<Established>, AuthFault> {
    match progress {
        Progress::NeedMore => Ok(None),
        Progress::Done(established) => Ok(Some(*established)),
        Progress::Failed(fault) => Err(fault),
    }
}

/// Hands over all of `bytes`; what the side answers, and what came of them.
fn give(side: &mut Handshake, bytes: &[u8]) -> (Vec<u8>, Result<Option<Established>, AuthFault>) {
    let mut out = Vec::new();
    let progress = side.handle(&mut &bytes[..], &mut out);
    (out, told(progress))
}

fn hello_of(side: &mut Handshake) -> Vec<u8> {
    let mut hello = Vec::new();
    side.start(&mut hello);
    hello
}

/// A whole handshake; both sides' ends.
fn shake(
    mut initiator: Handshake,
    mut responder: Handshake,
) -> [Result<Option<Established>, AuthFault>; 2] {
    let hello = hello_of(&mut initiator);
    let (reply, heard) = give(&mut responder, &hello);
    let (confirm, ours) = give(&mut initiator, &reply);
    if heard.is_err() || ours.is_err() {
        return [ours, heard];
    }
    let (silence, theirs) = give(&mut responder, &confirm);
    assert!(silence.is_empty() || theirs.is_err());
    [ours, theirs]
}

#[test]
fn both_sides_end_with_the_same_session() {
    let [ours, theirs] = shake(initiator(&[FIRST], 1), responder(&[FIRST], 2));
    let (ours, theirs) = (ours.unwrap().unwrap(), theirs.unwrap().unwrap());
    assert_eq!(ours.session.id, theirs.session.id);
    assert_eq!(ours.session.binding, theirs.session.binding);
    assert_eq!(
        (ours.session.ours, ours.session.theirs),
        (theirs.session.theirs, theirs.session.ours)
    );
    assert_eq!(theirs.session.theirs.epoch, 1);
    assert!(ours.session.is_encrypted(), "one wish is enough");
    let (mut sealer, mut opener) = (ours.records.unwrap().0, theirs.records.unwrap().1);
    let mut bytes = b"secret".to_vec();
    let (header, tag) = sealer.seal_in_place(&mut bytes).unwrap();
    bytes.extend(tag);
    assert_eq!(
        opener.open_in_place(&header, &mut bytes).unwrap(),
        b"secret"
    );
}

#[test]
fn during_a_rotation_either_secret_is_accepted() {
    for (ours, theirs, index) in [
        (&[FIRST][..], &[FIRST, SECOND][..], 0),
        (&[FIRST], &[SECOND, FIRST], 1),
        (&[FIRST, SECOND], &[SECOND, FIRST], 1),
    ] {
        let [_, theirs] = shake(initiator(ours, 1), responder(theirs, 2));
        assert_eq!(theirs.unwrap().unwrap().session.secret_index, index);
    }
    // The initiator uses its first one only.
    let [ours, theirs] = shake(initiator(&[SECOND, FIRST], 1), responder(&[FIRST], 2));
    let ends = (ours.unwrap_err(), theirs.unwrap_err());
    assert_eq!(ends, (AuthFault::WrongSecret, AuthFault::WrongSecret));
}

#[test]
fn the_stream_may_come_in_any_pieces_and_the_rest_is_left() {
    let (mut ours, mut theirs) = (initiator(&[FIRST], 1), responder(&[FIRST], 2));
    let (mut reply, mut out) = (Vec::new(), Vec::new());
    for byte in hello_of(&mut ours) {
        assert!(matches!(
            theirs.handle(&mut &[byte][..], &mut reply),
            Progress::NeedMore
        ));
    }
    for (index, byte) in reply.iter().enumerate() {
        let progress = ours.handle(&mut &[*byte][..], &mut out);
        assert_eq!(
            matches!(progress, Progress::Done(_)),
            index + 1 == reply.len()
        );
    }
    out.extend(b"behind");
    let mut input = &out[..];
    assert!(matches!(
        theirs.handle(&mut input, &mut Vec::new()),
        Progress::Done(_)
    ));
    assert_eq!(input, b"behind");
}

#[test]
fn a_hello_that_is_sent_again_opens_nothing() {
    let mut victim = initiator(&[FIRST], 1);
    let recorded = hello_of(&mut victim);
    let mut first = responder(&[FIRST], 2);
    let (reply, _) = give(&mut first, &recorded);
    let (confirm, _) = give(&mut victim, &reply);
    // A later connection, with fresh randomness of the responder's: the recorded proof fails.
    let mut second = responder(&[FIRST], 3);
    assert!(give(&mut second, &recorded).1.unwrap().is_none());
    let (refusal, heard) = give(&mut second, &confirm);
    assert_eq!(heard.unwrap_err(), AuthFault::Replayed);
    let mut told_so = initiator(&[FIRST], 4);
    hello_of(&mut told_so);
    assert_eq!(
        give(&mut told_so, &refusal).1.unwrap_err(),
        AuthFault::Replayed
    );
}

#[test]
fn each_changed_byte_is_noticed() {
    let mut ours = initiator(&[FIRST], 1);
    let hello = hello_of(&mut ours);
    for at in 0..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 0x40;
        let mut theirs = responder(&[FIRST], 2);
        let (_, heard) = give(&mut theirs, &changed);
        let is_code = at == 5;
        assert!(heard.is_err() || is_code, "byte {at}");
    }
    let (reply, _) = give(&mut responder(&[FIRST], 2), &hello);
    for at in 8..reply.len() {
        let mut changed = reply.clone();
        changed[at] ^= 1;
        let mut ours = initiator(&[FIRST], 1);
        hello_of(&mut ours);
        assert_eq!(
            give(&mut ours, &changed).1.unwrap_err(),
            AuthFault::WrongSecret,
            "byte {at}"
        );
    }
}

#[test]
fn versions_and_strangers_are_told_apart() {
    let mut theirs = responder(&[FIRST], 2);
    let (silence, heard) = give(&mut theirs, b"GET /v3 HTTP/1.1\r\n\r\n");
    assert_eq!(heard.unwrap_err(), Malformed::NotAHandshake.into());
    assert!(silence.is_empty(), "it would not understand");

    let mut hello = hello_of(&mut initiator(&[FIRST], 1));
    hello[3] = 9;
    let mut theirs = responder(&[FIRST], 2);
    let (refusal, heard) = give(&mut theirs, &hello);
    assert_eq!(heard.unwrap_err(), AuthFault::Version { min: 9, max: 9 });
    let mut ours = initiator(&[FIRST], 1);
    hello_of(&mut ours);
    let version = AuthFault::Version { min: 1, max: 1 };
    assert_eq!(give(&mut ours, &refusal).1.unwrap_err(), version);
}

#[test]
fn busy_responders_say_so_before_they_read() {
    let mut refusal = Vec::new();
    crate::handshake::append_busy(&mut refusal);
    let mut ours = initiator(&[FIRST], 1);
    hello_of(&mut ours);
    let fault = give(&mut ours, &refusal).1.unwrap_err();
    assert_eq!(fault, AuthFault::Busy);
    assert!(fault.is_backpressure() && fault.is_retryable());
    assert!(!AuthFault::WrongSecret.is_retryable());
}

/// A machine in the named state; `AwaitHello`, `AwaitConfirm` are a responder's.
fn in_state(name: &str) -> Handshake {
    let mut ours = initiator(&[FIRST], 1);
    let mut theirs = responder(&[FIRST], 2);
    let hello = hello_of(&mut ours);
    match name {
        "AwaitReply" => return ours,
        "AwaitHello" => return theirs,
        "AwaitConfirm" => drop(give(&mut theirs, &hello)),
        "Failed" => drop(give(&mut theirs, b"?")),
        other => panic!("no state is named {other}"),
    }
    theirs
}

fn frame(event: &str) -> Vec<u8> {
    let mut ours = initiator(&[FIRST], 1);
    let hello = hello_of(&mut ours);
    let (reply, _) = give(&mut responder(&[FIRST], 2), &hello);
    match event {
        "hello" => hello,
        "reply" => reply,
        "confirm" => give(&mut ours, &reply).0,
        "refusal" => {
            let mut refusal = Vec::new();
            append_refusal(&mut refusal, AuthFault::WrongSecret);
            refusal
        }
        "unknown" => vec![b'L', b'n', b'A', 1, 9, 0, 0, 0],
        "long" => vec![b'L', b'n', b'A', 1, 1, 0, 255, 255],
        other => panic!("no event is named {other}"),
    }
}

const EVENTS: [&str; 6] = ["hello", "reply", "confirm", "refusal", "unknown", "long"];

/// Each state, and what each event gives there: what is told, the next state, `+` where something is
/// sent.
#[rustfmt::skip]
const TABLE: [(&str, [&str; 6]); 4] = [
    ("AwaitReply", ["malformed>Failed", "done>Done+", "malformed>Failed", "WrongSecret>Failed",
        "malformed>Failed", "malformed>Failed"]),
    ("AwaitHello", ["more>AwaitConfirm+", "malformed>Failed+", "malformed>Failed+",
        "malformed>Failed+", "malformed>Failed+", "malformed>Failed+"]),
    ("AwaitConfirm", ["malformed>Failed+", "malformed>Failed+", "done>Done", "malformed>Failed+",
        "malformed>Failed+", "malformed>Failed+"]),
    ("Failed", ["malformed>Failed", "malformed>Failed", "malformed>Failed", "malformed>Failed",
        "malformed>Failed", "malformed>Failed"]),
];

#[test]
fn every_state_answers_every_event() {
    for (state, row) in TABLE {
        for (event, expected) in EVENTS.into_iter().zip(row) {
            let mut side = in_state(state);
            let (out, told) = give(&mut side, &frame(event));
            let told = match told {
                Ok(None) => "more".to_owned(),
                Ok(Some(_)) => "done".to_owned(),
                Err(AuthFault::Malformed(_)) => "malformed".to_owned(),
                Err(fault) => format!("{fault:?}"),
            };
            let answered = if out.is_empty() { "" } else { "+" };
            let next = side.state.name();
            assert_eq!(
                format!("{told}>{next}{answered}"),
                expected,
                "{state} x {event}"
            );
        }
    }
}

#[test]
fn a_deadline_ends_what_waits_and_nothing_else() {
    for (state, waits) in [
        ("AwaitReply", true),
        ("AwaitHello", true),
        ("AwaitConfirm", true),
        ("Failed", false),
    ] {
        let mut side = in_state(state);
        assert_eq!(side.poll_timeout(), waits.then_some(DEADLINE), "{state}");
        assert_eq!(side.on_timeout(Time::from_ns(99)), None);
        let due = side.on_timeout(DEADLINE);
        assert_eq!(due, waits.then_some(AuthFault::TimedOut), "{state}");
        assert_eq!(side.on_timeout(DEADLINE), None, "once");
        if waits {
            assert_eq!(give(&mut side, b"LnA").1.unwrap_err(), AuthFault::TimedOut);
        }
    }
}

/// What a peer that says nothing, or half a hello, makes a responder hold.
#[test]
fn a_half_open_handshake_is_small() {
    assert!(size_of::<Handshake>() <= 160, "{}", size_of::<Handshake>());
}
