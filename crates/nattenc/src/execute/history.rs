//! What jobs cost when they last ran, kept in the store: better than any first estimate. Keyed by label and
//! kind, since a changed text costs about what the text before it did.

use crate::fs;
use crate::graph::{Cost, Job};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Costs by job.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    costs: BTreeMap<String, Cost>,
    changed: bool,
}

fn name(job: &Job) -> String {
    format!("{} {}", job.kind.word(), job.label)
}

impl History {
    /// Reads the history below `home`; one that cannot be read is an empty one.
    pub fn open(home: &Path) -> Self {
        let file = home.join("history.json");
        let costs =
            fs::read_if_exists(&file).ok().flatten().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        History { file, costs: costs.unwrap_or_default(), changed: false }
    }

    /// What the job will probably cost.
    pub fn predict(&self, job: &Job) -> Cost {
        self.costs.get(&name(job)).copied().unwrap_or(job.estimate)
    }

    /// Remembers what a job did cost.
    pub fn record(&mut self, job: &Job, cost: Cost) {
        self.changed |= self.costs.insert(name(job), cost) != Some(cost);
    }

    /// Writes the history where something was added.
    pub fn save(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.changed) {
            fs::write(&self.file, &serde_json::to_vec(&self.costs)?)?;
        }
        Ok(())
    }
}
