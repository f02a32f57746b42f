//! What differs between two versions of NATTEN, in the places that matter to us: generator scripts, kernel
//! headers, the declarations that our launchers use, tile tables, operations, kernels, CUTLASS.

use super::canonical;
use super::declarations::{Declarations, declarations};
use super::entries::{join, tokens};
use super::generators::Generated;
use super::interface::Changes;
use super::oracle;
use crate::catalog::{self, Direction};
use crate::{cutlass, fs, generate};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One version of NATTEN.
pub struct Version<'a> {
    /// `0.21.7`.
    pub natten: &'a str,
    /// Its unpacked sources.
    pub root: &'a Path,
}

/// What differs between two versions.
#[derive(Debug, Serialize)]
pub struct Report {
    schema_version: u32,
    /// The older version, or the one that is left.
    pub old: String,
    /// The other one.
    pub new: String,
    /// CUTLASS's version in both, and how many of its files differ.
    pub cutlass: Cutlass,
    /// Files by what they mean to us; areas without a difference are left out.
    pub areas: Vec<Area>,
    /// Declarations that our launchers and units use and that differ.
    pub entry_points: Vec<Declaration>,
    /// How many such declarations there are.
    pub entry_points_compared: usize,
    /// Definitions of `backends/configs` that differ, as `cutlass/__init__.py: get_all_tile_shapes`.
    pub tile_tables: Vec<String>,
    /// NATTEN's operations and their arguments.
    pub operations: Changes,
    /// How many operations the new version has.
    pub operations_in_new: usize,
    /// Kernels that its generators make dispatchable.
    pub kernels: Changes,
    /// How many kernels the new version has.
    pub kernels_in_new: usize,
    /// What upstream's generators write, under all split policies.
    pub generated: GeneratedFiles,
}

/// CUTLASS in both versions.
#[derive(Debug, Serialize)]
pub struct Cutlass {
    /// Of the old version, where its version.h can be read.
    pub old: Option<String>,
    /// Of the new one.
    pub new: Option<String>,
    /// Files below its include directory that are not the same.
    pub files_differ: usize,
}

/// Files that belong together.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Area {
    /// `kernel headers: fna`.
    pub name: String,
    /// Paths that only the new version has.
    pub added: Vec<String>,
    /// Paths that only the old version has.
    pub removed: Vec<String>,
    /// Paths with other bytes.
    pub changed: Vec<String>,
}

/// A declaration that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Declaration {
    /// Qualified name.
    pub name: String,
    /// Its spellings in the old version; none where it is new.
    pub old: Vec<String>,
    /// Its spellings in the new version; none where it is gone.
    pub new: Vec<String>,
}

/// What generators write.
#[derive(Debug, Serialize)]
pub struct GeneratedFiles {
    /// Files of the new version.
    pub files: usize,
    /// Paths, from the policy on, that are not the same in both.
    pub differ: Vec<String>,
}

/// Compares two unpacked versions, whose generators have run.
pub(super) fn compare(
    old: &Version<'_>,
    new: &Version<'_>,
    generated: [&Generated; 2],
) -> anyhow::Result<Report> {
    let files = [digests(old.root)?, digests(new.root)?];
    let used = Used::new()?;
    let points = [used.of(old.root)?, used.of(new.root)?];
    let operations = [operations(old.root)?, operations(new.root)?];
    let kernels = [kernels(generated[0])?, kernels(generated[1])?];
    let written = [generated[0].files()?, generated[1].files()?];
    Ok(Report {
        schema_version: 1,
        old: old.natten.to_owned(),
        new: new.natten.to_owned(),
        cutlass: cutlass_of(old, new, &files),
        areas: areas(&files),
        entry_points: differing(&points[0], &points[1]),
        entry_points_compared: points[1].len(),
        tile_tables: tile_tables(old.root, new.root, &files)?,
        operations: changes("operation", &operations[0], &operations[1]),
        operations_in_new: operations[1].len(),
        kernels: changes("kernel", &kernels[0], &kernels[1]),
        kernels_in_new: kernels[1].len(),
        generated: GeneratedFiles { files: written[1].len(), differ: different(&written[0], &written[1]) },
    })
}

/// The digest of every file below a directory, by relative path.
pub(super) fn digests(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut digests = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry?;
        if entry.file_type().is_file() {
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            digests.insert(path.display().to_string(), fs::sha256(entry.path())?);
        }
    }
    Ok(digests)
}

/// Keys whose values are not the same on both sides.
fn different<T: PartialEq>(old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) -> Vec<String> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

const CUTLASS: &str = "third_party/cutlass/";
const KERNELS: &str = "csrc/include/natten/cuda/";
const CONFIGS: &str = "src/natten/backends/configs/";

fn cutlass_of(old: &Version<'_>, new: &Version<'_>, files: &[BTreeMap<String, String>; 2]) -> Cutlass {
    let version = |root: &Path| cutlass::version(&root.join(CUTLASS).join("include")).ok();
    let differ = different(&files[0], &files[1]);
    Cutlass {
        old: version(old.root),
        new: version(new.root),
        files_differ: differ.iter().filter(|path| path.starts_with(CUTLASS)).count(),
    }
}

/// What a file of NATTEN's sources is to us.
fn area(path: &str) -> Option<String> {
    if path.starts_with(CUTLASS) {
        return None;
    }
    if let Some(rest) = path.strip_prefix(KERNELS) {
        let family = rest.split_once('/').map_or("shared", |(directory, _)| match directory {
            "utils" => "shared",
            directory => directory,
        });
        return Some(format!("kernel headers: {family}"));
    }
    Some(
        if path.starts_with("scripts/autogen_") {
            "generator scripts"
        } else if path.starts_with("csrc/include/") {
            "headers of the operations"
        } else if path.starts_with("csrc/") {
            "sources of the operations"
        } else if path.starts_with(CONFIGS) {
            "tile tables and defaults"
        } else if path.starts_with("src/natten/") {
            "rest of the Python package"
        } else {
            "other files"
        }
        .to_owned(),
    )
}

fn areas(files: &[BTreeMap<String, String>; 2]) -> Vec<Area> {
    let mut areas: BTreeMap<String, Area> = BTreeMap::new();
    for path in different(&files[0], &files[1]) {
        let Some(name) = area(&path) else { continue };
        let area = areas.entry(name.clone()).or_insert_with(|| Area {
            name,
            added: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
        });
        match (files[0].contains_key(&path), files[1].contains_key(&path)) {
            (false, _) => area.added.push(path),
            (_, false) => area.removed.push(path),
            _ => area.changed.push(path),
        }
    }
    areas.into_values().collect()
}

/// The names that our launchers and units use, and the headers of upstream's that they include.
struct Used {
    names: BTreeSet<String>,
    includes: Vec<String>,
}

impl Used {
    fn new() -> anyhow::Result<Used> {
        let native = |name: &str| name.starts_with("nattenc/launch_");
        let mut texts: Vec<String> = generate::support_files()
            .iter()
            .filter(|(name, _)| native(name))
            .map(|(_, text)| (*text).to_owned())
            .collect();
        // A kernel of each direction shows every header that a family's units include.
        for family in &catalog::catalog()?.families {
            for direction in [Direction::Forward, Direction::Backward] {
                let group = family.groups.iter().find(|g| g.kernels.iter().any(|k| k.direction == direction));
                if let Some(group) = group {
                    texts.push(generate::unit(&canonical::unit(family, 0, &[group]))?);
                }
            }
        }
        let mut used = Used { names: BTreeSet::new(), includes: Vec::new() };
        for text in &texts {
            used.names.extend(tokens(text).into_iter().map(str::to_owned));
            used.includes.extend(includes(text).filter(|path| path.starts_with("natten/")));
        }
        Ok(used)
    }

    /// What the headers that we include, directly or not, declare of the names that we use. A member
    /// counts where everything around it is named too.
    fn of(&self, root: &Path) -> anyhow::Result<Declarations> {
        let include = root.join("csrc/include");
        let mut waiting: Vec<PathBuf> = self.includes.iter().map(PathBuf::from).collect();
        let mut seen = BTreeSet::new();
        let mut found = Declarations::new();
        while let Some(header) = waiting.pop() {
            let Some(bytes) = fs::read_if_exists(&include.join(&header))? else { continue };
            if !seen.insert(header.clone()) {
                continue;
            }
            let text = String::from_utf8_lossy(&bytes);
            let beside = header.parent().unwrap_or(Path::new("")).to_path_buf();
            waiting.extend(includes(&text).flat_map(|path| [PathBuf::from(&path), beside.join(&path)]));
            for (name, texts) in declarations(&text) {
                if name.split("::").all(|part| self.names.contains(part)) {
                    found.entry(name).or_default().extend(texts);
                }
            }
        }
        Ok(found)
    }
}

/// What `#include` lines name.
fn includes(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
        let close = if rest.starts_with('<') { '>' } else { '"' };
        Some(rest.get(1..)?.split_once(close)?.0.to_owned())
    })
}

fn differing(old: &Declarations, new: &Declarations) -> Vec<Declaration> {
    let spelled = |all: &Declarations, name: &str| all.get(name).into_iter().flatten().cloned().collect();
    different(old, new)
        .into_iter()
        .map(|name| Declaration { old: spelled(old, &name), new: spelled(new, &name), name })
        .collect()
}

/// Top-level definitions of a Python file that differ, comments aside.
fn tile_tables(old: &Path, new: &Path, files: &[BTreeMap<String, String>; 2]) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for path in different(&files[0], &files[1]) {
        let Some(short) = path.strip_prefix(CONFIGS) else { continue };
        let read = |root: &Path| -> anyhow::Result<_> {
            let bytes = fs::read_if_exists(&root.join(&path))?.unwrap_or_default();
            Ok(python_definitions(&String::from_utf8_lossy(&bytes)))
        };
        let differ = different(&read(old)?, &read(new)?);
        names.extend(differ.into_iter().map(|name| format!("{short}: {name}")));
    }
    Ok(names)
}

/// Functions, classes and variables at the top of a file, each with its lines.
fn python_definitions(text: &str) -> BTreeMap<String, String> {
    let mut definitions: BTreeMap<String, String> = BTreeMap::new();
    let mut current = "imports".to_owned();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let word = |rest: &str| {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            rest[..end].to_owned()
        };
        if let Some(rest) = line.strip_prefix("def ").or_else(|| line.strip_prefix("class ")) {
            current = word(rest);
        } else if line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let name = word(line);
            let rest = line[name.len()..].trim_start();
            current = if rest.starts_with(['=', ':']) { name } else { "imports".to_owned() };
        }
        let definition = definitions.entry(current.clone()).or_default();
        definition.push_str(line);
        definition.push('\n');
    }
    definitions
}

/// The operations that NATTEN's extension module offers, with the declarations behind them.
fn operations(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut declared = Declarations::new();
    let headers = root.join("csrc/include/natten");
    for header in if headers.is_dir() { fs::list(&headers)? } else { Vec::new() } {
        if header.is_file() {
            declared.extend(declarations(&String::from_utf8_lossy(&fs::read(&header)?)));
        }
    }
    let module = fs::read_if_exists(&root.join("csrc/natten.cpp"))?.unwrap_or_default();
    let module = String::from_utf8_lossy(&module).into_owned();
    let words = tokens(&module);
    let mut operations = BTreeMap::new();
    for (at, window) in words.windows(4).enumerate() {
        let [".", "def", "(", name] = window else { continue };
        let name = name.trim_matches('"');
        if let Some((name, _)) = name.split_once('(') {
            // A schema says everything itself.
            operations.insert(name.to_owned(), window[3].trim_matches('"').to_owned());
            continue;
        }
        let function: Vec<&str> =
            words[at + 4..].iter().skip(1).take_while(|w| **w != "," && **w != ")").copied().collect();
        let function = join(&function).trim_start_matches('&').to_owned();
        let spelled = declared.get(&function);
        let spelled = spelled.map(|texts| texts.iter().cloned().collect::<Vec<_>>().join("; "));
        operations
            .insert(name.to_owned(), spelled.unwrap_or_else(|| format!("{function}, declared elsewhere")));
    }
    Ok(operations)
}

/// Every kernel that the generators make, with what it instantiates.
fn kernels(generated: &Generated) -> anyhow::Result<BTreeMap<String, String>> {
    let mut kernels = BTreeMap::new();
    let Some(policy) = generated.splits.keys().find(|p| *p == "default").or(generated.splits.keys().next())
    else {
        return Ok(kernels);
    };
    for family in generated.splits[policy].keys() {
        for entry in oracle::parsed(generated, policy, family)?.into_iter().flatten() {
            let guard = entry.guard.map(|(low, high)| format!(" for sm {low} to {high}")).unwrap_or_default();
            kernels
                .insert(format!("{family} {}", entry.name), format!("{}{guard}", entry.classes.join("; ")));
        }
    }
    Ok(kernels)
}

fn changes(what: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Changes {
    let mut changes = Changes::default();
    for name in different(old, new) {
        match (old.get(&name), new.get(&name)) {
            (None, _) => changes.added.push(format!("{what} {name}")),
            (_, None) => changes.removed.push(format!("{what} {name}")),
            (Some(was), Some(is)) => changes.changed.push(format!("{what} {name} is `{is}`, was `{was}`")),
        }
    }
    changes
}

impl Report {
    /// The whole report.
    pub fn text(&self) -> String {
        let mut lines = vec![format!("natten {} -> {}", self.old, self.new)];
        let version =
            |version: &Option<String>| version.clone().unwrap_or_else(|| "of no readable version".to_owned());
        lines.push(format!(
            "CUTLASS {} -> {}: {} files differ",
            version(&self.cutlass.old),
            version(&self.cutlass.new),
            self.cutlass.files_differ
        ));
        for name in ["generator scripts", "tile tables and defaults"] {
            if !self.areas.iter().any(|area| area.name == name) {
                lines.push(format!("{name}: no difference"));
            }
        }
        if !self.areas.iter().any(|area| area.name.starts_with("kernel headers")) {
            lines.push("kernel headers: no difference".to_owned());
        }
        for area in &self.areas {
            lines.push(format!("{}:", area.name));
            for (what, paths) in
                [("added", &area.added), ("removed", &area.removed), ("changed", &area.changed)]
            {
                lines.extend(paths.iter().map(|path| format!("  {what:<7} {path}")));
            }
        }
        if !self.tile_tables.is_empty() {
            lines.push("definitions of the tile tables and defaults that differ:".to_owned());
            lines.extend(self.tile_tables.iter().map(|name| format!("  {name}")));
        }
        lines.push(format!(
            "declarations that our launchers use: {} of {} differ",
            self.entry_points.len(),
            self.entry_points_compared
        ));
        for Declaration { name, old, new } in &self.entry_points {
            lines.push(format!("  {name}"));
            let mut side = |what: &str, texts: &[String], others: &[String]| {
                lines.extend(
                    texts.iter().filter(|t| !others.contains(t)).map(|text| format!("    {what} {text}")),
                );
            };
            side("was", old, new);
            side("is ", new, old);
        }
        lines.push(self.interface_text());
        lines.push(if self.generated.differ.is_empty() {
            format!("upstream's generators: {} files, the same in both", self.generated.files)
        } else {
            format!(
                "upstream's generators: {} files, {} differ",
                self.generated.files,
                self.generated.differ.len()
            )
        });
        lines.join("\n")
    }

    /// The public interface alone, for scripts.
    pub fn interface(&self) -> serde_json::Value {
        serde_json::json!({
            "schema_version": self.schema_version,
            "old": self.old,
            "new": self.new,
            "operations": self.operations,
            "operations_in_new": self.operations_in_new,
            "kernels": self.kernels,
            "kernels_in_new": self.kernels_in_new,
        })
    }

    /// The public interface alone.
    pub fn interface_text(&self) -> String {
        let mut lines = Vec::new();
        for (what, count, changes) in [
            ("operations", self.operations_in_new, &self.operations),
            ("kernels", self.kernels_in_new, &self.kernels),
        ] {
            let Changes { added, removed, changed } = changes;
            lines.push(format!(
                "{what}: {count}; {} added, {} removed, {} changed",
                added.len(),
                removed.len(),
                changed.len()
            ));
            for (word, list) in [("added", added), ("removed", removed), ("changed", changed)] {
                lines.extend(list.iter().map(|text| format!("  {word:<7} {text}")));
            }
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn files_are_told_apart_by_what_they_mean() {
        for (path, name) in [
            ("scripts/autogen_fna.py", Some("generator scripts")),
            ("csrc/include/natten/cuda/fna/kernel_forward.h", Some("kernel headers: fna")),
            ("csrc/include/natten/cuda/utils/cutlass.cuh", Some("kernel headers: shared")),
            ("csrc/include/natten/cuda/hopper_fmha_fna.h", Some("kernel headers: shared")),
            ("csrc/include/natten/fna.h", Some("headers of the operations")),
            ("csrc/natten.cpp", Some("sources of the operations")),
            ("src/natten/backends/configs/cutlass/__init__.py", Some("tile tables and defaults")),
            ("src/natten/backends/fna.py", Some("rest of the Python package")),
            ("README.md", Some("other files")),
            ("third_party/cutlass/include/cutlass/version.h", None),
        ] {
            assert_eq!(area(path).as_deref(), name, "{path}");
        }
        let [old, new] =
            [map(&[("a", "1"), ("b", "1"), ("c", "1")]), map(&[("b", "2"), ("c", "1"), ("d", "1")])];
        let area = &areas(&[old, new])[0];
        assert_eq!(
            (&area.added[..], &area.removed[..], &area.changed[..]),
            (&["d".to_owned()][..], &["a".to_owned()][..], &["b".to_owned()][..])
        );
    }

    #[test]
    fn python_definitions_are_compared_without_comments() {
        let old =
            "import x\nA = [\n  1,\n]\n# note\ndef f(a):\n    # why\n    return a\n\nclass C:\n    pass\n";
        let new = "import x\nA = [\n  2,\n]\ndef f(a):\n    return a\n\nclass D:\n    pass\n";
        assert_eq!(different(&python_definitions(old), &python_definitions(new)), ["A", "C", "D"]);
    }

    #[test]
    fn operations_and_used_declarations_come_from_the_sources() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| fs::write(&dir.path().join(path), text.as_bytes()).unwrap();
        put(
            "csrc/natten.cpp",
            "m.def(\"na1d\", &natten::na1d, \"doc\"); m.def(\"b(Tensor a) -> ()\"); m.def(\"c\", &x::c);",
        );
        put("csrc/include/natten/fna.h", "namespace natten { void na1d(at::Tensor& out, int a); }");
        assert_eq!(
            operations(dir.path()).unwrap(),
            map(&[
                ("b", "b(Tensor a) -> ()"),
                ("c", "x::c, declared elsewhere"),
                ("na1d", "void na1d(at::Tensor&out, int a)")
            ])
        );
        put(
            "csrc/include/natten/cuda/fna_hopper/fna_forward.cuh",
            "#include \"deeper.h\"\nnamespace natten::cuda { struct KernelForward { void run(int a); void unused(); }; }",
        );
        put(
            "csrc/include/natten/cuda/fna_hopper/deeper.h",
            "struct Params { int batch; }; struct Other { int batch; };",
        );
        let used = Used {
            names: ["KernelForward", "run", "Params", "batch", "natten", "cuda"].map(str::to_owned).into(),
            includes: vec!["natten/cuda/fna_hopper/fna_forward.cuh".into()],
        };
        let found = used.of(dir.path()).unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["Params", "Params::batch", "natten::cuda::KernelForward", "natten::cuda::KernelForward::run"]
        );
    }

    #[test]
    fn our_own_texts_name_upstreams_headers_and_members() {
        let used = Used::new().unwrap();
        for name in ["KernelForward", "initialize", "query_ptr", "check_supported", "fna_reference_forward"] {
            assert!(used.names.contains(name), "{name}");
        }
        for header in ["natten/cuda/fna/kernel_backward.h", "natten/cuda/fmha_blackwell/fmha_backward.cuh"] {
            assert!(used.includes.iter().any(|path| path == header), "{header}");
        }
    }
}
