//! Runs a graph of jobs. Knows nothing of CUDA, sections or variants: a job is a command with inputs
//! and outputs. One coordinator owns all state; workers run one process at a time and report back,
//! because a worker mostly waits for a compiler.

pub mod cache;
pub mod depfile;
pub mod process;
mod work;

pub use work::first_diagnostic;

use crate::failure::{Class, Failure};
use crate::graph::{Graph, JobId, Kind, Source, Tree};
use crate::report::{Outcome, Reporter};
use cache::{Action, Blob, Cache, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// The digest of a file, memoised or not.
pub trait Digests: Sync {
    /// SHA-256 of the file's bytes, lowercase hex.
    fn sha256(&self, path: &std::path::Path) -> anyhow::Result<String>;
}

/// What jobs run with and against.
pub struct Setting<'a> {
    /// Scratch directories of units lie in it.
    pub scratch: PathBuf,
    /// One log file per unit lies in it.
    pub logs: PathBuf,
    /// Finished work.
    pub cache: &'a Cache,
    /// Where each tree is, and the digest of what it holds.
    pub trees: BTreeMap<Tree, (PathBuf, String)>,
    /// The content digest of each tool, by the name that jobs use.
    pub tools: BTreeMap<String, String>,
    /// Environment of every job; not part of any key, so nothing in it may change an output.
    pub env: BTreeMap<String, String>,
    /// Digests of headers outside all trees.
    pub digests: &'a dyn Digests,
    /// Told of every start and end.
    pub reporter: &'a dyn Reporter,
    /// Set by a signal: its number. The coordinator then ends every child.
    pub signal: &'a AtomicUsize,
}

/// What bounds a run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Compiler processes at once, exactly.
    pub jobs: usize,
    /// What happens after a job failed.
    pub on_failure: OnFailure,
}

/// What happens after a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// No further job starts; those that run finish.
    Stop,
    /// Everything that does not need the failed job still runs.
    KeepGoing,
}

/// How a job's outputs came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Its command ran.
    Ran,
    /// They were in the cache.
    Cached,
}

/// A finished job, for the record of a build.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Record {
    /// As [`crate::graph::Job::label`].
    pub label: String,
    /// What it did.
    pub kind: Kind,
    /// Ran or cached.
    pub how: How,
    /// CPU seconds, of the run that made the outputs.
    pub cpu: f64,
    /// Wall seconds, likewise.
    pub wall: f64,
    /// Largest resident set in bytes, likewise.
    pub peak_memory: u64,
}

/// A graph whose every job is done.
pub struct Built {
    /// Per job, its outputs.
    pub outputs: Vec<Vec<Blob>>,
    /// Per job, in the graph's order.
    pub records: Vec<Record>,
    /// Largest sum of the resident sets of jobs that ran at once, bytes: an upper bound, from peaks.
    pub peak_memory: u64,
}

/// How one command ended, as a worker reports it.
enum Ended {
    Done(Action),
    /// An input's bytes were no longer in the cache: this job must run again.
    Lost(JobId),
    Failed(anyhow::Error),
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Some inputs are not made yet.
    Waiting(BTreeSet<JobId>),
    /// All inputs are known; a worker is to run it.
    Ready,
    Running,
    Done,
    Failed,
}

struct Coordinator<'a> {
    graph: &'a Graph,
    setting: &'a Setting<'a>,
    states: Vec<State>,
    outputs: Vec<Vec<Blob>>,
    records: Vec<Option<Record>>,
    users: Vec<Vec<JobId>>,
    remaining: Vec<f64>,
    keys: Vec<String>,
    failures: Vec<anyhow::Error>,
    /// Headers outside all trees whose digest was asked for already.
    seen: BTreeMap<String, String>,
}

/// Runs every job of `graph` whose outputs are not in the cache.
///
/// Fails with the class of the first failed job; with several failures the message counts them.
pub fn run(graph: &Graph, setting: &Setting<'_>, limits: Limits) -> anyhow::Result<Built> {
    let count = graph.jobs().len();
    let mut users = vec![Vec::new(); count];
    let mut states = Vec::with_capacity(count);
    for (id, job) in graph.jobs().iter().enumerate() {
        let needs: BTreeSet<JobId> = job.inputs.iter().filter_map(producer).collect();
        for need in &needs {
            users[*need].push(id);
        }
        states.push(State::Waiting(needs));
    }
    let mut coordinator = Coordinator {
        graph,
        setting,
        states,
        outputs: vec![Vec::new(); count],
        records: vec![None; count],
        users,
        remaining: graph.remaining(),
        keys: vec![String::new(); count],
        failures: Vec::new(),
        seen: BTreeMap::new(),
    };
    let peak_memory = coordinator.run(limits)?;
    coordinator.finish(peak_memory)
}

fn producer(input: &crate::graph::Input) -> Option<JobId> {
    match input.source {
        Source::Output(id, _) => Some(id),
        Source::Text(_) => None,
    }
}

impl Coordinator<'_> {
    fn run(&mut self, limits: Limits) -> anyhow::Result<u64> {
        for id in 0..self.states.len() {
            if self.states[id] == State::Waiting(BTreeSet::new()) {
                self.inputs_known(id)?;
            }
        }
        self.setting.reporter.planned(self.states.iter().filter(|s| **s != State::Done).count());
        let groups: Mutex<BTreeMap<JobId, i32>> = Mutex::new(BTreeMap::new());
        let logs = work::Logs::new(&self.setting.logs);
        let (task_in, task_out) = mpsc::channel::<work::Task>();
        let task_out = Mutex::new(task_out);
        let (done_in, done_out) = mpsc::channel::<(JobId, Ended, u64)>();
        let (graph, setting) = (self.graph, self.setting);
        std::thread::scope(|scope| {
            for _ in 0..limits.jobs {
                let (task_out, done_in, groups, logs) = (&task_out, done_in.clone(), &groups, &logs);
                scope.spawn(move || {
                    loop {
                        let next = match task_out.lock() {
                            Ok(queue) => queue.recv(),
                            Err(_) => return,
                        };
                        let Ok(task) = next else { return };
                        let id = task.id;
                        let (ended, peak) = work::work(&task, graph, setting, groups, logs);
                        if done_in.send((id, ended, peak)).is_err() {
                            return;
                        }
                    }
                });
            }
            let result = self.coordinate(limits, &task_in, &done_out, &groups);
            drop(task_in);
            result
        })
    }

    /// Hands out tasks and takes results until nothing runs and nothing more may start.
    fn coordinate(
        &mut self,
        limits: Limits,
        tasks: &mpsc::Sender<work::Task>,
        done: &mpsc::Receiver<(JobId, Ended, u64)>,
        groups: &Mutex<BTreeMap<JobId, i32>>,
    ) -> anyhow::Result<u64> {
        let mut running: BTreeMap<JobId, Instant> = BTreeMap::new();
        let mut peaks: BTreeMap<JobId, u64> = BTreeMap::new();
        let mut highest = 0;
        let mut interrupted = None;
        loop {
            let stop = interrupted.is_some()
                || (limits.on_failure == OnFailure::Stop && !self.failures.is_empty());
            while !stop && running.len() < limits.jobs {
                let Some(id) = self.next_ready() else { break };
                self.states[id] = State::Running;
                self.setting.reporter.started(&self.graph.jobs()[id]);
                running.insert(id, Instant::now());
                let task = work::Task { id, inputs: self.input_blobs(id) };
                tasks.send(task).map_err(|_| anyhow::anyhow!("all workers are gone"))?;
            }
            if running.is_empty() {
                break;
            }
            match done.recv_timeout(Duration::from_millis(200)) {
                Ok((id, ended, peak)) => {
                    let began = running.remove(&id);
                    peaks.insert(id, peak);
                    let together: u64 = peak + running.keys().filter_map(|r| peaks.get(r)).sum::<u64>();
                    highest = highest.max(together);
                    let wall = began.map_or(Duration::ZERO, |b| b.elapsed());
                    self.ended(id, ended, wall, interrupted.is_some())?;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.setting.reporter.tick(),
                Err(mpsc::RecvTimeoutError::Disconnected) => anyhow::bail!("all workers are gone"),
            }
            let signal = self.setting.signal.load(Ordering::SeqCst);
            if signal != 0 && interrupted.is_none() {
                interrupted = Some(signal);
                end_all(groups);
            }
        }
        match interrupted.or(Some(self.setting.signal.load(Ordering::SeqCst)).filter(|s| *s != 0)) {
            None => Ok(highest),
            Some(signal) => {
                let class = if i32::try_from(signal) == Ok(signal_hook::consts::SIGINT) { Class::Interrupted } else { Class::Terminated };
                Err(Failure::new(class, format!("stopped by signal {signal}; finished jobs are kept in the cache"))
                    .hint("run the same command again: it goes on where it stopped")
                    .into())
            }
        }
    }

    /// The ready job with the longest way to go, the earliest of equals.
    fn next_ready(&self) -> Option<JobId> {
        let ready = (0..self.states.len()).filter(|id| self.states[*id] == State::Ready);
        ready.max_by(|a, b| self.remaining[*a].total_cmp(&self.remaining[*b]).then(b.cmp(a)))
    }

    fn input_blobs(&self, id: JobId) -> Vec<Option<Blob>> {
        self.graph.jobs()[id]
            .inputs
            .iter()
            .map(|input| match input.source {
                Source::Output(from, output) => Some(self.outputs[from][output].clone()),
                Source::Text(_) => None,
            })
            .collect()
    }

    fn ended(&mut self, id: JobId, ended: Ended, wall: Duration, interrupted: bool) -> anyhow::Result<()> {
        let job = &self.graph.jobs()[id];
        match ended {
            Ended::Done(action) => {
                if let Err(error) = self.setting.cache.put_action(&self.keys[id], &action) {
                    self.setting.reporter.warning(&format!("{}: not recorded in the cache: {error}", job.label));
                }
                self.setting.reporter.finished(job, Outcome::Ran { wall, peak_memory: action.peak_memory });
                self.done(id, &action, How::Ran)
            }
            Ended::Lost(producer) => {
                self.setting.reporter.warning(&format!(
                    "{}: the cache lost an output of {}; it runs again",
                    job.label,
                    self.graph.jobs()[producer].label
                ));
                self.states[id] = State::Waiting(BTreeSet::from([producer]));
                if self.states[producer] == State::Done {
                    self.states[producer] = State::Ready;
                }
                Ok(())
            }
            Ended::Failed(_) if interrupted => {
                self.states[id] = State::Failed;
                Ok(())
            }
            Ended::Failed(error) => {
                self.setting.reporter.finished(job, Outcome::Failed { message: error.to_string() });
                self.states[id] = State::Failed;
                self.failures.push(error);
                Ok(())
            }
        }
    }

    /// Called once all inputs of a job are known: a hit is done at once, a miss is ready.
    fn inputs_known(&mut self, id: JobId) -> anyhow::Result<()> {
        self.keys[id] = self.key(id)?;
        match self.setting.cache.action(&self.keys[id]) {
            Some(action)
                if action.outputs.len() == self.graph.jobs()[id].outputs.len() && self.headers_unchanged(&action) =>
            {
                self.setting.reporter.finished(&self.graph.jobs()[id], Outcome::Cached);
                self.done(id, &action, How::Cached)
            }
            _ => {
                self.states[id] = State::Ready;
                Ok(())
            }
        }
    }

    fn done(&mut self, id: JobId, action: &Action, how: How) -> anyhow::Result<()> {
        let job = &self.graph.jobs()[id];
        self.states[id] = State::Done;
        self.outputs[id].clone_from(&action.outputs);
        self.records[id] = Some(Record {
            label: job.label.clone(),
            kind: job.kind,
            how,
            cpu: action.cpu,
            wall: action.wall,
            peak_memory: action.peak_memory,
        });
        for user in self.users[id].clone() {
            let now_known = match &mut self.states[user] {
                State::Waiting(needs) => needs.remove(&id) && needs.is_empty(),
                _ => false,
            };
            if now_known {
                self.inputs_known(user)?;
            }
        }
        Ok(())
    }

    fn key(&self, id: JobId) -> anyhow::Result<String> {
        let job = &self.graph.jobs()[id];
        let mut key = Key::new(job.kind.word());
        let tool = self.setting.tools.get(&job.tool);
        key.add("tool", tool.ok_or_else(|| anyhow::anyhow!("no digest of tool {}", job.tool))?);
        for arg in &job.args {
            key.add("arg", arg);
        }
        for tree in &job.trees {
            let (_, digest) = self.setting.trees.get(tree).ok_or_else(|| anyhow::anyhow!("no tree {tree:?}"))?;
            key.add(tree.link(), digest);
        }
        for (input, blob) in job.inputs.iter().zip(self.input_blobs(id)) {
            let digest = match (&input.source, blob) {
                (Source::Text(text), _) => crate::fs::sha256_of(text.as_bytes()),
                (Source::Output(..), Some(blob)) => blob.sha256,
                (Source::Output(..), None) => anyhow::bail!("{}: input {} is not made yet", job.label, input.name),
            };
            key.add(&input.name, &digest);
        }
        for output in &job.outputs {
            key.add("output", output);
        }
        Ok(key.finish())
    }

    fn headers_unchanged(&mut self, action: &Action) -> bool {
        action.headers.iter().all(|(path, digest)| {
            if let Some(known) = self.seen.get(path) {
                return known == digest;
            }
            let now = self.setting.digests.sha256(std::path::Path::new(path)).unwrap_or_default();
            let same = now == *digest;
            self.seen.insert(path.clone(), now);
            same
        })
    }

    fn finish(mut self, peak_memory: u64) -> anyhow::Result<Built> {
        if !self.failures.is_empty() {
            return Err(self.failure());
        }
        let mut records = Vec::with_capacity(self.records.len());
        for (job, record) in self.graph.jobs().iter().zip(self.records.drain(..)) {
            records.push(record.ok_or_else(|| anyhow::anyhow!("{} never ran, and nothing failed", job.label))?);
        }
        Ok(Built { outputs: self.outputs, records, peak_memory })
    }

    /// The first failure, with the others counted.
    fn failure(&mut self) -> anyhow::Error {
        let others = self.failures.len() - 1;
        let blocked = self.states.iter().filter(|s| !matches!(s, State::Done | State::Failed)).count();
        let first = self.failures.remove(0);
        let Ok(mut failure) = first.downcast::<Failure>() else {
            return anyhow::anyhow!("a job failed in a way that nattenc does not know");
        };
        if others > 0 {
            failure.message += &format!("\n  {others} more jobs failed");
        }
        if blocked > 0 {
            failure.message += &format!("\n  {blocked} jobs were not started");
        }
        failure.into()
    }
}

/// Ends every child with its whole process group.
fn end_all(groups: &Mutex<BTreeMap<JobId, i32>>) {
    if let Ok(groups) = groups.lock() {
        for group in groups.values() {
            process::end_group(*group);
        }
    }
}
