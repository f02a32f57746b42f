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

use crate::bounded::{self, Pulse, Threads};
use crate::fs;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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

/// The store on disk, and beside it a place that takes over where the store cannot be used: a full, a read-only, a
/// broken store and one that gives no answer costs a warning, never a build.
pub struct Cache {
    /// In order of preference, for writing; all are read.
    roots: [PathBuf; 2],
    /// Where files without a name lie on their way to and from the store.
    passage: PathBuf,
    /// Does everything that touches the store: it may be on a mount whose server is gone.
    threads: Threads,
    /// Whether the store gave no answer: it is left alone from then on.
    dead: AtomicBool,
    /// Tells eviction that a build is going on; `None` where the store cannot be written, or is being evicted
    /// from: neither keeps a build waiting.
    _in_use: Option<fs::FileLock>,
    trouble: Mutex<Trouble>,
}

/// What is wrong with the store.
#[derive(Debug, Default)]
struct Trouble {
    /// Whether it could not be written.
    unwritable: bool,
    /// What was not told yet.
    untold: VecDeque<String>,
}

/// Writes what a file of the cache is to hold.
type Fill = dyn Fn(&mut File, &Pulse) -> std::io::Result<()> + Send + Sync;

impl Cache {
    /// The store below `home`, else the one below `instead`; made when the first thing is put into them.
    pub fn new(home: &Path, instead: &Path) -> Self {
        Self::patient(home, instead, bounded::PATIENCE)
    }

    /// As [`Cache::new`], of a store that may give no sign of life for as long as `patience`.
    pub fn patient(home: &Path, instead: &Path, patience: Duration) -> Self {
        let roots = [home, instead].map(|dir| dir.join(DIR));
        let mut cache = Cache {
            roots,
            passage: instead.to_path_buf(),
            threads: Threads::new(patience),
            dead: AtomicBool::new(false),
            _in_use: None,
            trouble: Mutex::default(),
        };
        let lock = cache.in_store(|root, _| fs::try_lock_shared(&root.join(LOCK)).ok().flatten());
        cache._in_use = lock.flatten();
        cache
    }

    /// What is wrong with the store, each thing told once.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().ok()?.untold.pop_front()
    }

    /// What `work` on the store comes to; nothing where the store gives no answer, now or before. That is waited
    /// for once, by each of those who wait already.
    fn in_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path, &Pulse) -> T + Send + 'static,
    ) -> Option<T> {
        if self.dead.load(Ordering::SeqCst) {
            return None;
        }
        let root = self.roots[0].clone();
        let done = self.threads.within(move |pulse| work(&root, pulse));
        if done.is_none() && !self.dead.swap(true, Ordering::SeqCst) {
            let [store, instead] = [&self.roots[0], &self.roots[1]].map(|root| root.display());
            let seconds = self.threads.patience().as_secs_f64();
            self.tell(format!(
                "the store gives no answer within {seconds} s, {instead} is used instead: check that the mount of \
                 {store} is alive, or name another store with NATTENC_HOME"
            ));
        }
        done
    }

    fn tell(&self, what: String) {
        if let Ok(mut trouble) = self.trouble.lock() {
            trouble.untold.push_back(what);
        }
    }

    /// Notes that the bytes were of use, though nobody reads them now.
    pub fn keep(&self, blobs: &[Blob]) {
        let digests: Vec<String> = blobs.iter().map(|blob| blob.sha256.clone()).collect();
        let note = |root: &Path, digest: &String| fs::note_use(&place(root, "cas", digest), USE);
        let own = digests.clone();
        let noted = self.in_store(move |root, _| own.iter().map(|d| note(root, d)).collect::<Vec<_>>());
        for (at, digest) in digests.iter().enumerate() {
            if !noted.as_ref().is_some_and(|noted| noted[at]) {
                note(&self.roots[1], digest);
            }
        }
    }

    /// Writes to the first root that can be written.
    fn write(&self, kind: &'static str, digest: &str, fill: Arc<Fill>) -> anyhow::Result<()> {
        let digest = digest.to_owned();
        let write = move |root: &Path, pulse: &Pulse| {
            fs::write_with(&place(root, kind, &digest), |file| fill(file, pulse).map(|()| true)).map(|_| ())
        };
        match self.in_store(write.clone()) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => {
                let mut trouble = self.trouble.lock().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
                if !std::mem::replace(&mut trouble.unwritable, true) {
                    let instead = self.roots[1].display();
                    let what = format!("the store cannot be written, {instead} is used instead: {error}");
                    trouble.untold.push_back(what);
                }
            }
            None => {}
        }
        write(&self.roots[1], &Pulse::default())
    }

    /// The finished action of this key, if its record can be read. The bytes of its outputs may be gone.
    pub fn action(&self, key: &str) -> Option<Action> {
        self.actions(vec![key.to_owned()]).pop().flatten()
    }

    /// As [`Cache::action`], of each key: one way to the thread that reads and back for all.
    pub fn actions(&self, keys: Vec<String>) -> Vec<Option<Action>> {
        let read = |root: &Path, key: &str| {
            let path = place(root, "ac", key);
            let action: Action = serde_json::from_slice(&fs::read_if_exists(&path).ok()??).ok()?;
            fs::note_use(&path, USE);
            Some(action)
        };
        let own = keys.clone();
        let found = self.in_store(move |root, pulse| {
            let each = own.iter().map(|key| {
                pulse.beat();
                read(root, key)
            });
            each.collect::<Vec<_>>()
        });
        let found = found.unwrap_or_else(|| vec![None; keys.len()]);
        found.into_iter().zip(&keys).map(|(found, key)| found.or_else(|| read(&self.roots[1], key))).collect()
    }

    /// Records a finished action.
    pub fn put_action(&self, key: &str, action: &Action) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(action)?;
        self.write("ac", key, Arc::new(move |file, _| file.write_all(&bytes)))
    }

    /// Stores bytes.
    pub fn put(&self, bytes: &[u8]) -> anyhow::Result<Blob> {
        self.put_all(&mut { bytes })
    }

    /// Stores a file's bytes.
    pub fn put_file(&self, path: &Path) -> anyhow::Result<Blob> {
        self.put_all(&mut fs::open(path)?)
    }

    fn put_all(&self, from: &mut dyn Read) -> anyhow::Result<Blob> {
        let (blob, packed) = pack(from, fs::nameless(&self.passage)?)?;
        // Written even where it is there: what is there may be damaged, and only jobs that ran come here.
        let fill = move |file: &mut File, pulse: &Pulse| fs::append(&packed, file, pulse);
        self.write("cas", &blob.sha256, Arc::new(fill))?;
        Ok(blob)
    }

    /// The bytes of a blob; `None` where it is gone or no longer what it was, which also removes it.
    pub fn get(&self, blob: &Blob) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let take = |packed: File| {
            bytes.clear();
            Ok(unpack(packed, &blob.sha256, &mut bytes)?)
        };
        self.read(blob, take).ok()?.then_some(bytes)
    }

    /// Writes the bytes of a blob to `path`, whole or not at all; `false` where it is gone or no longer what it
    /// was, which also removes it.
    pub fn get_to(&self, blob: &Blob, path: &Path) -> anyhow::Result<bool> {
        self.read(blob, |packed| fs::write_with(path, |file| unpack(packed, &blob.sha256, file)))
    }

    /// Lets `take` have the packed bytes of a blob from each root in turn until it says that they are right; where
    /// it says that they are not, they are removed.
    fn read(&self, blob: &Blob, mut take: impl FnMut(File) -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        let digest = blob.sha256.clone();
        let mut passage = fs::nameless(&self.passage)?;
        let copied = self.in_store(move |root, pulse| {
            let path = place(root, "cas", &digest);
            let from = fs::open_if_exists(&path).ok()??;
            fs::append(&from, &mut passage, pulse).and_then(|()| passage.rewind()).ok()?;
            fs::note_use(&path, USE);
            Some(passage)
        });
        if let Some(packed) = copied.flatten() {
            if take(packed)? {
                return Ok(true);
            }
            let digest = blob.sha256.clone();
            self.in_store(move |root, _| fs::remove_file(&place(root, "cas", &digest)).ok());
        }
        let path = place(&self.roots[1], "cas", &blob.sha256);
        let Some(packed) = fs::open_if_exists(&path).ok().flatten() else { return Ok(false) };
        let right = take(packed)?;
        if right {
            fs::note_use(&path, USE);
        } else {
            let _ = fs::remove_file(&path);
        }
        Ok(right)
    }
}

/// Where the file of a digest is below a cache's directory.
pub(super) fn place(root: &Path, kind: &str, digest: &str) -> PathBuf {
    root.join(kind).join(digest.get(..2).unwrap_or(digest)).join(digest)
}

/// Packs all of `from` into `to`, in one pass.
fn pack(from: &mut dyn Read, to: File) -> anyhow::Result<(Blob, File)> {
    let mut encoder = zstd::Encoder::new(to, 1)?;
    match fs::pass(from, &mut encoder) {
        Ok((sha256, size)) => Ok((Blob { sha256, size }, encoder.finish()?)),
        Err(fs::Side::Reading(error) | fs::Side::Writing(error)) => Err(error.into()),
    }
}

/// Unpacks a file of `cas/` into `to`, and says whether its bytes are those of this digest. Fails only where `to`
/// cannot be written.
pub(super) fn unpack(packed: impl Read, sha256: &str, to: &mut dyn Write) -> std::io::Result<bool> {
    let Ok(mut decoder) = zstd::Decoder::new(packed) else { return Ok(false) };
    match fs::pass(&mut decoder, to) {
        Ok((digest, _)) => Ok(digest == sha256),
        Err(fs::Side::Reading(_)) => Ok(false),
        Err(fs::Side::Writing(error)) => Err(error),
    }
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
    fn store_that_gives_no_answer_is_left_alone_from_then_on_and_that_is_told_once() {
        let never = |home: &Path, path: PathBuf| {
            let _ = fs::remove_file(&path);
            fs::pipe(&path);
            Cache::patient(home, &home.join("build"), Duration::from_millis(200))
        };
        let told = |cache: &Cache| {
            let told = cache.trouble().unwrap();
            assert!(told.starts_with("the store gives no answer within 0.2 s, "), "{told}");
            assert_eq!(cache.trouble(), None);
        };
        let prepared = || {
            let home = tempfile::tempdir().unwrap();
            let cache = Cache::new(home.path(), &home.path().join("build"));
            let blob = cache.put(b"cubin").unwrap();
            cache.put_action(&blob.sha256, &action(&blob)).unwrap();
            (home, blob)
        };

        let (home, blob) = prepared();
        let root = home.path().join("cache");
        let cache = never(home.path(), place(&root, "ac", &blob.sha256));
        assert_eq!(cache.action(&blob.sha256), None);
        told(&cache);
        assert_eq!(cache.get(&blob), None, "what is there is not asked for any more");
        assert_eq!(cache.put(b"cubin").unwrap(), blob);
        cache.put_action(&blob.sha256, &action(&blob)).unwrap();
        assert_eq!(cache.get(&blob).as_deref(), Some(&b"cubin"[..]));
        assert_eq!(cache.action(&blob.sha256), Some(action(&blob)));
        assert_eq!(cache.trouble(), None);

        let (home, blob) = prepared();
        let root = home.path().join("cache");
        let cache = never(home.path(), place(&root, "cas", &blob.sha256));
        let to = home.path().join("to");
        assert!(!cache.get_to(&blob, &to).unwrap() && !to.exists());
        told(&cache);

        let (home, blob) = prepared();
        let cache = never(home.path(), home.path().join("cache").join(LOCK));
        told(&cache);
        assert_eq!(cache.action(&blob.sha256), None);
    }

    #[test]
    fn files_go_in_and_come_out_by_their_bytes_alone() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::new(home.path(), &home.path().join("instead"));
        let [from, to] = ["from", "to"].map(|name| home.path().join(name));
        // More than one chunk, and no whole number of them.
        let bytes: Vec<u8> = (0..3 * fs::CHUNK + 7).map(|i| (i * i / 7) as u8).collect();
        fs::write(&from, &bytes).unwrap();
        let blob = cache.put_file(&from).unwrap();
        assert_eq!(blob, Blob { sha256: fs::sha256_of(&bytes), size: bytes.len() as u64 });
        assert!(cache.get_to(&blob, &to).unwrap());
        assert_eq!(fs::read(&to).unwrap(), bytes);
        let packed = fs::read(&at(&cache, &blob)).unwrap();
        fs::write(&at(&cache, &blob), &packed[..packed.len() / 2]).unwrap();
        fs::write(&to, b"as it was").unwrap();
        assert!(!cache.get_to(&blob, &to).unwrap() && !at(&cache, &blob).exists());
        assert_eq!(fs::read(&to).unwrap(), b"as it was");
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
