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
    for more in children(pid).into_iter().filter_map(of_tree) {
        sample = Sample { cpu: sample.cpu + more.cpu, memory: sample.memory + more.memory };
    }
    Some(sample)
}

/// The largest that the resident set of a process, or of one of those that it started, was so far, bytes; 0 where that
/// is not known.
pub(super) fn high_water_of_tree(pid: i32) -> u64 {
    let below = children(pid).into_iter().map(high_water_of_tree).max();
    high_water(pid).max(below).unwrap_or_default()
}

/// The largest that the resident set of a process was so far, bytes; `None` where it is gone, or this system has no
/// /proc. Unlike what wait(2) tells this begins anew with each program.
pub(super) fn high_water(pid: i32) -> Option<u64> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

fn children(pid: i32) -> Vec<i32> {
    let text = read(pid, &format!("task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn of_process(pid: i32) -> Option<Sample> {
    parse(&read(pid, "stat")?)
}

fn read(pid: i32, file: &str) -> Option<String> {
    let bytes = fs::read_if_exists(&Path::new("/proc").join(format!("{pid}/{file}"))).ok()??;
    Some(String::from_utf8_lossy(&bytes).into_owned())
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
