//! Two pieces of work at a time: one that mostly waits, and one that takes all the time that is left.

use std::thread;

use rustix::process::setpriority_process;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

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
