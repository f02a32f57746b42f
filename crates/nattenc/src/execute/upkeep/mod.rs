//! Looks after the store of finished work: what is in it, whether it is whole, what may go. Everything here is
//! safe beside running builds: a file is removed by one call, a build that misses one runs its job again, and
//! while builds run nothing is evicted that was of use a moment ago.
//!
//! The bytes that jobs made go first, by themselves: an action is a few hundred bytes, and spares its job as
//! long as nobody reads what that made.

#[cfg(test)]
mod tests;
mod told;

pub use told::{Amount, Cleared, Damage, Evicted, Stats, Stuck, Verdict};

use super::cache::{self, Action};
use crate::bounded::{self, Pulse};
use crate::failure::{Class, Failure};
use crate::fs;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What was of use so recently is not evicted while builds run.
const GRACE: Duration = Duration::from_secs(600);

/// Temporary files of that age belong to no process any more.
const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// Entries of which the last use lies in the same span of this length go by size.
const SAME_TIME: i128 = 3_600_000_000_000;

/// A file of the cache.
#[derive(Debug, Clone)]
struct File {
    digest: String,
    path: PathBuf,
    size: u64,
    /// When it was last of use, nanoseconds since the epoch.
    used: i128,
}

/// The cache of a store, as it is on disk.
pub struct Upkeep {
    home: PathBuf,
    root: PathBuf,
    /// Beats for every file that was looked at, read or removed.
    pulse: Pulse,
}

/// All files of a cache.
#[derive(Debug, Default)]
struct Files {
    actions: Vec<File>,
    blobs: Vec<File>,
    /// Temporary files, of running builds or left by killed ones.
    temporary: Vec<File>,
    /// What no nattenc put there.
    foreign: Vec<PathBuf>,
}

/// What may stay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// All files together, bytes.
    pub size: Option<u64>,
    /// Since the last use.
    pub age: Option<Duration>,
}

fn now() -> i128 {
    i128::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos())
        .unwrap_or(i128::MAX)
}

fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

fn amount<'a>(files: impl IntoIterator<Item = &'a File>) -> Amount {
    let mut amount = Amount::default();
    files.into_iter().for_each(|file| amount.add(file.size));
    amount
}

fn is_digest(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}

/// Whether a directory can be listed; one that is not there is an empty one, anything else a failure.
fn directory(path: &Path) -> anyhow::Result<bool> {
    let wrong = |what: &str| {
        Err(Failure::config(format!("{}: {what}, where a directory of the cache should be", path.display()))
            .hint("move it away, or name another store with NATTENC_HOME")
            .into())
    };
    match fs::entry(path)? {
        fs::Entry::Absent => Ok(false),
        fs::Entry::Directory => Ok(true),
        fs::Entry::File => wrong("is a file"),
        fs::Entry::Other => wrong("is a link that leads to no directory, or something else"),
    }
}

impl Files {
    /// Adds the files of `dir`, a directory of two hexadecimal digits.
    fn list(&mut self, kind: &str, dir: &Path, pulse: &Pulse) -> anyhow::Result<()> {
        for path in fs::list(dir)? {
            pulse.beat();
            let temporary = name(&path).starts_with(".tmp-");
            let ours = temporary || (is_digest(name(&path)) && name(&path).starts_with(name(dir)));
            // One that went meanwhile is no concern.
            match fs::entry(&path)? {
                fs::Entry::Absent => continue,
                fs::Entry::File if ours => {}
                _ => {
                    self.foreign.push(path);
                    continue;
                }
            }
            let Some(stamp) = fs::stamp_if_exists(&path)? else { continue };
            let digest = name(&path).to_owned();
            let file = File { digest, size: stamp.size, used: stamp.mtime, path };
            match kind {
                _ if temporary => self.temporary.push(file),
                "ac" => self.actions.push(file),
                _ => self.blobs.push(file),
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        [&self.actions, &self.blobs, &self.temporary].into_iter().flatten().map(|file| file.size).sum()
    }

    /// Every action with what its record says, `None` where it cannot be read.
    fn read_actions(&self, pulse: &Pulse) -> Vec<(&File, Option<Action>)> {
        let read = |file: &File| {
            pulse.beat();
            serde_json::from_slice(&fs::read_if_exists(&file.path).ok()??).ok()
        };
        self.actions.par_iter().map(|file| (file, read(file))).collect()
    }

    /// What can be evicted, the first to go first: bytes before actions, by last use.
    fn candidates(&self) -> Vec<&File> {
        let order = |file: &&File| {
            (file.used / SAME_TIME, std::cmp::Reverse(file.size), file.used, file.digest.clone())
        };
        let [mut blobs, mut actions] =
            [&self.blobs, &self.actions].map(|files| files.iter().collect::<Vec<_>>());
        blobs.sort_by_cached_key(order);
        actions.sort_by_cached_key(order);
        blobs.into_iter().chain(actions).collect()
    }
}

impl Upkeep {
    /// The cache of the store in `home`. One that is not there is an empty one.
    pub fn new(home: &Path) -> Self {
        Upkeep { home: home.to_path_buf(), root: home.join(cache::DIR), pulse: Pulse::default() }
    }

    /// Does `work` on the cache of the store in `home`. Fails, with class resource, where that gives no answer.
    pub fn within<T: Send + 'static>(
        home: &Path,
        patience: Duration,
        work: impl FnOnce(&Upkeep) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let home = home.to_path_buf();
        let root = home.join(cache::DIR);
        let done = bounded::within(patience, move |pulse| {
            work(&Upkeep { pulse: pulse.clone(), ..Upkeep::new(&home) })
        });
        done.unwrap_or_else(|| {
            let seconds = patience.as_secs_f64();
            Err(Failure::resource(format!(
                "{}: the cache gives no answer within {seconds} s",
                root.display()
            ))
            .hint("check that its mount is alive, or name another store with NATTENC_HOME")
            .into())
        })
    }

    /// Keeps builds that start now from holding a share of the lock, and says whether one holds it already. Where there
    /// is no lock to be had, in a cache that cannot be written, none does.
    fn lock(&self) -> anyhow::Result<(Option<fs::FileLock>, bool)> {
        if !directory(&self.root)? {
            return Ok((None, false));
        }
        let lock = fs::try_lock(&self.root.join(cache::LOCK));
        let building = matches!(lock, Ok(None));
        Ok((lock.ok().flatten(), building))
    }

    fn files(&self) -> anyhow::Result<Files> {
        let mut files = Files::default();
        if !directory(&self.root)? {
            return Ok(files);
        }
        for top in fs::list(&self.root)? {
            match name(&top) {
                cache::LOCK => {}
                kind @ ("ac" | "cas") => {
                    if !directory(&top)? {
                        continue;
                    }
                    for dir in fs::list(&top)? {
                        let two = name(&dir).len() == 2 && name(&dir).bytes().all(|b| b.is_ascii_hexdigit());
                        match fs::entry(&dir)? {
                            fs::Entry::Directory if two => files.list(kind, &dir, &self.pulse)?,
                            fs::Entry::Absent => {}
                            _ => files.foreign.push(dir),
                        }
                    }
                }
                _ => files.foreign.push(top),
            }
        }
        Ok(files)
    }

    /// What is in it.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        let files = self.files()?;
        let now = now();
        let actions = files.read_actions(&self.pulse);
        let mut kinds: BTreeMap<String, Amount> = BTreeMap::new();
        let mut ages: BTreeMap<String, Amount> = BTreeMap::new();
        let sizes: BTreeMap<&str, u64> = files.blobs.iter().map(|b| (b.digest.as_str(), b.size)).collect();
        let mut counted: BTreeSet<&str> = BTreeSet::new();
        let mut without_bytes = 0;
        for (file, action) in &actions {
            let outputs = || action.iter().flat_map(|action| &action.outputs);
            without_bytes += usize::from(outputs().any(|blob| !sizes.contains_key(blob.sha256.as_str())));
            let bytes = outputs()
                .filter_map(|blob| sizes.get_key_value(blob.sha256.as_str()))
                .filter(|(digest, _)| counted.insert(**digest))
                .map(|(_, size)| size)
                .sum();
            let kind = match action.as_ref().map(|action| action.kind.as_str()) {
                None => "unreadable",
                Some("") => "of an older release",
                Some(kind) => kind,
            };
            kinds.entry(kind.to_owned()).or_default().add(bytes);
            ages.entry(age_word(now - file.used).to_owned()).or_default().add(bytes);
        }
        let oldest = files.actions.iter().map(|file| file.used).min();
        let history = fs::read_if_exists(&super::history::file(&self.home))?.unwrap_or_default();
        Ok(Stats {
            schema_version: told::SCHEMA_VERSION,
            cache: self.root.clone(),
            entries: files.actions.len(),
            blobs: amount(&files.blobs),
            without_bytes,
            bytes: files.bytes(),
            kinds,
            ages,
            oldest_use_seconds: oldest.map(|used| u64::try_from((now - used) / 1_000_000_000).unwrap_or(0)),
            unreferenced: amount(files.blobs.iter().filter(|b| !counted.contains(b.digest.as_str()))),
            temporary: amount(&files.temporary),
            foreign: files.foreign.clone(),
            history: Amount {
                count: super::history::History::open(&self.home).len(),
                bytes: history.len() as u64,
            },
        })
    }

    /// Digests every file and reads every action; removes what is damaged.
    pub fn verify(&self) -> anyhow::Result<Verdict> {
        let files = self.files()?;
        let remove = |file: &File, why: String| {
            let stuck = fs::remove_file(&file.path).err().map(|error| error.to_string());
            Damage { path: file.path.clone(), why, stuck }
        };
        let mut damaged: Vec<Damage> = files
            .blobs
            .par_iter()
            .filter_map(|file| {
                self.pulse.beat();
                let why = match fs::open_if_exists(&file.path) {
                    // It went meanwhile.
                    Ok(None) => return None,
                    Ok(Some(packed)) => match cache::unpack(packed, &file.digest, &mut std::io::sink()) {
                        Ok(true) => return None,
                        _ => "its bytes are not those of its digest".to_owned(),
                    },
                    Err(error) => error.to_string(),
                };
                Some(remove(file, why))
            })
            .collect();
        for (file, action) in files.read_actions(&self.pulse) {
            if action.is_none() && fs::entry(&file.path)? != fs::Entry::Absent {
                damaged.push(remove(file, "it is no record of a finished job".to_owned()));
            }
        }
        Ok(Verdict {
            schema_version: told::SCHEMA_VERSION,
            cache: self.root.clone(),
            entries: files.actions.len(),
            blobs: amount(&files.blobs),
            damaged,
            foreign: files.foreign,
        })
    }

    /// Evicts what is out of `bounds`: first what was not of use for too long, then by last use, of those of
    /// the same hour the largest first, until the rest is small enough.
    pub fn evict(&self, bounds: Bounds) -> anyhow::Result<Evicted> {
        let mut files = self.files()?;
        let (_lock, building) = self.lock()?;
        let now = now();
        let mut done = Removal { now, spare: building, pulse: self.pulse.clone(), ..Removal::default() };
        let mut leftovers = Amount::default();
        for file in &files.temporary {
            if now - file.used > nanoseconds(LEFTOVER) && done.remove(file) {
                leftovers.add(file.size);
            }
        }
        let (mut old, mut large) = (Amount::default(), Amount::default());
        let mut left = files.bytes() - leftovers.bytes;
        for file in files.candidates() {
            let too_old = bounds.age.is_some_and(|age| now - file.used > nanoseconds(age));
            if !too_old && bounds.size.is_none_or(|size| left <= size) {
                continue;
            }
            if done.evict(file) {
                left -= file.size;
                if too_old { old.add(file.size) } else { large.add(file.size) }
            }
        }
        let removed = std::mem::take(&mut done.removed);
        for list in [&mut files.actions, &mut files.blobs, &mut files.temporary] {
            list.retain(|file| !removed.contains(&file.path));
        }
        Ok(Evicted {
            schema_version: told::SCHEMA_VERSION,
            cache: self.root.clone(),
            old,
            large,
            leftovers,
            kept: amount([&files.actions, &files.blobs, &files.temporary].into_iter().flatten()),
            spared: done.spared,
            stuck: done.stuck,
        })
    }

    /// Removes all finished work. Refuses a directory that holds anything which no nattenc put there, and one that
    /// a build uses, with class locked.
    pub fn clear(&self) -> anyhow::Result<Cleared> {
        let files = self.files()?;
        let (_lock, building) = self.lock()?;
        if building {
            let what = format!("{}: a build is using it; nothing was removed", self.root.display());
            return Err(Failure::new(Class::Locked, what)
                .hint("wait for the build to end, or remove what it does not need with `nattenc cache gc --max-size 0M`")
                .into());
        }
        if let Some(foreign) = files.foreign.first() {
            return Err(Failure::config(format!(
                "{}: is no cache of nattenc's alone: {} is not its own; nothing was removed",
                self.root.display(),
                foreign.display()
            ))
            .hint("check NATTENC_HOME, or move that away")
            .into());
        }
        let mut done = Removal { pulse: self.pulse.clone(), ..Removal::default() };
        let mut all = Amount::default();
        for file in files.actions.iter().chain(&files.blobs).chain(&files.temporary) {
            if done.remove(file) {
                all.add(file.size);
            }
        }
        for kind in ["ac", "cas"].map(|kind| self.root.join(kind)) {
            if directory(&kind)? {
                fs::list(&kind)?.iter().for_each(|dir| fs::remove_empty_dir(dir));
                fs::remove_empty_dir(&kind);
            }
        }
        Ok(Cleared {
            schema_version: told::SCHEMA_VERSION,
            cache: self.root.clone(),
            removed: all,
            stuck: done.stuck,
        })
    }
}

/// How long ago, in words that sort by age.
fn age_word(age: i128) -> &'static str {
    const DAY: i128 = 24 * 3_600_000_000_000;
    match age / DAY {
        ..1 => "0 to 1 days",
        1..7 => "1 to 7 days",
        7..30 => "7 to 30 days",
        _ => "over 30 days",
    }
}

/// What an eviction has done so far.
#[derive(Default)]
struct Removal {
    now: i128,
    /// Whether builds run, so that what was just of use stays.
    spare: bool,
    pulse: Pulse,
    removed: BTreeSet<PathBuf>,
    spared: usize,
    stuck: Option<Stuck>,
}

impl Removal {
    fn remove(&mut self, file: &File) -> bool {
        self.pulse.beat();
        match fs::remove_file(&file.path) {
            Ok(()) => {
                self.removed.insert(file.path.clone());
                true
            }
            Err(error) => {
                let first = || Stuck { count: 0, first: error.to_string() };
                self.stuck.get_or_insert_with(first).count += 1;
                false
            }
        }
    }

    /// Removes a file unless it was of use since it was listed, or a moment ago while builds run. Says whether
    /// it is gone.
    fn evict(&mut self, file: &File) -> bool {
        self.pulse.beat();
        let used_since =
            || fs::stamp_if_exists(&file.path).ok().flatten().is_some_and(|stamp| stamp.mtime > file.used);
        if (self.spare && self.now - file.used < nanoseconds(GRACE)) || used_since() {
            self.spared += 1;
            return false;
        }
        self.remove(file)
    }
}
