//! `cache-sim`.

use std::fs;

use crate::process::run;

#[test]
fn the_optimum_is_above_all_policies() {
    let arguments = [
        "cache-sim",
        "--requests",
        "1500",
        "--capacity-blocks",
        "500,4000",
        "--json",
    ];
    let answer = run(&arguments).ended_with(0).json();
    assert_eq!(answer["requests"], 1500);
    let rows = answer["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        let ratio = |name: &str| row[name].as_f64().expect(name);
        for policy in ["learned", "lru", "s3-fifo", "sieve"] {
            assert!(ratio(policy) <= ratio("optimum"), "{row}");
        }
        let closed = (ratio("learned") - ratio("lru")) / (ratio("optimum") - ratio("lru"));
        assert!((closed - ratio("closed")).abs() < 1e-9, "{row}");
    }
}

#[test]
fn a_trace_file_is_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl").display().to_string();
    let line = |hashes: &str| {
        format!(
            r#"{{"timestamp": 5, "input_length": 700, "output_length": 9, "hash_ids": [{hashes}]}}"#
        )
    };
    let lines = [line("1, 2"), line("3, 4"), line("1, 2"), line("1, 5")];
    fs::write(&path, lines.join("\n")).expect("it is written");
    let arguments = ["cache-sim", "--trace", &path, "--capacity-blocks", "2,9"];
    let done = run(&[&arguments[..], &["--policy", "lru,learned"]].concat()).ended_with(0);
    let text = done.text();
    assert!(
        text.starts_with("4 requests, 8 blocks, 5 of them distinct\n"),
        "{text}"
    );
    let cells: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect())
        .collect();
    let lru = cells[0]
        .iter()
        .position(|&name| name == "lru")
        .expect("a column");
    assert_eq!(
        (cells[1][lru], cells[2][lru]),
        ("0.1250", "0.3750"),
        "{text}"
    );
    let tiers = run(&[&arguments[..], &["--drive-blocks", "5", "--json"]].concat()).ended_with(0);
    let row = &tiers.json()["rows"][0];
    assert_eq!(
        (&row["drive_blocks"], row["both"].as_f64()),
        (&5.into(), Some(0.375)),
        "{row}"
    );
}

#[test]
fn what_is_no_trace_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl").display().to_string();
    fs::write(&path, "{\"timestamp\": 5}\n").expect("it is written");
    let failed = run(&["cache-sim", "--trace", &path]).ended_with(1);
    assert!(
        failed.stderr.contains("line 1: no field `input_length`"),
        "{}",
        failed.stderr
    );
    fs::write(&path, "").expect("it is written");
    let failed = run(&["cache-sim", "--trace", &path]).ended_with(2);
    assert!(
        failed.stderr.contains("the trace holds no request"),
        "{}",
        failed.stderr
    );
    run(&["cache-sim", "--trace", "/nonexistent"]).ended_with(1);
    run(&["cache-sim", "--capacity-blocks", "0"]).ended_with(2);
}
