//! Shards: the objects of some of a plan's units and the records of the jobs that made them, in a directory that can
//! travel to the machine that links. What is in one is believed only where its digest says so.

use super::record::Inputs;
use crate::config::Variant;
use crate::cost::{self, predict};
use crate::execute::Built;
use crate::execute::cache::{Action, Cache};
use crate::failure::Failure;
use crate::fs;
use crate::graph::{Graph, JobId};
use crate::package::{self, Contents, Packaged, manifest::File};
use crate::plan::Plan;
use crate::plan::shard::{self, Position};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file that makes a directory a shard.
pub(super) const MANIFEST: &str = "shard.json";

/// The records of the jobs, by the key of each.
const RECORDS: &str = "records.json";

/// Of [`Manifest`] and the records.
const FORMAT_VERSION: u32 = 1;

/// The keys of records are those of the nattenc that wrote them.
const NATTENC: &str = env!("CARGO_PKG_VERSION");

/// What a shard says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Manifest {
    format_version: u32,
    /// The nattenc that wrote it.
    nattenc: String,
    variant: String,
    shard: Position,
    /// What was asked for, as the command line has it: the merge asks for the same.
    selection: serde_json::Value,
    /// Everything that the units of the whole plan are compiled from.
    inputs: Inputs,
    /// The labels of its own units.
    units: Vec<String>,
    /// Every other file of the shard.
    files: Vec<File>,
    /// SHA-256 of all of this with an empty one.
    digest: String,
}

impl Manifest {
    fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The digest that it should state.
    fn own_digest(&self) -> anyhow::Result<String> {
        Ok(fs::sha256_of(Manifest { digest: String::new(), ..self.clone() }.text()?.as_bytes()))
    }
}

/// A shard that was read: its manifest is whole, its other files are not looked at yet.
#[derive(Debug, Clone)]
pub struct Shard {
    dir: PathBuf,
    manifest: Manifest,
}

/// What a shard holds.
struct Held {
    /// Of all jobs, by the key of each.
    records: BTreeMap<String, Action>,
    /// In the order of its units.
    objects: Vec<Vec<u8>>,
}

/// The labels of the units of one shard of `plan`.
///
/// Fails, with class configuration, where there are fewer units than shards.
pub(super) fn units(plan: &Plan, position: Position) -> anyhow::Result<BTreeSet<String>> {
    let table = cost::table()?;
    if plan.units.len() < position.count {
        return Err(Failure::config(format!(
            "--shard {position}: the plan has {} units, too few for {} shards",
            plan.units.len(),
            position.count
        ))
        .hint("ask for fewer shards, or split finer with --policy fine")
        .into());
    }
    let costs = predict::costs(plan, table);
    let shards = shard::assign(&costs, position.count);
    let own = costs.into_iter().zip(shards).filter(|(_, shard)| shard + 1 == position.index);
    Ok(own.map(|((label, _), _)| label).collect())
}

/// Where the shard of a variant goes.
pub(super) fn dist(whole: &Path, position: Position) -> PathBuf {
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    whole.with_file_name(format!("{name}.shard-{}-of-{}", position.index, position.count))
}

/// What a shard is of, beside its units.
pub(super) struct Of<'a> {
    pub(super) variant: &'a Variant,
    pub(super) position: Position,
    pub(super) selection: &'a serde_json::Value,
    pub(super) inputs: &'a Inputs,
}

/// Puts what was built into `dist`, whole.
pub(super) fn write(
    dist: &Path,
    of: &Of<'_>,
    graph: &Graph,
    objects: &[(String, JobId)],
    built: &Built,
    cache: &Cache,
) -> anyhow::Result<Packaged> {
    let mut records: BTreeMap<&str, Action> = BTreeMap::new();
    for (job, key) in graph.jobs().iter().zip(&built.keys) {
        let action = cache.action(key).ok_or_else(|| {
            Failure::integrity(format!("{}: the cache lost its record", job.label))
                .hint("run the same command again")
        })?;
        records.insert(key, action);
    }
    let mut contents = Contents::new();
    contents.insert(RECORDS.to_owned(), (serde_json::to_string(&records)? + "\n").into_bytes());
    for ((label, _), bytes) in objects.iter().zip(&built.wanted) {
        contents.insert(object(label), bytes.clone());
    }
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        nattenc: NATTENC.to_owned(),
        variant: of.variant.name.clone(),
        shard: of.position,
        selection: of.selection.clone(),
        inputs: of.inputs.clone(),
        units: objects.iter().map(|(label, _)| label.clone()).collect(),
        files: package::files(&contents),
        digest: String::new(),
    };
    manifest.digest = manifest.own_digest()?;
    let text = manifest.text()?;
    if package::is_current(dist, MANIFEST, &text, &manifest.files, &fs::sha256)? {
        return Ok(Packaged::Unchanged);
    }
    package::write(dist, MANIFEST, &contents, &text, |_| Ok(()))?;
    Ok(Packaged::Written)
}

/// The file of a unit's object, from its label `core/fna_011`.
fn object(label: &str) -> String {
    format!("objects/{label}.o")
}

/// Reads what the shard in `dir` says of itself.
///
/// Fails, with class configuration, where there is none or one of another nattenc, with class integrity where its
/// manifest was changed.
pub fn read(dir: &Path) -> anyhow::Result<Shard> {
    let path = dir.join(MANIFEST);
    let Some(bytes) = fs::read_if_exists(&path)? else {
        let why = match (dir.is_dir(), dir.exists()) {
            (true, _) => format!("it has no {MANIFEST}"),
            (false, true) => "it is a file".to_owned(),
            (false, false) => "there is no such directory".to_owned(),
        };
        return Err(Failure::config(format!("{}: is no shard: {why}", dir.display()))
            .hint("name directories that `nattenc build --shard i/n` wrote")
            .into());
    };
    let changed = |why: &str| {
        Failure::integrity(format!("{}: {why}", path.display())).hint("build or download this shard again")
    };
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
        #[serde(default)]
        nattenc: String,
    }
    let version: Version = serde_json::from_slice(&bytes).map_err(|_| changed("is no shard's manifest"))?;
    if (version.format_version, version.nattenc.as_str()) != (FORMAT_VERSION, NATTENC) {
        return Err(Failure::config(format!(
            "{}: nattenc {} wrote it, in format {}; this is nattenc {NATTENC}, which reads format {FORMAT_VERSION}",
            path.display(),
            version.nattenc,
            version.format_version
        ))
        .hint("merge with the nattenc that built the shards")
        .into());
    }
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|why| changed(&format!("cannot be read: {why}")))?;
    if manifest.digest != manifest.own_digest()? {
        return Err(changed("was changed: it has not the digest that it states").into());
    }
    Ok(Shard { dir: dir.to_path_buf(), manifest })
}

impl Shard {
    /// The variant that it is a part of.
    pub fn variant(&self) -> &str {
        &self.manifest.variant
    }

    /// What was asked for, as the command line has it.
    pub fn selection(&self) -> &serde_json::Value {
        &self.manifest.selection
    }

    fn name(&self) -> String {
        format!("{} ({})", self.manifest.shard, self.dir.display())
    }
}

/// Whether these are all shards of one plan. Fails, with class configuration, naming those that are not.
pub fn together(shards: &[Shard]) -> anyhow::Result<()> {
    let Some(first) = shards.first() else {
        return Err(Failure::config("no shards to merge").hint("name their directories").into());
    };
    let other = |shard: &Shard, what: String| {
        Failure::config(format!("{} and {} are not of one build: {what}", first.name(), shard.name()))
            .hint("build all shards from the same checkout, with the same options and toolkit")
    };
    let mut seen: BTreeMap<usize, &Shard> = BTreeMap::new();
    for shard in shards {
        let (a, b) = (&first.manifest, &shard.manifest);
        if a.variant != b.variant {
            return Err(other(shard, format!("variants {} and {}", a.variant, b.variant)).into());
        }
        if a.shard.count != b.shard.count {
            return Err(other(shard, format!("{} shards and {}", a.shard.count, b.shard.count)).into());
        }
        if a.selection != b.selection {
            return Err(other(shard, format!("options {} and {}", a.selection, b.selection)).into());
        }
        if let Some(what) = b.inputs.difference(&a.inputs) {
            return Err(other(shard, what).into());
        }
        if let Some(twin) = seen.insert(b.shard.index, shard) {
            return Err(Failure::config(format!(
                "shard {} is there twice: {} and {}",
                b.shard,
                twin.dir.display(),
                shard.dir.display()
            ))
            .hint("name each shard once")
            .into());
        }
    }
    let count = first.manifest.shard.count;
    let missing: Vec<String> = (1..=count)
        .filter(|index| !seen.contains_key(index))
        .map(|index| Position { index, count }.to_string())
        .collect();
    if !missing.is_empty() {
        return Err(Failure::config(format!(
            "{} of {count} shards are missing: {}",
            missing.len(),
            missing.join(", ")
        ))
        .hint(format!("build it with the same options and --shard {}", missing[0]))
        .into());
    }
    Ok(())
}

/// Puts what the shards hold into the cache, once all of them are whole and what this checkout plans is what they
/// were built from.
pub(super) fn import(shards: &[Shard], plan: &Plan, inputs: &Inputs, cache: &Cache) -> anyhow::Result<()> {
    let named = &shards[0];
    if let Some(what) = inputs.difference(&named.manifest.inputs) {
        return Err(Failure::config(format!("{} was not built from what is here: {what}", named.name()))
            .hint("merge in the checkout that the shards were built from, with the same toolkit and host compiler")
            .into());
    }
    let held: BTreeSet<&String> = shards.iter().flat_map(|shard| &shard.manifest.units).collect();
    if let Some(lost) = plan.units.iter().map(|unit| unit.label()).find(|label| !held.contains(label)) {
        return Err(Failure::integrity(format!("{lost}: is in no shard"))
            .hint("build all shards again with one release of nattenc")
            .into());
    }
    // All are checked before the first is taken.
    let all: Vec<Held> = shards.iter().map(Shard::contents).collect::<Result<_, _>>()?;
    for held in &all {
        for bytes in &held.objects {
            cache.put(bytes)?;
        }
        for (key, action) in &held.records {
            cache.put_action(key, action)?;
        }
    }
    Ok(())
}

impl Shard {
    /// The records and the objects, every file checked.
    fn contents(&self) -> anyhow::Result<Held> {
        let mut files: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for file in &self.manifest.files {
            let path = self.dir.join(&file.path);
            let found = fs::read_if_exists(&path)?;
            let sum = found.as_ref().map(|bytes| fs::sha256_of(bytes));
            match (found, sum) {
                (Some(bytes), Some(sum)) if sum == file.sha256 => {
                    files.insert(&file.path, bytes);
                }
                (_, None) => return Err(self.damaged(&format!("{} is not there", path.display()))),
                (_, Some(sum)) => {
                    let expected = &file.sha256;
                    let why =
                        format!("{} was changed: expected sha256 {expected}, got {sum}", path.display());
                    return Err(self.damaged(&why));
                }
            }
        }
        let mut take =
            |name: &str| files.remove(name).ok_or_else(|| self.damaged(&format!("it lists no {name}")));
        let records: BTreeMap<String, Action> = serde_json::from_slice(&take(RECORDS)?)
            .map_err(|why| self.damaged(&format!("{RECORDS} cannot be read: {why}")))?;
        // Keys are names of files in the store.
        if let Some(key) = records.keys().find(|key| !key.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            return Err(self.damaged(&format!("{RECORDS} has {key:?}, which is no key")));
        }
        let mut objects = Vec::new();
        for label in &self.manifest.units {
            objects.push(take(&object(label))?);
        }
        Ok(Held { records, objects })
    }

    fn damaged(&self, why: &str) -> anyhow::Error {
        let failure = Failure::integrity(format!("shard {}: {why}", self.manifest.shard));
        failure.hint("build or download this shard again").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Class, class};

    fn shard(index: usize, count: usize) -> Shard {
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            nattenc: NATTENC.to_owned(),
            variant: "cu130".to_owned(),
            shard: Position { index, count },
            selection: serde_json::json!({ "preset": "starter" }),
            inputs: Inputs::sample(&[("ptxas", "1")]),
            units: vec!["core/fna_000".to_owned()],
            files: package::files(&contents()),
            digest: String::new(),
        };
        manifest.digest = manifest.own_digest().unwrap();
        Shard { dir: PathBuf::from(format!("shard-{index}")), manifest }
    }

    fn contents() -> Contents {
        [(RECORDS, "{}\n"), ("objects/core/fna_000.o", "object")]
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .into()
    }

    fn refused(shards: &[Shard], class_is: Class, parts: &[&str]) {
        let error = together(shards).unwrap_err();
        assert_eq!(class(&error), class_is);
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    }

    #[test]
    fn shards_that_do_not_belong_together_are_named() {
        let (one, two, three) = (shard(1, 3), shard(2, 3), shard(3, 3));
        together(&[three.clone(), one.clone(), two.clone()]).unwrap();
        let changed = |change: &dyn Fn(&mut Manifest)| {
            let mut shard = three.clone();
            change(&mut shard.manifest);
            shard
        };
        refused(&[one.clone(), three.clone()], Class::Config, &["1 of 3 shards are missing: 2/3"]);
        refused(&[one.clone(), two.clone(), one.clone()], Class::Config, &["shard 1/3 is there twice"]);
        for (other, part) in [
            (changed(&|m| m.shard = Position { index: 3, count: 4 }), "3 shards and 4"),
            (changed(&|m| m.variant = "cu124".to_owned()), "variants cu130 and cu124"),
            (changed(&|m| m.selection = serde_json::json!({})), "options"),
            (changed(&|m| m.inputs = Inputs::sample(&[("ptxas", "2")])), "ptxas"),
        ] {
            refused(&[one.clone(), two.clone(), other], Class::Config, &["1/3 (shard-1)", "(shard-3)", part]);
        }
        refused(&[], Class::Config, &["no shards"]);
    }

    #[test]
    fn what_is_no_shard_any_more_is_told_by_its_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("s");
        let manifest = shard(1, 1).manifest;
        let text = manifest.text().unwrap();
        let write = || package::write(&dir, MANIFEST, &contents(), &text, |_| Ok(())).unwrap();
        write();
        let held = read(&dir).unwrap().contents().unwrap();
        assert!(held.records.is_empty() && held.objects == [b"object".to_vec()]);

        fs::write(&dir.join("objects/core/fna_000.o"), b"other").unwrap();
        let error = read(&dir).unwrap().contents().err().unwrap();
        assert!(class(&error) == Class::Integrity && error.to_string().contains("fna_000.o was changed"));
        fs::remove_file(&dir.join("objects/core/fna_000.o")).unwrap();
        let error = read(&dir).unwrap().contents().err().unwrap();
        assert!(error.to_string().contains("fna_000.o is not there"), "{error}");

        write();
        let record = br#"{"../x": {"outputs": [], "headers": [], "cpu": 0, "wall": 0, "peak_memory": 0}}"#;
        let outside = Contents::from([(RECORDS.to_owned(), record.to_vec())]);
        let mut other = shard(1, 1).manifest;
        (other.files, other.units) = (package::files(&outside), vec![]);
        other.digest = other.own_digest().unwrap();
        package::write(&dir, MANIFEST, &outside, &other.text().unwrap(), |_| Ok(())).unwrap();
        let error = read(&dir).unwrap().contents().err().unwrap();
        assert!(error.to_string().contains("\"../x\", which is no key"), "{error}");

        for (wrong, class_is, part) in [
            (text.replace("cu130", "cu128"), Class::Integrity, "was changed"),
            (text.replace("\"format_version\": 1", "\"format_version\": 7"), Class::Config, "in format 7"),
            (
                text.replace(&format!("\"nattenc\": \"{NATTENC}\""), "\"nattenc\": \"0.0.1\""),
                Class::Config,
                "nattenc 0.0.1 wrote it",
            ),
            (text[..text.len() / 2].to_owned(), Class::Integrity, "no shard's manifest"),
        ] {
            fs::write(&dir.join(MANIFEST), wrong.as_bytes()).unwrap();
            let error = read(&dir).unwrap_err();
            assert!(class(&error) == class_is && error.to_string().contains(part), "{error}");
        }
        for (path, why) in [
            (root.path().to_path_buf(), "it has no shard.json"),
            (dir.join(MANIFEST), "it is a file"),
            (root.path().join("shard-*"), "there is no such directory"),
        ] {
            let error = read(&path).unwrap_err();
            assert!(class(&error) == Class::Config && error.to_string().ends_with(why), "{error}");
        }
    }
}
