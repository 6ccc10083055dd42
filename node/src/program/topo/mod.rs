//! `lunette topo`: the machine, or a saved one.
//!
//! | module | subject |
//! |---|---|
//! | `tree` | the tree that people read |
//! | `matrix` | which adapters are near which memory |
//! | `ranges` | lists of CPUs, written and read as the system does |

mod matrix;
pub(super) mod ranges;
mod tree;

use lunette::hwloc;
use lunette::runtime::topology::{self, Locality, PciAddress, Topology};
use lunette::transfer::topology as adapters;
use serde_json::{Value, json};

use super::arguments::TopoArguments;
use super::failure::Failure;
use super::output;
use matrix::Nearness;

pub(super) fn topo(arguments: &TopoArguments, as_json: bool) -> Result<(), Failure> {
    let (machine, usable, with_adapters) = match &arguments.xml {
        Some(path) => {
            let machine = hwloc::load_xml(path)?;
            let with_adapters = adapters::saved(&machine);
            (machine, None, with_adapters)
        }
        None => {
            let machine = hwloc::load()?;
            let with_adapters = adapters::load(Some(&machine));
            (machine, Some(usable_cpus()), with_adapters)
        }
    };
    let (said, peer) = (arguments.matrix.as_deref(), arguments.peer.as_deref());
    let nearness = Nearness::new(with_adapters, said, peer)?;
    if as_json {
        let mut object = object(&machine);
        nearness.add_to(&mut object);
        if let Some(usable) = usable {
            object["usable_cpus"] = json!(usable);
        }
        return output::line(&object.to_string());
    }
    let mut text = tree::tree(&machine);
    if let Some(usable) = usable {
        let cpus = ranges::ranges(&usable);
        text.push_str(&format!("this process may use CPUs {cpus}\n"));
    }
    text.push('\n');
    text.push_str(&nearness.table());
    output::raw(text.as_bytes())
}

/// The CPUs that this process may use, ascending.
pub(super) fn usable_cpus() -> Vec<usize> {
    topology::cpus().iter().map(|cpu| cpu.os_index).collect()
}

fn object(machine: &Topology) -> Value {
    json!({
        "packages": list(&machine.packages, |package| json!({
            "index": package.os_index,
            "model": package.model,
        })),
        "numa_nodes": list(&machine.numa_nodes, |node| json!({
            "index": node.os_index,
            "package": node.package,
            "memory_bytes": node.memory_bytes,
        })),
        "caches": list(&machine.caches, |cache| json!({
            "level": cache.level,
            "size_bytes": cache.size_bytes,
            "cpus": cache.cpus,
        })),
        "cores": list(&machine.cores, |core| located(core.locality, json!({
            "index": core.index,
            "cpus": core.cpus,
        }))),
        "nics": list(&machine.nics, |nic| located(nic.locality, json!({
            "interfaces": nic.interfaces,
            "rdma_device": nic.rdma_device,
            "pci": nic.pci.map(text_of),
        }))),
        "drives": list(&machine.drives, |drive| located(drive.locality, json!({
            "name": drive.name,
            "model": drive.model,
            "size_bytes": drive.size_bytes,
            "pci": drive.pci.map(text_of),
        }))),
        "gpus": list(&machine.gpus, |gpu| located(gpu.locality, json!({
            "names": gpu.names,
            "model": gpu.model,
            "pci": text_of(gpu.pci),
        }))),
    })
}

fn list<T>(items: &[T], object: impl Fn(&T) -> Value) -> Vec<Value> {
    items.iter().map(object).collect()
}

fn located(locality: Locality, mut object: Value) -> Value {
    object["package"] = json!(locality.package);
    object["numa"] = json!(locality.numa);
    object
}

fn text_of(address: PciAddress) -> String {
    address.to_string()
}
