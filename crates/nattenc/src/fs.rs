//! The file functions of nattenc, whose errors name the path. The only user of `std::fs`.
#![expect(clippy::disallowed_methods, reason = "the one door to the file system")]

use crate::bounded::Pulse;
use crate::failure::{Class, Failure};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> anyhow::Error {
    let (class, hint) = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (Class::Resource, "free space on that file system, or choose another directory".to_owned())
        }
        ErrorKind::PermissionDenied if matches!(verb, "read" | "list" | "stat" | "look at" | "resolve") => {
            (Class::Config, format!("make {} readable", path.display()))
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (Class::Config, format!("make {} writable, or choose another directory", path.display()))
        }
        _ => (Class::Config, format!("check that {} exists and can be used", path.display())),
    };
    Failure::new(class, format!("{}: cannot {verb}: {error}", path.display())).hint(hint).into()
}

/// The whole file.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| failed("read", path, &e))
}

/// The whole file as UTF-8 text.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|e| failed("read", path, &e))
}

/// The whole file, or `None` where there is none.
pub fn read_if_exists(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(failed("read", path, &e)),
    }
}

/// An open file to read from.
pub fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).map_err(|e| failed("open", path, &e))
}

/// An open file to read from, or `None` where there is none.
pub fn open_if_exists(path: &Path) -> anyhow::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(failed("open", path, &e)),
    }
}

/// A new or emptied file to write to.
pub fn create(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    File::create(path).map_err(|e| failed("create", path, &e))
}

/// A file opened for appending, created where there is none.
pub fn open_append(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    File::options().create(true).append(true).open(path).map_err(|e| failed("open", path, &e))
}

/// The directory and all above it.
pub fn create_dir(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).map_err(|e| failed("create directory", path, &e))
}

/// Writes `bytes` whole or not at all: a temporary file beside `path`, synced, then renamed.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_with(path, |file| file.write_all(bytes).map(|()| true)).map(|_| ())
}

/// As [`write()`], what `fill` writes; nothing where `fill` says that it is not to be kept. Says whether it was.
pub fn write_with(
    path: &Path,
    fill: impl FnOnce(&mut File) -> std::io::Result<bool>,
) -> anyhow::Result<bool> {
    let Some(file) = stage(path, fill)? else { return Ok(false) };
    file.persist(path).map_err(|e| failed("write", path, &e.error))?;
    Ok(true)
}

/// Writes `bytes` only where the file does not hold them already; says whether it wrote.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> anyhow::Result<bool> {
    if read_if_exists(path)?.is_some_and(|old| old == bytes) {
        return Ok(false);
    }
    write(path, bytes)?;
    Ok(true)
}

/// Writes those of the files that differ from what is there: all are written beside their places first and
/// then renamed in this order, so that little can come between. Returns those that were written. A file keeps
/// its permissions; one that nobody may write is refused before anything is written.
pub fn write_together(files: &[(PathBuf, Vec<u8>)]) -> anyhow::Result<Vec<PathBuf>> {
    use std::os::unix::fs::PermissionsExt;
    let mut staged = Vec::new();
    for (path, bytes) in files {
        let old = read_if_exists(path)?;
        if old.as_ref() == Some(bytes) {
            continue;
        }
        let Some(file) = stage(path, |file| file.write_all(bytes).map(|()| true))? else { continue };
        if old.is_some() {
            let mode = std::fs::metadata(path).map_err(|e| failed("read", path, &e))?.permissions().mode();
            if mode & 0o222 == 0 {
                return Err(Failure::config(format!("{}: is read-only", path.display()))
                    .hint(format!("make it writable, as with chmod u+w {}", path.display()))
                    .into());
            }
            set_mode(file.path(), mode & 0o777)?;
        }
        staged.push((file, path));
    }
    let mut written = Vec::new();
    for (file, path) in staged {
        file.persist(path).map_err(|e| failed("write", path, &e.error))?;
        written.push(path.clone());
    }
    Ok(written)
}

/// A synced temporary file beside `path` of what `fill` writes; none where `fill` says so.
fn stage(
    path: &Path,
    fill: impl FnOnce(&mut File) -> std::io::Result<bool>,
) -> anyhow::Result<Option<tempfile::NamedTempFile>> {
    let parent = path.parent().unwrap_or(Path::new("."));
    create_dir(parent)?;
    let mut file = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(parent)
        .map_err(|e| failed("write in", parent, &e))?;
    if !fill(file.as_file_mut()).map_err(|e| failed("write", path, &e))? {
        return Ok(None);
    }
    file.as_file().sync_all().map_err(|e| failed("write", path, &e))?;
    set_mode(file.path(), 0o644)?;
    Ok(Some(file))
}

/// How much of a file is held in memory at once.
pub const CHUNK: usize = 1 << 16;

/// A file without a name, on the disk of `dir`: it is gone with the last that has it open.
pub fn nameless(dir: &Path) -> anyhow::Result<File> {
    create_dir(dir)?;
    tempfile::tempfile_in(dir).map_err(|e| failed("write in", dir, &e))
}

/// Appends all of `from`, from its beginning, to `to`, a chunk at a time; `pulse` beats for each.
pub fn append(from: &File, to: &mut File, pulse: &Pulse) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        match from.read_at(&mut buffer, at)? {
            0 => return Ok(()),
            n => {
                to.write_all(&buffer[..n])?;
                at += n as u64;
                pulse.beat();
            }
        }
    }
}

/// The first bytes of a file, at most `count`; none where it is not there.
pub fn beginning(path: &Path, count: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(file) = open_if_exists(path)? {
        file.take(count).read_to_end(&mut bytes).map_err(|e| failed("read", path, &e))?;
    }
    Ok(bytes)
}

/// Sets the permission bits.
pub fn set_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|e| failed("set permissions of", path, &e))
}

/// Renames within one file system.
pub fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::rename(from, to).map_err(|e| failed(&format!("rename to {}", to.display()), from, &e))
}

/// Puts directory `new` in the place of `at` by one rename; what was there lies at `new` afterwards, where
/// there was something. On a file system that cannot exchange two names, `at` is `aside` for a moment.
pub fn exchange(new: &Path, at: &Path, aside: &Path) -> anyhow::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    if !at.exists() {
        return rename(new, at);
    }
    match renameat_with(CWD, new, CWD, at, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => {
            rename(at, aside)?;
            rename(new, at)?;
            rename(aside, new)
        }
        Err(e) => Err(failed(&format!("exchange with {}", new.display()), at, &e.into())),
    }
}

/// Copies a file's bytes and permissions.
pub fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(parent) = to.parent() {
        create_dir(parent)?;
    }
    std::fs::copy(from, to).map_err(|e| failed(&format!("copy to {}", to.display()), from, &e))?;
    Ok(())
}

/// Hard link where the file system allows it, else a copy.
pub fn link_or_copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(parent) = to.parent() {
        create_dir(parent)?;
    }
    if std::fs::hard_link(from, to).is_err() {
        remove_file(to)?;
        copy(from, to)?;
    }
    Ok(())
}

/// A symbolic link at `at` that points to `target`; replaces one that points elsewhere. Safe beside
/// others that make the same link: there is no moment without it.
pub fn symlink(target: &Path, at: &Path) -> anyhow::Result<()> {
    if std::fs::read_link(at).is_ok_and(|t| t == target) {
        return Ok(());
    }
    let parent = at.parent().unwrap_or(Path::new("."));
    create_dir(parent)?;
    let dir = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempdir_in(parent)
        .map_err(|e| failed("write in", parent, &e))?;
    let temporary = dir.path().join("link");
    std::os::unix::fs::symlink(target, &temporary).map_err(|e| failed("create link", at, &e))?;
    rename(&temporary, at)
}

/// Removes a file; none there is success.
pub fn remove_file(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}

/// Removes a directory tree; none there is success.
pub fn remove_dir(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}

/// Takes a directory tree out of the way at once, and removes it as far as that can be done now: processes that
/// were started in it may still run, and write there, but no longer at `path`. None there is success.
pub fn discard(path: &Path) -> anyhow::Result<()> {
    let aside = |number: usize| path.with_extension(format!("gone-{number}"));
    let free = (0..).find(|number| !aside(*number).exists()).unwrap_or_default();
    match std::fs::rename(path, aside(free)) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed("rename", path, &e)),
        _ => {}
    }
    // Those that could not be removed last time too.
    (0..=free).for_each(|number| {
        let _ = std::fs::remove_dir_all(aside(number));
    });
    Ok(())
}

/// The entries of a directory, sorted by name.
pub fn list(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).map_err(|e| failed("list", path, &e))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| failed("list", path, &e))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The size of a file in bytes.
pub fn size(path: &Path) -> anyhow::Result<u64> {
    Ok(std::fs::metadata(path).map_err(|e| failed("stat", path, &e))?.len())
}

/// What identifies a file's bytes without reading them, for memoised digests only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime: i128,
    /// Change time, nanoseconds since the epoch: no tool sets it back.
    pub ctime: i128,
    /// Inode number.
    pub inode: u64,
}

/// The stamp of the file that `path` leads to.
pub fn stamp(path: &Path) -> anyhow::Result<Stamp> {
    std::fs::metadata(path).map(|m| stamp_of(&m)).map_err(|e| failed("stat", path, &e))
}

fn stamp_of(m: &std::fs::Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let time = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
    Stamp {
        size: m.len(),
        mtime: time(m.mtime(), m.mtime_nsec()),
        ctime: time(m.ctime(), m.ctime_nsec()),
        inode: m.ino(),
    }
}

/// As [`stamp`]; `None` where there is nothing.
pub fn stamp_if_exists(path: &Path) -> anyhow::Result<Option<Stamp>> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("stat", path, &e)),
        Ok(m) => Ok(Some(stamp_of(&m))),
    }
}

/// What lies at `path` itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Absent,
    /// A directory, or a link that leads to one.
    Directory,
    /// A regular file.
    File,
    /// Anything else: a link that leads to no directory, a pipe, a device.
    Other,
}

/// What lies at `path`. A link that leads nowhere is something.
pub fn entry(path: &Path) -> anyhow::Result<Entry> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Entry::Absent),
        Err(e) => Err(failed("look at", path, &e)),
        Ok(m) if m.is_file() => Ok(Entry::File),
        Ok(_) if std::fs::metadata(path).is_ok_and(|m| m.is_dir()) => Ok(Entry::Directory),
        Ok(_) => Ok(Entry::Other),
    }
}

/// Sets the modification time: a test's way to make a file old.
#[cfg(test)]
pub fn set_modified(path: &Path, time: std::time::SystemTime) -> anyhow::Result<()> {
    open(path)?.set_modified(time).map_err(|e| failed("set the time of", path, &e))
}

/// Makes a pipe that nobody writes to: a test's way to have what never answers who opens it.
#[cfg(test)]
pub fn pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    create_dir(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Whether there is a file; notes in its modification time that it was of use, where the last note is older
/// than `fine`. Where that cannot be noted the file only seems older than it is.
pub fn note_use(path: &Path, fine: std::time::Duration) -> bool {
    let Some(metadata) = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file) else {
        return false;
    };
    if !metadata.modified().is_ok_and(|then| then.elapsed().is_ok_and(|age| age < fine)) {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
        let [last_access, last_modification] =
            [UTIME_OMIT, UTIME_NOW].map(|what| Timespec { tv_sec: 0, tv_nsec: what });
        let _ = utimensat(CWD, path, &Timestamps { last_access, last_modification }, AtFlags::empty());
    }
    true
}

/// Removes a directory that is empty; one that is not, or is not there, is left as it is.
pub fn remove_empty_dir(path: &Path) {
    let _ = std::fs::remove_dir(path);
}

/// The path with every symbolic link resolved.
pub fn real_path(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| failed("resolve", path, &e))
}

/// The SHA-256 of a file, lowercase hex.
pub fn sha256(path: &Path) -> anyhow::Result<String> {
    match pass(&mut open(path)?, &mut std::io::sink()) {
        Ok((digest, _)) => Ok(digest),
        Err(Side::Reading(e) | Side::Writing(e)) => Err(failed("read", path, &e)),
    }
}

/// The side on which [`pass`] failed.
#[derive(Debug)]
pub enum Side {
    /// What is read.
    Reading(std::io::Error),
    /// What is written.
    Writing(std::io::Error),
}

/// Writes all of `from` to `to`, a chunk at a time; the SHA-256 of it, lowercase hex, and its size.
pub fn pass(from: &mut dyn Read, to: &mut dyn Write) -> Result<(String, u64), Side> {
    use sha2::Digest;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut size = 0;
    loop {
        match from.read(&mut buffer).map_err(Side::Reading)? {
            0 => return Ok((hex(&hasher.finalize()), size)),
            n => {
                hasher.update(&buffer[..n]);
                to.write_all(&buffer[..n]).map_err(Side::Writing)?;
                size += n as u64;
            }
        }
    }
}

/// The SHA-256 of bytes, lowercase hex.
pub fn sha256_of(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(bytes))
}

/// Bytes as lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// Appends bytes to an open file; `path` is for the message.
pub fn write_all(file: &mut File, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    file.write_all(bytes).map_err(|e| failed("write", path, &e))
}

/// Waits until an open file's bytes are on the disk.
pub fn sync(file: &File, path: &Path) -> anyhow::Result<()> {
    file.sync_all().map_err(|e| failed("write", path, &e))
}

/// A new file to write to; one that is there is a failure.
pub fn create_new(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    File::create_new(path).map_err(|e| failed("create", path, &e))
}

/// An exclusive lock that other processes respect; held until the value is dropped.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "closing the file gives the lock up")] File);

/// The lock on `path` (created where there is none), or `None` where someone holds it.
pub fn try_lock(path: &Path) -> anyhow::Result<Option<FileLock>> {
    let file = open_append(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(FileLock(file))),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(e)) => Err(failed("lock", path, &e)),
    }
}

/// A share of the lock on `path` (created where there is none), or `None` where someone holds all of it.
pub fn try_lock_shared(path: &Path) -> anyhow::Result<Option<FileLock>> {
    let file = open_append(path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(FileLock(file))),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(e)) => Err(failed("lock", path, &e)),
    }
}

/// The lock on `path`, waited for at most for `limit`, or `None`.
pub fn lock_within(path: &Path, limit: std::time::Duration) -> anyhow::Result<Option<FileLock>> {
    let begin = std::time::Instant::now();
    loop {
        let lock = try_lock(path)?;
        if lock.is_some() || begin.elapsed() >= limit {
            return Ok(lock);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The lock on `path`, waited for.
pub fn lock(path: &Path) -> anyhow::Result<FileLock> {
    let file = open_append(path)?;
    file.lock().map_err(|e| failed("lock", path, &e))?;
    Ok(FileLock(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_are_replaced_keep_their_permissions_and_read_only_ones_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        write(&a, b"old").unwrap();
        write(&b, b"old").unwrap();
        set_mode(&a, 0o640).unwrap();
        set_mode(&b, 0o444).unwrap();
        let both = [(a.clone(), b"new".to_vec()), (b.clone(), b"new".to_vec())];
        let error = write_together(&both).unwrap_err();
        assert_eq!(crate::failure::class(&error), Class::Config);
        assert_eq!((read(&a).unwrap(), list(dir.path()).unwrap().len()), (b"old".to_vec(), 2));
        set_mode(&b, 0o600).unwrap();
        assert_eq!(write_together(&both).unwrap(), [a.clone(), b.clone()]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&a), mode(&b), read(&b).unwrap()), (0o640, 0o600, b"new".to_vec()));
    }

    #[test]
    fn discarded_directory_is_out_of_the_way_of_those_who_still_write_in_it() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("scratch");
        assert!(discard(&dir).is_ok());
        write(&dir.join("unit/x"), b"old").unwrap();
        write(&home.path().join("scratch.gone-0/left"), b"older").unwrap();
        let open = create(&dir.join("unit/y")).unwrap();
        discard(&dir).unwrap();
        write(&dir.join("unit/y"), b"new").unwrap();
        write_all(&mut { open }, &dir, b"late").unwrap();
        assert_eq!(read(&dir.join("unit/y")).unwrap(), b"new");
        assert_eq!(list(home.path()).unwrap(), [dir]);
    }
}
