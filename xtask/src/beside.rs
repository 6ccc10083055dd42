//! Work side by side: what mostly waits and what takes all the time that is left; children that take one
//! processor each.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::process::setpriority_process;

use crate::task_error::TaskError;
use crate::workspace;

/// The lowest one.
const NICENESS: i32 = 19;

/// Calls `hungry` on a thread that has the lowest priority, and so have the children that it starts, and
/// `waiting` on this one, as it is; returns when both have ended. Where the priority cannot be had, both run
/// alike.
///
/// # Panics
/// When one of them does.
pub(crate) fn beside<H: Send, W>(
    hungry: impl FnOnce() -> H + Send,
    waiting: impl FnOnce() -> W,
) -> (H, W) {
    thread::scope(|scope| {
        let hungry = scope.spawn(|| {
            // Of Linux, which knows threads: no other one of this process.
            if let Err(error) = setpriority_process(None, NICENESS) {
                eprintln!("at the same priority: {error}");
            }
            hungry()
        });
        let waited = waiting();
        (hungry.join().expect("the thread does not panic"), waited)
    })
}

/// Runs each of these to its end, its output on ours, as many at a time as there are processors; all of them, even
/// if one has failed.
///
/// # Errors
/// Of those that failed, the first one as given: as for [`workspace::run`].
///
/// # Panics
/// When one of its threads does.
pub(crate) fn each(commands: Vec<Command>) -> Result<(), TaskError> {
    let at_a_time = thread::available_parallelism().map_or(1, usize::from);
    let waiting = Mutex::new(commands.into_iter().enumerate());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    };
    let work = || {
        let mut failures = Vec::new();
        while let Some((place, mut command)) = next() {
            failures.extend(
                workspace::run(&mut command)
                    .err()
                    .map(|error| (place, error)),
            );
        }
        failures
    };
    let mut failures = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().expect("it does not panic"));
        ended.flatten().collect::<Vec<_>>()
    });
    failures.sort_by_key(|&(place, _)| place);
    failures
        .into_iter()
        .next()
        .map_or(Ok(()), |(_, error)| Err(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A child that does this with the two files, and succeeds or fails as it is told.
    fn shell(script: &str, [own, other]: [&Path; 2]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args([own, other]);
        command
    }

    #[test]
    fn all_run_and_the_first_failure_is_told() {
        let place = tempfile::tempdir().expect("a folder");
        let [one, two] = ["one", "two"].map(|name| place.path().join(name));
        let commands = vec![
            shell("touch $1", [&one, &two]),
            shell("sleep .1; exit 3", [&one, &two]),
            shell("exit 4", [&one, &two]),
            shell("touch $2", [&one, &two]),
        ];
        let error = each(commands).expect_err("two of them failed").to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(fs::exists(&one).is_ok_and(|is| is) && fs::exists(&two).is_ok_and(|is| is));
        assert!(each(Vec::new()).is_ok());
    }

    #[test]
    fn with_processors_enough_they_run_at_a_time() {
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            return;
        }
        let place = tempfile::tempdir().expect("a folder");
        let [one, two] = ["one", "two"].map(|name| place.path().join(name));
        // Each waits for the other one.
        let script =
            "touch $1; for try in $(seq 1000); do [ -e $2 ] && exit 0; sleep .01; done; exit 1";
        let commands = vec![shell(script, [&one, &two]), shell(script, [&two, &one])];
        assert!(each(commands).is_ok());
    }

    fn niceness_of_a_child() -> String {
        let output = Command::new("nice").output().expect("coreutils are there");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn children_of_the_hungry_one_alone_give_way() {
        let before = niceness_of_a_child();
        let (hungry, waiting) = beside(niceness_of_a_child, niceness_of_a_child);
        assert_eq!(hungry, NICENESS.to_string());
        assert_eq!(waiting, before);
        assert_eq!(niceness_of_a_child(), before);
    }
}
