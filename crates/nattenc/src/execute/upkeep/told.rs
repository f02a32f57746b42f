//! What the commands of `nattenc cache` tell: the fields of their JSON, and as text.

use crate::failure::Failure;
use crate::report::{bytes, duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Raised when a field of the JSON changes its meaning or goes away.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// How many, and how large together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// How many.
    pub count: usize,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// What `nattenc cache stats` says.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// Of this JSON.
    pub schema_version: u32,
    /// The cache's directory.
    pub cache: PathBuf,
    /// Finished jobs.
    pub entries: usize,
    /// Files that they made.
    pub blobs: Amount,
    /// Finished jobs of which the bytes are not all there: they run again if another job needs those.
    pub without_bytes: usize,
    /// All bytes on disk.
    pub bytes: u64,
    /// By the word of their kind: finished jobs, with the bytes of what they made. Bytes that several made
    /// count once.
    pub kinds: BTreeMap<String, Amount>,
    /// By how long ago they were last of use: finished jobs, with the bytes of what they made.
    pub ages: BTreeMap<String, Amount>,
    /// Seconds since the entry of the longest ago was of use.
    pub oldest_use_seconds: Option<u64>,
    /// Files that no finished job refers to: of builds that were cut short.
    pub unreferenced: Amount,
    /// Temporary files, of running builds or left by killed ones.
    pub temporary: Amount,
    /// What no nattenc put there; left alone.
    pub foreign: Vec<PathBuf>,
    /// What is remembered of the cost of jobs: how many, and the size of that file.
    pub history: Amount,
}

/// Something that `nattenc cache verify` found damaged.
#[derive(Debug, Serialize)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
    /// Why it could not be removed; absent where it is gone now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
}

/// What `nattenc cache verify` says.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Of this JSON.
    pub schema_version: u32,
    /// The cache's directory.
    pub cache: PathBuf,
    /// Finished jobs that were checked.
    pub entries: usize,
    /// Files that were read and digested.
    pub blobs: Amount,
    /// What was damaged.
    pub damaged: Vec<Damage>,
    /// What no nattenc put there; left alone.
    pub foreign: Vec<PathBuf>,
}

impl Verdict {
    /// The failure that the damage is, if there is any.
    pub fn failure(&self) -> Option<Failure> {
        let kept = self.damaged.iter().filter(|damage| damage.stuck.is_some()).count();
        if self.damaged.is_empty() {
            return None;
        }
        let message = format!("{}: {} files are damaged", self.cache.display(), self.damaged.len());
        Some(if kept == 0 {
            Failure::integrity(format!("{message}; they were removed"))
                .hint("the next build makes them again; where this happens twice, check the disk")
        } else {
            Failure::integrity(format!("{message}; {kept} cannot be removed"))
                .hint("make the directory writable, or name another store with NATTENC_HOME")
        })
    }
}

/// What was evicted.
#[derive(Debug, Serialize)]
pub struct Evicted {
    /// Of this JSON.
    pub schema_version: u32,
    /// The cache's directory.
    pub cache: PathBuf,
    /// Files that went because their last use is too long ago.
    pub old: Amount,
    /// Files that went because all together were too large.
    pub large: Amount,
    /// What killed builds left behind.
    pub leftovers: Amount,
    /// Files that stayed.
    pub kept: Amount,
    /// Files that would have gone, had they not been of use a moment ago while builds run.
    pub spared: usize,
    /// Files that cannot be removed, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Stuck>,
}

impl Evicted {
    /// Whether anything was evicted, or should have been.
    pub fn is_notable(&self) -> bool {
        self.old.count + self.large.count + self.spared > 0 || self.stuck.is_some()
    }

    /// The failure of files that cannot be removed, if there are any.
    pub fn failure(&self) -> Option<Failure> {
        stuck(&self.cache, self.stuck.as_ref())
    }
}

/// What `nattenc cache clear` did.
#[derive(Debug, Serialize)]
pub struct Cleared {
    /// Of this JSON.
    pub schema_version: u32,
    /// The cache's directory.
    pub cache: PathBuf,
    /// Files that are gone.
    pub removed: Amount,
    /// Files that cannot be removed, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Stuck>,
}

impl Cleared {
    /// The failure of files that cannot be removed, if there are any.
    pub fn failure(&self) -> Option<Failure> {
        stuck(&self.cache, self.stuck.as_ref())
    }
}

/// Files that cannot be removed.
#[derive(Debug, Serialize)]
pub struct Stuck {
    /// How many.
    pub count: usize,
    /// Why the first one cannot.
    pub first: String,
}

fn stuck(cache: &Path, stuck: Option<&Stuck>) -> Option<Failure> {
    let Stuck { count, first } = stuck?;
    Some(
        Failure::config(format!("{}: {count} files cannot be removed, the first: {first}", cache.display()))
            .hint("make the directory writable, or name another store with NATTENC_HOME"),
    )
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.count, bytes(self.bytes))
    }
}

fn foreign(text: &mut String, foreign: &[PathBuf]) {
    for path in foreign {
        let _ = writeln!(text, "  not nattenc's own, left alone: {}", path.display());
    }
}

impl Stats {
    /// As a person reads it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} finished jobs, {} files of theirs, {} in all\n",
            self.cache.display(),
            self.entries,
            self.blobs.count,
            bytes(self.bytes)
        );
        for (heading, rows) in [("kind", &self.kinds), ("last of use", &self.ages)] {
            if !rows.is_empty() {
                let _ = writeln!(text, "  {heading:<24} {:>8} {:>12}", "jobs", "bytes");
            }
            for (name, amount) in rows {
                let _ = writeln!(text, "  {name:<24} {:>8} {:>12}", amount.count, bytes(amount.bytes));
            }
        }
        if self.without_bytes > 0 {
            let _ = writeln!(
                text,
                "  without their bytes: {}; such a job runs again if another needs those",
                self.without_bytes
            );
        }
        if let Some(seconds) = self.oldest_use_seconds {
            let _ =
                writeln!(text, "  the oldest was last of use {} ago", duration(Duration::from_secs(seconds)));
        }
        for (what, amount) in [
            ("files that no finished job refers to", self.unreferenced),
            ("temporary files", self.temporary),
            ("jobs whose cost is remembered", self.history),
        ] {
            if amount.count > 0 {
                let _ = writeln!(text, "  {what}: {amount}");
            }
        }
        foreign(&mut text, &self.foreign);
        text
    }
}

impl Verdict {
    /// As a person reads it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} finished jobs and {} files ({}) checked, {} damaged\n",
            self.cache.display(),
            self.entries,
            self.blobs.count,
            bytes(self.blobs.bytes),
            self.damaged.len()
        );
        for damage in &self.damaged {
            let end = match &damage.stuck {
                None => "removed".to_owned(),
                Some(why) => format!("not removed: {why}"),
            };
            let _ = writeln!(text, "  {}: {}; {end}", damage.path.display(), damage.why);
        }
        foreign(&mut text, &self.foreign);
        text
    }
}

impl Evicted {
    /// As a person reads it.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        for (amount, why) in [(self.old, "not of use for too long"), (self.large, "all together too large")] {
            if amount.count > 0 {
                parts.push(format!("{} files evicted ({}): {why}", amount.count, bytes(amount.bytes)));
            }
        }
        if self.leftovers.count > 0 {
            parts.push(format!(
                "{} temporary files removed ({})",
                self.leftovers.count,
                bytes(self.leftovers.bytes)
            ));
        }
        if parts.is_empty() {
            parts.push("nothing evicted".to_owned());
        }
        if self.spared > 0 {
            parts.push(format!("{} kept that are of use to running builds", self.spared));
        }
        format!(
            "{}: {}; {} files stay ({})",
            self.cache.display(),
            parts.join(", "),
            self.kept.count,
            bytes(self.kept.bytes)
        )
    }
}

impl Cleared {
    /// As a person reads it.
    pub fn text(&self) -> String {
        match self.removed.count {
            0 if self.stuck.is_none() => format!("{}: nothing to remove", self.cache.display()),
            count => {
                format!("{}: {count} files removed, {}", self.cache.display(), bytes(self.removed.bytes))
            }
        }
    }
}
