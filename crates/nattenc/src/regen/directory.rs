//! A directory of rendered files and the list of what nattenc wrote there, in the words of `sha256sum`.
//! A new state is staged beside the directory and takes its place by one rename; unchanged files are
//! linked, not written. What nattenc did not write, or someone edited, is never lost without being asked.

use super::canonical::Files;
use crate::failure::{Class, Failure};
use crate::fs;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What nattenc wrote: a line per file, `<sha256>  <path>`.
const LIST: &str = ".nattenc-sha256";

/// What writing changed. Paths are relative to the directory.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Changes {
    /// Files that were not there.
    pub added: Vec<String>,
    /// Files that are no longer rendered.
    pub removed: Vec<String>,
    /// Files with other bytes than before.
    pub changed: Vec<String>,
    /// How many files were left as they were.
    pub kept: usize,
}

/// A directory as it is and as it is to be.
pub struct Update<'a> {
    at: &'a Path,
    files: &'a Files,
    changes: Changes,
    /// Files to be had again in the new state: ours that are the same, and those of others.
    carried: Vec<String>,
    /// Whether the list must be written although no file changes.
    stale_list: bool,
    _lock: fs::FileLock,
}

/// How a directory that nattenc wrote differs from what it wrote, and from what it would write now.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct State {
    /// Files whose bytes are not those that nattenc wrote.
    pub edited: Vec<String>,
    /// Files that are gone.
    pub missing: Vec<String>,
    /// Files that would be written, rewritten or removed now, beside the former.
    pub outdated: Vec<String>,
}

impl State {
    /// Whether it holds what would be written now.
    pub fn is_current(&self) -> bool {
        *self == State::default()
    }

    /// Whether the list of what nattenc wrote is gone, so that nothing there is known to be its own.
    pub fn is_foreign(&self) -> bool {
        self.missing == [LIST]
    }
}

/// The state of the directory, or `None` where nothing is.
pub fn state(at: &Path, files: &Files) -> anyhow::Result<Option<State>> {
    let mut state = State::default();
    let Some(list) = list(at)? else {
        if !at.is_dir() || walk(at)?.is_empty() {
            return Ok(None);
        }
        state.missing.push(LIST.to_owned());
        return Ok(Some(state));
    };
    for (path, sha256) in &list {
        match fs::read_if_exists(&at.join(path))? {
            None => state.missing.push(path.clone()),
            Some(bytes) if fs::sha256_of(&bytes) != *sha256 => state.edited.push(path.clone()),
            Some(bytes) if files.get(path).map(String::as_bytes) != Some(&bytes) => {
                state.outdated.push(path.clone());
            }
            Some(_) => {}
        }
    }
    state.outdated.extend(files.keys().filter(|path| !list.contains_key(*path)).cloned());
    Ok(Some(state))
}

/// Compares the directory with `files` and touches nothing but its lock and an earlier run's leftovers.
///
/// Fails with class integrity where a file would be lost that was edited by hand or that nattenc did not
/// write, unless `force`; with class configuration where the directory is not nattenc's at all.
pub fn update<'a>(at: &'a Path, files: &'a Files, force: bool) -> anyhow::Result<Update<'a>> {
    refuse_foreign(at)?;
    let lock = fs::try_lock(&beside(at, "lock"))?.ok_or_else(|| {
        Failure::new(Class::Locked, format!("{}: another nattenc renders into it", at.display()))
            .hint("wait for it to end, or give another --out")
    })?;
    recover(at)?;
    let there = walk(at)?;
    let list = list(at)?.unwrap_or_default();
    let mut changes = Changes::default();
    let mut carried = Vec::new();
    let mut at_stake = Vec::new();
    for path in &there {
        let bytes = fs::read(&at.join(path))?;
        let wanted = files.get(path);
        if wanted.is_some_and(|text| text.as_bytes() == bytes) {
            changes.kept += 1;
            carried.push(path.clone());
            continue;
        }
        match (list.get(path), wanted) {
            (None, None) => carried.push(path.clone()),
            (Some(sha256), _) if *sha256 == fs::sha256_of(&bytes) => {}
            (Some(_), _) => at_stake.push(format!("{path} was edited by hand")),
            (None, Some(_)) => at_stake.push(format!("{path} was not written by nattenc")),
        }
        match (list.contains_key(path), wanted) {
            (_, Some(_)) => changes.changed.push(path.clone()),
            (true, None) => changes.removed.push(path.clone()),
            (false, None) => {}
        }
    }
    if !at_stake.is_empty() && !force {
        return Err(Failure::integrity(format!(
            "{}: nothing is written, since this would be lost\n  {}",
            at.display(),
            at_stake.join("\n  ")
        ))
        .hint("make the change in templates/ instead and keep a copy, or run again with --force to lose it")
        .into());
    }
    changes.added = files.keys().filter(|path| !there.contains(*path)).cloned().collect();
    let stale_list = fs::read_if_exists(&at.join(LIST))?.as_deref() != Some(list_text(files).as_bytes());
    Ok(Update { at, files, changes, carried, stale_list, _lock: lock })
}

/// Where a directory that may be given through links, `.` and `..` is, so that others lie beside it.
pub fn place(at: &Path) -> anyhow::Result<PathBuf> {
    // A link that leads nowhere is there, and cannot be resolved.
    if at.exists() || at.is_symlink() {
        return fs::real_path(at);
    }
    Ok(at.to_path_buf())
}

/// Refuses what nattenc did not make, before a file is read or made for it.
fn refuse_foreign(at: &Path) -> anyhow::Result<()> {
    let foreign = match at.is_dir() {
        true => list(at)?.is_none() && !fs::list(at)?.is_empty(),
        false => at.exists(),
    };
    if foreign || at.file_name().is_none() {
        return Err(Failure::config(format!(
            "{}: is there already, and nattenc did not make it",
            at.display()
        ))
        .hint("move it away, or give another --out")
        .into());
    }
    Ok(())
}

impl Update<'_> {
    /// Makes the directory what it is to be; says what that changed.
    pub fn apply(self) -> anyhow::Result<Changes> {
        if !self.stale_list && self.changes.is_nothing() {
            return Ok(self.changes);
        }
        let staged = beside(self.at, "new");
        for path in &self.carried {
            fs::link_or_copy(&self.at.join(path), &staged.join(path))?;
        }
        for path in self.changes.added.iter().chain(&self.changes.changed) {
            put(&staged.join(path), &self.files[path])?;
        }
        put(&staged.join(LIST), &list_text(self.files))?;
        fs::exchange(&staged, self.at, &beside(self.at, "old"))?;
        fs::remove_dir(&staged)?;
        Ok(self.changes)
    }
}

impl Changes {
    /// Whether every file is as it was.
    pub fn is_nothing(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// Not synced: what a power failure takes can be rendered again.
fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write_all(&mut fs::create_new(path)?, path, text.as_bytes())
}

/// `.<name>.<what>` beside the directory.
fn beside(at: &Path, what: &str) -> PathBuf {
    let name = at.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    at.with_file_name(format!(".{name}.{what}"))
}

/// Takes away what a killed run staged. Where it was killed between two renames, the directory comes back.
fn recover(at: &Path) -> anyhow::Result<()> {
    let old = beside(at, "old");
    if old.is_dir() && !at.exists() {
        fs::rename(&old, at)?;
    }
    fs::remove_dir(&old)?;
    fs::remove_dir(&beside(at, "new"))
}

/// Every file below the directory but the list itself.
fn walk(at: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut paths = BTreeSet::new();
    if !at.exists() {
        return Ok(paths);
    }
    for entry in walkdir::WalkDir::new(at).sort_by_file_name() {
        let refused = |what: &str| {
            Failure::config(format!("{}: {what}", at.display()))
                .hint("take it out of that directory, or give another --out")
        };
        let entry = entry.map_err(|error| refused(&format!("cannot be read: {error}")))?;
        if entry.file_type().is_dir() {
            continue;
        }
        let relative = entry.path().strip_prefix(at).unwrap_or(entry.path());
        let Some(path) = relative.to_str().filter(|_| entry.file_type().is_file()) else {
            return Err(refused(&format!("holds {}, which is no plain file", relative.display())).into());
        };
        if path != LIST {
            paths.insert(path.to_owned());
        }
    }
    Ok(paths)
}

fn list_text(files: &Files) -> String {
    let line = |(path, text): (&String, &String)| format!("{}  {path}\n", fs::sha256_of(text.as_bytes()));
    files.par_iter().map(line).collect::<Vec<_>>().concat()
}

fn list(at: &Path) -> anyhow::Result<Option<BTreeMap<String, String>>> {
    let path = at.join(LIST);
    let Some(bytes) = fs::read_if_exists(&path)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = |line: &str| line.split_once("  ").map(|(sha256, path)| (path.to_owned(), sha256.to_owned()));
    text.lines().map(line).collect::<Option<_>>().map(Some).ok_or_else(|| {
        Failure::integrity(format!("{}: not the list that nattenc wrote", path.display()))
            .hint(format!("move {} away and run again", at.display()))
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::class;

    fn files(contents: &[(&str, &str)]) -> Files {
        contents.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn write(at: &Path, contents: &[(&str, &str)], force: bool) -> anyhow::Result<Changes> {
        update(at, &files(contents), force)?.apply()
    }

    /// Path and bytes of everything there, the list apart.
    fn content(at: &Path) -> Vec<(String, String)> {
        let text = |path: &String| fs::read_text(&at.join(path)).unwrap();
        walk(at).unwrap().iter().map(|path| (path.clone(), text(path))).collect()
    }

    fn dir() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().join("deep/autogen");
        (root, at)
    }

    #[test]
    fn a_directory_that_lost_its_list_is_not_current() {
        let (_keep, at) = dir();
        let wanted = files(&[("a/0.cu", "one")]);
        assert!(state(&at, &wanted).unwrap().is_none());
        write(&at, &[("a/0.cu", "one")], false).unwrap();
        assert!(state(&at, &wanted).unwrap().unwrap().is_current());
        fs::remove_file(&at.join(LIST)).unwrap();
        let lost = state(&at, &wanted).unwrap().unwrap();
        assert!(lost.is_foreign() && !lost.is_current());
    }

    #[test]
    fn only_files_that_differ_are_written_and_only_ours_are_removed() {
        let (_root, at) = dir();
        write(&at, &[("a/one.cu", "1"), ("a/two.cu", "2"), ("b/three.cu", "3")], false).unwrap();
        fs::write(&at.join("a/notes.txt"), b"mine").unwrap();
        let before = fs::stamp(&at.join("a/one.cu")).unwrap();
        let changes =
            write(&at, &[("a/one.cu", "1"), ("a/two.cu", "two"), ("c/four.cu", "4")], false).unwrap();
        assert_eq!(
            (changes.added, changes.removed, changes.changed, changes.kept),
            (vec!["c/four.cu".to_owned()], vec!["b/three.cu".to_owned()], vec!["a/two.cu".to_owned()], 1)
        );
        let after = fs::stamp(&at.join("a/one.cu")).unwrap();
        assert_eq!((before.mtime, before.inode), (after.mtime, after.inode));
        let names: Vec<String> = content(&at).into_iter().map(|(path, _)| path).collect();
        assert_eq!(names, ["a/notes.txt", "a/one.cu", "a/two.cu", "c/four.cu"]);
        assert!(!at.join("b").exists());
        assert_eq!(fs::list(at.parent().unwrap()).unwrap(), [beside(&at, "lock"), at.clone()]);
    }

    #[test]
    fn the_same_again_touches_nothing() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1")], false).unwrap();
        let before = fs::stamp(&at).unwrap();
        assert!(write(&at, &[("a.cu", "1")], false).unwrap().is_nothing());
        assert_eq!(fs::stamp(&at).unwrap(), before);
    }

    #[test]
    fn what_was_edited_by_hand_is_named_and_kept_unless_forced() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1"), ("b.cu", "2"), ("c.cu", "3")], false).unwrap();
        fs::write(&at.join("a.cu"), b"edited").unwrap();
        fs::write(&at.join("b.cu"), b"edited").unwrap();
        fs::remove_file(&at.join("c.cu")).unwrap();
        let found = state(&at, &files(&[("a.cu", "1"), ("c.cu", "3"), ("d.cu", "4")])).unwrap().unwrap();
        assert_eq!(
            (found.edited, found.missing, found.outdated),
            (vec!["a.cu".to_owned(), "b.cu".into()], vec!["c.cu".to_owned()], vec!["d.cu".to_owned()])
        );
        let before = content(&at);
        // `a` is rendered as before, `b` no longer: both edits would be lost.
        let error = write(&at, &[("a.cu", "1"), ("d.cu", "4")], false).unwrap_err();
        assert_eq!(class(&error), Class::Integrity);
        let text = error.to_string();
        assert!(text.contains("a.cu was edited by hand\n  b.cu was edited by hand"), "{text}");
        assert_eq!(content(&at), before);
        write(&at, &[("a.cu", "1"), ("d.cu", "4")], true).unwrap();
        assert_eq!(content(&at), [("a.cu".into(), "1".into()), ("d.cu".into(), "4".into())]);
        assert!(state(&at, &files(&[("a.cu", "1"), ("d.cu", "4")])).unwrap().unwrap().is_current());
    }

    #[test]
    fn an_edit_that_the_templates_now_make_too_is_no_conflict() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1")], false).unwrap();
        fs::write(&at.join("a.cu"), b"2").unwrap();
        assert!(write(&at, &[("a.cu", "2")], false).unwrap().is_nothing());
        assert!(state(&at, &files(&[("a.cu", "2")])).unwrap().unwrap().is_current());
    }

    #[test]
    fn files_of_others_are_not_overwritten() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1")], false).unwrap();
        fs::write(&at.join("b.cu"), b"mine").unwrap();
        let error = write(&at, &[("a.cu", "1"), ("b.cu", "2")], false).unwrap_err();
        assert!(error.to_string().contains("b.cu was not written by nattenc"), "{error}");
    }

    #[test]
    fn directory_that_is_not_ours_is_left_alone_even_with_force() {
        let (_root, at) = dir();
        fs::write(&at.join("precious"), b"x").unwrap();
        for force in [false, true] {
            let error = write(&at, &[("a.cu", "1")], force).unwrap_err();
            assert_eq!(class(&error), Class::Config);
        }
        assert_eq!(content(&at), [("precious".into(), "x".into())]);
        assert!(state(&at, &Files::new()).unwrap().unwrap().is_foreign());
    }

    #[test]
    fn nothing_is_made_beside_what_is_refused() {
        let (_root, at) = dir();
        fs::write(&at, b"a file").unwrap();
        assert_eq!(class(&write(&at, &[("a.cu", "1")], true).unwrap_err()), Class::Config);
        assert_eq!(class(&write(Path::new("/"), &[("a.cu", "1")], true).unwrap_err()), Class::Config);
        assert_eq!(fs::list(at.parent().unwrap()).unwrap(), [at]);
    }

    #[test]
    fn links_are_followed_to_the_directory_itself() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1")], false).unwrap();
        let link = at.with_file_name("link");
        fs::symlink(&at, &link).unwrap();
        let real = fs::real_path(&at).unwrap();
        assert_eq!(place(&link).unwrap(), real);
        assert_eq!(place(&at.join("../autogen/.")).unwrap(), real);
        fs::symlink(Path::new("nowhere"), &link).unwrap();
        assert_eq!(class(&place(&link).unwrap_err()), Class::Config);
        let new = at.with_file_name("new");
        assert_eq!(place(&new).unwrap(), new);
    }

    #[test]
    fn leftovers_of_killed_runs_are_taken_away_and_a_moved_directory_comes_back() {
        let (_root, at) = dir();
        write(&at, &[("a.cu", "1")], false).unwrap();
        // Killed while staging.
        fs::write(&beside(&at, "new").join("half.cu"), b"").unwrap();
        assert!(write(&at, &[("a.cu", "1")], false).unwrap().is_nothing());
        // Killed between the two renames of a file system without exchange.
        fs::write(&beside(&at, "new").join("a.cu"), b"2").unwrap();
        fs::rename(&at, &beside(&at, "old")).unwrap();
        let changes = write(&at, &[("a.cu", "2")], false).unwrap();
        assert_eq!(changes.changed, ["a.cu"]);
        assert_eq!(fs::list(at.parent().unwrap()).unwrap(), [beside(&at, "lock"), at.clone()]);
    }

    #[test]
    fn second_run_in_the_same_directory_is_told_so() {
        let (_root, at) = dir();
        let one = files(&[("a.cu", "1")]);
        let held = update(&at, &one, false).unwrap();
        let error = update(&at, &one, false).err().unwrap();
        assert_eq!(class(&error), Class::Locked);
        held.apply().unwrap();
    }
}
