//! Candidates to one artifact, or the reasons why there is none. Reads files, writes nothing; tested by
//! `tests/find_artifact.rs`.

#![expect(clippy::disallowed_methods, reason = "the one door of this build script to files")]

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What decides the search.
#[derive(Debug, Clone)]
pub(crate) struct Vars {
    /// Documentation is being built where nothing can be linked.
    pub(crate) docs_rs: bool,
    /// `NATTEN_KERNELS_VARIANT_DIR`.
    pub(crate) variant_dir: Option<PathBuf>,
    /// `NATTEN_KERNELS_VARIANT`.
    pub(crate) variant: Option<String>,
    /// `NATTEN_KERNELS_LINK`.
    pub(crate) linkage: Linkage,
    /// `x86_64-linux`.
    pub(crate) target: String,
    /// Where `dist/` and `build.toml` would lie.
    pub(crate) workspace: PathBuf,
}

/// Which of an artifact's libraries to link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// The archive.
    Static,
    /// The shared library.
    Shared,
}

/// What the search found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// An artifact to link.
    Artifact(Artifact),
    /// Nothing, which is not an error.
    Nothing {
        /// What to tell the user.
        warning: Option<String>,
        /// Paths whose change may mean that there is something now.
        watch: Vec<PathBuf>,
    },
}

/// What to tell Cargo.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// `dist/<variant>`.
    pub(crate) directory: PathBuf,
    /// `cu130`.
    pub(crate) variant: String,
    /// `13.0.88`.
    pub(crate) toolkit: String,
    /// Static or shared.
    pub(crate) linkage: Linkage,
    /// Where libraries lie.
    pub(crate) search: Vec<PathBuf>,
    /// The artifact's own libraries, in link order.
    pub(crate) libraries: Vec<String>,
    /// The system's, after them.
    pub(crate) system: Vec<String>,
    /// Files whose change means another artifact.
    pub(crate) watch: Vec<PathBuf>,
}

/// How the reason begins why an artifact of another machine is not taken.
const OTHER_TARGET: &str = "it was built for";

/// The manifest format that this script reads.
const FORMAT: u64 = 1;

#[derive(Deserialize)]
struct Format {
    format_version: u64,
}

/// The parts of `manifest.json` that linking needs.
#[derive(Deserialize)]
struct Manifest {
    variant: String,
    target: String,
    build: Build,
    link: Link,
    files: Vec<File>,
}

#[derive(Deserialize)]
struct Build {
    toolkit: String,
}

#[derive(Deserialize)]
struct Link {
    r#static: Vec<String>,
    shared: Vec<String>,
    system: Vec<String>,
    #[serde(default)]
    search: Vec<PathBuf>,
}

/// What this crate calls is declared in these files of an artifact.
const HEADERS: &[&str] = &["include/natten_kernels.h", "include/natten_kernels_merge.h"];

#[derive(Deserialize)]
struct File {
    path: PathBuf,
    size: u64,
}

/// The artifact to link.
///
/// # Errors
/// One sentence: what was asked for and cannot be had, and what to do.
pub(crate) fn find(vars: &Vars) -> Result<Found, String> {
    if vars.docs_rs {
        return Ok(Found::Nothing { warning: None, watch: Vec::new() });
    }
    if let Some(directory) = &vars.variant_dir {
        return read(directory, vars)
            .map(Found::Artifact)
            .map_err(|reason| format!("NATTEN_KERNELS_VARIANT_DIR is `{}`: {reason}", directory.display()));
    }
    let dist = vars.workspace.join("dist");
    if let Some(variant) = &vars.variant {
        return read(&dist.join(variant), vars).map(Found::Artifact).map_err(|reason| {
            format!("NATTEN_KERNELS_VARIANT is `{variant}`: {reason}; {}", listed(&candidates(&dist)))
        });
    }
    let default = default_variant(&vars.workspace);
    let (mut usable, mut foreign) = (Vec::new(), Vec::new());
    let mut broken: Vec<(String, String)> = Vec::new();
    for name in candidates(&dist) {
        match read(&dist.join(&name), vars) {
            Ok(artifact) => usable.push(artifact),
            Err(reason) if reason.starts_with(OTHER_TARGET) => foreign.push(format!("dist/{name}: {reason}")),
            Err(reason) => broken.push((name, reason)),
        }
    }
    // An artifact that is there and cannot be used is never passed over for another or for none.
    let bad = broken.iter().find(|(name, _)| usable.is_empty() || Some(name) == default.as_ref());
    if let Some((name, reason)) = bad {
        return Err(format!(
            "dist/{name}: {reason}; build it again with `nattenc build --variant {name}`, remove it, or set NATTEN_KERNELS_VARIANT to another"
        ));
    }
    if usable.len() > 1 {
        let names: Vec<String> = usable.iter().map(|artifact| artifact.variant.clone()).collect();
        usable.retain(|artifact| Some(&artifact.variant) == default.as_ref());
        if usable.is_empty() {
            return Err(format!(
                "dist/ holds several artifacts ({}) and build.toml's default-variant is none of them: set NATTEN_KERNELS_VARIANT to one",
                names.join(", ")
            ));
        }
    }
    if let Some(mut artifact) = usable.pop() {
        // Another artifact, or another default, may mean another choice.
        artifact.watch.push(dist);
        artifact.watch.extend(Some(vars.workspace.join("build.toml")).filter(|path| path.exists()));
        return Ok(Found::Artifact(artifact));
    }
    let mut warning = "no artifact is linked, so device operations answer with an error; \
                       `nattenc build --variant cu130 --preset starter` builds one"
        .to_owned();
    if !foreign.is_empty() {
        warning = format!("{warning}; not taken: {}", foreign.join("; "));
    }
    Ok(Found::Nothing { warning: Some(warning), watch: watch_for_arrival(&vars.workspace, dist) })
}

/// What to watch so that an artifact which is built later is noticed. An existing `dist/` can be
/// watched. One that does not exist yet cannot without making Cargo run this script on every build, which
/// is right all the same: a build that stays unlinked after `nattenc build` would be a lie. Outside of
/// the workspace (a registry's copy of the crate) there is nothing to wait for.
fn watch_for_arrival(workspace: &Path, dist: PathBuf) -> Vec<PathBuf> {
    if workspace.join("build.toml").exists() || dist.exists() { vec![dist] } else { Vec::new() }
}

/// Names under `dist` that hold a manifest, sorted; staging directories start with a dot.
fn candidates(dist: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dist) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && dist.join(name).join("manifest.json").exists())
        .collect();
    names.sort();
    names
}

fn listed(candidates: &[String]) -> String {
    if candidates.is_empty() {
        "dist/ holds no artifact".to_owned()
    } else {
        format!("dist/ holds {}", candidates.join(", "))
    }
}

fn read(directory: &Path, vars: &Vars) -> Result<Artifact, String> {
    // Absolute, since the linker runs elsewhere.
    let path = directory.join("manifest.json");
    let directory = directory.canonicalize().map_err(|error| format!("cannot read it: {error}"))?;
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("cannot read its manifest.json: {error}"))?;
    // The version first: a later format may differ in anything else.
    let Format { format_version } =
        serde_json::from_str(&text).map_err(|error| format!("its manifest.json cannot be read: {error}"))?;
    if format_version != FORMAT {
        return Err(format!(
            "its manifest.json has format {format_version}, this crate reads {FORMAT}: use an artifact and a crate of the same release"
        ));
    }
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| format!("its manifest.json cannot be read: {error}"))?;
    if manifest.target != vars.target {
        return Err(format!("{OTHER_TARGET} {}, the target is {}", manifest.target, vars.target));
    }
    if let Some(header) =
        HEADERS.iter().find(|h| !manifest.files.iter().any(|file| file.path == Path::new(h)))
    {
        return Err(format!(
            "it has no {header}, so an older nattenc built it, without operations that this crate calls: build it again"
        ));
    }
    let mut search = vec![directory.join("lib")];
    search.extend(manifest.link.search.iter().map(|path| directory.join(path)));
    let (libraries, suffix) = match vars.linkage {
        Linkage::Static => (manifest.link.r#static, ".a"),
        Linkage::Shared => (manifest.link.shared, ".so"),
    };
    let mut watch = vec![directory.join("manifest.json")];
    for name in &libraries {
        let file = PathBuf::from("lib").join(format!("lib{name}{suffix}"));
        let path = directory.join(&file);
        let found = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", file.display()))?.len();
        let listed = manifest.files.iter().find(|entry| entry.path == file);
        let expected = listed.ok_or_else(|| format!("{} is not in its manifest.json", file.display()))?.size;
        if found != expected {
            return Err(format!(
                "{} has {found} bytes, its manifest.json says {expected}: run `nattenc verify`",
                file.display()
            ));
        }
        watch.push(path);
    }
    Ok(Artifact {
        directory,
        variant: manifest.variant,
        toolkit: manifest.build.toolkit,
        linkage: vars.linkage,
        search,
        libraries,
        // A shared library brings its own.
        system: if vars.linkage == Linkage::Static { manifest.link.system } else { Vec::new() },
        watch,
    })
}

/// `default-variant` of `[general]` in build.toml. A scan of lines serves: nattenc reads the file
/// properly, and here a wrong guess only ends in the error that lists the candidates.
fn default_variant(workspace: &Path) -> Option<String> {
    let text = std::fs::read_to_string(workspace.join("build.toml")).ok()?;
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[general]"
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == "default-variant"
        {
            return value.trim().strip_prefix('"')?.split_once('"').map(|(name, _)| name.to_owned());
        }
    }
    None
}
