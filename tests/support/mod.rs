//! A project in a temporary folder, and runs of the real `nattenc` binary in it.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The store that tests with a real toolkit take downloads from: the caller's own.
pub(crate) fn store() -> PathBuf {
    nattenc::fetch::store_home().unwrap()
}

/// A copy of this project's build.toml and variants, with a store of its own.
pub(crate) struct Project {
    dir: tempfile::TempDir,
}

/// What a run printed and how it ended.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Project {
    pub(crate) fn new() -> Self {
        let project = Project { dir: tempfile::tempdir().unwrap() };
        project.write("build.toml", &std::fs::read_to_string(root().join("build.toml")).unwrap());
        std::fs::create_dir(project.path("variants")).unwrap();
        for entry in std::fs::read_dir(root().join("variants")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), project.path("variants").join(entry.file_name())).unwrap();
        }
        project
    }

    /// Adds this project's nattenc.lock.
    pub(crate) fn copy_lock(&self) {
        std::fs::copy(root().join("nattenc.lock"), self.path("nattenc.lock")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Replaces `from`, which must be there, in a file.
    pub(crate) fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} does not contain {from:?}");
        self.write(name, &text.replacen(from, to, 1));
    }

    /// nattenc with a bare environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nattenc"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("NATTENC_HOME", self.path("home"));
        command
    }

    /// Runs nattenc with a bare environment, plus `env`.
    pub(crate) fn run_with(&self, args: &[&str], env: &[(&str, &str)]) -> Run {
        let output = self.command(args).envs(env.iter().copied()).output().unwrap();
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, &[])
    }
}

impl Run {
    /// Asserts the exit code and that stderr has all of `parts`, and ends on the block of five things
    /// where it failed.
    #[track_caller]
    pub(crate) fn check(&self, code: i32, parts: &[&str]) {
        let whole = format!("exit code {}\nstdout:\n{}\nstderr:\n{}", self.code, self.stdout, self.stderr);
        assert_eq!(self.code, code, "{whole}");
        for part in parts {
            assert!(self.stderr.contains(part), "stderr lacks {part:?}\n{whole}");
        }
        assert!(!self.stderr.contains("panicked"), "{whole}");
        if code != 0 && !self.stderr.contains("Usage:") && !self.stderr.contains("--help") {
            let tail: Vec<&str> =
                self.stderr.lines().rev().take(5).map(|l| l.split(':').next().unwrap().trim()).collect();
            assert_eq!(tail, ["next step", "log", "diagnostic", "unit", "class"], "{whole}");
        }
    }
}
