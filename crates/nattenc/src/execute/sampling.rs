//! What running jobs hold, read from /proc a few times a second.

use crate::cost::memory::{Sample, Seen};
use crate::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long there is between two samples, at least.
pub(super) const PERIOD: Duration = Duration::from_millis(250);

/// A job that runs.
#[derive(Debug)]
pub(super) struct Live {
    /// Since when.
    pub(super) since: Instant,
    /// What it held, in order of time.
    pub(super) samples: Vec<Sample>,
    highest: u64,
}

impl Live {
    /// One that starts now.
    pub(super) fn new() -> Self {
        Live { since: Instant::now(), samples: Vec::new(), highest: 0 }
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, sample: Sample) {
        self.highest = self.highest.max(sample.memory);
        self.samples.push(sample);
    }

    /// What was seen of it, if anything.
    pub(super) fn seen(&self) -> Option<Seen> {
        self.samples.last().map(|now| Seen { now: *now, highest: self.highest })
    }
}

/// What a process and those that it started hold now, and the CPU time that they took; `None` where it is gone, or
/// this system has no /proc.
pub(super) fn of_tree(pid: i32) -> Option<Sample> {
    let mut sample = of_process(pid)?;
    let children = Path::new("/proc").join(format!("{pid}/task/{pid}/children"));
    let text = fs::read_if_exists(&children).ok().flatten().unwrap_or_default();
    for child in String::from_utf8_lossy(&text).split_whitespace().filter_map(|word| word.parse().ok()) {
        if let Some(more) = of_tree(child) {
            sample = Sample { cpu: sample.cpu + more.cpu, memory: sample.memory + more.memory };
        }
    }
    Some(sample)
}

fn of_process(pid: i32) -> Option<Sample> {
    let stat = fs::read_if_exists(&Path::new("/proc").join(format!("{pid}/stat"))).ok()??;
    parse(&String::from_utf8_lossy(&stat))
}

/// The text of /proc/PID/stat. The name of the program, in parentheses, may hold anything.
fn parse(stat: &str) -> Option<Sample> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Of its own and of children that ended: user and system.
    let ticks = (11..15).map(number).sum::<Option<u64>>()?;
    let pages = number(21)?;
    Some(Sample {
        cpu: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        memory: pages * rustix::param::page_size() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_process_is_read_whatever_its_name() {
        let stat =
            "7 (a) b (c)) R 1 7 7 0 -1 4194304 9 0 0 0 100 50 20 30 20 0 1 0 5 1000 300 18446744073709551615";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let memory = 300 * rustix::param::page_size() as u64;
        assert_eq!(parse(stat), Some(Sample { cpu: 200.0 / ticks, memory }));
        for broken in
            ["", "7 (x) R 1", "7 x R", "7 (x) R 1 7 7 0 -1 0 9 0 0 0 a 50 20 30 20 0 1 0 5 1000 300"]
        {
            assert_eq!(parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn own_tree_holds_something_and_one_that_is_gone_nothing() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(of_tree(own).unwrap().memory > 1 << 20);
        assert_eq!(of_tree(i32::MAX), None);
    }
}
