//! Topologies saved by hwloc, read by libhwloc: a server with two sockets, a laptop, a socket split
//! into four NUMA nodes; and this machine.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

use lunette_hwloc::{TopologyError, XML_BYTES_MAX, load, load_xml};
use lunette_runtime::topology::{Cache, Core, Locality, PciAddress, Topology, cpus};

fn saved(name: &str) -> Topology {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/topology");
    load_xml(&folder.join(name)).expect("a saved topology")
}

fn at(package: usize, numa: usize) -> Locality {
    Locality {
        package: Some(package),
        numa: Some(numa),
    }
}

#[test]
fn each_device_of_a_server_is_next_to_its_socket() {
    let server = saved("two_sockets_8_nics_8_gpus.xml");
    assert_eq!(server.packages.len(), 2);
    assert_eq!(
        server.packages[1].model.as_deref(),
        Some("Intel(R) Xeon(R) Platinum 8480C")
    );
    let memory: Vec<_> = server
        .numa_nodes
        .iter()
        .map(|node| (node.os_index, node.package, node.memory_bytes))
        .collect();
    assert_eq!(memory, [(0, Some(0), 1 << 40), (1, Some(1), 1 << 40)]);

    let rdma: Vec<_> = server
        .nics
        .iter()
        .filter_map(|nic| Some((nic.rdma_device.clone()?, nic.locality)))
        .collect();
    let expected: Vec<_> = (0..8)
        .map(|n| (format!("mlx5_{n}"), at(n / 4, n / 4)))
        .collect();
    assert_eq!(rdma, expected);
    let first = server.nics.iter().find(|nic| nic.rdma_device.is_some());
    let first = first.expect("there are eight");
    assert_eq!(first.interfaces, ["ibp19s0"]);
    assert_eq!(
        first.pci.map(|pci| pci.to_string()).as_deref(),
        Some("0000:13:00.0")
    );
    let written = |bridges: &[PciAddress]| -> Vec<String> {
        bridges.iter().map(PciAddress::to_string).collect()
    };
    let above_switch = ["0000:10:01.0", "0000:11:00.0"];
    let bridges = written(&first.bridges);
    assert_eq!(bridges[..2], above_switch);
    assert_eq!(bridges[2..], ["0000:12:00.0"]);

    let gpus: Vec<_> = server
        .gpus
        .iter()
        .map(|gpu| (gpu.names.join(" "), gpu.locality))
        .collect();
    let expected: Vec<_> = (0..8)
        .map(|n| (format!("nvml{n} cuda{n}"), at(n / 4, n / 4)))
        .collect();
    assert_eq!(gpus, expected, "the console is none");
    assert_eq!(
        server.gpus[0].model.as_deref(),
        Some("NVIDIA H100 80GB HBM3")
    );
    assert_eq!(server.gpus[0].vendor_id, 0x10de);
    let bridges = written(&server.gpus[0].bridges);
    assert_eq!(bridges[..2], above_switch, "below the same switch");

    let drives: Vec<_> = server
        .drives
        .iter()
        .map(|drive| (drive.name.as_deref().expect("a namespace"), drive.locality))
        .collect();
    let expected = [
        ("nvme0n1", at(0, 0)),
        ("nvme1n1", at(0, 0)),
        ("nvme2n1", at(1, 1)),
        ("nvme3n1", at(1, 1)),
    ];
    assert_eq!(drives, expected);
    assert_eq!(server.drives[0].size_bytes, Some(3_840_000_000_000));
}

#[test]
fn cores_have_their_siblings_and_caches_their_sharers() {
    let server = saved("two_sockets_8_nics_8_gpus.xml");
    assert_eq!(server.cores.len(), 32);
    assert_eq!(
        server.cores[17],
        Core {
            index: 17,
            locality: at(1, 1),
            cpus: vec![17, 49],
        }
    );
    let third: Vec<&Cache> = server.caches.iter().filter(|c| c.level == 3).collect();
    assert_eq!(third.len(), 2);
    assert_eq!(third[1].size_bytes, Some(105 << 20));
    let expected: Vec<usize> = (16..32).chain(48..64).collect();
    assert_eq!(third[1].cpus, expected);
    let second = server.caches.iter().filter(|c| c.level == 2);
    assert!(second.clone().all(|cache| cache.cpus.len() == 2));
    assert_eq!(second.count(), 32);
}

#[test]
fn everything_in_a_laptop_is_next_to_its_only_package() {
    let laptop = saved("laptop.xml");
    assert_eq!(laptop.cores.len(), 12);
    assert_eq!(laptop.cores[0].cpus, [0, 1]);
    assert_eq!(laptop.cores[11].cpus, [15]);
    let shared = laptop.caches.last().expect("there are some");
    assert_eq!((shared.level, &shared.cpus[..]), (2, &[12, 13, 14, 15][..]));
    assert_eq!(laptop.numa_nodes[0].package, Some(0));
    assert_eq!(laptop.nics[0].interfaces, ["wlp0s20f3"]);
    assert_eq!(laptop.nics[0].rdma_device, None);
    let model = "WD PC SN810 SDCPNRY-1T00";
    assert_eq!(laptop.drives[0].model.as_deref(), Some(model));
    assert_eq!(laptop.gpus[0].names, ["card0", "renderD128"]);
    for place in [
        laptop.nics[0].locality,
        laptop.drives[0].locality,
        laptop.gpus[0].locality,
    ] {
        assert_eq!(place, at(0, 0));
    }
}

#[test]
fn numa_nodes_of_one_socket_keep_their_devices_apart() {
    let machine = saved("four_numa_nodes.xml");
    let nodes: Vec<_> = machine.numa_nodes.iter().map(|n| n.package).collect();
    assert_eq!(nodes, [Some(0); 4]);
    let third = machine.caches.iter().filter(|c| c.level == 3);
    assert_eq!(third.count(), 8, "two per node");
    assert_eq!(machine.cores[31].locality, at(0, 3));
    let gpus: Vec<_> = machine.gpus.iter().map(|gpu| gpu.locality).collect();
    assert_eq!(gpus, [at(0, 0), at(0, 1), at(0, 2), at(0, 3)]);
    let nics: Vec<_> = machine
        .nics
        .iter()
        .map(|nic| (nic.interfaces.join(" "), nic.rdma_device.as_deref()))
        .collect();
    let expected = [
        ("ens1f0np0".to_owned(), Some("mlx5_0")),
        ("ens1f1np1".to_owned(), Some("mlx5_1")),
        ("bond0".to_owned(), None),
    ];
    assert_eq!(nics, expected);
    assert_eq!(machine.nics[1].locality, at(0, 1));
    let bond = &machine.nics[2];
    assert_eq!((bond.pci, bond.locality.numa), (None, None), "near no node");
    let drives: Vec<_> = machine
        .drives
        .iter()
        .map(|drive| (drive.name.as_deref(), drive.locality))
        .collect();
    let expected = [(Some("nvme0n1"), at(0, 2)), (None, at(0, 2))];
    assert_eq!(drives, expected);
}

#[test]
fn this_machine_has_the_cpus_that_this_process_uses() {
    let machine = load().expect("hwloc reads it");
    for cpu in cpus() {
        let holds = |core: &&Core| core.cpus.contains(&cpu.os_index);
        let core = machine.cores.iter().find(holds).expect("a core");
        assert_eq!(
            core.cpus.first(),
            cpu.core.as_ref(),
            "hwloc and the system agree"
        );
        assert!(cpu.numa_index.is_none() || core.locality.numa == cpu.numa_index);
    }
    assert!(machine.numa_nodes.iter().any(|node| node.memory_bytes > 0));
}

#[test]
fn what_is_no_saved_topology_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.xml");
    let missing = load_xml(&path).expect_err("it is not there");
    assert!(matches!(missing, TopologyError::File { .. }), "{missing}");
    let texts: [&[u8]; 5] = [
        b"",
        b"no XML",
        b"<?xml version=\"1.0\"?><html/>",
        b"<?xml version=\"1.0\"?><topology version=\"2.0\"></topology>",
        b"\xff\xfe<topology",
    ];
    for text in texts {
        fs::write(&path, text).expect("our own");
        let error = load_xml(&path).expect_err("it is something else");
        assert!(
            matches!(error, TopologyError::NotATopology(_)),
            "{error} ({text:?})"
        );
        assert!(error.to_string().contains("lstopo"), "{error}");
    }
}

#[test]
fn saved_topologies_are_read_up_to_their_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.xml");
    let saved = include_str!("topology/laptop.xml");
    let with_length = |len: usize| {
        let mut text = saved.to_owned();
        text.extend(std::iter::repeat_n(' ', len - saved.len()));
        fs::write(&path, text).expect("our own");
        load_xml(&path)
    };
    let longest = with_length(XML_BYTES_MAX).expect("not too long");
    assert_eq!(longest.cores.len(), 12);
    let error = with_length(XML_BYTES_MAX + 1).expect_err("too long");
    assert!(matches!(error, TopologyError::TooLong(_)), "{error}");
}
