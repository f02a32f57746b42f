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

/// The store on disk.
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The store below `home`; made when the first thing is put into it.
    pub fn new(home: &Path) -> Self {
        Cache { root: home.join("cache") }
    }

    fn action_path(&self, key: &str) -> PathBuf {
        self.root.join("ac").join(&key[..2]).join(key)
    }

    fn blob_path(&self, sha256: &str) -> PathBuf {
        self.root.join("cas").join(&sha256[..2]).join(sha256)
    }

    /// The finished action of this key, if its record can be read and all its outputs are there.
    pub fn action(&self, key: &str) -> Option<Action> {
        let bytes = fs::read_if_exists(&self.action_path(key)).ok()??;
        let action: Action = serde_json::from_slice(&bytes).ok()?;
        action.outputs.iter().all(|b| self.blob_path(&b.sha256).is_file()).then_some(action)
    }

    /// Records a finished action.
    pub fn put_action(&self, key: &str, action: &Action) -> anyhow::Result<()> {
        fs::write(&self.action_path(key), &serde_json::to_vec(action)?)
    }

    /// Stores a file's bytes.
    pub fn put(&self, bytes: &[u8]) -> anyhow::Result<Blob> {
        let blob = Blob { sha256: fs::sha256_of(bytes), size: bytes.len() as u64 };
        let path = self.blob_path(&blob.sha256);
        if !path.is_file() {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1)?;
            encoder.write_all(bytes)?;
            fs::write(&path, &encoder.finish()?)?;
        }
        Ok(blob)
    }

    /// The bytes of a blob; `None` where it is gone or no longer what it was, which also removes it.
    pub fn get(&self, blob: &Blob) -> Option<Vec<u8>> {
        let path = self.blob_path(&blob.sha256);
        let packed = fs::read_if_exists(&path).ok()??;
        let mut bytes = Vec::with_capacity(usize::try_from(blob.size).ok()?);
        let whole = zstd::Decoder::new(packed.as_slice()).and_then(|mut d| d.read_to_end(&mut bytes)).is_ok();
        if whole && fs::sha256_of(&bytes) == blob.sha256 {
            return Some(bytes);
        }
        let _ = fs::remove_file(&path);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_a_miss_and_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path());
        let blob = cache.put(b"cubin").unwrap();
        assert_eq!(cache.get(&blob).as_deref(), Some(&b"cubin"[..]));
        let other = cache.put(b"other").unwrap();
        fs::copy(&cache.blob_path(&other.sha256), &cache.blob_path(&blob.sha256)).unwrap();
        assert_eq!(cache.get(&blob), None);
        assert!(!cache.blob_path(&blob.sha256).exists());
    }

    #[test]
    fn action_without_its_outputs_is_no_hit() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path());
        let blob = cache.put(b"cubin").unwrap();
        let action =
            Action { outputs: vec![blob.clone()], headers: vec![], cpu: 1.0, wall: 1.0, peak_memory: 7 };
        let key = Key::new("cicc").finish();
        cache.put_action(&key, &action).unwrap();
        assert_eq!(cache.action(&key), Some(action));
        fs::remove_file(&cache.blob_path(&blob.sha256)).unwrap();
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
