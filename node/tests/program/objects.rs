//! `lunette put`, `get`, `rm` and `stat`.

use std::fs;

use crate::process::{Node, finish, lunette, run, run_with_input};
use crate::town::{Town, await_members};

#[test]
fn a_round_trip_for_people() {
    let node = Node::start("8MiB", &[]);
    let at = ["--nodes", node.address()];
    let run = |arguments: &[&str]| run(&[arguments, &at].concat());
    let put = run_with_input(&["put", "--nodes", at[1], "key"], b"va\0lue\n").ended_with(0);
    assert_eq!(put.text(), "put key: 7 bytes\n");
    let again = run_with_input(&["put", "--nodes", at[1], "key"], b"other").ended_with(0);
    assert_eq!(again.text(), "key is there already and keeps its bytes\n");
    assert_eq!(run(&["get", "key"]).ended_with(0).stdout, b"va\0lue\n");
    assert_eq!(run(&["stat", "key"]).ended_with(0).text(), "key is there\n");
    let table = run(&["stat"]).ended_with(0);
    assert!(table.text().contains(node.address()), "{}", table.text());
    assert_eq!(run(&["rm", "key"]).ended_with(0).text(), "removed key\n");
    for arguments in [["get", "key"], ["rm", "key"], ["stat", "key"]] {
        let missing = run(&arguments).ended_with(3);
        assert_eq!(missing.text(), "", "{arguments:?}");
        assert!(
            missing.stderr.ends_with("lunette: not found: key\n"),
            "{missing:?}"
        );
    }
}

#[test]
fn a_round_trip_in_json() {
    let node = Node::start("8MiB", &[]);
    let at = ["--json", "--nodes", node.address()];
    let run = |arguments: &[&str]| run(&[arguments, &at].concat());
    let folder = tempfile::tempdir().expect("a folder");
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let (source_name, target_name) = (
        source.to_str().expect("text"),
        target.to_str().expect("text"),
    );
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    fs::write(&source, &bytes).expect("it is written");

    let put = run(&["put", "key", source_name]).ended_with(0).json();
    assert_eq!(
        (&put["bytes"], &put["written"]),
        (&100_000.into(), &true.into())
    );
    let again = run(&["put", "key", source_name]).ended_with(0).json();
    assert_eq!(
        (&again["version"], &again["written"]),
        (&put["version"], &false.into())
    );
    let got = run(&["get", "key", "--output", target_name])
        .ended_with(0)
        .json();
    assert_eq!(got["bytes"], 100_000);
    assert_eq!(fs::read(&target).expect("it was written"), bytes);
    run(&["get", "key"]).ended_with(2);

    let stat = run(&["stat"]).ended_with(0).json();
    let row = &stat["nodes"][0];
    assert_eq!(row["address"], node.address());
    assert_eq!((&row["puts"], &row["touches"]), (&1.into(), &1.into()));
    assert_eq!((&row["gets"], &row["hits"]), (&1.into(), &1.into()));
    assert_eq!(run(&["stat", "key"]).ended_with(0).json()["exists"], true);

    let removed = run(&["rm", "key", "other"]).ended_with(3).json();
    assert_eq!(removed["removed"][0], "key");
    assert_eq!(removed["not_found"][0], "other");
    let missing = run(&["get", "key", "--output", target_name]).ended_with(3);
    assert_eq!(missing.json()["not_found"][0], "key");
    assert_eq!(
        run(&["stat", "key"]).ended_with(3).json()["not_found"][0],
        "key"
    );
}

#[test]
fn tenants_do_not_meet() {
    let town = Town::new();
    let member = Node::spawn(&mut town.member(1, &[]));
    await_members(&member, 1);
    let at = ["--nodes", member.address(), "--tenant"];
    let of = |tenant: &str, words: &[&str]| run(&[words, &at, &[tenant]].concat());
    let put = |tenant: &str, value: &str| {
        let put = [&["put", "key"], &at[..], &[tenant]].concat();
        let put = run_with_input(&put, value.as_bytes()).ended_with(0);
        assert_eq!(put.text(), "put key: 1 bytes\n");
    };
    put("a", "1");
    of("b", &["get", "key"]).ended_with(3);
    of("b", &["stat", "key"]).ended_with(3);
    put("b", "2");
    put("default", "3");
    for (tenant, value) in [("a", "1"), ("b", "2"), ("default", "3")] {
        assert_eq!(of(tenant, &["get", "key"]).ended_with(0).text(), value);
    }
    let other = [&["put", "other"], &at[..], &["a"]].concat();
    run_with_input(&other, b"4").ended_with(0);
    let listed = |tenant: &str, words: &[&str]| {
        let ended = of(tenant, words).ended_with(0);
        let mut keys: Vec<String> = ended.text().lines().map(str::to_owned).collect();
        keys.sort();
        keys
    };
    assert_eq!(listed("a", &["ls"]), ["key", "other"]);
    assert_eq!(listed("a", &["ls", "o"]), ["other"]);
    let found = r#"{"key":"other"}"#;
    assert_eq!(listed("a", &["ls", "o", "--json"]), [found]);
    assert_eq!(listed("default", &["ls"]), ["key"]);
    of("a", &["rm", "key"]).ended_with(0);
    of("a", &["get", "key"]).ended_with(3);
    of("a", &["cluster", "clear"]).ended_with(2);
    let cleared = of("a", &["cluster", "clear", "--yes", "--json"]).ended_with(0);
    let expected = serde_json::json!({ "cleared": true, "tenant": "a", "removed": 1 });
    assert_eq!(cleared.json(), expected);
    // Who is a tenant by the environment does not clear what others have.
    let clear = ["cluster", "clear", "--yes", "--nodes", member.address()];
    let again = finish(lunette(&clear).env("LUNETTE_TENANT", "a")).ended_with(0);
    assert_eq!(again.text(), "0 objects of tenant a are removed\n");
    assert_eq!(listed("a", &["ls"]), [""; 0]);
    assert_eq!(of("b", &["get", "key"]).ended_with(0).text(), "2");
    let unnamed = run(&["get", "key", "--nodes", member.address()]);
    assert_eq!(unnamed.ended_with(0).text(), "3");
    of("", &["get", "key"]).ended_with(2);
    // Nodes that are members of no cluster know none.
    let alone = Node::start("8MiB", &[]);
    let get = ["get", "--nodes", alone.address(), "key", "--tenant"];
    run(&[&get[..], &["a"]].concat()).ended_with(2);
    run(&[&get[..], &["default"]].concat()).ended_with(3);
    run(&["ls", "--nodes", alone.address()]).ended_with(2);
}

#[test]
fn a_value_may_be_empty_and_no_key_may() {
    let node = Node::start("8MiB", &[]);
    let at = ["--nodes", node.address()];
    run(&[&["put", "key"], &at[..]].concat()).ended_with(0);
    assert_eq!(
        run(&[&["get", "key"], &at[..]].concat())
            .ended_with(0)
            .stdout,
        b""
    );
    run(&[&["put", ""], &at[..]].concat()).ended_with(2);
    let longest = "k".repeat(1024);
    run(&[&["put", &longest], &at[..]].concat()).ended_with(0);
    let longer = "k".repeat(1025);
    run(&[&["put", &longer], &at[..]].concat()).ended_with(2);
}

#[test]
fn keys_spread_over_the_nodes_of_the_environment() {
    let nodes = [Node::start("8MiB", &[]), Node::start("8MiB", &[])];
    let list = format!("{},{}", nodes[0].address(), nodes[1].address());
    let run = |arguments: &[&str]| {
        let mut command = lunette(arguments);
        command
            .env("LUNETTE_NODES", &list)
            .output()
            .expect("it starts")
    };
    for index in 0..16 {
        let put = run(&["put", &format!("key-{index}"), env!("CARGO_MANIFEST_PATH")]);
        assert!(put.status.success());
    }
    let got = run(&["get", "key-7"]);
    assert_eq!(
        got.stdout,
        fs::read(env!("CARGO_MANIFEST_PATH")).expect("it is there")
    );
    let stat: serde_json::Value =
        serde_json::from_slice(&run(&["stat", "--json"]).stdout).expect("an object");
    let entries = |index: usize| stat["nodes"][index]["entries"].as_u64().expect("a number");
    assert_eq!(entries(0) + entries(1), 16);
    assert!(entries(0) > 0 && entries(1) > 0, "{stat}");
}

#[test]
fn an_object_that_never_fits_is_refused_with_the_reason() {
    let node = Node::start("1MiB", &[]);
    let put = ["put", "--json", "--nodes", node.address(), "key"];
    let fits = vec![1; 1000 * 1024];
    run_with_input(&put, &fits).ended_with(0);
    let never_fits = vec![1; 1024 * 1024];
    let refused = run_with_input(&["put", "--nodes", put[3], "more"], &never_fits).ended_with(1);
    assert!(
        refused.stderr.contains("the object is larger than"),
        "{}",
        refused.stderr
    );
    let stat = run(&["stat", "--json", "--nodes", put[3]])
        .ended_with(0)
        .json();
    assert_eq!(stat["nodes"][0]["refused_too_large"], 1);
    assert_eq!(stat["nodes"][0]["entries"], 1, "nothing was evicted for it");
}

#[test]
fn a_value_that_no_answer_carries_is_refused_by_nodes_that_are_alone() {
    let node = Node::start("8MiB", &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long");
    let file = fs::File::create(&long).expect("it is made");
    file.set_len((64 << 20) + 1).expect("it is as long");
    let long = long.to_str().expect("text");
    let refused = run(&["put", "--nodes", node.address(), "key", long]).ended_with(1);
    let reason = "longer than 67108864 bytes, which is the longest value there";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    run(&["get", "--nodes", node.address(), "key"]).ended_with(3);
}

#[test]
fn a_full_store_makes_room() {
    let node = Node::start("1MiB", &[]);
    let at = ["--nodes", node.address()];
    let value = vec![1; 700 * 1024];
    for key in ["old", "new"] {
        run_with_input(&[&["put", key], &at[..]].concat(), &value).ended_with(0);
    }
    run(&[&["stat", "old"], &at[..]].concat()).ended_with(3);
    run(&[&["stat", "new"], &at[..]].concat()).ended_with(0);
}

#[test]
fn what_cannot_be_reached_ends_with_4() {
    let mut node = Node::start("1MiB", &[]);
    let address = node.address().to_owned();
    node.child.kill().expect("it runs");
    node.wait();
    for nodes in [address.as_str(), "host.invalid:7400"] {
        let failed = run(&["get", "--nodes", nodes, "key"]).ended_with(4);
        assert!(failed.stderr.contains(nodes), "{}", failed.stderr);
        let failed = run(&["stat", "--json", "--nodes", nodes]).ended_with(4);
        assert_eq!(failed.json()["exit_code"], 4);
    }
    run(&["get", "--nodes", "nonsense", "key"]).ended_with(2);
}
