//! The canonical rendering of the kernel tables: written to disk, recorded in `autogen.lock`, and held
//! against upstream's own generators.

pub mod bump;
pub mod canonical;
mod declarations;
pub mod directory;
mod entries;
mod generators;
pub mod interface;
pub mod oracle;
pub mod record;
pub mod upstream;

use crate::catalog;
use crate::failure::Failure;
use crate::fs;
use canonical::{Count, Files, Rendering};
use directory::{Changes, State};
use record::{Drift, Record};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What is written where.
#[derive(Debug, Clone)]
pub struct Request {
    /// The directory of build.toml and autogen.lock.
    pub root: PathBuf,
    /// The natten version that build.toml names.
    pub natten: String,
    /// The policies whose units are written.
    pub policies: Vec<&'static str>,
    /// Where to, instead of `build/autogen/<policy>`; several policies get a directory each in it.
    pub out: Option<PathBuf>,
    /// Whether files that were edited by hand may be lost.
    pub force: bool,
}

impl Request {
    /// Where the units of a policy go.
    fn directory(&self, policy: &str) -> PathBuf {
        match &self.out {
            Some(out) if self.policies.len() == 1 => out.clone(),
            Some(out) => out.join(policy),
            None => default_directory(&self.root, policy),
        }
    }
}

fn default_directory(root: &Path, policy: &str) -> PathBuf {
    root.join("build/autogen").join(policy)
}

/// What a run wrote.
#[derive(Debug, Serialize)]
pub struct Written {
    schema_version: u32,
    /// Units per family, of every policy.
    pub counts: Vec<Counts>,
    /// What became of each directory.
    pub directories: Vec<Directory>,
    /// How the rendered files differ from what autogen.lock said.
    pub drift: Drift,
    /// Whether autogen.lock was written.
    pub recorded: bool,
}

/// Units per family under one policy.
#[derive(Debug, Serialize)]
pub struct Counts {
    /// The policy.
    pub policy: &'static str,
    /// Units of the eleven families that upstream generates.
    pub autogen: usize,
    /// Units of all families.
    pub all: usize,
    /// Families in the catalog's order.
    pub families: Vec<Count>,
}

/// One directory after a run.
#[derive(Debug, Serialize)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// What changed in it.
    #[serde(flatten)]
    pub changes: Changes,
}

/// Renders everything, writes the units of the policies asked for, and records all in autogen.lock.
pub fn write(request: &Request) -> anyhow::Result<Written> {
    write_rendered(request, || record::renderings(catalog::catalog()?))
}

/// Nothing is touched before everything is rendered, the record may be renewed, and every directory may
/// be written.
fn write_rendered(
    request: &Request,
    render: impl FnOnce() -> anyhow::Result<Vec<Rendering>>,
) -> anyhow::Result<Written> {
    let renderings = render()?;
    let now = Record::new(&request.natten, catalog::catalog()?, &renderings)?;
    let lock = request.root.join(record::FILE);
    let old = Record::load(&lock)?;
    if let Some(old) = &old {
        may_follow(old, &now)?;
    }
    let wanted: Vec<(PathBuf, &Files)> = renderings
        .iter()
        .filter(|rendering| request.policies.contains(&rendering.policy))
        .map(|rendering| Ok((directory::place(&request.directory(rendering.policy))?, &rendering.files)))
        .collect::<anyhow::Result<_>>()?;
    let updates = wanted
        .iter()
        .map(|(at, files)| directory::update(at, files, request.force))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut directories = Vec::new();
    for ((path, _), update) in wanted.iter().zip(updates) {
        directories.push(Directory { path: path.clone(), changes: update.apply()? });
    }
    let drift = old.map_or_else(Drift::default, |old| old.drift(&now));
    let recorded = fs::write_if_changed(&lock, now.text().as_bytes())?;
    Ok(Written {
        schema_version: 1,
        counts: renderings.iter().map(counts).collect(),
        directories,
        drift,
        recorded,
    })
}

fn counts(rendering: &Rendering) -> Counts {
    let [autogen, others] = rendering.totals();
    Counts { policy: rendering.policy, autogen, all: autogen + others, families: rendering.units.clone() }
}

/// Fails where the record must not be renewed: for another natten, whose tables nobody compared, or for an
/// interface that breaks what was promised.
fn may_follow(old: &Record, now: &Record) -> anyhow::Result<()> {
    if old.natten != now.natten {
        return Err(Failure::config(other_natten(old, &now.natten))
            .hint(format!(
                "run `nattenc regen --upstream {}`, which compares the kernel tables with that version",
                now.natten
            ))
            .into());
    }
    let broken = old.broken_promises(now);
    if broken.is_empty() { Ok(()) } else { Err(breaks(old, &broken).into()) }
}

/// The failure of an interface that breaks what `old` promised.
fn breaks(old: &Record, broken: &[String]) -> Failure {
    Failure::integrity(format!(
        "{}: the public interface of version {} would break\n  {}",
        record::FILE,
        old.package,
        broken.join("\n  ")
    ))
    .hint("raise `version` in Cargo.toml's [workspace.package], or take the change back")
}

fn other_natten(old: &Record, natten: &str) -> String {
    format!("{}: recorded for natten {}, and build.toml names {natten}", record::FILE, old.natten)
}

impl Written {
    /// Units per family and policy, then what was written.
    pub fn text(&self) -> String {
        let mut lines = vec![row("units", self.counts.iter().map(|c| c.policy.to_owned()))];
        let families = self.counts.first().map_or(&[][..], |counts| &counts.families);
        for (index, Count { family, .. }) in families.iter().enumerate() {
            lines.push(row(family, self.counts.iter().map(|c| c.families[index].units.to_string())));
        }
        lines.push(row("as upstream's autogen", self.counts.iter().map(|c| c.autogen.to_string())));
        lines.push(row("all", self.counts.iter().map(|c| c.all.to_string())));
        for Directory { path, changes } in &self.directories {
            let Changes { added, removed, changed, kept } = changes;
            let what = if changes.is_nothing() {
                "unchanged".to_owned()
            } else {
                format!("{} added, {} changed, {} removed", added.len(), changed.len(), removed.len())
            };
            lines.push(format!("{}: {what}, {kept} kept", path.display()));
        }
        lines.push(format!("{}: {}", record::FILE, if self.recorded { "written" } else { "unchanged" }));
        lines.join("\n")
    }
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> String {
    cells.fold(format!("{name:<22}"), |line, cell| format!("{line} {cell:>8}"))
}

/// What `--check` found.
#[derive(Debug, Serialize)]
pub struct Verdict {
    schema_version: u32,
    /// Whether there is no difference at all.
    pub up_to_date: bool,
    /// What is wrong with the record as a whole.
    pub record: Vec<String>,
    /// The natten of the record and that of build.toml, where a bump was cut short.
    #[serde(skip)]
    bump: Option<[String; 2]>,
    /// Rendered files against the record.
    pub files: Drift,
    /// The public interface against the record.
    pub interface: interface::Changes,
    /// What the interface breaks although the package's version is not newer than the recorded one.
    pub broken_without_a_new_version: Vec<String>,
    /// Directories of `build/autogen` that nattenc wrote and that differ.
    pub directories: Vec<Checked>,
}

/// A directory that was checked.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Relative to build.toml's directory.
    pub path: String,
    /// How it differs.
    #[serde(flatten)]
    pub state: State,
}

/// Compares what would be written now with autogen.lock and with what lies in `build/autogen`; writes nothing.
pub fn check(root: &Path, natten: &str) -> anyhow::Result<Verdict> {
    let catalog = catalog::catalog()?;
    let renderings = record::renderings(catalog)?;
    let now = Record::new(natten, catalog, &renderings)?;
    let mut verdict = Verdict {
        schema_version: 1,
        up_to_date: false,
        record: Vec::new(),
        bump: None,
        files: Drift::default(),
        interface: interface::Changes::default(),
        broken_without_a_new_version: Vec::new(),
        directories: Vec::new(),
    };
    match Record::load(&root.join(record::FILE))? {
        None => verdict.record.push(format!("{}: is not there", record::FILE)),
        Some(old) => {
            if old.natten != natten {
                verdict.record.push(other_natten(&old, natten));
                verdict.bump = Some([old.natten.clone(), natten.to_owned()]);
            }
            if old.package != now.package {
                verdict.record.push(format!(
                    "{}: recorded for version {} of the package, which is {}",
                    record::FILE,
                    old.package,
                    now.package
                ));
            }
            verdict.files = old.drift(&now);
            verdict.interface = old.interface_changes(&now);
            verdict.broken_without_a_new_version = old.broken_promises(&now);
        }
    }
    for rendering in &renderings {
        let at = default_directory(root, rendering.policy);
        if let Some(state) = directory::state(&at, &rendering.files)?
            && !state.is_current()
        {
            verdict.directories.push(Checked { path: format!("build/autogen/{}", rendering.policy), state });
        }
    }
    verdict.up_to_date = verdict.differences() == 0;
    Ok(verdict)
}

impl Verdict {
    /// A line per difference.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.record.clone();
        let mut list = |what: &str, paths: &[String]| {
            lines.extend(paths.iter().map(|path| format!("{what} {path}")));
        };
        list("added    ", &self.files.added);
        list("removed  ", &self.files.removed);
        list("changed  ", &self.files.changed);
        list("interface: added", &self.interface.added);
        list("interface: removed", &self.interface.removed);
        list("interface: changed:", &self.interface.changed);
        for Checked { path, state } in &self.directories {
            list("edited by hand", &in_directory(path, &state.edited));
            list("missing  ", &in_directory(path, &state.missing));
            list("outdated ", &in_directory(path, &state.outdated));
        }
        lines
    }

    /// How many differences there are.
    pub fn differences(&self) -> usize {
        self.lines().len()
    }

    /// Every difference, then their number.
    pub fn text(&self) -> String {
        let mut lines = self.lines();
        lines.push(match lines.len() {
            0 => format!("{} is up to date", record::FILE),
            1 => format!("{}: 1 difference", record::FILE),
            count => format!("{}: {count} differences", record::FILE),
        });
        lines.join("\n")
    }

    /// Class integrity unless there is no difference.
    pub fn result(&self) -> anyhow::Result<()> {
        if self.up_to_date {
            return Ok(());
        }
        if !self.broken_without_a_new_version.is_empty() {
            return Err(Failure::integrity(format!(
                "the public interface breaks without a newer version of the package\n  {}",
                self.broken_without_a_new_version.join("\n  ")
            ))
            .hint("raise `version` in Cargo.toml's [workspace.package] and run `nattenc regen`, or take the change back")
            .into());
        }
        Err(Failure::integrity(format!(
            "what is rendered and what {} and build/autogen hold differ in {}",
            record::FILE,
            match self.differences() {
                1 => "1 place".to_owned(),
                count => format!("{count} places"),
            }
        ))
        .hint(self.next_step())
        .into())
    }

    fn next_step(&self) -> String {
        if let Some([recorded, named]) = &self.bump {
            return format!(
                "`nattenc regen --upstream {recorded}` completes the change, `--upstream {named}` takes it back"
            );
        }
        if let Some(foreign) = self.directories.iter().find(|checked| checked.state.is_foreign()) {
            return format!("move {} away and run `nattenc regen`", foreign.path);
        }
        if self.directories.iter().any(|Checked { state, .. }| !state.edited.is_empty()) {
            return "make the edits in templates/ instead, then `nattenc regen --force`, which loses those in build/autogen".to_owned();
        }
        "if they are meant, run `nattenc regen` and commit autogen.lock".to_owned()
    }
}

fn in_directory(directory: &str, paths: &[String]) -> Vec<String> {
    paths.iter().map(|path| format!("{directory}/{path}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Class, class};
    use std::collections::BTreeMap;

    fn request(root: &Path) -> Request {
        Request {
            root: root.to_path_buf(),
            natten: "0.21.7".to_owned(),
            policies: vec!["default"],
            out: None,
            force: false,
        }
    }

    fn rendering(text: &str) -> Vec<Rendering> {
        let files = BTreeMap::from([("fna/fna_000.cu".to_owned(), text.to_owned())]);
        vec![Rendering { policy: "default", units: vec![], files }]
    }

    /// Everything below a directory but the locks of writers, with its bytes.
    fn snapshot(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = walkdir::WalkDir::new(root).into_iter().map(Result::unwrap);
        let files = files.filter(|e| e.file_type().is_file() && !e.path().ends_with(".default.lock"));
        files.map(|e| (e.path().to_path_buf(), fs::read(e.path()).unwrap())).collect()
    }

    #[test]
    fn an_error_of_a_template_or_a_table_leaves_everything_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write_rendered(&request(root), || Ok(rendering("one"))).unwrap();
        let before = snapshot(root);
        let error = write_rendered(&request(root), || Err(anyhow::anyhow!("template x: no"))).unwrap_err();
        assert_eq!(error.to_string(), "template x: no");
        assert!(snapshot(root) == before);
    }

    #[test]
    fn neither_directory_nor_record_is_written_where_one_of_them_must_not_be() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write_rendered(&request(root), || Ok(rendering("one"))).unwrap();
        let unit = root.join("build/autogen/default/fna/fna_000.cu");
        // Edited by hand.
        fs::write(&unit, b"edited").unwrap();
        let before = snapshot(root);
        let error = write_rendered(&request(root), || Ok(rendering("two"))).unwrap_err();
        assert_eq!(class(&error), Class::Integrity);
        assert!(snapshot(root) == before);
        // Recorded for another natten.
        let other = Request { natten: "0.21.6".to_owned(), force: true, ..request(root) };
        let error = write_rendered(&other, || Ok(rendering("two"))).unwrap_err();
        assert_eq!(class(&error), Class::Config);
        assert!(error.to_string().contains("0.21.7"), "{error}");
        assert!(snapshot(root) == before);
        // As after a bump that was cut short.
        let cut = check(root, "0.21.6").unwrap().next_step();
        assert!(cut.starts_with("`nattenc regen --upstream 0.21.7` completes"), "{cut}");
        let edited = check(root, "0.21.7").unwrap().next_step();
        assert!(edited.contains("--force"), "{edited}");
        // An operation is gone without a new version.
        let lock = root.join(record::FILE);
        let text = fs::read_text(&lock).unwrap();
        let gone = text.replacen(
            "[interface.operations]\n",
            "[interface.operations]\nnatten_gone = \"void natten_gone(void)\"\n",
            1,
        );
        fs::write(&lock, gone.as_bytes()).unwrap();
        let before = snapshot(root);
        let forced = Request { force: true, ..request(root) };
        let error = write_rendered(&forced, || Ok(rendering("two"))).unwrap_err();
        assert!(error.to_string().contains("operation natten_gone is gone"), "{error}");
        assert_eq!(class(&error), Class::Integrity);
        assert!(snapshot(root) == before);
        // With an older version recorded it is a release's right.
        fs::write(
            &lock,
            gone.replace(&format!("package = \"{}\"", record::PACKAGE), "package = \"0.0.1\"").as_bytes(),
        )
        .unwrap();
        let written = write_rendered(&forced, || Ok(rendering("two"))).unwrap();
        assert_eq!(written.directories[0].changes.changed, ["fna/fna_000.cu"]);
        assert_eq!(written.drift.changed, ["default/fna/fna_000.cu"]);
        assert!(written.recorded);
        assert_eq!(fs::read_text(&unit).unwrap(), "two");
    }

    #[test]
    fn the_checkouts_own_record_is_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let config = crate::config::load(&root.join("build.toml")).unwrap();
        let verdict = check(&root, &config.natten).unwrap();
        let ours = Verdict { directories: vec![], ..verdict };
        assert_eq!(ours.lines(), [""; 0], "run `nattenc regen` and commit autogen.lock");
    }
}
