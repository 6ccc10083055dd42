//! `lunette p2p offer` and `lunette p2p follow`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::place::{Place, tensor_of, text};
use crate::process::{Node, await_that, send};

/// Rows of 16 two-byte elements: seven tensors, in buckets of 8 KiB or of one tensor.
const ROWS: [u16; 7] = [100, 60, 400, 7, 250, 90, 120];

fn tensor_name(at: usize) -> String {
    format!("layers.{at}.weight")
}

/// The elements of a tensor of a version, from a row on.
fn elements(version: u16, at: usize, rows: std::ops::Range<u16>) -> Vec<u8> {
    let seed = version * 1000 + u16::try_from(at).expect("few") * 100;
    let each = (rows.start * 16..rows.end * 16).map(|element| element.wrapping_add(seed));
    each.flat_map(u16::to_le_bytes).collect()
}

/// A safetensors file of these tensors.
fn write(path: &Path, version: u16, tensors: &[usize]) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for &at in tensors {
        let begin = data.len();
        data.extend(elements(version, at, 0..ROWS[at]));
        let told = json!({ "dtype": "I16", "shape": [ROWS[at], 16],
                           "data_offsets": [begin, data.len()] });
        header.insert(tensor_name(at), told);
    }
    let header = Value::Object(header).to_string();
    let len = (header.len() as u64).to_le_bytes();
    let file = [&len, header.as_bytes(), &data].concat();
    fs::write(path, file).expect("written");
}

/// Offers a version of the weights, which are in two files.
fn offer(place: &Place, version: u16) -> Node {
    let (one, two) = (place.path("1.safetensors"), place.path("2.safetensors"));
    write(&one, version, &[0, 1, 2, 3]);
    write(&two, version, &[4, 5, 6]);
    let sizes = ["--bucket", "8KiB", "--chunk", "4KiB", "--replace"];
    let files = ["w", text(&one), text(&two)];
    place.start("offer", &[&files[..], &sizes].concat())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|it| it.expect("listed").path()).collect()
}

/// All weights of a version are in the file that was told of.
fn assert_is_all(told: &Value, version: u16) {
    let file = fs::read(told["file"].as_str().expect("a path")).expect("written");
    for (at, &rows) in ROWS.iter().enumerate() {
        let came = tensor_of(&file, &tensor_name(at));
        let whole = elements(version, at, 0..rows);
        assert_eq!(came, (json!([rows, 16]), whole), "{at} of {version}");
    }
}

#[test]
fn each_update_that_is_offered_comes_into_a_file_of_its_own() {
    let place = Place::new();
    let first = offer(&place, 1);
    let bytes: u64 = ROWS.iter().map(|&rows| u64::from(rows) * 32).sum();
    assert_eq!(first.ready["tensors"], ROWS.len());
    assert_eq!(first.ready["bytes"], bytes);
    assert!(first.ready["buckets"].as_u64() > Some(3), "more than slots");
    let folder = place.path("weights");
    let mut follower = place.start("follow", &["w", text(&folder), "--keep", "1"]);
    assert_eq!(follower.ready["update"], first.ready["update"]);
    assert_eq!(follower.ready["bytes"], bytes);
    assert_is_all(&follower.ready, 1);
    // One that begins when there is another takes that.
    let mut second = offer(&place, 2);
    let told = follower.said();
    assert_eq!(told["update"], second.ready["update"]);
    assert_is_all(&told, 2);
    let last = PathBuf::from(told["file"].as_str().expect("a path"));
    await_that("the older file goes", || files(&folder) == [last.clone()]);
    send(&follower.child, Signal::TERM);
    assert_eq!(follower.wait(), (Some(0), String::new()));
    send(&second.child, Signal::TERM);
    assert_eq!(second.wait().0, Some(0));
}

#[test]
fn ranks_take_their_shards_of_an_update() {
    let place = Place::new();
    let _offered = offer(&place, 3);
    for (rank, more) in [(0_u16, &[][..]), (1, &["--lean"][..])] {
        let folder = place.path(&format!("rank-{rank}"));
        let shard = format!("{rank}/2");
        let wanted = [
            "--shard",
            &shard,
            "--tensor",
            "layers.[2*",
            "--tensor",
            "*4.*",
        ];
        let once = ["w", text(&folder), "--once", "--slots", "2"];
        let told = place
            .run("follow", &[&once[..], &wanted, more].concat())
            .ended_with(0)
            .json();
        let file = fs::read(told["file"].as_str().expect("a path")).expect("written");
        let rows = rank * 125..(rank + 1) * 125;
        let came = tensor_of(&file, &tensor_name(4));
        assert_eq!(came, (json!([125, 16]), elements(3, 4, rows)), "{rank}");
        assert_eq!(told["bytes"], 125 * 32, "and no other tensor");
    }
}

#[test]
fn what_does_not_come_is_told_and_leaves_nothing() {
    let place = Place::new();
    let folder = place.path("weights");
    let once = ["w", text(&folder), "--once"];
    place.run("follow", &once).ended_with(3);
    let plain = place.path("plain");
    fs::write(&plain, b"none").expect("written");
    let server = place.start("serve", &["w", text(&plain)]);
    let refused = place.run("follow", &once).ended_with(1).json();
    let error = refused["error"].as_str().expect("an error");
    assert!(error.contains("no update"), "{error}");
    place.run("offer", &["x", text(&plain)]).ended_with(1);
    drop(server);
    let offered = offer(&place, 4);
    place
        .run("follow", &[&once[..], &["--tensor", "none"]].concat())
        .ended_with(3);
    // Where the file is to be there is something else.
    let update = offered.ready["update"].as_str().expect("a number");
    let blocked = folder.join(format!(".{update}.safetensors.part"));
    fs::create_dir(&blocked).expect("a folder");
    place.run("follow", &once).ended_with(1);
    fs::remove_dir(&blocked).expect("as it was");
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
    place.run("follow", &once).ended_with(0);
}
