//! What jobs cost when they last ran, kept in the store: better than any first estimate. Keyed by label and
//! kind, since a changed text costs about what the text before it did. What the job was estimated at is kept
//! beside it: where a unit now holds other kernels, their ratio corrects the record, and jobs that never ran
//! are corrected by how far the estimates of their kind were off on this machine.
//!
//! Builds that run at once share it: each lays what it learned itself over what is there then, every minute and at its
//! end.

use crate::bounded::{self, Pulse};
use crate::cost::memory::Profile;
use crate::fs;
use crate::graph::{Cost, Job, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

type Records = BTreeMap<String, Record>;

/// Costs by job.
#[derive(Debug)]
pub struct History {
    home: PathBuf,
    /// How long the store may give no sign of life; nothing once it gave none.
    patience: Option<Duration>,
    records: Records,
    /// What this run learned and did not write yet.
    learned: Records,
    /// When it was written last, or read.
    written: Instant,
    /// How much longer jobs took than was estimated, by the word of their kind.
    factors: BTreeMap<String, f64>,
}

/// How often it is written while a build runs.
const PERIOD: Duration = Duration::from_secs(60);

/// How long the end of a build waits for another that writes.
const WAIT: Duration = Duration::from_secs(2);

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
fn factors(records: &Records) -> BTreeMap<String, f64> {
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

/// The lock of who writes it.
fn lock(home: &Path) -> PathBuf {
    home.join("locks/history")
}

/// What the store has; one that cannot be read is an empty one.
fn read(home: &Path) -> Records {
    let bytes = fs::read_if_exists(&file(home)).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Lays `learned` over what the store has now.
fn merge(home: &Path, learned: Records, wait: Duration) -> anyhow::Result<()> {
    let Some(_lock) = fs::lock_within(&lock(home), wait)? else {
        anyhow::bail!("{}: another nattenc is writing it", file(home).display())
    };
    let mut records = read(home);
    records.extend(learned);
    fs::write(&file(home), &serde_json::to_vec(&records)?)
}

impl History {
    /// Reads the history below `home`; one that cannot be read is an empty one.
    pub fn open(home: &Path) -> Self {
        Self::patient(home, bounded::PATIENCE)
    }

    /// As [`History::open`], of a store that may give no sign of life for as long as `patience`.
    fn patient(home: &Path, patience: Duration) -> Self {
        let home = home.to_path_buf();
        let own = home.clone();
        let known = bounded::within(patience, move |_| read(&own));
        let patience = known.is_some().then_some(patience);
        let records = known.unwrap_or_default();
        let factors = factors(&records);
        History { home, patience, records, learned: Records::new(), written: Instant::now(), factors }
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
        if self.records.insert(name(job), record) != Some(record) {
            self.learned.insert(name(job), record);
        }
    }

    /// Writes what was learned if that was not done for a minute. What cannot be written now is kept for later.
    pub fn save_now_and_then(&mut self) {
        if self.written.elapsed() >= PERIOD {
            let _ = self.write(Duration::ZERO);
        }
    }

    /// Writes what was learned.
    pub fn save(&mut self) -> anyhow::Result<()> {
        self.write(WAIT)
    }

    fn write(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.written = Instant::now();
        if self.learned.is_empty() {
            return Ok(());
        }
        let (home, learned) = (self.home.clone(), self.learned.clone());
        let work = move |_: &Pulse| merge(&home, learned, wait);
        let Some(done) = self.patience.and_then(|patience| bounded::within(patience + wait, work)) else {
            self.patience = None;
            anyhow::bail!("{}: the store gives no answer", file(&self.home).display());
        };
        done.map(|()| self.learned.clear())
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

    fn learn(history: &mut History, label: &str, cpu: f64) {
        history.record(&job(Kind::Cicc, label, 1.0, 9), Cost { cpu, memory: 9 }, Profile::FLAT, 7);
    }

    fn cpu(home: &Path, label: &str) -> f64 {
        History::open(home).predict(&job(Kind::Cicc, label, 1.0, 9)).cpu
    }

    #[test]
    fn builds_that_run_at_once_lose_nothing_of_each_other() {
        let home = tempfile::tempdir().unwrap();
        let [mut one, mut other] = [(); 2].map(|()| History::open(home.path()));
        learn(&mut one, "core/a", 5.0);
        learn(&mut one, "core/both", 5.0);
        learn(&mut other, "hopper/b", 7.0);
        one.save().unwrap();
        other.save().unwrap();
        learn(&mut one, "core/later", 6.0);
        one.save().unwrap();
        let known = ["core/a", "core/both", "core/later", "hopper/b"].map(|label| cpu(home.path(), label));
        assert_eq!(known, [5.0, 5.0, 6.0, 7.0]);
        // Of the same job the last to learn wins, and who learned nothing new changes nothing.
        learn(&mut other, "core/both", 8.0);
        other.save().unwrap();
        one.save().unwrap();
        assert_eq!(cpu(home.path(), "core/both"), 8.0);
    }

    #[test]
    fn what_was_learned_is_written_while_the_build_runs_and_kept_while_it_cannot_be() {
        let home = tempfile::tempdir().unwrap();
        let mut history = History::open(home.path());
        learn(&mut history, "core/a", 5.0);
        history.save_now_and_then();
        assert_eq!(History::open(home.path()).len(), 0, "not within the first minute");
        history.written -= PERIOD;
        let busy = fs::lock(&lock(home.path())).unwrap();
        history.save_now_and_then();
        assert_eq!(History::open(home.path()).len(), 0);
        drop(busy);
        history.written -= PERIOD;
        history.save_now_and_then();
        assert_eq!(cpu(home.path(), "core/a"), 5.0);
    }

    #[test]
    fn store_without_an_answer_is_asked_once_and_costs_what_was_learned() {
        let home = tempfile::tempdir().unwrap();
        fs::pipe(&file(home.path()));
        let mut history = History::patient(home.path(), Duration::from_millis(100));
        learn(&mut history, "core/a", 5.0);
        let error = history.save().unwrap_err();
        assert!(error.to_string().contains("history.json: the store gives no answer"), "{error}");
    }
}
