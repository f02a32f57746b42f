//! One line per event on stderr, for logs and CI; a heartbeat each minute while nothing else is said.

use super::{Outcome, Reporter, bytes, duration, stderr};
use crate::graph::Job;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long it may be silent while jobs run.
const HEARTBEAT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    transfers: BTreeMap<u64, (String, Option<u64>, Instant)>,
    next: u64,
    jobs: usize,
    done: usize,
    left: Option<Duration>,
    running: BTreeMap<String, Instant>,
    spoke: Option<Instant>,
}

impl State {
    /// `[3/18, 2 min 10 s left]`.
    fn progress(&self) -> String {
        let left = self.left.map(|time| format!(", {} left", duration(time))).unwrap_or_default();
        format!("[{}/{}{left}]", self.done, self.jobs.max(self.done))
    }
}

pub(super) struct Plain {
    state: Mutex<State>,
}

impl Plain {
    pub(super) fn new() -> Self {
        Plain { state: Mutex::new(State::default()) }
    }

    fn with(&self, f: impl FnOnce(&mut State) -> Option<String>) {
        if let Ok(mut state) = self.state.lock()
            && let Some(line) = f(&mut state)
        {
            state.spoke = Some(Instant::now());
            stderr(&line);
        }
    }
}

impl Reporter for Plain {
    fn phase(&self, text: &str) {
        self.with(|_| Some(text.to_owned()));
    }

    fn planned(&self, jobs: usize) {
        self.with(|s| {
            s.jobs = jobs;
            s.done = 0;
            s.left = None;
            None
        });
    }

    fn started(&self, job: &Job) {
        self.with(|s| {
            s.running.insert(format!("{} {}", job.kind.word(), job.label), Instant::now());
            None
        });
    }

    fn finished(&self, job: &Job, outcome: Outcome) {
        self.with(|s| {
            let name = format!("{} {}", job.kind.word(), job.label);
            s.running.remove(&name);
            match outcome {
                // Most cached jobs are settled before the work is counted; a line each would be noise.
                Outcome::Cached => {
                    s.done += usize::from(s.jobs > 0);
                    None
                }
                Outcome::Ran { wall, peak_memory } => {
                    s.done += 1;
                    Some(format!("{} {name}: {}, {}", s.progress(), duration(wall), bytes(peak_memory)))
                }
                Outcome::Again => None,
                Outcome::Failed { message } => Some(format!("FAILED {message}")),
            }
        });
    }

    fn tick(&self) {
        self.with(|s| {
            let silent = s.spoke.is_none_or(|t| t.elapsed() >= HEARTBEAT);
            silent.then(|| {
                let running: Vec<String> =
                    s.running.iter().map(|(n, t)| format!("{n} for {}", duration(t.elapsed()))).collect();
                format!("{} still running: {}", s.progress(), running.join("; "))
            })
        });
    }

    fn left(&self, time: Duration) {
        self.with(|s| {
            s.left = Some(time);
            None
        });
    }

    fn warning(&self, text: &str) {
        self.with(|_| Some(format!("warning: {text}")));
    }

    fn result(&self, text: &str) {
        self.with(|_| Some(text.to_owned()));
    }

    fn transfer_begins(&self, what: &str, bytes: Option<u64>) -> u64 {
        let mut id = 0;
        self.with(|s| {
            s.next += 1;
            id = s.next;
            s.transfers.insert(id, (what.to_owned(), bytes, Instant::now()));
            None
        });
        id
    }

    fn transfer_advances(&self, _id: u64, _bytes: u64) {}

    fn transfer_ends(&self, id: u64, outcome: &str) {
        self.with(|s| {
            let (what, size, begun) = s.transfers.remove(&id)?;
            let size = size.map(|n| format!(", {}", bytes(n))).unwrap_or_default();
            Some(format!("{what}: {outcome}{size}, {}", duration(begun.elapsed())))
        });
    }
}
