//! What a toolkit is looked for in: the environment, once read, as values.

use crate::env;
use crate::execute::process::CommandLine;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The environment as far as toolkits and host compilers are concerned. Empty values count as unset.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// CUDA_HOME.
    pub cuda_home: Option<String>,
    /// CUDA_PATH.
    pub cuda_path: Option<String>,
    /// NVCC_CCBIN.
    pub ccbin: Option<String>,
    /// PATH.
    pub path: String,
    /// Where `cuda-X.Y` directories lie.
    pub local: PathBuf,
    /// Variables that are set but not passed on to nvcc.
    pub ignored: Vec<String>,
}

impl Surroundings {
    /// Reads the environment.
    pub fn read() -> anyhow::Result<Self> {
        let mut ignored = Vec::new();
        for name in ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            if env::text(name)?.is_some() {
                ignored.push(name.to_owned());
            }
        }
        Ok(Surroundings {
            cuda_home: env::text("CUDA_HOME")?,
            cuda_path: env::text("CUDA_PATH")?,
            ccbin: env::text("NVCC_CCBIN")?,
            path: env::text("PATH")?.unwrap_or_default(),
            local: PathBuf::from("/usr/local"),
            ignored,
        })
    }

    /// A command with the environment that every probe of a toolkit gets: PATH, and messages in English.
    pub(super) fn command(&self, argv: Vec<String>, cwd: &Path) -> CommandLine {
        let env =
            BTreeMap::from([("PATH".to_owned(), self.path.clone()), ("LC_ALL".to_owned(), "C".to_owned())]);
        CommandLine { argv, env, cwd: cwd.to_path_buf() }
    }
}

/// The directory in a variable: one absolute path. Anything else is shown in quotes, where a stray colon,
/// quote or blank can be seen.
pub(super) fn directory(name: &str, value: &str) -> anyhow::Result<PathBuf> {
    let wrong = if value.contains(':') {
        "is a list, where one directory is wanted"
    } else if value.contains(['"', '\'', '\n', '\r', '\t']) || value.trim() != value {
        "has quotes or blanks around it"
    } else if !value.starts_with('/') {
        "is no absolute path"
    } else {
        return Ok(PathBuf::from(value));
    };
    Err(Failure::config(format!("{name}: value {value:?} {wrong}"))
        .hint(format!("set {name} to the directory that holds bin/nvcc, or unset it"))
        .into())
}

/// The first lines of what a tool printed, for messages about output that cannot be understood.
pub(super) fn first_lines(output: &str) -> String {
    let lines: Vec<String> = output.lines().take(3).map(|line| format!("{line:?}")).collect();
    if lines.is_empty() { "nothing".to_owned() } else { lines.join(", ") }
}
