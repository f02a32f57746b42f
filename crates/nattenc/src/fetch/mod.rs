//! Fetches what is pinned: NATTEN's source archive, CUDA toolkits as wheels or as NVIDIA's
//! redistributable archives. Pins live in `nattenc.lock`, bytes and unpacked trees in the store.
//!
//! A tree that the store holds is used without any network. Everything else comes from where pip is
//! configured to look, so no host is named here.

mod describe;
mod http;
mod index;
mod lock;
mod pip;
mod redist;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod unpack;
mod url;

pub use lock::{Key, Kind, Pinned};

pub use describe::index_and_certificates;
pub use pip::locate as python;

use crate::failure::{Failure, class};
use crate::{bounded, env, fs};
use session::{IndexSource, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use unpack::{Entries, Entry};

/// How to fetch.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store's directory; see [`store_home`].
    pub home: PathBuf,
    /// `nattenc.lock`.
    pub lock_file: PathBuf,
    /// No network at all.
    pub offline: bool,
    /// Nothing may be added to the lock.
    pub locked: bool,
    /// The python3 whose pip is asked; else NATTENC_PYTHON, else python3 of PATH.
    pub python: Option<PathBuf>,
}

/// Something unpacked in the store. Read-only by convention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The directory that callers work with.
    pub root: PathBuf,
    /// Identifies the content: follows from the pinned hashes and the layout version alone.
    pub digest: String,
    /// What it was made from.
    pub files: Vec<Pinned>,
}

/// Machines that toolkits are pinned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// 64-bit ARM servers.
    Aarch64Linux,
    /// 64-bit x86.
    X86_64Linux,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 2] = [Target::Aarch64Linux, Target::X86_64Linux];

    /// The machine that nattenc was built for.
    pub fn host() -> Target {
        if cfg!(target_arch = "aarch64") { Target::Aarch64Linux } else { Target::X86_64Linux }
    }

    /// NVIDIA's name of the platform in redistributable manifests.
    fn redist_platform(self) -> &'static str {
        match self {
            Target::Aarch64Linux => "linux-sbsa",
            Target::X86_64Linux => "linux-x86_64",
        }
    }

    /// Does a wheel's manylinux platform tag belong to this target?
    fn takes_platform(self, tag: &str) -> bool {
        tag.starts_with("manylinux")
            && match self {
                Target::Aarch64Linux => tag.ends_with("_aarch64") || tag.ends_with("_sbsa"),
                Target::X86_64Linux => tag.ends_with("_x86_64"),
            }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Aarch64Linux => "aarch64-linux",
            Target::X86_64Linux => "x86_64-linux",
        })
    }
}

/// Told what happens; called from several threads.
pub trait Progress: Sync {
    /// Something begins, of so many bytes if that is known; returns a name for it.
    fn begin(&self, what: &str, bytes: Option<u64>) -> u64;
    /// So many more bytes came.
    fn advance(&self, id: u64, bytes: u64);
    /// It ended, in a word or two.
    fn end(&self, id: u64, outcome: &str);
    /// A line that the user should see: what was pinned, what was damaged.
    fn note(&self, text: &str) {
        let id = self.begin(text, None);
        self.end(id, "");
    }
}

/// Shows nothing.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _bytes: Option<u64>) -> u64 {
        0
    }

    fn advance(&self, _id: u64, _bytes: u64) {}

    fn end(&self, _id: u64, _outcome: &str) {}
}

/// The store's directory: NATTENC_HOME, else nattenc in XDG_CACHE_HOME, else in ~/.cache. Made if need be.
///
/// Fails, with class resource, where it gives no answer, as on a mount whose server is gone: toolkit and sources lie
/// there, so nothing can go on without it.
pub fn store_home() -> anyhow::Result<PathBuf> {
    home_of(&env::os, bounded::PATIENCE)
}

fn home_of(variable: &dyn Fn(&str) -> Option<OsString>, patience: Duration) -> anyhow::Result<PathBuf> {
    for (name, below) in [("NATTENC_HOME", ""), ("XDG_CACHE_HOME", "nattenc"), ("HOME", ".cache/nattenc")] {
        let Some(value) = variable(name).filter(|v| !v.is_empty()) else { continue };
        let unusable = |why: &str| {
            Failure::config(format!("{name}: {value:?} cannot hold the store: {why}"))
                .hint("set NATTENC_HOME to the absolute path of a directory on a disk with some GB free")
        };
        let path = Path::new(&value);
        if path.to_str().is_none() {
            return Err(unusable("it is not UTF-8").into());
        }
        if !path.is_absolute() {
            return Err(unusable("it is not an absolute path").into());
        }
        let home = if below.is_empty() { path.to_path_buf() } else { path.join(below) };
        let own = home.clone();
        return match bounded::within(patience, move |_| look_into(&own)) {
            Some(Ok(())) => Ok(home),
            Some(Err(e)) => Err(Failure { class: class(&e), ..unusable(&e.to_string()) }.into()),
            None => Err(Failure::resource(format!(
                "{name}: {}: the store gives no answer within {} s",
                home.display(),
                patience.as_secs_f64()
            ))
            .hint("check that its mount is alive, or set NATTENC_HOME to a directory on a disk that is")
            .into()),
        };
    }
    Err(Failure::config(
        "none of NATTENC_HOME, XDG_CACHE_HOME and HOME is set, so there is no place for the store",
    )
    .hint("set NATTENC_HOME to the absolute path of a directory")
    .into())
}

/// Makes the directory of the store if need be, and reads a little wherever a build will read in any case.
fn look_into(home: &Path) -> anyhow::Result<()> {
    if !home.is_dir() {
        return fs::create_dir(home);
    }
    // What cannot be read is no concern of this: it only has to say so.
    let _ = fs::beginning(&home.join("digests.json"), 1);
    let _ = fs::list(&home.join("trees"));
    Ok(())
}

/// NATTEN's source archive, unpacked; the root is `natten-<version>`.
pub fn natten(options: &Options, version: &str, progress: &dyn Progress) -> anyhow::Result<Tree> {
    natten_in(&Session::new(options, progress), version)
}

/// As [`natten`], of a version that is only looked at: one that nattenc.lock does not pin stays so.
pub fn natten_apart(options: &Options, version: &str, progress: &dyn Progress) -> anyhow::Result<Tree> {
    natten_in(&Session::apart(options, progress), version)
}

/// Keeps other runs from changing the lock for as long as the value lives.
pub fn hold_lock(options: &Options) -> anyhow::Result<fs::FileLock> {
    store::Store::new(&options.home).lock(&session::lock_name(&options.lock_file)?, || {})
}

/// The text of the lock with the source archive of `tree` as the only one of NATTEN that it pins.
pub fn lock_with_natten(options: &Options, tree: &Tree) -> anyhow::Result<Vec<u8>> {
    let mut lock = lock::Lock::load(&options.lock_file)?;
    lock.replace_sdist(&tree.files);
    Ok(lock.text().into_bytes())
}

fn natten_in(session: &Session<'_>, version: &str) -> anyhow::Result<Tree> {
    let key = Key {
        kind: Kind::Sdist,
        name: "natten".to_owned(),
        version: version.to_owned(),
        platform: String::new(),
    };
    let top = format!("natten-{version}");
    let prefix = format!("{top}/");
    let mut tree = session.tree(&[key].into(), &IndexSource(session), &|parts, tree| {
        let entries = unpack::merge(parts, tree)?;
        match entries.keys().find(|path| !path.starts_with(&prefix)) {
            Some(path) => Err(Failure::integrity(format!("{top}.tar.gz: holds {path:?} outside of {top}"))
                .hint("do not use this archive; report it to whoever published it")
                .into()),
            None => Ok(entries),
        }
    })?;
    tree.root.push(top);
    Ok(tree)
}

/// A CUDA toolkit out of wheels, project → version; the root is their one directory `nvidia/cu<major>`.
/// `name` is for messages.
pub fn wheels(
    options: &Options,
    name: &str,
    wheels: &BTreeMap<String, String>,
    target: Target,
    progress: &dyn Progress,
) -> anyhow::Result<Tree> {
    wheels_in(&Session::new(options, progress), name, wheels, target)
}

fn wheels_in(
    session: &Session<'_>,
    name: &str,
    wheels: &BTreeMap<String, String>,
    target: Target,
) -> anyhow::Result<Tree> {
    let keys: BTreeSet<Key> = wheels
        .iter()
        .map(|(project, version)| Key {
            kind: Kind::Wheel,
            name: index::normalize(project),
            version: version.clone(),
            platform: target.to_string(),
        })
        .collect();
    let mut tree = session.tree(&keys, &IndexSource(session), &|parts, tree| {
        let mut entries = unpack::merge(parts, tree)?;
        let root = toolkit_root(name, tree)?;
        // Wheels do not carry executable bits.
        for directory in ["bin", "nvvm/bin"] {
            unpack::make_executable(tree, &format!("{root}/{directory}"), &mut entries)?;
        }
        Ok(entries)
    })?;
    tree.root.push(toolkit_root(name, &tree.root)?);
    Ok(tree)
}

fn toolkit_root(name: &str, tree: &Path) -> anyhow::Result<String> {
    let nvidia = tree.join("nvidia");
    let found = if nvidia.is_dir() { fs::list(&nvidia)? } else { Vec::new() };
    let names = found.iter().filter(|p| p.is_dir()).filter_map(|p| p.file_name()?.to_str());
    let roots: Vec<&str> = names
        .filter(|n| n.strip_prefix("cu").is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit())))
        .collect();
    match roots[..] {
        [root] => Ok(format!("nvidia/{root}")),
        _ => Err(Failure::toolchain(format!(
            "{name}: its wheels should hold one toolkit nvidia/cu<major>, and hold {}",
            if roots.is_empty() { "none".to_owned() } else { roots.join(" and ") }
        ))
        .hint("name wheels of one CUDA release from 13.0 on; wheels of 12.x hold no nvcc")
        .into()),
    }
}

/// A CUDA toolkit out of NVIDIA's redistributable archives; the root is the tree itself.
/// `base_url` is the directory that holds `redistrib_<release>.json`.
pub fn redist(
    options: &Options,
    release: &str,
    base_url: &str,
    components: &[String],
    target: Target,
    progress: &dyn Progress,
) -> anyhow::Result<Tree> {
    redist_in(&Session::new(options, progress), release, base_url, components, target)
}

fn redist_in(
    session: &Session<'_>,
    release: &str,
    base_url: &str,
    components: &[String],
    target: Target,
) -> anyhow::Result<Tree> {
    let source = redist::RedistSource::new(session, base_url, release)?;
    let keys: BTreeSet<Key> = components.iter().map(|c| redist::key(c, release, target)).collect();
    session.tree(&keys, &source, &|mut parts, tree| {
        // Each component brings a LICENSE of its own at the top, and they differ.
        for part in &mut parts {
            let (top, below): (Entries, Entries) = std::mem::take(&mut part.entries)
                .into_iter()
                .partition(|(path, entry)| !path.contains('/') && matches!(entry, Entry::File { .. }));
            part.entries = below;
            for (file, entry) in top {
                let to = format!("LICENSES/{}/{file}", part.name);
                fs::create_dir(&part.at.join("LICENSES").join(&part.name))?;
                fs::rename(&part.at.join(&file), &part.at.join(&to))?;
                part.entries.insert(to, entry);
            }
        }
        unpack::merge(parts, tree)
    })
}

/// An archive that build.toml pins itself, by its SHA-256; the root is the archive's one top directory.
/// `location` is a URL, or a path relative to `root`, which needs no network.
pub fn archive(
    options: &Options,
    name: &str,
    root: &Path,
    location: &str,
    sha256: &str,
    progress: &dyn Progress,
) -> anyhow::Result<Tree> {
    let local = !location.contains("://");
    let url = if local {
        url::Url::of_file(&fs::real_path(&root.join(location))?)
    } else {
        url::Url::parse(location).map_err(|why| {
            Failure::config(format!("{name}: {location}: {why}")).hint("give an https URL, or a path")
        })?
    };
    let key = Key {
        kind: Kind::Archive,
        name: name.to_owned(),
        version: sha256.to_owned(),
        platform: String::new(),
    };
    let pin = Pinned { key, file: url.file_name(), size: None, sha256: sha256.to_owned() };
    let options = Options { offline: options.offline && !local, ..options.clone() };
    Session::new(&options, progress).archive(pin, url)
}

/// Forgets the pin of a file (`nattenc fetch --accept FILE`) and fetches anew, which pins what the source
/// has now. Where that fails, the lock is as before. Nothing in the store is removed.
pub fn accept<T>(
    options: &Options,
    file: &str,
    fetch: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let path = &options.lock_file;
    if options.locked {
        return Err(Failure::config("--accept changes the lock, and --locked forbids that")
            .hint("leave one of them out")
            .into());
    }
    let before = fs::read_if_exists(path)?;
    {
        let store = store::Store::new(&options.home);
        let _held = store.lock(&session::lock_name(path)?, || {})?;
        let mut lock = lock::Lock::load(path)?;
        let known: Vec<String> = lock.pins().map(|p| format!("  {}", p.file)).collect();
        if lock.remove_file(file) == 0 {
            return Err(Failure::config(format!(
                "{}: pins no file {file:?}; it pins\n{}",
                path.display(),
                known.join("\n")
            ))
            .hint("name one of those files")
            .into());
        }
        lock.save(path)?;
    }
    fetch().inspect_err(|_| {
        if let Some(bytes) = &before {
            let _ = fs::write(path, bytes);
        }
    })
}

/// Reads every file of a tree again; fails with class integrity where one is not what was unpacked.
pub fn verify_tree(options: &Options, tree: &Tree) -> anyhow::Result<()> {
    store::Store::new(&options.home).verify(&tree.digest)
}

/// The version of CUTLASS that a NATTEN source tree carries, as `4.3.5`.
pub fn cutlass_version(tree: &Tree) -> anyhow::Result<String> {
    crate::cutlass::version(&tree.root.join("third_party/cutlass/include")).map_err(|why| {
        Failure::integrity(why)
            .hint("use a natten source archive that carries CUTLASS's headers (0.21.5 and later do)")
            .into()
    })
}
