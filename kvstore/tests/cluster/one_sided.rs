//! Gets that are copied from owners' memory.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::Secrets;
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClusterClient, Fetched, OneSided, PutOptions, StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    AskerId, Described, GetMessage, HoldWish, MeetMessage, MeetReply, NearWish,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::{Exposed, Region, Words, WordsView};
use lunette_runtime::net::LocalChannel;
use lunette_runtime::{arena, boot_id, spawn_local, time};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{Attachments, Connection, Reply, Room};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::SegmentId;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room, stranger};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
const V1: FormatVersion = FormatVersion(1);

/// Gets each object until all owners of the scene are met.
async fn meet(client: &ClusterClient, owners: usize, objects: &[(usize, usize)]) {
    eventually("the owners' memory is mapped", async || {
        for &(n, len) in objects {
            let fetched = client.get(&key(n), room(len.max(1))).await;
            assert!(matches!(fetched, Ok(Fetched::Hit { .. })), "{fetched:?}");
        }
        client.one_sided().owners == owners
    })
    .await;
}

/// Bytes that the nodes' cores have sent.
async fn sent_bytes(scene: &Scene) -> u64 {
    let reports = scene.reports().await;
    reports
        .iter()
        .map(|report| report.stat.payload_out_bytes)
        .sum()
}

/// Descriptors that were given, and readers that came again.
async fn told(scene: &Scene) -> (u64, u64) {
    let reports = scene.reports().await;
    let members = reports.iter().filter_map(|report| report.member);
    members.fold((0, 0), |(reads, fallbacks), member| {
        (
            reads + member.one_sided_reads,
            fallbacks + member.one_sided_fallbacks,
        )
    })
}

#[test]
fn what_is_copied_is_what_would_have_been_sent() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let lens = [0, 1, 4096, 65_537, 1 << 20, 16 << 20, 3, 4095];
        let objects: Vec<_> = lens.into_iter().enumerate().collect();
        let far = scene.client_from(None).await;
        for &(n, len) in &objects {
            scene.put(&far, n, n, len).await;
        }
        let near = scene.client_from(Some(0)).await;
        let is_short = |len: &usize| *len < 64 << 10;
        let (short, long): (Vec<usize>, Vec<usize>) = lens.iter().partition(|len| is_short(len));
        let long_objects = objects.iter().filter(|(_, len)| !is_short(len));
        meet(&near, 2, &long_objects.copied().collect::<Vec<_>>()).await;
        let (before, sent, (given, _)) = (
            near.one_sided(),
            sent_bytes(&scene).await,
            told(&scene).await,
        );
        let mut bytes = 0;
        for &(n, len) in &objects {
            scene.expect(&near, n, len).await;
            // Into pieces, of which some are empty and the last is too long.
            let lens = [len / 3, 0, len - len / 3 - len / 7, len / 7 + 5];
            let pieces = lens.map(|len| {
                let region = arena().alloc(len.max(1)).expect("room");
                region.expose().slice(0, len)
            });
            let fetched = near.get(&key(n), Room::exposed(pieces.to_vec())).await;
            assert!(matches!(fetched, Ok(Fetched::Hit { len_bytes, .. }) if len_bytes == len));
            let got: Vec<u8> = pieces.iter().flat_map(Exposed::to_vec).collect();
            assert!(got[..len] == *pattern(n, len).as_slice());
            bytes += 2 * len as u64;
        }
        let after = near.one_sided();
        let count = 2 * lens.len() as u64;
        assert_eq!(after.reads - before.reads, count);
        assert_eq!(after.read_bytes - before.read_bytes, bytes);
        assert_eq!(after.fallbacks, 0);
        // Short ones may be seen by themselves, of which cores hear.
        let heard = sent..=sent + 2 * short.iter().sum::<usize>() as u64;
        let sent_now = sent_bytes(&scene).await;
        assert!(heard.contains(&sent_now), "no core has sent a byte");
        let (given_now, again) = told(&scene).await;
        assert!((given + 2 * long.len() as u64..=given + count).contains(&given_now));
        assert_eq!(again, 0);
        for &(n, len) in &objects {
            scene.expect(&far, n, len).await;
        }
        assert!(
            sent_bytes(&scene).await >= sent + bytes / 2,
            "those are sent"
        );
        assert_eq!(far.one_sided().owners, 0);
    });
}

#[test]
fn ranges_are_copied_as_well_and_refused_as_ever() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        const LEN: usize = 3_000_000;
        let near = scene.client_from(Some(1000)).await;
        scene.put(&near, 1, 1, LEN).await;
        meet(&near, 1, &[(1, LEN)]).await;
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        let ranges = [
            range(2_999_990, 10),
            range(0, 1),
            range(7, 0),
            range(70_001, 1_500_000),
        ];
        let total: usize = ranges.iter().map(|range| range.len_bytes as usize).sum();
        let (sent, before) = (sent_bytes(&scene).await, near.one_sided());
        let fetched = near.get_ranges(&key(1), &ranges, room(total)).await;
        let Ok(Fetched::Hit {
            room: got,
            len_bytes,
            object_len_bytes,
            ..
        }) = fetched
        else {
            panic!("{fetched:?}");
        };
        assert_eq!((len_bytes, object_len_bytes), (total, LEN));
        let (whole, mut expected) = (pattern(1, LEN), Vec::new());
        for range in ranges {
            let start = usize::try_from(range.offset_bytes).expect("small");
            expected.extend_from_slice(&whole.as_slice()[start..start + range.len_bytes as usize]);
        }
        assert!(got.as_slice()[..total] == expected);
        assert_eq!(near.one_sided().reads, before.reads + 1);
        assert_eq!(sent_bytes(&scene).await, sent);
        // Few bytes are sent, whatever the room.
        let few = [range(1, 999)];
        let fetched = near.get_ranges(&key(1), &few, room(5000)).await;
        assert!(matches!(fetched, Ok(Fetched::Hit { len_bytes: 999, .. })));
        assert_eq!(sent_bytes(&scene).await, sent + 999);
        let beyond = [range(2_999_000, 1001)];
        let failure = near.get_ranges(&key(1), &beyond, room(5000)).await;
        let kind = failure.expect_err("beyond its end").error.kind;
        let object_len_bytes = LEN;
        assert_eq!(kind, StoreErrorKind::OutOfRange { object_len_bytes });
        assert_eq!(near.one_sided().reads, before.reads + 1);
        assert_eq!(near.one_sided().fallbacks, 0);
    });
}

#[test]
fn what_is_short_or_missing_or_does_not_fit_is_answered_as_ever() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 200_000).await;
        scene.put(&client, 2, 2, 65_535).await;
        scene.put(&client, 3, 3, 65_536).await;
        meet(&client, 1, &[(1, 200_000)]).await;
        let before = client.one_sided();
        scene.expect(&client, 2, 65_535).await;
        let fetched = client.get(&key(2), room(100_000)).await;
        assert!(matches!(
            fetched,
            Ok(Fetched::Hit {
                len_bytes: 65_535,
                ..
            })
        ));
        assert_eq!(client.one_sided(), before, "they are sent");
        scene.expect(&client, 3, 65_536).await;
        assert_eq!(client.one_sided().reads, before.reads + 1);
        let failure = client.get(&key(1), room(199_999)).await;
        let failure = failure.expect_err("it does not fit");
        let far = scene.client_from(None).await;
        let expected = far.get(&key(1), room(199_999)).await;
        let expected = expected.expect_err("it does not fit");
        assert_eq!(failure.error.kind, expected.error.kind);
        assert!(failure.room.is_some(), "the room comes back");
        let missing = client.get(&key(9), room(100_000)).await;
        assert!(matches!(missing, Ok(Fetched::Miss { is_known: true, .. })));
        assert_eq!(client.one_sided().fallbacks, 0);
    });
}

/// Replaces an object all the time, and has others come and go, until it is over.
async fn replace(client: ClusterClient, values: [Value; 2], is_over: Rc<Cell<bool>>) {
    let upsert = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    for value in values.iter().cycle() {
        if is_over.get() {
            return;
        }
        let put = client.put(&key(1), value.clone(), upsert).await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        let put = client.put(&key(2), value.clone(), upsert).await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        let removed = client.remove(&[key(2)]).await;
        assert!(matches!(removed[..], [Ok(true)]), "{removed:?}");
        time::sleep(Duration::from_millis(2)).await;
    }
}

/// What is replaced while it is copied, in turns between which that happens.
#[test]
fn what_leaves_its_memory_while_it_is_copied_is_never_mistaken() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        const LEN: usize = 3 << 20;
        let near = scene.client_from(Some(0)).await;
        scene.put(&near, 1, 1, LEN).await;
        meet(&near, 1, &[(1, LEN)]).await;
        let patterns = [pattern(1, LEN), pattern(2, LEN)];
        let is_over = Rc::new(Cell::new(false));
        let values = patterns.clone().map(Value::new);
        // It writes without a message, so that it keeps up.
        let writing = replace(scene.inside(0).await, values, Rc::clone(&is_over));
        let writing = spawn_local(writing);
        let deadline = time::now() + PATIENCE;
        // How often a copy is replaced while it is copied is luck, which is not had in each run.
        while near.one_sided().fallbacks < 5 && time::now() < deadline {
            let wanted = (0..4).map(|_| (key(1), room(LEN)));
            for fetched in near.get_all(wanted).await {
                let Ok(Fetched::Hit {
                    room, len_bytes, ..
                }) = fetched
                else {
                    panic!("{fetched:?}");
                };
                assert_eq!(len_bytes, LEN);
                let is_whole = |value: &Region| *room.as_slice() == *value.as_slice();
                assert!(patterns.iter().any(is_whole), "of one value");
            }
        }
        is_over.set(true);
        writing.await.expect("it ends");
        let OneSided {
            reads, fallbacks, ..
        } = near.one_sided();
        assert!(reads >= 5);
        assert!(told(&scene).await.1 >= fallbacks, "its owner was told");
    });
}

#[test]
fn owners_that_leave_are_forgotten() {
    run(0, || async {
        let mut scene = Scene::of(2, 64 * MIB).await;
        let near = scene.client_from(Some(0)).await;
        let objects: Vec<_> = (0..12).map(|n| (n, 100_000)).collect();
        let twice = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        for &(n, len) in &objects {
            let put = near.put(&key(n), Value::new(pattern(n, len)), twice).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        }
        eventually("each has two copies", async || {
            let mut all = true;
            for n in 0..12 {
                let found = near.lookup(&key(n), None).await.expect("asked");
                all &= found.is_some_and(|found| found.owners.len() == 2);
            }
            all
        })
        .await;
        meet(&near, 2, &objects).await;
        scene.remove_first().await;
        for &(n, len) in &objects {
            scene.expect(&near, n, len).await;
        }
        assert_eq!(near.one_sided().owners, 1);
    });
}

#[test]
fn who_shares_nothing_sends_and_nobody_fails() {
    run(0, || async {
        let mut scene = Scene::of(0, 0).await;
        scene.set_shared(false);
        scene.add(64 * MIB).await;
        let near = scene.client_from(Some(0)).await;
        for n in 0..4 {
            scene.put(&near, n, n, 100_000).await;
            scene.expect(&near, n, 100_000).await;
        }
        let (connection, to) = stranger(&near).await;
        let refused = ask_to_meet(&connection, to, boot_id().expect("a kernel")).await;
        assert_eq!(Status::from_code(refused.status), Status::Unsupported);
        assert_eq!(near.one_sided(), Default::default());
        assert_eq!(told(&scene).await, (0, 0));
    });
}

async fn ask_to_meet(connection: &Connection, to: Seat, boot_id: u128) -> Reply {
    let message = MeetMessage {
        to,
        boot_id,
        proof: 77,
    };
    let body = |out: &mut Vec<u8>| message.encode(V1, out);
    let asked = connection.call(Op::Meet.code(), body, Attachments::default(), PATIENCE);
    asked.await.expect("it answers")
}

async fn come_in(meeting: MeetReply, ticket: u128) -> Option<(LocalChannel, Packet)> {
    let channel = LocalChannel::connect(&meeting.name.to_le_bytes()).expect("it listens");
    channel
        .send(&Packet::Join { ticket }.encode(), &[])
        .expect("there is room");
    let packet = channel.recv().await.expect("it answers")?;
    let said = Packet::decode(&packet.bytes).expect("a packet");
    Some((channel, said))
}

#[test]
fn only_who_was_given_a_ticket_is_let_in_and_once() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 1000).await;
        let (connection, to) = stranger(&client).await;
        let here = boot_id().expect("a kernel");
        let elsewhere = ask_to_meet(&connection, to, here ^ 1).await;
        assert_eq!(Status::from_code(elsewhere.status), Status::Unsupported);
        let reply = ask_to_meet(&connection, to, here).await;
        assert_eq!(Status::from_code(reply.status), Status::Ok);
        let meeting = MeetReply::decode(V1, &reply.body).expect("a place");
        let guess = come_in(meeting, meeting.ticket ^ 1).await;
        assert!(guess.is_none(), "no such ticket");
        let (channel, said) = come_in(meeting, meeting.ticket).await.expect("let in");
        assert_eq!(said, Packet::Welcome { proof: 77 });
        assert!(come_in(meeting, meeting.ticket).await.is_none(), "used up");
        // What is no chunk is refused, what makes no sense ends the channel.
        for found in [1 << 32 | 5, 2 << 32 | 9, 3 << 32, 1 << 32 | 0xffff_ffff] {
            let segment = SegmentId::from_wire(found);
            let packet = Packet::Map { segment };
            channel.send(&packet.encode(), &[]).expect("there is room");
            let answer = channel.recv().await.expect("it answers");
            let answer = Packet::decode(&answer.expect("open").bytes);
            assert_eq!(answer, Ok(Packet::Refused { segment }));
        }
        channel.send(b"x", &[]).expect("there is room");
        assert!(channel.recv().await.expect("an end").is_none());
    });
}

/// Meets an owner as a reader, and is let in.
pub(crate) async fn let_in(connection: &Connection, to: Seat) -> LocalChannel {
    let here = boot_id().expect("a kernel");
    let reply = ask_to_meet(connection, to, here).await;
    let meeting = MeetReply::decode(V1, &reply.body).expect("a place");
    let (channel, _) = come_in(meeting, meeting.ticket).await.expect("let in");
    channel
}

/// Asks for a file, which nobody else can write, and which is as long as is said.
async fn is_handed_out(channel: &LocalChannel, segment: SegmentId) -> bool {
    let packet = Packet::Map { segment };
    channel.send(&packet.encode(), &[]).expect("there is room");
    let answer = channel.recv().await.expect("it answers").expect("open");
    let Ok(Packet::Memory { len_bytes, .. }) = Packet::decode(&answer.bytes) else {
        return false;
    };
    let [file] = <[OwnedFd; 1]>::try_from(answer.descriptors).expect("a file");
    let words = usize::try_from(len_bytes / 8).expect("few");
    let written = Words::map(file.try_clone().expect("a descriptor"), words);
    written.is_err() && WordsView::map(file, words).is_ok()
}

#[test]
fn what_is_shown_is_handed_out_and_who_tells_nonsense_is_sent_away() {
    const TOLD_WORDS: usize = 8 + 4096;
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 1000).await;
        let (connection, to) = stranger(&client).await;
        let told = Packet::Memory {
            segment: SegmentId::from_wire(2 << 32 | 3),
            offset_bytes: 0,
            len_bytes: 8 * TOLD_WORDS as u64,
        };
        let ring = Words::new(TOLD_WORDS, false).expect("memory");
        let short = Words::new(TOLD_WORDS - 1, false).expect("memory");
        let locked = Words::new(TOLD_WORDS, true).expect("memory");
        let (ring, short, locked) = (ring.as_fd(), short.as_fd(), locked.as_fd());
        for (files, is_good) in [
            (vec![ring], true),
            (vec![short], false),
            (vec![locked], false),
            (vec![], false),
            (vec![ring, ring], false),
        ] {
            let channel = let_in(&connection, to).await;
            for part in 0..3 {
                let segment = SegmentId::from_wire(2 << 32 | part);
                assert!(is_handed_out(&channel, segment).await, "part {part}");
            }
            channel.send(&told.encode(), &files).expect("there is room");
            let segment = SegmentId::from_wire(3 << 32);
            let is_open = channel.send(&Packet::Map { segment }.encode(), &[]).is_ok()
                && channel.recv().await.is_ok_and(|answer| answer.is_some());
            assert_eq!(is_open, is_good, "{} files", files.len());
            if is_good {
                // Once is enough.
                channel.send(&told.encode(), &files).expect("there is room");
                assert!(channel.recv().await.expect("an end").is_none());
            }
        }
    });
}

#[test]
fn a_secret_is_needed_as_for_everything() {
    run(0, || async {
        let secrets = Secrets::parse(&[b's'; 32]).expect("long enough");
        let scene = Scene::secret(1, 64 * MIB, secrets).await;
        let near = scene.client_from(Some(0)).await;
        scene.put(&near, 1, 1, 100_000).await;
        meet(&near, 1, &[(1, 100_000)]).await;
        let before = near.one_sided().reads;
        scene.expect(&near, 1, 100_000).await;
        assert_eq!(near.one_sided().reads, before + 1);
    });
}

#[test]
fn what_is_described_is_held_for_a_while() {
    run(0, || async {
        let scene = Scene::of(1, 2 * MIB).await;
        let client = scene.client_from(None).await;
        scene.put(&client, 0, 0, 60_000).await;
        let (connection, to) = stranger(&client).await;
        let name = key(0);
        let wish = NearWish {
            from_bytes: 60_000,
            is_again: false,
            hold: HoldWish {
                holder: 7,
                ttl_ms: 4000,
            },
        };
        let message = GetMessage {
            epoch: client.map().epoch(),
            asker: AskerId(7),
            request: RequestId(1),
            to,
            namespace: NamespaceKind::Cache,
            ranges: Vec::new(),
            key: Key::new(&name).expect("a key"),
        };
        let find = async |wish: NearWish| {
            let body = |out: &mut Vec<u8>| {
                wish.encode(V1, out);
                message.encode(V1, out);
            };
            let attachments = Attachments {
                payload: None,
                room: Some(room(60_000)),
                arrange: None,
            };
            let asked = connection.call(Op::FindNear.code(), body, attachments, PATIENCE);
            asked.await.expect("it answers")
        };
        let reply = find(wish).await;
        assert_eq!(Status::from_code(reply.status), Status::Described);
        let described = Described::decode(V1, &reply.body).expect("a place");
        assert_eq!(described.descriptor.len_bytes, 60_000);
        assert_eq!(described.descriptor.held_ms, 4000);
        assert_eq!(described.bytes.object_len_bytes, 60_000);
        let same = Described::decode(V1, &find(wish).await.body).expect("a place");
        assert_eq!(same.descriptor.number, described.descriptor.number);
        for n in 1..80 {
            scene.put(&client, n, n, 60_000).await;
        }
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
        scene.expect(&client, 0, 60_000).await;
        let longer = NearWish {
            from_bytes: 60_001,
            ..wish
        };
        let reply = find(longer).await;
        assert_eq!(Status::from_code(reply.status), Status::Ok);
        assert_eq!(reply.payload_len_bytes, 60_000);
    });
}

#[test]
fn threads_have_it_by_their_handles() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 1 << 20).await;
        meet(&client, 1, &[(1, 1 << 20)]).await;
        let before = client.one_sided().reads;
        let handle = client.handle().expect("a handle");
        let bytes = handle.get_bytes(key(1)).await.expect("an answer");
        assert!(bytes.expect("a hit") == pattern(1, 1 << 20).as_slice());
        assert_eq!(client.one_sided().reads, before + 1);
    });
}
