//! One fetch: pins from the lock or, on first use, from a source; bytes from the store or the network;
//! a tree from the bytes.

use super::http::{Client, Settings};
use super::index::{self, Candidate};
use super::lock::{Key, Kind, Lock, Pinned};
use super::pip::{self, FindLinks, Sources};
use super::store::{Found, LAYOUT, Store};
use super::unpack::{Archive, Entries, Format, Part, Top, merge, unpack};
use super::url::Url;
use super::{Options, Progress, Target, Tree};
use crate::failure::{Class, Failure, class};
use crate::fs;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many files are fetched and unpacked at once.
const THREADS: usize = 4;

/// Where files come from that are not in the store.
pub(super) trait Source: Sync {
    /// First use of a key: its pin, and those of the other targets, so that one lock serves all.
    fn resolve(&self, key: &Key) -> anyhow::Result<Vec<Pinned>>;
    /// Where a pinned file is now. Fails where the source says that it is another file.
    fn locate(&self, pin: &Pinned) -> anyhow::Result<Url>;
}

/// The network as pip is configured, once it was needed.
struct Reach {
    client: Client,
    find_links: Vec<FindLinks>,
    indexes: Vec<Url>,
}

/// What one call works with.
pub(super) struct Session<'a> {
    options: &'a Options,
    progress: &'a dyn Progress,
    store: Store<'a>,
    /// Whether new pins go into the lock.
    records: bool,
    reach: Mutex<Option<Arc<Reach>>>,
    listings: Mutex<BTreeMap<String, Arc<Vec<Candidate>>>>,
}

impl<'a> Session<'a> {
    pub(super) fn new(options: &'a Options, progress: &'a dyn Progress) -> Self {
        Session {
            options,
            progress,
            store: Store::new(&options.home),
            records: true,
            reach: Mutex::new(None),
            listings: Mutex::new(BTreeMap::new()),
        }
    }

    /// As [`Session::new`], with the lock read and never written.
    pub(super) fn apart(options: &'a Options, progress: &'a dyn Progress) -> Self {
        Session { records: false, ..Session::new(options, progress) }
    }

    /// As [`Session::new`], with the answer of pip given.
    #[cfg(test)]
    pub(super) fn with(
        options: &'a Options,
        progress: &'a dyn Progress,
        sources: Sources,
    ) -> anyhow::Result<Self> {
        let session = Session::new(options, progress);
        *held(&session.reach) = Some(Arc::new(Reach::new(sources)?));
        Ok(session)
    }

    /// The tree of some keys: pinned, fetched, unpacked by `fill` out of parts in the keys' order.
    pub(super) fn tree(
        &self,
        keys: &BTreeSet<Key>,
        source: &dyn Source,
        fill: &(dyn Fn(Vec<Part>, &Path) -> anyhow::Result<Entries> + Sync),
    ) -> anyhow::Result<Tree> {
        let lock = Lock::load(&self.options.lock_file)?;
        let missing: Vec<&Key> = keys.iter().filter(|k| lock.get(k).is_none()).collect();
        let mut fresh = BTreeMap::new();
        if !missing.is_empty() {
            self.may_pin(&missing)?;
            for pin in parallel(&missing, |key| source.resolve(key))?.into_iter().flatten() {
                fresh.entry(pin.key.clone()).or_insert(pin);
            }
        }
        let pins: Vec<Pinned> =
            keys.iter().filter_map(|k| lock.get(k).or_else(|| fresh.get(k)).cloned()).collect();
        let digest = digest(&pins);
        let root = match self.store.find(&digest)? {
            Found::Whole(root) => root,
            _ => self.make(&digest, &pins, source, fill)?,
        };
        self.record(fresh.values().filter(|pin| lock.get(&pin.key).is_none()))?;
        Ok(Tree { root, digest, files: pins })
    }

    /// The tree of one archive whose hash the caller has.
    pub(super) fn archive(&self, pin: Pinned, url: Url) -> anyhow::Result<Tree> {
        archive_format(&pin.file)?;
        let pins = vec![pin];
        let digest = digest(&pins);
        let root = match self.store.find(&digest)? {
            Found::Whole(root) => root,
            _ => self.make(&digest, &pins, &At { session: self, url }, &|parts, tree| merge(parts, tree))?,
        };
        Ok(Tree { root, digest, files: pins })
    }

    fn may_pin(&self, missing: &[&Key]) -> anyhow::Result<()> {
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let lock = self.options.lock_file.display();
        if self.options.locked {
            return Err(Failure::config(format!(
                "{lock}: does not pin {}, and --locked forbids to add",
                names.join(", ")
            ))
            .hint(match self.records {
                true => "run `nattenc fetch` without --locked and commit the lock file",
                false => "run the same without --locked: the lock pins build.toml's version alone",
            })
            .into());
        }
        if self.options.offline {
            return Err(Failure::config(format!(
                "{lock}: does not pin {}, and --offline forbids to ask",
                names.join(", ")
            ))
            .hint(match self.records {
                true => "run `nattenc fetch` once where the network can be reached",
                false => "run the same without --offline: the lock pins build.toml's version alone",
            })
            .into());
        }
        Ok(())
    }

    fn make(
        &self,
        digest: &str,
        pins: &[Pinned],
        source: &dyn Source,
        fill: &(dyn Fn(Vec<Part>, &Path) -> anyhow::Result<Entries> + Sync),
    ) -> anyhow::Result<PathBuf> {
        let _held = self
            .store
            .lock(digest, || self.progress.note("waiting for another nattenc that fetches the same"))?;
        match self.store.find(digest)? {
            Found::Whole(root) => return Ok(root),
            Found::Damaged(reason) => {
                self.progress.note(&format!("unpacking again, since the store's copy is damaged: {reason}"));
            }
            Found::Absent => {}
        }
        if self.options.offline {
            self.must_be_stored(pins)?;
        }
        self.store.make(digest, |parts, tree| {
            // The largest first, so that no thread is left with it alone at the end.
            let mut numbered: Vec<(usize, &Pinned)> = pins.iter().enumerate().collect();
            numbered.sort_by_key(|(_, pin)| std::cmp::Reverse(pin.size));
            let mut unpacked = parallel(&numbered, |(i, pin)| {
                let blob = self.obtain(pin, source)?;
                Ok((*i, self.unpack(pin, &blob, &parts.join(i.to_string()))?))
            })?;
            unpacked.sort_by_key(|(i, _)| *i);
            fill(unpacked.into_iter().map(|(_, part)| part).collect(), tree)
        })
    }

    fn must_be_stored(&self, pins: &[Pinned]) -> anyhow::Result<()> {
        let absent: Vec<&str> =
            pins.iter().filter(|p| !self.store.blob(&p.sha256).is_file()).map(|p| p.file.as_str()).collect();
        if absent.is_empty() {
            return Ok(());
        }
        Err(Failure::config(format!(
            "--offline, and the store {} lacks:\n  {}",
            self.options.home.display(),
            absent.join("\n  ")
        ))
        .hint("run `nattenc fetch` once where the network can be reached")
        .into())
    }

    fn unpack(&self, pin: &Pinned, blob: &Path, to: &Path) -> anyhow::Result<Part> {
        let (format, top) = match pin.key.kind {
            Kind::Sdist => (Format::TarGz, Top::Keep),
            Kind::Wheel => (Format::Zip, Top::Keep),
            Kind::Redist => (Format::TarXz, Top::Strip),
            Kind::Archive => (archive_format(&pin.file)?, Top::Strip),
        };
        let id = self.progress.begin(&format!("unpack {}", base_name(&pin.file)), None);
        let entries = unpack(&Archive { path: blob, name: &pin.file, format, top }, to);
        self.progress.end(
            id,
            &entries.as_ref().map_or_else(|_| "failed".to_owned(), |e| format!("{} files", e.len())),
        );
        Ok(Part { name: pin.key.name.clone(), at: to.to_path_buf(), entries: entries? })
    }

    /// The verified bytes of a pin, from the store or, if need be, from the network.
    fn obtain(&self, pin: &Pinned, source: &dyn Source) -> anyhow::Result<PathBuf> {
        let blob = self.store.blob(&pin.sha256);
        if self.stored(pin, &blob)? {
            return Ok(blob);
        }
        let _held = self.store.lock(&pin.sha256, || {
            self.progress.note(&format!("waiting for another nattenc that fetches {}", pin.file));
        })?;
        if self.stored(pin, &blob)? {
            return Ok(blob);
        }
        let url = source.locate(pin)?;
        let part = self.store.part(&pin.sha256);
        let resumed = part.is_file();
        let mut found = self.download(pin, &url, &part)?;
        if resumed && found != pin.sha256 {
            // What an earlier run left may be what is wrong: once more, whole.
            fs::remove_file(&part)?;
            found = self.download(pin, &url, &part)?;
        }
        if found != pin.sha256 {
            fs::remove_file(&part)?;
            return Err(mismatch(&pin.file, "the bytes that came are not the expected ones", &pin.sha256, &found, &url)
                .hint(match pin.key.kind {
                    Kind::Archive => "name another file, or correct its sha256 in build.toml".to_owned(),
                    _ => format!(
                        "try again, or check proxy and mirror; if the publisher changed the file: `nattenc fetch --accept {}`",
                        pin.file
                    ),
                })
                .into());
        }
        fs::rename(&part, &blob)?;
        Ok(blob)
    }

    /// Is the blob there and sound? A damaged one is removed, or, offline, the failure.
    fn stored(&self, pin: &Pinned, blob: &Path) -> anyhow::Result<bool> {
        if !blob.is_file() {
            return Ok(false);
        }
        let found = fs::sha256(blob)?;
        if found == pin.sha256 {
            return Ok(true);
        }
        if self.options.offline {
            return Err(Failure::integrity(format!(
                "{}: damaged in the store\n  expected sha256 {}\n  got      sha256 {found}\n  in       {}",
                pin.file,
                pin.sha256,
                blob.display()
            ))
            .hint("run `nattenc fetch` where the network can be reached: it replaces the file")
            .into());
        }
        self.progress.note(&format!("{}: damaged in the store, fetched again", pin.file));
        fs::remove_file(blob)?;
        Ok(false)
    }

    /// Downloads to `part`; the SHA-256 of what came. Without a size in the pin the server's word counts.
    fn download(&self, pin: &Pinned, url: &Url, part: &Path) -> anyhow::Result<String> {
        fs::create_dir(&self.store.blobs())?;
        let id = self.progress.begin(base_name(&pin.file), pin.size);
        let outcome =
            self.client()?.client.download(url, part, pin.size, &|bytes| self.progress.advance(id, bytes));
        self.progress.end(id, if matches!(outcome, Ok(Some(()))) { "fetched" } else { "failed" });
        outcome?.ok_or_else(|| gone(&pin.file, url))?;
        fs::sha256(part)
    }

    /// Adds pins to the lock file and says so. What another run pinned meanwhile must agree.
    fn record<'p>(&self, fresh: impl Iterator<Item = &'p Pinned>) -> anyhow::Result<()> {
        let fresh: Vec<&Pinned> = fresh.collect();
        if fresh.is_empty() || !self.records {
            return Ok(());
        }
        let path = &self.options.lock_file;
        let _held = self.store.lock(&lock_name(path)?, || {})?;
        let mut lock = Lock::load(path)?;
        for pin in &fresh {
            if let Some(old) = lock.add(pin) {
                return Err(Failure::integrity(format!(
                    "{}: pinned differently by another run meanwhile\n  expected sha256 {} ({})\n  got      sha256 {} ({})",
                    pin.key, old.sha256, old.file, pin.sha256, pin.file
                ))
                .hint("run `nattenc fetch` again")
                .into());
            }
        }
        lock.save(path)?;
        for pin in fresh {
            self.progress.note(&format!("pinned {} sha256:{}", pin.file, pin.sha256));
        }
        Ok(())
    }

    /// Client, indexes and links, pip asked on the first call.
    fn client(&self) -> anyhow::Result<Arc<Reach>> {
        let mut reach = held(&self.reach);
        if let Some(reach) = &*reach {
            return Ok(Arc::clone(reach));
        }
        let made = Arc::new(Reach::new(ask_once(self.options.python.as_deref())?)?);
        *reach = Some(Arc::clone(&made));
        Ok(made)
    }

    /// As [`Session::client`], for sources that need no index: without a pip its settings are left out.
    pub(super) fn without_index(&self) -> anyhow::Result<()> {
        match self.client() {
            Err(e) if class(&e) == Class::Toolchain => {
                let sources =
                    Sources { find_links: Vec::new(), indexes: Vec::new(), settings: Settings::default() };
                *held(&self.reach) = Some(Arc::new(Reach::new(sources)?));
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// A page of a source, or `None` where the server has none.
    pub(super) fn page(&self, url: &Url, accept: &str) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.client()?.client.page(url, accept)?.map(|page| page.bytes))
    }

    /// Everything that pip's sources offer of a project, in their order.
    fn listing(&self, project: &str) -> anyhow::Result<Arc<Vec<Candidate>>> {
        let name = index::normalize(project);
        if let Some(known) = held(&self.listings).get(&name) {
            return Ok(Arc::clone(known));
        }
        let reach = self.client()?;
        let mut candidates = Vec::new();
        let mut pages = Vec::new();
        for link in &reach.find_links {
            match link {
                FindLinks::Directory(directory) => {
                    for path in fs::list(directory)?.into_iter().filter(|p| p.is_file()) {
                        let url = Url::of_file(&path);
                        let (file, size) = (url.file_name(), Some(fs::size(&path)?));
                        candidates.push(Candidate { file, url, sha256: None, size, yanked: None });
                    }
                }
                FindLinks::Page(url) => pages.push(url.clone()),
            }
        }
        pages.extend(reach.indexes.iter().map(|base| base.below(&format!("{name}/"))));
        for url in pages {
            if let Some(page) = reach.client.page(&url, index::ACCEPT)? {
                candidates.extend(index::parse(&page.url, &page.bytes)?);
            }
        }
        let candidates = Arc::new(candidates);
        held(&self.listings).insert(name, Arc::clone(&candidates));
        Ok(candidates)
    }

    /// The hash that is known of a candidate without downloading it.
    fn hash_of(candidate: &Candidate) -> anyhow::Result<Option<String>> {
        match (&candidate.sha256, candidate.url.file_path()) {
            (Some(hash), _) => Ok(Some(hash.clone())),
            (None, Some(path)) if path.is_file() => Ok(Some(fs::sha256(&path)?)),
            _ => Ok(None),
        }
    }

    /// The pin of the first candidate with that file name. `needed`: where the index states no hash, the
    /// file is downloaded for it; else there is no pin then.
    fn pin(&self, key: Key, file: &str, needed: bool) -> anyhow::Result<Option<Pinned>> {
        let listing = self.listing(&key.name)?;
        let Some(candidate) = listing.iter().find(|c| c.file == file) else { return Ok(None) };
        if let Some(reason) = &candidate.yanked {
            let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            self.progress.note(&format!("{file} was withdrawn by its publisher{reason}; pinned because this exact version is asked for"));
        }
        let client = &self.client()?.client;
        let (sha256, size) = match Self::hash_of(candidate)? {
            Some(hash) => {
                (hash, if candidate.size.is_some() { candidate.size } else { client.size(&candidate.url)? })
            }
            None if !needed => {
                self.progress.note(&format!("{file}: not pinned, since the index states no SHA-256"));
                return Ok(None);
            }
            None => {
                let id = self.progress.begin(file, candidate.size);
                fs::create_dir(&self.store.blobs())?;
                let held = self.store.lock(&fs::sha256_of(file.as_bytes()), || {})?;
                let part = self.store.blobs().join(format!("{}.new", fs::sha256_of(file.as_bytes())));
                fs::remove_file(&part)?;
                let outcome =
                    client.download(&candidate.url, &part, candidate.size, &|n| self.progress.advance(id, n));
                self.progress.end(id, if matches!(outcome, Ok(Some(()))) { "fetched" } else { "failed" });
                outcome?.ok_or_else(|| gone(file, &candidate.url))?;
                let (hash, size) = (fs::sha256(&part)?, fs::size(&part)?);
                fs::rename(&part, &self.store.blob(&hash))?;
                drop(held);
                (hash, Some(size))
            }
        };
        Ok(Some(Pinned { key, file: file.to_owned(), size, sha256 }))
    }
}

/// What pip says, asked once in this process: starting python takes a second.
fn ask_once(python: Option<&Path>) -> anyhow::Result<Sources> {
    static ANSWERS: Mutex<BTreeMap<Option<PathBuf>, Sources>> = Mutex::new(BTreeMap::new());
    let mut answers = held(&ANSWERS);
    let python = python.map(Path::to_path_buf);
    if let Some(known) = answers.get(&python) {
        return Ok(known.clone());
    }
    let sources = pip::ask(python.as_deref())?;
    answers.insert(python, sources.clone());
    Ok(sources)
}

impl Reach {
    fn new(sources: Sources) -> anyhow::Result<Reach> {
        let Sources { find_links, indexes, settings } = sources;
        Ok(Reach { client: Client::new(settings)?, find_links, indexes })
    }
}

/// How an archive is packed, by its name.
fn archive_format(file: &str) -> anyhow::Result<Format> {
    let known = [
        (".tar.gz", Format::TarGz),
        (".tgz", Format::TarGz),
        (".tar.xz", Format::TarXz),
        (".zip", Format::Zip),
    ];
    let found = known.into_iter().find(|(ending, _)| file.ends_with(ending));
    found.map(|(_, format)| format).ok_or_else(|| {
        Failure::config(format!("{file}: its name does not say what kind of archive it is"))
            .hint("name a .tar.gz, .tar.xz or .zip file")
            .into()
    })
}

/// One place, for a pin that needs no index.
struct At<'s, 'a> {
    session: &'s Session<'a>,
    url: Url,
}

impl Source for At<'_, '_> {
    fn resolve(&self, _key: &Key) -> anyhow::Result<Vec<Pinned>> {
        Ok(Vec::new())
    }

    fn locate(&self, _pin: &Pinned) -> anyhow::Result<Url> {
        self.session.without_index()?;
        Ok(self.url.clone())
    }
}

/// Sdists and wheels, from where pip gets them.
pub(super) struct IndexSource<'s, 'a>(pub(super) &'s Session<'a>);

impl Source for IndexSource<'_, '_> {
    fn resolve(&self, key: &Key) -> anyhow::Result<Vec<Pinned>> {
        let listing = self.0.listing(&key.name)?;
        let files: BTreeSet<&str> = listing.iter().map(|c| c.file.as_str()).collect();
        let mut pins = Vec::new();
        if key.kind == Kind::Sdist {
            let file = index::choose_sdist(&files, &key.name, &key.version)?;
            pins.extend(self.0.pin(key.clone(), file, true)?);
            return Ok(pins);
        }
        for target in Target::ALL {
            let needed = key.platform == target.to_string();
            let file = match index::choose_wheel(&files, &key.name, &key.version, target) {
                Err(e) if needed => return Err(e),
                Err(_) => continue,
                Ok(file) => file,
            };
            let key = Key { platform: target.to_string(), ..key.clone() };
            pins.extend(self.0.pin(key, file, needed)?);
        }
        Ok(pins)
    }

    fn locate(&self, pin: &Pinned) -> anyhow::Result<Url> {
        let listing = self.0.listing(&pin.key.name)?;
        let mut other = None;
        for candidate in listing.iter().filter(|c| c.file == pin.file) {
            match Session::hash_of(candidate)? {
                Some(hash) if hash != pin.sha256 => other = other.or(Some((hash, &candidate.url))),
                _ => return Ok(candidate.url.clone()),
            }
        }
        match other {
            Some((hash, url)) => Err(source_differs(pin, &hash, url).into()),
            None => Err(Failure::config(format!("{}: pinned, but no longer in pip's index", pin.file))
                .hint("use an index that has it (`python3 -m pip config list` shows pip's), or name another version")
                .into()),
        }
    }
}

/// The integrity failure of a source that states another hash than the pinned one.
pub(super) fn source_differs(pin: &Pinned, found: &str, url: &Url) -> Failure {
    mismatch(&pin.file, "its source has another file of that name now", &pin.sha256, found, url)
        .hint(format!("if that change is right: `nattenc fetch --accept {}`", pin.file))
}

fn mismatch(file: &str, what: &str, expected: &str, found: &str, url: &Url) -> Failure {
    Failure::integrity(format!(
        "{file}: {what}\n  expected sha256 {expected}\n  got      sha256 {found}\n  from     {url}"
    ))
}

fn gone(file: &str, url: &Url) -> anyhow::Error {
    Failure::config(format!("{file}: listed, but the server has no such file\n  at {url}"))
        .hint("try again later, or use another index")
        .into()
}

fn base_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// What the content of a tree follows from, and nothing else.
fn digest(pins: &[Pinned]) -> String {
    let lines = pins.iter().map(|pin| format!("{:?} {} {}\n", pin.key.kind, pin.key.name, pin.sha256));
    fs::sha256_of(format!("nattenc tree {LAYOUT}\n{}", lines.collect::<String>()).as_bytes())
}

/// The name of the store's lock for changes of one lock file.
pub(super) fn lock_name(path: &Path) -> anyhow::Result<String> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = fs::real_path(parent)?.join(path.file_name().unwrap_or_default());
    Ok(format!("lock-file-{}", fs::sha256_of(whole.display().to_string().as_bytes())))
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Results in the items' order; after a failure no further item is begun. The first failure in the
/// items' order is returned.
fn parallel<T: Sync, R: Send>(
    items: &[T],
    act: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let results: Mutex<BTreeMap<usize, anyhow::Result<R>>> = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(items.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = act(item);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    held(&results).insert(i, result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}
