//! What a core makes of a lane whose other end keeps no rules, and of requests that make no sense.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunette_kvstore::{PutOptions, Value};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{AskerId, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::{Form, WriteKind};
use lunette_runtime::arena::{Exposed, Words};
use lunette_runtime::net::LocalChannel;
use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::SegmentId;

use super::on_each_driver::run;
use super::one_sided::let_in;
use super::scene::{Scene, eventually, key, pattern, stranger};

const MIB: u64 = 1 << 20;
const V1: FormatVersion = FormatVersion(1);
/// As the core has them: see `lunette_kvstore`'s `member::lane`.
const WINDOW_BYTES: usize = 16 << 20;
const WORDS: usize = 16 + 64 * 16;
const SUBMITTED: usize = 8;
const ANSWERED: u64 = 3;
const LANES_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);

fn lane() -> SegmentId {
    SegmentId::from_wire(2 << 32 | 4)
}

const fn at(slot: usize, word: usize) -> usize {
    16 + slot * 16 + word
}

/// The other end of a lane, which says what it likes.
struct Stranger {
    channel: LocalChannel,
    words: Words,
    window: Exposed,
}

/// The words of a lane; `None` if it is refused.
async fn words_of(channel: &LocalChannel) -> Option<Words> {
    let packet = Packet::Map { segment: lane() };
    channel.send(&packet.encode(), &[]).expect("there is room");
    let answer = channel.recv().await.expect("it answers").expect("open");
    match Packet::decode(&answer.bytes) {
        Ok(Packet::Memory {
            segment, len_bytes, ..
        }) => {
            assert_eq!((segment, len_bytes), (lane(), WORDS as u64 * 8));
            let [file] = <[OwnedFd; 1]>::try_from(answer.descriptors).expect("a file");
            Some(Words::map(file, WORDS).expect("as long as that"))
        }
        Ok(Packet::Refused { segment }) => {
            assert_eq!(segment, lane());
            None
        }
        other => panic!("{other:?}"),
    }
}

/// What is said to a window of this length, with these files; `None` if the channel ends.
async fn said_to_window(
    channel: &LocalChannel,
    len_bytes: u64,
    files: &[OwnedFd],
) -> Option<Packet> {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let packet = Packet::Window { len_bytes };
    channel
        .send(&packet.encode(), &files)
        .expect("there is room");
    let answer = channel.recv().await.expect("it answers")?;
    Some(Packet::decode(&answer.bytes).expect("a packet"))
}

impl Stranger {
    async fn open(channel: LocalChannel) -> Self {
        let words = words_of(&channel).await.expect("there is one");
        let (window, file) = Exposed::shared(WINDOW_BYTES).expect("memory");
        let said = said_to_window(&channel, WINDOW_BYTES as u64, &[file]).await;
        assert_eq!(said, Some(Packet::Accepted { segment: lane() }));
        Self {
            channel,
            words,
            window,
        }
    }

    /// Has something asked in a slot: the words that say where request and value are.
    fn submit(&self, slot: usize, words: [u64; 2]) {
        self.submit_ready(slot, words, words[1] >> 32);
    }

    /// The same, of a value of which so much is there.
    fn submit_ready(&self, slot: usize, [request, value]: [u64; 2], ready: u64) {
        self.words[at(slot, 0)].store(1, Ordering::Relaxed);
        self.words[at(slot, 1)].store(request, Ordering::Relaxed);
        self.words[at(slot, 2)].store(value, Ordering::Relaxed);
        self.words[at(slot, 3)].store(ready, Ordering::Relaxed);
        self.words[SUBMITTED].fetch_or(1 << slot, Ordering::Release);
        let woken = self.channel.send(&Packet::Wake.encode(), &[]);
        woken.expect("there is room");
    }

    /// What a slot is answered; `None` if the channel ends first.
    async fn answer(&self, slot: usize) -> Option<Status> {
        let until = time::now() + PATIENCE;
        while self.words[at(slot, 0)].load(Ordering::Acquire) != ANSWERED {
            assert!(time::now() < until, "there is an answer, or an end");
            let said = time::timeout(Duration::from_millis(1), self.channel.recv());
            if let Ok(said) = said.await {
                assert!(said.expect("an end").is_none(), "nothing is said");
                return None;
            }
        }
        let word = self.words[at(slot, 4)].load(Ordering::Relaxed);
        Some(Status::from_code(
            u16::try_from(word & 0xffff).expect("so many bits"),
        ))
    }

    fn written(&self, slot: usize) -> WriteAnswer {
        let len = usize::try_from(self.words[at(slot, 4)].load(Ordering::Relaxed) >> 32);
        let words = (5..16).map(|word| self.words[at(slot, word)].load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        WriteAnswer::decode(V1, &bytes[..len.expect("short")]).expect("an answer")
    }

    /// Asks in a slot for a write of so many bytes.
    async fn ask(&self, slot: usize, body: &[u8], value_len: usize) -> Option<Status> {
        self.window.copy_in(0, body);
        let request = (body.len() as u64) << 32;
        self.submit(slot, [request, 4096 | (value_len as u64) << 32]);
        self.answer(slot).await
    }
}

fn write_of(to: Seat, key: &[u8], form: Form) -> Vec<u8> {
    // Each key is asked for by somebody else: what one asks for again is done once.
    let asker = AskerId(key.iter().map(|byte| u64::from(*byte)).sum());
    let (request, key) = (RequestId(1), Key::new(key).expect("a key"));
    let message = WriteMessage {
        kind: WriteKind::Upsert,
        form,
        wait_ms: 1000,
        ..WriteMessage::new((asker, request), request, to, key)
    };
    let mut body = Vec::new();
    message.encode(V1, &mut body);
    body
}

#[test]
fn requests_that_make_no_sense_are_refused_and_do_no_harm() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 1000).await;
        let (connection, to) = stranger(&client).await;
        let stranger = Stranger::open(let_in(&connection, to).await).await;
        stranger.window.copy_in(4096, b"the value");
        let good = write_of(to, &key(2), Form::Whole);
        let other = Seat {
            incarnation: to.incarnation + 1,
            ..to
        };
        for (slot, (body, len, status)) in [
            (good.clone(), 9, Status::Ok),
            (good[..good.len() - 1].to_vec(), 9, Status::BadRequest),
            (Vec::new(), 9, Status::BadRequest),
            (vec![0xff; 100], 9, Status::BadRequest),
            (write_of(to, &key(3), Form::Striped), 9, Status::BadRequest),
            (write_of(other, &key(3), Form::Whole), 9, Status::WrongSeat),
            (good.clone(), (4 << 20) + 1, Status::BadRequest),
            (write_of(to, &key(4), Form::Whole), 0, Status::Ok),
        ]
        .into_iter()
        .enumerate()
        {
            let slot = 63 - slot;
            assert_eq!(stranger.ask(slot, &body, len).await, Some(status), "{slot}");
        }
        for slot in [63, 56] {
            let written = stranger.written(slot);
            assert!(
                matches!(written, WriteAnswer::Written { .. }),
                "{written:?}"
            );
        }
        let present = client.exists(&[key(2), key(3), key(4)]).await;
        assert_eq!(present.expect("asked"), [true, false, true]);
        scene.expect(&client, 1, 1000).await;
    });
}

#[test]
fn who_keeps_no_rules_is_sent_away() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let (connection, to) = stranger(&client).await;
        let beyond = WINDOW_BYTES as u64;
        for words in [
            [beyond | 1 << 32, 0],
            [0, (beyond - 1) | 2 << 32],
            [u64::MAX, 0],
            [0, u64::MAX],
        ] {
            let stranger = Stranger::open(let_in(&connection, to).await).await;
            stranger.submit(5, words);
            assert_eq!(stranger.answer(5).await, None, "{words:x?}");
        }
        // A window before its lane, without a file, and twice.
        let channel = let_in(&connection, to).await;
        let file = || Exposed::shared(WINDOW_BYTES).expect("memory").1;
        assert_eq!(said_to_window(&channel, beyond, &[file()]).await, None);
        let channel = let_in(&connection, to).await;
        let _words = words_of(&channel).await.expect("there is one");
        assert!(words_of(&channel).await.is_none(), "one is enough");
        let declined = Some(Packet::Declined { segment: lane() });
        let said = said_to_window(&channel, beyond - 1, &[file()]).await;
        assert_eq!(said, declined);
        let short = Exposed::shared(WINDOW_BYTES - 4096).expect("memory").1;
        assert_eq!(said_to_window(&channel, beyond, &[short]).await, declined);
        let said = said_to_window(&channel, beyond, &[file()]).await;
        assert_eq!(said, Some(Packet::Accepted { segment: lane() }));
        let said = said_to_window(&channel, beyond, &[file()]).await;
        assert_eq!(said, declined, "there is one");
        assert_eq!(said_to_window(&channel, beyond, &[]).await, None);
    });
}

#[test]
fn of_a_long_value_nothing_stays_unless_all_of_it_comes() {
    run(0, || async {
        const LEN: u64 = 3 << 20;
        const READY: u64 = 300 << 10;
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let used = async || scene.reports().await[0].stat.shards.used_bytes;
        let before = used().await;
        let (connection, to) = stranger(&client).await;
        let open = async || Stranger::open(let_in(&connection, to).await).await;
        let submit = |stranger: &Stranger, n: usize, ready: u64| {
            let body = write_of(to, &key(n), Form::Whole);
            stranger.window.copy_in(0, &body);
            let words = [(body.len() as u64) << 32, 4096 | LEN << 32];
            stranger.submit_ready(n, words, ready);
        };
        let one = open().await;
        submit(&one, 1, READY);
        assert_eq!(one.answer(1).await, Some(Status::Busy), "it took its time");
        submit(&one, 2, READY);
        submit(&one, 3, READY + 1);
        while used().await < before + 2 * LEN {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop(one);
        eventually("its room is another one's", async || used().await == before).await;
        let other = open().await;
        submit(&other, 4, u64::MAX);
        assert_eq!(
            other.answer(4).await,
            Some(Status::Ok),
            "as much as there is"
        );
        submit(&other, 5, 0);
        other.words[at(5, 3)].store(READY, Ordering::Release);
        time::sleep(Duration::from_millis(20)).await;
        other.words[at(5, 3)].store(LEN, Ordering::Release);
        assert_eq!(
            other.answer(5).await,
            Some(Status::Ok),
            "a part after the other"
        );
        let present = client.exists(&[1, 2, 3, 4, 5].map(key)).await;
        assert_eq!(present.expect("asked"), [false, false, false, true, true]);
    });
}

/// Upserts of what another member has wait until that one has let go of it.
#[test]
fn who_asks_in_a_slot_that_is_the_cores_still_is_sent_away() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let (connection, to) = stranger(&client).await;
        let names: Vec<_> = (0..200).map(key).collect();
        let two = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        for name in &names {
            let value = Value::new(pattern(1, 3000));
            client.put(name, value, two).await.expect("written");
        }
        for name in &names {
            let stranger = Stranger::open(let_in(&connection, to).await).await;
            let body = write_of(to, name, Form::Whole);
            stranger.window.copy_in(0, &body);
            let words = [(body.len() as u64) << 32, 4096 | 9 << 32];
            stranger.submit(7, words);
            while stranger.words[SUBMITTED].load(Ordering::Acquire) != 0 {
                time::yield_now().await;
            }
            let state = &stranger.words[at(7, 0)];
            if state.load(Ordering::Acquire) == ANSWERED {
                continue;
            }
            stranger.submit(7, words);
            let ended = time::timeout(PATIENCE, stranger.channel.recv()).await;
            assert!(matches!(ended, Ok(Ok(None) | Err(_))), "{ended:?}");
            return;
        }
        panic!("none of them waits");
    });
}

#[test]
fn a_core_has_so_many_lanes_and_takes_others_when_these_have_ended() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let (connection, to) = stranger(&client).await;
        let mut open = Vec::new();
        for _ in 0..LANES_MAX {
            let channel = let_in(&connection, to).await;
            let words = words_of(&channel).await.expect("there is one");
            open.push((channel, words));
        }
        let channel = let_in(&connection, to).await;
        assert!(words_of(&channel).await.is_none(), "one too many");
        open.truncate(LANES_MAX - 1);
        let until = time::now() + PATIENCE;
        while words_of(&channel).await.is_none() {
            assert!(time::now() < until, "one has ended");
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}
