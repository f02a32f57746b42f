//! Reads build.toml and variants/*.toml into checked values. Every problem in a file is reported at once,
//! with its line and column; what needs a toolkit to be decided is left to the plan.

mod check;
mod ci;
mod place;
mod read;
pub mod release;
mod select;
pub mod share;
#[cfg(test)]
mod tests;
mod variant;

pub use ci::Ci;
pub use place::{Place, nearest};
pub use release::Release;
pub use select::{Causal, DIRECTIONS, DTYPES, Selector, Traits, selected};
pub use share::Share;
pub use variant::{Provider, Redist, Variant, variant, variants};

use crate::failure::Failure;
use crate::fs;
use crate::plan::capability::CapabilityRequest;
use crate::plan::policy::Policies;
use place::{Problems, suggestion};
use read::{At, Table};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every family that upstream has, whether or not this release has templates for it, and ours.
pub const FAMILIES: &[&str] = &[
    "reference",
    "fna",
    "fmha",
    "hopper_fna",
    "hopper_fna_bwd",
    "hopper_fmha",
    "hopper_fmha_bwd",
    "blackwell_fna",
    "blackwell_fna_bwd",
    "blackwell_fmha",
    "blackwell_fmha_bwd",
    "token_permute",
    "compute_delta",
    "merge",
];

/// What build.toml says.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file, named as it was given.
    pub path: PathBuf,
    /// The variant that is built where none is named.
    pub default_variant: String,
    /// The release of natten whose sources are built.
    pub natten: String,
    /// `[policy]`: how families are split into units.
    pub policies: Policies,
    /// CUTLASS headers to use instead of those inside the sources.
    pub cutlass: Option<Cutlass>,
    /// `[section.*]`, in the order of the file.
    pub sections: Vec<Section>,
    /// `[preset.*]`, by name.
    pub presets: BTreeMap<String, Preset>,
    /// `[ci]`, where there is one.
    pub ci: Option<Ci>,
}

/// `cutlass` of `[upstream]`: other headers than those inside natten's sources.
#[derive(Debug, Clone)]
pub struct Cutlass {
    /// Where they are.
    pub source: CutlassSource,
    /// The versions that they may have.
    pub versions: semver::VersionReq,
    /// Where it stands.
    pub at: Place,
}

/// Where CUTLASS headers are.
#[derive(Debug, Clone)]
pub enum CutlassSource {
    /// A checkout with a directory `include`, relative to build.toml.
    Path(PathBuf),
    /// An archive of one.
    Archive {
        /// A URL, or a path relative to build.toml.
        archive: String,
        /// Its SHA-256, lowercase hex.
        sha256: String,
    },
}

/// `[section.<name>]`: families that are built for the same capabilities with the same flags.
#[derive(Debug, Clone)]
pub struct Section {
    /// `core`, `hopper`, `blackwell`.
    pub name: String,
    /// Its families, in the order of the file.
    pub families: Vec<String>,
    /// The capabilities asked for, in the order of the file.
    pub capabilities: Vec<CapabilityEntry>,
    /// The first toolkit release that builds it.
    pub minver: Option<Release>,
    /// The last toolkit release that builds it.
    pub maxver: Option<Release>,
    /// `cuda-flags`: further arguments of nvcc.
    pub flags: Vec<String>,
    /// `share`: capabilities that are assembled from another's PTX.
    pub share: Vec<Share>,
    /// Whether nothing to build for it, its own gate apart, is an error. True unless the file says otherwise.
    pub required: bool,
    /// Where it stands.
    pub at: Place,
}

/// One capability of a section, with its own gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityEntry {
    /// What is asked for.
    pub request: CapabilityRequest,
    /// The first toolkit release it is built with.
    pub minver: Option<Release>,
    /// The last toolkit release it is built with.
    pub maxver: Option<Release>,
    /// Where it stands.
    pub at: Place,
}

/// `[preset.<name>]`: a named selection.
#[derive(Debug, Clone)]
pub struct Preset {
    /// Its name.
    pub name: String,
    /// Only these sections.
    pub sections: Option<Vec<String>>,
    /// Only these families.
    pub families: Option<Vec<String>>,
    /// Only these capabilities.
    pub capabilities: Option<Vec<CapabilityRequest>>,
    /// Only kernels that these keep.
    pub select: Vec<Selector>,
    /// Where it stands.
    pub at: Place,
}

impl Config {
    /// This configuration with the capabilities that `variant` has in place of its own.
    pub fn with_variant(&self, variant: &Variant) -> anyhow::Result<Config> {
        let mut config = self.clone();
        let names: Vec<&str> = self.sections.iter().map(|s| s.name.as_str()).collect();
        for (name, entries) in &variant.capabilities {
            let Some(section) = config.sections.iter_mut().find(|s| s.name == *name) else {
                let at = entries.first().map(|e| e.at.to_string()).unwrap_or_default();
                return Err(Failure::config(format!(
                    "{at}: variant \"{}\" has [section.{name}], which {} does not have; {}",
                    variant.name,
                    self.path.display(),
                    suggestion(name, &names)
                ))
                .hint(format!("rename or remove [section.{name}] in the definition of {}", variant.name))
                .into());
            };
            section.capabilities.clone_from(entries);
        }
        Ok(config)
    }

    /// The section of that name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }
}

/// Reads and checks build.toml.
pub fn load(path: &Path) -> anyhow::Result<Config> {
    parse(path, &fs::read_text(path)?)
}

/// Checks the text of a build.toml; `path` is what its problems call it.
pub fn parse(path: &Path, text: &str) -> anyhow::Result<Config> {
    let mut problems = Problems::new(path, text);
    let document = read::document(&mut problems, text)?;
    let root = Table::root(path, &document, &problems);
    if !read::edition(&root, &mut problems) {
        problems.finish()?;
    }
    root.only(&["edition", "general", "upstream", "policy", "section", "preset", "ci"], &mut problems);
    let default_variant =
        required_string(&root, "general", &["default-variant"], "\"cu130\"", &mut problems).map(|(v, _)| v);
    let upstream = required_string(&root, "upstream", &["natten", "cutlass"], "\"0.21.7\"", &mut problems);
    let cutlass = upstream.as_ref().and_then(|(_, table)| cutlass(table, &mut problems));
    let natten = upstream.map(|(natten, _)| natten);
    if let Some(version) = &natten
        && (version.value.split('.').count() < 2
            || version.value.split('.').any(|part| release::number(part).is_none()))
    {
        let message = format!("natten: \"{}\" is not a version; write it as \"0.21.7\"", version.value);
        problems.add(version.at.clone(), message);
    }
    if let Some(word) = &default_variant {
        check::name("default-variant", word, &mut problems);
    }
    let policies = policies(&root, &mut problems);
    let mut read = Vec::new();
    for (name, table) in root.tables("section", &mut problems) {
        read.push(section(name, &table, &mut problems));
    }
    root.require("section", "[section.core] with families and cuda-capabilities", &mut problems);
    check::families(&read, &mut problems);
    let sections: Vec<Section> = read.into_iter().map(|(section, _)| section).collect();
    let mut presets = BTreeMap::new();
    for (name, table) in root.tables("preset", &mut problems) {
        presets.insert(name.value.clone(), preset(name, &table, &sections, &mut problems));
    }
    let ci = ci::read(&root, &mut problems);
    problems.finish()?;
    Ok(Config {
        path: path.to_path_buf(),
        default_variant: default_variant.map(|v| v.value).unwrap_or_default(),
        natten: natten.map(|v| v.value).unwrap_or_default(),
        policies,
        cutlass,
        sections,
        presets,
        ci,
    })
}

/// The string under the first of `keys` in table `[name]`, both of which must be there, and the table; no
/// other keys may be in it.
fn required_string<'a, 'b>(
    root: &Table<'a, 'b>,
    name: &str,
    keys: &[&str],
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<(At<String>, Table<'a, 'b>)> {
    let key = keys[0];
    root.require(name, &format!("[{name}] with {key} = {example}"), problems);
    let table = root.table(name, problems)?;
    table.only(keys, problems);
    table.require(key, &format!("{key} = {example}"), problems);
    Some((table.string(key, problems)?, table))
}

/// `cutlass = { path = "…", versions = "…" }`, or with `archive` and `sha256`.
fn cutlass(upstream: &Table<'_, '_>, problems: &mut Problems<'_>) -> Option<Cutlass> {
    const EXAMPLE: &str = "cutlass = { path = \"../cutlass\", versions = \">=4.3, <4.6\" }";
    if !upstream.has("cutlass") {
        return None;
    }
    let at = upstream.place("cutlass", problems);
    let table = upstream.table("cutlass", problems)?;
    table.only(&["path", "archive", "sha256", "versions"], problems);
    table.require("versions", "versions = \">=4.3, <4.6\"", problems);
    let versions = table.string("versions", problems).and_then(|text| match text.value.parse() {
        Ok(versions) => Some(versions),
        Err(why) => {
            let message =
                format!("versions: \"{}\" is not a range: {why}; write \">=4.3, <4.6\"", text.value);
            problems.add(text.at, message);
            None
        }
    });
    let [path, archive, sha256] = ["path", "archive", "sha256"].map(|key| table.string(key, problems));
    let source = match (path, archive, sha256) {
        (Some(path), None, None) => CutlassSource::Path(PathBuf::from(path.value)),
        (None, Some(archive), Some(sha256)) => {
            if sha256.value.len() != 64
                || !sha256.value.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            {
                problems.add(sha256.at, "sha256: write 64 lowercase hex digits");
            }
            CutlassSource::Archive { archive: archive.value, sha256: sha256.value }
        }
        _ => {
            problems.add(at, format!("cutlass: give path, or archive with sha256; write {EXAMPLE}"));
            return None;
        }
    };
    Some(Cutlass { source, versions: versions?, at })
}

/// `[policy]`: `default`, and families that have a policy of their own.
fn policies(root: &Table<'_, '_>, problems: &mut Problems<'_>) -> Policies {
    let mut policies = Policies::default();
    let Some(table) = root.table("policy", problems) else { return policies };
    table.only(&[&["default"], FAMILIES].concat(), problems);
    if let Some(policy) = table.parsed("default", problems) {
        policies.default = policy.value;
    }
    for family in FAMILIES {
        if let Some(policy) = table.parsed(family, problems) {
            policies.families.insert((*family).to_owned(), policy.value);
        }
    }
    policies
}

fn section(
    name: At<String>,
    table: &Table<'_, '_>,
    problems: &mut Problems<'_>,
) -> (Section, Vec<At<String>>) {
    table.only(
        &["families", "cuda-capabilities", "cuda-minver", "cuda-maxver", "cuda-flags", "share", "required"],
        problems,
    );
    check::name("section", &name, problems);
    table.require("families", "families = [\"fna\"]", problems);
    table.require("cuda-capabilities", "cuda-capabilities = [\"9.0\"]", problems);
    let families = table.strings("families", problems);
    check::not_empty("families", families.as_ref(), table.place("families", problems), problems);
    let families = families.unwrap_or_default();
    check_words("family", &families, FAMILIES, problems);
    let gate = table.gate(&format!("[section.{}]", name.value), problems);
    let flags = table.strings("cuda-flags", problems).unwrap_or_default();
    check::flags(&name.value, &flags, problems);
    let capabilities = table.capabilities("cuda-capabilities", problems);
    let listed = capabilities.is_some();
    let share = share::read(table, capabilities.as_deref().unwrap_or_default(), problems);
    let section = Section {
        name: name.value,
        families: families.iter().map(|f| f.value.clone()).collect(),
        capabilities: capabilities.unwrap_or_default(),
        minver: gate.minver.as_ref().map(|m| m.value),
        maxver: gate.maxver.as_ref().map(|m| m.value),
        flags: flags.into_iter().map(|f| f.value).collect(),
        share,
        required: table.boolean("required", problems).unwrap_or(true),
        at: name.at,
    };
    if listed {
        let at = table.place("cuda-capabilities", problems);
        check::capabilities(&section.name, &gate, &section.capabilities, &at, problems);
    }
    (section, families)
}

fn preset(
    name: At<String>,
    table: &Table<'_, '_>,
    sections: &[Section],
    problems: &mut Problems<'_>,
) -> Preset {
    table.only(&["sections", "families", "capabilities", "select"], problems);
    check::name("preset", &name, problems);
    let wanted = table.strings("sections", problems);
    check::not_empty("sections", wanted.as_ref(), table.place("sections", problems), problems);
    let known: Vec<&str> = sections.iter().map(|s| s.name.as_str()).collect();
    check_words("section", wanted.as_deref().unwrap_or_default(), &known, problems);
    let families = table.strings("families", problems);
    check::not_empty("families", families.as_ref(), table.place("families", problems), problems);
    check_words("family", families.as_deref().unwrap_or_default(), FAMILIES, problems);
    // What the preset has to choose from.
    let within =
        |section: &&Section| wanted.as_ref().is_none_or(|w| w.iter().any(|w| w.value == section.name));
    let offered: Vec<&str> =
        sections.iter().filter(within).flat_map(|s| &s.families).map(String::as_str).collect();
    for family in families.iter().flatten() {
        if FAMILIES.contains(&family.value.as_str()) && !offered.contains(&family.value.as_str()) {
            let message = format!(
                "family \"{}\" is in none of the sections of [preset.{}]; those have: {}",
                family.value,
                name.value,
                offered.join(" ")
            );
            problems.add(family.at.clone(), message);
        }
    }
    let capabilities = table.parsed_list::<CapabilityRequest>("capabilities", problems);
    check::not_empty("capabilities", capabilities.as_ref(), table.place("capabilities", problems), problems);
    let select = table.parsed_list::<Selector>("select", problems).unwrap_or_default();
    for selector in &select {
        for family in &selector.value.family {
            let chosen = families
                .as_ref()
                .map_or(offered.contains(&family.as_str()), |f| f.iter().any(|f| f.value == *family));
            if !chosen {
                let message =
                    format!("select names family \"{family}\", which [preset.{}] does not build", name.value);
                problems.add(selector.at.clone(), message);
            }
        }
    }
    let values = |list: Option<Vec<At<String>>>| list.map(|l| l.into_iter().map(|v| v.value).collect());
    Preset {
        name: name.value,
        sections: values(wanted),
        families: values(families),
        capabilities: capabilities.map(|l| l.into_iter().map(|c| c.value).collect()),
        select: select.into_iter().map(|s| s.value).collect(),
        at: name.at,
    }
}

/// Reports words that are not in `known`, and words given twice.
fn check_words(what: &str, words: &[At<String>], known: &[&str], problems: &mut Problems<'_>) {
    for (i, word) in words.iter().enumerate() {
        if !known.contains(&word.value.as_str()) {
            let message = format!("unknown {what} \"{}\"; {}", word.value, suggestion(&word.value, known));
            problems.add(word.at.clone(), message);
        }
        if let Some(first) = words[..i].iter().find(|w| w.value == word.value) {
            problems
                .add(word.at.clone(), format!("{what} \"{}\" is already listed at {}", word.value, first.at));
        }
    }
}
