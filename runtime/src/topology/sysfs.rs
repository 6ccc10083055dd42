//! Where the system says that a CPU is (`Documentation/ABI/stable/sysfs-devices-system-cpu` and
//! `Documentation/ABI/testing/sysfs-devices-memory` of the kernel's source).

use std::fs;
use std::path::Path;

/// The folder of the system's CPUs.
pub(super) const CPUS: &str = "/sys/devices/system/cpu";
/// Lists of the CPUs of a core: the second is what kernels before 5.3 call the first.
const SIBLINGS: [&str; 2] = ["core_cpus_list", "thread_siblings_list"];
/// Entries of a CPU's folder that are looked at.
const ENTRIES_MAX: usize = 1024;

/// The physical core of a CPU: the lowest number among its CPUs. `None` where the system does not tell.
pub(super) fn core(cpus: &Path, cpu: usize) -> Option<usize> {
    let folder = cpus.join(format!("cpu{cpu}/topology"));
    let list = |name| fs::read_to_string(folder.join(name)).ok();
    let list = SIBLINGS.into_iter().find_map(list)?;
    // Lists ascend, like `2,66` or `0-1`.
    let first = list.trim().split([',', '-']).next()?;
    first.parse().ok()
}

/// The NUMA node of a CPU. `None` where the system has no nodes.
pub(super) fn numa(cpus: &Path, cpu: usize) -> Option<usize> {
    let entries = fs::read_dir(cpus.join(format!("cpu{cpu}"))).ok()?;
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    entries
        .take(ENTRIES_MAX)
        .find_map(|entry| number(entry.ok()?.file_name().to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("our own");
        fs::write(file, text).expect("our own");
    }

    #[test]
    fn a_core_is_named_by_its_first_cpu_also_as_older_kernels_say_it() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        write(root, "cpu2/topology/core_cpus_list", "2,66\n");
        write(root, "cpu2/topology/thread_siblings_list", "7\n");
        write(root, "cpu66/topology/core_cpus_list", "2,66\n");
        write(root, "cpu5/topology/thread_siblings_list", "4-5\n");
        for (cpu, expected) in [(2, Some(2)), (66, Some(2)), (5, Some(4)), (3, None)] {
            assert_eq!(core(root, cpu), expected, "CPU {cpu}");
        }
    }

    #[test]
    fn what_is_no_list_names_no_core() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        for text in ["", "\n", "-1\n", "x,2\n", "99999999999999999999999\n"] {
            write(root, "cpu0/topology/core_cpus_list", text);
            assert_eq!(core(root, 0), None, "{text:?}");
        }
    }

    #[test]
    fn the_node_is_the_one_that_is_linked() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        for entry in [
            "cpu0/node_of_something",
            "cpu0/power",
            "cpu0/node12",
            "cpu1/power",
        ] {
            fs::create_dir_all(root.join(entry)).expect("our own");
        }
        let nodes = [0, 1, 2].map(|cpu| numa(root, cpu));
        assert_eq!(nodes, [Some(12), None, None]);
    }
}
