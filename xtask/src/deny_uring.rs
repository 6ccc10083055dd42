//! Running something where io_uring is forbidden, as in Docker's default profile.

use std::collections::BTreeMap;
use std::thread;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::task_error::TaskError;

/// `EPERM`, which is what Docker's profile answers.
const EPERM: u32 = 1;
/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`: the same numbers on every
/// architecture.
const URING_CALLS: [i64; 3] = [425, 426, 427];

/// Calls `body` on a thread, and so in children that it starts, for which the system forbids
/// io_uring.
///
/// # Errors
/// Those of `body`, and [`TaskError::Failed`] if the filter cannot be installed.
pub(crate) fn without_uring<T: Send>(
    body: impl FnOnce() -> Result<T, TaskError> + Send,
) -> Result<T, TaskError> {
    let filtered = || {
        let refused = |reason: String| TaskError::Failed {
            command: "forbidding io_uring".to_owned(),
            status: reason,
        };
        let filter = filter().map_err(|error| refused(error.to_string()))?;
        seccompiler::apply_filter(&filter).map_err(|error| refused(error.to_string()))?;
        body()
    };
    thread::scope(|scope| {
        scope
            .spawn(filtered)
            .join()
            .expect("the body does not panic")
    })
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let calls: BTreeMap<_, _> = URING_CALLS
        .into_iter()
        .map(|call| (call, Vec::new()))
        .collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(
        calls,
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM),
        arch,
    )?
    .try_into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_are_filtered_and_this_thread_is_not() {
        let modes = |status: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix("Seccomp:"))
                .map(str::trim)
                .map(str::to_owned)
        };
        let child = without_uring(|| {
            let output = Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .expect("cat runs");
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        });
        assert_eq!(modes(&child.expect("filtered")).as_deref(), Some("2"));
        let own = std::fs::read_to_string("/proc/thread-self/status").expect("a thread's status");
        assert_ne!(
            modes(&own).as_deref(),
            Some("2"),
            "unless the whole run is filtered"
        );
    }
}
