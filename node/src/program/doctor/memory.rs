//! Huge pages.

use super::check::Check;
use super::system::System;
use crate::program::size::Size;

const TRANSPARENT: &str = "sys/kernel/mm/transparent_hugepage/enabled";

pub(super) fn checks(system: &System) -> [Check; 2] {
    [reserved(system), transparent(system)]
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

fn transparent(system: &System) -> Check {
    let name = "transparent huge pages";
    let modes = system.text(TRANSPARENT).unwrap_or_default();
    match chosen(&modes) {
        Some(mode @ ("always" | "madvise")) => Check::ok(name, mode),
        Some(mode) => Check::warn(name, mode, format!("echo madvise > /{TRANSPARENT}")),
        None => Check::warn(
            name,
            "not offered by this kernel",
            "run a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or reserve huge pages",
        ),
    }
}

/// Of `always [madvise] never`, the word in brackets.
fn chosen(modes: &str) -> Option<&str> {
    let (_, rest) = modes.split_once('[')?;
    Some(rest.split_once(']')?.0)
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
    fn the_mode_in_brackets_is_the_chosen_one() {
        let state = |modes| {
            let (_folder, system) = System::of(&[(TRANSPARENT, modes)]);
            let check = transparent(&system);
            (check.found, check.state)
        };
        assert_eq!(
            state("always [madvise] never\n"),
            ("madvise".to_owned(), State::Ok)
        );
        assert_eq!(
            state("always madvise [never]\n"),
            ("never".to_owned(), State::Warn)
        );
        assert_eq!(state("always\n").1, State::Warn);
    }
}
