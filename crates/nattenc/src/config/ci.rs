//! `[ci]` of build.toml: what continuous integration builds, and on which machines.

use super::check;
use super::place::Problems;
use super::read::Table;

/// What `nattenc ci` is asked for where its options do not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ci {
    /// The variants that are built, by name.
    pub variants: Vec<String>,
    /// The platform's label of the machines that run the jobs.
    pub runner: String,
    /// CPU cores of such a machine.
    pub runner_cores: usize,
    /// Memory of such a machine, as `16G`.
    pub runner_memory: String,
    /// How long a job may take.
    pub max_minutes: usize,
}

/// Reads `[ci]`. Nothing in it is left to a default: it says what a platform would otherwise decide.
pub(super) fn read(root: &Table<'_, '_>, problems: &mut Problems<'_>) -> Option<Ci> {
    let table = root.table("ci", problems)?;
    table.only(&["variants", "runner", "runner-cores", "runner-memory", "max-minutes"], problems);
    for (key, example) in [
        ("variants", "variants = [\"cu128\", \"cu130\"]"),
        ("runner", "runner = \"ubuntu-24.04\""),
        ("runner-cores", "runner-cores = 4"),
        ("runner-memory", "runner-memory = \"16G\""),
        ("max-minutes", "max-minutes = 330"),
    ] {
        table.require(key, example, problems);
    }
    let variants = table.strings("variants", problems);
    check::not_empty("variants", variants.as_ref(), table.place("variants", problems), problems);
    for variant in variants.iter().flatten() {
        check::name("variant", variant, problems);
    }
    let runner = table.string("runner", problems);
    let cores = table.whole("runner-cores", problems);
    let memory = table.string("runner-memory", problems);
    let minutes = table.whole("max-minutes", problems);
    Some(Ci {
        variants: variants?.into_iter().map(|v| v.value).collect(),
        runner: runner?.value,
        runner_cores: cores?,
        runner_memory: memory?.value,
        max_minutes: minutes?,
    })
}
