//! Runs upstream's own generators, from the unpacked sources, and compares what they write with what
//! our tables and templates make: every entry point's name, template arguments and guard, and the
//! unit that holds it. Upstream's text stays in a temporary directory.

use super::canonical::{self, POLICIES, units};
use super::entries::{self, Entry};
use crate::catalog::{self, Catalog, Family};
use crate::execute::process::{self, CommandLine};
use crate::failure::Failure;
use crate::generate;
use crate::{env, fs};
use anyhow::Context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a comparison came to.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the sources.
    pub natten: String,
    /// One row per policy and family.
    pub rows: Vec<Row>,
    /// Whatever differs, a sentence each.
    pub differences: Vec<String>,
}

/// One family under one policy.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: &'static str,
    /// The family.
    pub family: String,
    /// Units that upstream's script wrote.
    pub units: usize,
    /// Entry points in them.
    pub entries: usize,
    /// Kernel classes that these instantiate.
    pub classes: usize,
    /// Entry points that are equal to ours, in the same unit and place.
    pub equal: usize,
}

/// Compares under every policy. `sources` is an unpacked sdist, `python` the interpreter for its scripts.
pub fn compare(natten: &str, sources: &Path, python: &Path) -> anyhow::Result<Report> {
    let catalog = catalog::catalog()?;
    let splits = splits(sources, python)?;
    let scratch = tempfile::tempdir().context("a temporary directory for upstream's output")?;
    let mut report = Report { natten: natten.to_owned(), rows: Vec::new(), differences: Vec::new() };
    families(catalog, &splits, &mut report.differences);
    for policy in POLICIES {
        let Some(counts) = splits.get(policy) else {
            report.differences.push(format!("upstream has no split policy {policy}"));
            continue;
        };
        for family in catalog.families.iter().filter(|family| family.autogen) {
            let Some(count) = counts.get(&family.name) else { continue };
            let out = scratch.path().join(policy);
            let theirs = upstream(sources, python, family, *count, &out)?;
            let ours = rendered(family, units(family, policy))?;
            let place = format!("{policy} {}", family.name);
            if theirs.len() != ours.len() {
                report.differences.push(format!(
                    "{place}: upstream has {} units, the table {}",
                    theirs.len(),
                    ours.len()
                ));
            }
            report.rows.push(Row {
                policy,
                family: family.name.clone(),
                units: theirs.len(),
                entries: theirs.iter().map(Vec::len).sum(),
                classes: theirs.iter().flatten().map(|entry| entry.classes.len()).sum(),
                equal: differ(&place, &theirs, &ours, &mut report.differences),
            });
        }
    }
    Ok(report)
}

impl Report {
    /// A table, then what differs.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:<8} {:<20} {:>6} {:>8} {:>8} {:>8}",
            "policy", "family", "units", "entries", "classes", "equal"
        )];
        let mut sums = [0; 4];
        for row in &self.rows {
            let numbers = [row.units, row.entries, row.classes, row.equal];
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            lines.push(line(row.policy, &row.family, numbers));
        }
        lines.push(line("all", "", sums));
        lines.push(format!("natten {}: {} differences", self.natten, self.differences.len()));
        lines.extend(self.differences.iter().map(|difference| format!("  {difference}")));
        lines.join("\n")
    }

    /// Class integrity unless everything is equal.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.differences.is_empty() {
            return Ok(());
        }
        Err(Failure::integrity(format!(
            "the kernel tables differ from natten {}'s generators in {} places",
            self.natten,
            self.differences.len()
        ))
        .hint("edit templates/cuda/<family>/instances.toml and its template until both agree")
        .into())
    }
}

fn line(policy: &str, family: &str, [units, entries, classes, equal]: [usize; 4]) -> String {
    format!("{policy:<8} {family:<20} {units:>6} {entries:>8} {classes:>8} {equal:>8}")
}

/// Families and unit counts that one side alone has.
fn families(
    catalog: &Catalog,
    splits: &BTreeMap<String, BTreeMap<String, usize>>,
    differences: &mut Vec<String>,
) {
    let ours: BTreeSet<&str> =
        catalog.families.iter().filter(|f| f.autogen).map(|f| f.name.as_str()).collect();
    let theirs: BTreeSet<&str> = splits.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    differences.extend(theirs.difference(&ours).map(|name| format!("family {name}: upstream alone has it")));
    differences.extend(ours.difference(&theirs).map(|name| format!("family {name}: upstream has none")));
}

/// Reads the split policies out of setup.py, which cannot be run: it imports torch.
const SPLITS: &str = "
import ast, json, sys
for node in ast.parse(open(sys.argv[1], encoding='utf-8').read()).body:
    if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'NUM_SPLITS':
        print(json.dumps(ast.literal_eval(node.value)))
";

/// Policy → family → units.
fn splits(sources: &Path, python: &Path) -> anyhow::Result<BTreeMap<String, BTreeMap<String, usize>>> {
    let setup = sources.join("setup.py");
    let answer = run(python, &["-c", SPLITS, &shown(&setup)], sources)?;
    let policies: BTreeMap<String, BTreeMap<String, usize>> =
        serde_json::from_str(&answer).map_err(|error| {
            Failure::integrity(format!("{}: no table of split policies: {error}", shown(&setup)))
                .hint("this version of natten splits its kernels in a way that nattenc does not know")
        })?;
    let family = |(name, count): (String, usize)| (name.replace('-', "_"), count);
    Ok(policies
        .into_iter()
        .map(|(policy, counts)| (policy, counts.into_iter().map(family).collect()))
        .collect())
}

/// What upstream's script writes for a family, unit by unit.
fn upstream(
    sources: &Path,
    python: &Path,
    family: &Family,
    count: usize,
    out: &Path,
) -> anyhow::Result<Vec<Vec<Entry>>> {
    let name = &family.name;
    let candidates = [format!("scripts/autogen_{name}.py"), format!("scripts/autogen_{name}_fna.py")];
    let script = candidates.iter().map(|file| sources.join(file)).find(|path| path.is_file());
    let script = script.ok_or_else(|| {
        Failure::integrity(format!("{}: no script generates {name}", shown(sources)))
            .hint("this version of natten generates its kernels in a way that nattenc does not know")
    })?;
    run(python, &[&shown(&script), "-o", &shown(out), "--num-splits", &count.to_string()], sources)?;
    let directory = out.join("autogen/src/cuda").join(name);
    let written = fs::list(&directory)?.len();
    (0..written)
        .map(|index| {
            let path = directory.join(format!("source_{index}.cu"));
            entries::upstream(&fs::read_text(&path)?)
                .with_context(|| format!("upstream's {name} unit {index}"))
        })
        .collect()
}

/// What our templates make of a family, read back from the text that would be compiled.
fn rendered(family: &Family, count: usize) -> anyhow::Result<Vec<Vec<Entry>>> {
    let unit = |(index, groups): (usize, Vec<&catalog::Group>)| {
        let unit = canonical::unit(family, index, &groups);
        entries::ours(&generate::unit(&unit)?).with_context(|| format!("our unit {}", unit.name))
    };
    family.units(count).into_iter().enumerate().map(unit).collect()
}

/// Compares place by place; returns how many are equal.
fn differ(place: &str, theirs: &[Vec<Entry>], ours: &[Vec<Entry>], differences: &mut Vec<String>) -> usize {
    let placed = |units: &[Vec<Entry>]| -> BTreeMap<String, ((usize, usize), Entry)> {
        let place = |(unit, entries): (usize, &Vec<Entry>)| {
            let at = |(index, entry): (usize, &Entry)| (entry.name.clone(), ((unit, index), entry.clone()));
            entries.iter().enumerate().map(at).collect::<Vec<_>>()
        };
        units.iter().enumerate().flat_map(place).collect()
    };
    let units_agree = theirs.len() == ours.len();
    let (theirs, mut ours) = (placed(theirs), placed(ours));
    let mut equal = 0;
    for (name, (at, entry)) in theirs {
        let Some((our_at, our)) = ours.remove(&name) else {
            differences.push(format!("{place}: {name} is missing"));
            continue;
        };
        let mut found = Vec::new();
        // Other counts of units move everything, which is told once.
        if at != our_at && units_agree {
            found.push(format!("is {}, upstream's {}", spot(our_at), spot(at)));
        }
        if entry.classes != our.classes {
            found.push(format!(
                "instantiates {}, upstream's {}",
                our.classes.join("; "),
                entry.classes.join("; ")
            ));
        }
        if entry.guard != our.guard {
            found.push(format!("is guarded by {:?}, upstream's by {:?}", our.guard, entry.guard));
        }
        equal += usize::from(found.is_empty() && at == our_at);
        differences.extend(found.into_iter().map(|text| format!("{place}: {name} {text}")));
    }
    differences.extend(ours.into_keys().map(|name| format!("{place}: {name} is extra")));
    equal
}

fn spot((unit, index): (usize, usize)) -> String {
    format!("number {index} of unit {unit}")
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Standard output of a Python program that must succeed. Its bytecode is not written beside the sources.
fn run(python: &Path, arguments: &[&str], sources: &Path) -> anyhow::Result<String> {
    let mut variables = env::all();
    variables.insert("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned());
    let command = CommandLine {
        argv: std::iter::once(shown(python)).chain(arguments.iter().map(ToString::to_string)).collect(),
        env: variables,
        cwd: PathBuf::from(sources),
    };
    let finished = process::capture(&command)?;
    if finished.success() {
        return Ok(finished.stdout);
    }
    let said = finished.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    Err(Failure::integrity(format!("{}: {said}", arguments.first().copied().unwrap_or_default()))
        .hint("run it by hand to see all of what it says; it needs python3 alone")
        .diagnostic(finished.output.clone())
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, class: &str, guard: Option<(u32, u32)>) -> Entry {
        Entry { name: name.into(), classes: vec![class.into()], guard }
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let a = entry("a", "A<1>", None);
        let b = entry("b", "B", Some((500, 700)));
        let c = entry("c", "C", None);
        let same = [vec![a.clone()], vec![b.clone()]];
        let mut differences = Vec::new();
        assert_eq!(differ("fine x", &same, &same, &mut differences), 2);
        assert!(differences.is_empty());
        let ours = [vec![entry("a", "A<2>", None), entry("b", "B", Some((500, 750)))], vec![c.clone()]];
        assert_eq!(differ("fine x", &same, &ours, &mut differences), 0);
        assert_eq!(
            differences,
            [
                "fine x: a instantiates A<2>, upstream's A<1>",
                "fine x: b is number 1 of unit 0, upstream's number 0 of unit 1",
                "fine x: b is guarded by Some((500, 750)), upstream's by Some((500, 700))",
                "fine x: c is extra",
            ]
        );
        differences.clear();
        differ("fine x", &same, &[vec![a]], &mut differences);
        assert_eq!(differences, ["fine x: b is missing"]);
        differences.clear();
        let merged = [vec![entry("a", "A<1>", None), b, c]];
        assert_eq!(differ("fine x", &same, &merged, &mut differences), 1);
        assert_eq!(differences, ["fine x: c is extra"]);
    }

    #[test]
    fn our_units_are_read_back_whole() {
        for family in catalog::catalog().unwrap().families.iter().filter(|family| family.autogen) {
            let entries = rendered(family, units(family, "coarse")).unwrap();
            let names: Vec<String> = entries.into_iter().flatten().map(|entry| entry.name).collect();
            let kernels: Vec<String> = family.kernels().map(|kernel| kernel.name.clone()).collect();
            assert_eq!(names, kernels, "{}", family.name);
        }
    }

    #[test]
    fn a_report_with_a_difference_fails_with_class_integrity() {
        let mut report = Report { natten: "0.0.0".into(), rows: vec![], differences: vec![] };
        assert!(report.check().is_ok());
        assert!(report.text().ends_with("natten 0.0.0: 0 differences"));
        report.differences.push("fine x: b is missing".into());
        let error = report.check().unwrap_err();
        assert_eq!(crate::failure::class(&error).exit_code(), 8);
        assert!(report.text().ends_with("1 differences\n  fine x: b is missing"));
    }

    /// A source tree with one made-up family's script, through a real python3.
    #[test]
    fn scripts_that_fail_are_told_with_their_last_words() {
        let path = env::text("PATH").unwrap().unwrap_or_default();
        let Some(python) = process::search("python3", &path) else { return };
        let dir = tempfile::tempdir().unwrap();
        let error = compare("0.0.0", dir.path(), &python).unwrap_err();
        assert!(format!("{error:#}").contains("setup.py"), "{error:#}");
        fs::write(&dir.path().join("setup.py"), b"NUM_SPLITS = {'default': {'fna': 64, 'new-one': 2}}")
            .unwrap();
        fs::write(&dir.path().join("scripts/autogen_fna.py"), b"raise SystemExit('no luck')").unwrap();
        let error = compare("0.0.0", dir.path(), &python).unwrap_err();
        assert!(format!("{error:#}").contains("autogen_fna.py: no luck"), "{error:#}");
        fs::write(&dir.path().join("setup.py"), b"NUM_SPLITS = {'default': {'new-one': 2}}").unwrap();
        let report = compare("0.0.0", dir.path(), &python).unwrap();
        for difference in ["family new_one: upstream alone has it", "upstream has no split policy fine"] {
            assert!(report.differences.iter().any(|d| d == difference), "{:?}", report.differences);
        }
    }
}
