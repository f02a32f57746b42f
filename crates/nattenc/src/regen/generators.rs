//! Upstream's own generators, run from unpacked sources into a temporary directory: every family under
//! every split policy. Nothing of what they write stays.

use super::canonical::POLICIES;
use crate::execute::process::{self, CommandLine};
use crate::failure::Failure;
use crate::{env, fs};
use anyhow::Context as _;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Everything that upstream's scripts wrote.
pub(super) struct Generated {
    directory: tempfile::TempDir,
    /// Policy → family → units.
    pub(super) splits: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Generated {
    /// Runs all scripts of `sources` with `python`.
    pub(super) fn new(sources: &Path, python: &Path) -> anyhow::Result<Generated> {
        let splits = splits(sources, python)?;
        let directory = tempfile::tempdir().context("a temporary directory for upstream's output")?;
        let mut runs = Vec::new();
        for policy in POLICIES {
            for (family, count) in splits.get(policy).into_iter().flatten() {
                runs.push((directory.path().join(policy), family, *count));
            }
        }
        let one =
            |(out, family, count): &(PathBuf, &String, usize)| generate(sources, python, family, *count, out);
        // All run, and the first failure in their order is told, whichever came first.
        runs.par_iter().map(one).collect::<Vec<_>>().into_iter().collect::<anyhow::Result<()>>()?;
        Ok(Generated { directory, splits })
    }

    /// The families that any policy splits.
    pub(super) fn families(&self) -> BTreeSet<&str> {
        self.splits.values().flat_map(BTreeMap::keys).map(String::as_str).collect()
    }

    /// The text of a family's units, in their order.
    pub(super) fn units(&self, policy: &str, family: &str) -> anyhow::Result<Vec<String>> {
        let directory = self.directory.path().join(policy).join("autogen/src/cuda").join(family);
        let written = fs::list(&directory)?.len();
        (0..written).map(|index| fs::read_text(&directory.join(format!("source_{index}.cu")))).collect()
    }

    /// Every file, headers too: path from the policy on, and digest.
    pub(super) fn files(&self) -> anyhow::Result<BTreeMap<String, String>> {
        super::upstream::digests(self.directory.path())
    }
}

/// Reads the split policies out of setup.py, which cannot be run: it imports torch.
const SPLITS: &str = "
import ast, json, sys
for node in ast.parse(open(sys.argv[1], encoding='utf-8').read()).body:
    if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'NUM_SPLITS':
        print(json.dumps(ast.literal_eval(node.value)))
";

fn splits(sources: &Path, python: &Path) -> anyhow::Result<BTreeMap<String, BTreeMap<String, usize>>> {
    let setup = sources.join("setup.py");
    if !setup.is_file() {
        return Err(Failure::config(format!("{}: is not there", shown(&setup)))
            .hint("name the directory of an unpacked source archive of natten")
            .into());
    }
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

fn generate(sources: &Path, python: &Path, family: &str, count: usize, out: &Path) -> anyhow::Result<()> {
    let candidates = [format!("scripts/autogen_{family}.py"), format!("scripts/autogen_{family}_fna.py")];
    let script = candidates.iter().map(|file| sources.join(file)).find(|path| path.is_file());
    let script = script.ok_or_else(|| {
        Failure::integrity(format!("{}: no script generates {family}", shown(sources)))
            .hint("this version of natten generates its kernels in a way that nattenc does not know")
    })?;
    run(python, &[&shown(&script), "-o", &shown(out), "--num-splits", &count.to_string()], sources)?;
    Ok(())
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
    let said =
        finished.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let script = arguments.iter().find(|argument| argument.ends_with(".py")).copied().unwrap_or_default();
    Err(Failure::integrity(format!("{script}: {} failed: {said}", shown(python)))
        .hint("run it by hand to see all of what it says; it needs python3 alone")
        .diagnostic(finished.output.clone())
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source tree with one made-up family's script, through a real python3.
    #[test]
    fn scripts_that_fail_are_told_with_their_last_words() {
        let path = env::text("PATH").unwrap().unwrap_or_default();
        let Some(python) = process::search("python3", &path) else { return };
        let dir = tempfile::tempdir().unwrap();
        let error = |dir: &Path| Generated::new(dir, &python).err().map(|e| format!("{e:#}")).unwrap();
        assert!(error(dir.path()).contains("setup.py: is not there"));
        let setup = b"NUM_SPLITS = {'default': {'fna': 64, 'new-one': 2}}";
        fs::write(&dir.path().join("setup.py"), setup).unwrap();
        fs::write(&dir.path().join("scripts/autogen_fna.py"), b"raise SystemExit('no luck')").unwrap();
        assert!(error(dir.path()).contains("failed: no luck"));
        fs::write(&dir.path().join("scripts/autogen_fna.py"), b"").unwrap();
        assert!(error(dir.path()).contains("no script generates new_one"));
    }
}
