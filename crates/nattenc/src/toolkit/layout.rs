//! Where the parts of a toolkit lie, and whether they belong together. nvcc itself is asked (`--dryrun`),
//! so that symlinked, conda and Debian layouts need no special cases; headers and runtime are then looked
//! for in the places that those have.

use super::surroundings::{Surroundings, first_lines};
use super::version::{self, Bound, Version};
use super::{Cudart, Digests};
use crate::execute::process;
use crate::failure::Failure;
use crate::fs;
use crate::plan::capability::Capability;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The parts of a toolkit, as far as they were found.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) home: PathBuf,
    pub(super) nvcc: PathBuf,
    pub(super) version: Version,
    pub(super) capabilities: Vec<Capability>,
    pub(super) tools: BTreeMap<String, PathBuf>,
    pub(super) include: Option<PathBuf>,
    pub(super) cudart: Option<Cudart>,
    pub(super) bound: Bound,
    /// The release of each part, `unknown` where it does not say.
    pub(super) versions: BTreeMap<String, String>,
    /// Missing and disagreeing parts.
    pub(super) problems: Vec<String>,
}

const TOOLS: [&str; 4] = ["cicc", "ptxas", "cudafe++", "fatbinary"];

impl Parts {
    /// A failure that names every problem.
    pub(super) fn agree(&self, origin: &str) -> anyhow::Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(Failure::toolchain(format!(
            "toolkit {} ({origin}): cuda {} is not whole\n  {}",
            self.home.display(),
            self.version.full,
            self.problems.join("\n  ")
        ))
        .hint("install one complete toolkit and point --toolkit or CUDA_HOME at it")
        .into())
    }
}

/// nvcc of a home, links resolved, because it finds its parts relative to its own name.
pub(super) fn nvcc(home: &Path) -> anyhow::Result<PathBuf> {
    let path = home.join("bin/nvcc");
    if path.is_file() {
        return fs::real_path(&path);
    }
    let above = home.ancestors().skip(1).take(2).find(|dir| dir.join("bin/nvcc").is_file());
    let hint = match above {
        Some(dir) => format!("name {} instead", dir.display()),
        None => "name the directory that holds bin/nvcc".to_owned(),
    };
    let what = if home.is_dir() { "has no bin/nvcc" } else { "is no directory" };
    Err(Failure::toolchain(format!("toolkit \"{}\" {what}", home.display())).hint(hint).into())
}

/// What nvcc says of itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    pub(super) version: Version,
    /// Of the program that runs in the end, where nvcc is a wrapper.
    nvcc: PathBuf,
    /// What a dry run sets.
    settings: BTreeMap<String, String>,
    /// What `--list-gpu-code` prints.
    listed: String,
}

impl Account {
    /// Asks `nvcc`.
    pub(super) fn of(nvcc: &Path, surroundings: &Surroundings) -> anyhow::Result<Self> {
        let ask = |nvcc: &Path, arguments: &[&str]| {
            let argv =
                std::iter::once(nvcc.display().to_string()).chain(arguments.iter().map(|a| (*a).to_owned()));
            process::capture(&surroundings.command(argv.collect(), Path::new("/")))
        };
        let printed = ask(nvcc, &["--version"])?;
        let version = version::banner(&printed.stdout).or_else(|| version::banner(&printed.output));
        let version = version.ok_or_else(|| no_release(nvcc, &printed))?;
        let settings = settings(&ask(nvcc, &["--dryrun", "-c", "x.cu", "-o", "x.o"])?.output);
        // A wrapper leads to the real one: that is the program whose digest counts and whose exit code can be trusted.
        let real = settings.get("_HERE_").map(|dir| Path::new(dir).join("nvcc")).filter(|p| p.is_file());
        let nvcc = real.map_or_else(|| Ok(nvcc.to_path_buf()), |real| fs::real_path(&real))?;
        let listed = ask(&nvcc, &["--list-gpu-code"])?;
        let listed = if capabilities(&listed.stdout).is_empty() { listed.output } else { listed.stdout };
        Ok(Account { version, nvcc, settings, listed })
    }

    /// Whether it is certain that it was `nvcc` which gave it: that is a program, and has the banner that it printed
    /// in its own bytes. What a wrapper says is what another program says, which may change while the wrapper does not.
    pub(super) fn is_of(&self, nvcc: &Path, digests: &dyn Digests) -> anyhow::Result<bool> {
        let mut magic = [0; 4];
        let is_program = fs::open(nvcc)?.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF";
        Ok(is_program && self.nvcc == nvcc && digests.banner(nvcc)?.as_ref() == Some(&self.version))
    }
}

/// What decides an [`Account`], beside nvcc itself: its profile, the directories that it looks for, PATH.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Basis {
    path: String,
    beside: Vec<Option<fs::Stamp>>,
}

impl Basis {
    /// As it is now.
    pub(super) fn of(nvcc: &Path, surroundings: &Surroundings) -> anyhow::Result<Self> {
        let bin = nvcc.parent().unwrap_or(nvcc);
        let home = bin.parent().unwrap_or(bin);
        let beside = [bin.join("nvcc.profile"), home.to_path_buf(), home.join("targets")];
        let beside = beside.iter().map(|path| fs::stamp_if_exists(path)).collect::<Result<_, _>>()?;
        Ok(Basis { path: surroundings.path.clone(), beside })
    }
}

/// The failure for an nvcc whose `--version` is none.
fn no_release(nvcc: &Path, printed: &process::Finished) -> Failure {
    let end = match (printed.code, printed.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    Failure::toolchain(format!(
        "{} --version names no release ({end}), it printed {}",
        nvcc.display(),
        first_lines(&printed.output)
    ))
    .hint("run that command by hand; point --toolkit or CUDA_HOME at a working toolkit")
}

/// The capabilities in a list of nvcc's, ascending.
fn capabilities(listed: &str) -> Vec<Capability> {
    let words = listed.split_whitespace().filter(|word| word.starts_with("sm_"));
    let mut capabilities: Vec<Capability> = words.filter_map(Capability::from_nvcc).collect();
    capabilities.sort();
    capabilities.dedup();
    capabilities
}

/// `NAME=VALUE` lines of a dry run.
fn settings(output: &str) -> BTreeMap<String, String> {
    let name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    output
        .lines()
        .filter_map(|line| line.trim_end_matches('\r').strip_prefix("#$ ")?.split_once('='))
        .filter(|(key, _)| name(key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The directories of `"-I/a" "-isystem" "/b" -L/c`.
fn directories(flags: &str) -> Vec<PathBuf> {
    let words = flags.split('"').flat_map(|piece| {
        if piece.starts_with(['-', '/']) { vec![piece] } else { piece.split_whitespace().collect() }
    });
    words
        .map(|word| word.strip_prefix("-I").or_else(|| word.strip_prefix("-L")).unwrap_or(word))
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// The triplet in Debian's multiarch paths, and in NVIDIA's `targets`.
fn machines() -> [&'static str; 2] {
    if cfg!(target_arch = "aarch64") {
        ["aarch64-linux-gnu", "sbsa-linux"]
    } else {
        ["x86_64-linux-gnu", "x86_64-linux"]
    }
}

fn include_places(home: &Path) -> Vec<PathBuf> {
    let [_, target] = machines();
    // Debian keeps a home under /usr/lib and its headers in /usr/include.
    vec![
        home.join("include"),
        home.join("targets").join(target).join("include"),
        home.join("../../include"),
        home.join("../include"),
    ]
}

fn library_places(home: &Path) -> Vec<PathBuf> {
    let [triplet, target] = machines();
    vec![
        home.join("lib64"),
        home.join("lib"),
        home.join("targets").join(target).join("lib"),
        home.join("lib").join(triplet),
        home.join("..").join(triplet),
        home.join("../../lib64"),
    ]
}

/// Looks at the toolkit in `home`, of whose nvcc `account` is.
pub(super) fn parts(home: &Path, account: &Account, digests: &dyn Digests) -> anyhow::Result<Parts> {
    let Account { version, nvcc, settings, listed } = account.clone();
    let real_home = nvcc.parent().and_then(Path::parent).unwrap_or(home).to_path_buf();
    let mut problems = Vec::new();
    let mut versions = BTreeMap::from([("nvcc".to_owned(), version.full.clone())]);
    let mut disagree = |part: &str, path: &Path, found: Option<Version>| {
        versions
            .insert(part.to_owned(), found.as_ref().map_or_else(|| "unknown".to_owned(), |v| v.full.clone()));
        let other = found.filter(|found| found.release != version.release);
        other.map(|found| format!("{part} is of cuda {}: {}", found.full, path.display()))
    };

    // nvcc finds its programs in the PATH that it makes for itself, and cicc where it says.
    let beside = format!("{0}/nvvm/bin:{0}/bin", real_home.display());
    let said = |key: &str| settings.get(key).map(String::as_str).unwrap_or_default();
    let search = [said("CICC_PATH"), said("PATH"), &beside].join(":");
    let mut tools = BTreeMap::new();
    for name in TOOLS {
        let Some(path) = process::search(name, &search) else {
            problems.push(format!("{name} is missing from {}", real_home.display()));
            continue;
        };
        let path = fs::real_path(&path)?;
        problems.extend(disagree(name, &path, digests.banner(&path)?));
        tools.insert(name.to_owned(), path);
    }

    let capabilities = capabilities(&listed);
    if capabilities.is_empty() {
        problems
            .push(format!("nvcc --list-gpu-code lists no capability, it printed {}", first_lines(&listed)));
    }

    let mut places = settings.get("INCLUDES").map(|flags| directories(flags)).unwrap_or_default();
    places.extend(settings.get("SYSTEM_INCLUDES").map(|flags| directories(flags)).unwrap_or_default());
    places.extend(include_places(&real_home));
    places.extend(include_places(home));
    let include = places.iter().find(|dir| dir.join("cuda_runtime_api.h").is_file());
    let mut bound = Bound::default();
    let include = match include {
        None => {
            problems
                .push(format!("cuda_runtime_api.h is missing from {}", real_home.join("include").display()));
            None
        }
        Some(dir) => {
            let dir = fs::real_path(dir)?;
            let header = dir.join("cuda_runtime_api.h");
            let release = version::headers(&fs::read_text(&header)?);
            problems.extend(disagree("headers", &header, release.map(Version::of)));
            if let Some(text) = fs::read_if_exists(&dir.join("crt/host_config.h"))? {
                bound = version::bound(&String::from_utf8_lossy(&text));
            } else {
                problems.push(format!("crt/host_config.h is missing from {}", dir.display()));
            }
            Some(dir)
        }
    };

    let mut places = settings.get("LIBRARIES").map(|flags| directories(flags)).unwrap_or_default();
    places.retain(|dir| !dir.ends_with("stubs"));
    places.extend(library_places(&real_home));
    places.extend(library_places(home));
    let cudart = cudart(&places)?;
    match &cudart {
        None => problems
            .push(format!("libcudart_static.a and libcudart.so are missing from {}", real_home.display())),
        Some(library) => {
            let release = version::cudart(&fs::read(library.path())?);
            problems.extend(disagree("cudart", library.path(), release.map(Version::of)));
        }
    }
    Ok(Parts {
        home: real_home,
        nvcc,
        version,
        capabilities,
        tools,
        include,
        cudart,
        bound,
        versions,
        problems,
    })
}

/// The static runtime wherever it lies, else a shared one: `libcudart.so`, or `libcudart.so.13` as wheels have it.
fn cudart(places: &[PathBuf]) -> anyhow::Result<Option<Cudart>> {
    if let Some(path) = places.iter().map(|dir| dir.join("libcudart_static.a")).find(|p| p.is_file()) {
        return Ok(Some(Cudart::Static(fs::real_path(&path)?)));
    }
    for dir in places.iter().filter(|dir| dir.is_dir()) {
        let shared = fs::list(dir)?.into_iter().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (name == "libcudart.so" || name.starts_with("libcudart.so.")) && path.is_file()
        });
        if let Some(path) = shared {
            return Ok(Some(Cudart::Shared(fs::real_path(&path)?)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_dry_run_are_read_in_both_quotings() {
        let output = "wrapper noise=1\n#$ _HERE_=/opt/cuda/bin\n#$ PATH=/a:/b\n#$ INCLUDES=\"-I/opt/cuda/include\"  \n\
            #$ SYSTEM_INCLUDES=\"-isystem\" \"/opt/cuda/include/cccl\"  \n#$ LIBRARIES=  -L/usr/lib/stubs -L/usr/lib\n\
            #$ gcc -D__CUDA_ARCH__=520 -E x.cu\n";
        let settings = settings(output);
        assert_eq!(
            settings.keys().map(String::as_str).collect::<Vec<_>>(),
            ["INCLUDES", "LIBRARIES", "PATH", "SYSTEM_INCLUDES", "_HERE_"]
        );
        for (key, expected) in [
            ("INCLUDES", vec!["/opt/cuda/include"]),
            ("SYSTEM_INCLUDES", vec!["/opt/cuda/include/cccl"]),
            ("LIBRARIES", vec!["/usr/lib/stubs", "/usr/lib"]),
        ] {
            assert_eq!(
                directories(&settings[key]),
                expected.iter().map(PathBuf::from).collect::<Vec<_>>(),
                "{key}"
            );
        }
        assert_eq!(directories("\"-I/with space/include\""), [PathBuf::from("/with space/include")]);
    }
}
