//! Dependencies between our packages only go down.
//!
//! Every package of the workspace stands on a floor of the table below and may use packages of
//! lower floors alone, so two packages of one floor never use each other. What several protocols
//! agree on, the map of the cluster, stands on a floor between them and what all packages use. Side
//! packages may use everything that is not a side package, and nothing may use them. What tests draw is
//! for side packages, and for the tests of all others.

use super::Finding;
use super::tree::{Package, Tree};

const RULE: &str = "floors";

/// Where a package stands, from the bottom up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Floor {
    /// Sans-IO, used by every other package.
    PureBase,
    /// Sans-IO: what several protocols agree on.
    PureShared,
    /// Sans-IO: a protocol or a policy.
    Pure,
    /// The layout of a foreign library.
    Abi,
    /// 0: drivers and executor.
    Runtime,
    /// 1: devices.
    Device,
    /// 2: moving bytes between nodes.
    Transfer,
    /// 3: services that never use each other.
    Service,
    /// 4: the program.
    Node,
    /// 5: what programs in other languages see.
    Face,
    /// What tests draw.
    Drawn,
    /// Beside the product: measures it, attacks it, drives it.
    Side,
}

const FLOORS: [(&str, Floor); 30] = [
    ("lunette-runtime-core", Floor::PureBase),
    ("lunette-transfer-proto", Floor::Pure),
    ("lunette-auth", Floor::Pure),
    ("lunette-cluster-proto", Floor::PureShared),
    ("lunette-kvstore-proto", Floor::Pure),
    ("lunette-kvstore-log", Floor::Pure),
    ("lunette-kvstore-policy", Floor::PureShared),
    ("lunette-p2p-proto", Floor::Pure),
    ("lunette-conductor-policy", Floor::Pure),
    ("lunette-verbs-proto", Floor::Pure),
    ("lunette-nvmeof-proto", Floor::Pure),
    ("lunette-gpu-proto", Floor::Pure),
    ("rdma-core-sys", Floor::Abi),
    ("lunette-runtime", Floor::Runtime),
    ("lunette-hwloc", Floor::Device),
    ("lunette-verbs", Floor::Device),
    ("lunette-nvmeof", Floor::Device),
    ("lunette-gpu", Floor::Device),
    ("lunette-transfer", Floor::Transfer),
    ("lunette-cluster", Floor::Transfer),
    ("lunette-kvstore", Floor::Service),
    ("lunette-p2p", Floor::Service),
    ("lunette-conductor", Floor::Service),
    ("lunette", Floor::Node),
    ("lunette-python", Floor::Face),
    ("lunette-generate", Floor::Drawn),
    ("lunette-bench", Floor::Side),
    ("lunette-fuzz", Floor::Side),
    ("lunette-sim", Floor::Side),
    ("xtask", Floor::Side),
];

/// The floor of a package of the workspace, if the table knows it.
pub(super) fn floor_of(name: &str) -> Option<Floor> {
    FLOORS.iter().find(|row| row.0 == name).map(|row| row.1)
}

impl Floor {
    /// Whether packages of this floor are sans-IO.
    pub(super) fn is_pure(self) -> bool {
        matches!(self, Self::PureBase | Self::PureShared | Self::Pure)
    }

    fn may_use(self, below: Self) -> bool {
        below < self && below != Self::Side
    }
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &tree.packages {
        let Some(floor) = floor_of(&package.name) else {
            findings.push(unknown(tree, package));
            continue;
        };
        findings.extend(upward_edges(tree, package, floor));
    }
    findings
}

fn unknown(tree: &Tree, package: &Package) -> Finding {
    Finding {
        path: package.manifest(),
        line: tree.manifest_line(package, "name"),
        rule: RULE,
        what: format!("package `{}` stands on no floor", package.name),
        remedy: "add it to FLOORS in xtask/src/tidy/floors.rs",
    }
}

fn upward_edges(tree: &Tree, package: &Package, floor: Floor) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dependency in &package.dependencies {
        let Some(used) = floor_of(&dependency.name) else {
            continue;
        };
        let is_for_tests = dependency.is_dev && used == Floor::Drawn;
        if floor.may_use(used) || is_for_tests {
            continue;
        }
        findings.push(Finding {
            path: package.manifest(),
            line: tree.manifest_line(package, &dependency.name),
            rule: RULE,
            what: format!(
                "`{}` ({floor:?}) uses `{}` ({used:?})",
                package.name, dependency.name
            ),
            remedy: "use lower floors only: move what is shared down, or invert the edge",
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{file, package};
    use super::*;

    fn found(packages: Vec<Package>) -> Vec<Finding> {
        check(&Tree {
            packages,
            ..Tree::default()
        })
    }

    #[test]
    fn edges_that_go_down_are_fine() {
        let node = package(
            "lunette",
            "node",
            &["lunette-kvstore", "lunette-runtime-core"],
        );
        let proto = package("lunette-kvstore-proto", "b", &["lunette-cluster-proto"]);
        let fuzz = package("lunette-fuzz", "fuzz", &["lunette-transfer-proto", "slab"]);
        assert_eq!(found(vec![node, proto, fuzz]), []);
    }

    #[test]
    fn an_edge_up_across_or_to_the_side_is_caught() {
        for (user, used) in [
            ("lunette-runtime", "lunette-transfer"),
            ("lunette-kvstore-proto", "lunette-transfer-proto"),
            ("lunette-cluster-proto", "lunette-kvstore-proto"),
            ("lunette-runtime-core", "lunette-kvstore-proto"),
            ("lunette", "lunette-bench"),
            ("lunette-bench", "lunette-fuzz"),
        ] {
            let findings = found(vec![package(user, "a", &[used])]);
            assert_eq!(findings.len(), 1, "{user} uses {used}");
        }
    }

    #[test]
    fn tests_of_any_package_may_draw_and_nothing_else_of_the_product_may() {
        for is_dev in [true, false] {
            let mut proto = package("lunette-cluster-proto", "c", &["lunette-generate"]);
            proto.dependencies[0].is_dev = is_dev;
            assert_eq!(found(vec![proto]).is_empty(), is_dev);
        }
        let sim = package("lunette-sim", "sim", &["lunette-generate"]);
        assert_eq!(found(vec![sim]), []);
    }

    #[test]
    fn dev_dependencies_count_too() {
        let mut runtime = package("lunette-runtime", "runtime", &["lunette-kvstore"]);
        runtime.dependencies[0].is_dev = true;
        assert_eq!(found(vec![runtime]).len(), 1);
    }

    #[test]
    fn a_package_without_a_floor_is_caught_at_its_name() {
        let tree = Tree {
            files: vec![file(
                "new/Cargo.toml",
                "[package]\nname = \"lunette-new\"\n",
            )],
            packages: vec![package("lunette-new", "new", &[])],
            ..Tree::default()
        };
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].path.as_str(), findings[0].line),
            ("new/Cargo.toml", 2)
        );
    }
}
