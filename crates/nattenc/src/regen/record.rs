//! `autogen.lock`: what regen renders under every policy, by SHA-256, and the public interface with the
//! version of the package that has it. Under version control, so that a change of either is seen.

use super::canonical::{self, POLICIES, Rendering};
use super::interface::{self, Changes, Interface};
use crate::catalog::Catalog;
use crate::failure::Failure;
use crate::fs;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// The name of the file, beside build.toml.
pub const FILE: &str = "autogen.lock";

/// The version of the format that this nattenc reads and writes.
const VERSION: i64 = 1;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: i64,
    /// The release of natten that the kernel tables were held against.
    pub natten: String,
    /// The version of our package.
    pub package: String,
    /// Its public interface.
    pub interface: Interface,
    /// Policy → path → SHA-256.
    pub files: BTreeMap<String, BTreeMap<String, String>>,
}

/// Rendered files that differ from the record.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// Rendered and not recorded, as `fine/fna/fna_127.cu`.
    pub added: Vec<String>,
    /// Recorded and no longer rendered.
    pub removed: Vec<String>,
    /// Rendered with other bytes.
    pub changed: Vec<String>,
}

impl Drift {
    /// Whether there is none.
    pub fn is_nothing(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// The version of this package; those of the workspace are one.
pub const PACKAGE: &str = env!("CARGO_PKG_VERSION");

impl Record {
    /// What a file would say that is written now. `renderings` has every policy.
    pub fn new(natten: &str, catalog: &Catalog, renderings: &[Rendering]) -> anyhow::Result<Record> {
        let digests = |rendering: &Rendering| {
            let digest = |(path, text): (&String, &String)| (path.clone(), fs::sha256_of(text.as_bytes()));
            (rendering.policy.to_owned(), rendering.files.par_iter().map(digest).collect())
        };
        Ok(Record {
            version: VERSION,
            natten: natten.to_owned(),
            package: PACKAGE.to_owned(),
            interface: interface::ours(catalog)?,
            files: renderings.iter().map(digests).collect(),
        })
    }

    /// What the file says, or `None` where there is none.
    pub fn load(path: &Path) -> anyhow::Result<Option<Record>> {
        let Some(bytes) = fs::read_if_exists(path)? else { return Ok(None) };
        let wrong = |what: String| {
            Failure::config(format!("{}: {what}", path.display()))
                .hint("restore it from version control, or remove it and run `nattenc regen`")
        };
        let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8".to_owned()))?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        // A file of another version may mean anything, so nothing else of it is looked at.
        let version = table.get("version").ok_or_else(|| wrong("`version` is missing".to_owned()))?;
        if version.as_integer() != Some(VERSION) {
            return Err(wrong(format!(
                "version {version} of the format is not known to this nattenc, which knows {VERSION}"
            ))
            .hint("use the nattenc that wrote it, or a newer one")
            .into());
        }
        Ok(Some(table.try_into().map_err(|error: toml::de::Error| wrong(error.to_string()))?))
    }

    /// The whole file.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# What `nattenc regen` renders under every policy, and the public interface. Written by nattenc;\n\
             # keep it under version control.\nversion = {VERSION}\nnatten = \"{}\"\npackage = \"{}\"\n",
            self.natten, self.package
        );
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut table = |name: &str, lines: &mut dyn Iterator<Item = (&String, String)>| {
            let _ = write!(text, "\n[{name}]\n");
            for (key, value) in lines {
                let _ = writeln!(text, "{} = {value}", quoted(key));
            }
        };
        let Interface { operations, structs, constants, kernels } = &self.interface;
        table("interface.operations", &mut operations.iter().map(|(k, v)| (k, quoted(v))));
        table(
            "interface.structs",
            &mut structs.iter().map(|(k, fields)| {
                (k, format!("[{}]", fields.iter().map(|f| quoted(f)).collect::<Vec<_>>().join(", ")))
            }),
        );
        table("interface.constants", &mut constants.iter().map(|(k, v)| (k, quoted(v))));
        for (family, lines) in kernels {
            table(&format!("interface.kernels.{family}"), &mut lines.iter().map(|(k, v)| (k, quoted(v))));
        }
        for policy in POLICIES {
            if let Some(files) = self.files.get(policy) {
                table(&format!("files.{policy}"), &mut files.iter().map(|(k, v)| (k, quoted(v))));
            }
        }
        text
    }

    /// How the files of `now` differ from those recorded.
    pub fn drift(&self, now: &Record) -> Drift {
        let flat = |record: &Record| -> BTreeMap<String, String> {
            let of = |(policy, files): (&String, &BTreeMap<String, String>)| {
                files.iter().map(|(path, sha)| (format!("{policy}/{path}"), sha.clone())).collect::<Vec<_>>()
            };
            record.files.iter().flat_map(of).collect()
        };
        let (old, new) = (flat(self), flat(now));
        let mut drift = Drift::default();
        for (path, sha256) in &new {
            match old.get(path) {
                None => drift.added.push(path.clone()),
                Some(recorded) if recorded != sha256 => drift.changed.push(path.clone()),
                Some(_) => {}
            }
        }
        drift.removed = old.keys().filter(|path| !new.contains_key(*path)).cloned().collect();
        drift
    }

    /// How the interface of `now` differs from the one recorded.
    pub fn interface_changes(&self, now: &Record) -> Changes {
        interface::changes(&self.interface, &now.interface)
    }

    /// Why `now` must not be recorded: its interface breaks what this one promised, under no newer version.
    pub fn broken_promises(&self, now: &Record) -> Vec<String> {
        if newer(&now.package, &self.package) { Vec::new() } else { self.interface_changes(now).breakages() }
    }
}

fn newer(version: &str, than: &str) -> bool {
    match (semver::Version::parse(version), semver::Version::parse(than)) {
        (Ok(version), Ok(than)) => version > than,
        _ => false,
    }
}

/// Every policy's rendering.
pub fn renderings(catalog: &Catalog) -> anyhow::Result<Vec<Rendering>> {
    let all = POLICIES.into_par_iter().map(|policy| canonical::render(policy, catalog));
    all.collect::<Vec<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn now() -> Record {
        let catalog = catalog::catalog().unwrap();
        let small = [Rendering {
            policy: "fine",
            units: vec![],
            files: [("a/a_000.cu".to_owned(), "x".to_owned()), ("b \"c\".cu".to_owned(), "y".to_owned())]
                .into(),
        }];
        Record::new("0.21.7", catalog, &small).unwrap()
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(Record::load(&path).unwrap(), None);
        fs::write(&path, now().text().as_bytes()).unwrap();
        assert_eq!(Record::load(&path).unwrap(), Some(now()));
    }

    #[test]
    fn files_of_other_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for (from, to, message) in [
            ("version = 1", "version = 2", "version 2 of the format"),
            ("version = 1", "", "`version` is missing"),
            ("natten = ", "nattem = ", "nattem"),
        ] {
            fs::write(&path, now().text().replacen(from, to, 1).as_bytes()).unwrap();
            let error = Record::load(&path).unwrap_err();
            assert_eq!(crate::failure::class(&error), crate::failure::Class::Config);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn every_kind_of_drift_is_listed() {
        let old = now();
        let mut new = now();
        let files = new.files.get_mut("fine").unwrap();
        files.remove("a/a_000.cu");
        files.insert("new.cu".into(), "0".into());
        files.insert("b \"c\".cu".into(), "0".into());
        let drift = old.drift(&new);
        assert_eq!(drift.added, ["fine/new.cu"]);
        assert_eq!(drift.removed, ["fine/a/a_000.cu"]);
        assert_eq!(drift.changed, ["fine/b \"c\".cu"]);
        assert!(old.drift(&now()).is_nothing());
    }

    #[test]
    fn a_broken_interface_needs_a_newer_version() {
        let old = now();
        let mut new = now();
        new.interface.operations.remove("natten_na1d_forward");
        let promise = ["operation natten_na1d_forward is gone"];
        assert_eq!(old.broken_promises(&new), promise);
        for (version, kept) in [("0.0.9", false), (PACKAGE, false), ("nonsense", false), ("99.0.0", true)] {
            new.package = version.to_owned();
            assert_eq!(old.broken_promises(&new).is_empty(), kept, "{version}");
        }
        // What is only new needs none.
        new = now();
        new.interface.operations.insert("natten_new".into(), "void natten_new(void)".into());
        assert!(old.broken_promises(&new).is_empty());
    }
}
