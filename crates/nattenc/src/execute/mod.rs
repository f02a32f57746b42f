//! Runs a graph of jobs. Knows nothing of CUDA, sections or variants: a job is a command with inputs
//! and outputs. One coordinator owns all state; workers run one process at a time and report back,
//! because a worker mostly waits for a compiler.

pub mod cache;
pub mod depfile;
pub mod eta;
mod failures;
mod headers;
pub mod history;
mod keys;
mod lost;
mod overshoot;
pub mod process;
mod reproducer;
mod sampling;
#[cfg(test)]
mod tests;
pub mod upkeep;
mod work;

pub use work::first_diagnostic;

use crate::bounded;
use crate::cost::memory::{self, Expected, Profile};
use crate::failure::{Class, Failure};
use crate::graph::{Cost, Graph, Job, JobId, Kind, Source, Tree};
use crate::report::{Outcome, Reporter, bytes, duration};
use cache::{Action, Blob, Cache};
use eta::Eta;
use headers::Headers;
use history::History;
use sampling::Live;
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
    /// Whether the caller has the bytes of all wanted outputs already: then they are not read.
    pub has: &'a (dyn Fn(&[Blob]) -> bool + Sync),
    /// Whether a job may run; where not, what it makes must be in the cache.
    pub may_run: &'a (dyn Fn(&Job) -> bool + Sync),
}

/// What bounds a run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Compiler processes at once, at most.
    pub jobs: usize,
    /// What their resident sets may come to together, bytes, by prediction and by what they are seen to hold.
    /// A job that is predicted to need more than all of it runs alone.
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
    /// The bytes of the first output of each wanted job, none where [`Setting::has`] said that the caller has them.
    pub wanted: Vec<Vec<u8>>,
    /// Per job, the key of its action.
    pub keys: Vec<String>,
    /// Per job, in the graph's order.
    pub records: Vec<Record>,
    /// The most that jobs which ran at once were seen to hold together, bytes, sampled four times a second; not
    /// less than the largest of them alone.
    pub peak_memory: u64,
}

/// How one command ended, as a worker reports it.
enum Ended {
    Done {
        action: Action,
        /// The headers that it read inside trees.
        read: Vec<String>,
    },
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
    profiles: Vec<Profile>,
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
    /// Jobs that run on bytes which are not those of their inputs any more.
    stale: BTreeSet<JobId>,
    /// Jobs that were made to end since all that run held more memory than there is.
    ended_early: BTreeSet<JobId>,
    /// Whether a wanted job reads what a job made, or it is one itself: its bytes are kept in the cache longer.
    kept: Vec<bool>,
    history: History,
    keys: Vec<String>,
    failures: Vec<anyhow::Error>,
    /// Headers outside all trees whose digest was asked for already.
    seen: BTreeMap<String, String>,
    /// Headers inside them.
    headers: Headers,
}

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
    let profiles: Vec<Profile> = graph.jobs().iter().map(|job| history.profile(job)).collect();
    let eta = Eta::new(graph, &predicted, &profiles, (limits.jobs, limits.memory));
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
        profiles,
        remaining: graph.remaining(&cpu),
        eta,
        began: Instant::now(),
        estimated: None,
        second_tries: BTreeSet::new(),
        lost: BTreeSet::new(),
        losses: BTreeMap::new(),
        stale: BTreeSet::new(),
        ended_early: BTreeSet::new(),
        kept,
        history,
        keys: vec![String::new(); count],
        failures: Vec::new(),
        seen: BTreeMap::new(),
        headers: Headers::default(),
    };
    let ran = coordinator.run_until_readable(wanted, limits);
    if let Err(error) = coordinator.history.save() {
        setting.reporter.warning(&format!("what jobs cost is not remembered: {error}"));
    }
    let (peak_memory, bytes) = ran?;
    coordinator.finish(peak_memory, bytes)
}

fn producer(input: &crate::graph::Input) -> Option<JobId> {
    match input.source {
        Source::Output(id, _) => Some(id),
        Source::Text(_) => None,
    }
}

impl Coordinator<'_> {
    /// Runs, and runs again what made a wanted output that the cache turns out to have lost. Returns the
    /// highest memory and the wanted bytes, none where a job failed or the caller has them.
    fn run_until_readable(
        &mut self,
        wanted: &[JobId],
        limits: Limits,
    ) -> anyhow::Result<(u64, Vec<Vec<u8>>)> {
        let mut peak = self.run(limits)?;
        while self.failures.is_empty() {
            if (self.setting.has)(&self.first_outputs(wanted)) {
                break;
            }
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

    fn first_outputs(&self, jobs: &[JobId]) -> Vec<Blob> {
        jobs.iter().filter_map(|id| self.outputs[*id].first().cloned()).collect()
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

    fn run(&mut self, limits: Limits) -> anyhow::Result<u64> {
        let waiting = |id: &JobId| self.states[*id] == State::Waiting(BTreeSet::new());
        self.inputs_known((0..self.states.len()).filter(waiting).collect())?;
        let barred: Vec<JobId> =
            self.ready().filter(|id| !(self.setting.may_run)(&self.graph.jobs()[*id])).collect();
        if let Some(first) = barred.first() {
            return Err(self.barred(*first, barred.len()).into());
        }
        self.warn_of_store();
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
        let mut running: BTreeMap<JobId, Live> = BTreeMap::new();
        let mut highest = 0;
        let mut sampled = Instant::now();
        let mut interrupted = None;
        let mut held_back = false;
        let mut looked = Some(Instant::now());
        loop {
            let stop =
                interrupted.is_some() || (limits.on_failure == OnFailure::Stop && !self.failures.is_empty());
            while !stop && running.len() < limits.jobs {
                let Some(id) = self.next_ready(&running, limits) else { break };
                self.states[id] = State::Running;
                self.eta.started(id, self.began.elapsed().as_secs_f64());
                self.setting.reporter.started(&self.graph.jobs()[id]);
                running.insert(id, Live::new());
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
            if sampled.elapsed() >= sampling::PERIOD {
                sampled = Instant::now();
                let held = sample(&mut running, groups);
                highest = highest.max(held);
                self.end_one_too_many(held, &running, limits.memory, groups);
            }
            match done.recv_timeout(sampling::PERIOD) {
                Ok((id, ended, peak)) => {
                    let live = running.remove(&id).unwrap_or_else(Live::new);
                    highest = highest.max(peak);
                    self.ended(id, ended, &live, interrupted.is_some())?;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.setting.reporter.tick();
                    looked = looked.and_then(|last| self.look_at_store(last));
                }
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
    fn next_ready(&self, running: &BTreeMap<JobId, Live>, limits: Limits) -> Option<JobId> {
        if running.keys().any(|id| self.second_tries.contains(id)) {
            return None;
        }
        let counted: Vec<u64> =
            running.iter().map(|(id, live)| self.expected(*id).counts_for(live.seen())).collect();
        let fits = |id: &JobId| {
            let alone = self.second_tries.contains(id);
            (running.is_empty() || !alone) && memory::fits(&counted, self.expected(*id).peak, limits.memory)
        };
        let may = |id: &JobId| fits(id) && self.in_time(*id, limits) && !self.is_being_read(*id);
        let ready = self.ready().filter(may);
        ready.max_by(|a, b| self.remaining[*a].total_cmp(&self.remaining[*b]).then(b.cmp(a)))
    }

    fn expected(&self, id: JobId) -> Expected {
        let Cost { cpu, memory: peak } = self.predicted[id];
        Expected { cpu, peak, profile: self.profiles[id] }
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

    /// Says what is wrong with the store, once.
    fn warn_of_store(&self) {
        while let Some(trouble) = self.setting.cache.trouble() {
            self.setting.reporter.warning(&trouble);
        }
    }

    /// Once a minute: compilers read toolkit and sources from the store, and hang without a word where it is gone.
    /// Returns when it was looked at last; nothing once it gave no answer.
    fn look_at_store(&self, last: Instant) -> Option<Instant> {
        if last.elapsed() < Duration::from_secs(60) {
            return Some(last);
        }
        let home = self.setting.home.clone();
        let answers = bounded::within(bounded::PATIENCE, move |_| home.exists()).is_some();
        if !answers {
            self.setting.reporter.warning(&format!(
                "{}: the store gives no answer: what compiles waits until it does, or for --unit-timeout",
                self.setting.home.display()
            ));
        }
        answers.then(Instant::now)
    }

    fn ended(&mut self, id: JobId, ended: Ended, live: &Live, interrupted: bool) -> anyhow::Result<()> {
        let job = &self.graph.jobs()[id];
        let early = self.ended_early.remove(&id);
        match ended {
            _ if self.stale.remove(&id) && !interrupted => {
                self.setting.reporter.finished(job, Outcome::Again);
                self.eta.back(id);
                self.states[id] = State::Waiting(self.unmade(id));
                if self.unmade(id).is_empty() { self.inputs_known(vec![id]) } else { Ok(()) }
            }
            Ended::Done { action, read } => {
                if self.lost.remove(&id) && self.outputs[id] != action.outputs {
                    self.made_other_bytes(id);
                }
                if let Err(error) = self.remember(id, &action, &read) {
                    self.setting
                        .reporter
                        .warning(&format!("{}: not recorded in the cache: {error}", job.label));
                }
                self.warn_of_store();
                let outcome = Outcome::Ran { wall: live.since.elapsed(), peak_memory: action.peak_memory };
                self.setting.reporter.finished(job, outcome);
                self.eta.finished(id, self.began.elapsed().as_secs_f64());
                let bytes = action.outputs.iter().map(|blob| blob.size).sum();
                let memory = live.seen().map_or(0, |seen| seen.highest).max(action.peak_memory);
                let profile = Profile::of(&live.samples, action.cpu, memory);
                self.history.record(job, Cost { cpu: action.cpu, memory }, profile, bytes);
                self.history.save_now_and_then();
                let known = self.done(id, &action, How::Ran);
                self.inputs_known(known)
            }
            Ended::Lost(producer) => {
                if self.states[producer] == State::Done {
                    let reader = self.name(id);
                    self.run_for_bytes(producer, &reader)?;
                }
                self.setting.reporter.finished(job, Outcome::Again);
                self.eta.back(id);
                self.states[id] = State::Waiting(self.unmade(id));
                Ok(())
            }
            Ended::Failed(_) | Ended::Died { .. } if interrupted => {
                self.states[id] = State::Failed;
                Ok(())
            }
            Ended::Died { peak_memory, .. } if early => {
                self.again_alone(id, peak_memory);
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
                self.again_alone(id, peak_memory);
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

    /// Lets a job run once more, with nothing beside it.
    fn again_alone(&mut self, id: JobId, peak_memory: u64) {
        self.setting.reporter.finished(&self.graph.jobs()[id], Outcome::Again);
        self.eta.back(id);
        self.predicted[id].memory = self.predicted[id].memory.max(peak_memory) * 2;
        self.profiles[id] = Profile::FLAT;
        self.states[id] = State::Ready;
    }

    /// Called once all inputs of these jobs are known: a hit is done at once, a miss is ready. So on with those whose
    /// inputs are known by that.
    fn inputs_known(&mut self, mut ids: Vec<JobId>) -> anyhow::Result<()> {
        while !ids.is_empty() {
            let mut keys = Vec::with_capacity(ids.len());
            for id in &ids {
                self.keys[*id] = self.key(*id)?;
                keys.push(self.keys[*id].clone());
            }
            let records = self.setting.cache.actions(keys);
            let (mut next, mut kept) = (Vec::new(), Vec::new());
            for (id, record) in ids.into_iter().zip(records) {
                let Some(action) = self.known(id, record)? else {
                    self.states[id] = State::Ready;
                    continue;
                };
                self.eta.settled(id);
                if self.kept[id] {
                    kept.extend(action.outputs.iter().cloned());
                }
                self.setting.reporter.finished(&self.graph.jobs()[id], Outcome::Cached);
                next.extend(self.done(id, &action, How::Cached));
            }
            self.setting.cache.keep(&kept);
            ids = next;
        }
        Ok(())
    }

    /// Notes what a job made. Returns the jobs whose inputs are known by that.
    fn done(&mut self, id: JobId, action: &Action, how: How) -> Vec<JobId> {
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
        let mut known = Vec::new();
        for user in &self.users[id] {
            if let State::Waiting(needs) = &mut self.states[*user]
                && needs.remove(&id)
                && needs.is_empty()
            {
                known.push(*user);
            }
        }
        known
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

/// Looks at every job that runs. Returns what they hold together, bytes.
fn sample(running: &mut BTreeMap<JobId, Live>, groups: &Mutex<BTreeMap<JobId, i32>>) -> u64 {
    let groups = groups.lock().map(|groups| groups.clone()).unwrap_or_default();
    let mut together = 0;
    for (id, live) in running {
        if let Some(sample) = groups.get(id).and_then(|group| sampling::of_tree(*group)) {
            together += sample.memory;
            live.add(sample);
        }
    }
    together
}

/// Ends every child with its whole process group.
fn end_all(groups: &Mutex<BTreeMap<JobId, i32>>) {
    if let Ok(groups) = groups.lock() {
        for group in groups.values() {
            process::end_group(*group);
        }
    }
}
