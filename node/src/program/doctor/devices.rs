//! NICs, RDMA devices, GPUs, and the topology that says what they are next to.

use lunette::hwloc;

use super::check::Check;
use super::system::System;

const RDMA: &str = "sys/class/infiniband";
const PCI: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// PCI classes of display controllers begin so.
const DISPLAY: &str = "0x03";

pub(super) fn checks(system: &System) -> [Check; 4] {
    [topology(), interfaces(system), rdma(system), gpus(system)]
}

fn topology() -> Check {
    let name = "topology";
    match hwloc::load() {
        Ok(machine) => Check::ok(
            name,
            format!(
                "packages: {}, NUMA nodes: {}, cores: {}, NVMe drives: {}",
                machine.packages.len(),
                machine.numa_nodes.len(),
                machine.cores.len(),
                machine.drives.len()
            ),
        ),
        Err(error) => {
            let remedy = "cores are chosen without regard to caches and memory until then";
            Check::warn(name, error.to_string(), remedy)
        }
    }
}

fn interfaces(system: &System) -> Check {
    let name = "network MTU";
    let interfaces: Vec<String> = system
        .names("sys/class/net")
        .into_iter()
        .filter_map(|name| {
            let mtu = system.number(&format!("sys/class/net/{name}/mtu"))?;
            Some(format!("{name} {mtu}"))
        })
        .collect();
    if interfaces.is_empty() {
        return Check::warn(name, "no interface known", "mount /sys");
    }
    Check::ok(name, interfaces.join(", "))
}

fn rdma(system: &System) -> Check {
    let name = "RDMA devices";
    let devices = system.names(RDMA);
    if devices.is_empty() {
        return Check::ok(name, "none: payloads travel by TCP");
    }
    let found = devices.join(", ");
    let files = system.names("dev/infiniband");
    if files.iter().any(|file| file.starts_with("uverbs")) {
        Check::ok(name, found)
    } else {
        let remedy = "modprobe ib_uverbs; in a container, pass /dev/infiniband on";
        Check::warn(name, format!("{found}, not usable from programs"), remedy)
    }
}

fn gpus(system: &System) -> Check {
    let name = "GPUs";
    let files = system.names("dev");
    let usable: Vec<&str> = files
        .iter()
        .filter(|file| is_gpu(file))
        .map(String::as_str)
        .collect();
    let on_the_bus = system
        .names(PCI)
        .iter()
        .filter(|device| {
            let is = |file: &str, begins: &str| {
                let text = system.text(&format!("{PCI}/{device}/{file}"));
                text.is_some_and(|text| text.starts_with(begins))
            };
            is("vendor", NVIDIA) && is("class", DISPLAY)
        })
        .count();
    if usable.len() < on_the_bus {
        let found = format!("{} of {on_the_bus} usable", usable.len());
        let remedy = "load the driver (nvidia-modprobe); in a container, pass the devices on";
        return Check::warn(name, found, remedy);
    }
    if usable.is_empty() {
        return Check::ok(name, "none");
    }
    Check::ok(name, usable.join(", "))
}

/// `nvidia0` is one, `nvidiactl` and `nvidia-uvm` are not.
fn is_gpu(file: &str) -> bool {
    let number = file.strip_prefix("nvidia");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::doctor::check::State;

    #[test]
    fn interfaces_are_listed_with_their_mtu() {
        let (_folder, system) = System::of(&[
            ("sys/class/net/lo/mtu", "65536\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
            ("sys/class/net/bonding_masters", "bond0\n"),
        ]);
        assert_eq!(interfaces(&system).found, "eth0 1500, lo 65536");
        let (_folder, none) = System::of(&[]);
        assert_eq!(interfaces(&none).state, State::Warn);
    }

    #[test]
    fn rdma_devices_need_their_files() {
        let device = ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        let (_folder, without) = System::of(&[device]);
        assert_eq!(rdma(&without).state, State::Warn);
        let (_folder, with) = System::of(&[device, ("dev/infiniband/uverbs0", "")]);
        assert_eq!(
            (rdma(&with).state, &*rdma(&with).found),
            (State::Ok, "mlx5_0")
        );
        let (_folder, none) = System::of(&[]);
        assert_eq!(rdma(&none).state, State::Ok, "TCP does");
    }

    #[test]
    fn gpus_on_the_bus_need_their_files() {
        let gpu = [
            ("sys/bus/pci/devices/0000:14:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:14:00.0/class", "0x030200\n"),
            ("sys/bus/pci/devices/0000:14:00.1/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:14:00.1/class", "0x040300\n"),
            ("dev/nvidiactl", ""),
        ];
        let (_folder, without) = System::of(&gpu);
        assert_eq!(gpus(&without).found, "0 of 1 usable");
        assert_eq!(gpus(&without).state, State::Warn);
        let with = [&gpu[..], &[("dev/nvidia0", "")]].concat();
        let (_folder, with) = System::of(&with);
        assert_eq!(
            (gpus(&with).state, &*gpus(&with).found),
            (State::Ok, "nvidia0")
        );
        let (_folder, none) = System::of(&[]);
        assert_eq!(gpus(&none).found, "none");
    }
}
