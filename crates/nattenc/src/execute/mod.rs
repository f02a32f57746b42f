//! Runs a graph of jobs. Knows nothing of CUDA, sections or variants: a job is a command with inputs
//! and outputs. One coordinator owns all state; workers run one process at a time and report back,
//! because a worker mostly waits for a compiler.

pub mod cache;
pub mod depfile;
pub mod eta;
mod failures;
pub mod history;
pub mod process;
mod reproducer;
pub mod upkeep;
mod work;

pub use work::first_diagnostic;

use crate::failure::{Class, Failure};
use crate::graph::{Cost, Graph, Job, JobId, Kind, Source, Tree};
use crate::report::{Outcome, Reporter, bytes, duration};
use cache::{Action, Blob, Cache, Key};
use eta::Eta;
use history::History;
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
    /// The store: what jobs cost is remembered in it.
    pub home: PathBuf,
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
    /// Whether a job may run; where not, what it makes must be in the cache.
    pub may_run: &'a (dyn Fn(&Job) -> bool + Sync),
}

/// What bounds a run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Compiler processes at once, at most.
    pub jobs: usize,
    /// What their resident sets may come to together, bytes, by prediction. A job that is predicted to
    /// need more than all of it runs alone.
    pub memory: u64,
    /// What happens after a job failed.
    pub on_failure: OnFailure,
    /// A process that runs for longer hangs, and is ended.
    pub unit_timeout: Option<Duration>,
    /// No job starts that is predicted to end later.
    pub deadline: Option<Instant>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// The bytes of the first output of each wanted job.
    pub wanted: Vec<Vec<u8>>,
    /// Per job, the key of its action.
    pub keys: Vec<String>,
    /// Per job, in the graph's order.
    pub records: Vec<Record>,
    /// Largest sum of the resident sets of jobs that ran at once, bytes: an upper bound, from peaks.
    pub peak_memory: u64,
}

/// How one command ended, as a worker reports it.
enum Ended {
    Done(Action),
    /// The bytes of an input are not in the cache: the job that made them must run again.
    Lost(JobId),
    Failed(anyhow::Error),
    /// A signal ended it that nattenc did not send.
    Died {
        signal: i32,
        peak_memory: u64,
        error: anyhow::Error,
    },
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
    predicted: Vec<Cost>,
    remaining: Vec<f64>,
    eta: Eta,
    /// When the run began, and when its end was last estimated.
    began: Instant,
    estimated: Option<Instant>,
    /// Jobs that died once and run again, alone.
    second_tries: BTreeSet<JobId>,
    /// Jobs that are known to the cache without the bytes that they made, and must run for those.
    lost: BTreeSet<JobId>,
    /// How often each job had to run for that.
    losses: BTreeMap<JobId, usize>,
    /// Whether a wanted job reads what a job made, or it is one itself: its bytes are kept in the cache longer.
    kept: Vec<bool>,
    history: History,
    keys: Vec<String>,
    failures: Vec<anyhow::Error>,
    /// Headers outside all trees whose digest was asked for already.
    seen: BTreeMap<String, String>,
}

/// How often bytes that the cache lost are made again in one run before that is a failure.
const REPAIRS: usize = 3;

/// Runs every job of `graph` whose outputs are not in the cache. The first outputs of the jobs in `wanted`
/// can be read from the cache afterwards.
///
/// Fails as the first job did whose compiler said why, else as the first that failed; what others said is told
/// once, with how many units said it.
pub fn run(graph: &Graph, wanted: &[JobId], setting: &Setting<'_>, limits: Limits) -> anyhow::Result<Built> {
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
    let history = History::open(&setting.home);
    let predicted: Vec<Cost> = graph.jobs().iter().map(|job| history.predict(job)).collect();
    let cpu: Vec<f64> = predicted.iter().map(|cost| cost.cpu).collect();
    let eta = Eta::new(graph, &predicted, limits.jobs, limits.memory);
    let mut kept = vec![false; count];
    for id in wanted {
        kept[*id] = true;
        graph.jobs()[*id].inputs.iter().filter_map(producer).for_each(|from| kept[from] = true);
    }
    let mut coordinator = Coordinator {
        graph,
        setting,
        states,
        outputs: vec![Vec::new(); count],
        records: vec![None; count],
        users,
        predicted,
        remaining: graph.remaining(&cpu),
        eta,
        began: Instant::now(),
        estimated: None,
        second_tries: BTreeSet::new(),
        lost: BTreeSet::new(),
        losses: BTreeMap::new(),
        kept,
        history,
        keys: vec![String::new(); count],
        failures: Vec::new(),
        seen: BTreeMap::new(),
    };
    let ran = coordinator.run_until_readable(wanted, limits);
    if let Err(error) = coordinator.history.save() {
        setting.reporter.warning(&format!("what jobs cost is not remembered: {error}"));
    }
    let (peak_memory, wanted) = ran?;
    coordinator.finish(peak_memory, wanted)
}

fn producer(input: &crate::graph::Input) -> Option<JobId> {
    match input.source {
        Source::Output(id, _) => Some(id),
        Source::Text(_) => None,
    }
}

impl Coordinator<'_> {
    /// Runs, and runs again what made a wanted output that the cache turns out to have lost. Returns the
    /// highest memory and the wanted bytes, none where a job failed.
    fn run_until_readable(
        &mut self,
        wanted: &[JobId],
        limits: Limits,
    ) -> anyhow::Result<(u64, Vec<Vec<u8>>)> {
        let mut peak = self.run(limits)?;
        while self.failures.is_empty() {
            let read =
                |id: &JobId| self.outputs[*id].first().and_then(|b| self.setting.cache.get(b)).ok_or(*id);
            let (bytes, lost): (Vec<_>, Vec<_>) = wanted.iter().map(read).partition(Result::is_ok);
            if lost.is_empty() {
                return Ok((peak, bytes.into_iter().flatten().collect()));
            }
            for id in lost.into_iter().filter_map(Result::err) {
                self.run_for_bytes(id, "the artifact")?;
            }
            peak = peak.max(self.run(limits)?);
        }
        Ok((peak, Vec::new()))
    }

    /// The failure of jobs that must not run and are not in the cache.
    fn barred(&self, first: JobId, count: usize) -> Failure {
        let others = if count > 1 { format!(" and {} others", count - 1) } else { String::new() };
        Failure::integrity(format!(
            "{}{others}: not in the cache, and nothing may be compiled here",
            self.name(first)
        ))
        .unit(&self.graph.jobs()[first].label)
        .hint("use the toolkit, the host compiler and the system headers that the rest was built with")
    }

    /// Has a job run whose record is in the cache without the bytes, and says for whom.
    fn run_for_bytes(&mut self, id: JobId, reader: &str) -> anyhow::Result<()> {
        if !(self.setting.may_run)(&self.graph.jobs()[id]) {
            return Err(self.barred(id, 1).into());
        }
        let name = self.name(id);
        let losses = self.losses.entry(id).or_default();
        *losses += 1;
        if *losses > REPAIRS {
            return Err(Failure::integrity(format!("{name}: the cache loses it each time it is made"))
                .hint("check the disk that holds the store, or name another with NATTENC_HOME")
                .into());
        }
        self.setting.reporter.phase(&format!(
            "{name} runs again: {reader} needs its output, which the cache does not hold any more"
        ));
        self.lost.insert(id);
        self.eta.back(id);
        self.states[id] = State::Ready;
        Ok(())
    }

    fn run(&mut self, limits: Limits) -> anyhow::Result<u64> {
        for id in 0..self.states.len() {
            if self.states[id] == State::Waiting(BTreeSet::new()) {
                self.inputs_known(id)?;
            }
        }
        let barred: Vec<JobId> =
            self.ready().filter(|id| !(self.setting.may_run)(&self.graph.jobs()[*id])).collect();
        if let Some(first) = barred.first() {
            return Err(self.barred(*first, barred.len()).into());
        }
        self.setting.reporter.planned(self.states.iter().filter(|s| **s != State::Done).count());
        if self.estimated.is_none() {
            self.announce_heaviest(limits);
        }
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
                        let (ended, peak) =
                            work::work(&task, graph, setting, groups, logs, limits.unit_timeout);
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
        let mut held_back = false;
        loop {
            let stop =
                interrupted.is_some() || (limits.on_failure == OnFailure::Stop && !self.failures.is_empty());
            while !stop && running.len() < limits.jobs {
                let Some(id) = self.next_ready(&running, limits) else { break };
                self.states[id] = State::Running;
                self.eta.started(id, self.began.elapsed().as_secs_f64());
                self.setting.reporter.started(&self.graph.jobs()[id]);
                running.insert(id, Instant::now());
                let task = work::Task { id, inputs: self.input_blobs(id) };
                tasks.send(task).map_err(|_| anyhow::anyhow!("all workers are gone"))?;
            }
            if !stop && !held_back && self.ready().any(|id| !self.in_time(id, limits)) {
                held_back = true;
                self.setting
                    .reporter
                    .phase("jobs that would end after the deadline are not started any more");
            }
            if running.is_empty() {
                break;
            }
            self.estimate_end();
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
            None if held_back && self.failures.is_empty() => Err(self.late(limits).into()),
            None => Ok(highest),
            Some(signal) => {
                let class = if i32::try_from(signal) == Ok(signal_hook::consts::SIGINT) {
                    Class::Interrupted
                } else {
                    Class::Terminated
                };
                Err(Failure::new(
                    class,
                    format!("stopped by signal {signal}; finished jobs are kept in the cache"),
                )
                .hint("run the same command again: it goes on where it stopped")
                .into())
            }
        }
    }

    fn ready(&self) -> impl Iterator<Item = JobId> {
        (0..self.states.len()).filter(|id| self.states[*id] == State::Ready)
    }

    /// Whether a job that starts now is predicted to end before the deadline.
    fn in_time(&self, id: JobId, limits: Limits) -> bool {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now()).as_secs_f64();
        limits.deadline.is_none_or(|deadline| self.eta.seconds(id) < left(deadline))
    }

    /// The ready job with the longest way to go, the earliest of equals, of those that fit beside what runs and
    /// end in time. With nothing running every job fits: one that needs more than there is runs alone.
    fn next_ready(&self, running: &BTreeMap<JobId, Instant>, limits: Limits) -> Option<JobId> {
        if running.keys().any(|id| self.second_tries.contains(id)) {
            return None;
        }
        let used: u64 = running.keys().map(|id| self.predicted[*id].memory).sum();
        let fits = |id: &JobId| {
            running.is_empty()
                || (!self.second_tries.contains(id) && used + self.predicted[*id].memory <= limits.memory)
        };
        let ready = self.ready().filter(fits).filter(|id| self.in_time(*id, limits));
        ready.max_by(|a, b| self.remaining[*a].total_cmp(&self.remaining[*b]).then(b.cmp(a)))
    }

    fn name(&self, id: JobId) -> String {
        let job = &self.graph.jobs()[id];
        format!("{} {}", job.kind.word(), job.label)
    }

    /// Says which job will need most memory, of those that are to run.
    fn announce_heaviest(&self, limits: Limits) {
        let todo = (0..self.states.len()).filter(|id| self.states[*id] != State::Done);
        let Some(id) = todo.max_by_key(|id| (self.predicted[*id].memory, std::cmp::Reverse(*id))) else {
            return;
        };
        let (name, memory) = (self.name(id), self.predicted[id].memory);
        let text = format!("heaviest job: {name}, predicted to need {}", bytes(memory));
        if memory > limits.memory {
            let budget = bytes(limits.memory);
            self.setting
                .reporter
                .warning(&format!("{text}, more than the {budget} that there are: it runs alone"));
        } else {
            self.setting.reporter.phase(&text);
        }
    }

    /// The failure of a run that the deadline ended.
    fn late(&self, limits: Limits) -> Failure {
        let time = |seconds: f64| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let done = self.states.iter().filter(|state| **state == State::Done).count();
        let mut message = format!(
            "the deadline leaves no time for more: {done} of {} jobs are done and kept, the other {} are predicted \
             to take {} with {} at once",
            self.states.len(),
            self.states.len() - done,
            time(self.eta.left(self.began.elapsed().as_secs_f64())),
            limits.jobs
        );
        let next = self.ready().min_by(|a, b| self.eta.seconds(*a).total_cmp(&self.eta.seconds(*b)));
        if let Some(id) = next {
            let seconds = time(self.eta.seconds(id));
            message.extend([
                "\n  the shortest that can start is ",
                &self.name(id),
                ", predicted to take ",
                &seconds,
            ]);
        }
        Failure::new(Class::Deadline, message)
            .hint("run the same command again with a later --deadline: it goes on where it stopped")
    }

    /// Tells how long it will still take, at most once a second.
    fn estimate_end(&mut self) {
        if self.estimated.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
            self.estimated = Some(Instant::now());
            let left = self.eta.left(self.began.elapsed().as_secs_f64());
            self.setting.reporter.left(Duration::try_from_secs_f64(left).unwrap_or_default());
        }
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

    /// Says once that the store cannot be written.
    fn warn_of_store(&self) {
        if let Some(trouble) = self.setting.cache.trouble() {
            self.setting.reporter.warning(&trouble);
        }
    }

    fn ended(&mut self, id: JobId, ended: Ended, wall: Duration, interrupted: bool) -> anyhow::Result<()> {
        let job = &self.graph.jobs()[id];
        match ended {
            Ended::Done(action) => {
                self.lost.remove(&id);
                if let Err(error) = self.setting.cache.put_action(&self.keys[id], &action) {
                    self.setting
                        .reporter
                        .warning(&format!("{}: not recorded in the cache: {error}", job.label));
                }
                self.warn_of_store();
                self.setting.reporter.finished(job, Outcome::Ran { wall, peak_memory: action.peak_memory });
                self.eta.finished(id, self.began.elapsed().as_secs_f64());
                let bytes = action.outputs.iter().map(|blob| blob.size).sum();
                self.history.record(job, Cost { cpu: action.cpu, memory: action.peak_memory }, bytes);
                self.done(id, &action, How::Ran)
            }
            Ended::Lost(producer) => {
                self.states[id] = State::Waiting(BTreeSet::from([producer]));
                self.eta.back(id);
                if self.states[producer] == State::Done {
                    let reader = self.name(id);
                    self.run_for_bytes(producer, &reader)?;
                }
                Ok(())
            }
            Ended::Failed(_) | Ended::Died { .. } if interrupted => {
                self.states[id] = State::Failed;
                Ok(())
            }
            Ended::Died { signal, peak_memory, .. } if self.second_tries.insert(id) => {
                let what =
                    if signal == work::SIGKILL { "was killed, most likely for memory," } else { "crashed" };
                self.setting.reporter.warning(&format!(
                    "{} {}: {what} by signal {signal} at {} MB; it runs again, alone",
                    job.kind.word(),
                    job.label,
                    peak_memory >> 20
                ));
                self.setting.reporter.finished(job, Outcome::Again);
                self.eta.back(id);
                self.predicted[id].memory = self.predicted[id].memory.max(peak_memory) * 2;
                self.states[id] = State::Ready;
                Ok(())
            }
            Ended::Failed(error) | Ended::Died { error, .. } => {
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
        let known = if self.lost.contains(&id) { None } else { self.setting.cache.action(&self.keys[id]) };
        match known {
            Some(action)
                if action.outputs.len() == self.graph.jobs()[id].outputs.len()
                    && self.headers_unchanged(&action) =>
            {
                self.eta.settled(id);
                if self.kept[id] {
                    self.setting.cache.keep(&action.outputs);
                }
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
            let (_, digest) =
                self.setting.trees.get(tree).ok_or_else(|| anyhow::anyhow!("no tree {tree:?}"))?;
            key.add(tree.link(), digest);
        }
        for (input, blob) in job.inputs.iter().zip(self.input_blobs(id)) {
            let digest = match (&input.source, blob) {
                (Source::Text(text), _) => crate::fs::sha256_of(text.as_bytes()),
                (Source::Output(..), Some(blob)) => blob.sha256,
                (Source::Output(..), None) => {
                    anyhow::bail!("{}: input {} is not made yet", job.label, input.name)
                }
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

    fn finish(mut self, peak_memory: u64, wanted: Vec<Vec<u8>>) -> anyhow::Result<Built> {
        if !self.failures.is_empty() {
            return Err(self.failure());
        }
        let mut records = Vec::with_capacity(self.records.len());
        for (job, record) in self.graph.jobs().iter().zip(self.records.drain(..)) {
            records
                .push(record.ok_or_else(|| anyhow::anyhow!("{} never ran, and nothing failed", job.label))?);
        }
        Ok(Built { outputs: self.outputs, wanted, keys: self.keys, records, peak_memory })
    }

    /// The failure that the run ends on.
    fn failure(&mut self) -> anyhow::Error {
        let blocked = self.states.iter().filter(|s| !matches!(s, State::Done | State::Failed)).count();
        failures::one_of(std::mem::take(&mut self.failures), blocked, &self.setting.logs)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Input;
    use std::path::Path;
    use std::sync::Arc;

    struct Plain;

    impl Digests for Plain {
        fn sha256(&self, path: &Path) -> anyhow::Result<String> {
            crate::fs::sha256(path)
        }
    }

    /// A reporter that only counts.
    #[derive(Default)]
    struct Counts {
        alive: Mutex<(usize, usize)>,
        warnings: Mutex<Vec<String>>,
        phases: Mutex<Vec<String>>,
    }

    impl Reporter for Counts {
        fn phase(&self, text: &str) {
            self.phases.lock().unwrap().push(text.to_owned());
        }
        fn planned(&self, _: usize) {}
        fn started(&self, _: &Job) {
            let mut alive = self.alive.lock().unwrap();
            alive.0 += 1;
            alive.1 = alive.1.max(alive.0);
        }
        fn finished(&self, _: &Job, outcome: Outcome) {
            if outcome != Outcome::Cached {
                self.alive.lock().unwrap().0 -= 1;
            }
        }
        fn tick(&self) {}
        fn left(&self, _: Duration) {}
        fn warning(&self, text: &str) {
            self.warnings.lock().unwrap().push(text.to_owned());
        }
        fn result(&self, _: &str) {}
        fn transfer_begins(&self, _: &str, _: Option<u64>) -> u64 {
            0
        }
        fn transfer_advances(&self, _: u64, _: u64) {}
        fn transfer_ends(&self, _: u64, _: &str) {}
    }

    struct Bench {
        home: tempfile::TempDir,
        reporter: Counts,
        signal: AtomicUsize,
        memory: u64,
        unit_timeout: Option<Duration>,
        deadline: Option<Instant>,
    }

    impl Bench {
        fn new() -> Self {
            Bench {
                home: tempfile::tempdir().unwrap(),
                reporter: Counts::default(),
                signal: AtomicUsize::new(0),
                memory: 1 << 40,
                unit_timeout: None,
                deadline: None,
            }
        }

        fn run_in(
            &self,
            place: &str,
            graph: &Graph,
            jobs: usize,
            on_failure: OnFailure,
        ) -> anyhow::Result<Built> {
            let cache = Cache::new(self.home.path(), self.home.path());
            let wanted = &[graph.jobs().len() - 1];
            let setting = Setting {
                home: self.home.path().to_path_buf(),
                scratch: self.home.path().join(place).join("scratch"),
                logs: self.home.path().join(place).join("logs"),
                cache: &cache,
                trees: BTreeMap::new(),
                tools: ["sh", "host"].map(|tool| (tool.to_owned(), "digest".to_owned())).into(),
                env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
                digests: &Plain,
                reporter: &self.reporter,
                signal: &self.signal,
                may_run: &|job| job.label != "barred",
            };
            let (memory, unit_timeout, deadline) = (self.memory, self.unit_timeout, self.deadline);
            run(graph, wanted, &setting, Limits { jobs, memory, on_failure, unit_timeout, deadline })
        }

        fn run(&self, graph: &Graph) -> anyhow::Result<Built> {
            self.run_in("a", graph, 2, OnFailure::Stop)
        }
    }

    fn ran(built: &Built) -> Vec<&str> {
        built.records.iter().filter(|r| r.how == How::Ran).map(|r| r.label.as_str()).collect()
    }

    /// A job that runs a line of sh in the scratch directory `unit`.
    fn sh(label: &str, script: &str, inputs: Vec<Input>, output: &str) -> Job {
        Job {
            kind: Kind::Cicc,
            scratch: "unit".to_owned(),
            label: label.to_owned(),
            tool: "sh".to_owned(),
            program: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            inputs,
            outputs: vec![output.to_owned()],
            trees: vec![],
            depfile: None,
            estimate: Cost { cpu: 1.0, memory: 1 << 20 },
        }
    }

    fn text(name: &str, text: &str) -> Input {
        Input { name: name.to_owned(), source: Source::Text(Arc::from(text)) }
    }

    fn output(name: &str, job: JobId) -> Input {
        Input { name: name.to_owned(), source: Source::Output(job, 0) }
    }

    /// upper: `in` to capitals; twice: that, two times over.
    fn chain(word: &str) -> Graph {
        let mut graph = Graph::default();
        let first = graph.add(sh("upper", "tr a-z A-Z <in >upper", vec![text("in", word)], "upper"));
        graph.add(sh("twice", "cat upper upper >twice", vec![output("upper", first)], "twice"));
        graph
    }

    #[test]
    fn unchanged_graph_runs_nothing_and_gives_the_same_bytes() {
        let bench = Bench::new();
        let first = bench.run(&chain("word")).unwrap();
        assert_eq!(ran(&first), ["upper", "twice"]);
        let cache = Cache::new(bench.home.path(), bench.home.path());
        assert_eq!(cache.get(&first.outputs[1][0]).as_deref(), Some(&b"WORDWORD"[..]));
        let second = bench.run(&chain("word")).unwrap();
        assert!(ran(&second).is_empty());
        assert_eq!(first.outputs, second.outputs);
    }

    #[test]
    fn another_directory_with_the_same_cache_runs_nothing() {
        let bench = Bench::new();
        bench.run(&chain("word")).unwrap();
        assert!(ran(&bench.run_in("elsewhere/deep", &chain("word"), 2, OnFailure::Stop).unwrap()).is_empty());
    }

    #[test]
    fn change_that_leaves_an_intermediate_alone_stops_there() {
        let bench = Bench::new();
        bench.run(&chain("word")).unwrap();
        assert_eq!(ran(&bench.run(&chain("WORD")).unwrap()), ["upper"]);
    }

    #[test]
    fn output_that_the_cache_lost_is_made_again() {
        let bench = Bench::new();
        let first = bench.run(&chain("word")).unwrap();
        // The last step's output, so that it must run, and the bytes of its input, damaged.
        let cas = bench.home.path().join("cache/cas");
        let path = |blob: &Blob| cas.join(&blob.sha256[..2]).join(&blob.sha256);
        crate::fs::remove_file(&path(&first.outputs[1][0])).unwrap();
        crate::fs::write(&path(&first.outputs[0][0]), b"damaged").unwrap();
        crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
        let again = bench.run(&chain("word")).unwrap();
        assert_eq!(ran(&again), ["upper", "twice"]);
        assert_eq!(again.outputs, first.outputs);
        let told = "cicc upper runs again: cicc twice needs its output";
        assert!(bench.reporter.phases.lock().unwrap().iter().any(|text| text.starts_with(told)));
    }

    #[test]
    fn bytes_that_nobody_reads_may_be_gone() {
        let mut graph = Graph::default();
        let mut last = graph.add(sh("0", "echo x >0", vec![], "0"));
        for i in 1..6 {
            let script = format!("cat {} >{i}; echo {i} >>{i}", i - 1);
            let input = output(&(i - 1).to_string(), last);
            last = graph.add(sh(&i.to_string(), &script, vec![input], &i.to_string()));
        }
        // All but the end: nothing runs. The end too, but for one that it can be made from: it begins there.
        // All: the whole chain runs.
        for (gone, again) in [(&[0, 1, 2, 3, 4][..], 0), (&[0, 1, 3, 4, 5], 3), (&[0, 1, 2, 3, 4, 5], 6)] {
            let bench = Bench::new();
            let first = bench.run(&graph).unwrap();
            for id in gone {
                let digest = &first.outputs[*id][0].sha256;
                let cas = bench.home.path().join("cache/cas");
                crate::fs::remove_file(&cas.join(&digest[..2]).join(digest)).unwrap();
            }
            crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
            let built = bench.run(&graph).unwrap();
            assert_eq!((ran(&built).len(), &built.wanted), (again, &first.wanted), "{gone:?}");
        }
    }

    #[test]
    fn job_that_must_not_run_is_a_failure_before_anything_runs() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        graph.add(sh("free", "echo x >../free; echo x >free", vec![], "free"));
        graph.add(sh("barred", "echo x >x", vec![], "x"));
        let error = bench.run(&graph).err().unwrap();
        assert_eq!(crate::failure::class(&error), Class::Integrity);
        assert!(error.to_string().contains("cicc barred: not in the cache"), "{error}");
        assert!(!bench.home.path().join("a/scratch/free").exists());
    }

    #[test]
    fn damaged_end_is_made_again_in_the_same_run() {
        let bench = Bench::new();
        let first = bench.run(&chain("word")).unwrap();
        // Every blob is there and empty.
        for entry in walkdir::WalkDir::new(bench.home.path().join("cache/cas")) {
            let entry = entry.unwrap();
            if entry.file_type().is_file() {
                crate::fs::write(entry.path(), b"").unwrap();
            }
        }
        crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
        let again = bench.run(&chain("word")).unwrap();
        assert_eq!(again.outputs, first.outputs);
        let cache = Cache::new(bench.home.path(), bench.home.path());
        assert_eq!(cache.get(&again.outputs[1][0]).as_deref(), Some(&b"WORDWORD"[..]));
    }

    #[test]
    fn eviction_beside_a_run_costs_it_jobs_and_never_its_end() {
        use upkeep::{Bounds, Upkeep};
        let bench = Bench::new();
        let done = std::sync::atomic::AtomicBool::new(false);
        let mut graph = Graph::default();
        let mut last = graph.add(sh("0", "echo x >0", vec![], "0"));
        for i in 1..30 {
            let from = last;
            let script = format!("sleep 0.01; cat {} >{i}; echo x >>{i}", i - 1);
            last = graph.add(sh(
                &i.to_string(),
                &script,
                vec![output(&(i - 1).to_string(), from)],
                &i.to_string(),
            ));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    Upkeep::new(bench.home.path()).evict(Bounds { size: Some(0), age: None }).unwrap();
                    Upkeep::new(bench.home.path()).verify().unwrap();
                }
            });
            let built = bench.run(&graph);
            done.store(true, Ordering::SeqCst);
            assert_eq!(built.unwrap().wanted[0], "x\n".repeat(30).as_bytes());
        });
        Upkeep::new(bench.home.path()).evict(Bounds { size: Some(0), age: None }).unwrap();
        crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
        assert_eq!(ran(&bench.run(&graph).unwrap()).len(), 30);
    }

    #[test]
    fn failed_job_names_unit_diagnostic_and_log() {
        for (script, class, message, diagnostic) in [
            ("echo 'x.cu(1): error: no' >&2; exit 2", Class::Compile, "exit code 2", "x.cu(1): error: no"),
            ("echo >&2; kill -9 $$", Class::Resource, "signal 9", "none"),
            ("kill -11 $$", Class::Compile, "signal 11", "none"),
            (
                "echo 'write: No space left on device'; exit 1",
                Class::Resource,
                "exit code 1",
                "No space left",
            ),
            ("true", Class::Compile, "exited 0 but wrote nothing to out", "none"),
        ] {
            let bench = Bench::new();
            let mut graph = Graph::default();
            graph.add(sh("core/unit/sm_90", script, vec![], "out"));
            let error = bench.run(&graph).err().unwrap();
            let failure = error.downcast_ref::<Failure>().unwrap();
            assert_eq!(failure.class, class, "{script}");
            assert!(failure.message.contains(message), "{script}: {}", failure.message);
            assert!(failure.diagnostic.as_deref().unwrap().contains(diagnostic), "{script}: {failure:?}");
            assert_eq!(failure.unit.as_deref(), Some("core/unit/sm_90"));
            assert!(
                crate::fs::read_text(failure.log.as_ref().unwrap())
                    .unwrap()
                    .contains(script.split('\'').next().unwrap())
            );
        }
    }

    #[test]
    fn failure_is_not_cached_and_mending_it_goes_on() {
        let bench = Bench::new();
        let with = |ok: &str| {
            let mut graph = Graph::default();
            let first = graph.add(sh("first", "echo x >x", vec![], "x"));
            graph.add(sh(
                "second",
                "test -e ../ok && cat x >y",
                vec![output("x", first), text("ok", ok)],
                "y",
            ));
            graph
        };
        assert!(bench.run(&with("")).is_err());
        crate::fs::write(&bench.home.path().join("a/scratch/ok"), b"").unwrap();
        assert_eq!(ran(&bench.run(&with("")).unwrap()), ["second"]);
    }

    #[test]
    fn keep_going_runs_what_does_not_need_the_failed_job() {
        for (on_failure, made) in [(OnFailure::KeepGoing, true), (OnFailure::Stop, false)] {
            let bench = Bench::new();
            let mut graph = Graph::default();
            let bad = graph
                .add(Job { estimate: Cost { cpu: 9.0, memory: 1 }, ..sh("bad", "exit 1", vec![], "bad") });
            graph.add(sh("needs bad", "cat bad >no", vec![output("bad", bad)], "no"));
            graph.add(sh("good", "echo good >good", vec![], "good"));
            let error = bench.run_in("a", &graph, 1, on_failure).err().unwrap();
            assert!(error.to_string().contains("not started"), "{error}");
            assert_eq!(bench.home.path().join("a/scratch/unit/good").exists(), made, "{on_failure:?}");
        }
    }

    #[test]
    fn never_more_processes_than_jobs() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        for i in 0..8 {
            graph.add(sh(&format!("{i}"), &format!("sleep 0.05; echo x >{i}"), vec![], &i.to_string()));
        }
        bench.run_in("a", &graph, 3, OnFailure::Stop).unwrap();
        assert_eq!(bench.reporter.alive.lock().unwrap().1, 3);
    }

    /// Jobs that each say how much they need, in megabytes.
    fn sized(sizes: &[u64]) -> Graph {
        let mut graph = Graph::default();
        for (i, megabytes) in sizes.iter().enumerate() {
            let estimate = Cost { cpu: 1.0, memory: megabytes << 20 };
            let job = sh(&format!("{i}"), &format!("sleep 0.05; echo x >{i}"), vec![], &i.to_string());
            graph.add(Job { estimate, ..job });
        }
        graph
    }

    #[test]
    fn jobs_run_side_by_side_as_far_as_memory_is_predicted_to_go() {
        for (budget, sizes, together) in [
            (10, &[5, 5, 5, 5][..], 2),
            (10, &[4, 4, 4, 4], 2),
            (10, &[1, 1, 1, 1], 4),
            // More than there is: alone, and never a deadlock.
            (1, &[5, 5, 5], 1),
            // The light ones fill the gap beside the heavy one.
            (10, &[9, 1, 9, 1], 2),
        ] {
            let bench = Bench { memory: budget << 20, ..Bench::new() };
            bench.run_in("a", &sized(sizes), 8, OnFailure::Stop).unwrap();
            assert_eq!(bench.reporter.alive.lock().unwrap().1, together, "{budget} MB for {sizes:?}");
        }
    }

    #[test]
    fn history_replaces_estimates() {
        let bench = Bench { memory: 1 << 30, ..Bench::new() };
        let graph = sized(&[4096, 4096]);
        bench.run_in("a", &graph, 2, OnFailure::Stop).unwrap();
        assert_eq!(bench.reporter.alive.lock().unwrap().1, 1);
        crate::fs::remove_dir(&bench.home.path().join("cache")).unwrap();
        bench.run_in("a", &graph, 2, OnFailure::Stop).unwrap();
        assert_eq!(bench.reporter.alive.lock().unwrap().1, 2);
    }

    #[test]
    fn job_that_died_once_runs_again_alone_and_a_second_death_is_the_end() {
        for signal in [9, 11] {
            let bench = Bench::new();
            let once =
                format!("if [ -e ../died ]; then echo x >out; else touch ../died; kill -{signal} $$; fi");
            let mut graph = Graph::default();
            graph.add(sh("once", &once, vec![], "out"));
            assert_eq!(ran(&bench.run(&graph).unwrap()), ["once"]);
            let warning = bench.reporter.warnings.lock().unwrap()[0].clone();
            assert!(warning.contains(&format!("signal {signal}")) && warning.contains("alone"), "{warning}");
        }
    }

    #[test]
    fn crash_leaves_a_script_that_repeats_it_alone() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        let script = "echo again >>../tries; echo \"it's $(cat in) $HOME\" >&2; kill -11 $$";
        graph.add(sh("core/unit/sm_90", script, vec![text("in", "input")], "out"));
        let error = bench.run(&graph).err().unwrap();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.class, Class::Compile);
        assert!(failure.message.contains("killed by signal 11, SIGSEGV"), "{}", failure.message);
        let path = bench.home.path().join("a/logs/core/unit/sm_90.cicc.sh");
        assert!(failure.hint.as_ref().unwrap().contains(&path.display().to_string()), "{failure:?}");
        let tries = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
        assert_eq!(tries, "again\nagain\n");
        // From anywhere, with neither the build's directories nor the environment.
        crate::fs::remove_dir(&bench.home.path().join("a/scratch")).unwrap();
        let moved = bench.home.path().join("moved");
        crate::fs::rename(&bench.home.path().join("a/logs/core/unit"), &moved).unwrap();
        let env = BTreeMap::from([
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("HOME".to_owned(), "somewhere".to_owned()),
            ("TMPDIR".to_owned(), bench.home.path().display().to_string()),
        ]);
        let argv = vec![moved.join("sm_90.cicc.sh").display().to_string()];
        let command = process::CommandLine { argv, env, cwd: "/".into() };
        let finished = process::capture(&command).unwrap();
        assert_eq!((finished.signal, finished.output.as_str()), (Some(11), "it's input \n"));
    }

    #[test]
    fn compiler_that_its_driver_saw_die_is_told_from_one_that_found_an_error() {
        for (said, class, tries) in [
            ("g++: fatal error: Killed signal terminated program cc1plus", Class::Resource, 2),
            ("g++: internal compiler error: Killed (program cc1plus)", Class::Resource, 2),
            ("g++: fatal error: Segmentation fault signal terminated program cc1plus", Class::Compile, 2),
            ("x.cu(1): error: Killed signal terminated program", Class::Compile, 1),
        ] {
            let bench = Bench::new();
            let mut graph = Graph::default();
            let script = format!("echo again >>../tries; echo '{said}' >&2; exit 1");
            graph.add(Job { tool: "host".to_owned(), ..sh("core/unit", &script, vec![], "out") });
            let error = bench.run(&graph).err().unwrap();
            assert_eq!(crate::failure::class(&error), class, "{said}");
            let told = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
            assert_eq!(told.lines().count(), tries, "{said}");
        }
    }

    #[test]
    fn same_error_of_many_units_is_told_once_and_a_real_one_comes_first() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        let mut add = |label: &str, script: &str| {
            graph.add(sh(label, script, vec![], &label.replace('/', "_")));
        };
        add("core/silent/sm_90", "exit 3");
        for unit in 0..7 {
            for gencode in ["sm_80", "sm_90"] {
                add(&format!("core/fna_{unit}/{gencode}"), "echo 'x.h(7): error: no such thing'; exit 2");
            }
        }
        add("core/other/sm_90", "echo 'y.h(1): error: something else'; exit 2");
        let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.diagnostic.as_deref(), Some("x.h(7): error: no such thing"));
        let lines: Vec<&str> = failure.message.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "core/fna_0/sm_80: cicc failed (exit code 2)",
                "the same in 7 units (core/fna_0, core/fna_1, core/fna_2, core/fna_3, core/fna_4 and 2 more)",
                "also, in 1 units (core/silent): cicc failed (exit code 3)",
                "also, in 1 units (core/other): y.h(1): error: something else",
            ]
        );
        let block = crate::failure::block(&error);
        let last: Vec<&str> = block.lines().rev().take(4).collect();
        assert!(last.iter().any(|line| line.contains("error: no such thing")), "{block}");
    }

    #[test]
    fn ordinary_error_is_tried_once() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        graph.add(sh("bad", "echo again >>../tries; exit 1", vec![], "out"));
        assert!(bench.run(&graph).is_err());
        assert_eq!(crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap(), "again\n");
    }

    #[test]
    fn hung_process_is_ended_with_its_group_and_named_and_not_tried_again() {
        let bench = Bench { unit_timeout: Some(Duration::from_millis(400)), ..Bench::new() };
        let mut graph = Graph::default();
        graph.add(sh("core/unit/sm_90", "echo again >>../tries; sleep 30 & sleep 30", vec![], "out"));
        graph.add(sh("good", "echo good >good", vec![], "good"));
        let begun = Instant::now();
        let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5));
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!((failure.class, failure.unit.as_deref()), (Class::Compile, Some("core/unit/sm_90")));
        assert!(failure.message.contains("cicc hung (ended by nattenc after 0.4 s"), "{}", failure.message);
        assert!(failure.hint.as_ref().unwrap().contains("--unit-timeout"));
        let log = crate::fs::read_text(failure.log.as_ref().unwrap()).unwrap();
        assert!(log.contains("ended by nattenc after") && log.contains("sleep 30 & sleep 30"), "{log}");
        let tries = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
        assert_eq!(
            (tries.as_str(), bench.home.path().join("a/scratch/unit/good").exists()),
            ("again\n", true)
        );
        // Neither its outputs nor its time are remembered.
        assert!(bench.run_in("a", &graph, 1, OnFailure::Stop).is_err());
    }

    /// Jobs that each take 0.3 s, and are predicted to.
    fn timed(count: usize) -> Graph {
        let mut graph = Graph::default();
        for i in 0..count {
            let job = sh(&format!("core/{i}"), &format!("sleep 0.3; echo x >{i}"), vec![], &i.to_string());
            graph.add(Job { estimate: Cost { cpu: 0.3, memory: 1 }, ..job });
        }
        graph
    }

    #[test]
    fn deadline_starts_nothing_that_ends_later_and_the_next_run_goes_on() {
        let graph = timed(6);
        let mut bench = Bench::new();
        let begun = Instant::now();
        bench.deadline = Some(begun + Duration::from_millis(1100));
        let error = bench.run_in("a", &graph, 1, OnFailure::Stop).err().unwrap();
        assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.class.exit_code(), 9);
        for part in ["of 6 jobs are done and kept", "predicted to take", "cicc core/"] {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
        bench.deadline = None;
        let again = bench.run_in("a", &graph, 1, OnFailure::Stop).unwrap();
        let ran = ran(&again).len();
        assert!((1..=4).contains(&ran), "{ran} jobs were left");
        // Passed, and nothing to do: done.
        bench.deadline = Some(Instant::now());
        assert!(bench.run_in("a", &graph, 1, OnFailure::Stop).is_ok());
        assert!(bench.run_in("a", &timed(7), 1, OnFailure::Stop).is_err());
    }

    #[test]
    fn deadline_lets_short_jobs_in_where_long_ones_do_not_fit() {
        let mut graph = timed(3);
        let long = sh("core/long", "sleep 30; echo x >long", vec![], "long");
        graph.add(Job { estimate: Cost { cpu: 600.0, memory: 1 }, ..long });
        let bench = Bench { deadline: Some(Instant::now() + Duration::from_secs(20)), ..Bench::new() };
        let error = bench.run_in("a", &graph, 1, OnFailure::Stop).err().unwrap().to_string();
        assert!(error.contains("3 of 4 jobs are done") && error.contains("is cicc core/long"), "{error}");
    }

    #[test]
    fn failure_counts_more_than_the_deadline() {
        let mut graph = Graph::default();
        graph.add(sh("bad", "exit 1", vec![], "bad"));
        let late = sh("late", "echo x >late", vec![], "late");
        graph.add(Job { estimate: Cost { cpu: 600.0, memory: 1 }, ..late });
        let bench = Bench { deadline: Some(Instant::now() + Duration::from_secs(20)), ..Bench::new() };
        let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
        assert_eq!(crate::failure::class(&error), Class::Compile);
        assert!(error.to_string().contains("1 jobs were not started"), "{error}");
    }

    #[test]
    fn job_that_needs_more_than_there_is_is_warned_of() {
        let bench = Bench { memory: 1 << 20, ..Bench::new() };
        bench.run_in("a", &sized(&[1, 5]), 1, OnFailure::Stop).unwrap();
        let warnings = bench.reporter.warnings.lock().unwrap().clone();
        assert!(warnings[0].contains("cicc 1, predicted to need 5.2 MB") && warnings[0].contains("alone"));
    }

    #[test]
    fn noise_of_megabytes_does_not_block() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        graph.add(sh(
            "loud",
            "yes noise | head -c 8000000 >&2; yes noise | head -c 8000000; echo x >x",
            vec![],
            "x",
        ));
        assert_eq!(ran(&bench.run(&graph).unwrap()), ["loud"]);
    }

    #[test]
    fn signal_ends_children_with_their_groups_and_says_so() {
        let bench = Bench::new();
        let mut graph = Graph::default();
        graph.add(sh("long", "sleep 30 & sleep 30; echo x >x", vec![], "x"));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                bench.signal.store(15, Ordering::SeqCst);
            });
            let error = bench.run(&graph).err().unwrap();
            assert_eq!(crate::failure::class(&error), Class::Terminated);
        });
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
