//! The store of finished work: actions (`ac/`) and the bytes that they made (`cas/`), both by SHA-256.
//!
//! An action's key is a digest of everything that can change its outputs: the tool's content, the
//! arguments, the bytes of the inputs, the digests of the trees that it may read. Preprocessing is
//! keyed by trees (cheap), later phases by the preprocessed text (exact), so a header edit that does
//! not change a unit's text re-runs the preprocessor alone.
//!
//! An action says what its outputs are by their digests, so it is a hit without their bytes: those are read
//! when a job that runs needs them, and one whose input is gone has its producer run again. A cache of all
//! actions and the objects alone is enough to link.
//!
//! Nothing here is trusted: bytes are digested when they are loaded, and an entry that cannot be written costs
//! a warning, never a build. When a file was last of use is its modification time; [`super::upkeep`] evicts by
//! it.

use crate::fs;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Raised when the key or the files change meaning.
const SCHEMA: &str = "nattenc action 1";

/// The cache's directory in the store.
pub(super) const DIR: &str = "cache";

/// Held shared by builds, exclusively by what evicts while there is none.
pub(super) const LOCK: &str = "lock";

/// How finely the time of the last use is kept: a hit need not write each time.
const USE: Duration = Duration::from_secs(60);

/// The bytes of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// SHA-256, lowercase hex.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// What a finished action made and cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The word of its kind; empty in entries of older releases.
    #[serde(default)]
    pub kind: String,
    /// One per output of the job, in its order.
    pub outputs: Vec<Blob>,
    /// Headers outside all trees that were read, with their digests then.
    pub headers: Vec<(String, String)>,
    /// CPU seconds.
    pub cpu: f64,
    /// Wall seconds.
    pub wall: f64,
    /// Largest resident set, bytes.
    pub peak_memory: u64,
}

/// Collects the parts of an action's key.
pub struct Key {
    hasher: sha2::Sha256,
}

impl Key {
    /// An empty key for one kind of action.
    pub fn new(kind: &str) -> Self {
        use sha2::Digest;
        let mut key = Key { hasher: sha2::Sha256::new() };
        key.add("schema", SCHEMA);
        key.add("kind", kind);
        key
    }

    /// Adds one named part. Lengths are hashed too, so parts cannot run into each other.
    pub fn add(&mut self, name: &str, value: &str) {
        use sha2::Digest;
        for text in [name, value] {
            self.hasher.update((text.len() as u64).to_le_bytes());
            self.hasher.update(text.as_bytes());
        }
    }

    /// The digest.
    pub fn finish(self) -> String {
        use sha2::Digest;
        fs::hex(&self.hasher.finalize())
    }
}

/// The store on disk, and beside it a place that takes over where the store cannot be written: a full, a
/// read-only or a broken store costs a warning, never a build.
pub struct Cache {
    /// In order of preference, for writing; all are read.
    roots: [PathBuf; 2],
    /// Tells eviction that a build is going on; `None` where the store cannot be written, or is being evicted
    /// from: neither keeps a build waiting.
    _in_use: Option<fs::FileLock>,
    /// Why the store could not be written, and whether that was told.
    trouble: Mutex<(Option<String>, bool)>,
}

impl Cache {
    /// The store below `home`, else the one below `instead`; made when the first thing is put into them.
    pub fn new(home: &Path, instead: &Path) -> Self {
        let roots = [home, instead].map(|dir| dir.join(DIR));
        let in_use = fs::try_lock_shared(&roots[0].join(LOCK)).ok().flatten();
        Cache { roots, _in_use: in_use, trouble: Mutex::new((None, false)) }
    }

    /// Why the store could not be written the first time that this happened; told once.
    pub fn trouble(&self) -> Option<String> {
        let mut trouble = self.trouble.lock().ok()?;
        if trouble.1 || trouble.0.is_none() {
            return None;
        }
        trouble.1 = true;
        trouble.0.clone()
    }

    /// Notes that the bytes were of use, though nobody reads them now.
    pub fn keep(&self, blobs: &[Blob]) {
        for blob in blobs {
            let _ = self.roots.iter().any(|root| fs::note_use(&place(root, "cas", &blob.sha256), USE));
        }
    }

    /// Writes to the first root that can be written.
    fn write(&self, kind: &str, digest: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let [store, instead] = &self.roots;
        let Err(error) = fs::write(&place(store, kind, digest), bytes) else { return Ok(()) };
        if let Ok(mut trouble) = self.trouble.lock() {
            trouble.0.get_or_insert_with(|| {
                format!("the store cannot be written, {} is used instead: {error}", instead.display())
            });
        }
        fs::write(&place(instead, kind, digest), bytes)
    }

    /// The finished action of this key, if its record can be read. The bytes of its outputs may be gone.
    pub fn action(&self, key: &str) -> Option<Action> {
        self.roots.iter().find_map(|root| {
            let path = place(root, "ac", key);
            let action: Action = serde_json::from_slice(&fs::read_if_exists(&path).ok()??).ok()?;
            fs::note_use(&path, USE);
            Some(action)
        })
    }

    /// Records a finished action.
    pub fn put_action(&self, key: &str, action: &Action) -> anyhow::Result<()> {
        self.write("ac", key, &serde_json::to_vec(action)?)
    }

    /// Stores a file's bytes.
    pub fn put(&self, bytes: &[u8]) -> anyhow::Result<Blob> {
        let blob = Blob { sha256: fs::sha256_of(bytes), size: bytes.len() as u64 };
        // Written even where it is there: what is there may be damaged, and only jobs that ran come here.
        let mut encoder = zstd::Encoder::new(Vec::new(), 1)?;
        encoder.write_all(bytes)?;
        self.write("cas", &blob.sha256, &encoder.finish()?)?;
        Ok(blob)
    }

    /// The bytes of a blob; `None` where it is gone or no longer what it was, which also removes it.
    pub fn get(&self, blob: &Blob) -> Option<Vec<u8>> {
        self.roots.iter().find_map(|root| {
            let path = place(root, "cas", &blob.sha256);
            let found = unpack(&fs::read_if_exists(&path).ok()??, &blob.sha256);
            if found.is_some() {
                fs::note_use(&path, USE);
            } else {
                let _ = fs::remove_file(&path);
            }
            found
        })
    }
}

/// Where the file of a digest is below a cache's directory.
pub(super) fn place(root: &Path, kind: &str, digest: &str) -> PathBuf {
    root.join(kind).join(digest.get(..2).unwrap_or(digest)).join(digest)
}

/// The bytes of a file of `cas/`, if they are those of this digest.
pub(super) fn unpack(packed: &[u8], sha256: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    zstd::Decoder::new(packed).and_then(|mut decoder| decoder.read_to_end(&mut bytes)).ok()?;
    (fs::sha256_of(&bytes) == sha256).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cache: &Cache, blob: &Blob) -> PathBuf {
        place(&cache.roots[0], "cas", &blob.sha256)
    }

    fn action(blob: &Blob) -> Action {
        let kind = "cicc".to_owned();
        Action { kind, outputs: vec![blob.clone()], headers: vec![], cpu: 1.0, wall: 1.0, peak_memory: 7 }
    }

    #[test]
    fn store_that_cannot_be_written_is_stood_in_for_and_told_once() {
        let home = tempfile::tempdir().unwrap();
        fs::write(&home.path().join("cache"), b"a file where the directory should be").unwrap();
        let cache = Cache::new(home.path(), &home.path().join("build"));
        let blob = cache.put(b"cubin").unwrap();
        let action = action(&blob);
        cache.put_action(&blob.sha256, &action).unwrap();
        assert_eq!(cache.get(&blob).as_deref(), Some(&b"cubin"[..]));
        assert_eq!(cache.action(&blob.sha256), Some(action));
        assert!(cache.trouble().unwrap().contains("instead"));
        cache.put(b"another").unwrap();
        assert_eq!(cache.trouble(), None);
    }

    #[test]
    fn damaged_bytes_are_a_miss_and_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path(), &home.path().join("instead"));
        let blob = cache.put(b"cubin").unwrap();
        assert_eq!(cache.get(&blob).as_deref(), Some(&b"cubin"[..]));
        let other = cache.put(b"other").unwrap();
        fs::copy(&at(&cache, &other), &at(&cache, &blob)).unwrap();
        assert_eq!(cache.get(&blob), None);
        assert!(!at(&cache, &blob).exists());
    }

    #[test]
    fn action_is_a_hit_without_its_bytes() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path(), &home.path().join("instead"));
        let blob = cache.put(b"cubin").unwrap();
        let action = action(&blob);
        let key = Key::new("cicc").finish();
        cache.put_action(&key, &action).unwrap();
        fs::remove_file(&at(&cache, &blob)).unwrap();
        assert_eq!(cache.action(&key), Some(action));
        assert_eq!(cache.get(&blob), None);
    }

    #[test]
    fn parts_of_a_key_cannot_run_into_each_other() {
        let key = |parts: &[(&str, &str)]| {
            let mut key = Key::new("x");
            for (name, value) in parts {
                key.add(name, value);
            }
            key.finish()
        };
        assert_ne!(key(&[("a", "bc")]), key(&[("ab", "c")]));
        assert_ne!(key(&[("a", "b"), ("c", "d")]), key(&[("a", "bcd")]));
    }
}
