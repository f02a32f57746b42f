//! The store of finished work: actions (`ac/`) and the bytes that they made (`cas/`), both by SHA-256.
//!
//! An action's key is a digest of everything that can change its outputs: the tool's content, the
//! arguments, the bytes of the inputs, the digests of the trees that it may read. Preprocessing is
//! keyed by trees (cheap), later phases by the preprocessed text (exact), so a header edit that does
//! not change a unit's text re-runs the preprocessor alone.
//!
//! Nothing here is trusted: bytes are digested when they are loaded, an action whose outputs are gone
//! is no hit, and an entry that cannot be written costs a warning, never a build.

use crate::fs;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Raised when the key or the files change meaning.
const SCHEMA: &str = "nattenc action 1";

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
    /// Why the store could not be written, and whether that was told.
    trouble: Mutex<(Option<String>, bool)>,
}

impl Cache {
    /// The store below `home`, else the one below `instead`; made when the first thing is put into them.
    pub fn new(home: &Path, instead: &Path) -> Self {
        Cache { roots: [home.join("cache"), instead.join("cache")], trouble: Mutex::new((None, false)) }
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

    fn place(root: &Path, kind: &str, digest: &str) -> PathBuf {
        root.join(kind).join(&digest[..2]).join(digest)
    }

    fn holds(&self, sha256: &str) -> bool {
        self.roots.iter().any(|root| Self::place(root, "cas", sha256).is_file())
    }

    /// Writes to the first root that can be written.
    fn write(&self, kind: &str, digest: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let [store, instead] = &self.roots;
        let Err(error) = fs::write(&Self::place(store, kind, digest), bytes) else { return Ok(()) };
        if let Ok(mut trouble) = self.trouble.lock() {
            trouble.0.get_or_insert_with(|| {
                format!("the store cannot be written, {} is used instead: {error}", instead.display())
            });
        }
        fs::write(&Self::place(instead, kind, digest), bytes)
    }

    /// The finished action of this key, if its record can be read and all its outputs are there.
    pub fn action(&self, key: &str) -> Option<Action> {
        self.roots.iter().find_map(|root| {
            let bytes = fs::read_if_exists(&Self::place(root, "ac", key)).ok()??;
            let action: Action = serde_json::from_slice(&bytes).ok()?;
            action.outputs.iter().all(|b| self.holds(&b.sha256)).then_some(action)
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
            let path = Self::place(root, "cas", &blob.sha256);
            let packed = fs::read_if_exists(&path).ok()??;
            let mut bytes = Vec::with_capacity(usize::try_from(blob.size).ok()?);
            let whole =
                zstd::Decoder::new(packed.as_slice()).and_then(|mut d| d.read_to_end(&mut bytes)).is_ok();
            if whole && fs::sha256_of(&bytes) == blob.sha256 {
                return Some(bytes);
            }
            let _ = fs::remove_file(&path);
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cache: &Cache, blob: &Blob) -> PathBuf {
        Cache::place(&cache.roots[0], "cas", &blob.sha256)
    }

    #[test]
    fn store_that_cannot_be_written_is_stood_in_for_and_told_once() {
        let home = tempfile::tempdir().unwrap();
        fs::write(&home.path().join("cache"), b"a file where the directory should be").unwrap();
        let cache = Cache::new(home.path(), &home.path().join("build"));
        let blob = cache.put(b"cubin").unwrap();
        let action =
            Action { outputs: vec![blob.clone()], headers: vec![], cpu: 1.0, wall: 1.0, peak_memory: 7 };
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
    fn action_without_its_outputs_is_no_hit() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path(), &home.path().join("instead"));
        let blob = cache.put(b"cubin").unwrap();
        let action =
            Action { outputs: vec![blob.clone()], headers: vec![], cpu: 1.0, wall: 1.0, peak_memory: 7 };
        let key = Key::new("cicc").finish();
        cache.put_action(&key, &action).unwrap();
        assert_eq!(cache.action(&key), Some(action));
        fs::remove_file(&at(&cache, &blob)).unwrap();
        assert_eq!(cache.action(&key), None);
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
