//! Authentication under attack: a stranger's stream against either side of a handshake, changed
//! records, changed tokens.
//!
//! ```text
//!   byte 0      bit 0: the victim responds (else it connected); bit 1: the peer knows the secret
//!   byte 1      how many bytes come at once, 1..=256
//!   then        operations on the peer's stream, each a code and its arguments
//! ```

use lunette_auth::handshake::{FRAME_BYTES_MAX, append_busy};
use lunette_auth::{
    AuthFault, Capability, Encryption, Entropy, Established, Handshake, Issuer, Party, Progress,
    Request, Rights, Secrets, SessionId,
};
use lunette_runtime_core::codec::Reader;
use lunette_runtime_core::time::Time;

/// Most operations of a script, so that one run stays short.
const OPS_MAX: usize = 16;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Peers that were authenticated.
    pub authenticated: u32,
    /// Handshakes that waited for more.
    pub waiting: u32,
    /// Peers without the secret.
    pub wrong_secret: u32,
    /// Proofs that did not fit their hello.
    pub replayed: u32,
    /// Streams that made no sense.
    pub malformed: u32,
    /// Other refusals.
    pub refused: u32,
    /// Records that were opened.
    pub opened: u32,
    /// Records that were not.
    pub record_faults: u32,
    /// Tokens that were accepted.
    pub granted: u32,
    /// Tokens that were not.
    pub denied: u32,
}

/// Drives authentication with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn auth(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let script = Script::read(data);
    handshake(&script, &mut reached);
    records(&script, &mut reached);
    token(&script, &mut reached);
    reached
}

fn secrets(name: u8) -> Secrets {
    Secrets::parse(&[name; 32]).expect("it is long enough")
}

fn party(epoch: u64) -> Party {
    Party {
        epoch,
        encryption: Encryption::Required,
    }
}

fn victim(responds: bool) -> Handshake {
    let (secrets, entropy) = (secrets(b'v'), Entropy::new([1; 32]));
    if responds {
        return Handshake::responder(&secrets, party(1), entropy, Time::MAX);
    }
    let mut victim = Handshake::initiator(&secrets, party(1), entropy, Time::MAX);
    victim.start(&mut Vec::new());
    victim
}

/// What an honest peer, with or without the secret, sends to the victim.
fn honest(responds: bool, knows: bool) -> Vec<u8> {
    let secrets = secrets(if knows { b'v' } else { b's' });
    let entropy = Entropy::new([2; 32]);
    let (mut hello, mut reply, mut stream) = (Vec::new(), Vec::new(), Vec::new());
    let mut toward = victim(responds);
    if responds {
        let mut peer = Handshake::initiator(&secrets, party(2), entropy, Time::MAX);
        peer.start(&mut hello);
        stream.extend_from_slice(&hello);
        drop(toward.handle(&mut &hello[..], &mut reply));
        drop(peer.handle(&mut &reply[..], &mut stream));
    } else {
        // The victim's hello again: it draws what it drew before.
        let again = Entropy::new([1; 32]);
        let ours = self::secrets(b'v');
        let mut again = Handshake::initiator(&ours, party(1), again, Time::MAX);
        again.start(&mut hello);
        let mut peer = Handshake::responder(&secrets, party(2), entropy, Time::MAX);
        drop(peer.handle(&mut &hello[..], &mut stream));
    }
    stream
}

/// A hostile stream.
struct Script {
    responds: bool,
    knows: bool,
    piece_bytes: usize,
    stream: Vec<u8>,
    /// Bits to flip in records and tokens.
    flips: Vec<usize>,
}

impl Script {
    fn read(data: &[u8]) -> Self {
        let mut source = Reader::new(data);
        let mut next = || source.u8().ok();
        let flags = next().unwrap_or(0);
        let piece_bytes = 1 + usize::from(next().unwrap_or(0));
        let mut script = Self {
            responds: flags & 1 != 0,
            knows: flags & 2 != 0,
            piece_bytes,
            stream: Vec::new(),
            flips: Vec::new(),
        };
        for _ in 0..OPS_MAX {
            let Some(op) = next() else { break };
            let argument = usize::from(next().unwrap_or(0));
            let last = usize::from(next().unwrap_or(0));
            script.apply(op, argument, last);
        }
        script
    }

    fn apply(&mut self, op: u8, argument: usize, last: usize) {
        let bits = argument << 8 | last;
        match op % 7 {
            0 => self.stream.extend(honest(self.responds, self.knows)),
            1 => {
                let byte = u8::try_from(last).expect("it is a byte");
                self.stream.extend(vec![byte; argument]);
            }
            2 => {
                let count = self.stream.len().max(1) * 8;
                let bit = bits % count;
                if let Some(byte) = self.stream.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            3 => self.stream.truncate(bits),
            4 => append_busy(&mut self.stream),
            5 => self.flips.push(bits),
            _ => self
                .stream
                .extend_from_slice(&[b'L', b'n', b'A', 1, 4, 0, 0, 0]),
        }
    }
}

/// How the victim's handshake ended, and what it sent.
fn shake(script: &Script, piece_bytes: usize) -> (Option<Result<Established, AuthFault>>, Vec<u8>) {
    let (mut side, mut out) = (victim(script.responds), Vec::new());
    for piece in script.stream.chunks(piece_bytes) {
        let mut input = piece;
        match side.handle(&mut input, &mut out) {
            Progress::NeedMore => assert!(input.is_empty(), "all is taken while more is needed"),
            Progress::Done(established) => return (Some(Ok(*established)), out),
            Progress::Failed(fault) => {
                let Progress::Failed(again) = side.handle(&mut &b"LnA"[..], &mut Vec::new()) else {
                    unreachable!("a fault stays");
                };
                assert_eq!(again, fault);
                return (Some(Err(fault)), out);
            }
        }
    }
    (None, out)
}

fn handshake(script: &Script, reached: &mut Reached) {
    let (ended, out) = shake(script, script.piece_bytes);
    let (whole, out_whole) = shake(script, script.stream.len().max(1));
    assert_eq!(out, out_whole, "the same is sent however the stream is cut");
    assert!(out.len() <= 2 * FRAME_BYTES_MAX);
    let end = |ended: &Option<Result<Established, AuthFault>>| match ended {
        None => None,
        Some(Ok(established)) => Some(Ok(established.session)),
        Some(Err(fault)) => Some(Err(*fault)),
    };
    assert_eq!(end(&ended), end(&whole));
    match ended {
        None => reached.waiting += 1,
        Some(Ok(established)) => {
            assert!(script.knows, "only who knows the secret is authenticated");
            assert_eq!(established.session.theirs, party(2));
            reached.authenticated += 1;
        }
        Some(Err(AuthFault::WrongSecret)) => reached.wrong_secret += 1,
        Some(Err(AuthFault::Replayed)) => reached.replayed += 1,
        Some(Err(AuthFault::Malformed(_))) => reached.malformed += 1,
        Some(Err(_)) => reached.refused += 1,
    }
}

/// Three records, some bits changed on their way.
fn records(script: &Script, reached: &mut Reached) {
    let [ours, theirs] = established();
    let (mut sealer, mut opener) = (ours.expect("wished").0, theirs.expect("wished").1);
    let (mut intact, mut ends) = (Vec::new(), Vec::new());
    for plain in PLAIN {
        sealer.seal(plain, &mut intact).expect("numbers are left");
        ends.push(intact.len());
    }
    let mut sent = intact.clone();
    flip(&mut sent, &script.flips);
    let arrived = sent.clone();
    let mut start = 0;
    for (plain, end) in PLAIN.into_iter().zip(ends) {
        let is_intact = intact[..end] == arrived[..end];
        let (header, body) = sent[start..end]
            .split_first_chunk_mut()
            .expect("a record has a header");
        let opened = opener.open_in_place(header, body);
        assert_eq!(opened.is_ok(), is_intact);
        if let Ok(opened) = opened {
            assert_eq!(opened, plain);
            reached.opened += 1;
        } else {
            reached.record_faults += 1;
        }
        start = end;
    }
}

const PLAIN: [&[u8]; 3] = [b"one", b"", b"thirty-two bytes of a key value b"];

/// Both ends of a session that nobody attacked.
fn established() -> [Option<(lunette_auth::Sealer, lunette_auth::Opener)>; 2] {
    let (mut hello, mut reply, mut confirm) = (Vec::new(), Vec::new(), Vec::new());
    let entropy = |byte| Entropy::new([byte; 32]);
    let mut ours = Handshake::initiator(&secrets(b'v'), party(1), entropy(1), Time::MAX);
    let mut theirs = Handshake::responder(&secrets(b'v'), party(2), entropy(2), Time::MAX);
    ours.start(&mut hello);
    drop(theirs.handle(&mut &hello[..], &mut reply));
    let ours = ours.handle(&mut &reply[..], &mut confirm);
    let theirs = theirs.handle(&mut &confirm[..], &mut reply);
    [ours, theirs].map(|progress| match progress {
        Progress::Done(established) => established.records,
        other => unreachable!("an honest handshake ends: {other:?}"),
    })
}

fn flip(bytes: &mut [u8], flips: &[usize]) {
    for &bit in flips {
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn token(script: &Script, reached: &mut Reached) {
    let issuer = Issuer::new(&[3; 32], SessionId([4; 16]), 5);
    let granted = Capability {
        rights: Rights::READ,
        segment: 6,
        offset_bytes: 7,
        len_bytes: 8,
    };
    let request = Request {
        rights: Rights::READ,
        segment: 6,
        offset_bytes: 7,
        len_bytes: 8,
    };
    let intact = issuer.issue(&granted).expect("it ends within 64 bits");
    let mut token = intact;
    flip(&mut token, &script.flips);
    let checked = issuer.check(&token, &request);
    assert_eq!(checked.is_ok(), token == intact, "{checked:?}");
    assert!(issuer.check(&script.stream, &request).is_err());
    if checked.is_ok() {
        reached.granted += 1;
    } else {
        reached.denied += 1;
    }
}
