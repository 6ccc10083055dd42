//! The soft-iWARP module, which Debian's kernels leave out: compiled from the same kernel's source.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::kernel::{Kernel, fetch_packages, io};
use super::tool;
use crate::system::{self, Need};
use crate::task_error::TaskError;

/// What compiles it; the compiler is the kernel's own.
const TOOLS: &[Need] = &[
    Need::new("gcc-12", &["gcc-12", "--version"]),
    Need::new("make", &["make", "--version"]),
];
/// Where it lies in the source of the kernel.
const SOURCE: &str = "linux-source-6.12/drivers/infiniband/sw/siw";

/// Sees to it that this kernel has the module. Takes a minute or two the first time.
pub(super) fn prepare(kernel: &Kernel, cache: &Path) -> Result<(), TaskError> {
    let modules = kernel.folder.join("lib/modules").join(&kernel.release);
    let module = modules.join("extra/siw.ko");
    if module.exists() {
        return Ok(());
    }
    system::ensure(TOOLS).map_err(|error| TaskError::Vm(error.to_string()))?;
    let release = &kernel.release;
    println!("vm: compiling soft-iWARP for {release}");
    let plain = release.strip_suffix("-amd64").unwrap_or(release);
    let packages = [
        format!("linux-headers-{release}"),
        format!("linux-headers-{plain}-common"),
        format!("linux-kbuild-{plain}"),
        "linux-source-6.12".to_owned(),
    ];
    let folder = cache.join("iwarp");
    if folder.exists() {
        io(fs::remove_dir_all(&folder))?;
    }
    fetch_packages(&cache.join("staging"), &packages, &folder)?;
    let built = compile(&folder, release)?;
    io(fs::create_dir_all(modules.join("extra")))?;
    let mut strip = Command::new("strip");
    tool(strip.args(["--strip-debug", "-o"]).arg(&module).arg(built))?;
    kernel.index_modules()?;
    io(fs::remove_dir_all(&folder))
}

fn compile(folder: &Path, release: &str) -> Result<std::path::PathBuf, TaskError> {
    let headers = folder
        .join("usr/src")
        .join(format!("linux-headers-{release}"));
    // The headers name one another by where their packages would be installed.
    let makefile = headers.join("Makefile");
    let text = io(fs::read_to_string(&makefile))?;
    let here = format!("{}/usr/src/", folder.display());
    io(fs::write(&makefile, text.replace("/usr/src/", &here)))?;
    let mut unpack = Command::new("tar");
    unpack
        .arg("-xf")
        .arg(folder.join("usr/src/linux-source-6.12.tar.xz"));
    tool(unpack.arg("-C").arg(folder).arg(SOURCE))?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers);
    make.arg(format!("M={}", folder.join(SOURCE).display()));
    make.args([
        "CC=gcc-12",
        "CONFIG_RDMA_SIW=m",
        "CONFIG_DEBUG_INFO_BTF_MODULES=",
    ]);
    tool(make.arg("modules"))?;
    Ok(folder.join(SOURCE).join("siw.ko"))
}
