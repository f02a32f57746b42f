//! What jobs cost when they last ran, kept in the store: better than any first estimate. Keyed by label and
//! kind, since a changed text costs about what the text before it did. What the job was estimated at is kept
//! beside it: where a unit now holds other kernels, their ratio corrects the record, and jobs that never ran
//! are corrected by how far the estimates of their kind were off on this machine.

use crate::cost::memory::Profile;
use crate::fs;
use crate::graph::{Cost, Job, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is remembered of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    cost: Cost,
    /// What it wrote. Of use to `scripts/fit-costs.py` alone.
    #[serde(default)]
    bytes: u64,
    /// What it was estimated at then; absent in the records of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    estimate: Option<Cost>,
    /// How its memory went; absent in the records of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

/// Costs by job.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    records: BTreeMap<String, Record>,
    /// How much longer jobs took than was estimated, by the word of their kind.
    factors: BTreeMap<String, f64>,
    changed: bool,
}

fn name(job: &Job) -> String {
    format!("{} {}", job.kind.word(), job.label)
}

/// Seconds of estimates, by which a kind's own factor counts as much as that of all kinds.
const FEW: f64 = 20.0;

/// Sums of what jobs took and of what they were estimated at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ratio {
    took: f64,
    estimated: f64,
}

impl Ratio {
    /// Adds a job.
    pub(super) fn add(&mut self, took: f64, estimated: f64) {
        self.took += took;
        self.estimated += estimated;
    }

    /// The ratio, which is `prior` while nothing is known and is trusted more the more `few` is exceeded.
    pub(super) fn value(self, prior: f64, few: f64) -> f64 {
        prior.mul_add(few, self.took) / (self.estimated + few)
    }
}

/// How far the estimates of each kind were off.
fn factors(records: &BTreeMap<String, Record>) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<&str, Ratio> = BTreeMap::new();
    let mut all = Ratio::default();
    for (name, record) in records {
        if let (Some(estimate), Some((kind, _))) = (record.estimate, name.split_once(' ')) {
            kinds.entry(kind).or_default().add(record.cost.cpu, estimate.cpu);
            all.add(record.cost.cpu, estimate.cpu);
        }
    }
    let all = all.value(1.0, FEW);
    kinds.into_iter().map(|(kind, ratio)| (kind.to_owned(), ratio.value(all, FEW))).collect()
}

/// Where the history lies in the store.
pub(super) fn file(home: &Path) -> PathBuf {
    home.join("history.json")
}

impl History {
    /// Reads the history below `home`; one that cannot be read is an empty one.
    pub fn open(home: &Path) -> Self {
        let file = file(home);
        let records: BTreeMap<String, Record> = fs::read_if_exists(&file)
            .ok()
            .flatten()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let factors = factors(&records);
        History { file, records, factors, changed: false }
    }

    /// How many jobs it remembers.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// How much longer jobs of a kind take on this machine than is estimated, as far as is known.
    pub fn factor(&self, kind: Kind) -> f64 {
        self.factors.get(kind.word()).copied().unwrap_or(1.0)
    }

    /// What the job will probably cost.
    pub fn predict(&self, job: &Job) -> Cost {
        let now = job.estimate;
        let Some(record) = self.records.get(&name(job)) else {
            return Cost { cpu: now.cpu * self.factor(job.kind), ..now };
        };
        let ratio = |now: f64, then: f64| if then > 0.0 && now > 0.0 { now / then } else { 1.0 };
        let Some(then) = record.estimate else { return record.cost };
        let memory = record.cost.memory as f64 * ratio(now.memory as f64, then.memory as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, never negative")]
        Cost { cpu: record.cost.cpu * ratio(now.cpu, then.cpu), memory: memory as u64 }
    }

    /// How the job's memory will probably go.
    pub fn profile(&self, job: &Job) -> Profile {
        let record = self.records.get(&name(job));
        record.and_then(|record| record.profile).unwrap_or_else(|| Profile::of_kind(job.kind))
    }

    /// Remembers what a job did cost, how its memory went, and how many bytes it wrote.
    pub fn record(&mut self, job: &Job, cost: Cost, profile: Profile, bytes: u64) {
        let record = Record { cost, bytes, estimate: Some(job.estimate), profile: Some(profile) };
        self.changed |= self.records.insert(name(job), record) != Some(record);
    }

    /// Writes the history where something was added.
    pub fn save(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.changed) {
            fs::write(&self.file, &serde_json::to_vec(&self.records)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kind: Kind, label: &str, cpu: f64, memory: u64) -> Job {
        Job {
            kind,
            scratch: String::new(),
            label: label.to_owned(),
            tool: String::new(),
            program: String::new(),
            args: vec![],
            inputs: vec![],
            outputs: vec![],
            trees: vec![],
            depfile: None,
            estimate: Cost { cpu, memory },
        }
    }

    #[test]
    fn records_correct_estimates_of_the_same_job_with_other_kernels_and_of_its_kind() {
        let home = tempfile::tempdir().unwrap();
        const SHAPE: Profile = Profile { until: 0.4, after: 0.3 };
        let mut history = History::open(home.path());
        let first = job(Kind::Cicc, "core/fna_000/compute_90", 100.0, 1000);
        assert_eq!(history.predict(&first), first.estimate);
        assert_eq!(history.profile(&first), Profile::of_kind(Kind::Cicc));
        history.record(&first, Cost { cpu: 150.0, memory: 800 }, SHAPE, 7);
        history.record(
            &job(Kind::Ptxas, "core/fna_000/sm_90", 20.0, 9),
            Cost { cpu: 10.0, memory: 9 },
            Profile::FLAT,
            7,
        );
        history.save().unwrap();
        let history = History::open(home.path());
        assert_eq!(history.profile(&first), SHAPE);
        for (job, cpu, memory) in [
            (&first, 150.0, 800),
            // Half the kernels, half the time.
            (&job(Kind::Cicc, "core/fna_000/compute_90", 50.0, 500), 75.0, 400),
            // Never ran: as far off as its kind, which counts less where little of it ran.
            (&job(Kind::Cicc, "core/fna_001/compute_90", 60.0, 700), 60.0 * 1.4642857, 700),
            (&job(Kind::Ptxas, "core/fna_001/sm_90", 10.0, 9), 10.0 * 0.8928571, 9),
            (&job(Kind::Host, "core/fna_001", 10.0, 9), 10.0, 9),
        ] {
            let cost = history.predict(job);
            assert!((cost.cpu - cpu).abs() < 1e-4 && cost.memory == memory, "{}: {cost:?}", job.label);
        }
    }

    #[test]
    fn histories_of_older_releases_are_read() {
        let home = tempfile::tempdir().unwrap();
        let text = br#"{"cicc core/fna_000/compute_90":{"cpu":2.5,"memory":600}}"#;
        fs::write(&home.path().join("history.json"), text).unwrap();
        let history = History::open(home.path());
        let known = job(Kind::Cicc, "core/fna_000/compute_90", 100.0, 1000);
        assert_eq!(history.predict(&known), Cost { cpu: 2.5, memory: 600 });
        assert_eq!(history.factor(Kind::Cicc), 1.0);
        assert_eq!(history.profile(&known), Profile::of_kind(Kind::Cicc));
    }
}
