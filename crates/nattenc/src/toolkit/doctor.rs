//! What a build would find on this machine, all of it, without building or changing anything.

use super::candidates::{Candidate, Outcome, Request, buildable, candidates};
use super::machine::{Cpus, Memory, cpus, free_space, memory};
use super::version::Bound;
use super::{HostCompiler, host};
use std::fmt;
use std::path::{Path, PathBuf};

/// The whole report.
#[derive(Debug, serde::Serialize)]
pub struct Doctor {
    /// The variant that was asked about.
    pub variant: String,
    /// The toolkit release it needs.
    pub release: String,
    /// Every place where a toolkit could be.
    pub candidates: Vec<Candidate>,
    /// What nvcc of the taken toolkit lists.
    pub capabilities: Vec<String>,
    /// The host compiler.
    pub host: Option<HostCompiler>,
    /// Why there is none.
    pub host_problem: Option<String>,
    /// The newest host compilers that the taken toolkit allows.
    pub bound: Bound,
    /// Other compilers in PATH.
    pub other_compilers: Vec<PathBuf>,
    /// Variants that would build here now, and with what.
    pub buildable: Vec<(String, String)>,
    /// Memory.
    pub memory: Memory,
    /// CPUs.
    pub cpus: Cpus,
    /// Free disk space.
    pub disk: Vec<Space>,
    /// Variables that are set but not passed on.
    pub ignored: Vec<String>,
    /// The package index; filled by whoever knows it.
    pub index: Option<String>,
    /// The certificates; filled by whoever knows them.
    pub certificates: Option<String>,
}

/// Free space of a directory.
#[derive(Debug, serde::Serialize)]
pub struct Space {
    /// `store`, `build`.
    pub what: String,
    /// The directory.
    pub path: PathBuf,
    /// Free bytes; none where it could not be found out.
    pub free: Option<u64>,
}

/// Looks at everything. `directories` are those whose free space is of interest, by name;
/// `root` is "/" but in tests.
pub fn doctor(request: &Request<'_>, directories: &[(&str, &Path)], root: &Path) -> Doctor {
    let (seen, parts) = candidates(request);
    let around = request.surroundings;
    let (found, problem) = match host::find(around) {
        Ok(host) => (Some(host), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let space = |(what, path): &(&str, &Path)| Space {
        what: (*what).to_owned(),
        path: path.to_path_buf(),
        free: free_space(path, &around.path),
    };
    Doctor {
        variant: request.variant.name.clone(),
        release: request.variant.release.to_string(),
        capabilities: parts.iter().flat_map(|p| &p.capabilities).map(ToString::to_string).collect(),
        bound: parts.map(|p| p.bound).unwrap_or_default(),
        host: found,
        host_problem: problem,
        other_compilers: host::others(around).into_iter().map(|(_, _, path)| path).collect(),
        buildable: buildable(request, &seen),
        candidates: seen,
        memory: memory(root),
        cpus: cpus(root),
        disk: directories.iter().map(space).collect(),
        ignored: around.ignored.clone(),
        index: None,
        certificates: None,
    }
}

impl Doctor {
    /// Whether the variant would build.
    pub fn healthy(&self) -> bool {
        let taken = self.candidates.iter().any(|candidate| candidate.outcome == Outcome::Taken);
        let fetchable = self.buildable.iter().any(|(variant, _)| *variant == self.variant);
        let mut named = self.candidates.iter().filter(|candidate| candidate.origin == "--toolkit");
        let as_named = named.all(|candidate| candidate.outcome == Outcome::Taken);
        self.host.is_some() && (taken || fetchable) && as_named
    }
}

/// Bytes as `12.3 GB`.
fn gigabytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal of a gigabyte is shown")]
    let value = bytes as f64 / 1e9;
    format!("{value:.1} GB")
}

impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "variant {}: needs cuda {}", self.variant, self.release)?;
        writeln!(f, "\ntoolkits, in the order in which they are considered")?;
        for candidate in &self.candidates {
            let mark = match candidate.outcome {
                Outcome::Taken => "taken",
                Outcome::Later => "later",
                Outcome::OtherRelease => "no",
                Outcome::Broken => "broken",
                Outcome::Absent => "-",
            };
            let home = match &candidate.home {
                Some(home) if !candidate.origin.contains('/') => format!(" {}", home.display()),
                _ => String::new(),
            };
            writeln!(
                f,
                "  {mark:7} {}{home}: {}",
                candidate.origin,
                candidate.reason.replace('\n', "\n          ")
            )?;
            if !candidate.parts.is_empty() {
                let parts: Vec<String> =
                    candidate.parts.iter().map(|(part, version)| format!("{part} {version}")).collect();
                writeln!(f, "          {}", parts.join(", "))?;
            }
        }
        if !self.capabilities.is_empty() {
            writeln!(f, "  nvcc lists {}", self.capabilities.join(" "))?;
        }
        let builds: Vec<String> =
            self.buildable.iter().map(|(name, how)| format!("{name} ({how})")).collect();
        writeln!(
            f,
            "  would build here now: {}",
            if builds.is_empty() { "none".to_owned() } else { builds.join(", ") }
        )?;

        writeln!(f, "\nhost compiler")?;
        match (&self.host, &self.host_problem) {
            (Some(host), _) => {
                let limit = match host.limit(self.bound) {
                    Some(limit) if host.major() > limit => {
                        format!(", newer than {limit}, the newest that this toolkit takes")
                    }
                    Some(limit) => format!(", the toolkit takes up to {limit}"),
                    None => String::new(),
                };
                writeln!(f, "  {} {} {}{limit}", host.path.display(), host.kind.word(), host.version)?;
            }
            (None, problem) => writeln!(f, "  none: {}", problem.as_deref().unwrap_or("not looked for"))?,
        }
        for path in &self.other_compilers {
            writeln!(f, "  also {}", path.display())?;
        }

        writeln!(f, "\nmachine")?;
        let (memory, cpus) = (&self.memory, &self.cpus);
        let (free, total) = (gigabytes(memory.available.value), gigabytes(memory.total));
        writeln!(f, "  memory {free} available by {}, {total} in all", memory.available.source)?;
        writeln!(f, "  cpus {} by {}", cpus.available.value, cpus.available.source)?;
        for space in &self.disk {
            let free = space.free.map_or_else(|| "unknown".to_owned(), gigabytes);
            writeln!(f, "  {} {}: {free} free", space.what, space.path.display())?;
        }
        for name in &self.ignored {
            writeln!(f, "  {name} is set and not passed on to nvcc")?;
        }
        if self.index.is_some() || self.certificates.is_some() {
            writeln!(f, "\nnetwork")?;
            writeln!(f, "  package index {}", self.index.as_deref().unwrap_or("unknown"))?;
            writeln!(f, "  certificates {}", self.certificates.as_deref().unwrap_or("the system's"))?;
        }
        Ok(())
    }
}
