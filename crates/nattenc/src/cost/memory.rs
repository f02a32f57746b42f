//! How much memory a running job counts for: the one rule by which jobs are let in, for real ([`crate::execute`])
//! and in simulations ([`super::simulate`]). Pure.
//!
//! A compiler's memory is not the same all along: cicc's front end climbs to the peak in the first half of its
//! time, then the optimiser gets along with a fraction of it. A job counts for its peak until that is over, then
//! for what it still holds.

use crate::graph::Kind;
use serde::{Deserialize, Serialize};

/// The shape of a job's memory over its time: at most the peak, then at most a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The part of the job's CPU time after which the peak is over.
    pub until: f64,
    /// What it holds afterwards at most, as a part of the peak.
    pub after: f64,
}

/// What a job holds at some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// CPU seconds that it has taken so far.
    pub cpu: f64,
    /// Resident bytes of its processes.
    pub memory: u64,
}

/// What a job is predicted to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// CPU seconds.
    pub cpu: f64,
    /// Largest resident set, bytes.
    pub peak: u64,
    /// Its shape.
    pub profile: Profile,
}

/// What is seen of a job while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// The last sample.
    pub now: Sample,
    /// The most that it held, bytes.
    pub highest: u64,
}

/// A job that holds this part of its predicted peak has come to it.
const REACHED: f64 = 0.8;

/// What a job holds may grow by this part of it before it is looked at again.
const MARGIN: f64 = 0.25;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, never negative")]
fn part(bytes: u64, part: f64) -> u64 {
    (bytes as f64 * part) as u64
}

impl Profile {
    /// The peak all along.
    pub const FLAT: Profile = Profile { until: 1.0, after: 1.0 };

    /// What a phase's is taken for while none was seen.
    pub fn of_kind(kind: Kind) -> Profile {
        match kind {
            Kind::Cicc => Profile { until: 0.5, after: 1.0 / 3.0 },
            _ => Profile::FLAT,
        }
    }

    /// That of a job which ended at `peak` bytes after `cpu` seconds: of all two steps that lie above the samples
    /// those that enclose least.
    pub fn of(samples: &[Sample], cpu: f64, peak: u64) -> Profile {
        let mut best = Profile::FLAT;
        if cpu <= 0.0 || peak == 0 {
            return best;
        }
        let area = |p: Profile| (1.0 - p.until).mul_add(p.after, p.until);
        let mut after = 0;
        for pair in samples.windows(2).rev() {
            after = after.max(pair[1].memory);
            let found = Profile {
                // Between two samples anything may have been.
                until: (pair[1].cpu / cpu).clamp(0.0, 1.0),
                after: (after as f64 / peak as f64).clamp(0.0, 1.0),
            };
            if area(found) < area(best) {
                best = found;
            }
        }
        best
    }
}

impl Expected {
    /// What the job holds at most once its peak is over, bytes.
    pub fn after(&self) -> u64 {
        part(self.peak, self.profile.after)
    }

    /// What the job counts for, bytes: its peak, or more where more was seen, until that is over by the clock and
    /// by what was seen; then what it holds with a margin, and what it is predicted to hold still.
    pub fn counts_for(&self, seen: Option<Seen>) -> u64 {
        let Some(Seen { now, highest }) = seen else { return self.peak };
        let whole = self.peak.max(highest);
        let reached = highest >= part(self.peak, REACHED);
        let over = now.cpu >= self.profile.until * self.cpu && self.profile.until < 1.0;
        let after = self.after().max(part(now.memory, 1.0 + MARGIN));
        if reached && over { after.min(whole) } else { whole }
    }
}

/// Whether a job that counts for `more` may start beside what runs, where `counted` is what those count for, one
/// by one. With nothing running every job may.
pub fn fits(counted: &[u64], more: u64, budget: u64) -> bool {
    counted.is_empty() || counted.iter().sum::<u64>().saturating_add(more) <= budget
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: &[u64]) -> Vec<Sample> {
        memory.iter().enumerate().map(|(i, memory)| Sample { cpu: i as f64, memory: *memory }).collect()
    }

    #[test]
    fn profile_is_the_least_that_lies_above_all_samples() {
        for (memory, peak, until, after) in [
            // A front end that climbs, an optimiser that needs a third of it.
            (&[10, 40, 90, 100, 30, 25, 30, 20, 20, 20][..], 100, 0.4, 0.3),
            // A second peak belongs to the peak.
            (&[10, 100, 20, 20, 90, 100, 20, 10, 10, 10], 100, 0.6, 0.2),
            // One that only grows, and one that was too short to be seen.
            (&[10, 20, 30, 40, 50, 60, 70, 80, 90, 100], 100, 1.0, 1.0),
            (&[10], 100, 1.0, 1.0),
            (&[], 100, 1.0, 1.0),
            // The true peak was between two samples, before or after the one that is highest.
            (&[10, 50, 10, 10, 10, 10, 10, 10, 10, 10], 100, 0.2, 0.1),
        ] {
            let found = Profile::of(&samples(memory), 10.0, peak);
            assert_eq!(found, Profile { until, after }, "{memory:?}");
        }
        assert_eq!(Profile::of(&samples(&[5, 1]), 0.0, 5), Profile::FLAT);
        assert_eq!(Profile::of(&samples(&[5, 1]), 1.0, 0), Profile::FLAT);
    }

    #[test]
    fn job_counts_for_its_peak_until_that_is_over_and_for_what_it_holds_afterwards() {
        let expected = Expected { cpu: 100.0, peak: 1000, profile: Profile { until: 0.5, after: 0.25 } };
        let flat = Expected { profile: Profile::FLAT, ..expected };
        let seen = |cpu: f64, memory: u64, highest: u64| Some(Seen { now: Sample { cpu, memory }, highest });
        for (expected, seen, counts) in [
            (expected, None, 1000),
            (expected, seen(10.0, 300, 300), 1000),
            // More than predicted, at once.
            (expected, seen(10.0, 1200, 1200), 1200),
            // Fell early: it may climb again.
            (expected, seen(40.0, 100, 1000), 1000),
            (expected, seen(50.0, 100, 1000), 250),
            (expected, seen(60.0, 400, 1000), 500),
            (expected, seen(60.0, 950, 1000), 1000),
            // Late, and the peak was not seen yet.
            (expected, seen(90.0, 400, 400), 1000),
            (flat, seen(99.0, 10, 1000), 1000),
            (flat, seen(200.0, 10, 1000), 1000),
        ] {
            assert_eq!(expected.counts_for(seen), counts, "{seen:?}");
        }
    }

    #[test]
    fn one_that_overshoots_lets_nobody_in() {
        assert!(fits(&[], u64::MAX, 1));
        assert!(fits(&[4, 4], 2, 10) && !fits(&[4, 4], 3, 10));
        assert!(!fits(&[11], 0, 10) && !fits(&[1], u64::MAX, u64::MAX - 1));
    }
}
