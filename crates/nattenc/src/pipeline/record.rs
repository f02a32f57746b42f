//! What units were compiled from in the last build of a variant, kept beside its logs: so that `explain`
//! can tell what is not the same now.

use super::{Parts, Project};
use crate::config::Variant;
use crate::fs;
use crate::graph::{Tree, compile};
use crate::plan::{Plan, UnitPlan};
use crate::report::{self, Reporter};
use crate::supply;
use crate::toolkit::Toolkit;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file in a build directory.
const FILE: &str = "inputs.json";

/// Another version is as good as no record.
const VERSION: u32 = 1;

/// Everything that decides a unit's code, as digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inputs {
    version: u32,
    /// What all units share, by the words of a sentence: `the CUDA toolkit`, `ptxas`.
    shared: BTreeMap<String, String>,
    /// By label.
    units: BTreeMap<String, UnitInputs>,
}

/// What is a unit's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UnitInputs {
    /// SHA-256 of its text.
    text: String,
    /// The arguments of nvcc.
    args: Vec<String>,
}

impl Inputs {
    /// What `plan` is compiled from, `texts` among it: one per unit.
    pub(super) fn of(
        plan: &Plan,
        texts: &[Arc<str>],
        toolkit: &Toolkit,
        trees: &BTreeMap<Tree, (PathBuf, String)>,
        tools: &BTreeMap<String, String>,
    ) -> Self {
        let tree = |tree: Tree| trees[&tree].1.clone();
        let mut shared = BTreeMap::from([
            ("the CUDA toolkit's headers".to_owned(), tree(Tree::Toolkit)),
            ("natten's sources".to_owned(), tree(Tree::Sources)),
            ("nattenc's own headers".to_owned(), tree(Tree::Support)),
        ]);
        for (name, what) in [("nvcc", "nvcc"), ("cudafe++", "cudafe++"), ("cicc", "cicc"), ("ptxas", "ptxas")]
            .into_iter()
            .chain([("fatbinary", "fatbinary"), ("host", "the host compiler")])
        {
            shared.extend(tools.get(name).map(|digest| (what.to_owned(), digest.clone())));
        }
        let host = toolkit.host.path.display().to_string();
        let compress = compile::compression(toolkit.release);
        let mut units = BTreeMap::new();
        for (unit, text) in plan.units.iter().zip(texts) {
            let text = fs::sha256_of(text.as_bytes());
            units.insert(unit.label(), UnitInputs { text, args: compile::nvcc_args(unit, &compress, &host) });
        }
        Inputs { version: VERSION, shared, units }
    }

    /// The first thing that is not as in `other`, in words; `None` where all is the same.
    pub(super) fn difference(&self, other: &Inputs) -> Option<String> {
        if self == other {
            return None;
        }
        let names: BTreeSet<&String> = self.shared.keys().chain(other.shared.keys()).collect();
        if let Some(name) = names.into_iter().find(|name| self.shared.get(*name) != other.shared.get(*name)) {
            return Some(format!("{name} differ"));
        }
        let labels: BTreeSet<&String> = self.units.keys().chain(other.units.keys()).collect();
        let label = labels.into_iter().find(|label| self.units.get(*label) != other.units.get(*label))?;
        Some(match (self.units.get(label), other.units.get(label)) {
            (Some(a), Some(b)) if a.text != b.text => {
                format!("the text of {label}, that is its kernels or templates, differs")
            }
            (Some(_), Some(_)) => format!("the arguments of nvcc for {label} differ"),
            _ => format!("only one of them has the unit {label}"),
        })
    }

    /// Keeps them.
    pub(super) fn write(&self, build_dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write_if_changed(&build_dir.join(FILE), text.as_bytes())?;
        Ok(())
    }

    fn read(build_dir: &Path) -> Option<Self> {
        let bytes = fs::read_if_exists(&build_dir.join(FILE)).ok()??;
        serde_json::from_slice(&bytes).ok().filter(|inputs: &Inputs| inputs.version == VERSION)
    }

    /// What is not as it was in `before`, for one unit: sentences.
    fn changes(&self, before: &Inputs, unit: &str) -> Vec<String> {
        let (Some(now), Some(then)) = (self.units.get(unit), before.units.get(unit)) else {
            return vec!["the last build of this variant had no such unit".to_owned()];
        };
        let mut lines = Vec::new();
        let names: BTreeSet<&String> = self.shared.keys().chain(before.shared.keys()).collect();
        for name in names.into_iter().filter(|n| self.shared.get(*n) != before.shared.get(*n)) {
            lines.push(format!("changed since the last build: {name}"));
        }
        if now.text != then.text {
            lines.push("changed since the last build: its text, that is its kernels or templates".to_owned());
        }
        let without = |list: &[String], other: &[String]| -> Vec<String> {
            list.iter().filter(|arg| !other.contains(arg)).cloned().collect()
        };
        for (what, args) in
            [("added", without(&now.args, &then.args)), ("taken away", without(&then.args, &now.args))]
        {
            if !args.is_empty() {
                lines.push(format!("{what} since the last build: {}", args.join(" ")));
            }
        }
        if lines.is_empty() {
            lines.push("nothing that it is compiled from changed since the last build: no job runs again, but for what the store lost".to_owned());
        } else {
            lines.push(
                "jobs whose own inputs are still the same, byte by byte, come from the store".to_owned(),
            );
        }
        lines
    }
}

/// A job of the last build, as `jobs.json` has it.
#[derive(Deserialize)]
struct Job {
    label: String,
    kind: crate::graph::Kind,
    how: crate::execute::How,
    cpu: f64,
}

/// What the last build did for a unit, and why the next one would compile it again or not. Fetches
/// nothing; where toolkit or sources are not at hand, it says so.
pub fn history(
    project: &Project,
    variant: &Variant,
    plan: &Plan,
    unit: &UnitPlan,
    options: &supply::Options,
    reporter: &dyn Reporter,
) -> anyhow::Result<Vec<String>> {
    let build_dir = project.build_dir(&variant.name);
    let Some(before) = Inputs::read(&build_dir) else {
        return Ok(vec![format!(
            "no finished build of {} is recorded here: what the store does not hold is compiled",
            variant.name
        )]);
    };
    let mut lines = last_jobs(&build_dir, &unit.label());
    let options = supply::Options { offline: true, locked: true, toolkit: options.toolkit.clone() };
    match now(project, variant, plan, &options, reporter) {
        Ok(inputs) => lines.extend(inputs.changes(&before, &unit.label())),
        Err(why) => lines.push(format!("what changed since cannot be told: {why:#}")),
    }
    Ok(lines)
}

fn now(
    project: &Project,
    variant: &Variant,
    plan: &Plan,
    options: &supply::Options,
    reporter: &dyn Reporter,
) -> anyhow::Result<Inputs> {
    let search = project.search(variant, options)?;
    let ready = search.toolkit(reporter)?;
    let sources =
        crate::fetch::natten(&search.fetching, &project.config.natten, &report::Transfers(reporter))?;
    let parts = Parts::new(&ready, &sources, Path::new("."))?;
    Ok(Inputs::of(plan, &super::unit_texts(plan)?, &ready.toolkit, &parts.trees, &parts.tools))
}

fn last_jobs(build_dir: &Path, unit: &str) -> Vec<String> {
    let bytes = fs::read_if_exists(&build_dir.join("jobs.json")).ok().flatten().unwrap_or_default();
    let jobs: Vec<Job> = serde_json::from_slice(&bytes).unwrap_or_default();
    let own = |job: &&Job| job.label == unit || job.label.starts_with(&format!("{unit}/"));
    let jobs: Vec<&Job> = jobs.iter().filter(own).collect();
    let ran: Vec<&&Job> = jobs.iter().filter(|j| j.how == crate::execute::How::Ran).collect();
    let mut lines = vec![format!(
        "in the last build {} jobs ran and {} came from the store",
        ran.len(),
        jobs.len() - ran.len()
    )];
    for job in ran {
        lines.push(format!("ran: {} {}, {:.1} CPU s", job.kind.word(), job.label, job.cpu));
    }
    lines
}

#[cfg(test)]
impl Inputs {
    /// Some, for tests.
    pub(super) fn sample(shared: &[(&str, &str)]) -> Inputs {
        Inputs {
            version: VERSION,
            shared: shared.iter().map(|(n, d)| ((*n).to_owned(), (*d).to_owned())).collect(),
            units: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(shared: &[(&str, &str)], text: &str, args: &[&str]) -> Inputs {
        let owned = |s: &&str| (*s).to_owned();
        let unit = UnitInputs { text: text.to_owned(), args: args.iter().map(owned).collect() };
        Inputs { units: BTreeMap::from([("core/fna_011".to_owned(), unit)]), ..Inputs::sample(shared) }
    }

    #[test]
    fn what_changed_is_named() {
        let before = inputs(&[("ptxas", "1"), ("cicc", "1")], "t", &["-O3", "-gencode", "a"]);
        for (now, parts) in [
            (before.clone(), &["nothing that it is compiled from changed"][..]),
            (inputs(&[("ptxas", "2"), ("cicc", "1")], "t", &["-O3", "-gencode", "a"]), &["build: ptxas"]),
            (inputs(&[("cicc", "1")], "t", &["-O3", "-gencode", "a"]), &["build: ptxas"]),
            (inputs(&[("ptxas", "1"), ("cicc", "1")], "u", &["-O3", "-gencode", "a"]), &["its text"]),
            (
                inputs(&[("ptxas", "1"), ("cicc", "1")], "t", &["-O3", "-gencode", "b", "-lineinfo"]),
                &["added since the last build: b -lineinfo", "taken away since the last build: a"],
            ),
        ] {
            let lines = now.changes(&before, "core/fna_011").join("\n");
            assert!(parts.iter().all(|part| lines.contains(part)), "{lines}");
        }
        for (other, part) in [
            (inputs(&[("ptxas", "2"), ("cicc", "1")], "t", &["-O3", "-gencode", "a"]), "ptxas differ"),
            (
                inputs(&[("ptxas", "1"), ("cicc", "1")], "u", &["-O3", "-gencode", "a"]),
                "the text of core/fna_011",
            ),
            (
                inputs(&[("ptxas", "1"), ("cicc", "1")], "t", &["-O3"]),
                "the arguments of nvcc for core/fna_011",
            ),
            (Inputs::sample(&[("ptxas", "1"), ("cicc", "1")]), "only one of them has the unit core/fna_011"),
        ] {
            assert!(before.difference(&other).unwrap().contains(part));
        }
        assert_eq!(before.difference(&before), None);
        assert!(before.changes(&before, "core/fna_012")[0].contains("no such unit"));
    }
}
