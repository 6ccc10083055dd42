//! What the checks look at: source files, workspace packages and the dependency graph.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, TargetKind};

use super::listing;
use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// The tree under check. Paths are relative to the root, with `/` between their parts.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<SourceFile>,
    pub(super) packages: Vec<Package>,
    pub(super) graph: Graph,
}

/// A text file of the repository.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) path: String,
    pub(super) text: String,
}

/// A package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// The folder of its manifest.
    pub(super) dir: String,
    pub(super) dependencies: Vec<Dependency>,
    /// Crate roots of its library and its programs.
    pub(super) roots: Vec<String>,
}

/// A dependency as the manifest states it, whether or not a feature turns it on.
#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) is_dev: bool,
}

/// Who uses whom with all features on, without dev-dependencies. Keys are cargo's package ids.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) names: BTreeMap<String, String>,
    pub(super) uses: BTreeMap<String, Vec<String>>,
}

impl Tree {
    /// Reads the working tree.
    ///
    /// # Errors
    /// When cargo cannot be asked, or a file cannot be read.
    pub(super) fn load(workspace: &Workspace) -> Result<Self, TaskError> {
        let metadata = workspace
            .metadata()
            .features(CargoOpt::AllFeatures)
            .other_options(["--locked".to_owned()])
            .exec()?;
        Ok(Self {
            files: read_files(workspace.root())?,
            packages: packages_of(&metadata),
            graph: graph_of(&metadata),
        })
    }

    /// Files whose name ends in `.rs`.
    pub(super) fn rust_files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The file at this path, if it is there.
    pub(super) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The package whose folder holds this file: the deepest one, since `transfer/proto` lies in
    /// `transfer`.
    pub(super) fn package_of(&self, path: &str) -> Option<&Package> {
        let holds = |package: &&Package| {
            path.strip_prefix(package.dir.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.packages
            .iter()
            .filter(holds)
            .max_by_key(|package| package.dir.len())
    }

    /// The line of `needle` in the package's manifest, or its first line.
    pub(super) fn manifest_line(&self, package: &Package, needle: &str) -> usize {
        self.file(&package.manifest())
            .map_or(1, |file| file.line_that_starts_with(needle))
    }
}

impl Package {
    /// The path of its manifest.
    pub(super) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.dir)
    }
}

impl SourceFile {
    /// The number of the first line that starts with `needle`, or 1.
    pub(super) fn line_that_starts_with(&self, needle: &str) -> usize {
        self.text
            .lines()
            .position(|line| line.trim_start().starts_with(needle))
            .unwrap_or(0)
            + 1
    }
}

fn read_files(root: &Path) -> Result<Vec<SourceFile>, TaskError> {
    let mut files = Vec::new();
    for path in listing::paths(root)? {
        let full = root.join(&path);
        match fs::read(&full) {
            // Binary files (a fuzz corpus) are no prose and no code.
            Ok(bytes) => {
                files.extend(
                    String::from_utf8(bytes)
                        .ok()
                        .map(|text| SourceFile { path, text }),
                );
            }
            // Deleted but not committed yet, or a link to nowhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(TaskError::Read { path: full, source }),
        }
    }
    Ok(files)
}

fn packages_of(metadata: &Metadata) -> Vec<Package> {
    let root = &metadata.workspace_root;
    let relative = |path: &cargo_metadata::camino::Utf8Path| {
        path.strip_prefix(root).unwrap_or(path).as_str().to_owned()
    };
    let package = |package: &cargo_metadata::Package| Package {
        name: package.name.to_string(),
        dir: relative(package.manifest_path.parent().unwrap_or(root)),
        dependencies: package
            .dependencies
            .iter()
            .map(|dependency| Dependency {
                name: dependency.name.clone(),
                is_dev: dependency.kind == DependencyKind::Development,
            })
            .collect(),
        roots: package
            .targets
            .iter()
            .filter(|target| target.is_kind(TargetKind::Lib) || target.is_kind(TargetKind::Bin))
            .map(|target| relative(&target.src_path))
            .collect(),
    };
    metadata
        .workspace_packages()
        .into_iter()
        .map(package)
        .collect()
}

fn graph_of(metadata: &Metadata) -> Graph {
    let mut graph = Graph::default();
    for package in &metadata.packages {
        graph
            .names
            .insert(package.id.repr.clone(), package.name.to_string());
    }
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    for node in nodes {
        let uses = node.deps.iter().filter(|dependency| {
            dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind != DependencyKind::Development)
        });
        let uses = uses.map(|dependency| dependency.pkg.repr.clone()).collect();
        graph.uses.insert(node.id.repr.clone(), uses);
    }
    graph
}

/// Small trees for the tests of the checks.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(in crate::tidy) fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.into(),
            text: text.into(),
        }
    }

    pub(in crate::tidy) fn package(name: &str, dir: &str, uses: &[&str]) -> Package {
        let dependencies = uses
            .iter()
            .map(|name| Dependency {
                name: (*name).into(),
                is_dev: false,
            })
            .collect();
        let roots = vec![format!("{dir}/src/lib.rs")];
        Package {
            name: name.into(),
            dir: dir.into(),
            dependencies,
            roots,
        }
    }

    /// A tree of one library file in the package that holds it.
    pub(in crate::tidy) fn one_file(package_name: &str, dir: &str, text: &str) -> Tree {
        Tree {
            files: vec![file(&format!("{dir}/src/lib.rs"), text)],
            packages: vec![package(package_name, dir, &[])],
            graph: Graph::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{file, package};
    use super::*;

    #[test]
    fn the_deepest_package_holds_a_file() {
        let tree = Tree {
            packages: vec![
                package("outer", "transfer", &[]),
                package("inner", "transfer/proto", &[]),
            ],
            ..Tree::default()
        };
        let name = |path| tree.package_of(path).map(|package| package.name.as_str());
        assert_eq!(name("transfer/proto/src/lib.rs"), Some("inner"));
        assert_eq!(name("transfer/src/lib.rs"), Some("outer"));
        assert_eq!(name("transferred/src/lib.rs"), None);
    }

    #[test]
    fn lines_count_from_one() {
        let manifest = file("a/Cargo.toml", "[dependencies]\n  slab = \"1\"\n");
        assert_eq!(manifest.line_that_starts_with("slab"), 2);
        assert_eq!(manifest.line_that_starts_with("absent"), 1);
    }

    #[test]
    fn this_workspace_can_be_read() {
        let tree = Tree::load(&Workspace::find()).expect("git and cargo answer in a checkout");
        let xtask = tree
            .package_of("xtask/src/main.rs")
            .expect("xtask is a package");
        assert_eq!(xtask.roots, ["xtask/src/main.rs"]);
        assert!(tree.file("Cargo.toml").is_some());
        assert!(tree.graph.uses.len() >= tree.packages.len());
    }
}
