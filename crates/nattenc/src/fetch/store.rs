//! The store: downloads by their SHA-256, and trees unpacked from them.
//!
//! ```text
//! blobs/sha256/<hex>          a verified download; <hex>.part is one that goes on later
//! trees/<digest>/tree/        what was unpacked
//! trees/<digest>/files.json   every file of it with its SHA-256
//! trees/<digest>/complete.json  written last: counts, to notice damage cheaply
//! trees/.tmp-<digest>/        one in the making, or left by a crash; the next run removes it
//! locks/                      who makes what
//! ```
//! Nothing appears under its final name before it is whole. Complete things are read without a lock,
//! so a store can be read-only.

use super::unpack::{Entries, Entry};
use crate::failure::Failure;
use crate::fs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Changes when trees from the same archives would come out differently.
pub(super) const LAYOUT: u32 = 1;

/// A store in a directory, which need not be there yet.
pub(super) struct Store<'a> {
    home: &'a Path,
}

/// What the store knows of a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Whole; here.
    Whole(PathBuf),
    /// Not whole any more, and why.
    Damaged(String),
    /// Not there.
    Absent,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    layout: u32,
    files: u64,
    bytes: u64,
    /// SHA-256 of files.json.
    listing: String,
}

impl<'a> Store<'a> {
    pub(super) fn new(home: &'a Path) -> Self {
        Store { home }
    }

    /// Where the download of this hash lies or will lie.
    pub(super) fn blob(&self, sha256: &str) -> PathBuf {
        self.blobs().join(sha256)
    }

    /// Where it grows.
    pub(super) fn part(&self, sha256: &str) -> PathBuf {
        self.blobs().join(format!("{sha256}.part"))
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.home.join("blobs/sha256")
    }

    /// The lock that whoever makes `name` holds; `waiting` is called when someone else has it.
    pub(super) fn lock(&self, name: &str, waiting: impl FnOnce()) -> anyhow::Result<fs::FileLock> {
        let path = self.lock_path(name);
        if let Some(lock) = fs::try_lock(&path)? {
            return Ok(lock);
        }
        waiting();
        fs::lock(&path)
    }

    fn lock_path(&self, name: &str) -> PathBuf {
        self.home.join("locks").join(name)
    }

    fn trees(&self) -> PathBuf {
        self.home.join("trees")
    }

    /// Looks for a tree and checks its counts.
    pub(super) fn find(&self, digest: &str) -> anyhow::Result<Found> {
        let at = self.trees().join(digest);
        if at.symlink_metadata().is_err() {
            return Ok(Found::Absent);
        }
        let marker = match marker(&at)? {
            Ok(marker) => marker,
            Err(reason) => return Ok(Found::Damaged(reason)),
        };
        let tree = at.join("tree");
        let Survey { files, bytes, touched } = survey(&tree, &at.join("complete.json"));
        if (files, bytes) != (marker.files, marker.bytes) {
            return Ok(Found::Damaged(format!(
                "{files} files of {bytes} bytes where there were {} of {}",
                marker.files, marker.bytes
            )));
        }
        Ok(match first_difference(&at, &tree, &touched)? {
            Some(difference) => Found::Damaged(difference),
            None => Found::Whole(tree),
        })
    }

    /// Makes a tree: `fill` gets a directory for parts and the path of the tree to make. The caller holds
    /// the lock named after the digest.
    pub(super) fn make(
        &self,
        digest: &str,
        fill: impl FnOnce(&Path, &Path) -> anyhow::Result<Entries>,
    ) -> anyhow::Result<PathBuf> {
        let trees = self.trees();
        fs::create_dir(&trees)?;
        self.sweep(digest)?;
        let temp = trees.join(format!(".tmp-{digest}"));
        fs::remove_dir(&temp)?;
        fs::create_dir(&temp)?;
        // Half a tree is of no use; what was downloaded for it stays in blobs.
        let entries = fill(&temp.join("parts"), &temp.join("tree")).inspect_err(|_| {
            let _ = fs::remove_dir(&temp);
        })?;
        fs::remove_dir(&temp.join("parts"))?;
        let listing = serde_json::to_vec_pretty(&entries)?;
        let (files, bytes) = entries.values().fold((0, 0), |(files, bytes), e| match e {
            Entry::File { size, .. } => (files + 1, bytes + size),
            Entry::Link { .. } => (files + 1, bytes),
        });
        fs::write(&temp.join("files.json"), &listing)?;
        let marker = Marker { layout: LAYOUT, files, bytes, listing: fs::sha256_of(&listing) };
        fs::write(&temp.join("complete.json"), &serde_json::to_vec_pretty(&marker)?)?;
        let at = trees.join(digest);
        if at.symlink_metadata().is_ok() {
            // A damaged one: out of the way under a name that the next sweep knows.
            let aside = trees.join(format!(".tmp-{digest}-old"));
            fs::remove_dir(&aside)?;
            fs::rename(&at, &aside)?;
            fs::rename(&temp, &at)?;
            fs::remove_dir(&aside)?;
        } else {
            fs::rename(&temp, &at)?;
        }
        Ok(at.join("tree"))
    }

    /// Removes what crashed runs left behind; what a live one is making is locked and stays.
    fn sweep(&self, own: &str) -> anyhow::Result<()> {
        for path in fs::list(&self.trees())? {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            let Some(digest) = name.strip_prefix(".tmp-").map(|d| d.trim_end_matches("-old")) else {
                continue;
            };
            let lock = if digest == own { None } else { fs::try_lock(&self.lock_path(digest))? };
            if digest == own || lock.is_some() {
                fs::remove_dir(&path)?;
            }
        }
        Ok(())
    }

    /// Reads every file of a tree again and compares it with what was unpacked.
    pub(super) fn verify(&self, digest: &str) -> anyhow::Result<()> {
        let at = self.trees().join(digest);
        let tree = at.join("tree");
        let failed = |what: String| {
            Failure::integrity(format!("{}: not what was unpacked: {what}", tree.display()))
                .hint(format!("remove {} and fetch again", at.display()))
        };
        let marker = marker(&at)?.map_err(failed)?;
        let listing = fs::read(&at.join("files.json"))?;
        if fs::sha256_of(&listing) != marker.listing {
            return Err(failed("files.json has changed".to_owned()).into());
        }
        let entries: Entries =
            serde_json::from_slice(&listing).map_err(|e| failed(format!("files.json: {e}")))?;
        let mut differences = Vec::new();
        for (path, entry) in &entries {
            if let Some(difference) = difference(&tree.join(path), entry)? {
                differences.push(format!("{path}: {difference}"));
            }
        }
        for path in walk(&tree) {
            let name = path.strip_prefix(&tree).unwrap_or(&path).display().to_string();
            if !entries.contains_key(&name) {
                differences.push(format!("{name}: was not there"));
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        let more = differences.len().saturating_sub(10);
        differences.truncate(10);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        Err(failed(format!("\n  {}", differences.join("\n  "))).into())
    }
}

fn marker(at: &Path) -> anyhow::Result<Result<Marker, String>> {
    let Some(bytes) = fs::read_if_exists(&at.join("complete.json"))? else {
        return Ok(Err("complete.json is missing".to_owned()));
    };
    Ok(match serde_json::from_slice::<Marker>(&bytes) {
        Ok(marker) if marker.layout == LAYOUT => Ok(marker),
        Ok(marker) => Err(format!("its layout is {}", marker.layout)),
        Err(e) => Err(format!("complete.json: {e}")),
    })
}

fn walk(tree: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = walkdir::WalkDir::new(tree).into_iter().filter_map(Result::ok);
    entries.filter(|e| !e.file_type().is_dir()).map(walkdir::DirEntry::into_path)
}

/// What a walk over a tree finds.
struct Survey {
    files: u64,
    bytes: u64,
    /// The files that changed after the tree was completed.
    touched: Vec<PathBuf>,
}

/// Looks at every file of a tree that was completed when `marker` was written; where that cannot be told, all were
/// touched. Change times count: nothing sets them back.
fn survey(tree: &Path, marker: &Path) -> Survey {
    use std::os::unix::fs::MetadataExt;
    let completed = marker.symlink_metadata().map_or((0, 0), |m| (m.ctime(), m.ctime_nsec()));
    let mut found = Survey { files: 0, bytes: 0, touched: Vec::new() };
    for path in walk(tree) {
        found.files += 1;
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_file() {
            found.bytes += metadata.len();
        }
        if (metadata.ctime(), metadata.ctime_nsec()) > completed {
            found.touched.push(path);
        }
    }
    found
}

/// The first difference among files that changed after the tree in `at` was completed. Their bytes stand for pinned
/// ones in every key of the cache.
fn first_difference(at: &Path, tree: &Path, touched: &[PathBuf]) -> anyhow::Result<Option<String>> {
    if touched.is_empty() {
        return Ok(None);
    }
    let listing = fs::read(&at.join("files.json"))?;
    let Ok(entries) = serde_json::from_slice::<Entries>(&listing) else {
        return Ok(Some("files.json cannot be read".to_owned()));
    };
    for path in touched {
        let name = path.strip_prefix(tree).unwrap_or(path).display().to_string();
        let Some(entry) = entries.get(&name) else { return Ok(Some(format!("{name} was added"))) };
        if let Some(difference) = difference(path, entry)? {
            return Ok(Some(format!("{name} {difference}")));
        }
    }
    // All are what they were (a copied store, say): the next run need not read them again. A store that
    // cannot be written is read again instead.
    let marker = at.join("complete.json");
    if let Ok(bytes) = fs::read(&marker) {
        let _ = fs::write(&marker, &bytes);
    }
    Ok(None)
}

fn difference(at: &Path, entry: &Entry) -> anyhow::Result<Option<String>> {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = at.symlink_metadata() else { return Ok(Some("is missing".to_owned())) };
    Ok(match entry {
        Entry::Link { target } => {
            let found = at.read_link().ok();
            (found.as_deref() != Some(Path::new(target)))
                .then(|| format!("links to {found:?}, was {target:?}"))
        }
        Entry::File { .. } if !metadata.is_file() => Some("is no file".to_owned()),
        Entry::File { executable, .. } if (metadata.permissions().mode() & 0o111 != 0) != *executable => {
            Some("has another executable bit".to_owned())
        }
        Entry::File { sha256, .. } => {
            let found = fs::sha256(at)?;
            (found != *sha256).then(|| format!("sha256 {found}, was {sha256}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Class, class};

    fn fill(_parts: &Path, tree: &Path) -> anyhow::Result<Entries> {
        fs::write(&tree.join("bin/tool"), b"tool")?;
        fs::symlink(Path::new("bin"), &tree.join("sbin"))?;
        let file = Entry::File { sha256: fs::sha256_of(b"tool"), size: 4, executable: false };
        Ok([("bin/tool".to_owned(), file), ("sbin".to_owned(), Entry::Link { target: "bin".to_owned() })]
            .into())
    }

    #[test]
    fn a_tree_is_whole_until_something_is_added_taken_or_cut() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        assert_eq!(store.find("d").unwrap(), Found::Absent);
        let tree = store.make("d", fill).unwrap();
        assert_eq!(store.find("d").unwrap(), Found::Whole(tree.clone()));
        store.verify("d").unwrap();
        let break_it: [(&str, &dyn Fn()); 4] = [
            ("added", &|| fs::write(&tree.join("new"), b"").unwrap()),
            ("taken", &|| fs::remove_file(&tree.join("bin/tool")).unwrap()),
            ("cut", &|| fs::write(&tree.join("bin/tool"), b"too").unwrap()),
            ("unmarked", &|| fs::remove_file(&home.path().join("trees/d/complete.json")).unwrap()),
        ];
        for (what, act) in break_it {
            act();
            assert!(matches!(store.find("d").unwrap(), Found::Damaged(_)), "{what}");
            assert_eq!(class(&store.verify("d").unwrap_err()), Class::Integrity, "{what}");
            store.make("d", fill).unwrap();
            assert_eq!(store.find("d").unwrap(), Found::Whole(tree.clone()), "{what}");
        }
        assert_eq!(fs::list(&home.path().join("trees")).unwrap().len(), 1);
    }

    #[test]
    fn edits_that_leave_every_size_are_seen_and_copies_are_not_edits() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        let tree = store.make("d", fill).unwrap();
        fs::write(&tree.join("bin/tool"), b"tool").unwrap();
        fs::set_mode(&tree.join("bin/tool"), 0o644).unwrap();
        assert_eq!(store.find("d").unwrap(), Found::Whole(tree.clone()), "the same bytes, written again");
        fs::write(&tree.join("bin/tool"), b"loot").unwrap();
        let found = store.find("d").unwrap();
        assert!(matches!(&found, Found::Damaged(why) if why.contains("bin/tool sha256")), "{found:?}");
        let error = store.verify("d").unwrap_err();
        assert_eq!(class(&error), Class::Integrity);
        assert!(error.to_string().contains("bin/tool: sha256"), "{error}");
        fs::write(&tree.join("bin/tool"), b"tool").unwrap();
        fs::set_mode(&tree.join("bin/tool"), 0o755).unwrap();
        assert!(store.verify("d").unwrap_err().to_string().contains("executable"));
    }

    #[test]
    fn what_a_crash_left_is_removed_and_what_is_being_made_is_not() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        for name in [".tmp-d/tree/x", ".tmp-e/tree/x", ".tmp-e-old/x", ".tmp-live/x"] {
            fs::write(&home.path().join("trees").join(name), b"half").unwrap();
        }
        let live = store.lock("live", || panic!("nobody else holds it")).unwrap();
        store.make("d", fill).unwrap();
        let left: Vec<_> = fs::list(&home.path().join("trees")).unwrap();
        let names: Vec<_> = left.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, [".tmp-live", "d"]);
        drop(live);
        // A failure while filling leaves nothing.
        assert!(store.make("f", |_, _| anyhow::bail!("stop")).is_err());
        assert_eq!(store.find("f").unwrap(), Found::Absent);
        assert!(!home.path().join("trees/.tmp-f").exists());
    }
}
