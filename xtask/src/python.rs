//! The lane `python`: the wheel in an environment of its own, and its tests in Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tally::Tally;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// The folder of the environment, below the target directory.
const ENVIRONMENT: &str = "python-tests";
/// The same with Mooncake's own wheel, which ours is compared with.
const ORIGINAL: &str = "python-original";
/// That wheel, of the version whose interface ours has.
const ORIGINAL_WHEEL: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
/// Names the interpreter of that environment to the tests.
const ORIGINAL_SETTING: &str = "LUNETTE_MOONCAKE_PYTHON";
/// The folder of serving engines' own wheels, whose modules are driven against ours.
const ENGINES: &str = "python-engines";
const ENGINE_WHEELS: [&str; 3] = [
    "checkpoint-engine==0.4.2",
    "lmcache==0.5.6",
    "sglang==0.5.23",
];
/// What is fetched of a wheel that is too large to fetch whole: package, version, and what the members' names begin with.
const ENGINE_MEMBERS: [(&str, &str, &[&str]); 1] = [(
    "vllm",
    "0.33.0",
    &[
        "vllm/distributed/ec_transfer/ec_connector/mooncake_store_embedding/",
        "vllm/distributed/kv_transfer/kv_connector/utils.py",
        "vllm/distributed/kv_transfer/kv_connector/v1/base.py",
        "vllm/distributed/kv_transfer/kv_connector/v1/metrics.py",
        "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/",
        "vllm/distributed/mooncake_store.py",
        "vllm/envs.py",
        "vllm/utils/math_utils.py",
        "vllm/utils/network_utils.py",
        "vllm/utils/torch_utils.py",
        "vllm/v1/core/block_pool.py",
        "vllm/v1/core/kv_cache_coordinator.py",
        "vllm/v1/core/kv_cache_utils.py",
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "vllm/v1/kv_cache_",
    ],
)];
/// What fetches them, below the folder `python`.
const FETCH_MEMBERS: &str = "tests/fetch_members.py";
/// Names that folder to the tests.
const ENGINES_SETTING: &str = "LUNETTE_ENGINES";
/// What the environment has beside the wheel.
const TOOLS: [&str; 5] = [
    "maturin>=1.7,<2",
    "pytest>=8,<10",
    // What modules of engines compute and speak with.
    "msgspec<1",
    "numpy<3",
    "pyzmq<28",
];

/// Makes the environment where it is not there yet; says why it cannot be had, if so.
///
/// # Errors
/// [`TaskError::Metadata`], of the target directory.
pub(crate) fn absent(workspace: &Workspace) -> Result<Option<&'static str>, TaskError> {
    let environment = workspace.target_dir()?.join(ENVIRONMENT);
    let python = environment.join("bin/python");
    let is_there = |module| succeeds(&python, &["-c", module]);
    if is_there("import maturin, pytest, msgspec, numpy, zmq") {
        return Ok(None);
    }
    let of_age = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !workspace::succeeds("python3", &["-c", of_age]) {
        return Ok(Some("there is no Python of version 3.10 or later"));
    }
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return Ok(Some("this Python makes no virtual environments"));
    }
    let install = [&["-m", "pip", "install", "--quiet"], TOOLS.as_slice()].concat();
    Ok((!succeeds(&python, &install)).then_some("pip does not install what the tests need"))
}

/// Builds the wheel with what the lane of tests has built, installs it and runs its tests.
///
/// # Errors
/// [`TaskError::Failed`]: the build, or a test.
pub(crate) fn run(workspace: &Workspace, tally: &mut Tally) -> Result<(), TaskError> {
    let environment = workspace.target_dir()?.join(ENVIRONMENT);
    let sources = workspace.root().join("python");
    let mut build = Command::new(environment.join("bin/maturin"));
    build
        .args(["develop", "--locked", "--quiet"])
        .current_dir(&sources)
        .env("VIRTUAL_ENV", &environment);
    workspace::run(&mut build)?;
    let original = original(workspace)?;
    let engines = engines(workspace)?;
    let mut tests = Command::new(environment.join("bin/python"));
    // Where one is not to be had, the tests that want it are skipped by name.
    tests.env(ENGINES_SETTING, engines);
    if let Some(original) = original {
        tests.env(ORIGINAL_SETTING, original);
    }
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .current_dir(&sources);
    workspace::run_lines(&mut tests, |line| tally.line(line))
}

/// The interpreter with Mooncake's own wheel, if there can be one: not every Python has it.
fn original(workspace: &Workspace) -> Result<Option<PathBuf>, TaskError> {
    let environment = workspace.target_dir()?.join(ORIGINAL);
    let python = environment.join("bin/python");
    let imports = ["-c", "import mooncake.store"];
    if succeeds(&python, &imports) {
        return Ok(Some(python));
    }
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment)
        .status();
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        ORIGINAL_WHEEL,
    ];
    let is_there = made.is_ok_and(|status| status.success())
        && succeeds(&python, &install)
        && succeeds(&python, &imports);
    Ok(is_there.then_some(python))
}

/// The folder of the engines' wheels, with those that can be had.
fn engines(workspace: &Workspace) -> Result<PathBuf, TaskError> {
    let target = workspace.target_dir()?;
    let folder = target.join(ENGINES);
    let python = target.join(ENVIRONMENT).join("bin/python");
    for wheel in ENGINE_WHEELS {
        let stem = wheel.replace('-', "_").replace("==", "-");
        if is_in(&folder, &stem) {
            continue;
        }
        let fetched = Command::new(&python)
            .args(["-m", "pip", "download", "--quiet", "--no-deps"])
            .args([wheel, "--only-binary", ":all:", "--dest"])
            .arg(&folder)
            .status();
        if !fetched.is_ok_and(|status| status.success()) {
            println!("{wheel} cannot be had");
        }
    }
    let fetch = workspace.root().join("python").join(FETCH_MEMBERS);
    for (package, version, prefixes) in ENGINE_MEMBERS {
        let fetched = Command::new(&python)
            .arg(&fetch)
            .args([package, version])
            .arg(&folder)
            .args(prefixes)
            .status();
        if !fetched.is_ok_and(|status| status.success()) {
            println!("members of {package} cannot be had");
        }
    }
    Ok(folder)
}

/// Whether the folder has a file whose name begins so.
fn is_in(folder: &Path, stem: &str) -> bool {
    let Ok(entries) = folder.read_dir() else {
        return false;
    };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with(stem))
}

fn succeeds(program: &Path, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).status();
    status.is_ok_and(|status| status.success())
}
