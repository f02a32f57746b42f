//! `nattenc.lock`: what every fetched file must be. Sorted, no host names, no times: equal pins are
//! equal bytes. A pin is added on first use and changed only by `accept`.

use crate::failure::Failure;
use crate::fs;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::path::Path;

/// The version of the format that this nattenc reads and writes.
const VERSION: i64 = 1;

/// What a pinned file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The source archive of a Python project.
    Sdist,
    /// A wheel.
    Wheel,
    /// A component of NVIDIA's redistributable archives.
    Redist,
    /// An archive that build.toml pins itself; never in the lock.
    Archive,
}

/// What a pin is found by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// What it is.
    pub kind: Kind,
    /// Project or component.
    pub name: String,
    /// Version of the project, release of the redistributable archives.
    pub version: String,
    /// Target of a wheel, platform of a component; empty for an sdist.
    pub platform: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)?;
        if !self.platform.is_empty() {
            write!(f, " for {}", self.platform)?;
        }
        Ok(())
    }
}

/// One fetched file, as pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// What it is.
    pub key: Key,
    /// File name; for redistributable archives the path relative to the base URL.
    pub file: String,
    /// Size in bytes, where the source states it.
    pub size: Option<u64>,
    /// SHA-256, lowercase hex.
    pub sha256: String,
}

/// All pins of a lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lock {
    pins: BTreeMap<Key, Pinned>,
}

#[derive(Deserialize)]
struct Probe {
    version: Option<toml::Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[expect(dead_code, reason = "read by the probe; named so that it is no unknown key")]
    version: i64,
    #[serde(default)]
    sdist: Vec<toml::Spanned<Sdist>>,
    #[serde(default)]
    wheel: Vec<toml::Spanned<Wheel>>,
    #[serde(default)]
    redist: Vec<toml::Spanned<Redist>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sdist {
    project: Word,
    version: Word,
    file: RelativePath,
    size: Option<u64>,
    sha256: Sha256,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wheel {
    project: Word,
    version: Word,
    target: Word,
    file: RelativePath,
    size: Option<u64>,
    sha256: Sha256,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Redist {
    release: Word,
    component: Word,
    platform: Word,
    file: RelativePath,
    size: Option<u64>,
    sha256: Sha256,
}

/// Not empty, printable, no spaces.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Word(String);

impl TryFrom<String> for Word {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic()) {
            Ok(Word(text))
        } else {
            Err(format!("{text:?} is not one printable word"))
        }
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct RelativePath(String);

impl TryFrom<String> for RelativePath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_relative_path(&text) {
            Ok(RelativePath(text))
        } else {
            Err(format!("{text:?} is not a plain relative path"))
        }
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Sha256(String);

impl TryFrom<String> for Sha256 {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_sha256(&text) {
            Ok(Sha256(text))
        } else {
            Err(format!("{text:?} is not 64 lowercase hex digits"))
        }
    }
}

/// A path of plain names, which stays below where it starts.
pub(super) fn is_relative_path(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() && !"\\:?#\"".contains(c))
        && text.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// 64 lowercase hex digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl Lock {
    /// The lock in `path`; none there is an empty one.
    pub(super) fn load(path: &Path) -> anyhow::Result<Lock> {
        let Some(bytes) = fs::read_if_exists(path)? else { return Ok(Lock::default()) };
        let at = |line: usize, what: &str| {
            Failure::config(format!("{}:{line}: {what}", path.display()))
                .hint(format!("restore {} from version control, or remove it to pin anew", path.display()))
        };
        let text = String::from_utf8(bytes).map_err(|_| at(1, "not UTF-8"))?;
        let line = |offset: usize| 1 + text.bytes().take(offset).filter(|b| *b == b'\n').count();
        let malformed = |e: toml::de::Error| at(line(e.span().map_or(0, |s| s.start)), e.message());
        let probe: Probe = toml::from_str(&text).map_err(malformed)?;
        let version = probe.version.ok_or_else(|| at(1, "`version` is missing"))?;
        if *version.get_ref() != VERSION {
            let what = format!(
                "version {} of the lock format is not known to this nattenc, which knows {VERSION}",
                version.get_ref()
            );
            return Err(at(line(version.span().start), &what)
                .hint("use the nattenc that wrote it, or a newer one")
                .into());
        }
        let parsed: Text = toml::from_str(&text).map_err(malformed)?;
        let mut lock = Lock::default();
        let mut add = |offset: usize, pin: Pinned| -> anyhow::Result<()> {
            if lock.pins.contains_key(&pin.key) {
                return Err(at(line(offset), &format!("{} is pinned twice", pin.key)).into());
            }
            lock.pins.insert(pin.key.clone(), pin);
            Ok(())
        };
        for entry in parsed.sdist {
            let offset = entry.span().start;
            let Sdist { project, version, file, size, sha256 } = entry.into_inner();
            let key = Key { kind: Kind::Sdist, name: project.0, version: version.0, platform: String::new() };
            add(offset, Pinned { key, file: file.0, size, sha256: sha256.0 })?;
        }
        for entry in parsed.wheel {
            let offset = entry.span().start;
            let Wheel { project, version, target, file, size, sha256 } = entry.into_inner();
            let key = Key { kind: Kind::Wheel, name: project.0, version: version.0, platform: target.0 };
            add(offset, Pinned { key, file: file.0, size, sha256: sha256.0 })?;
        }
        for entry in parsed.redist {
            let offset = entry.span().start;
            let Redist { release, component, platform, file, size, sha256 } = entry.into_inner();
            let key = Key { kind: Kind::Redist, name: component.0, version: release.0, platform: platform.0 };
            add(offset, Pinned { key, file: file.0, size, sha256: sha256.0 })?;
        }
        Ok(lock)
    }

    /// The pin of a key.
    pub(super) fn get(&self, key: &Key) -> Option<&Pinned> {
        self.pins.get(key)
    }

    /// All pins, sorted.
    pub(super) fn pins(&self) -> impl Iterator<Item = &Pinned> {
        self.pins.values()
    }

    /// Adds a pin. One that is there and differs stays, and is returned.
    pub(super) fn add(&mut self, pin: &Pinned) -> Option<&Pinned> {
        let there = self.pins.entry(pin.key.clone()).or_insert_with(|| pin.clone());
        (there != pin).then_some(&*there)
    }

    /// Removes the pins of a file; says how many there were.
    pub(super) fn remove_file(&mut self, file: &str) -> usize {
        let before = self.pins.len();
        self.pins.retain(|_, pin| pin.file != file);
        before - self.pins.len()
    }

    /// Pins these source archives instead of those of the same projects.
    pub(super) fn replace_sdist(&mut self, pins: &[Pinned]) {
        let replaced = |key: &Key| key.kind == Kind::Sdist && pins.iter().any(|pin| pin.key.name == key.name);
        self.pins.retain(|key, _| !replaced(key));
        self.pins.extend(pins.iter().map(|pin| (pin.key.clone(), pin.clone())));
    }

    /// Writes the lock where it differs from what is there.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        fs::write_if_changed(path, self.text().as_bytes())?;
        Ok(())
    }

    /// The whole file.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "# What every fetched file must be. Written by nattenc; keep it under version control.\nversion = {VERSION}\n"
        );
        for pin in self.pins.values() {
            let Key { kind, name, version, platform } = &pin.key;
            let (table, fields) = match kind {
                Kind::Sdist => ("sdist", vec![("project", name), ("version", version)]),
                Kind::Wheel => ("wheel", vec![("project", name), ("version", version), ("target", platform)]),
                Kind::Archive => continue,
                Kind::Redist => {
                    ("redist", vec![("release", version), ("component", name), ("platform", platform)])
                }
            };
            let _ = write!(text, "\n[[{table}]]\n");
            for (field, value) in fields.into_iter().chain([("file", &pin.file)]) {
                let _ = writeln!(text, "{field} = {}", toml::Value::String(value.clone()));
            }
            if let Some(size) = pin.size {
                let _ = writeln!(text, "size = {size}");
            }
            let _ = writeln!(text, "sha256 = \"{}\"", pin.sha256);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Class, class};

    fn pin(kind: Kind, name: &str, platform: &str, digit: char) -> Pinned {
        let key =
            Key { kind, name: name.to_owned(), version: "1.2".to_owned(), platform: platform.to_owned() };
        let size = (kind != Kind::Sdist).then_some(7);
        Pinned { key, file: format!("{name}/f.whl"), size, sha256: digit.to_string().repeat(64) }
    }

    fn sample() -> Lock {
        let mut lock = Lock::default();
        for pin in [
            pin(Kind::Redist, "cuda_nvcc", "linux-x86_64", 'c'),
            pin(Kind::Wheel, "b", "x86_64-linux", 'b'),
            pin(Kind::Wheel, "b", "aarch64-linux", 'd'),
            pin(Kind::Sdist, "natten", "", 'a'),
        ] {
            assert_eq!(lock.add(&pin), None);
        }
        lock
    }

    #[test]
    fn a_lock_reads_back_as_it_was_written_and_is_written_only_when_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nattenc.lock");
        assert_eq!(Lock::load(&path).unwrap(), Lock::default());
        sample().save(&path).unwrap();
        assert_eq!(Lock::load(&path).unwrap(), sample());
        let before = fs::stamp(&path).unwrap();
        sample().save(&path).unwrap();
        assert_eq!(fs::stamp(&path).unwrap(), before);
        let text = fs::read_text(&path).unwrap();
        assert!(text.find("aarch64-linux").unwrap() < text.find("x86_64-linux").unwrap());
    }

    #[test]
    fn a_pin_is_never_replaced() {
        let mut lock = sample();
        let other = pin(Kind::Sdist, "natten", "", 'f');
        assert_eq!(lock.add(&other).unwrap().sha256, "a".repeat(64));
        assert_eq!(lock, sample());
        assert_eq!(lock.remove_file("b/f.whl"), 2);
        assert_eq!(lock.pins().count(), 2);
    }

    #[test]
    fn another_source_archive_takes_the_place_of_the_pinned_one() {
        let mut lock = sample();
        let mut other = pin(Kind::Sdist, "natten", "", 'f');
        other.key.version = "1.3".to_owned();
        lock.replace_sdist(std::slice::from_ref(&other));
        assert_eq!(lock.pins().filter(|pin| pin.key.kind == Kind::Sdist).collect::<Vec<_>>(), [&other]);
        assert_eq!(lock.pins().count(), sample().pins().count());
        lock.replace_sdist(&[pin(Kind::Sdist, "natten", "", 'a')]);
        assert_eq!(lock, sample());
    }

    #[test]
    fn malformed_locks_are_refused_with_their_line() {
        let good = sample().text();
        let a = "a".repeat(64);
        for (from, to, place, message) in [
            ("version = 1\n", "version = 2\n", ":2:", "version 2"),
            ("version = 1\n", "", ":1:", "`version` is missing"),
            ("version = 1\n", "version = 1.0\n", ":2:", "invalid type"),
            ("project = \"natten\"", "project = \"nat ten\"", ":5:", "\"nat ten\""),
            ("project = \"natten\"", "projekt = \"natten\"", ":5:", "projekt"),
            ("file = \"natten/f.whl\"", "file = \"../f.whl\"", ":7:", "\"../f.whl\""),
            (a.as_str(), "abc", ":8:", "\"abc\""),
            ("[[sdist]]", "[[sdist]", ":4:", ""),
            ("target = \"aarch64-linux\"", "target = \"x86_64-linux\"", ":18:", "pinned twice"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("nattenc.lock");
            assert!(good.contains(from), "{from}");
            fs::write(&path, good.replacen(from, to, 1).as_bytes()).unwrap();
            let error = Lock::load(&path).unwrap_err();
            assert_eq!(class(&error), Class::Config, "{to}");
            let shown = error.to_string();
            assert!(
                shown.contains(&format!("nattenc.lock{place}")) && shown.contains(message),
                "{to}: {shown}"
            );
        }
    }
}
