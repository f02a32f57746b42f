//! Finds a CUDA toolkit and its host compiler, checks that its parts belong together, and says why a
//! candidate was or was not taken. It asks compilers alone: no GPU, driver or nvidia-smi is ever looked at.

mod candidates;
mod digest;
mod doctor;
mod host;
mod layout;
pub mod machine;
mod probe;
mod surroundings;
pub mod version;

pub use candidates::{Candidate, Outcome, Request, Supplied, locate};
pub use digest::{Asking, Digests, Memo, Plain};
pub use doctor::{Doctor, Space, doctor};
pub use host::{HostCompiler, Kind};
pub use layout::Account;
pub use probe::{probe, probe_flags};
pub use surroundings::Surroundings;

use crate::config::{Release, release};
use crate::failure::Failure;
use crate::plan::capability::Capability;
use layout::Parts;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use version::Bound;

/// A program that takes part in compiling.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Tool {
    /// Where it is, links resolved.
    pub path: PathBuf,
    /// Digest of its bytes.
    pub sha256: String,
}

/// The CUDA runtime library that the result is linked with.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cudart {
    /// `libcudart_static.a`.
    Static(PathBuf),
    /// `libcudart.so`, where the toolkit has no static one.
    Shared(PathBuf),
}

impl Cudart {
    /// The library.
    pub fn path(&self) -> &Path {
        match self {
            Cudart::Static(path) | Cudart::Shared(path) => path,
        }
    }
}

/// A toolkit whose parts agree.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Toolkit {
    /// The directory that holds `bin/nvcc`, links resolved.
    pub home: PathBuf,
    /// nvcc, links resolved: it looks for its parts beside itself.
    pub nvcc: PathBuf,
    /// 13.0.
    pub release: Release,
    /// 13.0.88.
    pub version: String,
    /// What led to it: `--toolkit`, `wheels`, `redist`, `CUDA_HOME`, `/usr/local/cuda-12.8`, `PATH`.
    pub origin: String,
    /// What nvcc lists, ascending.
    pub capabilities: Vec<Capability>,
    /// The directory of `cuda_runtime_api.h`.
    pub include: PathBuf,
    /// The runtime library.
    pub cudart: Cudart,
    /// The host compiler.
    pub host: HostCompiler,
    /// The newest host compilers it takes.
    pub bound: Bound,
    /// nvcc, cicc, ptxas, cudafe++, fatbinary; gcc and cc1plus, or clang.
    pub tools: BTreeMap<String, Tool>,
    /// What to tell the user before a build.
    pub warnings: Vec<String>,
}

/// The toolkit in `home`, all of whose parts are there and of one release; each that is not is named.
pub fn at(
    home: &Path,
    origin: &str,
    surroundings: &Surroundings,
    digests: &dyn Digests,
) -> anyhow::Result<Toolkit> {
    let host = host::find(surroundings)?;
    let account = digests.account(&layout::nvcc(home)?, surroundings)?;
    let parts = layout::parts(home, &account, digests)?;
    parts.agree(origin)?;
    complete(parts, origin, host, surroundings, digests)
}

fn complete(
    parts: Parts,
    origin: &str,
    host: HostCompiler,
    surroundings: &Surroundings,
    digests: &dyn Digests,
) -> anyhow::Result<Toolkit> {
    let mut warnings = Vec::new();
    warnings.extend(release::known(parts.version.release)?);
    for name in &surroundings.ignored {
        warnings.push(format!(
            "{name} is set and not passed on to nvcc: write flags as cuda-flags in build.toml"
        ));
    }
    let mut programs = parts.tools.clone();
    programs.insert("nvcc".to_owned(), parts.nvcc.clone());
    match host.kind {
        Kind::Gcc => programs.insert("gcc".to_owned(), host.path.clone()),
        Kind::Clang => programs.insert("clang".to_owned(), host.path.clone()),
    };
    if let Some(path) = &host.cc1plus {
        programs.insert("cc1plus".to_owned(), path.clone());
    }
    let mut tools = BTreeMap::new();
    for (name, path) in programs {
        let path = crate::fs::real_path(&path)?;
        let sha256 = digests.sha256(&path)?;
        tools.insert(name, Tool { path, sha256 });
    }
    let missing = || Failure::toolchain(format!("toolkit {} ({origin}) is incomplete", parts.home.display()));
    Ok(Toolkit {
        release: parts.version.release,
        version: parts.version.full,
        origin: origin.to_owned(),
        capabilities: parts.capabilities,
        include: parts.include.ok_or_else(missing)?,
        cudart: parts.cudart.ok_or_else(missing)?,
        host,
        bound: parts.bound,
        tools,
        warnings,
        nvcc: parts.nvcc,
        home: parts.home,
    })
}

#[cfg(test)]
mod tests;
