//! What can go wrong, as the classes that decide nattenc's exit code.
//!
//! Everything returns `anyhow::Result`; a [`Failure`] somewhere in the chain says which class it is,
//! and `main.rs` finds it by downcast. An error without one is a bug of ours (exit code 1).

use std::fmt;
use std::path::{Path, PathBuf};

/// The kinds of failure that scripts can tell apart. The numbers are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 1: nattenc itself is wrong.
    Bug,
    /// 2: the command line, an environment variable, build.toml or a variant definition.
    Config,
    /// 3: no toolkit, a broken one, the wrong release, an unusable host compiler.
    Toolchain,
    /// 4: a translation unit did not compile, or a compiler crashed or hung.
    Compile,
    /// 5: the link failed or left symbols undefined.
    Link,
    /// 6: out of memory or disk.
    Resource,
    /// 7: another build owns the output directory.
    Locked,
    /// 8: bytes are not what they were pinned or recorded to be.
    Integrity,
    /// 9: the deadline leaves no time for what is not done yet.
    Deadline,
    /// 130: SIGINT.
    Interrupted,
    /// 143: SIGTERM.
    Terminated,
}

impl Class {
    /// The process exit code of this class.
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Bug => 1,
            Class::Config => 2,
            Class::Toolchain => 3,
            Class::Compile => 4,
            Class::Link => 5,
            Class::Resource => 6,
            Class::Locked => 7,
            Class::Integrity => 8,
            Class::Deadline => 9,
            Class::Interrupted => 130,
            Class::Terminated => 143,
        }
    }

    /// The word that names this class at the end of stderr.
    pub fn word(self) -> &'static str {
        match self {
            Class::Bug => "bug",
            Class::Config => "configuration",
            Class::Toolchain => "toolchain",
            Class::Compile => "compile",
            Class::Link => "link",
            Class::Resource => "memory or disk",
            Class::Locked => "locked",
            Class::Integrity => "integrity",
            Class::Deadline => "deadline",
            Class::Interrupted => "interrupted",
            Class::Terminated => "terminated",
        }
    }
}

/// One failure: the thing, the place, the cause and the next step.
///
/// `message` is lowercase without a full stop and may span lines (the first is the headline).
#[derive(Debug, Clone)]
pub struct Failure {
    /// Decides the exit code.
    pub class: Class,
    /// What failed, where, and why.
    pub message: String,
    /// `section/unit/gencode`, where a unit is at fault.
    pub unit: Option<String>,
    /// The first real diagnostic of a compiler or linker.
    pub diagnostic: Option<String>,
    /// The full log of what failed.
    pub log: Option<PathBuf>,
    /// One thing to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of `class`, with nothing but its message.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Failure { class, message: message.into(), unit: None, diagnostic: None, log: None, hint: None }
    }

    /// Class [`Class::Config`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Class::Config, message)
    }

    /// Class [`Class::Toolchain`].
    pub fn toolchain(message: impl Into<String>) -> Self {
        Self::new(Class::Toolchain, message)
    }

    /// Class [`Class::Integrity`].
    pub fn integrity(message: impl Into<String>) -> Self {
        Self::new(Class::Integrity, message)
    }

    /// Class [`Class::Resource`].
    pub fn resource(message: impl Into<String>) -> Self {
        Self::new(Class::Resource, message)
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the unit at fault, `section/unit/gencode`.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Adds the first real diagnostic.
    #[must_use]
    pub fn diagnostic(mut self, text: impl Into<String>) -> Self {
        self.diagnostic = Some(text.into());
        self
    }

    /// Adds the path of the full log.
    #[must_use]
    pub fn log(mut self, path: &Path) -> Self {
        self.log = Some(path.to_path_buf());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The block of five things that every failure ends on: class, unit, diagnostic, log, next step.
pub fn block(error: &anyhow::Error) -> String {
    let failure = error.downcast_ref::<Failure>();
    let class = failure.map_or(Class::Bug, |f| f.class);
    let field = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.dedup();
    let hint = failure.and_then(|f| f.hint.clone()).or_else(|| {
        (class == Class::Bug).then(|| {
            "this is a bug of nattenc: please report it with the command line and this output".to_owned()
        })
    });
    format!(
        "error: {}\n\n  class:      {} (exit code {})\n  unit:       {}\n  diagnostic: {}\n  log:        {}\n  next step:  {}\n",
        causes.join("\n  caused by: "),
        class.word(),
        class.exit_code(),
        field(failure.and_then(|f| f.unit.clone())),
        field(failure.and_then(|f| f.diagnostic.clone())),
        field(failure.and_then(|f| f.log.as_ref().map(|p| p.display().to_string()))),
        field(hint),
    )
}

/// The class of an error: its [`Failure`]'s, or [`Class::Bug`].
pub fn class(error: &anyhow::Error) -> Class {
    error.downcast_ref::<Failure>().map_or(Class::Bug, |f| f.class)
}
