//! Huge pages.

use lunette::runtime::arena::makes_huge_pages;
use rustix::io::Errno;

use super::check::Check;
use super::system::System;
use crate::program::size::Size;

pub(super) fn checks(system: &System) -> [Check; 2] {
    [reserved(system), transparent(makes_huge_pages())]
}

fn reserved(system: &System) -> Check {
    let name = "huge pages";
    let remedy = "for --huge-pages: sysctl vm.nr_hugepages=N, where 512 pages of 2MiB hold 1GiB";
    let memory = system.text("proc/meminfo").unwrap_or_default();
    let field = |name| field(&memory, name);
    let pages = field("HugePages_Total").zip(field("HugePages_Free"));
    let Some(((total, free), kib)) = pages.zip(field("Hugepagesize")) else {
        return Check::warn(name, "not offered by this kernel", "run a kernel with them");
    };
    let found = format!("{free} of {total} free, {} each", Size(kib << 10));
    if total == 0 {
        Check::warn(name, "none reserved", remedy)
    } else if free == 0 {
        Check::warn(name, found, remedy)
    } else {
        Check::ok(name, found)
    }
}

/// The number behind a name in `/proc/meminfo`.
fn field(memory: &str, name: &str) -> Option<u64> {
    let mut lines = memory.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| *key == name)?;
    value.split_whitespace().next()?.parse().ok()
}

/// What nodes' memory is made of without a pool.
fn transparent(made: Result<(), Errno>) -> Check {
    let name = "transparent huge pages";
    match made {
        Ok(()) => Check::ok(name, "made of free memory"),
        Err(Errno::INVAL) => Check::warn(
            name,
            "not made by this kernel: copies take a fifth longer",
            "run Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE, or reserve huge pages",
        ),
        Err(errno) => Check::warn(
            name,
            format!("none to be had now ({errno}): copies take a fifth longer"),
            "free memory, or reserve huge pages at boot",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::doctor::check::State;

    fn reserved_of(total: u64, free: u64) -> Check {
        let memory = format!(
            "MemTotal:       24000000 kB\nHugePages_Total:    {total}\nHugePages_Free:     \
             {free}\nHugepagesize:       2048 kB\n"
        );
        let (_folder, system) = System::of(&[("proc/meminfo", &memory)]);
        reserved(&system)
    }

    #[test]
    fn reserved_pages_must_be_free() {
        assert_eq!(reserved_of(512, 1).found, "1 of 512 free, 2MiB each");
        assert_eq!(reserved_of(512, 1).state, State::Ok);
        assert_eq!(reserved_of(512, 0).state, State::Warn);
        assert_eq!(reserved_of(0, 0).found, "none reserved");
        let (_folder, empty) = System::of(&[]);
        assert_eq!(reserved(&empty).state, State::Warn);
    }

    #[test]
    fn huge_pages_are_made_or_it_says_why_not() {
        assert_eq!(transparent(Ok(())).state, State::Ok);
        let old = transparent(Err(Errno::INVAL));
        assert_eq!(old.state, State::Warn);
        assert!(old.found.contains("by this kernel"), "{}", old.found);
        let full = transparent(Err(Errno::NOMEM));
        assert!(full.found.contains("now"), "{}", full.found);
    }
}
