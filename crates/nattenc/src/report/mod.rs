//! What a person sees while things run. The only module that prints, but for the final failure block.
//! Bars where stderr is a terminal, plain lines elsewhere.

mod bars;
mod plain;

use crate::failure::Failure;
use crate::graph::Job;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How a job came out.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Its command ran.
    Ran {
        /// Wall time.
        wall: Duration,
        /// Largest resident set, bytes.
        peak_memory: u64,
    },
    /// Its outputs were in the cache.
    Cached,
    /// It died and will run again.
    Again,
    /// It failed.
    Failed {
        /// The headline.
        message: String,
    },
}

/// Told of everything that happens during a build. Takes `&self`: workers and fetches call it at once.
pub trait Reporter: Sync {
    /// A line about what is going on.
    fn phase(&self, text: &str);
    /// How many jobs are not done yet, once all that need no work are known.
    fn planned(&self, jobs: usize);
    /// A job's command starts.
    fn started(&self, job: &Job);
    /// A job came to its end.
    fn finished(&self, job: &Job, outcome: Outcome);
    /// Called a few times a second while jobs run.
    fn tick(&self);
    /// How long the build will still take.
    fn left(&self, time: Duration);
    /// Something that a user should know.
    fn warning(&self, text: &str);
    /// A line of the result.
    fn result(&self, text: &str);
    /// A transfer begins; returns its number.
    fn transfer_begins(&self, what: &str, bytes: Option<u64>) -> u64;
    /// Bytes of a transfer arrived.
    fn transfer_advances(&self, id: u64, bytes: u64);
    /// A transfer came to its end.
    fn transfer_ends(&self, id: u64, outcome: &str);
}

/// The reporter for this stderr.
pub fn for_stderr() -> Box<dyn Reporter> {
    if std::io::stderr().is_terminal() { Box::new(bars::Bars::new()) } else { Box::new(plain::Plain::new()) }
}

/// Gives a reporter to the fetch module.
pub struct Transfers<'a>(pub &'a dyn Reporter);

impl crate::fetch::Progress for Transfers<'_> {
    fn begin(&self, what: &str, bytes: Option<u64>) -> u64 {
        self.0.transfer_begins(what, bytes)
    }
    fn advance(&self, id: u64, bytes: u64) {
        self.0.transfer_advances(id, bytes);
    }
    fn end(&self, id: u64, outcome: &str) {
        self.0.transfer_ends(id, outcome);
    }
    fn note(&self, text: &str) {
        self.0.phase(text);
    }
}

/// Bytes in the unit that suits them.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration as a person says it: `4.2 s`, `3 min 10 s`, `2 h 05 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else if seconds < 3600.0 {
        let whole = time.as_secs();
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        let minutes = time.as_secs() / 60;
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}

/// Prints a line, or text with lines, to stdout: what a script reads. A reader that went away (`| head`) is
/// no failure; a full disk is.
pub fn stdout(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::resource(format!("stdout cannot be written: {e}"))
                .hint("check where stdout goes")
                .into())
        }
        _ => Ok(()),
    }
}

/// Prints to stderr. Where that cannot be written there is nobody to tell, and the work goes on.
pub fn stderr(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", text.trim_end_matches('\n'));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_as_people_say_them() {
        for (n, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (37_384_532, "37.4 MB"), (5_000_000_000, "5.0 GB")]
        {
            assert_eq!(bytes(n), text);
        }
        for (ms, text) in
            [(40, "0.0 s"), (4_240, "4.2 s"), (190_000, "3 min 10 s"), (7_530_000, "2 h 05 min")]
        {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }
}
