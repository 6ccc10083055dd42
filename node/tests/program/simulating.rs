//! `simulate`.

use std::fs;

use crate::process::run;

const SMALL: [&str; 8] = [
    "simulate",
    "--requests",
    "300",
    "--prefill",
    "2",
    "--decode",
    "1",
    "--json",
];

#[test]
fn a_seed_always_gives_the_same_answer() {
    let answer = |seed| {
        let arguments = [&SMALL[..], &["--seed", seed, "--policy", "random"]].concat();
        run(&arguments).ended_with(0).json()
    };
    assert_eq!(answer("1"), answer("1"));
    assert_ne!(answer("1"), answer("2"));
}

#[test]
fn every_request_ends_in_one_way() {
    let arguments = [&SMALL[..], &["--speedup", "3", "--seeds", "2"]].concat();
    let answer = run(&arguments).ended_with(0).json();
    let endings = [
        "served",
        "refused_for_prefill",
        "refused_for_decode",
        "dropped",
        "refused_late",
    ];
    let sum: f64 = endings
        .iter()
        .map(|name| answer[name].as_f64().expect(name))
        .sum();
    assert_eq!(sum, 300.0);
    assert!(answer["good_requests_interval"].is_f64());
}

#[test]
fn a_trace_file_is_simulated_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name| folder.path().join(name).display().to_string();
    let (trace, drawing) = (path("trace.jsonl"), path("run.svg"));
    let line = r#"{"timestamp": 5, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]}"#;
    fs::write(&trace, format!("{line}\n{line}\n")).expect("it is written");
    let done = run(&["simulate", "--trace", &trace, "--plot", &drawing]).ended_with(0);
    assert!(done.text().starts_with("2 requests"), "{}", done.text());
    let drawing = fs::read_to_string(drawing).expect("it was drawn");
    assert!(drawing.starts_with("<svg"));
    let image = path("run.png");
    run(&["simulate", "--trace", &trace, "--plot", &image]).ended_with(0);
    let image = fs::read(image).expect("it was drawn");
    assert!(image.starts_with(b"\x89PNG"));
}

#[test]
fn a_figure_says_what_is_met_and_what_is_missed() {
    let done = run(&["simulate", "--figure", "14", "--requests", "1"]).ended_with(0);
    assert!(
        done.text().contains("15 of 15 values of the paper met"),
        "{}",
        done.text()
    );
    let arguments = ["simulate", "--figure", "15", "--requests", "1", "--json"];
    let answer = run(&arguments).ended_with(0).json();
    let rows = answer[0]["rows"].as_array().expect("it has rows");
    assert!(rows.iter().any(|row| row["met"] == true));
    assert!(rows.iter().any(|row| row["met"] == false));
}

#[test]
fn more_of_everything_attains_more() {
    let speed_up = |prefill: &str| {
        let arguments = ["simulate", "--requests", "400", "--decode", "2", "--json"];
        let searched = ["--attain", "0.9", "--prefill", prefill];
        let answer = run(&[&arguments[..], &searched].concat())
            .ended_with(0)
            .json();
        answer["speedup"].as_f64().expect("it was found")
    };
    assert!(speed_up("2") < speed_up("4"));
}

#[test]
fn a_coupled_cluster_serves_a_workload_in_chunks_or_whole_prompts() {
    let coupled = [&SMALL[..], &["--coupled", "--speedup", "2"]].concat();
    let answer = |more: &[&str]| {
        let arguments = [&coupled[..], more].concat();
        run(&arguments).ended_with(0).json()
    };
    let (whole, chunked) = (answer(&[]), answer(&["--chunk", "512"]));
    assert_eq!(whole["cluster"], "coupled");
    for answer in [&whole, &chunked] {
        assert_eq!(answer["served"], 300.0, "nothing is refused");
    }
    let slowest = |answer: &serde_json::Value| answer["tbt_p99_s"].as_f64().expect("a number");
    assert!(slowest(&chunked) < slowest(&whole));
    let uncached = answer(&["--prefix-cache-blocks", "0"]);
    assert_eq!(uncached["hit_tokens"], 0.0);
    assert!(whole["hit_tokens"].as_f64() > Some(0.0));
    let searched = [
        "--attain",
        "0.5",
        "--chunk",
        "512",
        "--policy",
        "cache-aware",
    ];
    let arguments = [&SMALL[..], &["--coupled"], &searched].concat();
    let found = run(&arguments).ended_with(0).json();
    assert!(found["speedup"].as_f64() > Some(0.25), "{found}");
    let folder = tempfile::tempdir().expect("a folder");
    let drawing = folder.path().join("run.svg").display().to_string();
    let drawn = run(&[&coupled[..7], &["--coupled", "--plot", &drawing]].concat()).ended_with(0);
    assert!(drawn.text().contains("coupled"), "{}", drawn.text());
    let drawing = fs::read_to_string(drawing).expect("it was drawn");
    assert!(drawing.starts_with("<svg"));
}

#[test]
fn more_instances_are_bound_to_more() {
    let answer = |prefill: &str| {
        let arguments = [
            "simulate",
            "--bound",
            "0.95",
            "--json",
            "--prefill",
            prefill,
        ];
        run(&arguments).ended_with(0).json()
    };
    let (few, many) = (answer("8"), answer("12"));
    assert!(few["speedup"].as_f64() < many["speedup"].as_f64());
    assert_eq!(few["ttft_mean_s"], many["ttft_mean_s"]);
    let said = run(&["simulate", "--bound", "1", "--requests", "9"]).ended_with(0);
    assert!(said.text().contains("no rules"), "{}", said.text());
}

#[test]
fn what_is_no_rule_and_no_share_ends_with_2() {
    for wrong in [
        ["--coupled", "--policy=ours"],
        ["--coupled", "--admission=early"],
        ["--coupled", "--chunk=0"],
        ["--coupled", "--grid"],
        ["--chunk", "512"],
        ["--policy", "best"],
        ["--attain", "1.5"],
        ["--prefill", "0"],
        ["--figure", "4"],
    ] {
        run(&[&["simulate"], &wrong[..]].concat()).ended_with(2);
    }
}
