//! CPUs that this process may use, and pinning to them.

use std::path::Path;

use thiserror::Error;

use super::sysfs;

/// A CPU that this process may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The system's number.
    pub os_index: usize,
    /// The physical core that it belongs to: the lowest number among that core's CPUs.
    pub core: Option<usize>,
    /// The NUMA node that it belongs to.
    pub numa_index: Option<usize>,
}

/// Why a thread could not be pinned.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PinError {
    /// The process may not use this CPU, or the machine does not have it.
    #[error("CPU {0} is not among those that this process may use")]
    NotAllowed(usize),
    /// The system refused.
    #[error("the system refused to pin a thread to CPU {0}")]
    Refused(usize),
}

/// The CPUs in the calling thread's affinity mask, which is the process's own unless the thread has
/// been pinned, in ascending order of their numbers.
#[must_use]
pub fn cpus() -> Vec<Cpu> {
    let mut allowed: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .into_iter()
        .map(|core| core.id)
        .collect();
    allowed.sort_unstable();
    locate(&allowed)
}

/// CPUs for `count` cores: one per physical core as long as there are any, so that no two share
/// execution units; then the remaining ones.
///
/// # Errors
/// [`TooFewCpus`]: the process may use fewer.
pub fn choose(count: usize) -> Result<Vec<usize>, TooFewCpus> {
    choose_from(&cpus(), count)
}

fn choose_from(cpus: &[Cpu], count: usize) -> Result<Vec<usize>, TooFewCpus> {
    if count > cpus.len() {
        return Err(TooFewCpus {
            wanted: count,
            usable: cpus.len(),
            taken: 0,
        });
    }
    let mut chosen = in_order_of_choice(cpus);
    chosen.truncate(count);
    Ok(chosen)
}

/// All of `cpus`: the first ones of their physical cores, then the others.
pub(super) fn in_order_of_choice(cpus: &[Cpu]) -> Vec<usize> {
    let mut taken_cores = Vec::new();
    let (mut firsts, mut siblings) = (Vec::new(), Vec::new());
    for cpu in cpus {
        match cpu.core {
            Some(core) if taken_cores.contains(&core) => siblings.push(cpu.os_index),
            core => {
                taken_cores.extend(core);
                firsts.push(cpu.os_index);
            }
        }
    }
    firsts.extend(siblings);
    firsts
}

/// More cores were asked for than there are CPUs for them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "{wanted} cores wanted, but of the {usable} CPUs that this process may use {taken} are claimed \
     by others"
)]
pub struct TooFewCpus {
    /// Cores asked for.
    pub wanted: usize,
    /// CPUs that the process may use.
    pub usable: usize,
    /// Those of them that others have claimed.
    pub taken: usize,
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// [`PinError`]: the thread runs where it did.
pub fn pin_current_thread(cpu: usize) -> Result<(), PinError> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let id = ids
        .into_iter()
        .find(|id| id.id == cpu)
        .ok_or(PinError::NotAllowed(cpu))?;
    if core_affinity::set_for_current(id) {
        Ok(())
    } else {
        Err(PinError::Refused(cpu))
    }
}

fn locate(allowed: &[usize]) -> Vec<Cpu> {
    let cpus = Path::new(sysfs::CPUS);
    let locate = |&os_index| Cpu {
        os_index,
        core: sysfs::core(cpus, os_index),
        numa_index: sysfs::numa(cpus, os_index),
    };
    allowed.iter().map(locate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_cpu_can_be_pinned_and_no_other() {
        let cpus = cpus();
        assert!(!cpus.is_empty());
        for cpu in &cpus {
            // On a thread of its own: pinning is for life.
            let os_index = cpu.os_index;
            let pinned = std::thread::spawn(move || pin_current_thread(os_index)).join();
            assert_eq!(pinned.expect("no panic"), Ok(()));
        }
        assert_eq!(
            pin_current_thread(usize::MAX),
            Err(PinError::NotAllowed(usize::MAX))
        );
    }

    #[test]
    fn only_cpus_of_the_affinity_mask_are_usable() {
        let all = cpus();
        let last = all.last().expect("there is one").os_index;
        // On a thread of its own, whose mask is reduced behind this module's back.
        let reduced = std::thread::spawn(move || {
            let mut mask = rustix::thread::CpuSet::new();
            mask.set(last);
            rustix::thread::sched_setaffinity(None, &mask).expect("a part of the mask");
            (cpus(), choose(2))
        });
        let (usable, two) = reduced.join().expect("no panic");
        assert_eq!(usable, all[all.len() - 1..]);
        assert_eq!(
            two,
            Err(TooFewCpus {
                wanted: 2,
                usable: 1,
                taken: 0,
            })
        );
        assert_eq!(cpus(), all, "other threads keep their masks");
    }

    #[test]
    fn physical_cores_come_before_their_siblings() {
        let cpu = |os_index, core| Cpu {
            os_index,
            core: Some(core),
            numa_index: None,
        };
        let cpus = [cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)];
        assert_eq!(choose_from(&cpus, 2), Ok(vec![0, 2]));
        assert_eq!(choose_from(&cpus, 4), Ok(vec![0, 2, 1, 3]));
        assert_eq!(
            choose_from(&cpus, 5),
            Err(TooFewCpus {
                wanted: 5,
                usable: 4,
                taken: 0,
            })
        );
        let unknown = [0, 1].map(|os_index| Cpu {
            os_index,
            core: None,
            numa_index: None,
        });
        assert_eq!(choose_from(&unknown, 2), Ok(vec![0, 1]));
    }
}
