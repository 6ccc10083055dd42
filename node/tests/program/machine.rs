//! `lunette doctor` and `lunette topo`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::process::{lunette, run};

fn saved(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../runtime/hwloc/tests/topology").join(name);
    path.to_str().expect("text").to_owned()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list");
    let found = checks.iter().find(|check| check["name"] == name);
    assert!(found.is_some(), "{name} is looked at: {report}");
    found.expect("it is there")
}

#[test]
fn the_doctor_looks_at_everything_and_every_fault_has_its_remedy() {
    let report = run(&["doctor", "--json"]).ended_with(0).json();
    for name in [
        "kernel",
        "io_uring",
        "locked memory",
        "open files",
        "huge pages",
        "transparent huge pages",
        "CPUs",
        "CPU quota",
        "topology",
        "network MTU",
        "RDMA devices",
        "GPUs",
    ] {
        check(&report, name);
    }
    assert_eq!(report["missing"], 0);
    let checks = report["checks"].as_array().expect("a list");
    for check in checks {
        let ok = check["state"] == "ok";
        assert_eq!(ok, check["remedy"].is_null(), "{check}");
    }
    let warnings = checks.iter().filter(|check| check["state"] == "warn");
    assert_eq!(report["warnings"], warnings.count());
}

#[test]
fn the_doctor_sees_the_limits_of_its_own_process() {
    // `ulimit` is a builtin of the shell, which then becomes the program.
    let program = lunette(&[]).get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    let output = shell
        .args(["-c", "ulimit -n 512 && exec \"$0\" doctor --json"])
        .arg(program)
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let files = check(&report, "open files");
    assert_eq!(
        (&files["state"], &files["found"]),
        (&"warn".into(), &"at most 512".into())
    );
    let text = run(&["doctor"]).ended_with(0);
    assert!(text.text().contains("kernel"), "{}", text.text());
    assert!(text.text().ends_with(" missing\n"), "{}", text.text());
}

#[test]
fn this_machines_topology_names_the_cpus_in_use() {
    let topology = run(&["topo", "--json"]).ended_with(0).json();
    let usable = topology["usable_cpus"].as_array().expect("a list");
    assert!(!usable.is_empty());
    let cores = topology["cores"].as_array().expect("a list");
    for cpu in usable {
        let holds = |core: &&Value| core["cpus"].as_array().expect("a list").contains(cpu);
        assert!(cores.iter().any(|core| holds(&core)), "{cpu}: {topology}");
    }
    let text = run(&["topo"]).ended_with(0);
    assert!(text.text().starts_with("package 0: "), "{}", text.text());
    assert!(text.text().contains("this process may use CPUs"));
}

#[test]
fn a_saved_topology_is_a_tree_of_what_is_next_to_what() {
    let path = saved("four_numa_nodes.xml");
    let shown = run(&["topo", "--xml", &path]).ended_with(0);
    let expected = "\
package 0: AMD EPYC 9334 32-Core Processor
  NUMA node 0: 192GiB
    L3 32MiB: CPUs 0-3,32-35
      cores 0-3: CPUs 0+32 1+33 2+34 3+35, L2 1MiB
    L3 32MiB: CPUs 4-7,36-39
      cores 4-7: CPUs 4+36 5+37 6+38 7+39, L2 1MiB
    GPU rsmi0 (AMD Instinct MI210) at 0000:c1:00.0
  NUMA node 1: 192GiB
    L3 32MiB: CPUs 8-11,40-43
      cores 8-11: CPUs 8+40 9+41 10+42 11+43, L2 1MiB
    L3 32MiB: CPUs 12-15,44-47
      cores 12-15: CPUs 12+44 13+45 14+46 15+47, L2 1MiB
    NIC mlx5_0, ens1f0np0 at 0000:82:00.0
    NIC mlx5_1, ens1f1np1 at 0000:82:00.1
    GPU rsmi1 (AMD Instinct MI210) at 0000:81:00.0
";
    let text = shown.text();
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("NVMe drive without a block device"), "{text}");
    assert!(!text.contains("this process"), "it is another machine");
}

#[test]
fn a_saved_topology_in_json_has_the_locality_of_each_device() {
    let path = saved("two_sockets_8_nics_8_gpus.xml");
    let topology = run(&["topo", "--json", "--xml", &path])
        .ended_with(0)
        .json();
    for (list, count) in [("nics", 9), ("gpus", 8), ("drives", 4), ("cores", 32)] {
        let list = topology[list].as_array().expect("a list");
        assert_eq!(list.len(), count, "{list:?}");
        assert!(list.iter().all(|item| item["numa"] == item["package"]));
    }
    let last = &topology["nics"][8];
    assert_eq!(
        (&last["rdma_device"], &last["numa"]),
        (&"mlx5_7".into(), &1.into())
    );
    assert_eq!(topology["usable_cpus"], Value::Null);
}

#[test]
fn a_saved_topology_has_mooncakes_matrix_of_its_adapters() {
    let path = saved("two_sockets_8_nics_8_gpus.xml");
    let topology = run(&["topo", "--json", "--xml", &path])
        .ended_with(0)
        .json();
    let matrix = topology["priority_matrix"].as_object().expect("a matrix");
    assert_eq!(matrix.len(), 1 + 2 + 8, "any, two nodes, eight GPUs");
    for gpu in 0..8 {
        let row = &matrix[&format!("cuda:{gpu}")];
        assert_eq!(row[0], json!([format!("mlx5_{gpu}")]), "below its switch");
        let others = row[1].as_array().expect("a list");
        let rest_of_node: Vec<_> = (gpu / 4 * 4..gpu / 4 * 4 + 4)
            .filter(|&n| n != gpu)
            .collect();
        for (place, nic) in others.iter().filter(|o| *o != "eno1").zip(rest_of_node) {
            assert_eq!(place, &json!(format!("mlx5_{nic}")), "its node comes next");
        }
    }
    let near = |from: usize| (from..from + 4).map(|n| format!("mlx5_{n}"));
    let second: Vec<String> = near(4).collect();
    assert_eq!(matrix["cpu:1"][0], json!(second));
    let adapters = topology["adapters"].as_array().expect("a list");
    assert_eq!(adapters.len(), 9);
    assert_eq!(adapters[8]["pci"], topology["nics"][8]["pci"]);
}

#[test]
fn an_override_file_is_checked_and_a_peers_matrix_makes_pairs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let xml = saved("four_numa_nodes.xml");
    let topo = |more: &[&str]| run(&[&["topo", "--xml", &xml], more].concat());
    let good = file(
        "good.json",
        r#"{"deny":["bond*"],"cpu:2":[["mlx5_1"],["mlx5_0"]]}"#,
    );
    let peer = file(
        "peer.json",
        r#"{"*":[["hfi1"],["hfi2"]],"cpu:2":[["hfi2","hfi3"],[]]}"#,
    );
    let shown = topo(&["--matrix", &good, "--peer", &peer]).ended_with(0);
    let text = shown.text();
    for line in [
        "memory  nearest adapters  then
",
        "cpu:0   -                 mlx5_0 mlx5_1
",
        "cpu:1   mlx5_0 mlx5_1     -
",
        "cpu:2   mlx5_1            mlx5_0
",
        "memory  adapter  the peer's
",
        "cpu:2   mlx5_1   hfi2
",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let both = topo(&["--json", "--matrix", &good, "--peer", &peer]);
    let both = both.ended_with(0).json();
    assert_eq!(
        both["priority_matrix"]["cpu:2"],
        json!([["mlx5_1"], ["mlx5_0"]])
    );
    assert_eq!(
        both["pairs"]["cpu:1"],
        json!({"mlx5_0": "hfi1", "mlx5_1": "hfi1"})
    );
    // What is written is an override file again, and says the same.
    let written = file("written.json", &both["priority_matrix"].to_string());
    let again = topo(&["--json", "--matrix", &written]).ended_with(0).json();
    assert_eq!(again["priority_matrix"], both["priority_matrix"]);

    let cases = [
        ("{\n \"cpu:0\": [[\"mlx5_0\",]]}", "line 2, column 22"),
        (
            r#"{"cpu:0":[["mlx5_9"]]}"#,
            "cpu:0: this machine has no adapter mlx5_9",
        ),
        (
            r#"{"deny":["*"]}"#,
            "none of this machine's adapters is allowed",
        ),
    ];
    for (text, expected) in cases {
        let bad = file("bad.json", text);
        let failed = topo(&["--matrix", &bad]).ended_with(1);
        assert!(failed.stderr.contains(expected), "{}", failed.stderr);
    }
    let failed = topo(&["--peer", "no/such.json"]).ended_with(1);
    assert!(failed.stderr.contains("no/such.json"), "{}", failed.stderr);
}

#[test]
fn a_topology_that_is_none_ends_with_1() {
    let failed = run(&["topo", "--json", "--xml", "no/such.xml"]).ended_with(1);
    assert_eq!(failed.json()["exit_code"], 1);
    assert!(failed.stderr.contains("no/such.xml"), "{}", failed.stderr);
    let manifest = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let failed = run(&["topo", "--xml", &manifest]).ended_with(1);
    assert!(failed.stderr.contains("lstopo"), "{}", failed.stderr);
}
