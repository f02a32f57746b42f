//! Digests of a toolkit's programs: they are part of every key, and large, so a memo by stamp is worth it. So is one
//! of what nvcc says of itself: asking takes longer than all else that an unchanged build does for a toolkit.

use super::layout::{Account, Basis};
use super::surroundings::Surroundings;
use super::version::{Version, banner_in};
use crate::{execute, fs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What is asked of a file's bytes, and of an nvcc.
pub trait Digests: execute::Digests {
    /// The version of NVIDIA's banner in it.
    fn banner(&self, path: &Path) -> anyhow::Result<Option<Version>>;
    /// What an nvcc says of itself; links in its path are resolved. Fails, with class toolchain, where it cannot be
    /// started or names no release.
    fn account(&self, nvcc: &Path, surroundings: &Surroundings) -> anyhow::Result<Account> {
        Account::of(nvcc, surroundings)
    }
}

/// Reads the bytes each time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl execute::Digests for Plain {
    fn sha256(&self, path: &Path) -> anyhow::Result<String> {
        fs::sha256(path)
    }
}

impl Digests for Plain {
    fn banner(&self, path: &Path) -> anyhow::Result<Option<Version>> {
        banner_in(path)
    }
}

/// What the memo keeps of a file. Whatever does not match the stamp is computed anew.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Entry {
    stamp: fs::Stamp,
    sha256: Option<String>,
    /// Outer `None`: not looked for yet.
    banner: Option<Option<Version>>,
    /// Of an nvcc; absent in memos of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    account: Option<(Basis, Account)>,
}

/// Remembers by path and stamp (size, times, inode), in one file of the store.
#[derive(Debug)]
pub struct Memo {
    file: PathBuf,
    entries: Mutex<BTreeMap<String, Entry>>,
    changed: AtomicBool,
}

impl Memo {
    /// Reads the memo under `home`; one that cannot be read is an empty one.
    pub fn open(home: &Path) -> Self {
        let file = home.join("digests.json");
        let entries =
            fs::read_if_exists(&file).ok().flatten().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Memo { file, entries: Mutex::new(entries.unwrap_or_default()), changed: AtomicBool::new(false) }
    }

    /// Writes the memo, whole or not at all, where something was added. Entries of files that are gone are dropped.
    pub fn save(&self) -> anyhow::Result<()> {
        if !self.changed.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let mut entries = self.lock();
        entries.retain(|path, _| Path::new(path).exists());
        fs::write(&self.file, &serde_json::to_vec(&*entries)?)
    }

    /// A thread that panicked inside left whole entries behind: each is written in one step.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn known<T: Clone>(
        &self,
        path: &Path,
        stamp: fs::Stamp,
        field: impl Fn(&mut Entry) -> &mut Option<T>,
    ) -> Option<T> {
        let mut entries = self.lock();
        let entry = entries.get_mut(&path.display().to_string()).filter(|entry| entry.stamp == stamp)?;
        field(entry).clone()
    }

    fn keep<T>(
        &self,
        path: &Path,
        stamp: fs::Stamp,
        field: impl Fn(&mut Entry) -> &mut Option<T>,
        value: T,
    ) -> anyhow::Result<()> {
        // Only what did not change while it was read is worth remembering.
        if fs::stamp(path)? == stamp {
            let mut entries = self.lock();
            let fresh = Entry { stamp, sha256: None, banner: None, account: None };
            let entry = entries.entry(path.display().to_string()).or_insert_with(|| fresh.clone());
            if entry.stamp != stamp {
                *entry = fresh;
            }
            *field(entry) = Some(value);
            self.changed.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn remembered<T: Clone>(
        &self,
        path: &Path,
        field: impl Fn(&mut Entry) -> &mut Option<T>,
        compute: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let stamp = fs::stamp(path)?;
        if let Some(value) = self.known(path, stamp, &field) {
            return Ok(value);
        }
        let value = compute()?;
        self.keep(path, stamp, field, value.clone())?;
        Ok(value)
    }
}

impl execute::Digests for Memo {
    fn sha256(&self, path: &Path) -> anyhow::Result<String> {
        self.remembered(path, |entry| &mut entry.sha256, || fs::sha256(path))
    }
}

impl Digests for Memo {
    fn banner(&self, path: &Path) -> anyhow::Result<Option<Version>> {
        self.remembered(path, |entry| &mut entry.banner, || banner_in(path))
    }

    fn account(&self, nvcc: &Path, surroundings: &Surroundings) -> anyhow::Result<Account> {
        let (stamp, basis) = (fs::stamp(nvcc)?, Basis::of(nvcc, surroundings)?);
        if let Some((then, account)) = self.known(nvcc, stamp, |entry| &mut entry.account)
            && then == basis
        {
            return Ok(account);
        }
        let account = Account::of(nvcc, surroundings)?;
        if account.is_of(nvcc, self)? && Basis::of(nvcc, surroundings)? == basis {
            self.keep(nvcc, stamp, |entry| &mut entry.account, (basis, account.clone()))?;
        }
        Ok(account)
    }
}

/// A memo, but every nvcc is asked anew: for those who want to know what it says now.
#[derive(Debug)]
pub struct Asking<'a>(pub &'a Memo);

impl execute::Digests for Asking<'_> {
    fn sha256(&self, path: &Path) -> anyhow::Result<String> {
        self.0.sha256(path)
    }
}

impl Digests for Asking<'_> {
    fn banner(&self, path: &Path) -> anyhow::Result<Option<Version>> {
        self.0.banner(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::Digests as _;

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_memo_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("ptxas");
        fs::write(&tool, b"one").unwrap();
        let memo = Memo::open(dir.path());
        let one = memo.sha256(&tool).unwrap();
        assert_eq!(one, fs::sha256_of(b"one"));
        memo.save().unwrap();

        // A forged memo shows whether the bytes were read.
        let file = dir.path().join("digests.json");
        let forged = fs::read_text(&file).unwrap().replace(&one, "remembered");
        fs::write(&file, forged.as_bytes()).unwrap();
        assert_eq!(Memo::open(dir.path()).sha256(&tool).unwrap(), "remembered");

        fs::write(&tool, b"two, Cuda compilation tools, release 12.8, V12.8.93\n").unwrap();
        let memo = Memo::open(dir.path());
        assert_eq!(memo.sha256(&tool).unwrap(), fs::sha256(&tool).unwrap());
        assert_eq!(memo.banner(&tool).unwrap().unwrap().full, "12.8.93");
        memo.save().unwrap();
        assert_eq!(Memo::open(dir.path()).banner(&tool).unwrap().unwrap().full, "12.8.93");

        fs::write(&file, b"{ not json").unwrap();
        assert_eq!(Memo::open(dir.path()).sha256(&tool).unwrap(), fs::sha256(&tool).unwrap());
        assert!(memo.sha256(&dir.path().join("absent")).is_err());
    }
}
