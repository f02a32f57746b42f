//! What a job that may read whole trees did read of them.
//!
//! The first key of a preprocessing holds the digests of its trees, so any changed file of a tree is a miss.
//! Behind it are two more, which make it a hit again where the job reads none of the files that changed: one with
//! the names of all files of the directories that it searches leads to the names of the headers that such a job read
//! last, and one with the content of these leads to the action. A file that is added or gone changes the names, so a
//! header that would now be found earlier is never passed over.

use super::cache::{Action, Blob, Cache, Key};
use crate::fs;
use crate::graph::Tree;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The kind of the entries behind the two keys, so that no job is counted twice.
pub(super) const KIND: &str = "headers";

/// Digests of what trees hold, each computed once in a run and only where a first key was a miss.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// By the name that a job knows a header by, as `src/csrc/include/natten/natten.h`; `None` where it cannot be read.
    contents: BTreeMap<String, Option<String>>,
    /// By directory, of the sorted names of its files; `None` where it cannot be listed.
    names: BTreeMap<String, Option<String>>,
}

/// The trees of a run: where each is, and the digest of what it holds.
type Trees = BTreeMap<Tree, (PathBuf, String)>;

impl Headers {
    /// The digest of the names of all files of a directory in a tree.
    pub(super) fn names(&mut self, directory: &str, trees: &Trees) -> Option<String> {
        let names = || names_in(&place(directory, trees)?);
        self.names.entry(directory.to_owned()).or_insert_with(names).clone()
    }

    /// The action of a job that reads the same headers with the same content, if `names` leads to one; of [`KIND`].
    pub(super) fn action(&mut self, names: &str, cache: &Cache, trees: &Trees) -> Option<Action> {
        let list = cache.get(cache.action(names)?.outputs.first()?)?;
        cache.action(&self.with_contents(names, &list, trees)?)
    }

    /// Records that the job of the key `names` reads these headers, and what it made of them.
    pub(super) fn record(
        &mut self,
        names: &str,
        read: &[String],
        action: &Action,
        cache: &Cache,
        trees: &Trees,
    ) -> anyhow::Result<()> {
        let list = read.join("\n").into_bytes();
        let Some(contents) = self.with_contents(names, &list, trees) else { return Ok(()) };
        let blob = cache.put(&list)?;
        cache.put_action(&contents, &Action { kind: KIND.to_owned(), ..action.clone() })?;
        cache.put_action(names, &of(blob))
    }

    /// The key with the content of every header of a list, one name a line.
    fn with_contents(&mut self, names: &str, list: &[u8], trees: &Trees) -> Option<String> {
        let mut key = Key::new(KIND);
        key.add("names", names);
        for name in std::str::from_utf8(list).ok()?.lines() {
            let contents = || fs::sha256(&place(name, trees)?).ok();
            key.add(name, self.contents.entry(name.to_owned()).or_insert_with(contents).as_deref()?);
        }
        Some(key.finish())
    }
}

/// The entry that a key of names leads to.
fn of(list: Blob) -> Action {
    let (cpu, wall) = (0.0, 0.0);
    Action { kind: KIND.to_owned(), outputs: vec![list], headers: vec![], cpu, wall, peak_memory: 0 }
}

/// The tree that a name of a job leads into, and the path there.
pub(super) fn inside(name: &str) -> Option<(Tree, &str)> {
    Tree::ALL.into_iter().find_map(|tree| {
        let rest = name.strip_prefix(tree.link())?;
        Some((tree, if rest.is_empty() { rest } else { rest.strip_prefix('/')? }))
    })
}

/// Where it is.
fn place(name: &str, trees: &Trees) -> Option<PathBuf> {
    let (tree, rest) = inside(name)?;
    Some(trees.get(&tree)?.0.join(rest))
}

/// The directories in trees that a compiler searches for headers, as its arguments name them.
pub(super) fn searched(args: &[String]) -> Vec<&str> {
    let mut found = Vec::new();
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        found.extend(match arg {
            "-I" | "-isystem" => args.next(),
            _ => arg.strip_prefix("-I").or_else(|| arg.strip_prefix("-isystem")),
        });
    }
    found.retain(|directory| inside(directory).is_some());
    found
}

/// Whether all of these names are below one of the directories. What is found otherwise, from one header to another,
/// is not known by the names in them.
pub(super) fn are_below(names: &[String], directories: &[&str]) -> bool {
    let below = |name: &str| {
        directories
            .iter()
            .any(|directory| name.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')))
    };
    names.iter().all(|name| below(name))
}

/// The digest of the names of all files below a directory; links are followed.
fn names_in(root: &Path) -> Option<String> {
    let mut key = Key::new("names");
    for entry in walkdir::WalkDir::new(root).follow_links(true).sort_by_file_name() {
        let entry = entry.ok()?;
        if entry.file_type().is_file() {
            key.add("file", entry.path().strip_prefix(root).ok()?.to_str()?);
        }
    }
    Some(key.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        cache: Cache,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir().unwrap();
            let cache = Cache::new(dir.path(), &dir.path().join("instead"));
            let place = Place { dir, cache };
            place.write("read.h", "one");
            place.write("sub/other.h", "one");
            place
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(&self.dir.path().join("tree").join(name), text.as_bytes()).unwrap();
        }

        fn trees(&self) -> Trees {
            BTreeMap::from([(Tree::Sources, (self.dir.path().join("tree"), "not looked at".to_owned()))])
        }

        /// A new run's key of names.
        fn names(&self, headers: &mut Headers) -> String {
            headers.names("src", &self.trees()).unwrap()
        }

        fn found(&self) -> Option<Action> {
            let mut headers = Headers::default();
            let names = self.names(&mut headers);
            headers.action(&names, &self.cache, &self.trees())
        }

        fn record(&self, text: &[u8]) -> Action {
            let mut headers = Headers::default();
            let names = self.names(&mut headers);
            let action = of(self.cache.put(text).unwrap());
            let read = ["src/read.h".to_owned()];
            headers.record(&names, &read, &action, &self.cache, &self.trees()).unwrap();
            action
        }
    }

    #[test]
    fn a_changed_header_is_a_miss_for_those_that_read_it_alone() {
        let place = Place::new();
        assert_eq!(place.found(), None);
        let one = place.record(b"text of one");
        assert_eq!(place.found().as_ref(), Some(&one));
        place.write("sub/other.h", "two");
        assert_eq!(place.found().as_ref(), Some(&one));
        place.write("read.h", "two");
        assert_eq!(place.found(), None);
        let two = place.record(b"text of two");
        assert_eq!(place.found(), Some(two));
        place.write("read.h", "one");
        assert_eq!(place.found(), Some(one));
    }

    #[test]
    fn a_file_that_is_added_or_gone_is_a_miss() {
        let place = Place::new();
        place.record(b"text");
        place.write("earlier/read.h", "would be found first");
        assert_eq!(place.found(), None);
        fs::remove_dir(&place.dir.path().join("tree/earlier")).unwrap();
        assert!(place.found().is_some());
        fs::remove_file(&place.dir.path().join("tree/sub/other.h")).unwrap();
        assert_eq!(place.found(), None);
    }

    #[test]
    fn headers_that_cannot_be_read_are_a_miss() {
        let place = Place::new();
        place.record(b"text");
        fs::remove_file(&place.dir.path().join("tree/read.h")).unwrap();
        fs::create_dir(&place.dir.path().join("tree/read.h")).unwrap();
        assert_eq!(place.found(), None);
        let mut headers = Headers::default();
        assert_eq!(headers.names("tk/include", &place.trees()), None);
    }

    #[test]
    fn names_lead_into_trees() {
        assert_eq!(inside("src/csrc/a.h"), Some((Tree::Sources, "csrc/a.h")));
        assert_eq!(inside("tk/bin/../include/b.h"), Some((Tree::Toolkit, "bin/../include/b.h")));
        assert_eq!(inside("inc"), Some((Tree::Support, "")));
        for name in ["unit.cu", "srcs/a.h", "/usr/include/stdio.h"] {
            assert_eq!(inside(name), None, "{name}");
        }
    }

    #[test]
    fn directories_are_those_of_the_arguments() {
        let args =
            ["-E", "-I", "inc", "-Isrc/csrc/include", "-isystem", "tk/include", "-I", "/usr/include", "-Dx"];
        let args = args.map(str::to_owned);
        let directories = searched(&args);
        assert_eq!(directories, ["inc", "src/csrc/include", "tk/include"]);
        let below = |names: &[&str]| {
            are_below(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>(), &directories)
        };
        assert!(below(&["inc/a.h", "src/csrc/include/natten/b.h"]));
        assert!(!below(&["inc/a.h", "src/csrc/includes/b.h"]));
        assert!(!below(&["src/csrc/b.h"]));
    }
}
