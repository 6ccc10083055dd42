//! Copies move within memory: what is long finds room where much is free, in pieces.

use lunette_kvstore::{ClusterClient, CoreReport, PutOptions};

use super::on_each_driver::run;
use super::scene::{Scene, is_found, put_in_time};

const MIB: u64 = 1 << 20;
/// There is an eighth more, and 64 MiB, which what is long fills first.
const MEMORY: u64 = 256 * MIB;
const SHORT: usize = 100_000;
const SHORT_COUNT: usize = 2900;
const LONG: usize = 1_000_000;
const LONG_COUNT: usize = 260;

/// Of the short objects one in four is asked for again and again.
fn is_wanted(n: usize) -> bool {
    n.is_multiple_of(4)
}

async fn ask_for_short(client: &ClusterClient) -> usize {
    let mut found = 0;
    for n in (0..SHORT_COUNT).filter(|&n| is_wanted(n)) {
        found += usize::from(is_found(client, n, SHORT).await);
    }
    found
}

#[test]
fn long_objects_find_room_among_short_ones_that_stay() {
    run(0, || async {
        let scene = Scene::of(1, MEMORY).await;
        let client = scene.client().await;
        for n in 0..SHORT_COUNT {
            put_in_time(&client, n, SHORT, PutOptions::default()).await;
            if is_wanted(n) {
                assert!(is_found(&client, n, SHORT).await);
            }
        }
        let mut found = ask_for_short(&client).await;
        for nth in 0..LONG_COUNT {
            put_in_time(&client, SHORT_COUNT + nth, LONG, PutOptions::default()).await;
            if nth % 50 == 0 {
                found = ask_for_short(&client).await;
            }
        }
        let reports: Vec<CoreReport> = scene.reports().await;
        let held = reports[0].stat.shards;
        assert!(reports[0].copies_moved > 0, "{:?}", reports[0]);
        // A few long ones may be on their way out, ahead of what comes next.
        assert!(held.resident_bytes > MEMORY / 8 * 7, "{held:?}");
        assert!(
            found > SHORT_COUNT / 8,
            "those that are asked for stay: {found}"
        );
        let mut long = 0;
        for nth in 0..LONG_COUNT {
            long += usize::from(is_found(&client, SHORT_COUNT + nth, LONG).await);
        }
        assert!(long > 5, "{long}");
    });
}
