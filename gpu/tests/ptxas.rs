//! The shipped kernels, assembled for the devices that they are for.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use lunette_gpu::proto::kernel::Width;
    use lunette_gpu::proto::sums;

    /// The assembler's package, of a fixed version.
    const PACKAGE: &str = "nvidia-cuda-nvcc-cu12";
    const VERSION: &str = "12.9.86";
    /// Where it lies in there.
    const ASSEMBLER: &str = "nvidia/cuda_nvcc/bin/ptxas";
    const DEVICES: [&str; 2] = ["sm_80", "sm_90"];
    /// Registers of a thread at most, so that two blocks of 256 fit beside a model's.
    const REGISTERS_MAX: u32 = 40;

    fn succeeds(command: &mut Command) -> bool {
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }

    /// The assembler: an installed one, or the one that the registry has, or why there is none.
    fn assembler() -> Result<PathBuf, &'static str> {
        if succeeds(Command::new("ptxas").arg("--version")) {
            return Ok("ptxas".into());
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ptxas-{VERSION}"));
        let path = folder.join(ASSEMBLER);
        if !path.exists() {
            fetch(&folder)?;
            let executable = Permissions::from_mode(0o755);
            fs::set_permissions(&path, executable).map_err(|_| "the package has no ptxas")?;
        }
        let works = succeeds(Command::new(&path).arg("--version"));
        works.then_some(path).ok_or("ptxas does not run here")
    }

    fn fetch(folder: &Path) -> Result<(), &'static str> {
        let wanted = format!("{PACKAGE}=={VERSION}");
        let words = [
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
        ];
        let mut download = Command::new("python3");
        if !succeeds(download.args(words).arg(folder).arg(wanted)) {
            return Err("neither ptxas nor its package can be had");
        }
        let entries = fs::read_dir(folder).map_err(|_| "no folder for the package")?;
        let is_wheel = |path: &PathBuf| path.extension().is_some_and(|end| end == "whl");
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        let wheel = paths
            .into_iter()
            .find(is_wheel)
            .ok_or("no package was downloaded")?;
        let mut unpack = Command::new("python3");
        let unpack = unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(folder);
        succeeds(unpack)
            .then_some(())
            .ok_or("the package cannot be unpacked")
    }

    /// The number behind `word` in what the assembler says of a kernel.
    fn number_before(text: &str, word: &str) -> u32 {
        let before = text.split(word).next().unwrap_or_default();
        let number = before.split_whitespace().next_back().unwrap_or_default();
        number.parse().expect("a number")
    }

    #[test]
    fn the_kernels_assemble_for_each_device_within_their_registers() {
        let assembler = match assembler() {
            Ok(assembler) => assembler,
            Err(reason) => {
                return println!(
                    "SKIP the_kernels_assemble_for_each_device_within_their_registers: {reason}"
                );
            }
        };
        let pages = Width::ALL.map(|width| (width.entry(), width.ptx()));
        let programs = pages.into_iter().chain([(sums::ENTRY, sums::ptx())]);
        for (entry, text) in programs {
            for device in DEVICES {
                let folder = tempfile::tempdir().expect("a folder");
                let source = folder.path().join("kernel.ptx");
                fs::write(&source, &text).expect("written");
                let mut command = Command::new(&assembler);
                command.args(["-v", "--warning-as-error", "-arch", device, "-o"]);
                let done = command.arg(folder.path().join("out")).arg(&source).output();
                let done = done.expect("it ran before");
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(done.status.success(), "{entry} {device}: {said}");
                assert!(said.contains(entry), "{said}");
                let registers = number_before(&said, " registers");
                assert!(
                    (1..=REGISTERS_MAX).contains(&registers),
                    "{registers}: {said}"
                );
                assert_eq!(number_before(&said, " bytes spill stores"), 0, "{said}");
            }
        }
        assert!(!assembles(
            &assembler,
            &Width::One.ptx().replace(".cg.u8", ".cg.u9")
        ));
    }

    /// Whether the assembler takes this text at all.
    fn assembles(assembler: &Path, text: &str) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("kernel.ptx");
        fs::write(&source, text).expect("written");
        let mut command = Command::new(assembler);
        command
            .args(["-arch", "sm_90", "-o"])
            .arg(folder.path().join("out"));
        succeeds(command.arg(&source))
    }
}
