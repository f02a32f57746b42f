//! Progress bars for a terminal. The only user of indicatif.

use super::{Outcome, Reporter, bytes, duration};
use crate::graph::Job;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Default)]
struct State {
    transfers: BTreeMap<u64, ProgressBar>,
    next: u64,
    total: Option<ProgressBar>,
    running: BTreeMap<String, ProgressBar>,
}

pub(super) struct Bars {
    multi: MultiProgress,
    state: Mutex<State>,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Bars {
    pub(super) fn new() -> Self {
        Bars { multi: MultiProgress::new(), state: Mutex::new(State::default()) }
    }

    fn line(&self, text: &str) {
        // A terminal that went away is no reason to stop a build.
        let _ = self.multi.println(text);
    }
}

impl Reporter for Bars {
    fn phase(&self, text: &str) {
        self.line(text);
    }

    fn planned(&self, jobs: usize) {
        if let Ok(mut state) = self.state.lock()
            && jobs > 0
        {
            let bar = self.multi.add(ProgressBar::new(jobs as u64));
            bar.set_style(style("{bar:40} {pos}/{len} jobs, {elapsed}{msg}"));
            state.total = Some(bar);
        }
    }

    fn started(&self, job: &Job) {
        let name = format!("{} {}", job.kind.word(), job.label);
        let bar = self.multi.add(ProgressBar::new_spinner());
        bar.set_style(style("  {spinner} {msg} {elapsed}"));
        bar.set_message(name.clone());
        bar.enable_steady_tick(Duration::from_millis(250));
        if let Ok(mut state) = self.state.lock() {
            state.running.insert(name, bar);
        }
    }

    fn finished(&self, job: &Job, outcome: Outcome) {
        let name = format!("{} {}", job.kind.word(), job.label);
        if let Ok(mut state) = self.state.lock() {
            if let Some(bar) = state.running.remove(&name) {
                bar.finish_and_clear();
            }
            if let Some(total) = &state.total
                && outcome != Outcome::Again
            {
                total.inc(1);
            }
        }
        match outcome {
            Outcome::Ran { wall, peak_memory } => {
                self.line(&format!("{name}: {}, {}", duration(wall), bytes(peak_memory)));
            }
            Outcome::Failed { message } => self.line(&format!("FAILED {message}")),
            Outcome::Cached | Outcome::Again => {}
        }
    }

    fn tick(&self) {}

    fn left(&self, time: Duration) {
        if let Ok(state) = self.state.lock()
            && let Some(total) = &state.total
        {
            total.set_message(format!(", {} left", duration(time)));
        }
    }

    fn warning(&self, text: &str) {
        self.line(&format!("warning: {text}"));
    }

    fn result(&self, text: &str) {
        if let Ok(mut state) = self.state.lock()
            && let Some(total) = state.total.take()
        {
            total.finish_and_clear();
        }
        self.line(text);
    }

    fn transfer_begins(&self, what: &str, bytes: Option<u64>) -> u64 {
        let bar = self.multi.add(bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new));
        bar.set_style(style(match bytes {
            Some(_) => "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}",
            None => "{spinner} {bytes} {msg}",
        }));
        bar.set_message(what.to_owned());
        match self.state.lock() {
            Ok(mut state) => {
                state.next += 1;
                let id = state.next;
                state.transfers.insert(id, bar);
                id
            }
            Err(_) => 0,
        }
    }

    fn transfer_advances(&self, id: u64, bytes: u64) {
        if let Ok(state) = self.state.lock()
            && let Some(bar) = state.transfers.get(&id)
        {
            bar.inc(bytes);
        }
    }

    fn transfer_ends(&self, id: u64, outcome: &str) {
        let bar = self.state.lock().ok().and_then(|mut s| s.transfers.remove(&id));
        if let Some(bar) = bar {
            let text = format!("{}: {outcome}", bar.message());
            bar.finish_and_clear();
            self.line(&text);
        }
    }
}
