//! No foreign event loop in what the product ships.
//!
//! The closure of normal and build dependencies of every product package is walked, with all
//! features on. Dev-dependencies of our own packages are not shipped and do not count.

use std::collections::{BTreeMap, VecDeque};

use super::Finding;
use super::floors::{Floor, floor_of};
use super::tree::{Graph, Package, Tree};

const BANNED: [&str; 5] = ["tokio", "async-std", "smol", "hyper", "reqwest"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let product = tree
        .packages
        .iter()
        .filter(|package| floor_of(&package.name) != Some(Floor::Side));
    product
        .flat_map(|package| banned_below(tree, package))
        .collect()
}

fn banned_below(tree: &Tree, package: &Package) -> Vec<Finding> {
    let chains = chains_from(&tree.graph, &package.name);
    let banned = chains
        .into_iter()
        .filter(|chain| chain.last().is_some_and(|name| BANNED.contains(name)));
    banned
        .map(|chain| Finding {
            path: package.manifest(),
            line: tree.manifest_line(package, chain.get(1).copied().unwrap_or_default()),
            rule: "event-loops",
            what: format!("another event loop is linked in: {}", chain.join(" -> ")),
            remedy: "drop the dependency or the feature that brings it in",
        })
        .collect()
}

/// A shortest chain of names from the package to each package below it.
fn chains_from<'a>(graph: &'a Graph, name: &str) -> Vec<Vec<&'a str>> {
    let mut chains: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut waiting = VecDeque::new();
    for (id, _) in graph
        .names
        .iter()
        .filter(|(_, candidate)| *candidate == name)
    {
        chains.insert(id, vec![graph.names[id].as_str()]);
        waiting.push_back(id.as_str());
    }
    while let Some(id) = waiting.pop_front() {
        for used in graph.uses.get(id).into_iter().flatten() {
            if chains.contains_key(used.as_str()) {
                continue;
            }
            let mut chain = chains[id].clone();
            chain.extend(graph.names.get(used).map(String::as_str));
            chains.insert(used, chain);
            waiting.push_back(used);
        }
    }
    chains.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::package;
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let mut graph = Graph::default();
        for (user, used) in edges {
            for name in std::iter::once(user).chain(*used) {
                graph.names.insert(format!("id of {name}"), (*name).into());
            }
            let used = used.iter().map(|name| format!("id of {name}")).collect();
            graph.uses.insert(format!("id of {user}"), used);
        }
        graph
    }

    #[test]
    fn a_loop_deep_below_is_caught_with_its_chain() {
        let tree = Tree {
            packages: vec![package("lunette", "node", &["client"])],
            graph: graph(&[("lunette", &["client", "slab"]), ("client", &["tokio"])]),
            ..Tree::default()
        };
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].what.ends_with("lunette -> client -> tokio"),
            "{}",
            findings[0]
        );
    }

    #[test]
    fn side_packages_and_cycles_are_no_finding() {
        let tree = Tree {
            packages: vec![
                package("lunette-bench", "bench", &[]),
                package("lunette", "node", &[]),
            ],
            graph: graph(&[
                ("lunette-bench", &["tokio"]),
                ("lunette", &["slab"]),
                ("slab", &["lunette"]),
            ]),
            ..Tree::default()
        };
        assert_eq!(check(&tree), []);
    }
}
