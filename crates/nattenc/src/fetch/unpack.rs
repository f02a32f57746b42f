//! Unpacks wheels and source and component archives into a directory, and refuses everything that
//! would leave it: absolute paths, `..`, links out, writing through links, devices.

use crate::failure::Failure;
use crate::fs;
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

/// What lies at one path of an unpacked tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Entry {
    /// A file.
    File {
        /// Lowercase hex.
        sha256: String,
        /// Bytes.
        size: u64,
        /// Has mode 0755, else 0644.
        executable: bool,
    },
    /// A symbolic link.
    Link {
        /// Where it points, relative.
        target: String,
    },
}

/// Path with `/` → what lies there. Directories are implied.
pub(super) type Entries = BTreeMap<String, Entry>;

/// The archive formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// zip, as wheels are.
    Zip,
    /// tar.gz
    TarGz,
    /// tar.xz
    TarXz,
}

/// What becomes of an archive's top directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Top {
    /// Everything is unpacked as it is named.
    Keep,
    /// Everything must lie in one directory, whose name is dropped.
    Strip,
}

/// One archive to unpack.
pub(super) struct Archive<'a> {
    /// Where it is.
    pub(super) path: &'a Path,
    /// Its name, for messages.
    pub(super) name: &'a str,
    /// Its format.
    pub(super) format: Format,
    /// What becomes of its top directory.
    pub(super) top: Top,
}

/// Unpacks into `to`, which must be empty or not there.
pub(super) fn unpack(archive: &Archive<'_>, to: &Path) -> anyhow::Result<Entries> {
    let file = BufReader::with_capacity(1 << 17, fs::open(archive.path)?);
    let mut sink = Sink { archive, to, entries: Entries::new(), top: None, buffer: vec![0; 1 << 17] };
    match archive.format {
        Format::Zip => unpack_zip(file, &mut sink)?,
        Format::TarGz => unpack_tar(flate2::bufread::MultiGzDecoder::new(file), &mut sink)?,
        Format::TarXz => unpack_tar(xz2::bufread::XzDecoder::new_multi_decoder(file), &mut sink)?,
    }
    sink.finish()
}

fn broken(archive: &Archive<'_>, what: impl std::fmt::Display) -> anyhow::Error {
    Failure::integrity(format!("{}: {what}", archive.name))
        .hint("do not use this archive; report it to whoever published it")
        .into()
}

struct Sink<'a> {
    archive: &'a Archive<'a>,
    to: &'a Path,
    entries: Entries,
    /// The top directory that is dropped, once known.
    top: Option<String>,
    buffer: Vec<u8>,
}

impl Sink<'_> {
    /// The path in the tree that an archive's name means; `None` for the top directory itself.
    fn place(&mut self, name: &str) -> anyhow::Result<Option<String>> {
        let bad = |why: &str| broken(self.archive, format!("holds {name:?}, {why}"));
        if name.starts_with('/') {
            return Err(bad("an absolute path"));
        }
        if name.contains(['\\', '\0']) {
            return Err(bad("which is no portable path"));
        }
        let mut parts = Vec::new();
        for part in name.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(bad("which leads out of the directory")),
                part => parts.push(part),
            }
        }
        if self.archive.top == Top::Strip {
            let Some((first, rest)) = parts.split_first() else { return Ok(None) };
            let top = self.top.get_or_insert_with(|| (*first).to_owned());
            if top.as_str() != *first {
                let top = top.clone();
                return Err(broken(self.archive, format!("has two top directories, {top:?} and {first:?}")));
            }
            parts = rest.to_vec();
        }
        Ok((!parts.is_empty()).then(|| parts.join("/")))
    }

    fn add(&mut self, path: String, entry: Entry) -> anyhow::Result<()> {
        if self.entries.contains_key(&path) {
            return Err(broken(self.archive, format!("holds {path:?} twice")));
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    fn file(&mut self, name: &str, executable: bool, bytes: &mut dyn Read) -> anyhow::Result<()> {
        let Some(path) = self.place(name)? else {
            return Err(broken(
                self.archive,
                format!("{name:?} is a file where the top directory should be"),
            ));
        };
        let at = self.to.join(&path);
        let mut file = fs::create_new(&at).map_err(|e| {
            if self.entries.contains_key(&path) {
                broken(self.archive, format!("holds {path:?} twice"))
            } else {
                e
            }
        })?;
        let mut hasher = sha2::Sha256::new();
        let mut size = 0;
        loop {
            let n = bytes.read(&mut self.buffer).map_err(|e| broken(self.archive, format!("{path}: {e}")))?;
            if n == 0 {
                break;
            }
            hasher.update(&self.buffer[..n]);
            fs::write_all(&mut file, &at, &self.buffer[..n])?;
            size += n as u64;
        }
        fs::set_mode(&at, mode(executable))?;
        self.add(path, Entry::File { sha256: fs::hex(&hasher.finalize()), size, executable })
    }

    /// Links are noted and made at the end: no file can be written through one.
    fn link(&mut self, name: &str, target: &str) -> anyhow::Result<()> {
        let Some(path) = self.place(name)? else {
            return Err(broken(
                self.archive,
                format!("{name:?} is a link where the top directory should be"),
            ));
        };
        if !stays_inside(&path, target) {
            return Err(broken(
                self.archive,
                format!("holds the link {path:?} to {target:?}, which leads out of the directory"),
            ));
        }
        self.add(path, Entry::Link { target: target.to_owned() })
    }

    /// A second name of a file that was unpacked before.
    fn hard_link(&mut self, name: &str, target: &str) -> anyhow::Result<()> {
        let (path, target) = (self.place(name)?, self.place(target)?);
        let (Some(path), Some(target)) = (path, target) else {
            return Err(broken(
                self.archive,
                format!("{name:?} is a link where the top directory should be"),
            ));
        };
        match self.entries.get(&target).cloned() {
            Some(entry @ Entry::File { .. }) => {
                if !self.entries.contains_key(&path) {
                    fs::copy(&self.to.join(&target), &self.to.join(&path))?;
                }
                self.add(path, entry)
            }
            _ => Err(broken(
                self.archive,
                format!("{path:?} is a link to {target:?}, which is no file before it"),
            )),
        }
    }

    fn finish(self) -> anyhow::Result<Entries> {
        if let Some(path) = through_file_or_link(&self.entries) {
            return Err(broken(self.archive, format!("holds {path:?} below something that is no directory")));
        }
        for (path, entry) in &self.entries {
            if let Entry::Link { target } = entry {
                fs::symlink(Path::new(target), &self.to.join(path))?;
            }
        }
        Ok(self.entries)
    }
}

fn mode(executable: bool) -> u32 {
    if executable { 0o755 } else { 0o644 }
}

/// Does a link at `path` stay in the tree? `..` counts only at the start of the target: behind the name
/// of another link it would mean something that cannot be told from the text.
fn stays_inside(path: &str, target: &str) -> bool {
    let depth = path.split('/').count() - 1;
    let mut ups = 0;
    let mut names = 0;
    if target.is_empty() || target.starts_with('/') || target.contains(['\\', '\0']) {
        return false;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if names > 0 => return false,
            ".." => ups += 1,
            _ => names += 1,
        }
    }
    ups <= depth
}

/// A path that has a file or a link above it.
fn through_file_or_link(entries: &Entries) -> Option<&str> {
    entries
        .keys()
        .map(String::as_str)
        .find(|path| path.match_indices('/').any(|(slash, _)| entries.contains_key(&path[..slash])))
}

fn unpack_zip(file: impl Read + Seek, sink: &mut Sink<'_>) -> anyhow::Result<()> {
    let archive = sink.archive;
    let mut zip =
        zip::ZipArchive::new(file).map_err(|e| broken(archive, format!("not a usable zip archive: {e}")))?;
    for i in 0..zip.len() {
        let mut entry =
            zip.by_index(i).map_err(|e| broken(archive, format!("not a usable zip archive: {e}")))?;
        let name = entry.name().to_owned();
        if entry.is_dir() {
            sink.place(&name)?;
        } else if entry.is_symlink() {
            return Err(broken(archive, format!("holds the link {name:?}, and wheels have none")));
        } else {
            let executable = entry.unix_mode().is_some_and(|m| m & 0o111 != 0);
            sink.file(&name, executable, &mut entry)?;
        }
    }
    Ok(())
}

fn unpack_tar(stream: impl Read, sink: &mut Sink<'_>) -> anyhow::Result<()> {
    let archive = sink.archive;
    let unusable = |e: std::io::Error| broken(archive, format!("not a usable tar archive: {e}"));
    let mut tar = tar::Archive::new(stream);
    let utf8 = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|_| {
            broken(
                archive,
                format!("holds the name {:?}, which is not UTF-8", String::from_utf8_lossy(bytes)),
            )
        })
    };
    for entry in tar.entries().map_err(unusable)? {
        let mut entry = entry.map_err(unusable)?;
        let name = utf8(&entry.path_bytes())?;
        let target = entry.link_name_bytes().map(|b| utf8(&b)).transpose()?.unwrap_or_default();
        let kind = entry.header().entry_type();
        match kind {
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                let executable = entry.header().mode().map_err(unusable)? & 0o111 != 0;
                sink.file(&name, executable, &mut entry)?;
            }
            tar::EntryType::Directory => {
                sink.place(&name)?;
            }
            tar::EntryType::Symlink => sink.link(&name, &target)?,
            tar::EntryType::Link => sink.hard_link(&name, &target)?,
            tar::EntryType::XGlobalHeader => {}
            other => return Err(broken(archive, format!("holds {name:?}, of the type {other:?}"))),
        }
    }
    Ok(())
}

/// One unpacked archive of those that make a tree.
pub(super) struct Part {
    /// The archive's name, for messages.
    pub(super) name: String,
    /// Where it was unpacked.
    pub(super) at: PathBuf,
    /// What it holds.
    pub(super) entries: Entries,
}

/// Moves the parts into one tree. What two of them hold must be equal.
pub(super) fn merge(parts: Vec<Part>, tree: &Path) -> anyhow::Result<Entries> {
    let mut merged = Entries::new();
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        for (path, entry) in &part.entries {
            if let Some(other) = owners.get(path).filter(|_| merged.get(path) != Some(entry)) {
                return Err(Failure::integrity(format!(
                    "{path}: {} and {} hold different files of that name",
                    parts[*other].name, part.name
                ))
                .hint("name versions of one release")
                .into());
            }
            owners.entry(path.clone()).or_insert(i);
            merged.insert(path.clone(), entry.clone());
        }
    }
    if let Some(path) = through_file_or_link(&merged) {
        return Err(Failure::integrity(format!(
            "{path}: one archive has a directory where another has a file"
        ))
        .hint("name versions of one release")
        .into());
    }
    fs::create_dir(tree)?;
    for (path, owner) in &owners {
        let to = tree.join(path);
        if let Some(parent) = to.parent() {
            fs::create_dir(parent)?;
        }
        fs::rename(&parts[*owner].at.join(path), &to)?;
    }
    for part in &parts {
        fs::remove_dir(&part.at)?;
    }
    Ok(merged)
}

/// Makes the files of `directory` that lie right in it executable.
pub(super) fn make_executable(tree: &Path, directory: &str, entries: &mut Entries) -> anyhow::Result<()> {
    let prefix = format!("{directory}/");
    for (path, entry) in entries.range_mut(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix)) {
        if let Entry::File { executable, .. } = entry
            && !path[prefix.len()..].contains('/')
        {
            *executable = true;
            fs::set_mode(&tree.join(path), mode(true))?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::failure::{Class, class};
    use std::io::Write;

    /// One entry of an archive to make: name, mode, content; `-> target` is a link, `=> target` a hard
    /// link, `fifo` a device.
    pub(in crate::fetch) type Item<'a> = (&'a str, u32, &'a str);

    pub(in crate::fetch) fn tar(items: &[Item<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, mode, content) in items {
            let mut header = tar::Header::new_gnu();
            let (kind, target, body) = match (content.strip_prefix("-> "), content.strip_prefix("=> ")) {
                (Some(target), _) => (tar::EntryType::Symlink, target, ""),
                (_, Some(target)) => (tar::EntryType::Link, target, ""),
                _ if *content == "fifo" => (tar::EntryType::Fifo, "", ""),
                _ if name.ends_with('/') => (tar::EntryType::Directory, "", ""),
                _ => (tar::EntryType::Regular, "", *content),
            };
            // Written by hand: the library refuses to write what must be refused when read.
            let raw = header.as_old_mut();
            raw.name[..name.len()].copy_from_slice(name.as_bytes());
            raw.linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(*mode);
            header.set_size(body.len() as u64);
            header.set_cksum();
            out.extend_from_slice(header.as_bytes());
            out.extend_from_slice(body.as_bytes());
            out.resize(out.len().next_multiple_of(512), 0);
        }
        out.resize(out.len() + 1024, 0);
        out
    }

    pub(in crate::fetch) fn tar_gz(items: &[Item<'_>]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&tar(items)).unwrap();
        encoder.finish().unwrap()
    }

    pub(in crate::fetch) fn tar_xz(items: &[Item<'_>]) -> Vec<u8> {
        let mut encoder = xz2::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(&tar(items)).unwrap();
        encoder.finish().unwrap()
    }

    pub(in crate::fetch) fn zip(items: &[Item<'_>]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, mode, content) in items {
            let options = zip::write::SimpleFileOptions::default().unix_permissions(*mode);
            match content.strip_prefix("-> ") {
                Some(target) => writer.add_symlink(*name, target, options).unwrap(),
                None => {
                    writer.start_file(*name, options).unwrap();
                    writer.write_all(content.as_bytes()).unwrap();
                }
            }
        }
        writer.finish().unwrap().into_inner()
    }

    fn try_unpack(bytes: &[u8], format: Format, top: Top) -> (tempfile::TempDir, anyhow::Result<Entries>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("archive");
        fs::write(&path, bytes).unwrap();
        let archive = Archive { path: &path, name: "some-archive", format, top };
        let entries = unpack(&archive, &dir.path().join("in/to"));
        (dir, entries)
    }

    const GOOD: &[Item<'static>] = &[
        ("top/", 0o755, ""),
        ("top/bin/nvcc", 0o4755, "tool"),
        ("top/include/a.h", 0o600, "text"),
        ("top/lib/libx.so", 0o777, "-> libx.so.1"),
        ("top/lib/libx.so.1", 0o644, "library"),
        ("top/lib/deep/up.h", 0o777, "-> ../../include/./a.h"),
        ("top/bin/again", 0o755, "=> top/bin/nvcc"),
    ];

    #[test]
    fn archives_unpack_with_bits_and_links() {
        for (bytes, format) in [(tar_gz(GOOD), Format::TarGz), (tar_xz(GOOD), Format::TarXz)] {
            for (top, prefix) in [(Top::Keep, "top/"), (Top::Strip, "")] {
                let (dir, entries) = try_unpack(&bytes, format, top);
                let entries = entries.unwrap();
                let root = dir.path().join("in/to").join(prefix);
                assert_eq!(entries.len(), 6);
                assert_eq!(fs::read_text(&root.join("lib/libx.so")).unwrap(), "library");
                assert_eq!(fs::read_text(&root.join("lib/deep/up.h")).unwrap(), "text");
                assert_eq!(fs::read_text(&root.join("bin/again")).unwrap(), "tool");
                use std::os::unix::fs::PermissionsExt;
                for (path, mode) in [("bin/nvcc", 0o755), ("include/a.h", 0o644), ("bin/again", 0o755)] {
                    let found = root.join(path).metadata().unwrap().permissions().mode();
                    assert_eq!(found & 0o7777, mode, "{path}");
                }
            }
        }
        let (dir, entries) =
            try_unpack(&zip(&[("a/b", 0o755, "x"), ("c", 0o644, "y")]), Format::Zip, Top::Keep);
        assert_eq!(entries.unwrap().len(), 2);
        assert_eq!(fs::read_text(&dir.path().join("in/to/a/b")).unwrap(), "x");
    }

    #[test]
    fn whatever_leads_out_is_refused_and_nothing_appears_outside() {
        let tars: &[(&[Item<'_>], &str)] = &[
            (&[("../evil", 0o644, "x")], "leads out"),
            (&[("a/../../evil", 0o644, "x")], "leads out"),
            (&[("/evil", 0o644, "x")], "absolute"),
            (&[("a\\evil", 0o644, "x")], "portable"),
            (&[("a", 0o777, "-> ../evil")], "leads out"),
            (&[("a/b", 0o777, "-> ../../evil")], "leads out"),
            (&[("a", 0o777, "-> /etc/passwd")], "leads out"),
            (&[("a/b", 0o777, "-> c/../../x")], "leads out"),
            (&[("a", 0o777, "-> b"), ("a/evil", 0o644, "x")], "below something"),
            (&[("a", 0o644, "x"), ("a", 0o777, "-> b")], "twice"),
            (&[("a", 0o644, "x"), ("a", 0o644, "y")], "twice"),
            (&[("a", 0o644, "=> ../../etc/passwd")], "leads out"),
            (&[("a", 0o644, "=> b")], "no file before it"),
            (&[("a", 0o644, "fifo")], "type"),
        ];
        for (items, message) in tars {
            let (dir, result) = try_unpack(&tar_gz(items), Format::TarGz, Top::Keep);
            let error = result.unwrap_err();
            assert_eq!(class(&error), Class::Integrity, "{items:?}");
            assert!(error.to_string().contains(message), "{items:?}: {error}");
            let outside: Vec<_> = fs::list(dir.path()).unwrap();
            assert!(outside.iter().all(|p| p.ends_with("archive") || p.ends_with("in")), "{outside:?}");
            assert!(!dir.path().join("in/evil").exists());
        }
        for (items, message) in [(("../evil", 0o644, "x"), "leads out"), (("l", 0o777, "-> x"), "link")] {
            let (_dir, result) = try_unpack(&zip(&[items]), Format::Zip, Top::Keep);
            assert!(result.unwrap_err().to_string().contains(message));
        }
    }

    #[test]
    fn a_stripped_archive_has_one_top_directory() {
        for (items, message) in [
            (&[("a/x", 0o644, ""), ("b/x", 0o644, "")][..], "two top directories"),
            (&[("x", 0o644, "")][..], "top directory should be"),
        ] {
            let (_dir, result) = try_unpack(&tar_xz(items), Format::TarXz, Top::Strip);
            let error = result.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn torn_archives_are_refused() {
        let whole = [
            (tar_gz(GOOD), Format::TarGz),
            (tar_xz(GOOD), Format::TarXz),
            (zip(&[("a", 0o644, "x")]), Format::Zip),
        ];
        for (bytes, format) in whole {
            for bytes in [&bytes[..bytes.len() / 2], b"no archive at all"] {
                let (_dir, result) = try_unpack(bytes, format, Top::Keep);
                assert_eq!(class(&result.unwrap_err()), Class::Integrity, "{format:?}");
            }
        }
    }

    #[test]
    fn parts_merge_unless_they_contradict_each_other() {
        let part = |dir: &Path, name: &str, items: &[Item<'_>]| {
            let path = dir.join(format!("{name}.tgz"));
            fs::write(&path, &tar_gz(items)).unwrap();
            let archive = Archive { path: &path, name, format: Format::TarGz, top: Top::Keep };
            let at = dir.join(name);
            let entries = unpack(&archive, &at).unwrap();
            Part { name: name.to_owned(), at, entries }
        };
        for (first, second, problem) in [
            (("n/a", 0o644, "x"), ("n/b", 0o644, "y"), None),
            (("n/a", 0o644, "x"), ("n/a", 0o644, "x"), None),
            (("n/a", 0o644, "x"), ("n/a", 0o644, "y"), Some("first and second hold different files")),
            (("n", 0o644, "x"), ("n/a", 0o644, "y"), Some("a directory where another has a file")),
            (("n", 0o777, "-> m"), ("n/a", 0o644, "y"), Some("a directory where another has a file")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let parts = vec![part(dir.path(), "first", &[first]), part(dir.path(), "second", &[second])];
            match (merge(parts, &dir.path().join("tree")), problem) {
                (Ok(entries), None) => {
                    assert!(entries.keys().all(|p| dir.path().join("tree").join(p).is_file()));
                    assert!(!dir.path().join("first").exists());
                }
                (Err(error), Some(problem)) => assert!(error.to_string().contains(problem), "{error}"),
                (result, _) => panic!("{first:?} {second:?}: {result:?}"),
            }
        }
    }
}
