//! From hwloc's objects to a topology.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes};
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};

use lunette_runtime::topology::{
    Cache, Core, Gpu, Locality, Nic, NumaNode, NvmeDrive, Package, PciAddress, Topology,
};

use super::{TopologyError, XML_BYTES_MAX};

/// PCI classes, the upper 16 bits of the class code (PCI Code and ID Assignment Specification).
const CLASS_NETWORK: u16 = 0x02;
const CLASS_INFINIBAND: u16 = 0x0c06;
const CLASS_NVME: u16 = 0x0108;
const CLASS_VGA: u16 = 0x0300;
const CLASS_DISPLAY: u16 = 0x03;
const CLASS_ACCELERATOR: u16 = 0x12;
/// Makers of VGA devices that compute. Others are the consoles of management controllers.
const VENDORS_OF_GPUS: [u16; 3] = [0x10de, 0x1002, 0x8086];
/// hwloc gives sizes of block devices in this unit.
const BLOCK_SIZE_UNIT_BYTES: u64 = 1024;

pub(crate) fn load() -> Result<Topology, TopologyError> {
    let refused = |error: &dyn std::error::Error| TopologyError::Refused(error.to_string());
    let builder = with_devices(TopologyBuilder::new()).map_err(|error| refused(&error))?;
    let hwloc = builder.build().map_err(|error| refused(&error))?;
    Ok(read(&hwloc))
}

pub(crate) fn load_xml(path: &Path) -> Result<Topology, TopologyError> {
    let not_a_topology = || TopologyError::NotATopology(path.to_owned());
    let text = String::from_utf8(read_bounded(path)?).map_err(|_| not_a_topology())?;
    // hwloc's own parser takes an empty buffer for the end of a good one.
    if !text.contains("<topology") {
        return Err(not_a_topology());
    }
    let builder = TopologyBuilder::new()
        .from_xml(&text)
        .map_err(|_| not_a_topology())?;
    let builder = with_devices(builder).map_err(|_| not_a_topology())?;
    let hwloc = builder.build().map_err(|_| not_a_topology())?;
    Ok(read(&hwloc))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, TopologyError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(XML_BYTES_MAX).expect("a small constant") + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|error| TopologyError::File {
            path: path.to_owned(),
            error,
        })?;
    if bytes.len() > XML_BYTES_MAX {
        return Err(TopologyError::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// hwloc drops devices unless it is asked to keep them.
fn with_devices(
    builder: TopologyBuilder,
) -> Result<TopologyBuilder, hwlocality::errors::RawHwlocError> {
    let keep = |builder: TopologyBuilder, kind| {
        builder
            .with_type_filter(kind, TypeFilter::KeepAll)
            .map_err(|error| match error {
                hwlocality::errors::HybridError::Hwloc(error) => error,
                hwlocality::errors::HybridError::Rust(error) => {
                    unreachable!("devices may be kept: {error}")
                }
            })
    };
    let mut builder = builder;
    for kind in [
        ObjectType::Bridge,
        ObjectType::PCIDevice,
        ObjectType::OSDevice,
        ObjectType::Misc,
    ] {
        builder = keep(builder, kind)?;
    }
    Ok(builder)
}

fn read(hwloc: &Hwloc) -> Topology {
    let mut topology = Topology {
        packages: packages(hwloc),
        numa_nodes: numa_nodes(hwloc),
        caches: caches(hwloc),
        cores: cores(hwloc),
        ..Topology::default()
    };
    for device in hwloc.pci_devices() {
        let Some(ObjectAttributes::PCIDevice(attributes)) = device.attributes() else {
            continue;
        };
        add_pci_device(device, attributes, &mut topology);
    }
    for device in hwloc.os_devices() {
        if pci_of(device).is_none() {
            add_other_device(device, &mut topology);
        }
    }
    topology
}

fn packages(hwloc: &Hwloc) -> Vec<Package> {
    let packages = hwloc.objects_with_type(ObjectType::Package);
    packages
        .enumerate()
        .map(|(index, package)| Package {
            os_index: package.os_index().unwrap_or(index),
            model: text(package.info("CPUModel")),
        })
        .collect()
}

fn numa_nodes(hwloc: &Hwloc) -> Vec<NumaNode> {
    let nodes = hwloc.objects_with_type(ObjectType::NUMANode);
    nodes
        .enumerate()
        .map(|(index, node)| NumaNode {
            os_index: node.os_index().unwrap_or(index),
            package: package_of(node),
            memory_bytes: match node.attributes() {
                Some(ObjectAttributes::NUMANode(attributes)) => {
                    attributes.local_memory().map_or(0, u64::from)
                }
                _ => 0,
            },
        })
        .collect()
}

fn caches(hwloc: &Hwloc) -> Vec<Cache> {
    let levels = [(3, ObjectType::L3Cache), (2, ObjectType::L2Cache)];
    let of_level = |(level, kind)| {
        hwloc.objects_with_type(kind).map(move |cache| Cache {
            level,
            size_bytes: match cache.attributes() {
                Some(ObjectAttributes::Cache(attributes)) => attributes.size().map(u64::from),
                _ => None,
            },
            cpus: cpus_of(cache),
        })
    };
    levels.into_iter().flat_map(of_level).collect()
}

fn cores(hwloc: &Hwloc) -> Vec<Core> {
    let cores = hwloc.objects_with_type(ObjectType::Core);
    cores
        .map(|core| Core {
            index: core.logical_index(),
            locality: locality(core),
            cpus: cpus_of(core),
        })
        .collect()
}

/// Adds a PCI device to the list that it belongs in, if any.
fn add_pci_device(device: &TopologyObject, pci: &PCIDeviceAttributes, topology: &mut Topology) {
    let class = pci.class_id();
    if class >> 8 == CLASS_NETWORK || class == CLASS_INFINIBAND {
        topology.nics.push(Nic {
            interfaces: names(device, OSDeviceType::Network),
            rdma_device: names(device, OSDeviceType::OpenFabrics).into_iter().next(),
            pci: Some(address(pci)),
            bridges: bridges(device),
            locality: locality(device),
        });
    } else if class == CLASS_NVME {
        add_nvme(device, pci, topology);
    } else if is_gpu(pci) {
        add_gpu(device, pci, topology);
    }
}

fn is_gpu(pci: &PCIDeviceAttributes) -> bool {
    match pci.class_id() {
        CLASS_VGA => VENDORS_OF_GPUS.contains(&pci.vendor_id()),
        class => class >> 8 == CLASS_DISPLAY || class >> 8 == CLASS_ACCELERATOR,
    }
}

fn add_nvme(device: &TopologyObject, pci: &PCIDeviceAttributes, topology: &mut Topology) {
    let drive = NvmeDrive {
        name: None,
        model: text(device.info("PCIDevice")),
        size_bytes: None,
        pci: Some(address(pci)),
        locality: locality(device),
    };
    let namespaces = topology.drives.len();
    for namespace in parts(device, OSDeviceType::Storage) {
        topology.drives.push(NvmeDrive {
            name: text(namespace.name()),
            model: text(namespace.info("Model")).or_else(|| drive.model.clone()),
            size_bytes: size_bytes(namespace),
            ..drive.clone()
        });
    }
    if topology.drives.len() == namespaces {
        topology.drives.push(drive);
    }
}

fn add_gpu(device: &TopologyObject, pci: &PCIDeviceAttributes, topology: &mut Topology) {
    let kinds = [OSDeviceType::GPU, OSDeviceType::CoProcessor];
    let parts: Vec<_> = kinds.iter().flat_map(|&kind| parts(device, kind)).collect();
    let model = parts
        .iter()
        .find_map(|part| text(part.info("GPUModel")))
        .or_else(|| text(device.info("PCIDevice")));
    topology.gpus.push(Gpu {
        names: parts.iter().filter_map(|part| text(part.name())).collect(),
        model,
        vendor_id: pci.vendor_id(),
        pci: address(pci),
        bridges: bridges(device),
        locality: locality(device),
    });
}

/// Adds a device that is on no PCI bus: a paravirtual interface, a drive behind another bus.
fn add_other_device(device: &TopologyObject, topology: &mut Topology) {
    let Some(ObjectAttributes::OSDevice(attributes)) = device.attributes() else {
        return;
    };
    let Some(name) = text(device.name()) else {
        return;
    };
    let (pci, locality) = (None, locality(device));
    match attributes.device_type() {
        OSDeviceType::Network => topology.nics.push(Nic {
            interfaces: vec![name],
            rdma_device: None,
            pci,
            bridges: Vec::new(),
            locality,
        }),
        OSDeviceType::OpenFabrics => topology.nics.push(Nic {
            interfaces: Vec::new(),
            rdma_device: Some(name),
            pci,
            bridges: Vec::new(),
            locality,
        }),
        OSDeviceType::Storage if name.starts_with("nvme") => topology.drives.push(NvmeDrive {
            name: Some(name),
            model: text(device.info("Model")),
            size_bytes: size_bytes(device),
            pci,
            locality,
        }),
        _ => {}
    }
}

/// What the system has made of a device: its interfaces, namespaces and so on.
fn parts(device: &TopologyObject, kind: OSDeviceType) -> impl Iterator<Item = &TopologyObject> {
    device.io_children().filter(move |part| {
        matches!(part.attributes(), Some(ObjectAttributes::OSDevice(attributes))
            if attributes.device_type() == kind)
    })
}

fn names(device: &TopologyObject, kind: OSDeviceType) -> Vec<String> {
    parts(device, kind)
        .filter_map(|part| text(part.name()))
        .collect()
}

fn size_bytes(drive: &TopologyObject) -> Option<u64> {
    let size: u64 = text(drive.info("Size"))?.parse().ok()?;
    size.checked_mul(BLOCK_SIZE_UNIT_BYTES)
}

fn pci_of(device: &TopologyObject) -> Option<&TopologyObject> {
    device.first_ancestor_with_type(ObjectType::PCIDevice)
}

/// The PCI bridges above a device, the one next to the root first.
fn bridges(device: &TopologyObject) -> Vec<PciAddress> {
    let upstream = |above: &TopologyObject| match above.attributes() {
        // The host's own bridge has nothing above it.
        Some(ObjectAttributes::Bridge(bridge)) => bridge
            .upstream_attributes()
            .map(|UpstreamAttributes::PCI(pci)| address(pci)),
        _ => None,
    };
    let mut bridges: Vec<PciAddress> = device.ancestors().filter_map(upstream).collect();
    bridges.reverse();
    bridges
}

fn address(pci: &PCIDeviceAttributes) -> PciAddress {
    PciAddress {
        domain: u32::from(pci.domain()),
        bus: pci.bus_id(),
        device: pci.bus_device(),
        function: pci.function(),
    }
}

/// The package and NUMA node of an object, or of what a device hangs below.
fn locality(object: &TopologyObject) -> Locality {
    let place = if object.object_type().is_io() {
        object.first_non_io_ancestor()
    } else {
        Some(object)
    };
    let numa = place.and_then(TopologyObject::nodeset).and_then(|set| {
        let only = set.weight() == Some(1);
        only.then(|| set.first_set().map(usize::from)).flatten()
    });
    Locality {
        package: place.and_then(package_of),
        numa,
    }
}

/// The package that an object is in, or that holds all of the object's CPUs.
fn package_of(object: &TopologyObject) -> Option<usize> {
    if object.object_type() == ObjectType::Package {
        return object.os_index();
    }
    if let Some(package) = object.first_ancestor_with_type(ObjectType::Package) {
        return package.os_index();
    }
    // Memory and devices of a machine with one package may hang beside the package.
    let beside = if object.object_type().is_memory() {
        object.parent()?
    } else {
        object
    };
    let mut packages = beside
        .normal_children()
        .filter(|child| child.object_type() == ObjectType::Package);
    let only = packages.next()?;
    packages.next().is_none().then(|| only.os_index()).flatten()
}

fn cpus_of(object: &TopologyObject) -> Vec<usize> {
    let cpus = object.cpuset();
    cpus.map(|set| set.iter_set().map(usize::from).collect())
        .unwrap_or_default()
}

fn text(value: Option<&CStr>) -> Option<String> {
    let value = value?.to_string_lossy();
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}
