//! What holds over every provider.

use lunette_verbs::{
    Context, Piece, QueuePair, QueueSizes, Ready, RequestError, SharedReceives, Slab,
};
use lunette_verbs_proto::status::Status;

use super::{ALL, End, join, random, soon};

/// A queue pair of each device, connected with each other.
type Joined = (QueuePair<Ready>, QueuePair<Ready>);

/// Bytes go there and back as they are.
pub(crate) async fn bytes_go_there_and_back(a: &End, b: &End) {
    let remote = b.window.remote();
    let bulk: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let written = a.pair.write(a.piece(&bulk), bulk.len(), remote, soon());
    let (done, piece) = written.await;
    assert_eq!(done, Ok(()));
    a.confirm(b).await;
    assert!(b.seen(0, bulk.len()) == bulk, "300 kB arrive as they were");
    let piece = piece.expect("it comes back");
    let (done, piece) = a.pair.read(piece, 1000, remote.at(1), soon()).await;
    assert_eq!(done, Ok(()));
    let piece = piece.expect("it comes back");
    assert_eq!(piece.as_slice()[..1000], bulk[1..1001]);
    let inline = a.pair.write_inline(&[9; 64], remote.at(64), soon());
    assert_eq!(inline.await.0, Ok(()));
    a.confirm(b).await;
    assert_eq!(
        b.seen(63, 66),
        [&bulk[63..64], &[9; 64], &bulk[128..129]].concat()
    );
}

/// Atomics change a word at the peer, and tell what it was.
pub(crate) async fn atomics_change_a_word(a: &End, b: &End) {
    let remote = b.window.remote().at(512);
    let word = |piece: Option<Piece>| {
        let piece = piece.expect("it comes back");
        u64::from_ne_bytes(piece.as_slice()[..8].try_into().expect("8 bytes"))
    };
    b.window.write(512, &7_u64.to_ne_bytes());
    let (done, piece) = a.pair.fetch_add(a.piece(&[0; 8]), remote, 5, soon()).await;
    assert_eq!((done, word(piece), b.window.load(512)), (Ok(()), 7, 12));
    for (compare, swap, after) in [(7, 99, 12), (12, 99, 99)] {
        let before = b.window.load(512);
        let swapped = (a.pair).compare_swap(a.piece(&[0; 8]), remote, (compare, swap), soon());
        let (done, piece) = swapped.await;
        assert_eq!(
            (done, word(piece), b.window.load(512)),
            (Ok(()), before, after)
        );
    }
}

/// Messages end receives in order.
pub(crate) async fn messages_meet_receives(a: &End, b: &End) {
    for _ in 0..2 {
        b.pair.post_receive(b.piece(&[0; 16])).expect("room");
    }
    let requests = [
        a.pair.send(a.piece(b"first"), 5, soon()),
        a.pair.send_inline(b"2nd", soon()),
    ];
    for request in requests {
        assert_eq!(request.await.0, Ok(()));
    }
    for expected in [&b"first"[..], b"2nd"] {
        let arrival = b.pair.arrival().await.expect("open");
        let len = arrival.len_bytes as usize;
        assert_eq!(
            (&arrival.piece.as_slice()[..len], arrival.immediate),
            (expected, None)
        );
    }
}

/// Notices end receives in order, with bytes or without.
pub(crate) async fn notices_meet_receives(a: &End, b: &End) {
    for _ in 0..3 {
        b.pair.post_receive(b.piece(&[0; 16])).expect("room");
    }
    let remote = b.window.remote();
    let bulk = a
        .pair
        .write_immediate(a.piece(b"bulk"), 4, remote, 77, soon());
    let few = a
        .pair
        .write_inline_immediate(b"few", remote.at(8), 78, soon());
    let bare = a.pair.notify(0x0102_0304, soon());
    let ended = (bulk.await.0, few.await.0, bare.await.0);
    assert_eq!(ended, (Ok(()), Ok(()), Ok(())));
    let first = b.pair.arrival().await.expect("open");
    assert_eq!(
        (first.immediate, b.seen(0, 4)),
        (Some(77), b"bulk".to_vec())
    );
    let next = b.pair.arrival().await.expect("open");
    assert_eq!((next.immediate, b.seen(8, 3)), (Some(78), b"few".to_vec()));
    let second = b.pair.arrival().await.expect("open");
    assert_eq!((second.immediate, second.len_bytes), (Some(0x0102_0304), 0));
}

/// Two queue pairs between the devices, those of the second with receives of one pool.
pub(crate) async fn sharing(
    ends: (&End, &End),
    contexts: (&Context, &Context),
) -> (SharedReceives, Vec<Joined>) {
    let shared = SharedReceives::new(contexts.1, &ends.1.queue, 3).expect("a pool");
    let sizes = QueueSizes {
        sends: 4,
        receives: 1,
        inline_bytes: 64,
    };
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let mut random = random();
        let one = QueuePair::new(contexts.0, &ends.0.queue, sizes, ALL, &mut random).expect("one");
        let other = QueuePair::sharing(contexts.1, &shared, sizes, ALL, &mut random);
        pairs.push(join(one, other.expect("the other")).await);
    }
    (shared, pairs)
}

/// A pool serves the next message of any of its queue pairs, and outlives each.
pub(crate) async fn a_pool_serves_any(ends: (&End, &End), contexts: (&Context, &Context)) {
    let (shared, mut pairs) = sharing(ends, contexts).await;
    let other = ends.1;
    for _ in 0..3 {
        shared.post(other.piece(&[0; 8])).expect("room");
    }
    let full = shared
        .post(other.piece(&[0; 8]))
        .expect_err("three are posted");
    assert_eq!(full.0, RequestError::Full);
    drop(full);
    let own = (pairs[0].1.post_receive(other.piece(&[0; 8]))).expect_err("it has none");
    assert_eq!(own.0, RequestError::Refused);
    drop(own);
    for (pair, word) in pairs.iter().zip([b"to first", b"2 second"]) {
        assert_eq!(pair.0.send_inline(word, soon()).await.0, Ok(()));
        let (number, arrival) = shared.arrival().await.expect("whole");
        assert_eq!(
            (Some(number), arrival.piece.as_slice()),
            (pair.1.number(), &word[..])
        );
    }
    drop(pairs.remove(0));
    assert_eq!(shared.posted(), 1, "a queue pair takes no receive with it");
    assert_eq!(pairs[0].0.send_inline(b"again", soon()).await.0, Ok(()));
    let (_, arrival) = shared.arrival().await.expect("whole");
    assert_eq!((arrival.len_bytes, shared.posted()), (5, 0));
    let refused = pairs[0].0.send_inline(b"nowhere", soon()).await;
    let not_ready = RequestError::Failed(Status::ReceiverNotReady);
    assert_eq!(refused.0, Err(not_ready));
    shared.post(other.piece(&[0; 8])).expect("room");
    let used = other.slab.used_bytes();
    drop(shared);
    assert_eq!(
        other.slab.used_bytes(),
        used,
        "its queue pair holds the pool"
    );
    drop(pairs);
    assert_eq!(other.slab.used_bytes(), used - 512);
}

/// Slabs that lie in one chunk share its registration, which ends with the last.
pub(crate) async fn slabs_share_a_chunk(a: &End, b: &End, context: &Context) {
    let before = context.registered_chunks();
    assert_eq!(before, 1, "that of the rig's slab");
    let region = lunette_runtime::arena().alloc(4096).expect("room");
    let second = Slab::register(context, region).expect("a slab");
    assert_eq!(context.registered_chunks(), 1);
    let mut piece = second.alloc(8).expect("room");
    piece.as_mut_slice().copy_from_slice(b"2nd slab");
    let written = a.pair.write(piece, 8, b.window.remote(), soon()).await;
    assert_eq!((written.0, b.seen(0, 8)), (Ok(()), b"2nd slab".to_vec()));
}
