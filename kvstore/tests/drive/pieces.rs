//! Objects that come back piece by piece.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::drive::{Drive, DriveOptions, InPieces, Loss, PIECE_BYTES, ReadError};
use lunette_kvstore_log::effect::LossCause;
use lunette_runtime::arena::Region;
use lunette_runtime::sim::{DiskOptions, World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, time};

use super::{MIB, Owner, fingerprint, flip_in, key, object, options, reopen_with, run, write};

const LEN: usize = 5_500_000;

fn begin(drive: &Drive, number: u64) -> InPieces {
    let begun = drive.read_in_pieces(fingerprint(number), &key(number), &arena());
    begun.expect("begun").expect("it is there")
}

async fn all(pieces: &mut InPieces) -> Vec<Region> {
    let mut all = Vec::new();
    while let Some(piece) = pieces.next().await {
        all.push(piece);
    }
    all
}

/// Runs a scenario with a drive whose segments have room for long objects.
fn run_long<F: Future<Output = ()> + 'static>(scenario: impl FnOnce(DriveOptions, Rc<Owner>) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let options = long(&folder.path().join("drive"));
    run(|| scenario(options, Rc::new(Owner::default())));
}

fn long(path: &Path) -> DriveOptions {
    let mut options = options(path);
    options.log.geometry.capacity_bytes = 96 * MIB;
    options.log.geometry.segment_bytes = 8 << 20;
    options
}

#[test]
fn an_object_comes_in_pieces_that_are_one_in_memory() {
    run_long(|options, owner| async move {
        let (drive, _) = reopen_with(&options, &owner).await;
        for (number, len) in (1..).zip([1, 100, PIECE_BYTES, PIECE_BYTES + 1, LEN]) {
            write(&drive, number, 1, len).await;
            let mut pieces = begin(&drive, number);
            assert_eq!(pieces.record.len_bytes as usize, len);
            let came = all(&mut pieces).await;
            assert!(came.len() >= len / PIECE_BYTES, "{len}: {}", came.len());
            let found = pieces.whole().await.expect("it is right");
            assert_eq!(found.key(), key(number));
            let (_, bytes) = object(number, 1, len);
            assert!(found.bytes().as_slice() == bytes.as_slice());
            let joined: Vec<_> = came.iter().map(Region::as_slice).collect();
            assert!(joined.concat() == bytes.as_slice());
            assert_eq!(
                came[0].as_slice().as_ptr(),
                found.bytes().as_slice().as_ptr(),
                "not a copy"
            );
        }
        assert!(owner.lost.borrow().is_empty());
    });
}

#[test]
fn what_is_damaged_is_told_at_the_end_and_another_key_at_once() {
    run_long(|options, owner| async move {
        let (drive, _) = reopen_with(&options, &owner).await;
        write(&drive, 1, 1, LEN).await;
        write(&drive, 2, 1, LEN).await;
        let (record, bytes) = object(1, 1, LEN);
        let path = options.medium.to_string();
        flip_in(path.as_ref(), &bytes.as_slice()[LEN - 500..LEN - 400]);
        let mut pieces = begin(&drive, 1);
        assert!(all(&mut pieces).await.len() > 4, "it was not known before");
        assert_eq!(pieces.whole().await.unwrap_err(), ReadError::Damaged);
        let loss = Loss::Drive(LossCause::Damaged);
        let told = (record.fingerprint, record.version, loss);
        assert_eq!(*owner.lost.borrow(), [told]);
        let again = drive.read_in_pieces(record.fingerprint, &key(1), &arena());
        assert!(again.expect("an answer").is_none());
        for other in [&b"another"[..], &[7; 60_000]] {
            let begun = drive.read_in_pieces(fingerprint(2), other, &arena());
            let Some(mut pieces) = begun.expect("begun") else {
                // It was told of the first of them, and is gone.
                continue;
            };
            assert!(pieces.next().await.is_none(), "none of it is another's");
            assert_eq!(pieces.whole().await.unwrap_err(), ReadError::Damaged);
        }
    });
}

#[test]
fn what_nobody_waits_for_any_more_ends_by_itself() {
    run_long(|options, owner| async move {
        let (drive, _) = reopen_with(&options, &owner).await;
        write(&drive, 1, 1, LEN).await;
        let used_bytes = arena().used_bytes();
        let mut pieces = begin(&drive, 1);
        let first = pieces.next().await.expect("a piece");
        drop(pieces);
        let is_freed = async || {
            while arena().used_bytes() > used_bytes {
                time::yield_now().await;
            }
        };
        let waited = time::timeout(Duration::from_millis(20), is_freed()).await;
        assert!(waited.is_err(), "a piece keeps the memory of all");
        drop(first);
        is_freed().await;
        assert!(owner.lost.borrow().is_empty(), "it was right");
    });
}

/// Of a drive that takes as long for many reads as for one, five pieces and a part come in two rounds of four at most.
#[test]
fn four_pieces_are_read_at_a_time() {
    let took = Duration::from_millis(10);
    let options = WorldOptions {
        disk: DiskOptions {
            latency: (took, took),
            capacity_bytes: 256 << 20,
            ..DiskOptions::default()
        },
        ..WorldOptions::default()
    };
    let mut world = World::new(1, options);
    let host = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let process = world.start(host, 1, CoreOptions::default());
    let read = world.spawn(process, 0, || async {
        let owner = Rc::new(Owner::default());
        let (drive, _) = reopen_with(&long("drive".as_ref()), &owner).await;
        write(&drive, 1, 1, LEN).await;
        let begun = time::now();
        let mut came = Vec::new();
        let mut pieces = begin(&drive, 1);
        while pieces.next().await.is_some() {
            came.push(time::now() - begun);
        }
        came
    });
    let until = world.now() + Duration::from_secs(60);
    assert!(world.run_until(until, || read.is_there()), "it is read");
    let rounds = read.take().expect("it is there").into_iter();
    let rounds = rounds.map(|at| at.as_nanos() / took.as_nanos());
    assert_eq!(rounds.collect::<Vec<_>>(), [1, 1, 1, 1, 2, 2]);
}
