//! The host compiler that nvcc will use: which one, its version, and what else is there.

use super::surroundings::{Surroundings, first_lines};
use super::version::Bound;
use crate::execute::process;
use crate::failure::Failure;
use crate::fs;
use std::path::{Path, PathBuf};

/// The compilers that nvcc takes on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// GCC.
    Gcc,
    /// Clang.
    Clang,
}

/// A host compiler.
#[derive(Debug, Clone, serde::Serialize)]
pub struct HostCompiler {
    /// As nvcc finds it; links are not resolved, since compilers look at their name.
    pub path: PathBuf,
    /// `12.2.0`.
    pub version: String,
    /// GCC or Clang.
    pub kind: Kind,
    /// What to pass as `-ccbin`; none where nvcc's own choice stands.
    pub ccbin: Option<String>,
    /// GCC's C++ compiler proper.
    pub cc1plus: Option<PathBuf>,
}

impl Kind {
    /// As compilers are called in messages.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gcc => "GCC",
            Kind::Clang => "Clang",
        }
    }
}

impl HostCompiler {
    /// 12 of `12.2.0`.
    pub fn major(&self) -> u16 {
        self.version.split('.').next().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The last major version of this kind that `bound` allows.
    pub fn limit(&self, bound: Bound) -> Option<u16> {
        match self.kind {
            Kind::Gcc => bound.gcc,
            Kind::Clang => bound.clang,
        }
    }
}

/// The compiler of NVCC_CCBIN (a program, a name in PATH, or a directory that holds gcc), else gcc of PATH.
pub(super) fn find(surroundings: &Surroundings) -> anyhow::Result<HostCompiler> {
    let path = match &surroundings.ccbin {
        Some(value) => given(value, surroundings)?,
        None => process::search("gcc", &surroundings.path).ok_or_else(|| {
            Failure::toolchain("no host compiler: no gcc in PATH")
                .hint("install g++, or set NVCC_CCBIN to a C++ compiler")
        })?,
    };
    let ask = |arguments: &[&str]| {
        let argv =
            std::iter::once(path.display().to_string()).chain(arguments.iter().map(|a| (*a).to_owned()));
        process::capture(&surroundings.command(argv.collect(), Path::new("/")))
    };
    let unusable = |what: &str, output: &str| {
        Failure::toolchain(format!(
            "host compiler {}: {what}, it printed {}",
            path.display(),
            first_lines(output)
        ))
        .hint("set NVCC_CCBIN to a working GCC or Clang")
    };
    let named = ask(&["--version"])?;
    let kind = if named.stdout.to_ascii_lowercase().contains("clang") { Kind::Clang } else { Kind::Gcc };
    let asked = ask(match kind {
        Kind::Gcc => &["-dumpfullversion", "-dumpversion"],
        Kind::Clang => &["-dumpversion"],
    })?;
    let is_version = |line: &&str| {
        line.starts_with(|c: char| c.is_ascii_digit()) && line.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let version = asked.stdout.lines().map(str::trim).find(is_version);
    let Some(version) = version.filter(|_| asked.success()) else {
        return Err(unusable("its version cannot be read", &asked.output).into());
    };
    let mut cc1plus = None;
    if kind == Kind::Gcc {
        let printed = ask(&["-print-prog-name=cc1plus"])?;
        let found = printed
            .stdout
            .lines()
            .map(|line| PathBuf::from(line.trim()))
            .find(|p| p.is_absolute() && p.is_file());
        if found.is_none() {
            return Err(Failure::toolchain(format!(
                "host compiler {} has no C++ compiler (cc1plus)",
                path.display()
            ))
            .hint("install g++ of the same version, or set NVCC_CCBIN")
            .into());
        }
        cc1plus = found;
    }
    let version = version.to_owned();
    Ok(HostCompiler { path, version, kind, ccbin: surroundings.ccbin.clone(), cc1plus })
}

fn given(value: &str, surroundings: &Surroundings) -> anyhow::Result<PathBuf> {
    let path = Path::new(value);
    let found = if value.contains('/') {
        match path {
            p if p.is_file() => Some(p.to_path_buf()),
            p if p.join("gcc").is_file() => Some(p.join("gcc")),
            _ => None,
        }
    } else {
        process::search(value, &surroundings.path)
    };
    found.ok_or_else(|| {
        Failure::toolchain(format!("NVCC_CCBIN: value {value:?} leads to no compiler"))
            .hint("set NVCC_CCBIN to the path of a g++ or clang++, or unset it")
            .into()
    })
}

/// Other compilers in PATH, `g++-13` and `clang++-18`, newest first, with their major versions.
pub(super) fn others(surroundings: &Surroundings) -> Vec<(Kind, u16, PathBuf)> {
    let mut found: Vec<(Kind, u16, PathBuf)> = Vec::new();
    for dir in surroundings.path.split(':').filter(|dir| !dir.is_empty()) {
        for path in fs::list(Path::new(dir)).unwrap_or_default() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let parsed = [(Kind::Gcc, "g++-"), (Kind::Clang, "clang++-")]
                .iter()
                .find_map(|(kind, prefix)| Some((*kind, name.strip_prefix(prefix)?.parse::<u16>().ok()?)));
            if let Some((kind, major)) = parsed
                && !found.iter().any(|(k, m, _)| (*k, *m) == (kind, major))
            {
                found.push((kind, major, path));
            }
        }
    }
    found.sort_by_key(|(kind, major, _)| (*kind as u8, std::cmp::Reverse(*major)));
    found
}

/// The one failure for a host compiler that a toolkit does not take.
pub(super) fn unsupported(
    host: &HostCompiler,
    bound: Bound,
    cuda: &str,
    surroundings: &Surroundings,
) -> Failure {
    let kind = host.kind.word();
    let limit = match host.limit(bound) {
        Some(limit) => format!("supports {kind} up to {limit}"),
        None => "does not support it".to_owned(),
    };
    let fits = |(kind, major, _): &&(Kind, u16, PathBuf)| match kind {
        Kind::Gcc => bound.gcc.is_some_and(|limit| *major <= limit),
        Kind::Clang => bound.clang.is_some_and(|limit| *major <= limit),
    };
    let others = others(surroundings);
    let present: Vec<String> = others.iter().map(|(_, _, path)| path.display().to_string()).collect();
    let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
    let hint = match others.iter().find(fits) {
        Some((_, _, path)) => format!("set NVCC_CCBIN={}", path.display()),
        None => format!(
            "install g++-{} or older and set NVCC_CCBIN to it",
            bound.gcc.map_or_else(|| "13".to_owned(), |limit| limit.to_string())
        ),
    };
    Failure::toolchain(format!(
        "host compiler {} is {kind} {}, and cuda {cuda} {limit}\n  other compilers in PATH: {present}",
        host.path.display(),
        host.version
    ))
    .hint(hint)
}
