//! `lunette nvme`.

use std::fs;

use rustix::process::Signal;

use crate::process::{Node, await_that, lunette, run, run_with_input, send};

#[test]
fn a_disk_is_reached_by_the_ports_that_its_server_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().join("states");
    fs::write(&states, "# nothing yet\n").expect("written");
    let states = states.to_str().expect("a path");
    let server = Node::spawn(&mut lunette(&[
        "nvme",
        "serve",
        "--json",
        "--memory",
        "4MiB",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
        "--ana",
        "optimized",
        "--ana",
        "non-optimized",
        "--ana-file",
        states,
    ]));
    let addresses = server.ready["addresses"].as_array().expect("a list");
    let at = |index: usize| addresses[index].as_str().expect("an address");
    let by_both = |command| {
        [
            "nvme",
            command,
            at(0),
            "--path",
            at(1),
            "--path-policy",
            "queue-depth",
        ]
    };
    let bytes: Vec<u8> = (0..3 << 20)
        .map(|at: u32| at.to_le_bytes()[at as usize % 3])
        .collect();
    run_with_input(&by_both("write"), &bytes).ended_with(0);
    let length = ["--length", "3145728"];
    let read = |arguments: &[&str]| run(&[arguments, &length].concat());
    assert!(read(&by_both("read")).ended_with(0).stdout == bytes);

    // The first port loses the disk while the server runs.
    fs::write(states, format!("{} persistent-loss\n", at(0))).expect("written");
    send(&server.child, Signal::HUP);
    await_that("the port has lost the disk", || {
        let refused = read(&["nvme", "read", at(0)]);
        refused.code == Some(1) && refused.stderr.contains("have lost the namespace")
    });
    assert!(read(&by_both("read")).ended_with(0).stdout == bytes);
    assert!(read(&["nvme", "read", at(1)]).ended_with(0).stdout == bytes);

    // What makes no sense changes nothing.
    fs::write(states, format!("{} optimized\nnonsense\n", at(0))).expect("written");
    send(&server.child, Signal::HUP);
    assert!(read(&by_both("read")).ended_with(0).stdout == bytes);
    read(&["nvme", "read", at(0)]).ended_with(1);
}

#[test]
fn a_disk_is_served_by_several_cores() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk");
    fs::write(&file, vec![0; 4 << 20]).expect("written");
    let file = file.to_str().expect("a path");
    for medium in [["--memory", "4MiB"], ["--file", file]] {
        let arguments = [
            "nvme",
            "serve",
            "--json",
            "--cores",
            "2",
            "--listen",
            "127.0.0.1:0",
        ];
        let mut server = Node::spawn(&mut lunette(&[&arguments[..], &medium].concat()));
        let bytes: Vec<u8> = (0..4 << 20)
            .map(|at: u32| at.to_le_bytes()[at as usize % 3])
            .collect();
        // Connections go to the cores in turn.
        let path = ["--path", server.address()];
        run_with_input(
            &[&["nvme", "write", server.address()][..], &path].concat(),
            &bytes,
        )
        .ended_with(0);
        for _ in 0..3 {
            assert!(
                run(&["nvme", "read", server.address()])
                    .ended_with(0)
                    .stdout
                    == bytes
            );
        }
        send(&server.child, Signal::TERM);
        assert_eq!(server.wait().0, Some(0));
    }
}

/// A server of 4 MiB in memory.
fn serve_memory() -> Node {
    let medium = ["--memory", "4MiB", "--listen", "127.0.0.1:0"];
    Node::spawn(&mut lunette(
        &[&["nvme", "serve", "--json"][..], &medium].concat(),
    ))
}

#[test]
fn a_bench_says_what_became_of_reads_that_were_sent_twice() {
    let server = serve_memory();
    let at = server.address();
    let arguments = ["nvme", "bench", at, "--path", at, "--hedge", "1us"];
    let measured = run(&[&arguments[..], &["--seconds", "1", "--depth", "4"]].concat());
    let measured = measured.ended_with(0).json();
    let (commands, sent) = (
        measured["commands"].as_u64(),
        measured["hedged"]["sent"].as_u64(),
    );
    let (commands, sent) = (commands.expect("a number"), sent.expect("a number"));
    assert!(sent > 0 && sent * 100 <= (commands + 4) * 5, "{measured}");
}

#[test]
fn too_many_paths_are_refused() {
    let mut arguments = vec!["nvme", "read", "127.0.0.1:1"];
    arguments.extend(["--path", "127.0.0.1:1"].repeat(16));
    let refused = run(&arguments).ended_with(2);
    assert!(refused.stderr.contains("at most 16 paths"), "{refused:?}");
}

#[test]
fn a_bench_of_several_cores_counts_what_all_of_them_did() {
    let server = serve_memory();
    let at = server.address();
    let arguments = ["nvme", "bench", at, "--seconds", "1", "--depth", "4"];
    for more in [
        &["--cores", "2"][..],
        &["--cores", "2", "--sequential", "--write"],
    ] {
        let measured = run(&[&arguments[..], more].concat()).ended_with(0).json();
        let of = |name: &str| measured[name].as_f64().expect("a number");
        // The time of the slower core, which is hardly longer than was asked for.
        let per_s = of("commands") / of("iops");
        assert!((0.9..2.0).contains(&per_s), "{measured}");
        let by_core = measured["commands_by_core"].as_array().expect("a list");
        let by_core: Vec<u64> = by_core.iter().filter_map(|count| count.as_u64()).collect();
        assert!(
            by_core.len() == 2 && by_core.iter().all(|&count| count > 0),
            "{measured}"
        );
        assert_eq!(Some(by_core.iter().sum()), measured["commands"].as_u64());
    }
    let refused = run(&[&arguments[..], &["--cores", "0"]].concat()).ended_with(2);
    assert!(refused.stderr.contains("1..=64"), "{refused:?}");
}
