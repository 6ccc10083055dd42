//! Debian's kernels: which, fetched, unpacked, and the initial file system.
//!
//! A kernel package is downloaded and unpacked below `target/vm`, never installed. Its compressed
//! image is unpacked too, and QEMU enters the kernel proper: an emulated CPU would need seconds
//! for that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Series, tool};
use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// What reaches the host's tree, loaded before there is one.
const BOOT_MODULES: [&str; 7] = [
    "virtio_pci",
    "virtio_console",
    "netfs",
    "9pnet",
    "9p",
    "9pnet_virtio",
    "overlay",
];
/// What a guest may load afterwards; unpacked here if it comes packed.
const GUEST_MODULES: [&str; 13] = [
    "configfs",
    "veth",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "null_blk",
    "nvme",
    "nvme_tcp",
    "nvmet",
    "nvmet_tcp",
    "siw",
    "virtio_net",
];
const INIT: &str = include_str!("init.sh");

/// A kernel that is ready to boot.
#[derive(Debug)]
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) release: String,
    /// Where its package is unpacked.
    pub(super) folder: PathBuf,
}

impl Kernel {
    /// The kernel of this series: from the cache, else the newest that apt knows.
    pub(super) fn prepare(workspace: &Workspace, series: Series) -> Result<Self, TaskError> {
        let cache = workspace.root().join("target/vm");
        if let Some(release) = newest(&cached(&cache), series) {
            return Ok(Self::of(&cache, release));
        }
        println!("vm: looking for a kernel {}", series.prefix());
        let mut update = Command::new("apt-get");
        // Lists that are there already may do.
        drop(tool(update.args(["update", "-q"])));
        let names = tool(Command::new("apt-cache").args(["pkgnames", "linux-image-6."]))?;
        let names = String::from_utf8_lossy(&names);
        let releases: Vec<String> = names
            .lines()
            .filter_map(|name| name.strip_prefix("linux-image-"))
            .map(str::to_owned)
            .collect();
        let release = newest(&releases, series).ok_or_else(|| {
            TaskError::Vm(format!("apt knows no Debian kernel {}*", series.prefix()))
        })?;
        let kernel = Self::of(&cache, release);
        kernel.fetch(&cache)?;
        Ok(kernel)
    }

    fn of(cache: &Path, release: String) -> Self {
        let folder = cache.join(format!("kernel-{release}"));
        Self { release, folder }
    }

    pub(super) fn image(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    fn fetch(&self, cache: &Path) -> Result<(), TaskError> {
        println!("vm: fetching kernel {}", self.release);
        let staging = cache.join("staging");
        let unpacked = cache.join("unpacked");
        for folder in [&unpacked, &self.folder] {
            if folder.exists() {
                io(fs::remove_dir_all(folder))?;
            }
        }
        let package = format!("linux-image-{}", self.release);
        fetch_packages(&staging, &[package], &unpacked)?;
        let kernel = Self {
            release: self.release.clone(),
            folder: unpacked,
        };
        kernel.unpack_image()?;
        kernel.unpack_modules()?;
        // The folder has its name only when it is complete.
        io(fs::rename(&kernel.folder, &self.folder))
    }

    /// The compressed kernel inside the boot image. Offsets: the kernel's documentation of the
    /// x86 boot protocol.
    fn unpack_image(&self) -> Result<(), TaskError> {
        let path = self
            .folder
            .join("boot")
            .join(format!("vmlinuz-{}", self.release));
        let image = io(fs::read(path))?;
        let packed = payload(&image)
            .ok_or_else(|| TaskError::Vm("the kernel image has no payload".into()))?;
        let program = unpacker(packed)
            .ok_or_else(|| TaskError::Vm("the kernel is packed in an unknown way".into()))?;
        let file = self.folder.join("payload");
        io(fs::write(&file, packed))?;
        let mut unpack = Command::new(program);
        unpack
            .args(["-d", "-c", "-q"])
            .stdin(io(fs::File::open(&file))?);
        let kernel = tool(&mut unpack)?;
        io(fs::write(self.image(), kernel))?;
        io(fs::remove_file(file))
    }

    fn unpack_modules(&self) -> Result<(), TaskError> {
        self.index_modules()?;
        let names: Vec<&str> = BOOT_MODULES.into_iter().chain(GUEST_MODULES).collect();
        let packed: Vec<PathBuf> = self
            .module_files(&names)
            .into_iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "xz"))
            .collect();
        if packed.is_empty() {
            return Ok(());
        }
        tool(Command::new("xz").arg("-d").args(packed))?;
        self.index_modules()
    }

    pub(super) fn index_modules(&self) -> Result<(), TaskError> {
        let mut index = Command::new("depmod");
        index.arg("-b").arg(&self.folder).arg(&self.release);
        tool(&mut index).map(drop)
    }

    /// The files of those of these modules that there are, after the files that they need.
    fn module_files(&self, names: &[&str]) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let mut show = Command::new("modprobe");
            show.arg("-d")
                .arg(&self.folder)
                .args(["-S", &self.release, "--show-depends", name]);
            // One that is built in, or that this kernel does not have, has no file.
            let listed = tool(&mut show).unwrap_or_default();
            for line in String::from_utf8_lossy(&listed).lines() {
                let file = line
                    .strip_prefix("insmod ")
                    .map(|rest| PathBuf::from(rest.trim()));
                files.extend(file.filter(|file| seen.insert(file.clone())));
            }
        }
        files
    }

    /// Packs the initial file system into `folder`: made for each run, so that it is never older
    /// than its source.
    pub(super) fn pack_initial(&self, folder: &Path) -> Result<PathBuf, TaskError> {
        let tree = folder.join("initial");
        for folder in ["bin", "dev", "proc", "lower", "upper", "tree", "modules"] {
            io(fs::create_dir_all(tree.join(folder)))?;
        }
        let busybox = tool(Command::new("sh").args(["-c", "command -v busybox"]))?;
        let busybox = String::from_utf8_lossy(&busybox).trim().to_owned();
        io(fs::copy(busybox, tree.join("bin/busybox")))?;
        let mut names = Vec::new();
        for file in self.module_files(&BOOT_MODULES) {
            let name = file
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let name = name.ok_or_else(|| TaskError::Vm("a module without a name".into()))?;
            io(fs::copy(&file, tree.join("modules").join(&name)))?;
            names.push(name);
        }
        let init = tree.join("init");
        io(fs::write(
            &init,
            INIT.replace("@MODULES@", &names.join(" ")),
        ))?;
        tool(Command::new("chmod").arg("+x").arg(&init))?;
        let mut pack = Command::new("sh");
        pack.current_dir(&tree)
            .args(["-c", "find . | cpio --quiet -o -H newc"]);
        let packed = tool(pack.stdin(Stdio::null()))?;
        let file = folder.join("initramfs");
        io(fs::write(&file, packed))?;
        Ok(file)
    }
}

impl Series {
    const fn prefix(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1.",
            Self::V6_12 => "6.12.",
        }
    }
}

/// Downloads Debian packages, by way of `staging`, and unpacks them into one folder.
pub(super) fn fetch_packages(
    staging: &Path,
    packages: &[String],
    into: &Path,
) -> Result<(), TaskError> {
    if staging.exists() {
        io(fs::remove_dir_all(staging))?;
    }
    io(fs::create_dir_all(staging))?;
    let mut download = Command::new("apt-get");
    download
        .current_dir(staging)
        .args(["-o", "APT::Sandbox::User=root", "-q", "download"])
        .args(packages);
    tool(&mut download)?;
    for entry in io(fs::read_dir(staging))? {
        let file = io(entry)?.path();
        tool(Command::new("dpkg-deb").arg("-x").arg(file).arg(into))?;
    }
    io(fs::remove_dir_all(staging))
}

pub(super) fn io<T>(result: std::io::Result<T>) -> Result<T, TaskError> {
    result.map_err(|error| TaskError::Vm(error.to_string()))
}

/// The releases whose folders are complete.
fn cached(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix("kernel-")?.to_owned())
        })
        .collect()
}

/// The newest plain amd64 release of a series: none for the cloud, for real time, or for debugging.
fn newest(releases: &[String], series: Series) -> Option<String> {
    let of_series = releases.iter().filter(|release| {
        let plain = release
            .strip_prefix(series.prefix())
            .and_then(|rest| rest.strip_suffix("-amd64"));
        plain.is_some_and(|rest| !rest.contains("cloud") && !rest.contains("rt"))
    });
    of_series.max_by_key(|release| numbers(release)).cloned()
}

/// The numbers in a release, which order releases.
fn numbers(release: &str) -> Vec<u64> {
    release
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// The packed kernel in a boot image. Its last four bytes are its unpacked length, not its own.
fn payload(image: &[u8]) -> Option<&[u8]> {
    const SETUP_SECTORS: usize = 0x1f1;
    const PAYLOAD_OFFSET: usize = 0x248;
    const PAYLOAD_LENGTH: usize = 0x24c;
    const SECTOR_BYTES: usize = 512;
    let field = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let sectors = usize::from(*image.get(SETUP_SECTORS)?);
    let start = (sectors + 1) * SECTOR_BYTES + field(PAYLOAD_OFFSET)?;
    let len = field(PAYLOAD_LENGTH)?.checked_sub(4)?;
    image.get(start..start.checked_add(len)?)
}

/// The program that unpacks what begins like this.
fn unpacker(packed: &[u8]) -> Option<&'static str> {
    match packed {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xz"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_of_a_series_is_chosen() {
        let known: Vec<String> = [
            "6.1.0-9-amd64",
            "6.1.0-56-amd64",
            "6.1.0-57-cloud-amd64",
            "6.1.0-57-rt-amd64",
            "6.1.0-57-amd64-dbg",
            "6.12.99+deb12-amd64",
            "6.12.117+deb12-amd64",
            "6.12-amd64",
        ]
        .map(str::to_owned)
        .into();
        assert_eq!(newest(&known, Series::V6_1).unwrap(), "6.1.0-56-amd64");
        assert_eq!(
            newest(&known, Series::V6_12).unwrap(),
            "6.12.117+deb12-amd64"
        );
        assert_eq!(newest(&known[..1], Series::V6_12), None);
    }

    #[test]
    fn the_payload_lies_behind_the_setup_sectors() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&100_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&10_u32.to_le_bytes());
        image[1124..1130].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 1, 2]);
        let packed = payload(&image).unwrap();
        assert_eq!(packed, [0x28, 0xb5, 0x2f, 0xfd, 1, 2]);
        assert_eq!(unpacker(packed), Some("zstd"));
        assert_eq!(unpacker(b"other"), None);
        assert_eq!(payload(&image[..1126]), None);
        image[0x24c..0x250].copy_from_slice(&3_u32.to_le_bytes());
        assert_eq!(payload(&image), None);
    }
}
